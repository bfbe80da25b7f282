"""The sentence on how much of the peak a job reaches, where its model is known."""

from __future__ import annotations

from distprof.report.model import Report
from distprof.units import format_ratio

__all__ = ["efficiency_sentence"]


def efficiency_sentence(report: Report, _parts: object) -> str:
    """MFU, and whether slow kernels or lost time keep it down; empty without one."""
    found = report.efficiency
    if found.mfu_ratio is None:
        return ""
    text = f"MFU is {format_ratio(found.mfu_ratio)}"
    if found.computing_ratio is None:
        return f"{text}."
    return f"{text}; while computing, {format_ratio(found.computing_ratio)} of the peak is reached."
