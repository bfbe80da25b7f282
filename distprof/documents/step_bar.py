"""The parts of a mean step in six groups, each drawn the same way everywhere."""

from __future__ import annotations

from distprof.sections.parts import parts_of
from distprof.sections.report import Report

GROUPS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("computation", "█", "green", ("computation",)),
    ("exposed transfer", "▓", "blue", ("exposed_transfer",)),
    ("waiting for late ranks", "▒", "red", ("exposed_wait", "exposed_p2p_wait")),
    ("exposed communication", "▞", "blue", ("exposed_comm_unsplit",)),
    ("exposed copies", "▚", "magenta", ("exposed_copy",)),
    ("idle", "░", "yellow", ()),
)
"""Label, character and colour on a terminal, and the parts of the step that belong to the group."""

_IDLE = "idle"


def group_shares(report: Report) -> list[tuple[str, str, str, float]]:
    """Label, character, colour and share of each non-empty group."""
    parts = parts_of(report)
    shares = []
    for label, glyph, style, keys in GROUPS:
        ratio = sum(p.ratio for p in parts if p.key in keys or (not keys and _is_idle(p.key)))
        if ratio > 0:
            shares.append((label, glyph, style, ratio))
    return shares


def group_of(key: str) -> str:
    """A key for the group of a part of the step: the first part in the group, or ``idle``."""
    found = (keys for _, _, _, keys in GROUPS if key in keys)
    return next((first for first, *_ in found), _IDLE)


def _is_idle(key: str) -> bool:
    return key.startswith("idle_")
