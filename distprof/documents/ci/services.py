"""The formats that CI services read, each a function of the cases of a result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from distprof.documents.ci.cases import Case, Cases, Outcome, fingerprints, one_line
from distprof.terms import Severity
from distprof.units import fold_ranks

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "major", Severity.INFO: "info"}
_ELEMENTS: dict[Outcome, str] = {"failed": "failure", "skipped": "skipped", "passed": "system-out"}
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_IN_PATHS = "/:~+,;@"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def github(found: Cases) -> str:
    """Annotations of GitHub Actions: the verdict as a notice, then a command for each problem.

    Source: GitHub's documentation, "Workflow commands for GitHub Actions"; escaping as in the
    package ``@actions/core``, ``command.ts``.
    """
    where = {"file": found.path, "line": "1"} if found.is_source_file else {}
    lines = [_command("notice", one_line(found.verdict), title=found.command)]
    for case in found.problems:
        assert case.severity is not None
        lines.append(_command(_COMMANDS[case.severity], case.text, **where, title=case.title))
    return "\n".join(lines) + "\n"


def _command(command: str, message: str, **properties: str) -> str:
    shown = ",".join(f"{name}={_property(text)}" for name, text in properties.items())
    return f"::{command} {shown}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def gitlab(found: Cases) -> str:
    """GitLab's Code Quality report: a list with one entry per problem.

    Source: GitLab's documentation, "Code Quality", section "Code Quality report format".
    """
    marks = fingerprints(found)
    rows = [_row(case, found, mark) for case, mark in zip(found.problems, marks, strict=True)]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def _row(case: Case, found: Cases, fingerprint: str) -> dict[str, Any]:
    assert case.severity is not None
    return {
        "description": f"{case.title}: {case.text}",
        "check_name": one_line(case.code),
        "fingerprint": fingerprint,
        "severity": _SEVERITIES[case.severity],
        # GitLab requires a line, but a recording or a configuration as a whole has none
        "location": {"path": found.path, "lines": {"begin": 1}},
    }


def junit(found: Cases) -> str:
    """JUnit XML with at least one test case: some services treat an empty file as a failure.

    Source: ``junit-10.xsd`` of Jenkins' xUnit plug-in.
    """
    suite = ElementTree.Element("testsuite", name=found.command)
    for case in found.cases or (Case(code="verdict", message=found.verdict),):
        _add(suite, case, found)
    counts = {
        "tests": len(suite),
        "failures": len(suite.findall("*/failure")),
        "errors": 0,
    }
    suites = ElementTree.Element("testsuites", {name: str(n) for name, n in counts.items()})
    counts["skipped"] = len(suite.findall("*/skipped"))
    suite.attrib |= {name: str(count) for name, count in counts.items()}
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, case: Case, found: Cases) -> None:
    name = ".".join(found.command.split())
    test = ElementTree.SubElement(suite, "testcase", classname=name, name=case.title, time="0")
    element = _ELEMENTS[case.outcome]
    if element == "system-out":
        ElementTree.SubElement(test, element).text = case.text
    else:
        ElementTree.SubElement(test, element, message=one_line(case.message)).text = case.text


def sarif(found: Cases) -> str:
    """SARIF 2.1.0: a result per problem, a notification per rule that was not checked.

    Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
    """
    problems = found.problems
    rules = {case.code: case for case in reversed(problems)}
    codes = sorted(rules)
    marks = fingerprints(found)
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
                    _notification(case) for case in found.cases if case.outcome == "skipped"
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
    assert case.severity is not None
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


def _notification(case: Case) -> dict[str, Any]:
    text = _message(f"{case.title} was not checked: {case.message}")
    return {"level": "note", "message": {"text": text}}


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
