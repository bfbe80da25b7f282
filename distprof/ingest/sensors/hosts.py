"""Find the host of a line in files with the output of several hosts."""

from __future__ import annotations

import re

LABEL = re.compile(r"([A-Za-z0-9][\w.-]{0,80}): ?(?=[#|+<=\w ])")
"""Host name or task number that pdsh, clush and ``srun --label`` put before each line."""

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,80}")
"""Host name between two rules above a block, as ``dshbak`` and ``clush -b`` write it."""

RULE = re.compile(r"-{4,80}")

MARKER = re.compile(r"([A-Za-z0-9][\w.-]{0,80}) \| [A-Z]{2,12}!? (?:\| rc=\d{1,3} )?[>=]>")
"""Line that ansible writes above a block: ``node-1 | CHANGED | rc=0 >>``."""

_HOST = re.compile(
    r"[=#*\-\s]*(?P<label>(?:host(?:name)?|node)\s*[:=]\s*)?"
    r"(?P<host>[A-Za-z0-9][\w.\-]{0,252}?):?[=#*\-\s]*",
    re.IGNORECASE,
)


def host_named(line: str) -> str:
    """The host name in a heading above the output of a host; empty for other lines."""
    match = _HOST.fullmatch(line)
    if match is None:
        return ""
    is_name = bool(match["label"]) or any(c.isdigit() for c in match["host"])
    return match["host"] if is_name and not match["host"].isdecimal() else ""
