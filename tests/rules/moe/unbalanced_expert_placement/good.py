"""One rank has most tokens because one expert alone has them: no placement helps."""

from distprof.sections.moe.result import MoeResult
from tests.rules.samples import Results, healthy, moe_layer, moe_placement


def results() -> Results:
    row = moe_placement("0", max_over_mean=2.2, replaced_max_over_mean=2.0)
    return {**healthy(), MoeResult: MoeResult(layers=(moe_layer("0"),), placement=(row,))}
