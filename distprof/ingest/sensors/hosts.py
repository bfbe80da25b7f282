"""Whose output a line is, in files that hold the output of many hosts."""

from __future__ import annotations

import re

__all__ = ["LABEL", "MARKER", "NAME", "RULE", "host_named"]

LABEL = re.compile(r"([A-Za-z0-9][\w.-]{0,80}): ?(?=[#|+<=\w ])")
"""A host's name, or a task's number, as pdsh, clush and ``srun --label`` put it before lines."""

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,80}")
"""A line between two rules, above a block: ``dshbak``, ``clush -b``."""

RULE = re.compile(r"-{4,80}")

MARKER = re.compile(r"([A-Za-z0-9][\w.-]{0,80}) \| [A-Z]{2,12}!? (?:\| rc=\d{1,3} )?[>=]>")
"""A line above a block as ansible writes it: ``node-1 | CHANGED | rc=0 >>``."""

_HOST = re.compile(
    r"[=#*\-\s]*(?P<label>(?:host(?:name)?|node)\s*[:=]\s*)?"
    r"(?P<host>[A-Za-z0-9][\w.\-]{0,252}?):?[=#*\-\s]*",
    re.IGNORECASE,
)


def host_named(line: str) -> str:
    """The host that a line above a host's output names; empty for other lines."""
    match = _HOST.fullmatch(line)
    if match is None:
        return ""
    is_name = bool(match["label"]) or any(c.isdigit() for c in match["host"])
    return match["host"] if is_name and not match["host"].isdecimal() else ""
