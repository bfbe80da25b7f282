"""Input readiness by rank over time: a JSON object of columns, as exported by SPDL's dashboards.

::

    {"event_time": ["1754963040", …], "0": ["1", "", "0.61", …], "1": […]}

A value is the share of time in which the rank did not wait for its loader. Missing values are
empty.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.files import beginning, decoded
from distprof.ingest.source import Source
from distprof.run.evidence import InputReadiness

TIME = "event_time"
BOUND = Bound(
    reads="input readiness per rank",
    num_bytes=64_000_000,
    rows=5_000_000,
    names=20_000,
    depth=1_000,
    beyond="refused",
)
_SNIFFED_BYTES = 1 << 16


def fits_input_readiness(source: str) -> bool:
    """Whether a file begins like such columns; never raises for other files."""
    start = beginning(source, _SNIFFED_BYTES, endings=(".json", ".json.gz"))
    return start.lstrip().startswith(b"{") and f'"{TIME}"'.encode() in start[:4_096]


def read_input_readiness(source: str) -> InputReadiness:
    """Read input readiness."""
    columns = decoded(source, BOUND, dict[str, list[Any]], _refuse)
    times = _numbers(columns[TIME])
    ranks = sorted((int(name), name) for name in columns if name.isdecimal() and len(name) < 10)
    if BOUND.names is not None and len(ranks) > BOUND.names:
        _refuse(source, f"{len(ranks):,} ranks, more than {BOUND.names:,}")
    if not ranks or not len(times):
        _refuse(source, "no rank column, or no time column")
    values = [_numbers(columns[name]) for _, name in ranks]
    if any(len(column) != len(times) for column in values):
        _refuse(source, "columns of different lengths")
    ratio = np.array(values, np.float64)
    absurd = (ratio < 0) | (ratio > 1)
    ratio[absurd] = np.nan
    known = np.isfinite(times) & (np.abs(times) < 1e12)
    order = np.argsort(times[known], kind="stable")
    notes = [f"Skipped values outside 0 to 1: {int(absurd.sum()):,}."] * bool(absurd.any())
    if not known.all():
        notes.append(f"Skipped samples without a time: {int((~known).sum()):,}.")
    return InputReadiness(
        time_s=times[known][order].astype(np.int64),
        ranks=tuple(rank for rank, _ in ranks),
        ratio=ratio[:, known][:, order],
        notes=tuple(notes),
    )


def _numbers(values: list[Any]) -> NDArray[np.float64]:
    return np.array([_number(value) for value in values], np.float64)


def _number(value: Any) -> float:
    """The number; NaN if it is missing or not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return float("nan")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return float("nan")
    return number if np.isfinite(number) else float("nan")


def _refuse(source: str, found: str) -> NoReturn:
    raise InputError(
        source,
        expected=f'columns of readiness per rank, {{"{TIME}": […], "0": […], "1": […]}}',
        found=found,
        fix="export the columns again, all with the same length",
    )


SOURCE = Source(
    bound=BOUND,
    place=100,
    origin="table of input readiness",
    name="input readiness per rank",
    fits=fits_input_readiness,
    read=read_input_readiness,
)
