"""Rules about memory: how it is used, and where it is saved without need."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from itertools import groupby

from distprof.artefacts.record import grouped
from distprof.escape import plain
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule
from distprof.sections.computation import ComputationResult, Region, Saves
from distprof.sections.efficiency import CPU, NO_MODEL, DeviceMemory, EfficiencyResult
from distprof.sections.job import NO_RUN_DIRECTORY
from distprof.sections.memory import MemoryResult
from distprof.sections.sharding import ShardingResult
from distprof.sections.shares import StepTimes
from distprof.sections.step_log import StepLogResult
from distprof.sections.table import counted
from distprof.sections.time import ExposedCopies, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import few_names, fold_ranks, format_bytes, format_duration, format_ratio


def measured_memory(efficiency: EfficiencyResult, memory: MemoryResult) -> tuple[DeviceMemory, ...]:
    """Ranks with recorded GPU memory; none for bare traces and for ranks on a CPU."""
    if efficiency.device == CPU or NO_RUN_DIRECTORY in memory.unavailable:
        return ()
    if not efficiency.memory:
        why = "; ".join(memory.unavailable) or "the ranks have no GPU memory"
        raise InsufficientEvidenceError(f"GPU memory was not recorded: {why}")
    return efficiency.memory


def sized_memory(efficiency: EfficiencyResult, memory: MemoryResult) -> tuple[DeviceMemory, ...]:
    """Ranks with recorded GPU memory whose GPU's memory size is known."""
    measured = measured_memory(efficiency, memory)
    sized = tuple(r for r in measured if r.capacity_bytes and r.allocated_ratio is not None)
    if measured and not sized:
        raise InsufficientEvidenceError(
            "the memory size of the GPUs is neither in the traces nor on the hardware sheet"
        )
    return sized


@rule(
    "MEM102",
    Severity.INFO,
    costs_time=False,
    reserved_ratio=Limit(0.45, "share of a GPU's memory below which twice as much fits"),
)
def needless_accumulation(
    efficiency: EfficiencyResult, memory: MemoryResult, limits: Limits
) -> Iterator[Draft]:
    """Gradients are accumulated over micro-batches although larger micro-batches would fit."""
    ranks = sized_memory(efficiency, memory)
    if not ranks:
        return
    if efficiency.num_micro_batches is None or efficiency.is_data_parallel_only is None:
        raise InsufficientEvidenceError(
            "the number of micro-batches per step, or the mesh, is unknown"
        )
    if efficiency.num_micro_batches < 2 or not efficiency.is_data_parallel_only:
        return
    fullest = max(ranks, key=lambda rank: rank.reserved_ratio or rank.allocated_ratio or 0.0)
    used = fullest.reserved_ratio or fullest.allocated_ratio or 0.0
    if used >= limits["reserved_ratio"]:
        return
    yield Draft(
        headline=f"Micro-batches could double: the fullest GPU uses only {format_ratio(used)}",
        message=(
            f"Gradients are accumulated over {efficiency.num_micro_batches} micro-batches; the"
            f" fullest GPU reserves that share of its {format_bytes(fullest.capacity_bytes)}."
        ),
        confidence=Confidence.INFERRED,
        evidence=("efficiency.num_micro_batches", "efficiency.memory"),
    )


_SHARDED = 3
_REPEATED = 1.5


@rule(
    "MEM106",
    Severity.INFO,
    filled_ratio=Limit(0.85, "largest acceptable share of a GPU's memory for the whole state"),
    exposed_ratio=Limit(0.02, "largest acceptable share of exposed gathers in the step"),
)
def needless_sharding(
    efficiency: EfficiencyResult,
    memory: MemoryResult,
    sharding: ShardingResult,
    times: StepTimes,
    limits: Limits,
) -> Iterator[Draft]:
    """Weights are sharded and gathered again in each forward and backward pass although every GPU
    could hold the whole state.
    """
    ranks = sized_memory(efficiency, memory)
    if not ranks:
        return
    if efficiency.zero_stage is None:
        raise InsufficientEvidenceError("it is unknown whether weights are sharded")
    whole = efficiency.unsharded_bytes
    if efficiency.zero_stage != _SHARDED or whole is None:
        return
    size = min(rank.capacity_bytes or 0 for rank in ranks)
    step = times.mean_step()
    repeated = [axis for axis in sharding.axes if (axis.gather_passes or 0.0) >= _REPEATED]
    exposed = sum(axis.gather_transfer_ns for axis in repeated)
    if not repeated or whole > limits["filled_ratio"] * size:
        return
    if step.ratio(exposed) < limits["exposed_ratio"]:
        return
    yield Draft(
        headline=f"Gathers of a model that fits into a GPU take {step.part(exposed)}",
        message=(
            f"Weights are gathered {max(axis.gather_passes or 0.0 for axis in repeated):.2g} times "
            f"per step; the whole state takes {format_bytes(whole)} of {format_bytes(size)} "
            f"(modelled). Exposed gathers take {step.amount(exposed)}."
        ),
        cost_ns_per_step=round(
            sum(a.gather_transfer_ns * (1 - 1 / (a.gather_passes or 1.0)) for a in repeated)
        ),
        confidence=Confidence.MODELLED,
        evidence=("efficiency.unsharded_bytes", "sharding.axes"),
    )


