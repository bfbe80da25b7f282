"""Rank 1 receives twice the mean of its group."""

from distprof.sections.moe.result import MoeResult
from tests.rules.samples import Results, healthy, moe_exchange, moe_layer, moe_placement


def results() -> Results:
    exchange = moe_exchange(received_max_over_mean=2.0, busiest_receiver=1)
    moe = MoeResult(
        layers=(moe_layer("0"),), placement=(moe_placement("0"),), exchanges=(exchange,)
    )
    return {**healthy(), MoeResult: moe}
