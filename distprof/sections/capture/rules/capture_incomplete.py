"""# capture-incomplete

## What it detects
Ranks are missing from the recording, files are damaged, rows were removed from a trace after
the profiler wrote it, or collectives could not be matched. The
other findings then describe only a part of the job.

## Why it costs time
It costs no time, but it limits the analysis. A missing rank may be the late one, and waiting and
transfer of unmatched collectives cannot be separated.

## Evidence needed
The traces themselves. At least one of them must hold the world size of the job
(`distributedInfo.world_size`, PyTorch 1.9 and later).

## How the cost is computed
No cost: it concerns the recording, not the job.

## How to fix
Record every rank of at least one replica over the same steps, with the same schedule:
`torch.profiler.profile(schedule=schedule(wait=2, warmup=3, active=5), on_trace_ready=…)`. Add a
barrier before the program ends, and copy the files only after the profiler has written them.

## When it is wrong
You may have left ranks out on purpose: a few ranks of each pipeline stage may be enough for your
question.

## Sources
PyTorch documentation of `torch.profiler`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.capture.result import LEFT_OUT, CaptureResult
from distprof.terms import Severity
from distprof.units import capitalized, format_ratio, name_ranks


@rule(
    code="CAP101",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "matched_ratio": Limit(0.95, "smallest acceptable share of matched collectives"),
        "damaged_ratio": Limit(0.001, "largest acceptable share of broken events"),
    },
    costs_time=False,
)
def check(capture: CaptureResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding that lists everything that is missing."""
    problems = [*_ranks(capture), *_matches(capture, limits), *_damage(capture, limits)]
    if not problems:
        return
    text = "; ".join(problems)
    yield Draft(
        message=f"{capitalized(text)}.",
        fix=(
            "Record all ranks of a replica over the same steps with one profiler schedule, and end "
            "the job only after the files are written."
        ),
        ranks=_affected(capture),
        evidence=("capture",),
    )


_INTENDED = frozenset({"chosen-ranks", "no-traces"})
_DAMAGE = frozenset({"truncated", *LEFT_OUT})


def _ranks(capture: CaptureResult) -> Iterator[str]:
    damaged = {rank for gap in capture.gaps if gap.what in LEFT_OUT for rank in gap.ranks}
    missing = sorted(set(capture.ranks_missing) - damaged)
    if missing and not any(gap.what in _INTENDED for gap in capture.gaps):
        are = "are" if len(missing) > 1 else "is"
        yield f"{name_ranks(missing)} of {capture.world_size} {are} not in the recording"


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
        named = f" ({name_ranks(ranks)})" if ranks else ""
        yield f"{count} {'files are' if count > 1 else 'file is'} damaged{named}"
    if filtered := capture.filtered_ranks:
        of = f"trace{'s' * (len(filtered) > 1)} of {name_ranks(filtered)}"
        yield f"rows were removed from the {of}"
    if capture.num_quarantined > limits["damaged_ratio"] * max(capture.num_events, 1):
        yield f"{capture.num_quarantined} of {capture.num_events} events are broken"


def _affected(capture: CaptureResult) -> tuple[int, ...]:
    damaged = {rank for gap in capture.gaps if gap.what in _DAMAGE for rank in gap.ranks}
    return tuple(sorted({*damaged, *capture.ranks_missing, *capture.filtered_ranks}))
