"""One connection, and 1.4 ms of the sharding axis is exposed."""

from distprof.sections.sharding.result import ShardingResult, Variable
from tests.rules.samples import US, Results, changed, healthy, sharded_axis


def results() -> Results:
    axis = sharded_axis(gather_exposed_ns_per_step=1_000 * US, scatter_exposed_ns_per_step=600 * US)
    return changed(
        healthy(exposed_transfer=1.4),
        ShardingResult,
        axes=(axis,),
        is_environment_known=True,
        environment=(Variable(name="CUDA_DEVICE_MAX_CONNECTIONS", value="1"),),
        device="NVIDIA H100",
    )
