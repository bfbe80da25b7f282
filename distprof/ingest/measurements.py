"""Measurements of a job at several sizes: a table of rank counts and times, as CSV or JSON.

From such a table, distprof analyses a job that was timed by other means as a sweep. Each row is one
measurement. Rows with the same number of ranks are repeats::

    ranks,step_ms
    1,812
    2,421
    2,425
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distprof.artefacts.summary_file import Fingerprint, SummaryFile
from distprof.bounds import Bound, read_plain
from distprof.errors import InputError
from distprof.units import NS_PER_MS, NS_PER_S, NS_PER_US
from distprof.version import __version__

BOUND = Bound(reads="a table of step times by ranks", num_bytes=1 << 24, rows=100_000)
_RANKS = ("ranks", "n", "gpus", "num_gpus", "num_ranks", "world_size", "workers", "processes", "np")
_TIMES: dict[str, float] = {  # names of columns, and the length of their unit in ns
    **dict.fromkeys(("step_ns", "time_ns"), 1),
    **dict.fromkeys(("step_us", "time_us"), NS_PER_US),
    **dict.fromkeys(("step_ms", "time_ms", "ms"), NS_PER_MS),
    **dict.fromkeys(("step_s", "time_s", "step_time", "time", "seconds", "t"), NS_PER_S),
}
_RATES = {
    **dict.fromkeys(("throughput", "samples_per_s", "images_per_s"), "samples"),
    "samples_per_second": "samples",
    **dict.fromkeys(("tokens_per_s", "tokens_per_second", "tps"), "tokens"),
}
_WORK = {
    "tokens_per_step": "tokens_per_step",
    **dict.fromkeys(("samples_per_step", "batch", "global_batch"), "samples_per_step"),
}
_MOST = 1e18  # ranks, work and step time in ns, so each fits 64 bits

_EXPECTED = (
    "a table with a header: ranks, and step_ms, step_s or tokens_per_s (CSV), or a list of such "
    "objects (JSON)"
)


def fits_measurements(source: str) -> bool:
    """Whether a file is such a table; never raises for other files."""
    try:
        text = _text(Path(source))
        if text.lstrip()[:1] in ("[", "{"):
            names = {_plain(name) for row in _of_json(text, 1) for name in row}
        else:  # even of a table without rows
            head = next((line for line in text.splitlines() if line.strip() and line[0] != "#"), "")
            names = {_plain(name) for name in re.split("[,;\t]", head)}
    except (OSError, ValueError, RecursionError):
        return False
    return bool(names & set(_RANKS)) and bool(names & {*_TIMES, *_RATES})


def read_measurements(source: str) -> tuple[SummaryFile, ...]:
    """One summary per row, in the order of the table.

    A rate without a batch size becomes the time of one unit of work per rank. A value that is not a
    positive number is refused, with its row.
    """
    path = Path(source)
    try:
        text, most = _text(path), BOUND.rows or 0
        is_json = text.lstrip()[:1] in ("[", "{")
        rows = _of_json(text, most) if is_json else _of_csv(text, most)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(source, expected=_EXPECTED, found=str(error)) from error
    if not rows:
        raise InputError(source, expected=_EXPECTED, found="a table without rows")
    created_ns = path.stat().st_mtime_ns
    return tuple(
        _summary(source, number, row, created_ns) for number, row in enumerate(rows, start=1)
    )


def _text(path: Path) -> str:
    return read_plain(path, BOUND.num_bytes).decode("utf-8-sig")


def _of_json(text: str, most: int) -> list[Mapping[str, Any]]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError:  # JSON Lines
        rows = [json.loads(line) for line in text.splitlines()[:most] if line.strip()]
    rows = rows if isinstance(rows, list) else [rows]
    if not all(isinstance(row, dict) for row in rows[:most]):
        raise ValueError("a list of something other than objects")
    return rows[:most]


def _of_csv(text: str, most: int) -> list[Mapping[str, Any]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    separator = max(",;\t", key=lines[0].count) if lines else ","
    if not lines or separator not in lines[0]:
        raise ValueError("no columns")
    reader = csv.DictReader(io.StringIO("\n".join(lines[: most + 1])), delimiter=separator)
    try:
        return [{str(key): value for key, value in row.items()} for row in reader]
    except csv.Error as error:  # a cell of more than 128 kB
        raise ValueError(str(error)) from error


def _plain(name: str) -> str:
    """A column's name in a uniform spelling: ``Step (ms)`` becomes ``step_ms``."""
    kept = "".join(letter if letter.isalnum() else " " for letter in name.lower())
    return "_".join(kept.split())


def _summary(source: str, number: int, row: Mapping[str, Any], created_ns: int) -> SummaryFile:
    values = {_plain(name): value for name, value in row.items()}
    ranks_name = next((name for name in _RANKS if name in values), None)
    if ranks_name is None:
        raise _columns(source, values)
    ranks = _number(source, number, ranks_name, values[ranks_name])
    if ranks != int(ranks):
        raise _wrong(source, number, ranks_name, values[ranks_name])
    work = {
        field: _number(source, number, name, values[name])
        for name, field in _WORK.items()
        if values.get(name) not in (None, "")
    }
    step_ns = _step_ns(source, number, values, ranks, work)
    if step_ns >= _MOST:
        raise InputError(
            source,
            expected=f"a step of less than {_MOST / NS_PER_S:.0e} s in row {number}",
            found=f"{step_ns / NS_PER_S:.3g} s",
            fix="check the units: step_s is in seconds, step_ms in milliseconds",
        )
    return SummaryFile(
        distprof_version=__version__,
        source=source,
        label=str(values.get("label") or f"row {number}"),
        created_ns=created_ns,
        fingerprint=Fingerprint(world_size=int(ranks)),
        step_ns=(max(1, round(step_ns)),),
        tokens_per_step=work.get("tokens_per_step"),
        samples_per_step=work.get("samples_per_step"),
    )


def _step_ns(
    source: str, number: int, values: Mapping[str, Any], ranks: float, work: dict[str, float]
) -> float:
    """The time of a step; a rate without a batch size counts one unit of work per rank."""
    time_name = next((name for name in _TIMES if name in values), None)
    if time_name is not None:
        return _number(source, number, time_name, values[time_name]) * _TIMES[time_name]
    rate_name = next((name for name in _RATES if name in values), None)
    if rate_name is None:
        raise _columns(source, values)
    done = work.setdefault(f"{_RATES[rate_name]}_per_step", ranks)
    return done * NS_PER_S / _number(source, number, rate_name, values[rate_name])


def _columns(source: str, values: Mapping[str, Any]) -> InputError:
    return InputError(source, expected=_EXPECTED, found=f"columns {', '.join(values)}")


def _number(source: str, number: int, name: str, value: Any) -> float:
    try:
        parsed = float(value)
    except (TypeError, ValueError, OverflowError):  # an integer too large for a float
        parsed = math.nan
    if not 0 < parsed < _MOST:
        raise _wrong(source, number, name, value)
    return parsed


def _wrong(source: str, number: int, name: str, value: Any) -> InputError:
    whole = "whole " if name in _RANKS else ""
    return InputError(
        source,
        expected=f"a positive {whole}number in {name} of row {number}, below {_MOST:.0e}",
        found=repr(value),
        fix="leave out rows that were not measured",
    )
