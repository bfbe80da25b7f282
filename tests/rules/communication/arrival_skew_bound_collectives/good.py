"""As much waiting, next to no exposure: computation hides it."""

from distprof.sections.collectives.result import CollectivesResult
from tests.rules.samples import US, Results, collective_class, collectives, healthy


def results() -> Results:
    waiting = collective_class(wait_ns_per_step=2_000 * US)
    return {**healthy(), CollectivesResult: collectives(waiting)}
