"""One expert has three times the mean, but of so few tokens that it may be luck."""

from distprof.sections.moe.result import MoeResult
from tests.rules.samples import Results, healthy, moe_layer


def results() -> Results:
    few = moe_layer("0", num_steps=1, tokens_per_step=8.0, busiest_share_ratio=0.375)
    return {**healthy(), MoeResult: MoeResult(layers=(few, moe_layer("1")))}
