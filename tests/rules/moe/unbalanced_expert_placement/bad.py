"""Two busy experts lie on one of four ranks; apart from each other the ranks would be even."""

from distprof.sections.moe.result import MoeResult
from tests.rules.samples import MS, Results, healthy, moe_layer, moe_placement


def results() -> Results:
    row = moe_placement(
        "0",
        max_over_mean=1.6,
        replaced_max_over_mean=1.05,
        expert_ns_per_step=8 * MS,
        lost_ns_per_step=3 * MS,
        replaced_ns_per_step=5 * MS + MS // 4,
    )
    return {**healthy(), MoeResult: MoeResult(layers=(moe_layer("0"),), placement=(row,))}
