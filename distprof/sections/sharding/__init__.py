"""Traffic of sharded parameters and tensor parallelism, and when it happens."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.terms import UNKNOWN_AXIS, Confidence


class ShardedAxis(Record, frozen=True, kw_only=True):
    """Parameters sharded along one axis; means over ranks and steps."""

    axis: str  # Mesh axis, or the group's description.
    group_size: int | None  # Ranks of a group; None if it differs or is unknown.
    num_nodes: int | None  # Most nodes that a group spans; None if unknown.
    gathers_per_step: float  # Number of all-gathers.
    gather_bytes_per_step: int | None  # Size of their full buffers; None if a size is unknown.
    gather_bytes_median: int | None  # Median size of one all-gather.
    scatters_per_step: float  # Number of reduce-scatters.
    scatter_bytes_per_step: int | None  # Size of their full buffers.
    # How often a step gathers every parameter, by elements; None if the recording does not show it.
    gather_passes: float | None
    scatter_passes: int | None  # How often it reduces every gradient.
    num_units: int | None  # Units per pass.
    # Share of gathered bytes whose gathers began during computation, or overlapped with it for at
    # least a twentieth of their time; by count if sizes are unknown.
    ahead_ratio: float | None
    gather_exposed_ns_per_step: int  # Exposed time of gathers.
    # Part of it that is waiting for late members; None if unknown.
    gather_wait_ns_per_step: int | None
    scatter_exposed_ns_per_step: int  # As for gathers.
    scatter_wait_ns_per_step: int | None  # As for gathers.
    # Start-up time of one gather from the fabric profile; None without a profile.
    latency_ns_per_gather: int | None = None

    @property
    def gather_transfer_ns(self) -> int:
        """Exposed time of gathers, without waiting for late members if that is known."""
        return max(0, self.gather_exposed_ns_per_step - (self.gather_wait_ns_per_step or 0))

    @property
    def scatter_transfer_ns(self) -> int:
        """Exposed time of reduce-scatters, without waiting for late members if that is known."""
        return max(0, self.scatter_exposed_ns_per_step - (self.scatter_wait_ns_per_step or 0))

    @property
    def confidence(self) -> Confidence:
        """Measured if waiting is separated from transfer, otherwise inferred."""
        is_split = self.gather_wait_ns_per_step is not None
        return Confidence.MEASURED if is_split else Confidence.INFERRED

    @property
    def label(self) -> str:
        """For example ``dp_shard (8 ranks)``."""
        name = "an unnamed group" if self.axis == UNKNOWN_AXIS else self.axis
        return name if self.group_size is None else f"{name} ({self.group_size} ranks)"


class TensorTraffic(Record, frozen=True, kw_only=True):
    """Traffic of tensor parallelism; means over ranks and steps."""

    group_size: int | None  # Ranks of a group; None if it differs or is unknown.
    all_reduces_per_step: float  # All-reduces of activations or their gradients.
    all_reduce_bytes_per_step: int | None  # Their total size; None if a size is unknown.
    all_reduce_exposed_ns_per_step: int  # Their exposed time.
    # Part of it that is waiting for late members; None if unknown.
    all_reduce_wait_ns_per_step: int | None
    all_gathers_per_step: float  # All-gathers of sequences before a block (sequence parallelism).
    reduce_scatters_per_step: float  # Reduce-scatters of sequences after a block.
    pair_bytes_per_step: int | None  # Sizes of all-gathers and reduce-scatters together.
    pair_exposed_ns_per_step: int  # As for all-reduces.
    pair_wait_ns_per_step: int | None  # As for all-reduces.
    # Share of the time of all these operations that overlaps with computation.
    overlap_ratio: float | None


class SharedStream(Record, frozen=True, kw_only=True):
    """Data-parallel collectives on a compute stream of the GPU."""

    axis: str  # Mesh axis, or the group's description.
    # Number of these all-reduces, all-gathers and reduce-scatters, mean over ranks.
    per_step: float
    share_ratio: float  # Their share of all such collectives of the axis.
    exposed_ns_per_step: int  # Their exposed time, mean over ranks and steps.
    wait_ns_per_step: int | None  # Part of it that is waiting for late members; None if unknown.


class Variable(Record, frozen=True, kw_only=True):
    """A variable of the job's environment."""

    name: str  # Name of the variable.
    value: str  # Its value.


class ShardingResult(Result, frozen=True, kw_only=True):
    """Traffic of sharded parameters and tensor parallelism, and when it happens."""

    # Axes along which parameters are sharded, most gathered bytes first.
    axes: tuple[ShardedAxis, ...] = ()
    tensor: TensorTraffic | None = None  # Tensor parallelism; None if no group has that axis.
    # Data-parallel axes whose collectives run on compute streams, most exposed time first.
    shared_streams: tuple[SharedStream, ...] = ()
    is_environment_known: bool = False  # Whether the job's environment was recorded (run.json).
    environment: tuple[Variable, ...] = ()  # Its variables that configure NCCL and the GPU.
    device: str = ""  # The ranks' accelerator; empty if unknown.

    def variable(self, name: str) -> str | None:
        """Its value; None if it is not set or the environment is unknown."""
        return next((v.value for v in self.environment if v.name == name), None)
