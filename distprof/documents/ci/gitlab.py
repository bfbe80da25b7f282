"""GitLab's Code Quality report.

Source: GitLab's documentation, "Code Quality", section "Code Quality report format".
"""

from __future__ import annotations

import json
from typing import Any

from distprof.documents.ci.cases import Case, Cases, fingerprints, one_line
from distprof.terms import Severity

_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "major", Severity.INFO: "info"}


def gitlab(found: Cases) -> str:
    """A list with one entry per problem; empty without problems."""
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
