"""Rules about gradients: their buckets, and options of data parallelism."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from distprof.costs.collectives import BucketTime
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule, worth
from distprof.sections.gradients import GradientGroup, GradientsResult
from distprof.sections.settings import SettingsResult
from distprof.sections.shares import WIDER_TRANSFER, StepTimes
from distprof.sections.step_log import StepLogResult
from distprof.sections.stragglers import StragglersResult
from distprof.sections.time import StepTimeResult
from distprof.sections.training_log import LONG_REDUCTION, TrainingLogResult
from distprof.terms import Confidence, Severity
from distprof.units import NS_PER_S, format_bytes, format_duration, format_ratio

_NO_BACKWARD = "the trace lacks the launches that show when backward begins"

_LATE = ("Rank ", "Ranks ", "Some ranks wait")  # Beginnings of notes on ranks that others wait for
_SAME_SPAN = 0.05  # Timers that add up to an iteration but for this share cover it

LATE_RATIO = 0.9
"""Share of backward before the first bucket above which hardly any overlap is possible."""


def gradient_groups(gradients: GradientsResult) -> tuple[GradientGroup, ...]:
    """Axes along which gradients are reduced; empty if nothing in the trace marks DDP."""
    if not gradients.groups and gradients.unavailable:
        raise InsufficientEvidenceError(gradients.unavailable[0])
    return gradients.groups


@rule("COM112", Severity.WARNING, min_step_ratio=worth(0.03))
def late_gradient_communication(gradients: GradientsResult, times: StepTimes) -> Iterator[Draft]:
    """DistributedDataParallel begins to reduce gradients only when backward is almost over. No
    computation is left for the reductions to overlap with.
    """
    for group in gradient_groups(gradients):
        if not _is_late(group):
            continue
        step = times.mean_step()
        cost = min(group.exposed_once_ns, group.backward_ns or 0)
        yield Draft(
            headline=f"Gradients are reduced late: {step.part(cost)} could overlap with backward",
            message=f"{_when(group)}; {step.amount(cost)} is {group.exposed_label}.",
            fix=_fix(group),
            cost_ns_per_step=cost,
            confidence=group.confidence,
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            without="overlap",
            explains=WIDER_TRANSFER,
        )


def _is_late(group: GradientGroup) -> bool:
    """Whether backward is almost over when the first bucket is ready; an error if unknown."""
    if group.backward_ns is None or group.before_first_ns is None:
        raise InsufficientEvidenceError(_NO_BACKWARD)
    return group.before_first_ns >= LATE_RATIO * group.backward_ns


def _when(group: GradientGroup) -> str:
    if group.num_buckets == 1:
        return "All gradients are in one bucket, which is ready only when backward has ended"
    done = (group.before_first_ns or 0) / max(group.backward_ns or 0, 1)
    return (
        f"The first of {group.num_buckets} gradient buckets is ready only after "
        f"{format_ratio(done)} of backward"
    )


def _fix(group: GradientGroup) -> str:
    if group.num_buckets == 1:
        return advice(
            "late-gradient-communication", "one-bucket", megabytes=max(group.bytes // 10_000_000, 1)
        )
    return advice("late-gradient-communication", "order")


MOST_LATENCY = 0.5
"""Share of latency in the last bucket's time above which fewer buckets are the fix."""

MOST = 0.5
"""Share of the exposed time above which the last bucket is the cause.

Below it other buckets are exposed too: the network is always busy, and the split does not matter.
"""


