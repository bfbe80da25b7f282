"""Findings that depend on a damaged part of the recording are not measured, but inferred."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from distprof.rules.base import Finding
from distprof.rules.engine import is_on_recording
from distprof.sections.capture.result import CaptureGap, CaptureResult
from distprof.terms import Confidence


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
