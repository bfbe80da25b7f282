"""Tables of operators that ``prof.key_averages().table()`` prints, in a file of any name.

Columns have had many names: ``Self CUDA``, ``Self CUDA total``, ``Self XPU``, ``Self device``;
``# of Calls``, ``Number of Calls``. Cells are two or more spaces apart. Rows copied without their
header have the columns that torch prints by default. Functions as cProfile, line_profiler and
``py-spy top`` list them are read as operators of the CPU. Source: pytorch/pytorch,
``torch/autograd/profiler_util.py``; CPython, ``Lib/pstats.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import chain

import msgspec

from distprof.bounds import Bound, patterns_beside, table_beside
from distprof.config import CommunicationConfig
from distprof.ingest.communication import classifier_for, collective_kind
from distprof.ingest.files import beginning, begins_object, refusing, whole
from distprof.ingest.kinds import Source
from distprof.run.evidence import OperatorTable, TableOperator
from distprof.terms import CollectiveKind

MAX_ROWS = 100_000
BOUND = Bound(reads="a table of operators", num_bytes=64_000_000, rows=MAX_ROWS, beyond="refused")
MAX_NAME = 300
_SNIFFED_BYTES = 1 << 16
_PATTERNS = patterns_beside(__package__, "operator_table.toml")
_LIBRARIES = ("nccl", "rccl", "c10d", "oneccl", "hccl", "hcom_")
_LEAST_SHARE = 0.2
"""Percent from which a share that is rounded to a decimal or two shows the total roughly."""
_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}


_refuse = refusing(
    expected="a table as prof.key_averages().table() prints it",
    fix="print it again with row_limit=-1, or write the trace: prof.export_chrome_trace",
)


class _Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of functions or kernels, as the file of layouts explains it."""

    program: str
    header: str
    row: str
    unit: str = "ns"
    device: str = "CUDA"


@cache
def _layouts() -> tuple[tuple[re.Pattern[str], _Layout], ...]:
    """Header of each table of functions or kernels, and its layout."""
    table = table_beside(__package__, "function_tables.toml")
    known = msgspec.convert(table["table"], tuple[_Layout, ...])
    return tuple((re.compile(one.header, re.M), one) for one in known)


@cache
def _columns() -> dict[str, list[str]]:
    """Columns of a table without a header, by their number."""
    columns: dict[str, list[str]] = table_beside(__package__, "operator_table.toml")["columns"]
    return columns


def fits_operator_table(source: str) -> bool:
    """Whether a file holds such a table near its beginning; never raises for other files."""
    data = beginning(source, _SNIFFED_BYTES)
    start = "" if begins_object(data) else data.decode("utf-8", "replace")
    own = (_PATTERNS[name] for name in ("header", "headless"))
    headers = chain(own, (header for header, _ in _layouts()))
    return bool(start) and any(header.search(start) for header in headers)


def read_operator_table(source: str) -> OperatorTable:
    """Read the first table of a file; InputError if it cannot be read or has no row."""
    data = whole(source, BOUND.num_bytes, _refuse)
    text = data.decode("utf-8-sig", "replace").replace("\0", "")
    if not _PATTERNS["header"].search(text):
        for header, layout in _layouts():
            if found := header.search(text):
                return _listed(source, text, found.end(), layout)
    return _operators(source, text.splitlines())


def _listed(source: str, text: str, start: int, layout: _Layout) -> OperatorTable:
    """The table of functions or kernels whose header ends at a position."""
    row = re.compile(layout.row)
    unit, whole_s = _PATTERNS["unit"].search(text), _PATTERNS["whole"].search(text)
    scale = 1e9 * float(unit[1]) if unit else _NS[layout.unit]
    are_kernels = "all" not in row.groupindex
    found: dict[str, TableOperator] = {}
    whole = _Whole()
    for match in filter(None, map(row.fullmatch, text[start:].splitlines())):
        name, printed = match["name"].strip()[:MAX_NAME], match["own"].replace(",", "")
        own = _ns(printed) if are_kernels else None
        own = round(float(printed or 0) * scale) if own is None else own
        whole.take(own, match.groupdict().get("share", ""))
        before = found.get(name) if are_kernels else None
        found[name if are_kernels else str(len(found))] = TableOperator(
            name=name,
            kind=_kind(name),
            num_calls=int(match["calls"].replace(",", "") or are_kernels)
            + (before.num_calls if before else 0),
            self_cpu_ns=0 if are_kernels else own,
            cpu_ns=0 if are_kernels else round(float(match["all"].replace(",", "")) * scale),
            self_device_ns=own + (before.self_device_ns if before else 0) if are_kernels else 0,
            device_ns=own + (before.device_ns if before else 0) if are_kernels else 0,
        )
    if not 0 < len(found) <= MAX_ROWS:
        _refuse(source, f"{len(found):,} readable rows")
    return OperatorTable(
        operators=tuple(found.values()),
        device=layout.device if are_kernels else "",
        self_cpu_ns=round(float(whole_s[1]) * 1e9)
        if whole_s
        else None
        if are_kernels
        else whole.ns,
        self_device_ns=whole.ns if are_kernels else None,
    )


