"""Ranks arrive 2 ms apart in each step, and no rank is behind it."""

from distprof.sections.collectives.result import CollectivesResult
from tests.rules.samples import US, Results, collective_class, collectives, healthy


def results() -> Results:
    waiting = collective_class(exposed_ns_per_step=2_400 * US, exposed_wait_ns_per_step=2_000 * US)
    results = healthy(exposed_wait=2.0, exposed_transfer=0.4, communication_ms=9.0)
    return {**results, CollectivesResult: collectives(waiting)}
