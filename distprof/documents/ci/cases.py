"""A list of cases from any document: the common input of all CI formats."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from distprof.documents.advice import gain_text
from distprof.escape import plain, shorten
from distprof.formats import RenderOptions
from distprof.installed import is_web_address
from distprof.sections.report import Report
from distprof.sections.verdict import judge
from distprof.terms import Severity
from distprof.units import capitalized

Outcome: TypeAlias = Literal["passed", "failed", "skipped"]

_MAX_LENGTH = 2_000
"""Characters of one message: GitHub cuts annotations at 4 KiB."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    code: str  # Code of the rule, or name of the metric.
    message: str  # The result, or the reason why it could not be checked.
    name: str = ""  # Name of the rule in kebab-case; empty if the code already says it.
    # Severity of the problem; None if there is no problem or it was not checked.
    severity: Severity | None = None
    outcome: Outcome = "passed"  # The outcome as a test: whether it fails the job.
    fix: str = ""  # How to fix it; may be empty.
    ranks: tuple[int, ...] = ()  # The affected ranks; empty for all.
    docs_url: str = ""  # Page of the rule; empty without one.
    gain: str = ""  # Gain of the fix as text; empty if unknown.

    @property
    def title(self) -> str:
        """For example ``STR101 persistent-straggler``."""
        return one_line(f"{self.code} {self.name}".strip())

    @property
    def text(self) -> str:
        """Message, gain and fix, on one line."""
        parts = (
            self.message,
            f"{capitalized(self.gain)}." if self.gain else "",
            f"Fix: {self.fix}" if self.fix else "",
        )
        return one_line(" ".join(part for part in parts if part))


class Cases(msgspec.Struct, frozen=True, kw_only=True):
    """All cases of one result."""

    command: str  # The command that produced it, for example ``distprof analyze``.
    version: str  # Version of distprof that produced it.
    source: str  # The judged path, as the user named it; empty if it is not a path.
    verdict: str  # The result in one sentence.
    cases: tuple[Case, ...]  # In order of importance.
    # Whether the source is a file that its author can edit, so that services show problems in it.
    is_source_file: bool = False

    @property
    def problems(self) -> tuple[Case, ...]:
        """The cases with a severity."""
        return tuple(case for case in self.cases if case.severity is not None)

    @property
    def path(self) -> str:
        """The source in the form that services expect: slashes, no leading ``./``."""
        path = one_line(self.source).replace("\\", "/")
        while path.startswith("./"):
            path = path[2:].lstrip("/")
        return path.rstrip("/") or "."


def report_cases(report: Report, options: RenderOptions) -> Cases:
    """The verdict, the findings, and the rules that could not be checked.

    A finding fails from the severity in ``options.fail_on``, by default from ``warning``.
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
    """An identifier for each problem, which stays the same from run to run.

    It is a hash of the command, rule, ranks and source, without any measured number.
    """
    seen: dict[str, int] = {}
    marks = []
    for case in found.problems:
        facts = f"{found.command}\0{case.code}\0{found.path}\0{sorted(case.ranks)}"
        number = seen[facts] = seen.get(facts, 0) + 1
        digest = hashlib.sha256(f"{facts}\0{number}".encode("utf-8", "backslashreplace"))
        marks.append(digest.hexdigest()[:32])
    return marks


def one_line(text: str) -> str:
    """A text of a result on one line, escaped and of bounded length."""
    return shorten(plain(" ".join(text[: 4 * _MAX_LENGTH].split())), _MAX_LENGTH)
