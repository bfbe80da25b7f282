"""All measurements of one rank alone: the parts that subjects declare.

A part ``x`` is made by the function ``rank_x`` in the ``measure`` module of any subject. Its
parameters name what it needs: other parts, or given inputs (:func:`_given`). The fields of
:class:`~distprof.sections.context.RankAnalysis` are the parts that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from distprof.intervals import EMPTY, Intervals
from distprof.run.tables import RankTables
from distprof.schema import Table
from distprof.sections.context import RankAnalysis, RankContext
from distprof.sections.engine import WiringError, declared_functions
from distprof.terms import ActivityKind

_PREFIX = "rank_"


def measure_rank(
    tables: RankTables, context: RankContext, load_host: Callable[[], Table] | None = None
) -> RankAnalysis:
    """Measure one rank inside its windows.

    Pure: the same tables and context give the same analysis. Linear in the rows, except for sorting
    them; each window adds only a search. ``load_host`` reads every operator; None if it cannot.

    Raises:
        ValueError: If the context does not fit the tables.
    """
    rows = len(tables.collectives)
    if len(context.wait_end_ns) != rows or len(context.axis) != rows:
        raise ValueError(f"rank {context.rank}: the context does not fit its {rows} collectives")
    start, end = context.windows
    if len(context.steps) != len(start):
        raise ValueError(f"rank {context.rank}: {len(context.steps)} steps, {len(start)} windows")
    if (end < start).any() or (start[1:] < end[:-1]).any():
        raise ValueError(f"rank {context.rank}: windows must be in order and disjoint")
    parts = _given(tables, context, load_host)
    return RankAnalysis(**{name: _made(name, parts, ()) for name in RankAnalysis.__struct_fields__})


@cache
def rank_parts() -> Mapping[str, Callable[..., Any]]:
    """Functions that measure one rank alone, by the name of the part that they make."""
    return declared_functions(_PREFIX)


def _given(
    tables: RankTables, context: RankContext, load_host: Callable[[], Table] | None = None
) -> dict[str, Any]:
    """Inputs of parts in addition to other parts."""
    return {
        "load_host": load_host,
        "tables": tables,
        "activity": tables.activity,
        "collectives": tables.collectives,
        "context": context,
        "rank": context.rank,
        "is_cpu": context.is_cpu,
        "windows": context.windows,
        "window_start_ns": context.windows.start,
        "window_end_ns": context.windows.end,
        "wait_end_ns": context.wait_end_ns,
        "row_axis": context.axis,
        "row_axis_names": context.axis_names,
    }


def _made(name: str, parts: dict[str, Any], above: tuple[str, ...]) -> Any:
    """A part; all parts made on the way are added to ``parts``."""
    if name not in parts:
        make = rank_parts().get(name)
        if make is None or name in above:
            chain = " for ".join(reversed((*above, name)))
            raise WiringError(f"no subject has a function {_PREFIX}{name} to make {chain}")
        needs = make.__code__.co_varnames[: make.__code__.co_argcount]
        parts[name] = make(**{need: _made(need, parts, (*above, name)) for need in needs})
    return parts[name]


def capture_window(activity: Table) -> Intervals:
    """The whole capture as one window: the span of the GPU's activities."""
    rows = activity["kind"] != ActivityKind.ANNOTATION
    if not rows.any():
        return EMPTY
    start, end = activity["start_ns"], activity["end_ns"]
    return Intervals.of((int(start[rows].min()), int(end[rows].max())))
