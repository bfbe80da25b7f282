"""Rules about overlap."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule, worth
from distprof.sections.capture import CaptureResult
from distprof.sections.collectives import CollectivesResult
from distprof.sections.gradients import GradientGroup, GradientsResult
from distprof.sections.overlap import OverlapResult
from distprof.sections.sharding import ShardingResult
from distprof.sections.shares import (
    WIDER_TRANSFER,
    MeanStep,
    StepTimes,
    alone_ns,
    has_all_members,
    hideable_ns,
    unrecorded,
)
from distprof.sections.time import WaterfallResult
from distprof.terms import Confidence, MeshAxis, Severity
from distprof.units import format_duration, format_ratio


@rule(
    "COM101",
    Severity.WARNING,
    overlap_ratio=Limit(
        0.8, "smallest acceptable overlap of communication, without exposed waiting"
    ),
    min_step_ratio=worth(0.02),
    scalar_bytes=Limit(
        64, "size in bytes of a loss or a norm, which the program waits for and cannot overlap"
    ),
)
def low_overlap(
    overlap: OverlapResult,
    times: StepTimes,
    capture: CaptureResult,
    collectives: CollectivesResult,
    gradients: GradientsResult,
    sharding: ShardingResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Communication runs while the GPU computes nothing, although the same step has computation
    without concurrent communication that it could overlap with. The rule stays silent if ranks
    mostly wait for each other: overlap hides transfer, not lateness.

    ## Why it costs time
    A transfer on a separate stream during computation costs next to nothing. The same transfer
    after the computation adds its full length to the step.

    ## Evidence needed
    GPU activities of at least one rank. Matched collectives separate waiting from transfer. Without
    them (with a single rank, for example), or if most lack a member in the recording, the finding
    is marked *inferred*.

    ## How the cost is computed
    The smaller of two means over ranks and steps: exposed transfer, and computation that runs
    without concurrent communication. This is an upper bound. The time is part of what
    `exposed-communication` reports, so do not add the two. It does not include what
    `transfer-bound-collectives` reports.

    ## How to fix
    DDP: keep `gradient_as_bucket_view=True`, tune `bucket_cap_mb` so that the first bucket is ready
    early, and remove what forces a synchronisation between backward and the reduction. FSDP2: call
    `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch`, and wrap one
    transformer block per unit. FSDP1: `forward_prefetch=True`, `backward_prefetch=BACKWARD_PRE`,
    `limit_all_gathers=False` if memory allows. Tensor parallelism: use asynchronous tensor
    parallelism or sequence parallelism. All-to-all: compute one half of the batch meanwhile. The
    finding names the means for the transfers of this job.

    ## When it is wrong
    The data flow may forbid overlap: an all-to-all whose result the next kernel needs, or the
    all-reduce of plain tensor parallelism. Kernels that already use all of the memory bandwidth
    slow down during a transfer, so less than the cost is recovered. The rule stays silent if a loss
    or a norm causes nearly all exposed transfer.

    ## Sources
    Formula sheet, "Measured from traces" (overlap) and "Anti-patterns" (overlap below 80 %).
    PyTorch documentation of `DistributedDataParallel` and `fully_shard`.
    """
    if capture.filtered_ranks:
        raise InsufficientEvidenceError(
            "rows were removed from traces: computation that overlaps may be missing"
        )
    step = times.mean_step()
    hidden = step.mean(sum(rank.overlapped_ns for rank in overlap.ranks))
    transfer = hidden + step.exposed_transfer_ns
    if transfer == 0 or step.exposed_wait_ns > step.exposed_transfer_ns:
        return
    ratio = hidden / transfer
    cost = hideable_ns(step, overlap)
    if _mostly_scalars(collectives, limits["scalar_bytes"]):
        return
    if ratio >= limits["overlap_ratio"]:
        return
    is_sure = step.is_split and has_all_members(capture)
    knows_all = has_all_members(capture) and not capture.ranks_missing
    who = "other ranks" if knows_all else unrecorded(capture)
    # the ranks with too little overlap; empty if it is all of them
    limit = limits["overlap_ratio"]
    ratios = [(rank.rank, rank.overlap_ratio) for rank in overlap.ranks]
    below = tuple(rank for rank, ratio in ratios if ratio is not None and ratio < limit)
    waits_for = "" if is_sure else who
    what = "communication" if waits_for else "transfer"
    caveat = f", part of which may be waiting for {waits_for}" if waits_for else ""
    means = _means(collectives, gradients, sharding)
    part = "all" if cost >= step.exposed_transfer_ns else format_duration(cost)
    yield Draft(
        headline=(
            f"Only {format_ratio(ratio)} of {what} overlaps with computation"
            if ratio > 0
            else f"No {what} overlaps: {step.part(step.exposed_transfer_ns)} is exposed"
        ),
        message=(
            f"{format_duration(step.exposed_transfer_ns)} is exposed{caveat}. Computation without "
            f"concurrent communication could hide {part} of it."
        ),
        fix=("" if has_all_members(capture) else "Record all ranks to see how much. ")
        + f"Start transfers earlier, during computation: {means}.",
        cost_ns_per_step=cost,
        confidence=Confidence.MEASURED if is_sure else Confidence.INFERRED,
        ranks=() if len(below) == len(ratios) else below,
        evidence=("overlap.ranks", "waterfall.all"),
        without="overlap",
    )


