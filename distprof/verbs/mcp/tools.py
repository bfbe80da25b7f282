"""Five tools for assistants, each of which answers in text of bounded length.

They write no files below the root: parsed tables are cached in the user's cache folder. A client
shows the docstrings to its model.
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
    from distprof.documents.saved import Report
    from distprof.rules.base import Finding

MAX_CHARACTERS = 24_000
"""Maximum length of an answer."""

MAX_FINDINGS = 50
"""Maximum number of findings in one answer; ``offset`` selects the next ones."""

_MAX_TEXT = 600
_SEVERITIES = ("info", "warning", "error")


class Tools:
    """The tools of one server.

    Args:
        root: The folder that may be read.
    """

    def __init__(self, root: Root) -> None:
        self._root = root

    @property
    def all(self) -> Sequence[Callable[..., str]]:
        """Every tool; a tool has the name of its function."""
        return (self.analyze, self.list_findings, self.explain_rule, self.compare, self.hang)

    def analyze(self, path: str) -> str:
        """Say where the time of a training step goes, what causes it and what to fix first.

        The answer has at most 1,500 tokens: verdict, plan, findings, evidence, unknown values and
        next commands. The first analysis of a large recording takes minutes.

        Args:
            path: Kineto trace, folder of traces (one per rank), run directory, saved report.json,
                or log of a training program; absolute or relative to the server's root.
        """
        return find_reporter("brief")(self._report(path), RenderOptions())

    def list_findings(
        self, path: str, severity: str = "info", offset: int = 0, limit: int = 20
    ) -> str:
        """List the findings of the rules on a recording, most important first, as JSON.

        Times are nanoseconds per step; null means unknown, never 0. ``next_offset`` is null at
        the end.

        Args:
            path: As for analyze.
            severity: Minimum severity: info, warning or error.
            offset: Number of findings to skip.
            limit: Number of findings to return, at most 50.
        """
        if severity not in _SEVERITIES:
            raise UsageError(f"severity {severity!r} is not one of {', '.join(_SEVERITIES)}")
        if offset < 0 or not 1 <= limit <= MAX_FINDINGS:
            raise UsageError(f"offset must be at least 0, and limit from 1 to {MAX_FINDINGS}")
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
            path: Folder with dumps of torch's Flight Recorder, one per rank, and logs and Python
                stacks if there are any; or a run directory.
        """
        from distprof.verbs.functions import hang
        from distprof.verbs.hang.show import HANG

        return HANG.reporter("brief")(hang(self._root.find(path)), RenderOptions())

    def _report(self, path: str) -> Report:
        """The saved report of a run, or else a new analysis."""
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
        "message": _bounded_text(finding.message),
        "fix": _bounded_text(finding.fix),
        "ranks": _bounded_text(fold_ranks(finding.ranks)) if finding.ranks else "all",
        "cost_ns_per_step": finding.cost_ns_per_step,
        "recoverable_ns_per_step": finding.recoverable_ns,
        "remaining_ns_per_step": finding.remaining_ns,
    }


def _bounded_text(text: str) -> str:
    return shorten(plain(text[: 4 * _MAX_TEXT]), _MAX_TEXT)


def bounded(text: str) -> str:
    """The text without control characters, with at most :data:`MAX_CHARACTERS` characters."""
    return shorten(plain_lines(text[: 2 * MAX_CHARACTERS]), MAX_CHARACTERS)
