"""An expert got nothing, but there were too few tokens for every expert to get some."""

from distprof.sections.moe.result import MoeResult
from tests.rules.samples import Results, healthy, moe_layer


def results() -> Results:
    few = moe_layer("0", num_steps=1, tokens_per_step=50.0, dead_ratio=0.125, dead_experts=(6,))
    return {**healthy(), MoeResult: MoeResult(layers=(few, moe_layer("1")))}
