"""Ranks 1, 3 and 5 reduce in 6 ms what other groups reduce in 3 ms: 3 of 20 ms."""

from msgspec.structs import replace

from distprof.sections.stragglers.result import SlowLink, StragglersResult
from tests.rules.samples import US, Results, healthy, stragglers

LINK = SlowLink(
    ranks=(1, 3, 5),
    nodes=("node0", "node1"),
    axis="dp",
    kind="all_reduce",
    bytes=64 << 20,
    transfer_ns=6_000 * US,
    others_ns=3_000 * US,
    ratio=2.0,
    num_compared=1,
    lost_ns_per_step=3_000 * US,
    share_of_step_ratio=0.15,
)


def results() -> Results:
    return {**healthy(), StragglersResult: replace(stragglers(), links=(LINK,))}
