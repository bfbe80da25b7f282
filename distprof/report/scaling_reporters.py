"""A scaling sweep as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from distprof.analyzers.scaling.analysis import analyze_scaling
from distprof.analyzers.scaling.result import Mode, ScalingResult
from distprof.artefacts.summary_file import Fingerprint, SummaryFile
from distprof.report.page import Page, page_reporters
from distprof.report.registry import RenderOptions
from distprof.report.scaling_view import (
    scaling_headline,
    scaling_sentences,
    scaling_tables,
    scaling_verdict,
)
from distprof.rules.engine import run_rules
from distprof.rules.finding import Finding, NotChecked
from distprof.run.fingerprint import unlike
from distprof.version import __version__

__all__ = ["SCALING_REPORTERS", "SCALING_SCHEMA", "ScalingReport", "report_scaling"]

SCALING_SCHEMA = "distprof.scaling/1"


class ScalingReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sweep: what it shows, what rules say of it, and what it was made of.

    Args:
        schema: Of this document.
        distprof_version: Who made it.
        source: As the user named it.
        fingerprint: Of the smallest run.
        scaling: Speed-up, efficiency, losses, laws.
        findings: What rules found.
        not_checked: Rules that lacked their evidence.
        notes: What is not alike in runs that are compared.
    """

    schema: str = SCALING_SCHEMA
    distprof_version: str
    source: str
    fingerprint: Fingerprint
    scaling: ScalingResult
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    notes: tuple[str, ...] = ()


def report_scaling(
    summaries: Sequence[SummaryFile],
    *,
    source: str,
    mode: Mode | None = None,
    baseline_ranks: int | None = None,
    limits: Mapping[str, Mapping[str, float]] | None = None,
) -> ScalingReport:
    """Analyse a sweep and judge it.

    Args:
        summaries: One per run.
        source: As the user named it.
        mode: Weak or strong; None to conclude it.
        baseline_ranks: What is called efficiency 1; None for the smallest size.
        limits: Code or name of a rule to limit name to value.
    """
    result = analyze_scaling(summaries, mode=mode, baseline_ranks=baseline_ranks)
    outcome = run_rules([result], limits)
    first = min(summaries, key=lambda summary: summary.fingerprint.world_size or 0, default=None)
    return ScalingReport(
        distprof_version=__version__,
        source=source,
        fingerprint=first.fingerprint if first else Fingerprint(),
        scaling=result,
        findings=outcome.findings,
        not_checked=outcome.not_checked,
        notes=_notes(summaries),
    )


def _notes(summaries: Sequence[SummaryFile]) -> tuple[str, ...]:
    """What else than the size differs between runs."""
    if not summaries:
        return ()
    first = summaries[0].fingerprint
    found = {
        difference.sentence
        for other in summaries[1:]
        for difference in unlike(first, other.fingerprint, sizes_may_differ=True)
    }
    return tuple(f"Not like for like: {sentence}." for sentence in sorted(found))


def _page(report: ScalingReport, options: RenderOptions) -> Page:
    return Page(
        verdict=scaling_verdict(report.scaling),
        headline=scaling_headline(report.scaling, report.fingerprint, report.source),
        sentences=(*scaling_sentences(report.scaling), *report.notes),
        findings=report.findings,
        tables=tuple(scaling_tables(report.scaling, show_all=options.show_all)),
    )


SCALING_REPORTERS = page_reporters(_page)
"""Name of a format to what writes a sweep in it."""
