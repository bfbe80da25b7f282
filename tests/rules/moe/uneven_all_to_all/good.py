"""Rank 1 receives 1.5 times the mean, but of so few tokens that it may be luck."""

from distprof.sections.moe.result import MoeResult
from tests.rules.samples import Results, healthy, moe_exchange, moe_layer, moe_placement


def results() -> Results:
    exchange = moe_exchange(received_max_over_mean=1.5, busiest_receiver=1)
    moe = MoeResult(
        layers=(moe_layer("0"),),
        placement=(moe_placement("0", tokens_per_call=32.0),),
        exchanges=(exchange,),
    )
    return {**healthy(), MoeResult: moe}
