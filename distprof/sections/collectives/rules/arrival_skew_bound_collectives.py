"""# arrival-skew-bound-collectives

## What it detects
Collectives take long because their members arrive at different times, not because the transfer is
slow. The ranks named as stragglers do not account for all of this waiting.

## Why it costs time
A collective cannot finish before its last member has started. Members that arrive earlier occupy
their GPU with a kernel that only spins, and profilers show that kernel as communication.

## Evidence needed
Collectives matched across ranks, on clocks that can be compared. The trace of a single rank cannot
show it: a long kernel may be waiting or moving data.

## How the cost is computed
Exposed waiting in collectives (without send and recv), a mean over ranks and steps, less the
waiting that `persistent-straggler`, `transient-straggler` and `rotating-straggler` already report,
and less the waiting that the start of the profiler may have caused (`capture.start_wait_ns`). The
time is part of what `exposed-communication` reports.

## How to fix
Leave the network alone: a faster one changes nothing. Give the ranks equal work: pack sequences by
cost, and balance experts and embedding tables. Run Python's garbage collector at the same step on
all ranks (`gc.disable()`, and `gc.collect()` every N steps). Pin processes to cores. Remove
synchronising calls that only some ranks make.

## When it is wrong
If the clock residual is large, small waits are noise. The straggler section shows the share that
could not be judged.

## Sources
Formula sheet, "Measured from traces" (wait and transfer of a collective).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.collectives.result import CollectiveClass, CollectivesResult
from distprof.sections.collectives.rules._shared import (
    collective_label,
    only_messages,
    split_classes,
)
from distprof.sections.shares import latest_by_chance, mean_step, unrecorded
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity, StragglerPattern
from distprof.units import format_duration, format_ratio


@rule(
    code="COM103",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "min_step_ratio": Limit(0.03, "share of the step that unexplained waiting may take"),
        "wait_over_transfer": Limit(
            1.0, "exposed wait over exposed transfer of a skew-bound class"
        ),
    },
)
def check(
    collectives: CollectivesResult,
    stragglers: StragglersResult,
    capture: CaptureResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run that names the class that waits most."""
    step = mean_step(waterfall, step_time)
    if not collectives.classes:
        return
    if only_messages(collectives):
        raise InsufficientEvidenceError("the recording has only sends and receives, no collectives")
    classes = split_classes(collectives)
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
            f"{collective_label(worst)} waits {format_duration(_wait(worst))} per {step.word} and "
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
