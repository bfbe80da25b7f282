"""Rules about sharded parameters and tensor parallelism: units and layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule, worth
from distprof.sections.collectives import CollectiveClass, CollectivesResult
from distprof.sections.overlap import OverlapResult
from distprof.sections.sharding import ShardedAxis, ShardingResult, TensorTraffic
from distprof.sections.shares import WIDER_TRANSFER, MeanStep, StepTimes, alone_ns
from distprof.terms import CollectiveKind, Confidence, MeshAxis, Severity
from distprof.units import format_bytes, format_ratio


@rule(
    "COM117",
    Severity.WARNING,
    max_ahead_ratio=Limit(
        0.25, "share of overlappable gathers from which parameters count as prefetched"
    ),
    min_unit_bytes=Limit(100_000, "median size of a gather in bytes below which latency dominates"),
    min_step_ratio=worth(0.03),
)
def no_parameter_prefetch(
    sharding: ShardingResult, overlap: OverlapResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Sharded parameters are gathered only after the previous computation has ended, so the GPU
    waits for each unit. The rule also reports a model that is a single unit, which leaves nothing
    to compute during the gather.
    """
    if not sharding.axes:
        return
    step = times.mean_step()
    alone = alone_ns(step, overlap)
    for axis in sharding.axes:
        if axis.ahead_ratio is None:
            continue
        # share of gathers that can overlap: no computation precedes the root and the first block
        units = axis.num_units or 0
        if axis.ahead_ratio >= limits["max_ahead_ratio"] * (
            (units - 2) / units if units > 2 else 1.0
        ):
            continue
        if (axis.gather_bytes_median or limits["min_unit_bytes"]) < limits["min_unit_bytes"]:
            continue
        cost = min(axis.gather_transfer_ns, alone)
        yield Draft(
            headline=(
                f"All parameters are one unit: gathering takes {step.part(cost)}"
                if axis.num_units == 1
                else f"Parameters are not prefetched: gathering takes {step.part(cost)}"
            ),
            message=_prefetch_message(axis, step, cost),
            cost_ns_per_step=cost,
            confidence=axis.confidence,
            evidence=("sharding.axes", "overlap.ranks", "waterfall.all"),
            without=f"collectives all_gather {axis.axis}",
            explains=WIDER_TRANSFER,
        )


def _prefetch_message(axis: ShardedAxis, step: MeanStep, cost_ns: int) -> str:
    size = "" if axis.gather_bytes_median is None else f" {format_bytes(axis.gather_bytes_median)}"
    times = f"{axis.gathers_per_step:.0f} times{size}"
    if axis.num_units == 1:
        return (
            f"Parameters sharded over {axis.label} are gathered {times}: "
            f"{step.amount(cost_ns)} is spent gathering with nothing to compute."
        )
    return (
        f"Only {format_ratio(axis.ahead_ratio)} of the parameters sharded over {axis.label} "
        f"are gathered during computation: {step.amount(cost_ns)} is exposed gathering, {times}."
    )


