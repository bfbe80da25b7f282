"""A list of cases from any document: the common input of all CI formats."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias
from urllib.parse import quote
from xml.etree import ElementTree

import msgspec

from distprof.artefacts.record import made_from
from distprof.documents.report import gain_text
from distprof.escape import on_one_line
from distprof.formats import RenderOptions
from distprof.installed import is_web_address
from distprof.sections.report import Report
from distprof.sections.shows import judge
from distprof.terms import Severity
from distprof.units import capitalized, fold_ranks

Outcome: TypeAlias = Literal["passed", "failed", "skipped"]
_MAX_LENGTH = 2_000
"""Characters of one message: GitHub cuts annotations at 4 KiB."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    code: str  # Code of the rule, or name of the metric.
    message: str  # The result, or the reason why it could not be checked.
    detail: str = ""  # The evidence for it; may be empty.
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
        """Message, evidence, gain and fix, on one line."""
        parts = (
            f"{self.message}." if self.detail else self.message,
            self.detail,
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
    """The verdict, the findings, which fail from ``fail_on`` on, and the rules not checked."""
    return Cases(
        command="distprof analyze",
        version=report.distprof_version,
        source=report.run.source,
        verdict=judge(report).headline,
        cases=tuple(_of_report(report, Severity(options.fail_on or "warning"))),
    )


def _of_report(report: Report, least: Severity) -> Iterator[Case]:
    verdict = judge(report)
    yield Case(code="verdict", message=verdict.headline, detail=verdict.detail)
    for finding in report.findings:
        yield made_from(
            finding,
            Case,
            message=finding.headline,
            detail=finding.message,
            outcome="failed" if finding.severity.rank >= least.rank else "passed",
            docs_url=finding.docs_url if is_web_address(finding.docs_url) else "",
            gain=gain_text(finding, report),
        )
    for left in report.not_checked:
        yield Case(code=left.code, name=left.name, message=left.why, outcome="skipped")


def fingerprints(found: Cases) -> Sequence[str]:
    """A hash for each problem without any number, so that it stays the same from run to run."""
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
    return on_one_line(text, _MAX_LENGTH)


_Names: TypeAlias = Mapping[Severity | None, str]
_COMMANDS: _Names = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_SEVERITIES: _Names = {
    Severity.ERROR: "critical", Severity.WARNING: "major", Severity.INFO: "info",
}  # fmt: skip
_ELEMENTS: dict[Outcome, str] = {"failed": "failure", "skipped": "skipped", "passed": "system-out"}
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_IN_PATHS = "/:~+,;@"
_LEVELS: _Names = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def github(found: Cases) -> str:
    """Annotations of GitHub Actions: the verdict as a notice, then a command for each problem.

    Source: GitHub's documentation, "Workflow commands for GitHub Actions"; escaping as in the
    package ``@actions/core``, ``command.ts``.
    """
    where = {"file": found.path, "line": "1"} if found.is_source_file else {}
    lines = [_command("notice", one_line(found.verdict), title=found.command)]
    for case in found.problems:
        command = _COMMANDS[case.severity]
        lines.append(_command(command, case.text, **where, title=case.title))
    return "\n".join(lines) + "\n"


def _command(command: str, message: str, **properties: str) -> str:
    def escaped(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    values = {name: escaped(text).replace(":", "%3A") for name, text in properties.items()}
    shown = ",".join(f"{name}={text.replace(',', '%2C')}" for name, text in values.items())
    return f"::{command} {shown}::{escaped(message)}"


def gitlab(found: Cases) -> str:
    """GitLab's Code Quality report: a list with one entry per problem.

    Source: GitLab's documentation, "Code Quality", section "Code Quality report format".
    """
    rows = [
        {
            "description": f"{case.title}: {case.text}",
            "check_name": one_line(case.code),
            "fingerprint": mark,
            "severity": _SEVERITIES[case.severity],
            # GitLab requires a line, but a recording or a configuration as a whole has none
            "location": {"path": found.path, "lines": {"begin": 1}},
        }
        for case, mark in zip(found.problems, fingerprints(found), strict=True)
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def junit(found: Cases) -> str:
    """JUnit XML with at least one test case: some services treat an empty file as a failure.

    Source: ``junit-10.xsd`` of Jenkins' xUnit plug-in.
    """
    suite = ElementTree.Element("testsuite", name=found.command)
    group = ".".join(found.command.split())
    for case in found.cases or (Case(code="verdict", message=found.verdict),):
        told = {"message": one_line(case.message)} if case.outcome != "passed" else {}
        test = ElementTree.SubElement(suite, "testcase", classname=group, name=case.title, time="0")
        ElementTree.SubElement(test, _ELEMENTS[case.outcome], told).text = case.text
    counts = {"tests": len(suite), "failures": len(suite.findall("*/failure")), "errors": 0}
    suites = ElementTree.Element("testsuites", {name: str(n) for name, n in counts.items()})
    counts["skipped"] = len(suite.findall("*/skipped"))
    suite.attrib |= {name: str(count) for name, count in counts.items()}
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def sarif(found: Cases) -> str:
    """SARIF 2.1.0: a result per problem, a notification per rule that was not checked.

    Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
    """
    problems = found.problems
    rules = {case.code: case for case in reversed(problems)}
    codes = sorted(rules)
    marks = fingerprints(found)
    left = (case for case in found.cases if case.outcome == "skipped")
    notes = [f"{case.title} was not checked: {case.message}" for case in left]
    run = {
        "tool": {
            "driver": {
                "name": "distprof",
                "version": one_line(found.version),
                "rules": [_rule(rules[code]) for code in codes],
            }
        },
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {"level": "note", "message": {"text": _message(note)}} for note in notes
                ],
            }
        ],
        "results": [
            _result(case, codes, found, mark) for case, mark in zip(problems, marks, strict=True)
        ],
        "properties": {"command": found.command, "verdict": one_line(found.verdict)},
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1, ensure_ascii=False) + "\n"


def _rule(case: Case) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "id": one_line(case.code),
        "shortDescription": {"text": _message(case.name or case.code)},
        "help": {"text": _message(f"distprof rule {case.code}")},
    }
    if case.name:
        rule["name"] = one_line(case.name)
    return rule | ({"helpUri": case.docs_url} if case.docs_url else {})


def _result(case: Case, codes: Sequence[str], found: Cases, mark: str) -> dict[str, Any]:
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(found.path, safe=_IN_PATHS)},
            # Code scanning shows only results that have a line
            "region": {"startLine": 1},
        }
    }
    if case.ranks:
        location["logicalLocations"] = [{"name": f"ranks {fold_ranks(case.ranks)}"}]
    return {
        "ruleId": one_line(case.code),
        "ruleIndex": codes.index(case.code),
        "level": _LEVELS[case.severity],
        "message": {"text": _message(case.text)},
        "locations": [location],
        "partialFingerprints": {"distprof/v1": mark},
    }


def _message(text: str) -> str:
    """Message text with braces and brackets escaped, which SARIF interprets (3.11.5, 3.11.6)."""
    escaped = one_line(text).replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    return escaped.replace("{", "{{").replace("}", "}}")


SERVICES: Mapping[str, Callable[[Cases], str]] = {
    "github": github,
    "gitlab": gitlab,
    "junit": junit,
    "sarif": sarif,
}
"""Name of a format to the function that writes it."""