_LEFT_FREE_RATIO = 0.10
_WORTH_IT_RATIO = 0.1


@rule(
    "MEM107",
    Severity.WARNING,
    computed_ratio=Limit(1.2, "computed FLOP over required FLOP (HFU over MFU)"),
    free_ratio=Limit(0.15, "share of the fullest GPU's memory that may be free"),
)
def needless_recomputation(
    efficiency: EfficiencyResult,
    memory: MemoryResult,
    computation: ComputationResult,
    times: StepTimes,
    limits: Limits,
) -> Iterator[Draft]:
    """Activations are recomputed in the backward pass although there is memory to keep them."""
    ranks = sized_memory(efficiency, memory)
    if not ranks:
        return
    if not efficiency.recomputation:
        raise InsufficientEvidenceError(NO_MODEL)
    needed, computed = efficiency.flop_per_step, efficiency.computed_flop_per_step
    saved = efficiency.recomputed_bytes
    if efficiency.recomputation == "none" or not needed or not computed or not saved:
        return
    fullest = max(ranks, key=lambda rank: rank.allocated_ratio or 0.0)
    size, used = fullest.capacity_bytes or 0, fullest.allocated_bytes or 0
    if computed < limits["computed_ratio"] * needed or 1 - used / size < limits["free_ratio"]:
        return
    room = (1 - _LEFT_FREE_RATIO) * size - used
    kept = _fitting(computation.regions, room)
    share = _time_of(kept) / _time_of(computation.regions) if kept else min(1.0, room / saved)
    if share < _WORTH_IT_RATIO:
        return
    step = times.mean_step()
    recomputed_ns: float = computation.saved_ns_per_step(Saves.NO_RECOMPUTATION)
    if not recomputed_ns:
        recomputed_ns = step.mean(step.total.computation_ns) * (1 - needed / computed)
    what, blocks = f"{format_ratio(share)} of the activations", "every block"
    if kept:
        blocks = counted(len(computation.regions), "region")
        what = f"{len(kept)} of {blocks}"
    first = "Recompute only as many blocks as memory requires"
    if kept:
        which = f" {_named(kept, computation.regions)}" if share < 1 else ""
        first = f"Stop recomputing{which}"
    yield Draft(
        headline=f"Needless recomputation: {what} would fit",
        message=(
            f"The forward pass of {blocks} is computed twice{_ratios(efficiency)} while"
            f" {format_bytes(size - used)} of {format_bytes(size)} are free (modelled)."
        ),
        fix=(
            f"{first}, or use a larger micro-batch.{_kept_first(computation) if share < 1 else ''}"
        ),
        cost_ns_per_step=round(recomputed_ns * share),
        confidence=Confidence.MODELLED,
        evidence=("efficiency.memory", "efficiency.recomputed_bytes", "computation.regions"),
        without=Saves.NO_RECOMPUTATION if share == 1.0 else "",
    )


def _fitting(regions: tuple[Region, ...], room: float) -> tuple[Region, ...]:
    """Regions whose results fit, in the order in which to keep them."""
    kept = []
    for region in regions:
        if 0 < region.num_bytes <= room:
            kept.append(region)
            room -= region.num_bytes
    return tuple(kept)


def _time_of(regions: tuple[Region, ...]) -> int:
    return sum(region.total_ns for region in regions)


def _named(kept: tuple[Region, ...], regions: tuple[Region, ...]) -> str:
    """The regions to keep, as ranges: by their modules, else by their places."""
    if not all(region.name for region in kept):
        places = fold_ranks(region.place for region in kept)
        return f"regions {places} of {len(regions)} in the forward pass"
    ordered = sorted(regions, key=lambda region: region.place)
    alike = grouped([(_NUMBER.sub("", region.name), region) for region in ordered])
    ranges = []
    for same in alike.values():
        for is_kept, run in groupby(same, key=lambda region: region in kept):
            names = [plain(region.name) for region in run]
            if is_kept:
                ranges.append(" to ".join(dict.fromkeys((names[0], names[-1]))))
    return few_names(ranges, MAX_NAMED)


