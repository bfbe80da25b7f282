"""Rules about calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.collectives.result import CollectiveClass, CollectivesResult
from distprof.sections.shares import (
    WIDER_TRANSFER,
    MeanStep,
    StepTimes,
    latest_by_chance,
    unrecorded,
)
from distprof.sections.stragglers.result import StragglersResult
from distprof.terms import Confidence, MeshAxis, Severity, StragglerPattern
from distprof.units import format_bytes, format_duration, format_ratio


@rule(
    "COM103",
    Severity.WARNING,
    min_step_ratio=Limit(0.03, "share of the step that unexplained waiting may take"),
    wait_over_transfer=Limit(1.0, "exposed wait over exposed transfer of a skew-bound class"),
)
def arrival_skew_bound_collectives(
    collectives: CollectivesResult,
    stragglers: StragglersResult,
    capture: CaptureResult,
    times: StepTimes,
    limits: Limits,
) -> Iterator[Draft]:
    """Collectives take long because their members arrive at different times, not because the
    transfer is slow. The ranks named as stragglers do not account for all of this waiting.

    ## Why it costs time
    A collective cannot finish before its last member has started. Members that arrive earlier
    occupy their GPU with a kernel that only spins, and profilers show that kernel as communication.

    ## Evidence needed
    Collectives matched across ranks, on clocks that can be compared. The trace of a single rank
    cannot show it: a long kernel may be waiting or moving data.

    ## How the cost is computed
    Exposed waiting in collectives (without send and recv), a mean over ranks and steps, less the
    waiting that `persistent-straggler`, `transient-straggler` and `rotating-straggler` already
    report, and less the waiting that the start of the profiler may have caused
    (`capture.start_wait_ns`). The time is part of what `exposed-communication` reports.

    ## How to fix
    Leave the network alone: a faster one changes nothing. Give the ranks equal work: pack sequences
    by cost, and balance experts and embedding tables. Run Python's garbage collector at the same
    step on all ranks (`gc.disable()`, and `gc.collect()` every N steps). Pin processes to cores.
    Remove synchronising calls that only some ranks make.

    ## When it is wrong
    If the clock residual is large, small waits are noise. The straggler section shows the share
    that could not be judged.

    ## Sources
    Formula sheet, "Measured from traces" (wait and transfer of a collective).
    """
    step = times.mean_step()
    if not collectives.classes:
        return
    if collectives.has_only_messages:
        raise InsufficientEvidenceError("the recording has only sends and receives, no collectives")
    classes = collectives.split_classes
    if not classes:
        raise InsufficientEvidenceError("no collective was matched across ranks")
    bound = [c for c in classes if _is_bound(c, limits["wait_over_transfer"])]
    waiting = min(sum(_wait(c) for c in bound), step.exposed_wait_ns)
    cost = waiting - _charged_ns(stragglers) - capture.start_wait_ns
    if not bound or step.ratio(cost) < limits["min_step_ratio"]:
        return
    worst = max(bound, key=_wait)
    transfer = format_duration(worst.exposed_transfer_ns_per_step)
    yield Draft(
        message=(
            f"{step.share(cost)} is waiting that no proven straggler explains: "
            f"{worst.label} waits {format_duration(_wait(worst))} per {step.word} and "
            f"transfers {transfer}."
            f"{_suspect(stragglers, capture, cost)}"
        ),
        fix=("Record all ranks. " if capture.ranks_missing else "")
        + (
            "Equalise the work of the ranks (packing, expert and table balance), run garbage "
            "collection on all ranks at the same step, and pin processes to cores."
        ),
        cost_ns_per_step=cost,
        evidence=("collectives.classes", "stragglers.ranks", "waterfall.all"),
        without="late ranks",
    )


def _wait(record: CollectiveClass) -> int:
    return record.exposed_wait_ns_per_step or 0


def _is_bound(record: CollectiveClass, factor: float) -> bool:
    return _wait(record) > 0 and _wait(record) >= factor * record.exposed_transfer_ns_per_step


_LOOK = ": look at what it does before its collectives"


def _suspect(stragglers: StragglersResult, capture: CaptureResult, cost_ns: int) -> str:
    """The rank that causes most of the waiting, although no pattern over steps proves it.

    If ranks are missing, no recorded rank is suspected: the missing ones may be later still.
    """
    if stragglers.unrecorded_ns_per_step:
        amount = stragglers.unrecorded_ns_per_step
        part = "All" if amount >= cost_ns else format_duration(amount)
        return f" {part} of it may be waiting for {unrecorded(capture)}."
    if capture.ranks_missing:
        return ""
    first = max(stragglers.ranks, key=lambda rank: rank.lost_ns_per_step, default=None)
    if first is None or first.pattern is not StragglerPattern.NONE:
        return ""
    share = first.lost_ns_per_step / max(stragglers.lost_ns_per_step, 1)
    if share < 0.5:
        return ""
    late, steps = sum(s.rank == first.rank for s in stragglers.steps), len(stragglers.steps)
    often = ""
    if steps:
        is_chance = latest_by_chance(stragglers, first.rank)
        what = ", as equal ranks may by chance" if is_chance else _LOOK
        often = f", most in {late} of {steps} steps{what}"
    return f" Rank {first.rank} causes {format_ratio(share)} of all waiting{often}."


def _charged_ns(stragglers: StragglersResult) -> int:
    """Waiting that straggler findings already report."""
    return sum(
        rank.lost_ns_per_step
        for rank in stragglers.ranks
        if rank.pattern is not StragglerPattern.NONE
    )


VERY_MANY = 100  # Number of consecutive reductions without other work that is too many at any size

_MERGEABLE = ("all_reduce", "all_gather", "reduce_scatter")


@rule(
    "COM105",
    Severity.WARNING,
    small_bytes=Limit(500_000, "size in bytes below which latency dominates"),
    min_per_step=Limit(20, "small collectives per step that are normal"),
    min_step_ratio=Limit(0.02, "share of the step below which they are not reported"),
)
def tiny_collectives(
    collectives: CollectivesResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Each step contains many small all-reduces, all-gathers or reduce-scatters. Latency, not size,
    determines how long messages this small take. The rule also reports many consecutive reductions
    while hardly anything else runs, which need no sizes: the pattern of gradients without buckets.

    ## Why it costs time
    A collective of any size costs a latency for every hop. Below the crossover size n* = α ·
    bandwidth (a few hundred kB) that latency dominates, so 100 small messages take far longer than
    one message of the same total size.

    ## Evidence needed
    Collectives with their sizes, as PyTorch 2.1 and later record them, or at least their times.

    ## How the cost is computed
    Exposed transfer of the small classes, a mean over ranks and steps, less the share of one
    message. It is an upper bound: the merged message still has to move its bytes. If members could
    not be matched, the cost includes waiting, and the finding is marked *inferred*. The time is
    part of what `exposed-communication` reports and may be part of what `low-overlap` reports. For
    consecutive reductions, the cost is the time in and between them, less the time of one. This
    finding is marked *inferred*, and explains the idle time between them that `launch-bound-host`
    reports.

    ## How to fix
    DDP: reduce in buckets (`bucket_cap_mb`, 25 MB by default), and do not reduce parameters one by
    one in a hook. FSDP: wrap whole transformer blocks instead of single layers. Custom code:
    flatten tensors, or group calls with `torch.distributed._coalescing_manager`, and reduce metrics
    once per logging interval instead of once per step.

    ## When it is wrong
    Barriers and scalar reductions for gradient clipping or loss scaling cannot be merged with
    gradients. Small messages that overlap with computation cost nothing and are not reported. Those
    of tensor parallelism carry activations that depend on each other and cannot be merged either.

    ## Sources
    Formula sheet, "Collectives" (crossover size) and "Anti-patterns" (buckets below the crossover
    size).
    """
    step = times.mean_step()
    mergeable = [c for c in collectives.classes if c.kind in _MERGEABLE]
    small = [c for c in mergeable if c.bytes is not None and c.bytes < limits["small_bytes"]]
    per_step = sum(_per_rank(c, collectives) for c in small)
    very_many = any(train.num_per_step >= VERY_MANY for train in collectives.trains)
    if per_step <= limits["min_per_step"] or very_many:
        yield from _without_sizes(collectives, mergeable, step, limits)
        return
    exposed = sum(c.exposed_transfer_ns_per_step for c in small)
    cost = int(exposed * (1 - 1 / per_step))
    if step.ratio(cost) < limits["min_step_ratio"]:
        return
    moved = sum((c.bytes or 0) * _per_rank(c, collectives) for c in small)
    is_split = all(c.exposed_wait_ns_per_step is not None for c in small)
    yield Draft(
        message=(
            f"{per_step:.0f} small collectives per {step.word} and rank (most of them "
            f"{max(small, key=lambda c: c.count).label}) take "
            f"{format_duration(exposed)} of exposed time to move {format_bytes(moved)} in total."
        ),
        fix=_fix(max(small, key=lambda c: c.count)),
        cost_ns_per_step=cost,
        confidence=Confidence.MEASURED if is_split else Confidence.INFERRED,
        evidence=("collectives.classes",),
        without="small collectives",
        explains=WIDER_TRANSFER,
    )


