"""Rules about sharded parameters and tensor parallelism: units and layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
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
    min_step_ratio=Limit(0.03, "smallest share of the step that is worth reporting"),
)
def no_parameter_prefetch(
    sharding: ShardingResult, overlap: OverlapResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Sharded parameters are gathered only after the previous computation has ended, so the GPU
    waits for each unit. The rule also reports a model that is a single unit, which leaves nothing
    to compute during the gather.

    ## Why it costs time
    A gather that begins during the computation of the previous unit costs nothing unless it takes
    longer than that computation. A gather that begins afterwards adds its full length to the step,
    in forward and again in backward.

    ## Evidence needed
    All-gathers and reduce-scatters of a sharding axis (`dp_shard`, or any group that gathers
    parameters unit by unit), with the computation of the same rank.

    ## How the cost is computed
    The smaller of two means per rank and step: exposed transfer of the gathers, and computation
    that runs without concurrent communication. If waiting for late members is unknown, all exposed
    time counts as transfer and the finding is marked *inferred*. The time is part of what
    `exposed-communication` and `low-overlap` report.

    ## How to fix
    FSDP2 (`fully_shard`): wrap each transformer block, keep the implicit prefetch (no
    `torch.cuda.synchronize` or `.item()` in forward), and call `set_modules_to_forward_prefetch`
    and `set_modules_to_backward_prefetch` if the CPU is slow. FSDP1: `forward_prefetch=True`,
    `backward_prefetch=BackwardPrefetch.BACKWARD_PRE`. DeepSpeed: `stage3_prefetch_bucket_size`,
    `overlap_comm`. Megatron: `--overlap-param-gather`. Prefetch needs memory for one more unit.

    ## When it is wrong
    The computation of a unit may be too short to overlap with a prefetched gather, or there may be
    no memory for a second unit. `tiny-collectives` covers units of a few kilobytes.

    ## Sources
    Formula sheet, "Anti-patterns" (FSDP without prefetch) and "Volume per training step" (FSDP).
    PyTorch documentation of `fully_shard`.
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
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
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
    min_step_ratio=Limit(0.02, "smallest share of the step that is worth reporting"),
)
def small_sharding_units(
    sharding: ShardingResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Parameters are sharded in many small units, with gathers of a few megabytes or less in
    sequence.

    ## Why it costs time
    Each gather of any size pays a start-up cost (α times the steps of its ring), and small messages
    do not reach the bandwidth of the network. One unit per transformer block moves the same bytes
    in far fewer operations.

    ## Evidence needed
    All-gathers and reduce-scatters of a sharding axis with their sizes. A fabric profile
    (`--fabric`) provides the start-up cost.

    ## How the cost is computed
    Modelled: the share of gathers that units of the limit's size would avoid (1 − total bytes /
    (number · limit)), times their exposed transfer. With a fabric profile the cost is at most the
    start-up cost of the avoided gathers, from the fitted α. If waiting for late members is unknown,
    it counts as transfer, so the cost is an upper bound.

    ## How to fix
    Apply `fully_shard` to whole transformer blocks instead of their layers (FSDP1: an
    `auto_wrap_policy` on the block's class; `size_based_auto_wrap_policy` with a larger
    `min_num_params`). DeepSpeed: a larger `stage3_prefetch_bucket_size` and
    `stage3_param_persistence_threshold`.

    ## When it is wrong
    A small model has few small blocks, and merging them leaves nothing to overlap with. The rule
    therefore stays silent below `min_units`.

    ## Sources
    Formula sheet, "Collectives" (α and β) and "Volume per training step" (FSDP). PyTorch
    documentation of `fully_shard`.
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
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
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
    min_step_ratio=Limit(0.03, "smallest share of the step that is worth reporting"),
)
def gathers_repeated_while_accumulating(
    sharding: ShardingResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Gradients are accumulated over micro-batches, and each micro-batch gathers the sharded
    parameters again or reduces its own gradients, although parameters change only once per step.

    ## Why it costs time
    With M micro-batches the sharding axis moves M times the necessary traffic: 3M · N bytes instead
    of 3 · N (formula sheet). The exposed part of it adds to the step.

    ## Evidence needed
    All-gathers and reduce-scatters of a sharding axis, in order: how many passes a step makes
    follows from that, without knowing the program. Element types and sizes for the passes of
    gathers.

    ## How the cost is computed
    Exposed transfer of reduce-scatters times 1 − 1/passes, plus that of gathers times 1 − 2/passes
    (forward and backward each gather once even without accumulation), mean per rank and step. This
    is an upper bound. If waiting for late members is unknown, all exposed time counts as transfer.

    ## How to fix
    All fixes cost memory. Reduce gradients only in the last micro-batch:
    `set_requires_gradient_sync(False)` before the others (FSDP2) or `no_sync()` (FSDP1). Each rank
    then keeps unsharded gradients. Gather once per step: `set_reshard_after_forward(False)` and
    `set_reshard_after_backward(False)` in all but the last micro-batch. Each rank then also keeps
    unsharded parameters. If memory allows, use a larger micro-batch instead of accumulation, which
    costs no extra traffic.

    ## When it is wrong
    There may be no memory for unsharded gradients, unsharded parameters or a larger micro-batch.
    The traffic is then the price of the model's size, so this finding is not a warning. Pipelines
    always run on micro-batches; shard less inside a stage there (ZeRO-1 or ZeRO-2).

    ## Sources
    Formula sheet, "Volume per training step" (FSDP) and "Anti-patterns" (accumulation). PyTorch
    documentation of `fully_shard`.
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
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
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


@rule(
    "COM106",
    Severity.WARNING,
    min_step_ratio=Limit(0.05, "smallest share of the step that is worth reporting"),
)
def sharding_across_nodes(
    collectives: CollectivesResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Parameters are sharded over all nodes at once (flat FSDP): every all-gather and
    reduce-scatter of the sharding axis crosses the network although several ranks of a group share
    a node.

    ## Why it costs time
    Gathering parameters twice and scattering gradients once per step moves three times the model
    through the slowest link. Sharded inside each node and replicated across nodes (HSDP), the same
    traffic stays on the node's fast links, and only the gradients of each shard cross the network.

    ## Evidence needed
    Nodes of the ranks (host names in the traces, or a run directory), the sharding axis of the mesh
    (`dp_shard`), and matched collectives, to separate transfer from waiting.

    ## How the cost is computed
    Exposed transfer of the collectives of that axis (several may be exposed at the same time): mean
    per rank and step, limited to all exposed transfer. This is an upper bound, because gathering
    inside the node and reducing between nodes also take time. The message models the traffic
    between nodes with HSDP: flat sharding sends 3(P−1)/P · N bytes per rank, and hybrid sharding
    2(G−1)/G · N/g for the all-reduce of a shard over G nodes of g ranks.

    ## How to fix
    Pass a mesh with two axes to `fully_shard`: `init_device_mesh("cuda", (nodes, ranks_per_node),
    mesh_dim_names=("dp_replicate", "dp_shard"))`. Reference run: `distprof run fsdp --replicas
    NODES`.

    ## When it is wrong
    A replica may not fit into one node's memory: HSDP holds 16N/g bytes of model state per rank
    instead of 16N/P. The network may be as fast as the links inside a node.

    ## Sources
    Formula sheet, "Volume per training step" (FSDP, HSDP) and "Anti-patterns" (flat sharding across
    nodes). PyTorch documentation of `fully_shard` (meshes of two dimensions).
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
    if step.ratio(cost) < limits["min_step_ratio"]:
        return
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

    ## Why it costs time
    The bytes are the same, but between blocks every rank keeps and processes the whole sequence.
    Norms, dropout and residuals are computed T times, and their activations take T times the
    memory, which could serve larger micro-batches or less recomputation. An all-reduce cannot begin
    before a block has ended, while a gather or scatter can be split and overlap with the adjacent
    matrix multiplication.

    ## Evidence needed
    Collectives along the tensor axis of a mesh (groups named `tp`, `tensor_model_parallel`, …) in a
    recording with training steps.

    ## How the cost is computed
    No cost: the gain depends on how the memory and the overlap are used. Overlap can recover at
    most the exposed time of the all-reduces in the message.

    ## How to fix
    PyTorch: use `SequenceParallel` for norms and dropout in the plan of `parallelize_module`, with
    `PrepareModuleInput` and row-wise outputs of `Shard(1)`. Megatron: `--sequence-parallel`. Then
    enable overlap: asynchronous tensor parallelism (`enable_async_tensor_parallel`),
    `--tp-comm-overlap`.

    ## When it is wrong
    Inference on single tokens has no sequence to shard. Short sequences make shards too small to be
    useful, and some models (odd sequence lengths, attention that needs whole sequences in the
    norms) cannot be sharded this way.

    ## Sources
    Formula sheet, "Volume per training step" (TP). Korthikanti et al., Reducing Activation
    Recomputation in Large Transformer Models, 2022.
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


@rule(
    "HST104",
    Severity.WARNING,
    min_step_ratio=Limit(0.05, "smallest share of the step that is worth reporting"),
)
def single_device_connection(
    sharding: ShardingResult, overlap: OverlapResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """A job that shards its parameters runs with `CUDA_DEVICE_MAX_CONNECTIONS=1`, and its gathers
    and reduce-scatters do not overlap with computation.

    ## Why it costs time
    With one connection all streams of a process enter the GPU through one queue, in the order in
    which the CPU launched them. A gather behind a queue of kernels begins only after they have
    begun, and kernels behind the gather wait too. Megatron's tensor parallelism needs this order on
    GPUs before Blackwell. The overlap of sharded parameters needs independent streams.

    ## Evidence needed
    The job's environment (a run directory), GPU activities, and all-gathers of a sharding axis.

    ## How the cost is computed
    The smaller of two means per rank and step: exposed transfer of the sharding axes, and
    computation that runs without concurrent communication. This is an upper bound, because other
    causes may also prevent overlap.

    ## How to fix
    Unset the variable, or set it to a value from 8 (the default) to 32. If tensor parallelism needs
    1 on Hopper and earlier, and parameters are sharded too, compare both settings.

    ## When it is wrong
    Exposed transfer may have another cause, such as `no-parameter-prefetch`. A trace does not show
    the queue itself.

    ## Sources
    CUDA C++ Programming Guide, environment variables. Megatron-FSDP's documentation, which
    recommends leaving it unset.
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
    if step.ratio(cost) < limits["min_step_ratio"]:
        return
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
