"""One assignment of a hundred is dropped, as chance does with a capacity factor of 1."""

from distprof.sections.moe.result import MoeResult
from tests.rules.samples import Results, healthy, moe_layer


def results() -> Results:
    layer = moe_layer("0", dropped_ratio=0.01)
    return {**healthy(), MoeResult: MoeResult(layers=(layer, moe_layer("1")))}
