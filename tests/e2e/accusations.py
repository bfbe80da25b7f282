"""Whom a report accuses, and whether that is what a fault did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = [
    "ACCUSING",
    "Fault",
    "accusations",
    "is_first",
    "is_named",
    "is_rightly_explained",
    "others_accused",
]

Finding = dict[str, Any]

ACCUSING = (
    *("STR101", "STR102", "STR103", "STR104", "STR112"),
    *("INP101", "INP102", "HST103", "PIP101", "MOE101"),
)
"""Rules that say who is to blame: a rank, a stage, or an expert."""

_EXPLAINED_BY = {
    "slow-rank": ("It runs the same kernels slower", "on each micro-batch"),
    # blocks that sleep longer, instead of computing more, look like a slow device
    "stage-skew": ("on each micro-batch", "It runs the same kernels slower"),
    "slow-host": ("Its CPU launches late", "holds messages up"),
    "sleep-rank": ("Its CPU launches late", "holds messages up"),
    "late-input": ("Its input arrives late", "for input", "waits for data"),
    "gc-pause": ("garbage collector",),
    "routing-skew": ("tokens of the mean expert",),
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What was injected.

    Args:
        kind: As in ``--fault KIND=TARGET:AMOUNT``.
        target: Rank, stage or expert.
        amount: As typed.
        ranks: Ranks that are struck; none for an expert, which ranks only hold.
    """

    kind: str
    target: int
    amount: float
    ranks: tuple[int, ...] = ()

    @property
    def option(self) -> str:
        """For the command line."""
        return f"{self.kind}={self.target}:{self.amount:g}"


def accusations(report: dict[str, Any]) -> list[Finding]:
    """Findings that say who is to blame."""
    return [finding for finding in report["findings"] if finding["code"] in ACCUSING]


def is_named(report: dict[str, Any], fault: Fault) -> bool:
    """Whether a finding names the struck rank, stage or expert, and no other with it."""
    return bool(_right(report, fault))


def is_rightly_explained(report: dict[str, Any], fault: Fault) -> bool:
    """Whether such a finding also says what is wrong with it."""
    words = _EXPLAINED_BY[fault.kind]
    said = [f"{found['headline']} {found['message']}" for found in _right(report, fault)]
    return any(word in one for one in said for word in words)


def is_first(report: dict[str, Any], fault: Fault) -> bool:
    """Whether the first finding names it: the verdict."""
    return report["findings"][:1] == _right(report, fault)[:1] != []


def others_accused(report: dict[str, Any], fault: Fault | None) -> list[Finding]:
    """Accusations of any other rank; in a healthy job (no fault) all of them.

    An overloaded expert makes ranks that hold it late: naming one of them is correct.
    """
    if fault is None:
        return accusations(report)
    right = _right(report, fault)
    if fault.kind == "routing-skew":
        return [f for f in accusations(report) if f["code"] == "MOE101" and f not in right]
    return [found for found in accusations(report) if found not in right]


def _right(report: dict[str, Any], fault: Fault) -> list[Finding]:
    if fault.kind == "routing-skew":
        start = f"Expert {fault.target} "
        return [f for f in accusations(report) if f["headline"].startswith(start)]
    return [f for f in accusations(report) if tuple(f["ranks"]) == fault.ranks]
