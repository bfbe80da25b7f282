"""What all formats of CI services are made from: a list of cases, from any document."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from distprof.documentation import is_web_address
from distprof.documents.advice import gain_text
from distprof.escape import plain, shorten
from distprof.formats import RenderOptions
from distprof.sections.report import Report
from distprof.sections.verdict import judge
from distprof.terms import Severity
from distprof.units import capitalized

__all__ = ["Case", "Cases", "Outcome", "fingerprints", "report_cases", "said"]

Outcome: TypeAlias = Literal["passed", "failed", "skipped"]

_MAX_SAID = 2_000
"""Characters of one message: GitHub cuts annotations at 4 KiB."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was checked.

    Args:
        code: Code of the rule, or name of the metric.
        name: Name of the rule in kebab-case; empty where the code says it.
        message: What was found; why, where it could not be checked.
        severity: How bad it is; None for what is no problem, and for what was not checked.
        outcome: As a test: whether it fails the job.
        fix: What to do; may be empty.
        ranks: Whom it concerns; empty for all.
        docs_url: Page of the rule; empty without one.
        gain: What fixing it gives back, for people; empty where unknown.
    """

    code: str
    message: str
    name: str = ""
    severity: Severity | None = None
    outcome: Outcome = "passed"
    fix: str = ""
    ranks: tuple[int, ...] = ()
    docs_url: str = ""
    gain: str = ""

    @property
    def title(self) -> str:
        """For example ``STR101 persistent-straggler``."""
        return said(f"{self.code} {self.name}".strip())

    @property
    def text(self) -> str:
        """Message, gain and fix, on one line."""
        parts = (
            self.message,
            f"{capitalized(self.gain)}." if self.gain else "",
            f"Fix: {self.fix}" if self.fix else "",
        )
        return said(" ".join(part for part in parts if part))


class Cases(msgspec.Struct, frozen=True, kw_only=True):
    """All cases of one result.

    Args:
        command: What made it, for example ``distprof analyze``.
        version: Version of distprof that made it.
        source: What was judged, as the user named it; empty if that is no path.
        verdict: The result in one sentence.
        cases: In the order of importance.
        is_source_file: Whether the source is a file that its author can change, so that problems
            are shown there.
    """

    command: str
    version: str
    source: str
    verdict: str
    cases: tuple[Case, ...]
    is_source_file: bool = False

    @property
    def problems(self) -> tuple[Case, ...]:
        """What has a severity."""
        return tuple(case for case in self.cases if case.severity is not None)

    @property
    def path(self) -> str:
        """The source as services want it: with slashes, without a leading ``./``."""
        path = said(self.source).replace("\\", "/")
        while path.startswith("./"):
            path = path[2:].lstrip("/")
        return path.rstrip("/") or "."


def report_cases(report: Report, options: RenderOptions) -> Cases:
    """Findings, and rules that could not be checked.

    A finding fails at the severity that ``options.fail_on`` names, else as a warning or error.
    """
    return Cases(
        command="distprof analyze",
        version=report.distprof_version,
        source=report.run.source,
        verdict=judge(report).line,
        cases=tuple(_of_report(report, Severity(options.fail_on or "warning"))),
    )


def _of_report(report: Report, least: Severity) -> Iterator[Case]:
    yield Case(code="verdict", message=judge(report).line)
    for finding in report.findings:
        yield Case(
            code=finding.code,
            name=finding.name,
            message=finding.message,
            severity=finding.severity,
            outcome="failed" if finding.severity.rank >= least.rank else "passed",
            fix=finding.fix,
            ranks=finding.ranks,
            docs_url=finding.docs_url if is_web_address(finding.docs_url) else "",
            gain=gain_text(finding, report),
        )
    for left in report.not_checked:
        yield Case(code=left.code, name=left.name, message=left.why, outcome="skipped")


def fingerprints(found: Cases) -> Sequence[str]:
    """For each problem what tells it from others, the same in the next run unless it is gone.

    It is made of the rule, the ranks and the source, and of no number that was measured.
    """
    seen: dict[str, int] = {}
    marks = []
    for case in found.problems:
        facts = f"{found.command}\0{case.code}\0{found.path}\0{sorted(case.ranks)}"
        number = seen[facts] = seen.get(facts, 0) + 1
        digest = hashlib.sha256(f"{facts}\0{number}".encode("utf-8", "backslashreplace"))
        marks.append(digest.hexdigest()[:32])
    return marks


def said(text: str) -> str:
    """A text of a result on one line, harmless and of bounded length."""
    return shorten(plain(" ".join(text[: 4 * _MAX_SAID].split())), _MAX_SAID)
