"""Annotations of GitHub Actions: a workflow command per line.

Source: GitHub's documentation, "Workflow commands for GitHub Actions"; escaping as in the package
``@actions/core``, ``command.ts``.
"""

from __future__ import annotations

from distprof.documents.ci.cases import Cases, one_line
from distprof.terms import Severity

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def github(found: Cases) -> str:
    """The verdict as a notice, then an annotation for each problem, most important first."""
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
