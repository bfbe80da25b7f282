"""Kernels that got slower, faster, appeared or vanished."""

from __future__ import annotations

from distprof.analyzers.comparison.result import KernelChange, State
from distprof.analyzers.kernels import KernelRow, KernelsResult

__all__ = ["compare_kernels", "state_of"]

ALIKE_RATIO = 0.02
"""Times that differ by less than this count as alike."""
_REST = "other"


def compare_kernels(
    first: KernelsResult, second: KernelsResult, windows: tuple[int, int]
) -> tuple[KernelChange, ...]:
    """Every kernel of either table, largest change first.

    Args:
        first: Kernel table of one run.
        second: Of the other.
        windows: Ranks times steps that each table adds up.
    """
    mine, theirs = _by_name(first), _by_name(second)
    folded = _is_folded(first), _is_folded(second)
    changes = [
        _change(key, mine.get(key), theirs.get(key), windows, folded)
        for key in dict.fromkeys((*mine, *theirs))
    ]
    return tuple(sorted(changes, key=lambda change: (-abs(change.change_ns), change.name)))


def state_of(first_ns: float | None, second_ns: float | None) -> State:
    """What became of something that takes time; None where it is not there."""
    if first_ns is None:
        return "appeared"
    if second_ns is None:
        return "vanished"
    if abs(second_ns - first_ns) <= ALIKE_RATIO * first_ns:
        return "alike"
    return "slower" if second_ns > first_ns else "faster"


def _by_name(table: KernelsResult) -> dict[tuple[str, str], KernelRow]:
    return {(row.kind, row.name): row for row in table.kernels if row.kind != _REST}


def _is_folded(table: KernelsResult) -> bool:
    return any(row.kind == _REST for row in table.kernels)


def _change(
    key: tuple[str, str],
    mine: KernelRow | None,
    theirs: KernelRow | None,
    windows: tuple[int, int],
    folded: tuple[bool, bool],
) -> KernelChange:
    kind, name = key
    first_ns = mine.total_ns // max(1, windows[0]) if mine else None
    second_ns = theirs.total_ns // max(1, windows[1]) if theirs else None
    unlisted = (mine is None and folded[0]) or (theirs is None and folded[1])
    return KernelChange(
        name=name,
        kind=kind,
        state="unlisted" if unlisted else state_of(first_ns, second_ns),
        first_ns=first_ns,
        second_ns=second_ns,
        first_count=mine.count / max(1, windows[0]) if mine else None,
        second_count=theirs.count / max(1, windows[1]) if theirs else None,
        first_median_ns=mine.median_ns if mine else None,
        second_median_ns=theirs.median_ns if theirs else None,
        change_ns=0 if unlisted else (second_ns or 0) - (first_ns or 0),
    )
