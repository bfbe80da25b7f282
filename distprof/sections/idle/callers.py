"""Operators and ranges that made the calls for which a CPU paused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from distprof.intervals import Intervals, covered, total
from distprof.run.tables import intervals_of
from distprof.schema import Table
from distprof.sections.context import PauseStats
from distprof.sections.idle.cpu_pauses import PauseKind, Pauses

__all__ = ["callers_of"]

WORTH_RATIO = 0.01
"""Share of the windows that calls must leave the GPU idle, so that their callers are searched."""

MOST_CALLS = 2_000
"""Calls of one name that are looked up."""

_INNER = ("aten::_local_scalar_dense", "aten::copy_", "aten::_to_copy", "aten::to", "aten::clone")
"""Operators that others are made of: the one around them says more."""


def callers_of(
    stats: tuple[PauseStats, ...],
    pauses: Pauses,
    inside: Intervals,
    load_host: Callable[[], Table] | None,
) -> tuple[PauseStats, ...]:
    """The statistics with callers, where the calls cost enough.

    Args:
        stats: Pauses by kind and name.
        pauses: The pauses.
        inside: Analysed windows as a set.
        load_host: Reads every host row; None if that is impossible.
    """
    least = WORTH_RATIO * total(inside)
    named = (PauseKind.SYNC.name.lower(), PauseKind.MEMORY.name.lower())
    worth = [one for one in stats if one.kind in named and one.idle_ns >= least > 0]
    if not worth or load_host is None:
        return stats
    host = load_host()
    found = {one.name: _caller(one, pauses, inside, host) for one in worth}
    return tuple(replace(one, caller=found.get(one.name, "")) for one in stats)


def _caller(one: PauseStats, pauses: Pauses, inside: Intervals, host: Table) -> str:
    """The operator, or the named range around it, of most calls of this name."""
    code = pauses.names.index(one.name)
    rows = np.flatnonzero((pauses.name == code) & (pauses.kind == PauseKind[one.kind.upper()]))
    start = pauses.start[rows]
    rows = rows[covered(Intervals(start, start + 1), inside) > 0][:MOST_CALLS]
    operators = np.flatnonzero(host.coded("category").isin(("cpu_op", "annotation")))
    names = host.coded("name")
    begin, end = (times[operators] for times in intervals_of(host))
    order = np.argsort(begin, kind="stable")
    begin, end, operators = begin[order], end[order], operators[order]
    counts: Counter[str] = Counter()
    for low, high in zip(pauses.start[rows].tolist(), pauses.end[rows].tolist(), strict=True):
        last = int(np.searchsorted(begin, low, side="right"))
        near = slice(max(last - 64, 0), last)
        around = np.flatnonzero(end[near] >= high)[::-1] + near.start
        texts = [names.values[names.codes[operators[at]]] for at in around.tolist()]
        counts[_telling(texts)] += 1
    text, _ = counts.most_common(1)[0] if counts else ("", 0)
    return text


def _telling(texts: list[str]) -> str:
    """Of the rows around a call, innermost first, the one that says most."""
    operators = [text for text in texts if text.startswith("aten::")]
    outer = [text for text in operators if text not in _INNER]
    return next(iter(outer or operators or texts), "")
