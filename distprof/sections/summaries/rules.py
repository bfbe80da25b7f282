"""Rules about summaries."""

from __future__ import annotations

import re
from collections.abc import Iterator

from distprof.bounds import table_beside
from distprof.escape import shorten
from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.summaries import COLLECTIVES, OperatorTableResult, TablePart
from distprof.terms import Severity
from distprof.units import fill, format_duration, format_ratio

_TABLE = table_beside(__package__, "known.toml")["communication"]
_MOST_NAMED = 4
_MAX_NAME = 50
_FEW = 0.05


@rule(
    "COM126",
    Severity.WARNING,
    costs_time=False,
    share=Limit(0.3, "share of the GPU's time that collectives may take"),
)
def communication_by_operator_table(table: OperatorTableResult, limits: Limits) -> Iterator[Draft]:
    """A table of operators (`prof.key_averages().table()`) in which collectives take a large part
    of the GPU's time.
    """
    parts = [part for part in table.parts if part.kind in COLLECTIVES]
    share = sum(part.ratio for part in parts)
    if not parts or share <= limits["share"]:
        return
    part = _said(parts[0]) + " and others" * (len(parts) > 1)
    message = fill(_TABLE["part"], part=part, whole=table.self_device_ns)
    gathers = any(part.kind in ("all_gather", "reduce_scatter") for part in parts)
    fix = _TABLE["trace"] + _TABLE["sharded"] * gathers
    is_whole = all(part.num_calls or part.ratio < _FEW for part in table.parts)
    if is_whole and all(row.kind in COLLECTIVES and row.num_calls for row in table.rows):
        message = f"No row is computation. Means of a call: {_means(table)}. "
        fix = _TABLE["kernels"]
    yield Draft(
        headline=f"Collectives take {format_ratio(share)} of the GPU's time",
        message=message + _TABLE["overlap"],
        fix=fix,
        evidence=("operator_table.parts",),
    )


def _means(table: OperatorTableResult) -> str:
    """Time of a call of each kernel of communication that takes long."""
    rows = [row for row in table.rows if row.kind in COLLECTIVES and row.num_calls][:_MOST_NAMED]
    names = (re.split("[(<]", row.name.removeprefix("void "))[0] for row in rows)
    means = (format_duration(row.self_device_ns / row.num_calls) for row in rows)
    return ", ".join(f"{shorten(n, _MAX_NAME)} {m}" for n, m in zip(names, means, strict=True))


def _said(part: TablePart) -> str:
    calls = part.num_calls or 0
    each = f" in {calls:,} calls of {format_duration(part.device_ns / calls)}" if calls > 1 else ""
    return f"{part.kind} {format_duration(part.device_ns)}{each}"