def _operators(source: str, every: Sequence[str]) -> OperatorTable:
    first, lines = "", iter(every)
    last = next((line for line in reversed(every) if line.strip(" -`")), "")
    header: list[str] | None = None
    for line in lines:
        cells = _cells(line)
        if _PATTERNS["header"].match(line):
            header = cells
        elif _PATTERNS["headless"].match(line):
            header = _columns().get(str(len(cells)))
            first = line if header else ""
        if header is not None:
            break
    if header is None:
        _refuse(source, "no header")
    device = next((m[1] for m in map(_PATTERNS["of_device"].fullmatch, header) if m), "")
    operators: list[TableOperator] = []
    whole = {what: _Whole() for what in ("CPU", device)}
    totals: dict[str, int] = {}
    num_broken = 0
    for line in chain([first], lines):
        if total := _PATTERNS["total"].match(line.strip()):
            totals.setdefault(total[1], _ns(total[2].strip()) or 0)
        elif _PATTERNS["header"].match(line):
            break
        elif line.strip(" -") and not totals:
            cells = _cells(line)
            if line is last and len(cells) < len(header):  # cut off, perhaps within its last cell
                cells = [*cells[:-1], *[""] * (len(header) - len(cells)), "0"]
            made = _operator(header, cells, device)
            num_broken += made is None
            if made is not None:
                operators.append(made)
                row = dict(zip(header, cells, strict=True))
                for what, one in whole.items():
                    share = row.get(f"Self {what} %", "").removesuffix("%")
                    one.take(_ns(row.get(f"Self {what}", "")), share)
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
        self_cpu_ns=totals.get("CPU", whole["CPU"].ns),
        self_device_ns=totals.get(device, whole[device].ns),
        notes=tuple(notes),
    )


class _Whole:
    """The time of all rows, by the largest share of a row that is printed."""

    ns: int | None = None
    _share: float = 0.0

    def take(self, own: int | None, share: str) -> None:
        """Add a row, with its share in percent."""
        is_share = own and _PATTERNS["cell"].fullmatch(share) and share.count(".") < 2
        if own and is_share and float(share) > max(self._share, _LEAST_SHARE):
            self._share = float(share)
            self.ns = round(own / self._share * 100)


def _cells(line: str) -> list[str]:
    return _PATTERNS["between"].split(line.strip().removesuffix("</b>"))


def _kind(name: str) -> CollectiveKind:
    verdict = classifier_for(CommunicationConfig()).verdict(name)
    if any(library in name.lower() for library in _LIBRARIES):
        return collective_kind(name) or verdict.kind
    return verdict.kind


def _operator(header: Sequence[str], cells: Sequence[str], device: str) -> TableOperator | None:
    """The operator of a row; None if it is no row of this table."""
    if len(cells) != len(header):
        return None
    row = dict(zip(header, cells, strict=True))
    calls = row.get("# of Calls", row.get("Number of Calls", row.get("Calls", "")))
    self_cpu = _ns(row.get("Self CPU", row.get("Self CPU total", row.get("CPU total", ""))))
    if self_cpu is None or not re.fullmatch(r"\d{1,15}", calls):
        return None
    own = row.get(f"Self {device}", row.get(f"Self {device} total", ""))
    return TableOperator(
        name=row["Name"].removeprefix("<b>")[:MAX_NAME],
        kind=_kind(row["Name"]),
        num_calls=int(calls),
        self_cpu_ns=self_cpu,
        cpu_ns=_ns(row.get("CPU total", "")) or 0,
        self_device_ns=_ns(own) or 0,
        device_ns=_ns(row.get(f"{device or 'CUDA'} total", "")) or 0,
    )


def _ns(text: str) -> int | None:
    found = _PATTERNS["duration"].fullmatch(text)
    return round(float(found[1]) * _NS[found[2]]) if found else None


SOURCES = (
    Source(
        bound=BOUND,
        place=85,
        origin="table of operators",
        name="a table of operators",
        fits=fits_operator_table,
        read=read_operator_table,
    ),
)
