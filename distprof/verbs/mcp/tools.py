"""What assistants may ask: five questions, each answered in text of bounded length.

Nothing is written below the root: tables that were parsed are cached in the user's own cache. The
docstrings are what a client shows to its model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from distprof.errors import UsageError
from distprof.escape import plain, plain_lines, shorten
from distprof.formats import RenderOptions, find_reporter
from distprof.units import fold_ranks
from distprof.verbs.mcp.root import Root

if TYPE_CHECKING:
    from distprof.rules.base import Finding
    from distprof.sections.report import Report

__all__ = ["MAX_CHARACTERS", "MAX_FINDINGS", "Tools", "bounded"]

MAX_CHARACTERS = 24_000
"""Of any answer."""

MAX_FINDINGS = 50
"""Of one answer; the next ones are asked for with ``offset``."""

_MAX_SAID = 600
_SEVERITIES = ("info", "warning", "error")


class Tools:
    """The tools of one server.

    Args:
        root: What may be read.
    """

    def __init__(self, root: Root) -> None:
        self._root = root

    @property
    def all(self) -> Sequence[Callable[..., str]]:
        """Every tool; its name is that of the function."""
        return (self.analyze, self.list_findings, self.explain_rule, self.compare, self.hang)

    def analyze(self, path: str) -> str:
        """Say where each training step's time goes, what causes it and what to do first.

        The answer has at most 1,500 tokens: verdict, plan, findings, evidence, what is unknown,
        next commands. Large recordings take minutes the first time.

        Args:
            path: Kineto trace, folder of traces (one per rank), run directory, saved report.json,
                or log of a training program; absolute or relative to the server's root.
        """
        return find_reporter("brief")(self._report(path), RenderOptions())

    def list_findings(
        self, path: str, severity: str = "info", offset: int = 0, limit: int = 20
    ) -> str:
        """List what rules found in a recording, most important first, as JSON.

        Times are nanoseconds per step; null means unknown, never 0. ``next_offset`` is null at
        the end.

        Args:
            path: As for analyze.
            severity: Least severity: info, warning or error.
            offset: Findings to skip.
            limit: Findings to return, at most 50.
        """
        if severity not in _SEVERITIES:
            raise UsageError(f"severity {severity!r} is not one of {', '.join(_SEVERITIES)}")
        if offset < 0 or not 1 <= limit <= MAX_FINDINGS:
            raise UsageError(f"offset must be at least 0, limit 1 to {MAX_FINDINGS}")
        least = _SEVERITIES.index(severity)
        report = self._report(path)
        chosen = [f for f in report.findings if _SEVERITIES.index(f.severity.value) >= least]
        return _listed(chosen, offset, limit, num_not_checked=len(report.not_checked))

    def explain_rule(self, rule: str) -> str:
        """Explain a rule: what it detects, its cost, how to fix it, when it is wrong. Markdown.

        Args:
            rule: Code or name, for example STR101 or persistent-straggler.
        """
        from distprof.rules.registry import find_rule

        return find_rule(rule).page

    def compare(self, first: str, second: str) -> str:
        """Say what changed between two runs, and which parts of a step explain the difference.

        Args:
            first: The reference run, in any form that analyze takes.
            second: The run to compare with it.
        """
        from distprof.verbs.compare.show import COMPARISON, compare_reports

        reports = [self._report(path) for path in (first, second)]
        comparison = compare_reports(reports[0], reports[1], names=(first, second))
        return COMPARISON.reporter("brief")(comparison, RenderOptions())

    def hang(self, path: str) -> str:
        """Say in which operation a job is stuck, and which ranks the others wait for.

        Args:
            path: Folder of dumps of torch's Flight Recorder, one per rank, with logs and Python
                stacks where there are any; or a run directory.
        """
        from distprof.verbs.functions import hang
        from distprof.verbs.hang.show import HANG

        return HANG.reporter("brief")(hang(self._root.find(path)), RenderOptions())

    def _report(self, path: str) -> Report:
        """The saved report of a run, else a new analysis."""
        from distprof.artefacts.cache_place import cache_root
        from distprof.verbs.summaries import open_report

        return open_report(self._root.find(path), cache_dir=cache_root(None, None))


def _listed(findings: Sequence[Finding], offset: int, limit: int, *, num_not_checked: int) -> str:
    rows: list[dict[str, Any]] = []
    size = 0
    for finding in findings[offset : offset + limit]:
        row = _row(finding)
        size += len(msgspec.json.encode(row))
        if rows and size > MAX_CHARACTERS // 2:  # indented, it takes up to twice as much
            break
        rows.append(row)
    end = offset + len(rows)
    answer = {
        "findings": rows,
        "num_findings": len(findings),
        "next_offset": end if end < len(findings) else None,
        "num_rules_not_checked": num_not_checked,
    }
    return msgspec.json.format(msgspec.json.encode(answer), indent=1).decode()


def _row(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "confidence": finding.confidence.value,
        "message": _said(finding.message),
        "fix": _said(finding.fix),
        "ranks": _said(fold_ranks(finding.ranks)) if finding.ranks else "all",
        "cost_ns_per_step": finding.cost_ns_per_step,
        "recoverable_ns_per_step": finding.recoverable_ns,
        "remaining_ns_per_step": finding.remaining_ns,
    }


def _said(text: str) -> str:
    return shorten(plain(text[: 4 * _MAX_SAID]), _MAX_SAID)


def bounded(text: str) -> str:
    """An answer without control characters, and never longer than :data:`MAX_CHARACTERS`."""
    return shorten(plain_lines(text[: 2 * MAX_CHARACTERS]), MAX_CHARACTERS)
