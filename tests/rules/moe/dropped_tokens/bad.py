"""One of two layers drops an eighth of its assignments."""

from distprof.sections.moe.result import MoeResult
from tests.rules.samples import Results, healthy, moe_layer


def results() -> Results:
    full = moe_layer("1", dropped_ratio=0.125, max_over_mean=1.8)
    return {**healthy(), MoeResult: MoeResult(layers=(moe_layer("0"), full))}
