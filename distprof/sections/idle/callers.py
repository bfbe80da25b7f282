"""Operators and ranges for which a CPU paused: they made the call, or ran in the meantime."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from distprof.intervals import Intervals, covered, intersect, total, union
from distprof.run.tables import distinct, intervals_of
from distprof.schema import Int64Array, Table
from distprof.sections.context import PauseStats
from distprof.sections.idle.cpu_pauses import PauseKind, Pauses
from distprof.sections.idle.result import COMPILES

WORTH_RATIO = 0.01
"""Share of the windows that calls must leave the GPU idle, so that their callers are searched."""

MOST_CALLS = 2_000
"""Calls of one name that are looked up."""

LEAST_NS = 500_000
"""A shorter operator explains no pause."""

MOSTLY = 0.6
"""Share of the pauses that an operator must cover, and of its own time that must be pauses."""

_COMPILES = re.compile(r"^(entire_(frame|backward)_compile|_?compile|compile_attempt|dynamo\b)")

_INNER = ("aten::_local_scalar_dense", "aten::copy_", "aten::_to_copy", "aten::to", "aten::clone")
"""Operators that others are made of: the one around them says more."""


def callers_of(
    stats: tuple[PauseStats, ...],
    pauses: Pauses,
    inside: Intervals,
    load_host: Callable[[], Table] | None,
) -> tuple[PauseStats, ...]:
    """The statistics with callers, where the calls cost enough and host rows can be read again."""
    least = WORTH_RATIO * total(inside)
    worth = [one for one in stats if one.kind in _SEARCHES and one.idle_ns >= least > 0]
    if not worth or load_host is None:
        return stats
    host = load_host()
    found = {one.name: _SEARCHES[one.kind](*_spans(one, pauses, inside), host) for one in worth}
    return tuple(replace(one, caller=found.get(one.name, "")) for one in stats)


def _spans(one: PauseStats, pauses: Pauses, inside: Intervals) -> tuple[Int64Array, Int64Array]:
    """Start and end of the pauses of this name inside the windows."""
    code = pauses.names.index(one.name)
    rows = np.flatnonzero((pauses.name == code) & (pauses.kind == PauseKind[one.kind.upper()]))
    start = pauses.start[rows]
    rows = rows[covered(Intervals(start, start + 1), inside) > 0][:MOST_CALLS]
    return pauses.start[rows], pauses.end[rows]


def _caller(start: Int64Array, end: Int64Array, host: Table) -> str:
    """The operator, or the named range around it, of most of these calls."""
    operators = np.flatnonzero(host.coded("category").isin(("cpu_op", "annotation")))
    names = host.coded("name")
    begin, finish = (times[operators] for times in intervals_of(host))
    order = np.argsort(begin, kind="stable")
    begin, finish, operators = begin[order], finish[order], operators[order]
    counts: Counter[str] = Counter()
    for low, high in zip(start.tolist(), end.tolist(), strict=True):
        last = int(np.searchsorted(begin, low, side="right"))
        near = slice(max(last - 64, 0), last)
        around = np.flatnonzero(finish[near] >= high)[::-1] + near.start
        texts = [names.values[names.codes[operators[at]]] for at in around.tolist()]
        counts[_telling(texts)] += 1
    text, _ = counts.most_common(1)[0] if counts else ("", 0)
    return text


def _operator(start: Int64Array, end: Int64Array, host: Table) -> str:
    """The operator that runs for most of these pauses: the innermost one of those that do."""
    silent = union(Intervals(start, end))
    rows = np.flatnonzero(host.coded("category").equals("cpu_op"))
    begin, finish = (times[rows] for times in intervals_of(host))
    long = np.flatnonzero(finish - begin >= LEAST_NS)
    rows, spans = rows[long], Intervals(begin[long], finish[long])
    names = host.coded("name")
    codes, shared = names.codes[rows], covered(spans, silent)
    times: dict[str, int] = {}
    for code in distinct(codes).tolist():
        text = names.values[code]
        is_own = (codes == code) & (shared >= MOSTLY * (spans.end - spans.start))
        chosen = union(Intervals(spans.start[is_own], spans.end[is_own]))
        what = COMPILES if _COMPILES.search(text) else text
        times[what] = max(times.get(what, 0), total(intersect(chosen, silent)))
    mostly = [text for text, ns in times.items() if ns >= MOSTLY * total(silent)]
    if COMPILES in mostly:  # its phases are operators, too
        return COMPILES
    return min(mostly, key=times.__getitem__, default="")


_SEARCHES = {"sync": _caller, "memory": _caller, "python": _operator}
"""How to name what made the pauses of a kind."""


def _telling(texts: list[str]) -> str:
    """Of the rows around a call, innermost first, the one that says most."""
    operators = [text for text in texts if text.startswith("aten::")]
    outer = [text for text in operators if text not in _INNER]
    return next(iter(outer or operators or texts), "")