_MERGE = (
    "Merge them: gradient buckets (bucket_cap_mb), whole blocks per FSDP unit, flattened or "
    "coalesced tensors."
)

_FEWER = "use larger micro-batches or fewer tensor-parallel ranks."


def _fix(most: CollectiveClass) -> str:
    """The fix for the most frequent class: gradients can be merged, activations cannot."""
    if most.axis == MeshAxis.TP.value:
        return f"Activations of tensor parallelism cannot be merged: {_FEWER}"
    if most.axis is None and most.group.startswith("ranks "):
        return (
            f"{_MERGE} If they reduce activations of tensor parallelism, they cannot be merged: "
            f"{_FEWER}"
        )
    return _MERGE


def _without_sizes(
    collectives: CollectivesResult,
    mergeable: Sequence[CollectiveClass],
    step: MeanStep,
    limits: Limits,
) -> Iterator[Draft]:
    """One finding per train of very many reductions, or of reductions of unknown size."""
    unsized = {(c.kind, c.group) for c in mergeable if c.bytes is None}
    found = False
    for train in collectives.trains:
        is_long = train.num_per_step >= VERY_MANY or (train.kind, train.group) in unsized
        if not is_long or train.num_per_step <= limits["min_per_step"]:
            continue
        whole = train.busy_ns_per_step + train.gap_ns_per_step
        cost = max(whole - train.duration_ns_median, 0)
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        found = True
        # code of launch-bound-host, if gaps of the train are at least half of its idle time
        idle = step.mean(step.total.idle_host_ns)
        yield Draft(
            message=(
                f"{train.num_per_step:.0f} {train.kind}s per {step.word} and rank run one after "
                "another while hardly anything else runs "
                f"({format_duration(train.duration_ns_median)} each). They take "
                f"{step.share(whole)}, of which {format_duration(train.gap_ns_per_step)} is "
                "between them."
            ),
            fix=(
                "Reduce gradients in buckets during the backward pass: DistributedDataParallel "
                "with bucket_cap_mb, or flattened tensors in hooks, not one call per parameter "
                "after backward."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.INFERRED,
            ranks=train.ranks,
            evidence=("collectives.trains",),
            explains=(
                *WIDER_TRANSFER,
                *(("HST101",) if 2 * train.gap_ns_per_step >= idle > 0 else ()),
            ),
        )
    if not found and mergeable and all(c.bytes is None for c in mergeable):
        raise InsufficientEvidenceError("the trace has no message sizes")


def _per_rank(record: CollectiveClass, collectives: CollectivesResult) -> float:
    """The number of these collectives that one rank takes part in per step.

    The class counts parallel groups together; each rank is in one of them.
    """
    share = (record.group_size or collectives.num_ranks) / max(collectives.num_ranks, 1)
    return record.count * min(share, 1) / max(collectives.num_steps, 1)