@rule(
    "COM113",
    Severity.WARNING,
    last_bucket_ratio=Limit(0.25, "share of the gradients that the last bucket may hold"),
    min_bytes=Limit(2_000_000, "smallest last bucket that is worth splitting, in bytes"),
    min_step_ratio=worth(0.01),
)
def large_last_bucket(
    gradients: GradientsResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """The bucket of gradients that DistributedDataParallel reduces last holds more than a quarter
    of all gradients and causes most of their exposed communication.
    """
    for group in gradient_groups(gradients):
        if group.is_held_up or not (
            group.num_buckets > 1
            and group.last_bucket_ratio > limits["last_bucket_ratio"]
            and group.last_bucket_ratio * group.bytes >= limits["min_bytes"]
            and group.last_bucket_ns_per_step >= MOST * max(group.exposed_once_ns, 1)
            and not (group.backward_ns is not None and _is_late(group))
        ):
            continue
        step = times.mean_step()
        exposed = group.last_bucket_ns_per_step
        is_latency = _latency_ratio(group) > MOST_LATENCY
        if is_latency:
            # share of the reduction's time spent on the latency of all buckets but one
            time = _time(group)
            whole = group.num_buckets * time.latency_ns + time.ns_per_byte * group.bytes
            cost = round(
                group.exposed_once_ns
                * ((group.num_buckets - 1) * time.latency_ns / max(whole, 1.0))
            )
        else:
            cost = round(exposed * _saved_by_splitting(group, limits["last_bucket_ratio"]))
        yield Draft(
            headline=f"The last bucket of gradients is exposed for {step.part(exposed)}",
            message=(
                f"It is the last of {group.num_buckets} and holds "
                f"{format_ratio(group.last_bucket_ratio)} of the gradients "
                f"({format_bytes(group.bytes)}): its {group.exposed_label} takes "
                f"{step.amount(exposed)}{_latency(group)}."
            ),
            fix=advice("large-last-bucket", "latency" if is_latency else "size"),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED,
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            explains=WIDER_TRANSFER,
        )


def _last_bytes(group: GradientGroup) -> float:
    return group.last_bucket_ratio * group.bytes


def _time(group: GradientGroup) -> BucketTime:
    """Cost model of a bucket; proportional to bytes if the fit is unknown."""
    if group.bucket_latency_ns is None or group.bucket_ns_per_byte is None:
        return BucketTime(latency_ns=0.0, ns_per_byte=1.0)
    return BucketTime(latency_ns=group.bucket_latency_ns, ns_per_byte=group.bucket_ns_per_byte)


def _latency_ratio(group: GradientGroup) -> float:
    """Share of latency in the time of the last bucket; 0 if unknown."""
    time = _time(group)
    return time.latency_ns / max(time.of(_last_bytes(group)), 1.0)


def _saved_by_splitting(group: GradientGroup, max_ratio: float) -> float:
    """Share of the last bucket's time saved if its share of the gradients is only ``max_ratio``."""
    time = _time(group)
    return 1 - time.of(max_ratio * group.bytes) / max(time.of(_last_bytes(group)), 1.0)


def _latency(group: GradientGroup) -> str:
    ratio = _latency_ratio(group)
    if ratio <= MOST_LATENCY:
        return ""
    latency = format_duration(round(group.bucket_latency_ns or 0))
    return f"; {format_ratio(ratio)} of its time is latency ({latency} per bucket), not transfer"


@rule(
    "COM114",
    Severity.WARNING,
    transfer_ratio=Limit(1.0, "ratio of a reduction's transfer to the computation of backward"),
    min_step_ratio=worth(0.05),
)
def small_batch_for_data_parallelism(
    gradients: GradientsResult, step_log: StepLogResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Reducing the gradients takes longer than computing backward, so part of the reduction stays
    exposed even with perfect overlap: the batch per rank is too small for this number of ranks.
    """
    for group in gradient_groups(gradients):
        if group.backward_ns is None:
            raise InsufficientEvidenceError(_NO_BACKWARD)
        if group.transfer_ns is None:
            raise InsufficientEvidenceError(
                "transfer and waiting could not be separated: gradients were not matched across "
                "ranks"
            )
        transfer, backward = group.transfer_ns, group.backward_ns
        if transfer <= limits["transfer_ratio"] * backward:
            continue
        step = times.mean_step()
        cost = min(transfer - backward, group.exposed_once_ns)
        factor = transfer / max(backward, 1)
        yield Draft(
            headline=f"Reducing gradients outlasts backward: {step.part(cost)} cannot overlap",
            message=(
                f"Reducing {group.label} takes {format_duration(transfer)}, but backward only "
                f"{format_duration(backward)}: {step.amount(cost)} cannot overlap. With "
                f"{factor:.3g} times the samples per micro-batch{_tokens(group, step_log, factor)} "
                "it could."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED,
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            explains=WIDER_TRANSFER,
        )


def _tokens(group: GradientGroup, step_log: StepLogResult, factor: float) -> str:
    tokens = [
        rank.tokens_per_s * rank.median_ns / NS_PER_S / group.micro_batches
        for rank in step_log.ranks
        if rank.rank in group.ranks and rank.tokens_per_s and rank.median_ns
    ]
    if not tokens:
        return ""
    now = statistics.median(tokens)
    return f" ({now * factor:,.0f} tokens instead of {now:,.0f})"


@rule(
    "COM110",
    Severity.WARNING,
    times_reduced=Limit(
        1.5, "reductions of the same gradients per update from which they count as repeated"
    ),
    min_step_ratio=worth(
        0.01, "smallest share of the step in unnecessary reductions that is worth reporting"
    ),
)
def accumulation_without_no_sync(
    gradients: GradientsResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """DistributedDataParallel reduces the gradients of every micro-batch, although the optimizer
    updates the weights only once every few micro-batches.
    """
    for group in gradient_groups(gradients):
        if group.times_reduced is None:
            raise InsufficientEvidenceError("the trace does not mark the updates of the optimizer")
        step = times.mean_step()
        cost = group.redundant_ns_per_step
        if group.times_reduced < limits["times_reduced"]:
            continue
        yield Draft(
            headline=f"Repeated reductions of the same gradients cost {step.part(cost)}",
            message=(
                f"DDP reduces them {group.times_reduced:.3g} times before each update "
                f"({group.micro_batches:.3g} micro-batches): {group.exposed_label} of unnecessary "
                f"reductions takes {step.amount(cost)}."
            ),
            cost_ns_per_step=cost,
            confidence=group.confidence,
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            without="repeated gradients",
            explains=WIDER_TRANSFER,
        )


_WIDE = {"float32", "float64"}


@rule(
    "COM111",
    Severity.WARNING,
    min_step_ratio=worth(0.05, "share of the step that 16 bits would save"),
    min_bucket_bytes=Limit(1_000_000, "mean bucket below which latency dominates"),
)
def full_precision_gradients(
    gradients: GradientsResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """DistributedDataParallel reduces gradients in 32 bits, and their transfer is exposed."""
    for group in gradient_groups(gradients):
        step = times.mean_step()
        exposed = group.exposed_once_ns
        if not group.dtypes or not set(group.dtypes) <= _WIDE:
            continue
        if group.bytes < limits["min_bucket_bytes"] * group.num_buckets:
            continue
        yield Draft(
            headline=f"Reducing gradients in full precision takes {step.part(exposed)}",
            message=(
                f"Each update reduces {group.label}: their {group.exposed_label} takes "
                f"{step.amount(exposed)}. With 16 bits it would take half."
            ),
            cost_ns_per_step=exposed // 2,
            confidence=Confidence.MODELLED,
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            severity=None if (group.num_nodes or 1) > 1 else Severity.INFO,
            explains=WIDER_TRANSFER,
        )


@rule("COM115", Severity.INFO, min_step_ratio=worth(0.001))
def unused_parameter_search(gradients: GradientsResult, times: StepTimes) -> Iterator[Draft]:
    """DistributedDataParallel searches the graph after each forward for parameters that were not
    used (`find_unused_parameters=True`).
    """
    if not gradients.search_ns_per_step:
        return
    step = times.mean_step()
    cost = gradients.search_exposed_ns_per_step
    searched = format_duration(gradients.search_ns_per_step)
    yield Draft(
        headline=f"DDP's search for unused parameters costs {step.part(cost)}",
        message=(
            f"It takes {searched} of each {step.word}; {step.amount(cost)} is lost to the search "
            "and to sharing its result with the other ranks."
        ),
        cost_ns_per_step=cost,
        evidence=("gradients.search_ns_per_step", "gradients.search_exposed_ns_per_step"),
    )


@rule(
    "COM123",
    Severity.INFO,
    min_looks=Limit(3.0, "iterations that must have been inspected on each rank"),
    warning_ratio=Limit(0.01, "share of the step from which the finding is a warning"),
)
def needless_unused_parameter_search(
    settings: SettingsResult, gradients: GradientsResult, step_time: StepTimeResult, limits: Limits
) -> Iterator[Draft]:
    """DDP searches for unused parameters in each step and never finds any."""
    searching = [one for one in settings.ddp if one.find_unused_parameters and not one.static_graph]
    if not searching or any(
        (one.max_unused_bytes != 0 or one.num_looks < limits["min_looks"]) for one in searching
    ):
        return
    cost = gradients.search_exposed_ns_per_step or None
    step_ns = step_time.median_ns or 0
    is_costly = cost is not None and cost >= limits["warning_ratio"] * step_ns > 0
    costs = f", which costs {format_duration(cost)}" if cost else ""
    num_looks = min(one.num_looks for one in searching)
    yield Draft(
        headline=f"DDP searches for unused parameters, but found none in {num_looks:,} iterations",
        message=f"It searches in each step{costs}; these iterations of each rank were inspected.",
        cost_ns_per_step=cost,
        ranks=tuple(sorted({rank for one in searching for rank in one.ranks})),
        evidence=("settings.ddp", "gradients.search_exposed_ns_per_step"),
        severity=Severity.WARNING if is_costly else None,
        explains=("COM115",),
    )


@rule(
    "COM127",
    Severity.WARNING,
    share=Limit(LONG_REDUCTION, "share of an iteration that the reduction of gradients may take"),
)
def gradient_reduction_by_log(
    log: TrainingLogResult, stragglers: StragglersResult, limits: Limits
) -> Iterator[Draft]:
    """According to the training program's own timer, the reduction of gradients takes a large part
    of each iteration, and nothing overlaps with it.
    """
    from distprof.sections.training_log.show import reduction  # drawing needs numpy, rules do not

    timer, ratio, of = reduction(log)
    is_late = stragglers.ranks or any(n.startswith(_LATE) for n in log.unavailable)
    if timer is None or ratio < limits["share"] or is_late:  # which says more
        return
    whole = timer.mean_ns / ratio
    covers_all = log.mean_ns is not None and math.isclose(whole, log.mean_ns, rel_tol=_SAME_SPAN)
    yield Draft(
        headline=f"The reduction of gradients takes {format_ratio(ratio)} of {of}",
        message=(
            f"{format_duration(timer.mean_ns)}, according to the program's timer {timer.name!r}, "
            "which includes waiting for late ranks."
        ),
        fix=advice("gradient-reduction-by-log"),
        cost_ns_per_step=timer.mean_ns if covers_all else None,
        confidence=Confidence.INFERRED,
        evidence=("training_log.timers",),
    )
