"""Each step one rank draws the longest documents and computes 1.4 times the mean: 2 of 20 ms."""

from msgspec.structs import replace

from distprof.sections.stragglers.result import SequenceImbalance, StragglersResult
from tests.rules.samples import RANKS, US, Results, healthy, stragglers

IMBALANCE = SequenceImbalance(
    evidence="attention",
    correlation=0.99,
    max_over_mean=1.4,
    attention_spread=0.6,
    rest_spread=0.01,
    lost_ns_per_step=2_000 * US,
    share_of_step_ratio=0.1,
    ranks=tuple(RANKS),
)


def results() -> Results:
    return {**healthy(), StragglersResult: replace(stragglers(), sequences=IMBALANCE)}
