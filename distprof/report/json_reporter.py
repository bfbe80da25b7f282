"""The report as JSON, the form that other programs read."""

from __future__ import annotations

from distprof.report.model import Report
from distprof.report.registry import RenderOptions
from distprof.report.saved import encode_report

__all__ = ["render"]


def render(report: Report, options: RenderOptions) -> str:  # noqa: ARG001 - a reporter's signature
    """The report as ``report.json`` holds it, a newline at the end."""
    return encode_report(report).decode()
