"""Rules about collectives: their bandwidth and their calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule, worth
from distprof.sections.capture import CaptureResult
from distprof.sections.collectives import CollectiveClass, CollectivesResult
from distprof.sections.efficiency import CPU, EfficiencyResult
from distprof.sections.overlap import OverlapResult
from distprof.sections.placement import PlacementResult
from distprof.sections.placement.rules import swappable
from distprof.sections.shares import (
    WIDER_TRANSFER,
    MeanStep,
    StepTimes,
    has_all_members,
    hideable_ns,
    latest_by_chance,
    unrecorded,
)
from distprof.sections.stragglers import StragglersResult
from distprof.terms import Confidence, MeshAxis, Severity, StragglerPattern
from distprof.units import format_bandwidth, format_bytes, format_duration, format_ratio


@rule(
    "COM104",
    Severity.WARNING,
    min_step_ratio=worth(
        0.05, "share of the step for transfer that cannot overlap with computation"
    ),
)
def transfer_bound_collectives(
    collectives: CollectivesResult,
    overlap: OverlapResult,
    times: StepTimes,
    capture: CaptureResult,
) -> Iterator[Draft]:
    """Most of the exposed communication is transfer, not waiting, and the step has no computation
    left that the transfer could overlap with.
    """
    step = times.mean_step()
    if not collectives.classes:
        return
    if collectives.has_only_messages:
        raise InsufficientEvidenceError("the recording has only sends and receives, no collectives")
    classes = collectives.split_classes
    if not classes or not step.is_split:
        raise InsufficientEvidenceError(
            "waiting and transfer could not be separated: no collective was matched across ranks"
        )
    if not has_all_members(capture):
        raise InsufficientEvidenceError(
            "most collectives lack a member in the recording: apparent transfer may be waiting for "
            "that member"
        )
    cost = step.exposed_transfer_ns - hideable_ns(step, overlap)
    if step.exposed_wait_ns > step.exposed_transfer_ns:
        return
    largest = max(classes, key=lambda record: record.exposed_transfer_ns_per_step)
    yield Draft(
        headline=f"Transfer with no computation left to overlap takes {step.part(cost)}",
        message=f"{step.amount(cost)}; {_speed(largest)}.",
        cost_ns_per_step=cost,
        evidence=("collectives.classes", "overlap.ranks", "waterfall.all"),
        without="exposed transfer",
        explains=("COM102",),
    )


def _speed(record: CollectiveClass) -> str:
    label = record.label
    if record.busbw_bytes_per_s is None:
        return f"{label} takes {format_duration(record.transfer_ns_median)} each"
    expected = record.expected_busbw_bytes_per_s
    reference = f", {format_bandwidth(expected)} expected" if expected else ""
    return f"{label} moves at {format_bandwidth(record.busbw_bytes_per_s)} bus bandwidth{reference}"


@rule(
    "COM107",
    Severity.WARNING,
    busbw_ratio=Limit(0.7, "share of the expected bus bandwidth that is enough"),
    min_bytes=Limit(1_000_000, "size in bytes of the smallest collective to judge"),
    min_step_ratio=Limit(0.01, "share of the step that the excess transfer may take"),
)
def below_fabric_bandwidth(
    collectives: CollectivesResult, times: StepTimes, capture: CaptureResult, limits: Limits
) -> Iterator[Draft]:
    """Large collectives move their data at a fraction of the bus bandwidth that these machines
    reach with the same kind, size and group, according to a fabric profile.
    """
    covered = [record for record in collectives.classes if record.expected_busbw_bytes_per_s]
    if not covered:  # no profile, or it covers no class: the result says which
        return
    step = times.mean_step()
    if not has_all_members(capture):
        raise InsufficientEvidenceError("most collectives lack a member in the recording")
    slow = [record for record in covered if _is_slow(record, limits)]
    cost = sum(_saved_ns(record) for record in slow)
    if not slow or step.ratio(cost) < limits["min_step_ratio"]:
        return
    worst = max(slow, key=_saved_ns)
    yield Draft(
        headline=f"Transfers slower than the fabric allows cost {step.part(cost)}",
        message=(
            f"{step.amount(cost)}; {worst.label} moves at "
            f"{format_bandwidth(worst.busbw_bytes_per_s)} bus bandwidth, but the fabric profile "
            f"reaches {format_bandwidth(worst.expected_busbw_bytes_per_s)}."
        ),
        cost_ns_per_step=cost,
        evidence=("collectives.classes", "waterfall.all"),
    )


def _is_slow(record: CollectiveClass, limits: Limits) -> bool:
    return (
        record.busbw_bytes_per_s is not None
        and record.expected_busbw_bytes_per_s is not None
        and (record.bytes or 0) >= limits["min_bytes"]
        and record.busbw_bytes_per_s < limits["busbw_ratio"] * record.expected_busbw_bytes_per_s
    )


def _saved_ns(record: CollectiveClass) -> int:
    """Exposed transfer that the expected bandwidth would save, mean per step."""
    reached = (record.busbw_bytes_per_s or 0.0) / (record.expected_busbw_bytes_per_s or 1.0)
    return max(round(record.exposed_transfer_ns_per_step * (1 - reached)), 0)


_CPU_BACKEND = "gloo"


@rule("COM124", Severity.WARNING)
def cpu_backend_on_gpus(
    efficiency: EfficiencyResult,
    capture: CaptureResult,
    times: StepTimes,
) -> Iterator[Draft]:
    """Ranks compute on GPUs, but their collectives run on gloo, which is made for CPUs."""
    num_ranks = capture.world_size or len(capture.ranks_present)
    if efficiency.device in ("", CPU) or num_ranks < 2 or not capture.ranks_present:
        return
    if not efficiency.backend:
        raise InsufficientEvidenceError("the traces do not name the backend of the process groups")
    if efficiency.backend != _CPU_BACKEND:
        return
    step = times.mean_step()
    cost = step.exposed_transfer_ns
    takes = f" Exposed transfer takes {step.share(cost)}." if cost else ""
    yield Draft(
        headline=f"Collectives run on {_CPU_BACKEND}, although {num_ranks:,} ranks use GPUs",
        message=f"The ranks compute on {efficiency.device}.{takes}",
        cost_ns_per_step=cost or None,
        evidence=("efficiency.backend", "waterfall.all"),
    )


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
    """
    step = times.mean_step()
    if not collectives.classes:
        return
    if collectives.has_only_messages:
        raise InsufficientEvidenceError("the recording has only sends and receives, no collectives")
    classes = collectives.split_classes
    if not classes:
        raise InsufficientEvidenceError("no collective was matched across ranks")
    factor = limits["wait_over_transfer"]
    bound = [c for c in classes if _wait(c) >= max(factor * c.exposed_transfer_ns_per_step, 1)]
    waiting = min(sum(_wait(c) for c in bound), step.exposed_wait_ns)
    proven = (rank for rank in stragglers.ranks if rank.pattern is not StragglerPattern.NONE)
    cost = waiting - sum(rank.lost_ns_per_step for rank in proven) - capture.start_wait_ns
    if not bound or step.ratio(cost) < limits["min_step_ratio"]:
        return
    worst = max(bound, key=_wait)
    transfer = format_duration(worst.exposed_transfer_ns_per_step)
    yield Draft(
        headline=f"Waiting that no proven straggler explains takes {step.part(cost)}",
        message=(
            f"{step.amount(cost)}; {worst.label} waits {format_duration(_wait(worst))} per "
            f"{step.word} and transfers {transfer}."
            f"{_suspect(stragglers, capture, cost)}"
        ),
        fix=("Record all ranks. " if capture.ranks_missing else "")
        + advice("arrival-skew-bound-collectives"),
        cost_ns_per_step=cost,
        evidence=("collectives.classes", "stragglers.ranks", "waterfall.all"),
        without="late ranks",
    )


