"""SARIF 2.1.0, as code scanning services read it.

Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from distprof.documents.ci.cases import Case, Cases, fingerprints, one_line
from distprof.terms import Severity
from distprof.units import fold_ranks

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_IN_PATHS = "/:~+,;@"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def sarif(found: Cases) -> str:
    """One run of the tool: a result per problem, a notification per rule that was not checked."""
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
