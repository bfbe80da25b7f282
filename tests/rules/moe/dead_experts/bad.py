"""Half of the experts of one layer get nothing."""

from distprof.sections.moe.result import MoeResult
from tests.rules.samples import Results, healthy, moe_layer


def results() -> Results:
    dead = moe_layer("1", dead_ratio=0.5, dead_experts=(0, 1, 4, 5))
    return {**healthy(), MoeResult: MoeResult(layers=(moe_layer("0"), dead))}
