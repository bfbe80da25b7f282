"""A hundred all-reduces of 4 kB in each step beside the gradient buckets."""

from distprof.sections.collectives.result import CollectivesResult
from tests.rules.samples import US, Results, collective_class, collectives, healthy


def results() -> Results:
    tiny = collective_class(
        bytes=4_096, count=500, exposed_ns_per_step=900 * US, exposed_wait_ns_per_step=100 * US
    )
    results = healthy(exposed_transfer=1.6, communication_ms=12.0)
    return {**results, CollectivesResult: collectives(collective_class(), tiny)}
