"""Logs that are tables of steps: CSV with a header, JSON lines, or one JSON object of series.

A table has a column ``step`` (``iteration``, ``iter``, ``global_step``) and a column of times
(``step_time``, ``iter_time``, ``iteration_time``, ``duration``), with the suffix ``_ms``, ``_s``,
``_us`` or ``_ns``. Series by iteration have the format of Megatron-LM's tests, with times in
seconds. Values that are not numbers are counted::

    {"iteration-time": {"start_step": 1, "step_interval": 5, "values": {"1": "nan", "5": 17.1}},
     "lm loss": {…}}
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from distprof.bounds import Bound, table_beside
from distprof.ingest.files import Blocks, decoded, refusing
from distprof.ingest.training_logs.grammar import (
    MAX_SECONDS,
    NOTES,
    Grammar,
    Row,
    to_float,
    whole_number,
)

_NAMES = table_beside(__package__, "named_numbers.toml")["columns"]
_STEPS, _TIMES, _UNITS = (_NAMES[of] for of in ("steps", "times", "units"))
_STEP_TRACE = tuple(_NAMES["step_trace"])
_MAX_HEADER = 1 << 16
_MOST_WORDS = 20  # Lines before the header of a table that is pasted with words about it.


class _Columns(NamedTuple):
    step: str
    times: tuple[str, ...]  # They add up to an iteration; the first one must have a value.
    unit_ns: float
    # Column, name and ns in the unit of parts of an iteration.
    timers: tuple[tuple[str, str, float], ...] = ()


def _columns(names: Sequence[Any]) -> _Columns | None:
    """The columns of a table of steps; None if that of steps or those of times are missing."""
    if set(_STEP_TRACE) <= set(names) and "Step" in names:
        around = tuple((name, name, 1e3) for name in (*_STEP_TRACE, *_NAMES["around"]))
        return _Columns("Step", _STEP_TRACE, 1e3, around)
    lower = {str(name).strip().lower().replace("-", "_"): str(name) for name in names[:1_000]}
    plain = {name.rpartition("/")[2]: full for name, full in lower.items()}
    step = next((plain[name] for name in _STEPS if name in plain), None)
    times = [(b + u, ns) for b in _TIMES for u, ns in _UNITS.items() if b + u not in _STEPS]
    time = next((((plain[name],), unit_ns) for name, unit_ns in times if name in plain), None)
    parts = ((full, re.fullmatch(_NAMES["parts"], name)) for name, full in plain.items())
    timers = tuple((full, found[1], _UNITS[found[2]]) for full, found in parts if found)
    return None if step is None or time is None else _Columns(step, *time, timers)


def _is_header(line: bytes) -> bool:
    return b"," in line and _columns(_cells(line)) is not None


class ColumnsGrammar(Grammar):
    """A table of steps, which always comprises the whole file."""

    name: str = "a table of steps"

    def fits(self, start: bytes) -> bool:
        """Whether a file with this beginning is a table of steps."""
        line, *more = start[:_MAX_HEADER].lstrip(b"\xef\xbb\xbf \r\n").split(b"\n")
        if line.startswith(b"{"):
            return _columns(list(_object(line) or ())) is not None
        return any(map(_is_header, (line, *more[:_MOST_WORDS])))

    def read(self, blocks: Blocks) -> None:
        """Read all rows."""
        header: list[str] = []
        found: _Columns | None = None
        lines = (line.strip() for block in blocks for line in block.split(b"\n"))
        for line in filter(None, lines):
            if line.startswith(b"{"):
                entry: Mapping[str, Any] | None = _object(line)
                found = found or (None if entry is None else _columns(list(entry)))
            elif not header:
                header = _cells(line) if _is_header(line) else []
                found = _columns(header)
                continue
            else:
                entry = dict(zip(header, _cells(line), strict=False))
            if entry is None or found is None:
                self.num_unknown += 1
            else:
                self.take_entry(entry, found)
        if found is not None and found.times == _STEP_TRACE:
            self.name = "Ascend's profiler"
        elif found is not None and not any(found.times[0].lower().endswith(u) for u in _UNITS if u):
            self.notes.append(NOTES["column_without_unit"].format(found.times[0]))

    def take_entry(self, entry: Mapping[str, Any], columns: _Columns) -> None:
        """Add a row of a table."""
        times = [_float(entry.get(name)) for name in columns.times]
        ns = sum(time or 0.0 for time in times) * columns.unit_ns
        number = _float(entry.get(columns.step))
        is_known = ns > 0 if columns.times == _STEP_TRACE else number is not None
        if times[0] is None or not is_known or not 0 <= ns < MAX_SECONDS * 1e9:
            self.num_unknown += 1
            return
        loss, rank = (next((_float(entry[n]) for n in names if n in entry), None)
                      for names in (_NAMES["losses"], _NAMES["ranks"]))  # fmt: skip
        row = Row(whole_number(number), round(ns), span=1, loss=loss)
        self.add(row._replace(rank=whole_number(rank, 1 << 31)))
        parts = ((name, (_float(entry.get(full)) or 0) * ns) for full, name, ns in columns.timers)
        self.add_seconds({name: each / 1e9 for name, each in parts if each > 0})


def _cells(line: bytes) -> list[str]:
    text = line.decode("utf-8", "replace").lstrip("\ufeff").replace("\0", "")
    try:
        return [cell.strip() for cell in next(csv.reader(io.StringIO(text)), [])]
    except csv.Error:
        return []


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(value)
    return to_float(text.encode("utf-8", "replace")) if len(text) < 64 else None


# Series by iteration ------------------------------------------------------------------------------

BOUND = Bound(
    reads="series by iteration of a Megatron-LM test",
    num_bytes=64_000_000,
    rows=2_000_000,
    depth=1_000,
)

_SIGNS = (b'"step_interval"', b'"values"')
_SERIES = ("iteration-time", "iteration_timing_avg", "iteration-time-s")


def is_series(start: bytes) -> bool:
    """Whether a JSON file begins like the series that Megatron-LM keeps for its tests."""
    text = start[:4_096].lstrip()
    return text.startswith(b"{") and all(sign in text for sign in _SIGNS)


def read_series(source: str) -> ColumnsGrammar:
    """All iterations; InputError if it is another table, too large or holds no times."""
    found = ColumnsGrammar(name="the series of a Megatron-LM test")
    series = decoded(source, BOUND, dict[str, Any], _refuse)
    if not (times := [name for name in _SERIES if name in series]):
        _refuse(source, f"no {_SERIES[0]!r} among {', '.join(sorted(map(str, series))[:10])}")
    loss = dict(_values(series.get("lm loss") or series.get("lm-loss")))
    for number, value in _values(series[times[0]]):
        entry = {"step": number, "time": value, "loss": loss.get(number)}
        found.take_entry(entry, _Columns("step", ("time",), 1e9))
    if found.num_unknown:
        found.notes.append(f"Skipped values that are not times: {found.num_unknown:,}.")
    return found if found.rows else _refuse(source, "no times")


def _values(series: Any) -> list[tuple[int, float | None]]:
    """Iterations and values, ascending; None for values that are not numbers."""
    values = series.get("values") if isinstance(series, dict) else None
    if isinstance(values, list):
        start, step = series.get("start_step"), series.get("step_interval")
        first = start if isinstance(start, int) and 0 <= start < 1 << 40 else 0
        gap = step if isinstance(step, int) and 0 < step < 1 << 20 else 1
        values = {str(first + gap * i): value for i, value in enumerate(values)}
    if not isinstance(values, dict):
        return []
    numbers = ((key, value) for key, value in values.items() if key.isdecimal() and len(key) < 16)
    return sorted((int(key), _float(value)) for key, value in numbers)


_refuse = refusing(
    expected='series by iteration, {"iteration-time": {"values": {"5": 17.1, …}}, …}',
    fix="write the file again, or check that it is complete",
)
