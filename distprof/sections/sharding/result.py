"""Traffic of sharded parameters and tensor parallelism, and when it happens.

Ranks that shard the parameters of a model gather a *unit* of them (a block, for example) before
they compute with it, and reduce-scatter its gradients afterwards. Forward and backward each gather
every unit (ZeRO-3), or only one of them does (ZeRO-2). Gathering every unit once is a *pass*. The
number of passes per step follows from the order of operations: forward gathers many units in a row,
backward has a reduce-scatter after each.
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class ShardedAxis(Record, frozen=True, kw_only=True):
    """Parameters sharded along one axis; means over ranks and steps.

    Args:
        axis: Mesh axis, or the group's description.
        group_size: Ranks of a group; None if it differs or is unknown.
        num_nodes: Most nodes that a group spans; None if unknown.
        gathers_per_step: Number of all-gathers.
        gather_bytes_per_step: Size of their full buffers; None if a size is unknown.
        gather_bytes_median: Median size of one all-gather.
        scatters_per_step: Number of reduce-scatters.
        scatter_bytes_per_step: Size of their full buffers.
        gather_passes: How often a step gathers every parameter, by elements; None if the recording
            does not show it.
        scatter_passes: How often it reduces every gradient.
        num_units: Units per pass.
        ahead_ratio: Share of gathered bytes whose gathers began during computation, or overlapped
            with it for at least a twentieth of their time; by count if sizes are unknown.
        gather_exposed_ns_per_step: Exposed time of gathers.
        gather_wait_ns_per_step: Part of it that is waiting for late members; None if unknown.
        scatter_exposed_ns_per_step: As for gathers.
        scatter_wait_ns_per_step: As for gathers.
        latency_ns_per_gather: Start-up time of one gather from the fabric profile; None without a
            profile.
    """

    axis: str
    group_size: int | None
    num_nodes: int | None
    gathers_per_step: float
    gather_bytes_per_step: int | None
    gather_bytes_median: int | None
    scatters_per_step: float
    scatter_bytes_per_step: int | None
    gather_passes: float | None
    scatter_passes: int | None
    num_units: int | None
    ahead_ratio: float | None
    gather_exposed_ns_per_step: int
    gather_wait_ns_per_step: int | None
    scatter_exposed_ns_per_step: int
    scatter_wait_ns_per_step: int | None
    latency_ns_per_gather: int | None = None


class TensorTraffic(Record, frozen=True, kw_only=True):
    """Traffic of tensor parallelism; means over ranks and steps.

    Args:
        group_size: Ranks of a group; None if it differs or is unknown.
        all_reduces_per_step: All-reduces of activations or their gradients.
        all_reduce_bytes_per_step: Their total size; None if a size is unknown.
        all_reduce_exposed_ns_per_step: Their exposed time.
        all_reduce_wait_ns_per_step: Part of it that is waiting for late members; None if unknown.
        all_gathers_per_step: All-gathers of sequences before a block (sequence parallelism).
        reduce_scatters_per_step: Reduce-scatters of sequences after a block.
        pair_bytes_per_step: Sizes of all-gathers and reduce-scatters together.
        pair_exposed_ns_per_step: As for all-reduces.
        pair_wait_ns_per_step: As for all-reduces.
        overlap_ratio: Share of the time of all these operations that overlaps with computation.
    """

    group_size: int | None
    all_reduces_per_step: float
    all_reduce_bytes_per_step: int | None
    all_reduce_exposed_ns_per_step: int
    all_reduce_wait_ns_per_step: int | None
    all_gathers_per_step: float
    reduce_scatters_per_step: float
    pair_bytes_per_step: int | None
    pair_exposed_ns_per_step: int
    pair_wait_ns_per_step: int | None
    overlap_ratio: float | None


class SharedStream(Record, frozen=True, kw_only=True):
    """Data-parallel collectives on a compute stream of the GPU.

    Args:
        axis: Mesh axis, or the group's description.
        per_step: Number of these all-reduces, all-gathers and reduce-scatters, mean over ranks.
        share_ratio: Their share of all such collectives of the axis.
        exposed_ns_per_step: Their exposed time, mean over ranks and steps.
        wait_ns_per_step: Part of it that is waiting for late members; None if unknown.
    """

    axis: str
    per_step: float
    share_ratio: float
    exposed_ns_per_step: int
    wait_ns_per_step: int | None


class Variable(Record, frozen=True, kw_only=True):
    """A variable of the job's environment.

    Args:
        name: Name of the variable.
        value: Its value.
    """

    name: str
    value: str


class ShardingResult(Result, frozen=True, kw_only=True):
    """Traffic of sharded parameters and tensor parallelism, and when it happens.

    Args:
        axes: Axes along which parameters are sharded, most gathered bytes first.
        tensor: Tensor parallelism; None if no group has that axis.
        shared_streams: Data-parallel axes whose collectives run on compute streams, most exposed
            time first.
        is_environment_known: Whether the job's environment was recorded (run.json).
        environment: Its variables that configure NCCL and the GPU.
        device: The ranks' accelerator; empty if unknown.
    """

    axes: tuple[ShardedAxis, ...] = ()
    tensor: TensorTraffic | None = None
    shared_streams: tuple[SharedStream, ...] = ()
    is_environment_known: bool = False
    environment: tuple[Variable, ...] = ()
    device: str = ""

    def variable(self, name: str) -> str | None:
        """Its value; None if it is not set or the environment is unknown."""
        return next((v.value for v in self.environment if v.name == name), None)