_BUCKETS = "bucket_cap_mb (DDP)"
_PREFETCH = "set_modules_to_forward_prefetch and set_modules_to_backward_prefetch (FSDP2)"
_TENSOR = "asynchronous tensor parallelism"
_HALVES = "run the all-to-all of one half of the batch while the other half computes"
_ASYNC = "async_op=True, with wait() only where the result is needed"
WORTH_NAMING = 0.1  # Share of the exposed transfer from which its remedy is named


def _means(
    collectives: CollectivesResult, gradients: GradientsResult, sharding: ShardingResult
) -> str:
    """What starts the exposed transfers of this job earlier, for the longest first."""
    reduced = {group.axis for group in gradients.groups}
    sharded = {axis.axis for axis in sharding.axes}
    exposed: dict[str, int] = {}
    for one in collectives.classes:
        if one.kind == "all_to_all":
            means = _HALVES
        elif one.axis == MeshAxis.TP:
            means = _TENSOR
        elif one.axis in sharded:
            means = _PREFETCH
        elif one.kind == "all_reduce" and one.axis in reduced:
            means = _BUCKETS
        else:
            means = _ASYNC
        exposed[means] = exposed.get(means, 0) + one.exposed_transfer_ns_per_step
    least = WORTH_NAMING * sum(exposed.values())
    named = [means for means, ns in exposed.items() if ns > 0 and ns >= least]
    return "; ".join(sorted(named, key=lambda means: -exposed[means])) or _ASYNC


MOSTLY = 0.8  # Share of the exposed transfer that scalars must take


def _mostly_scalars(collectives: CollectivesResult, most_bytes: float) -> bool:
    """Whether scalars, such as a loss or a norm, cause nearly all exposed transfer.

    No bucket makes them start earlier. Classes of unknown size count as large.
    """
    exposed = {True: 0, False: 0}
    for one in collectives.classes:
        is_scalar = one.bytes is not None and one.bytes <= most_bytes
        exposed[is_scalar] += one.exposed_transfer_ns_per_step
    return exposed[True] > 0 and exposed[True] >= MOSTLY * sum(exposed.values())


