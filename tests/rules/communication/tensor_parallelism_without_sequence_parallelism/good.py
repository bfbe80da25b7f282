"""The same bytes as gathers and scatters; only a norm is reduced."""

from distprof.sections.sharding.result import ShardingResult, TensorTraffic
from tests.rules.samples import MS, Results, changed, healthy


def results() -> Results:
    tensor = TensorTraffic(
        group_size=8,
        all_reduces_per_step=5.0,
        all_reduce_bytes_per_step=5_000,
        all_gathers_per_step=64.0,
        reduce_scatters_per_step=64.0,
        pair_bytes_per_step=1_073_741_824,
        all_reduce_exposed_ns_per_step=2 * MS,
        all_reduce_wait_ns_per_step=MS,
        pair_exposed_ns_per_step=2 * MS,
        pair_wait_ns_per_step=MS,
        overlap_ratio=0.1,
    )
    return changed(healthy(), ShardingResult, tensor=tensor)
