"""Five of them: gradient clipping, loss, metrics."""

from distprof.sections.collectives.result import CollectivesResult
from tests.rules.samples import US, Results, collective_class, collectives, healthy


def results() -> Results:
    tiny = collective_class(bytes=4_096, count=25, exposed_ns_per_step=40 * US)
    return {**healthy(), CollectivesResult: collectives(collective_class(), tiny)}
