"""Traffic of sharded parameters and tensor parallelism: what is gathered when.

Ranks that share the parameters of a model gather a *unit* of them (a block, say) before they
compute with it, and reduce-scatter its gradients after. Forward and backward each gather every unit
(ZeRO-3), or only one of them does (ZeRO-2); that is a *pass*. How many passes a step makes follows
from the order of operations: forward gathers many units in a row, backward has a reduce-scatter
after each.
"""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = ["ShardedAxis", "ShardingResult", "SharedStream", "TensorTraffic", "Variable"]


class ShardedAxis(Record, frozen=True, kw_only=True):
    """Parameters shared along one axis; means over ranks and steps.

    Args:
        axis: Mesh axis, or the group's description.
        group_size: Ranks that share; None where it differs or is not known.
        num_nodes: Nodes that such a group spans, the most of all; None when unknown.
        gathers_per_step: All-gathers.
        gather_bytes_per_step: Their full buffers, None where a size is not known.
        gather_bytes_median: Of one.
        scatters_per_step: Reduce-scatters.
        scatter_bytes_per_step: Their full buffers.
        gather_passes: How often a step gathers every parameter, by elements; None where that does
            not follow from the recording.
        scatter_passes: How often it reduces every gradient.
        num_units: Units that a pass is made of.
        ahead_ratio: Share of gathered bytes whose gathering began beside computation, or spent at
            least a twentieth of its time there; by number where sizes are not known.
        gather_exposed_ns_per_step: Time of gathers that computation does not hide.
        gather_wait_ns_per_step: Of it, waiting for late members; None where that is not known.
        scatter_exposed_ns_per_step: As for gathers.
        scatter_wait_ns_per_step: As for gathers.
        latency_ns_per_gather: Start-up of one by the fabric profile; None without one.
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
        group_size: Ranks of a group; None where it differs or is not known.
        all_reduces_per_step: Activations or their gradients, added up.
        all_reduce_bytes_per_step: Their sizes, None where one is not known.
        all_reduce_exposed_ns_per_step: Their time that computation does not hide.
        all_reduce_wait_ns_per_step: Of it, waiting for late members; None where that is not known.
        all_gathers_per_step: Of sequences, before a block (sequence parallelism).
        reduce_scatters_per_step: Of sequences, after a block.
        pair_bytes_per_step: Sizes of all-gathers and reduce-scatters together.
        pair_exposed_ns_per_step: As for all-reduces.
        pair_wait_ns_per_step: As for all-reduces.
        overlap_ratio: Share of the time of all these operations beside which something is computed.
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
    """Collectives of data parallelism on a stream of a device that computes too.

    Args:
        axis: Mesh axis, or the group's description.
        per_step: How many of its all-reduces, all-gathers and reduce-scatters, mean over ranks.
        share_ratio: Of all of these.
        exposed_ns_per_step: Their time that computation does not hide, mean over ranks and steps.
        wait_ns_per_step: Of it, waiting for late members; None where that is not known.
    """

    axis: str
    per_step: float
    share_ratio: float
    exposed_ns_per_step: int
    wait_ns_per_step: int | None


class Variable(Record, frozen=True, kw_only=True):
    """A variable of the job's environment."""

    name: str
    value: str


class ShardingResult(Result, frozen=True, kw_only=True):
    """Traffic of sharded parameters and tensor parallelism: what is gathered when.

    Args:
        axes: Axes along which parameters are shared, most gathered bytes first.
        tensor: Tensor parallelism, None where no group has that axis.
        shared_streams: Axes of data parallelism whose collectives run on streams that compute,
            most exposed time first.
        is_environment_known: Whether the job's environment was recorded (run.json).
        environment: Variables of it that say how NCCL and the device work.
        device: The ranks' accelerator; empty when unknown.
    """

    axes: tuple[ShardedAxis, ...] = ()
    tensor: TensorTraffic | None = None
    shared_streams: tuple[SharedStream, ...] = ()
    is_environment_known: bool = False
    environment: tuple[Variable, ...] = ()
    device: str = ""

    def variable(self, name: str) -> str | None:
        """Its value; None where it is not set, or the environment is not known."""
        return next((v.value for v in self.environment if v.name == name), None)
