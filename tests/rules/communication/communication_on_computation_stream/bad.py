"""All collectives of the sharding axis are on the stream of the kernels."""

from distprof.sections.sharding.result import ShardingResult, SharedStream
from tests.rules.samples import US, Results, changed, healthy, sharded_axis


def results() -> Results:
    stream = SharedStream(
        axis="dp_shard",
        per_step=51.0,
        share_ratio=1.0,
        exposed_ns_per_step=900 * US,
        wait_ns_per_step=20 * US,
    )
    return changed(healthy(), ShardingResult, axes=(sharded_axis(),), shared_streams=(stream,))
