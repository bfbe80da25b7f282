"""The same on one domain of two hosts, as NVL72 is: as much is exposed, and it is at its place."""

from distprof.sections.placement.result import PlacementResult
from tests.rules.samples import Results, healthy, placed_axis, placement


def results() -> Results:
    tp = placed_axis(
        size=8,
        num_groups=1,
        num_domains=1,
        least_domains=1,
        most_on_node=4,
        least_on_node=4,
        stride=1,
        could_fit=True,
        tier="inside a domain",
        exposed_transfer_ns_per_step=700_000,
    )
    return {
        **healthy(),
        PlacementResult: placement(tp, domain_size=8, num_domains=1, domain_origin="GB200 (NVL72)"),
    }
