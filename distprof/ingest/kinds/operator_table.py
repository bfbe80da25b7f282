"""Tables of operators that ``prof.key_averages().table()`` prints, in a file of any name.

Columns have had many names: ``Self CUDA``, ``Self CUDA total``, ``Self XPU``, ``Self device``;
``# of Calls``, ``Number of Calls``. Cells are two or more spaces apart. Source: pytorch/pytorch,
``torch/autograd/profiler_util.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.communication import collective_kind
from distprof.ingest.files import beginning, whole
from distprof.ingest.source import Source
from distprof.run.evidence import OperatorTable, TableOperator
from distprof.terms import CollectiveKind

MAX_ROWS = 100_000
BOUND = Bound(reads="a table of operators", num_bytes=64_000_000, rows=MAX_ROWS, beyond="refused")
MAX_NAME = 300
_SNIFFED_BYTES = 1 << 16
_BETWEEN = re.compile(r"\s{2,}")
_HEADER = re.compile(r"^\s*Name\s{2,}.*\bSelf CPU.*\s{2}(?:# of Calls|Number of Calls)\b", re.M)
_OF_DEVICE = re.compile(r"Self (?!CPU\b)(\w+)(?: total)?")
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s?(ns|us|µs|ms|s)")
_TOTAL = re.compile(r"^Self (\w+) time total:\s*(\S.{0,40})$")
_LIBRARIES = ("nccl", "rccl", "c10d", "oneccl", "hccl")
_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}


def fits_operator_table(source: str) -> bool:
    """Whether a file holds such a table near its beginning; never raises for other files."""
    return bool(_HEADER.search(beginning(source, _SNIFFED_BYTES).decode("utf-8", "replace")))


def read_operator_table(source: str) -> OperatorTable:
    """Read the first table of a file."""
    text = whole(source, BOUND.num_bytes, _refuse).decode("utf-8-sig", "replace")
    lines = iter(text.replace("\0", "").splitlines())
    header = next((_cells(line) for line in lines if _HEADER.match(line)), None)
    if header is None:
        _refuse(source, "no header")
    device = next((m[1] for m in map(_OF_DEVICE.fullmatch, header) if m), "")
    operators: list[TableOperator] = []
    totals: dict[str, int] = {}
    num_broken = 0
    for line in lines:
        if total := _TOTAL.match(line.strip()):
            totals.setdefault(total[1], _ns(total[2].strip()) or 0)
        elif _HEADER.match(line):
            break
        elif line.strip(" -") and not totals:
            made = _operator(header, _cells(line), device)
            num_broken += made is None
            if made is not None:
                operators.append(made)
            if len(operators) > MAX_ROWS:
                _refuse(source, f"more than {MAX_ROWS:,} rows")
    if not operators:
        _refuse(source, f"no readable row, {num_broken:,} unreadable rows")
    notes = [f"Unreadable rows, skipped: {num_broken:,}."] if num_broken else []
    if not device and any(re.fullmatch(r"(?!CPU)\w+ total", name) for name in header):
        notes.append("The table has no own times of the GPU (PyTorch before 1.7).")
    return OperatorTable(
        operators=tuple(operators),
        device=device,
        self_cpu_ns=totals.get("CPU"),
        self_device_ns=totals.get(device),
        notes=tuple(notes),
    )


def _cells(line: str) -> list[str]:
    return _BETWEEN.split(line.strip())


def _operator(header: Sequence[str], cells: Sequence[str], device: str) -> TableOperator | None:
    """The operator of a row; None if it is no row of this table."""
    if len(cells) != len(header):
        return None
    row = dict(zip(header, cells, strict=True))
    calls = row.get("# of Calls", row.get("Number of Calls", ""))
    self_cpu = _ns(row.get("Self CPU", row.get("Self CPU total", "")))
    if self_cpu is None or not re.fullmatch(r"\d{1,15}", calls):
        return None
    name = row["Name"]
    is_collective = any(library in name.lower() for library in _LIBRARIES)
    own = row.get(f"Self {device}", row.get(f"Self {device} total", ""))
    return TableOperator(
        name=name[:MAX_NAME],
        kind=collective_kind(name) if is_collective else CollectiveKind.UNKNOWN,
        num_calls=int(calls),
        self_cpu_ns=self_cpu,
        cpu_ns=_ns(row.get("CPU total", "")) or 0,
        self_device_ns=_ns(own) or 0,
        device_ns=_ns(row.get(f"{device} total", "")) or 0,
    )


def _ns(text: str) -> int | None:
    found = _DURATION.fullmatch(text)
    return round(float(found[1]) * _NS[found[2]]) if found else None


def _refuse(source: str, found: str) -> NoReturn:
    raise InputError(
        source,
        expected="a table as prof.key_averages().table() prints it",
        found=found,
        fix="print it again with row_limit=-1, or write the trace: prof.export_chrome_trace",
    )


SOURCE = Source(
    bound=BOUND,
    place=85,
    origin="table of operators",
    name="a table of operators",
    fits=fits_operator_table,
    read=read_operator_table,
)