_NUMBER = re.compile(r"\d+")


def _kept_first(computation: ComputationResult) -> str:
    """Which operator's results to keep first, as a sentence; empty if sizes do not show it."""
    found = computation.saving(Saves.NO_RECOMPUTATION)
    if found is None or not found.size:
        return ""
    return (
        f" Keep the results of {found.size} first: of all longer operators, they save most time per"
        " byte (torch.utils.checkpoint.create_selective_checkpoint_contexts)."
    )


def _ratios(efficiency: EfficiencyResult) -> str:
    if efficiency.hfu_ratio is None or efficiency.mfu_ratio is None:
        return ""
    return f" (HFU {format_ratio(efficiency.hfu_ratio)}, MFU {format_ratio(efficiency.mfu_ratio)})"


WORTH_RATIO = 0.1  # Share of all exposed copies from which a kind of copies is named

MAX_NAMED = 3


@rule(
    "MEM101",
    Severity.WARNING,
    exposed_copy_ratio=Limit(0.05, "largest acceptable share of exposed copies in the step"),
)
def memory_copy_bound(times: StepTimes, limits: Limits) -> Iterator[Draft]:
    """Copies between CPU and GPU, or within the GPU, run while the GPU does nothing else."""
    step = times.mean_step()
    cost = step.mean(step.total.exposed_copy_ns)
    limit = limits["exposed_copy_ratio"]
    if step.ratio(cost) < limit:
        return
    worst = _worst(times.waterfall)
    ways = {(row.direction, row.host_memory) for row in worst}
    steps = []
    if any(memory == "pageable" for _, memory in ways):
        steps.append("Pin CPU memory (pin_memory=True) and copy with non_blocking=True.")
    elif not worst or any(not memory and way in ("HtoD", "DtoH") for way, memory in ways):
        steps.append("Pin CPU memory if it is not pinned yet, and copy with non_blocking=True.")
    if any(memory == "pinned" for _, memory in ways):
        steps.append(advice("memory-copy-bound", "pinned"))
    if any(way == "DtoD" for way, _ in ways):
        steps.append(advice("memory-copy-bound", "inside"))
    if any(way == "PtoP" for way, _ in ways):
        steps.append("Between GPUs, send while computing, on a separate stream.")
    if any(way == "memset" for way, _ in ways):
        steps.append("Set memory less often: zero_grad(set_to_none=True), torch.empty.")
    yield Draft(
        headline=f"Copies that overlap with nothing take {step.part(cost)}",
        message=f"{step.amount(cost)}{_split(times.waterfall)}.",
        fix=" ".join(steps) or "Copy on a separate stream, one batch ahead.",
        cost_ns_per_step=cost,
        ranks=tuple(
            rank.rank
            for rank in times.waterfall.ranks
            if rank.exposed_copy_ns >= limit * rank.span_ns > 0
        ),
        evidence=("breakdown.ranks", "waterfall.all.exposed_copy_ns", "waterfall.copies"),
        without="copies",
    )


def _worst(waterfall: WaterfallResult) -> list[ExposedCopies]:
    """Kinds of copies that make up most of the exposed time, at least one."""
    total = sum(row.exposed_ns_per_step for row in waterfall.copies)
    worth = [row for row in waterfall.copies if row.exposed_ns_per_step >= WORTH_RATIO * total > 0]
    return worth[:MAX_NAMED]


