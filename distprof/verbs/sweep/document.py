"""A scaling sweep as text, Markdown and JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from distprof.artefacts.summary_file import Fingerprint, SummaryFile
from distprof.documents.page import Page, page_reporters
from distprof.formats import RenderOptions
from distprof.rules.base import Finding, NotChecked
from distprof.rules.engine import run_rules
from distprof.run.fingerprint import unlike
from distprof.verbs.sweep.measure import analyze_scaling
from distprof.verbs.sweep.result import Mode, ScalingResult
from distprof.verbs.sweep.show import (
    scaling_headline,
    scaling_sentences,
    scaling_tables,
    scaling_verdict,
)
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
        notes: What is not alike in runs that are compared, and where the machine was too small.
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
    num_cpus: int | None = None,
) -> ScalingReport:
    """Analyse a sweep and judge it.

    Args:
        summaries: One per run.
        source: As the user named it.
        mode: Weak or strong; None to conclude it.
        baseline_ranks: What is called efficiency 1; None for the smallest size.
        limits: Code or name of a rule to limit name to value.
        num_cpus: Processors of the machine, where all runs were made on one; None if not known.
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
        notes=(*_crowded(summaries, num_cpus), *_notes(summaries)),
    )


def _crowded(summaries: Sequence[SummaryFile], num_cpus: int | None) -> Iterator[str]:
    """Whether ranks on CPUs had to share them."""
    if num_cpus is None or not all(one.fingerprint.device.startswith("cpu") for one in summaries):
        return
    needed = {
        one.fingerprint.world_size: one.fingerprint.world_size * _threads(one)
        for one in summaries
        if one.fingerprint.world_size is not None
    }
    crowded = [ranks for ranks in sorted(needed) if needed[ranks] > num_cpus]
    if crowded:
        where = "1 processor" if num_cpus == 1 else f"{num_cpus} processors"
        yield (
            f"From {crowded[0]} ranks on they share {where}: what is lost there is the machine's "
            "limit, shown as computation that grew, and says little of how the job would scale on "
            "devices of its own."
        )


def _threads(summary: SummaryFile) -> int:
    told = summary.fingerprint.config.get("training.threads", "1")
    is_asleep = summary.fingerprint.config.get("training.compute") == "sleep"
    return 0 if is_asleep else int(told) if told.isdecimal() else 1


def _notes(summaries: Sequence[SummaryFile]) -> tuple[str, ...]:
    """What else than the size differs between runs."""
    if not summaries:
        return ()
    first = summaries[0].fingerprint
    found = {
        difference.sentence
        for other in summaries[1:]
        for difference in unlike(first, other.fingerprint, sizes_may_differ=True)
        if difference.field != "workload" or not _is_same_command(first, other.fingerprint)
    }
    return tuple(f"Not like for like: {sentence}." for sentence in sorted(found))


def _is_same_command(first: Fingerprint, other: Fingerprint) -> bool:
    """Whether commands are the same but for a number, which is that of the ranks in both."""
    pieces = [re.split(r"(\d+)", one.workload) for one in (first, other)]
    ranks = (str(first.world_size), str(other.world_size))
    return len(pieces[0]) == len(pieces[1]) and all(
        pair[0] == pair[1] or pair == ranks for pair in zip(*pieces, strict=True)
    )


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
