"""What a recording lacks, in the results and findings of its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from distprof.rules.base import Finding
from distprof.rules.engine import is_on_recording
from distprof.run.run import Run
from distprof.sections.base import Result
from distprof.sections.capture.result import CaptureGap, CaptureResult
from distprof.terms import Confidence


def explain_untraced(run: Run, results: Mapping[str, Result]) -> dict[str, Result]:
    """The results, with one common reason if they need traces; unchanged for a run with traces.

    Sentences such as "one rank alone cannot show who waits for whom" are about missing traces, and
    would make the reader search for them.
    """
    if run.ranks or not run.origin:
        return dict(results)
    article = "an" if run.origin[:1] in "aeiou" else "a"
    why = f"The source is {article} {run.origin}: only traces show this, so it was not measured."
    return {
        name: msgspec.structs.replace(result, unavailable=(why,)) if result.needs_traces else result
        for name, result in results.items()
    }


def in_doubt(findings: Iterable[Finding], capture: CaptureResult) -> tuple[Finding, ...]:
    """The findings, with lower confidence in those about ranks whose recording is damaged."""
    damaged = [gap for gap in capture.gaps if gap.fact]
    return tuple(
        replace(found, confidence=Confidence.INFERRED) if _depends(found, damaged) else found
        for found in findings
    )


def _depends(found: Finding, damaged: Iterable[CaptureGap]) -> bool:
    if found.confidence is not Confidence.MEASURED or is_on_recording(found.code):
        return False
    return any(
        not gap.ranks or not found.ranks or set(gap.ranks).intersection(found.ranks)
        for gap in damaged
    )