@rule(
    "COM118",
    Severity.WARNING,
    unit_bytes=Limit(4_000_000, "gather size from which a unit is large enough, in bytes"),
    min_units=Limit(16, "smallest number of units per pass that is worth merging"),
    min_step_ratio=worth(0.02),
)
def small_sharding_units(
    sharding: ShardingResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Parameters are sharded in many small units, with gathers of a few megabytes or less in
    sequence.
    """
    if not sharding.axes:
        return
    step = times.mean_step()
    if all(axis.gather_bytes_median is None for axis in sharding.axes):
        raise InsufficientEvidenceError("the recording has no message sizes")
    for axis in sharding.axes:
        size, units = axis.gather_bytes_median, axis.num_units
        if size is None or units is None:
            continue
        if size >= limits["unit_bytes"] or units < limits["min_units"]:
            continue
        cost = _cost(axis, limits["unit_bytes"])
        yield Draft(
            headline=f"Small sharding units: larger ones would recover {step.part(cost)}",
            message=(
                f"A pass over the parameters sharded over {axis.label} takes {units} gathers of "
                f"{format_bytes(size)}. Units of {format_bytes(limits['unit_bytes'])} would "
                f"recover {step.amount(cost)}."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED,
            evidence=("sharding.axes", "waterfall.all"),
            without=f"collectives all_gather {axis.axis}",
        )


def _cost(axis: ShardedAxis, unit_bytes: float) -> int:
    needed = max((axis.gather_bytes_per_step or 0) / unit_bytes, 1.0)
    gone = max(axis.gathers_per_step - needed, 0.0)
    cost = axis.gather_transfer_ns * gone / max(axis.gathers_per_step, 1.0)
    if axis.latency_ns_per_gather is not None:
        cost = min(cost, gone * axis.latency_ns_per_gather)
    return int(cost)


_GATHERS = 2  # Gather passes of one micro-batch: forward and backward


@rule(
    "COM119",
    Severity.INFO,
    min_gather_passes=Limit(3.5, "gather passes per step from which gathers count as repeated"),
    min_scatter_passes=Limit(2, "reduce-scatter passes per step from which they count as repeated"),
    min_step_ratio=worth(0.03),
)
def gathers_repeated_while_accumulating(
    sharding: ShardingResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Gradients are accumulated over micro-batches, and each micro-batch gathers the sharded
    parameters again or reduces its own gradients, although parameters change only once per step.
    """
    if not sharding.axes:
        return
    step = times.mean_step()
    for axis in sharding.axes:
        gathers, scatters = axis.gather_passes or 0.0, axis.scatter_passes or 0
        repeats = scatters >= limits["min_scatter_passes"]
        if gathers < limits["min_gather_passes"] and not repeats:
            continue
        of_gathers = axis.gather_transfer_ns * (1 - min(_GATHERS / gathers, 1)) if gathers else 0.0
        of_scatters = axis.scatter_transfer_ns * (1 - 1 / scatters) if scatters else 0.0
        cost = int(of_gathers + of_scatters)
        yield Draft(
            headline=f"Gathers and reductions repeated in a step take {step.part(cost)}",
            message=(
                f"A step of {axis.label} {_what(gathers, scatters)}: the exposed transfer "
                f"beyond that of one micro-batch takes {step.amount(cost)}."
            ),
            cost_ns_per_step=cost,
            confidence=axis.confidence,
            evidence=("sharding.axes", "waterfall.all"),
        )


def _what(gathers: float, scatters: int) -> str:
    parts = []
    if gathers > _GATHERS:
        parts.append(f"gathers every parameter {gathers:.0f} times")
    if scatters > 1:
        parts.append(f"reduces every gradient {scatters} times")
    return " and ".join(parts)


_SHARDING = (MeshAxis.DP_SHARD.value,)


@rule("COM106", Severity.WARNING, min_step_ratio=worth(0.05))
def sharding_across_nodes(collectives: CollectivesResult, times: StepTimes) -> Iterator[Draft]:
    """Parameters are sharded over all nodes at once (flat FSDP): every all-gather and
    reduce-scatter of the sharding axis crosses the network although several ranks of a group share
    a node.
    """
    sharding = [c for c in collectives.classes if c.axis in _SHARDING]
    if not sharding:
        return
    if all(record.num_nodes is None for record in sharding):
        raise InsufficientEvidenceError("the nodes of the ranks are unknown")
    flat = [record for record in sharding if _spans_nodes(record)]
    if not flat or len(flat) < len(sharding):
        return
    if all(record.exposed_wait_ns_per_step is None for record in flat):
        raise InsufficientEvidenceError(
            "waiting and transfer of the sharding axis cannot be separated"
        )
    step = times.mean_step()
    exposed = sum(
        record.exposed_transfer_ns_per_step for record in flat
    )  # classes may be exposed at the same time
    cost = min(exposed, step.exposed_transfer_ns)
    nodes, size = flat[0].num_nodes or 0, flat[0].group_size or 0
    yield Draft(
        headline=f"Sharding across nodes: its exposed transfer takes {step.part(cost)}",
        message=(
            f"The groups of {flat[0].axis} span {nodes} nodes with {size // nodes} ranks on each; "
            f"{step.amount(cost)}.{_instead(flat, nodes, size)}"
        ),
        cost_ns_per_step=cost,
        confidence=Confidence.MODELLED,
        evidence=("collectives.classes", "run.nodes"),
        without=f"axis {flat[0].axis}",
        explains=WIDER_TRANSFER,
    )


def _spans_nodes(record: CollectiveClass) -> bool:
    """Whether a group spans nodes with several ranks on each."""
    nodes, size = record.num_nodes, record.group_size
    return nodes is not None and size is not None and nodes > 1 and size >= 2 * nodes


def _instead(flat: Sequence[CollectiveClass], nodes: int, size: int) -> str:
    """Traffic between nodes now and with HSDP (formula sheet, "Volume per training step")."""
    sent = [record.sent_bytes_per_step for record in flat]
    scattered = [
        record.sent_bytes_per_step
        for record in flat
        if record.kind == CollectiveKind.REDUCE_SCATTER.label
    ]
    if not scattered or None in sent:
        return ""
    now = sum(value for value in sent if value is not None)
    model = sum(value for value in scattered if value is not None) * size / (size - 1)
    then = 2 * (nodes - 1) / nodes * model * nodes / size
    return (
        f" Sharded inside nodes, a rank would send about {format_bytes(then)} between nodes per "
        f"step. Now it sends {format_bytes(now)} in groups that span nodes."
    )


@rule(
    "COM120",
    Severity.INFO,
    costs_time=False,
    min_all_reduces=Limit(4, "smallest number of all-reduces per step, that of a single layer"),
    max_pair_ratio=Limit(
        0.2, "share of gathered or scattered bytes from which the sequence counts as sharded"
    ),
    min_step_ratio=Limit(0.05, "smallest exposed share of the step that is worth reporting"),
)
def tensor_parallelism_without_sequence_parallelism(
    sharding: ShardingResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Tensor parallelism sums whole activations with all-reduces instead of reduce-scatters after
    and all-gathers before each block (sequence parallelism).
    """
    tensor = sharding.tensor
    if tensor is None or times.step_time.median_ns is None:
        return
    step = times.mean_step()
    if tensor.all_reduces_per_step < limits["min_all_reduces"]:
        return
    if _pair_ratio(tensor) >= limits["max_pair_ratio"]:
        return
    if step.ratio(tensor.all_reduce_exposed_ns_per_step) < limits["min_step_ratio"]:
        return
    size = tensor.all_reduce_bytes_per_step
    together = "" if size is None else f" of {format_bytes(size)} in total"
    who = "Tensor" if tensor.group_size is None else f"{tensor.group_size} ranks of tensor"
    verb = "sums" if tensor.group_size is None else "sum"
    yield Draft(
        headline=(
            "Tensor parallelism without sequence parallelism exposes "
            f"{step.part(tensor.all_reduce_exposed_ns_per_step)}"
        ),
        message=(
            f"{who} parallelism {verb} activations with {tensor.all_reduces_per_step:.0f} "
            f"all-reduces{together} per step and gathers or scatters almost nothing: "
            f"{step.amount(tensor.all_reduce_exposed_ns_per_step)} is exposed."
        ),
        evidence=("sharding.tensor", "waterfall.all"),
    )


def _pair_ratio(tensor: TensorTraffic) -> float:
    """Share of gathers and scatters, in bytes if known, otherwise by count."""
    reduced, pairs = tensor.all_reduce_bytes_per_step, tensor.pair_bytes_per_step
    if reduced is not None and pairs is not None and reduced + pairs:
        return pairs / (reduced + pairs)
    number = tensor.all_gathers_per_step + tensor.reduce_scatters_per_step
    return number / (number + tensor.all_reduces_per_step)


_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"


@rule("HST104", Severity.WARNING, min_step_ratio=worth(0.05))
def single_device_connection(
    sharding: ShardingResult, overlap: OverlapResult, times: StepTimes
) -> Iterator[Draft]:
    """A job that shards its parameters runs with `CUDA_DEVICE_MAX_CONNECTIONS=1`, and its gathers
    and reduce-scatters do not overlap with computation.
    """
    if not sharding.axes or sharding.device == "cpu" or sharding.variable(_VARIABLE) != "1":
        return
    step = times.mean_step()
    alone = alone_ns(step, overlap)
    cost = min(
        sum(axis.gather_transfer_ns + axis.scatter_transfer_ns for axis in sharding.axes),
        alone,
        step.exposed_transfer_ns,
    )
    where = " and ".join(axis.label for axis in sharding.axes)
    yield Draft(
        headline=f"{_VARIABLE}=1 may expose {step.part(cost)}",
        message=(
            f"The exposed transfer of sharded parameters in {where} takes {step.amount(cost)}."
        ),
        fix=f"Unset {_VARIABLE}: the overlap of sharded parameters needs independent streams.",
        cost_ns_per_step=cost,
        confidence=Confidence.INFERRED,
        evidence=("sharding.environment", "sharding.axes", "overlap.ranks"),
        without="overlap",
    )
