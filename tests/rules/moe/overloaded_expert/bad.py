"""Expert 2 gets half of all tokens in both layers; all-to-alls wait for its rank."""

from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.moe.result import MoeResult
from tests.rules.samples import MS, Results, collective_class, collectives, healthy, moe_layer


def results() -> Results:
    layers = tuple(
        moe_layer(name, max_over_mean=3.9, busiest_expert=2, busiest_share_ratio=0.48)
        for name in "01"
    )
    dispatch = collective_class(kind="all_to_all", axis="ep", exposed_wait_ns_per_step=MS)
    return {
        **healthy(),
        MoeResult: MoeResult(layers=layers),
        CollectivesResult: collectives(collective_class(), dispatch),
    }