@rule(
    "COM102",
    Severity.WARNING,
    exposed_ratio=Limit(0.2, "largest acceptable share of exposed communication in the step"),
)
def exposed_communication(
    times: StepTimes,
    capture: CaptureResult,
    collectives: CollectivesResult,
    gradients: GradientsResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Exposed communication takes more than a fifth of the step."""
    step = times.mean_step()
    transfer = _TRANSFER if has_all_members(capture) else _DOUBTFUL
    parts = _parts(step, transfer, capture.start_wait_ns)
    exposed = sum(ns for ns, _ in parts)
    if step.ratio(exposed) <= limits["exposed_ratio"]:
        return
    held_up = max(
        (group for group in gradients.groups if group.is_held_up),
        key=lambda group: group.bucket_fixed_ns or 0,
        default=None,
    )
    fix, uneven = advice("exposed-communication", parts[0][1]), ""
    if parts[0][1] == _P2P:
        held_up = None  # gradients are not what takes the time
        if {one.axis for one in collectives.classes if one.kind in _MESSAGES} == {
            MeshAxis.CP.value
        }:
            fix, uneven = advice("exposed-communication", "ring"), _uneven_words(times.waterfall)
    known = [(ns, what) for ns, what in parts if ns > 0]
    split = ", ".join(f"{format_duration(ns)} {what}" for ns, what in known)
    if len(known) == 1:
        split = f"all of it {known[0][1]}"
    yield Draft(
        headline=f"Exposed communication takes {step.part(exposed)}",
        message=(
            f"{step.amount(exposed)}: {split}.{uneven} Other findings name parts of the same time."
            f"{_held_up_words(held_up)}"
        ),
        fix=fix if held_up is None else advice("exposed-communication", "held-up"),
        cost_ns_per_step=exposed,
        confidence=Confidence.INFERRED if parts[0][1] == _DOUBTFUL else Confidence.MEASURED,
        evidence=("waterfall.all", "breakdown.ranks"),
        without="communication",
        comes_first=held_up is not None,
    )


_MESSAGES = ("send", "recv", "send_recv")


_UNEVEN = 1.5
"""Computation of one rank of a ring over another's from which it is worth saying."""


def _uneven_words(waterfall: WaterfallResult) -> str:
    """The ranks of a ring that compute least and longest, if they differ much."""
    ranks = sorted(waterfall.ranks, key=lambda rank: rank.computation_ns)
    if not ranks or ranks[-1].computation_ns < _UNEVEN * ranks[0].computation_ns:
        return ""
    least, most = ranks[0], ranks[-1]
    long, short = (
        format_duration(one.computation_ns // max(waterfall.num_steps, 1)) for one in (most, least)
    )
    return f" Rank {most.rank} computes {long}, rank {least.rank} {short}."


def _held_up_words(group: GradientGroup | None) -> str:
    """What the sizes of buckets do not explain."""
    if group is None:
        return ""
    return (
        f" Each all-reduce of gradients takes {format_duration(group.bucket_fixed_ns)} whatever "
        "its size: it waits for a late rank or a broken path."
    )


_WAIT, _TRANSFER = "waiting for late ranks", "transfer"
_DOUBTFUL = "transfer or waiting for unrecorded ranks"
_P2P, _UNSPLIT = "waiting in send and recv", "waiting or transfer, which cannot be separated"


def _parts(step: MeanStep, transfer: str, start_wait_ns: int) -> list[tuple[int, str]]:
    """Mean exposed communication per step by cause, largest first, without the profiler's start."""
    total = step.total
    parts = [
        (max(step.mean(total.exposed_wait_ns) - start_wait_ns, 0), _WAIT),
        (step.mean(total.exposed_transfer_ns), transfer),
        (step.mean(total.exposed_p2p_wait_ns), _P2P),
        (step.mean(total.exposed_comm_unsplit_ns), _UNSPLIT),
    ]
    return sorted(parts, key=lambda part: -part[0])


@rule("COM121", Severity.WARNING, min_step_ratio=worth(0.03))
def communication_on_computation_stream(
    sharding: ShardingResult, overlap: OverlapResult, times: StepTimes
) -> Iterator[Draft]:
    """Data-parallel collectives (gradients, sharded parameters) run on the GPU's compute stream."""
    if not sharding.shared_streams:
        return
    step = times.mean_step()
    alone = alone_ns(step, overlap)
    for one in sharding.shared_streams:
        cost = min(one.exposed_ns_per_step - (one.wait_ns_per_step or 0), alone)
        is_split = one.wait_ns_per_step is not None
        yield Draft(
            headline=f"Collectives on a compute stream expose {step.part(cost)}",
            message=(
                f"{one.per_step:.0f} of {one.axis} per {step.word} "
                f"({format_ratio(one.share_ratio)} of them) run there: {step.amount(cost)} is "
                "transfer that cannot overlap with computation."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.MEASURED if is_split else Confidence.INFERRED,
            evidence=("sharding.shared_streams", "overlap.ranks"),
            without="overlap",
            explains=WIDER_TRANSFER,
        )
