"""Rules about capture."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import few_ranks, fitting
from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.capture import LEFT_OUT, CaptureResult
from distprof.sections.table import counted
from distprof.terms import Confidence, Severity
from distprof.units import capitalized, fold_ranks, format_ratio


@rule(
    "CAP101",
    Severity.WARNING,
    costs_time=False,
    matched_ratio=Limit(0.95, "smallest acceptable share of matched collectives"),
    damaged_ratio=Limit(0.001, "largest acceptable share of broken events"),
)
def capture_incomplete(capture: CaptureResult, limits: Limits) -> Iterator[Draft]:
    """Ranks are missing from the recording, files are damaged, rows were removed from a trace after
    the profiler wrote it, or collectives could not be matched. The other findings then describe
    only a part of the job.
    """
    problems = [*_ranks(capture), *_matches(capture, limits), *_damage(capture, limits)]
    if not problems:
        return
    text = "; ".join(problems[1:])
    damaged = {rank for gap in capture.gaps if gap.what in _DAMAGE for rank in gap.ranks}
    yield Draft(
        headline=fitting(capitalized(problems[0])),
        message=f"{capitalized(text)}." if problems[1:] else _CONSEQUENCE,
        ranks=tuple(sorted({*damaged, *capture.ranks_missing, *capture.filtered_ranks})),
        evidence=("capture",),
    )


_CONSEQUENCE = "Rules that need what is missing are listed as not checked."
_INTENDED = frozenset({"chosen-ranks", "no-traces"})
_DAMAGE = frozenset({"truncated", *LEFT_OUT})


def _ranks(capture: CaptureResult) -> Iterator[str]:
    damaged = {rank for gap in capture.gaps if gap.what in LEFT_OUT for rank in gap.ranks}
    missing = sorted(set(capture.ranks_missing) - damaged)
    if missing and not any(gap.what in _INTENDED for gap in capture.gaps):
        are = "are" if len(missing) > 1 else "is"
        yield f"{few_ranks(missing)} of {capture.world_size} {are} not in the recording"


def _matches(capture: CaptureResult, limits: Limits) -> Iterator[str]:
    ratio = capture.matched_ratio
    if ratio is not None and ratio < limits["matched_ratio"]:
        share = f"only {format_ratio(ratio)}" if ratio else "none"
        yield f"{share} of the collectives could be matched across ranks"


def _damage(capture: CaptureResult, limits: Limits) -> Iterator[str]:
    files = [gap for gap in capture.gaps if gap.what in _DAMAGE]
    if files:
        ranks = {rank for gap in files for rank in gap.ranks}
        count = max(len(files), len(ranks))
        named = f" ({few_ranks(ranks)})" if ranks else ""
        yield f"{count} {'files are' if count > 1 else 'file is'} damaged{named}"
    if filtered := capture.filtered_ranks:
        traces = counted(len(filtered), "trace")
        yield f"rows were removed from {traces} ({few_ranks(filtered)})"
    if capture.num_quarantined > limits["damaged_ratio"] * max(capture.num_events, 1):
        yield f"{capture.num_quarantined} of {capture.num_events} events are broken"


@rule(
    "CAP102",
    Severity.WARNING,
    costs_time=False,
    overlap_ratio=Limit(0.5, "smallest acceptable share of recorded time that all ranks share"),
)
def capture_windows_disjoint(capture: CaptureResult, limits: Limits) -> Iterator[Draft]:
    """The ranks were recorded at different times, so the recordings have few or no steps in
    common.
    """
    if len(capture.ranks_present) < 2:
        return
    ratio = capture.window_overlap_ratio
    lost_steps = bool(capture.dropped_steps) and not capture.steps
    if not lost_steps and (ratio is None or ratio >= limits["overlap_ratio"]):
        return
    ranks = fold_ranks(capture.ranks_present)
    common = (
        f"no step is complete on all of ranks {ranks}"
        if lost_steps
        else f"the recordings of ranks {ranks} cover different times"
    )
    yield Draft(
        headline=(
            f"No step is complete on all {len(capture.ranks_present):,} ranks"
            if ratio is None
            else f"Ranks share only {format_ratio(ratio)} of the recorded time"
        ),
        message=f"{capitalized(common)}.",
        confidence=Confidence.MEASURED if lost_steps else Confidence.INFERRED,
        ranks=capture.ranks_present,
        evidence=("capture.steps", "capture.dropped_steps", "capture.window_overlap_ratio"),
    )


@rule("CAP103", Severity.INFO, costs_time=False)
def capture_start_transient(capture: CaptureResult) -> Iterator[Draft]:
    """The start of the profiler disturbed the first recorded step, and distprof left that step
    out.
    """
    if not capture.transient_steps:
        return
    steps = fold_ranks(capture.transient_steps)
    number = len(capture.transient_steps)
    left_out = f"{counted(number, 'step')} {'is' if number == 1 else 'are'}"
    yield Draft(
        headline=f"{left_out} left out: a first collective waits for the last profiler to start",
        message=f"The numbers below do not contain step {steps}.",
        confidence=Confidence.INFERRED,
        steps=capture.transient_steps,
        evidence=("capture.transient_steps",),
    )
