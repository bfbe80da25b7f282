"""Tables of collectives by rank, process group and size, as TraceLens writes them: a CSV file.

Columns ``rank``, ``Process Group Name``, ``Collective name``, ``dtype``, ``In msg nelems``, ``Out
msg nelems``, ``dur_mean`` (microseconds) and ``operation_count``; others are not needed.

HTA's table of kernels is read as well (``TraceAnalysis.get_gpu_kernel_breakdown()[1].to_csv(…)``):
``name``, ``kernel_type``, ``rank``, ``sum (ns)`` and ``mean (ns)``, or both in ``us``. Its
communication rows have no group and no size, so each kernel is a class. Source:
facebookresearch/HolisticTraceAnalysis, ``hta/analyzers/breakdown_analysis.py``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import NoReturn

import numpy as np

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.communication import collective_kind
from distprof.ingest.files import beginning, whole
from distprof.ingest.metadata import parse_ranks
from distprof.ingest.source import Source
from distprof.run.evidence import CollectiveSummary, SummaryClass

COLUMNS = ("rank", "Collective name", "dur_mean", "operation_count")
_HTA_COLUMNS = {"name", "kernel_type", "rank"}
_UNITS = {"sum (ns)": 1.0, "sum (us)": 1e3}

_NO_GROUPS = (
    "The table names no process groups: distprof compares ranks as if every collective ran across "
    "all of them."
)
_FOLDED = "others"  # kernels that HTA combined
BOUND = Bound(
    reads="a table of collectives per rank", num_bytes=128_000_000, rows=500_000, beyond="refused"
)
MAX_MICROSECONDS = 1e12
_SNIFFED_BYTES = 1 << 14
_LARGEST = 1 << 53
_ITEM_BYTES = {
    "float": 4, "float32": 4, "half": 2, "float16": 2, "bfloat16": 2, "double": 8, "float64": 8,
    "int": 4, "int32": 4, "long": 8, "int64": 8, "byte": 1, "uint8": 1, "char": 1, "int8": 1,
    "bool": 1, "short": 2, "int16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


def fits_collective_summary(source: str) -> bool:
    """Whether a file begins like such a table; never raises for other files."""
    start = beginning(source, _SNIFFED_BYTES, endings=(".csv", ".csv.gz"))
    header = start.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace")
    cells = {cell.strip().strip('"') for cell in header.split(",")}
    return set(COLUMNS) <= cells or (cells >= _HTA_COLUMNS and bool(cells & _UNITS.keys()))


def read_collective_summary(source: str) -> CollectiveSummary:
    """Read a table of collectives by rank."""
    classes: dict[SummaryClass, int] = {}
    rows: list[tuple[int, int, int, int]] = []
    num_broken = 0
    has_groups = True
    for entry in _entries(source):
        if entry.keys() >= _HTA_COLUMNS:
            has_groups = False
            if entry["kernel_type"] != "COMMUNICATION" or entry["name"] == _FOLDED:
                continue
            row = _row_of_hta(entry, classes)
        else:
            row = _row(entry, classes)
        if row is None:
            num_broken += 1
            continue
        if len(rows) == BOUND.rows:
            _refuse(source, f"more than {BOUND.rows:,} rows")
        rows.append(row)
    if not rows:
        _refuse(source, f"no readable row, {num_broken:,} unreadable rows")
    table = np.array(rows, np.int64)
    notes = [f"Unreadable rows, skipped: {num_broken:,}."] if num_broken else []
    notes += [] if has_groups else [_NO_GROUPS]
    return CollectiveSummary(
        classes=tuple(classes),
        class_index=table[:, 0],
        rank=table[:, 1],
        num_calls=table[:, 2],
        mean_ns=table[:, 3],
        notes=tuple(notes),
    )


def _entries(source: str) -> Iterator[Mapping[str, str]]:
    data = whole(source, BOUND.num_bytes, _refuse)
    text = data.decode("utf-8-sig", "replace").replace("\0", "")
    try:
        yield from csv.DictReader(io.StringIO(text), restval="")
    except csv.Error as error:
        _refuse(source, f"{error}")


def _row(
    entry: Mapping[str, str], classes: dict[SummaryClass, int]
) -> tuple[int, int, int, int] | None:
    rank, calls = _whole(entry.get("rank")), _whole(entry.get("operation_count"))
    mean = _number(entry.get("dur_mean"))
    if rank is None or not calls or mean is None or not 0 <= mean < MAX_MICROSECONDS:
        return None
    item = _ITEM_BYTES.get((entry.get("dtype") or "").lower())
    sizes = (_whole(entry.get(name)) for name in ("In msg nelems", "Out msg nelems"))
    known = [size for size in sizes if size is not None]  # the full buffer is the larger
    made = SummaryClass(
        group=entry.get("Process Group Name") or "",
        ranks=parse_ranks(entry.get("Process Group Ranks")),
        kind=collective_kind((entry.get("Collective name") or "")[:200]),
        dtype=entry.get("dtype") or "",
        num_bytes=max(known) * item if known and item is not None else None,
    )
    return classes.setdefault(made, len(classes)), rank, calls, round(mean * 1e3)


def _row_of_hta(
    entry: Mapping[str, str], classes: dict[SummaryClass, int]
) -> tuple[int, int, int, int] | None:
    unit = next((unit for unit in _UNITS if unit in entry), "")
    rank, spent = _whole(entry.get("rank")), _number(entry.get(unit))
    mean = _number(entry.get(unit.replace("sum", "mean")))
    if rank is None or not spent or not mean or mean <= 0 or spent < mean:
        return None
    mean_ns = mean * _UNITS[unit]
    if mean_ns >= MAX_MICROSECONDS * 1e3 or spent / mean >= _LARGEST:
        return None
    name = (entry.get("name") or "")[:200]
    made = SummaryClass(group=name, ranks=(), kind=collective_kind(name), dtype="", num_bytes=None)
    return classes.setdefault(made, len(classes)), rank, round(spent / mean), round(mean_ns)


def _whole(text: str | None) -> int | None:
    value = _number(text)
    return int(value) if value is not None and 0 <= value < _LARGEST else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _refuse(source: str, found: str) -> NoReturn:
    raise InputError(
        source,
        expected=f"a CSV table of collectives per rank, with the columns {', '.join(COLUMNS)}",
        found=found,
        fix="write the table again, for example with TraceLens' NCCL analysis",
    )


SOURCE = Source(
    bound=BOUND,
    place=90,
    origin="table of collectives",
    name="a table of collectives per rank",
    fits=fits_collective_summary,
    read=read_collective_summary,
)
