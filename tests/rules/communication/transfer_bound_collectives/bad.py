"""All computation already hides communication, and 2.5 ms of transfer is left over."""

from distprof.sections.collectives.result import CollectivesResult
from tests.rules.samples import US, Results, collective_class, collectives, healthy


def results() -> Results:
    large = collective_class(exposed_ns_per_step=2_700 * US)
    results = healthy(exposed_transfer=2.5, communication_ms=18.7)
    return {**results, CollectivesResult: collectives(large)}