def _split(waterfall: WaterfallResult) -> str:
    """For example ``: 3 ms GPU to GPU, 1 ms CPU (pinned) to GPU``."""
    parts = [
        f"{format_duration(row.exposed_ns_per_step)} in {row.num_per_step:.3g} {_kind(row)}"
        f"{_by(row.operators)}"
        for row in _worst(waterfall)
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _by(operators: Sequence[str]) -> str:
    """For example `` by aten::cat and aten::contiguous``."""
    if len(operators) < 2:
        return "".join(f" by {name}" for name in operators)
    return f" by {', '.join(operators[:-1])} and {operators[-1]}"


def _kind(row: ExposedCopies) -> str:
    memory = f"{row.host_memory} " if row.host_memory else ""
    words = {
        "HtoD": f"copies from {memory}CPU memory",
        "DtoH": f"copies to {memory}CPU memory",
        "DtoD": "copies within the GPU",
        "PtoP": "copies between GPUs",
        "memset": "memory sets",
    }
    return words.get(row.direction, "other copies")


@rule(
    "MEM103",
    Severity.WARNING,
    num_retries=Limit(1, "smallest number of retries of a rank in the second half of the steps"),
)
def allocator_retries(
    efficiency: EfficiencyResult, memory: MemoryResult, step_log: StepLogResult, limits: Limits
) -> Iterator[Draft]:
    """The caching allocator runs out of memory in steady steps, frees its cache and retries."""
    measured = measured_memory(efficiency, memory)
    known = [rank for rank in measured if rank.num_retries is not None]
    if measured and not known:
        raise InsufficientEvidenceError("too few steps to find retries in steady steps")
    ranks = [rank for rank in known if (rank.num_retries or 0) >= max(1, limits["num_retries"])]
    if not ranks:
        return
    total = sum(rank.num_retries or 0 for rank in ranks)
    cost = max((rank.retry_ns_per_step or 0 for rank in ranks), default=0)
    times = "once" if total == 1 else f"{total} times"
    who = "1 rank" if len(ranks) == 1 else f"{len(ranks)} ranks"
    yield Draft(
        headline=f"GPU memory ran out: the allocator retried {times}",
        message=f"On {who}, in the second half of the steps{_share(cost, step_log.step_ns)}.",
        cost_ns_per_step=cost or None,
        ranks=tuple(rank.rank for rank in ranks),
        evidence=("efficiency.memory", "step_log.ranks"),
    )


def _share(cost: int, step: int | None) -> str:
    if not cost or not step:
        return ""
    mean = step + cost
    share = f"{format_ratio(cost / mean)} of each step"
    return f": {share} ({format_duration(cost)} of {format_duration(mean)})"


@rule(
    "MEM104",
    Severity.INFO,
    costs_time=False,
    allocated_ratio=Limit(0.90, "largest acceptable share of a GPU's memory filled by tensors"),
)
def memory_nearly_full(
    efficiency: EfficiencyResult, memory: MemoryResult, limits: Limits
) -> Iterator[Draft]:
    """Tensors nearly fill a GPU's memory."""
    known = sized_memory(efficiency, memory)
    limit = limits["allocated_ratio"]
    full = [rank for rank in known if (rank.allocated_ratio or 0.0) >= limit]
    if not full:
        return
    fullest = max(full, key=lambda rank: rank.allocated_ratio or 0.0)
    yield Draft(
        headline=f"Tensors fill {format_ratio(fullest.allocated_ratio)} of the fullest GPU",
        message=(
            f"It has {format_bytes(fullest.capacity_bytes)}. Tensors fill at least"
            f" {format_ratio(limit)} on {len(full)} of {len(known)} ranks."
        ),
        ranks=tuple(rank.rank for rank in full),
        evidence=("efficiency.memory",),
    )


@rule(
    "MEM105",
    Severity.INFO,
    costs_time=False,
    over_median_ratio=Limit(
        1.25, "ratio of the memory of a stage's fullest rank to that of its median rank"
    ),
    allocated_ratio=Limit(0.6, "share of a GPU's memory below which it limits no rank"),
)
def uneven_memory(
    efficiency: EfficiencyResult, memory: MemoryResult, limits: Limits
) -> Iterator[Draft]:
    """One rank's GPU memory is much fuller than that of ranks that do the same work."""
    stages = grouped([(rank.stage, rank) for rank in sized_memory(efficiency, memory)])
    for ranks in stages.values():
        yield from _judge(ranks, limits)


def _judge(ranks: Sequence[DeviceMemory], limits: Limits) -> Iterator[Draft]:
    """The lower median is the reference: with two ranks, the emptier one."""
    held = [rank.allocated_bytes or 0 for rank in ranks]
    median, fullest = statistics.median_low(held), max(ranks, key=lambda r: r.allocated_bytes or 0)
    if (fullest.allocated_ratio or 0.0) < limits["allocated_ratio"]:
        return
    if max(held) < limits["over_median_ratio"] * median:
        return
    more = f"{max(held) / median:.2f} times" if median else "all of"
    yield Draft(
        headline=f"Rank {fullest.rank} holds {more} the memory of the median rank",
        message=(
            f"{format_bytes(max(held))} instead of {format_bytes(median)}: it fills"
            f" {format_ratio(fullest.allocated_ratio)} of its GPU and limits the micro-batch of all"
            " ranks."
        ),
        ranks=(fullest.rank,),
        evidence=("efficiency.memory",),
    )