def _wait(record: CollectiveClass) -> int:
    return record.exposed_wait_ns_per_step or 0


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
    collectives: CollectivesResult, placement: PlacementResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Each step contains many small all-reduces, all-gathers or reduce-scatters. Latency, not size,
    determines how long messages this small take. The rule also reports many consecutive reductions
    while hardly anything else runs, which need no sizes: the pattern of gradients without buckets.
    """
    step = times.mean_step()
    moved = {axis.axis for axis, _ in swappable(placement)}
    mergeable = [c for c in collectives.classes if c.kind in _MERGEABLE and c.axis not in moved]
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
    size = sum((c.bytes or 0) * _per_rank(c, collectives) for c in small)
    is_split = all(c.exposed_wait_ns_per_step is not None for c in small)
    yield Draft(
        headline=f"Small collectives expose {step.part(exposed)}: each costs its latency",
        message=(
            f"{per_step:.0f} per {step.word} and rank, most of them "
            f"{max(small, key=lambda c: c.count).label}, take {format_duration(exposed)} to move "
            f"{format_bytes(size)} in total."
        ),
        fix=_fix(max(small, key=lambda c: c.count)),
        cost_ns_per_step=cost,
        confidence=Confidence.MEASURED if is_split else Confidence.INFERRED,
        evidence=("collectives.classes",),
        without="small collectives",
        explains=WIDER_TRANSFER,
    )


def _fix(most: CollectiveClass) -> str:
    """The fix for the most frequent class: gradients can be merged, activations cannot."""
    if most.axis == MeshAxis.TP.value:
        return advice("tiny-collectives", "activations")
    if most.axis is None and most.group.startswith("ranks "):
        return advice("tiny-collectives", "unknown")
    return advice("tiny-collectives", "gradients")


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
            headline=f"Collectives one after another, and nothing else, take {step.part(whole)}",
            message=(
                f"{train.num_per_step:.0f} {train.kind}s per {step.word} and rank of "
                f"{format_duration(train.duration_ns_median)} each take {step.amount(whole)}, of "
                f"which {format_duration(train.gap_ns_per_step)} is between them."
            ),
            fix=advice("tiny-collectives", "trains"),
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
