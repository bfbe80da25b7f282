"""Tables of operators that ``prof.key_averages().table()`` prints, in a file of any name.

Columns have had many names: ``Self CUDA``, ``Self CUDA total``, ``Self XPU``, ``Self device``;
``# of Calls``, ``Number of Calls``. These names and what values look like distinguish them,
because people paste them with tabs, in Markdown, wrapped, or with single spaces. Rows copied
without their header have the columns that torch prints by default. Functions as cProfile,
line_profiler and ``py-spy top`` list them are read as operators of the CPU. Source:
pytorch/pytorch, ``torch/autograd/profiler_util.py``; CPython, ``Lib/pstats.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, reduce
from itertools import chain, dropwhile, product, takewhile
from math import isclose

import msgspec

from distprof.artefacts.record import grouped
from distprof.bounds import Bound, patterns_beside, table_beside
from distprof.config import CommunicationConfig
from distprof.errors import InputError
from distprof.ingest.communication import classifier_for, collective_kind
from distprof.ingest.discovery import rank_in_name
from distprof.ingest.files import any_log, beginning, paths_of_logs, refusing, whole
from distprof.ingest.kinds import Source
from distprof.ingest.kinds.logs import TRAINING_LOG
from distprof.ingest.wrapped import begins_object, untagged
from distprof.run.evidence import OperatorTable, TableOperator
from distprof.terms import CollectiveKind

MAX_ROWS = 100_000
BOUND = Bound(reads="a table of operators", num_bytes=64_000_000, rows=MAX_ROWS)
MAX_NAME = 300
_SNIFFED_BYTES, _LONGEST_LOG = 1 << 16, 1 << 22
_PATTERNS = patterns_beside(__package__, "operator_table.toml")
_MOST_ERROR = 0.25
"""A share that is rounded more coarsely does not show the total, not even roughly."""
_SAME = 0.01
"""Times of one run differ by no more, as their shares are rounded."""
_TOTALS = ("self_cpu_ns", "self_device_ns")
_MOST_TABLES = 3  # after the first
_MOST_RANKS = 64
_MANY_CALLS = 1_000  # fewer allocations are those of a start
_ONLY_FIRST = "Of several runs or processes, the first is read: keep each in a file of its own."
_TEXTS = ("Name", "Overload Name", "Full Name", "Input Shapes", "Source Location")
_CALLS = ("# of Calls", "Number of Calls", "Calls", "Occurrences")
_DRAWN = str.maketrans("│┃║¦", "||||")
_EDGES, _RULES = " \t|#>`+", " \t|#>`-─━═=+:┼╇┡┩├┤┌┐└┘╞╡"
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
    is_tree: bool = False


@cache
def _layouts() -> tuple[tuple[re.Pattern[str], _Layout], ...]:
    """Header of each table of functions or kernels, and its layout."""
    table = table_beside(__package__, "function_tables.toml")
    known = msgspec.convert(table["table"], tuple[_Layout, ...])
    return tuple((re.compile(one.header, re.M), one) for one in known)


def fits_operator_table(source: str) -> bool:
    """Whether a file holds one, or each of a folder whose names have ranks; never raises."""
    if not any_log(source, _MOST_RANKS, _fits):
        return False
    paths = paths_of_logs(source, _MOST_RANKS)
    are_of_ranks = len({*map(rank_in_name, paths)} - {None}) == len(paths) > 1
    return paths == [source] or (are_of_ranks and all(map(_fits, paths)))


def _fits(source: str) -> bool:
    """Whether a file begins or ends with a table that shows more than its log does."""
    data = beginning(source, _SNIFFED_BYTES)
    if begins_object(data):  # of a trace, no more is read
        return False
    start = _plain(data + beginning(source, _LONGEST_LOG)[_SNIFFED_BYTES:][-_SNIFFED_BYTES:])
    own = (_PATTERNS[name] for name in ("header", "headless", "event"))
    headers = chain(own, (header for header, _ in _layouts()))
    first = next((one for one in headers if start and one.search(start)), None)
    if first is None or not TRAINING_LOG.fits(source):
        return first is not None
    loose = (_PATTERNS["headless"], _PATTERNS["event"])
    return first not in loose and not TRAINING_LOG.read(source).timers


def read_operator_table(source: str) -> OperatorTable:
    """Read the first tables of a file or of ranks; InputError if one is unreadable or empty."""
    if (paths := paths_of_logs(source, _MOST_RANKS)) != [source]:
        return _of_ranks({rank_in_name(path): read_operator_table(path) for path in paths})
    text = _plain(whole(source, BOUND.num_bytes, _refuse))
    if _PATTERNS["loads"].search(text):
        text = _PATTERNS["polls"].sub("enumerate(DataLoader)", text)
    text = _PATTERNS["single_events"].sub(r"\1", text)
    if len(parts := _by_rank(text)) > 1 and None not in parts:
        return _of_ranks({at: _operators(source, [*_whole_lines(p)]) for at, p in parts.items()})
    if not _PATTERNS["header"].search(text):
        if functions := [*_PATTERNS["function"].finditer(text)]:
            longest = max(functions, key=lambda one: float(one[1]))
            text = text[: functions[0].start()] + text[longest.start() :]
        every = _PATTERNS["run"].split(text)[: _MOST_TABLES + 1]
        for header, layout in _layouts():
            if runs := [found for one in every if (found := header.search(one))]:
                tables = [_listed(source, found.string, found, layout) for found in runs]
                table = reduce(lambda second, one: _with_second(one, second), tables[::-1])
                return _with_start(source, text, table)
        text = _events(text) or text
    return _operators(source, [*_rooted(_whole_lines(text.splitlines()))])


def _by_rank(text: str) -> dict[int | None, list[str]]:
    """Lines with the table of each rank, if prefixes or titles name ranks."""
    parts, rank = dict[int | None, list[str]](), None
    for line in text.splitlines() if _PATTERNS["rank"].search(text) else ():
        if named := _PATTERNS["rank"].match(line):
            rank = int(named[1])
        parts.setdefault(rank, []).append(line)
    has_table = _PATTERNS["header"].match
    return {at: lines for at, lines in parts.items() if any(map(has_table, lines))}


def _of_ranks(tables: Mapping[int | None, OperatorTable]) -> OperatorTable:
    """The tables of ranks, each with the one after it: first that with the least collectives."""
    spent = {
        at: sum(o.self_device_ns for o in one.operators if o.kind) for at, one in tables.items()
    }
    order = sorted(tables, key=spent.__getitem__)
    named = [
        msgspec.structs.replace(tables[at], rank=at if all(spent.values()) else None)
        for at in order
    ]
    return reduce(lambda after, one: msgspec.structs.replace(one, second=after), named[::-1])


def _with_start(source: str, text: str, table: OperatorTable) -> OperatorTable:
    """A table of kernels, with the calls of CUDA's API if these or allocations take far longer."""
    for header, layout in _layouts() if table.device else ():
        if "calls of CUDA's API" in layout.program and (found := header.search(text)):
            calls = _listed(source, text, found, layout)
            spent, busy = calls.self_cpu_ns or 0, table.self_device_ns or 0
            waits = sum(o.cpu_ns for o in calls.operators if _PATTERNS["waits"].search(o.name))
            often = (o for o in calls.operators if o.num_calls >= _MANY_CALLS)
            is_churn = sum(o.cpu_ns for o in often if _PATTERNS["allocates"].match(o.name)) > busy
            if is_churn or waits + busy < spent // 50:
                both = (*table.operators, *calls.operators)
                return msgspec.structs.replace(table, operators=both, self_cpu_ns=calls.self_cpu_ns)
    return table


def _plain(data: bytes) -> str:
    """Text without tags, with bars instead of what a terminal draws."""
    return untagged(data.decode("utf-8-sig", "replace").replace("\0", "")).translate(_DRAWN)


def _whole_lines(lines: Sequence[str]) -> Iterator[str]:
    """Lines, of which those of tables that a terminal cut at its width are joined.

    Each has as many pieces as the first of the three rulers.
    """
    is_ruler = [_PATTERNS["ruler"].fullmatch(line) is not None for line in (*lines, "", "")]
    at, left, num, width = 0, 0, 1, 0
    while at < len(lines):
        is_cut = is_ruler[at] and is_ruler[at + 1] and len(lines[at]) >= len(lines[at + 1])
        if not left and is_cut:
            num = is_ruler.index(False, at) - at
            left, width = 3, max(map(len, lines[at : at + num]))
        pieces = lines[at : at + num] if left else lines[at : at + 1]
        left -= left > 0 and is_ruler[at]
        at += len(pieces)
        yield "".join(piece.ljust(width) for piece in pieces) if pieces[1:] else pieces[0]


def _events(text: str) -> str:
    """A table of the events in a printed list of them, a row for each name; empty without any."""
    rows = ["Name\tCPU total\tCUDA total\tCalls"]
    for name, each in grouped([(o["name"], o) for o in _PATTERNS["event"].finditer(text)]).items():
        cpu, device = (sum(_ns(one[of]) or 0 for one in each) for of in ("cpu", "device"))
        rows.append(f"{name}\t{cpu}ns\t{device}ns\t{len(each)}")
    return "\n".join(rows) if rows[1:] else ""


def _rooted(lines: Iterable[str]) -> Iterator[str]:
    """Rows of which those in a tree of modules have the path of their module."""
    path: dict[int, str] = {}  # by how far each branch is to the right
    for line in lines:
        if branch := _PATTERNS["branch"].match(line):
            name, *values = line[branch.end() :].split("|")
            path = {at: one for at, one in path.items() if at < branch.end()}
            path[branch.end()] = name.strip()
            line = "|".join((".".join(path.values()), *values))
        yield line


def _sections(text: str, row: re.Pattern[str]) -> list[tuple[str, int, str]]:
    """Actions that are profiled alone, their times and rows: first the longest that has rows."""
    found = [*_PATTERNS["section"].finditer(text)]
    ends = [*(one.start() for one in found[1:]), len(text)]
    every = [
        (one["action"], _scaled(one["seconds"], 1e9), text[one.end() : end])
        for one, end in zip(found, ends, strict=False)
    ]
    listed = [one for one in every if any(map(row.fullmatch, one[2].splitlines()))]
    longest = [max(listed, key=lambda one: one[1])] if listed else []
    return [*longest, *(one for one in every if longest and one is not longest[0])]


def _listed(source: str, text: str, header: re.Match[str], layout: _Layout) -> OperatorTable:
    """The table of functions or kernels below a header, which may name the unit of its times."""
    row = re.compile(layout.row)
    sections = _sections(text, row)
    unit, printed = (_PATTERNS[name].search(text) for name in ("unit", "whole"))
    body = sections[0][2] if sections else text[header.end() :]
    first, *others = _PATTERNS["next_table"].split(body)  # one of other columns is left out
    alike = [*filter(header.re.match, others)]
    top = header[0].partition("\n")[0].split() * layout.program.startswith(("nsys stats", "nvprof"))
    kept = [*takewhile(lambda one: one.partition("\n")[0].split() != top, alike)]  # of one run
    named = (header.groupdict().get("unit") or layout.unit).lower()
    scale = 1e9 * float(unit[1]) if unit else _NS[named]
    are_kernels = "all" not in row.groupindex
    total = sections[0][1] if sections else _scaled(printed[1], 1e9) if printed else 0
    found: dict[str, TableOperator] = {}
    whole = _Whole()
    for match in filter(None, map(row.fullmatch, "\n".join([first, *kept]).splitlines())):
        name = match["name"].strip()[:MAX_NAME]
        own, share = _scaled(match["own"], scale), match.groupdict().get("share") or ""
        if total and "e" in match["own"] and _PATTERNS["share"].fullmatch(share):
            own = round(total * float(share) / 100)  # as the time has one digit
        inside = own if are_kernels else _scaled(match["all"], scale)
        inside = own if inside > total * (1 + _SAME) > 0 else inside  # began before the profile
        whole.take(own or inside, share)
        every = match.groupdict().get("every") if not sections else None
        calls = int((every or match["calls"] or "").replace(",", "") or are_kernels)
        if before := found.get(name) if are_kernels else None:
            calls, own = calls + before.num_calls, own + before.self_device_ns
        found[name if are_kernels else str(len(found))] = TableOperator(
            name=name,
            kind=_kind(name),
            num_calls=calls,
            self_cpu_ns=own * (not are_kernels),
            cpu_ns=inside * (not are_kernels),
            self_device_ns=own * are_kernels,
            device_ns=own * are_kernels,
        )
    if not 0 < len(found) <= MAX_ROWS:
        read = f"the header of {layout.program.split(',')[0]}, and {len(found):,} readable rows"
        refusing("a table with its rows", "keep the rows below the header")(source, read)
    longest = max(one.cpu_ns for one in found.values()) if layout.is_tree else 0
    listed = sum(one.self_device_ns for one in found.values())  # of several tables
    return OperatorTable(
        operators=tuple(found.values()),
        device=layout.device if are_kernels else "",
        self_cpu_ns=total or (not are_kernels and whole.ns) or longest or None,
        self_device_ns=max(whole.ns, listed) if are_kernels and whole.ns else None,
        notes=(_ONLY_FIRST,) * (len(kept) < len(alike)),
        is_from_top=bool(header[0]),
        actions=tuple(section[:2] for section in sections),
    )


def _scaled(printed: str, scale: float) -> int:
    """A time in ns, with or without a unit of its own; 0 if there is none."""
    text = printed.replace(",", "")
    with suppress(ValueError, OverflowError):
        return _ns(text) or round(float(text) * scale)
    return 0


def _operators(source: str, every: Sequence[str], num_before: int = 0) -> OperatorTable:
    """The first table among lines, whatever is between its columns, and those after it."""
    lines = _rows(every)
    last = next((line for line in reversed(every) if line.strip(_EDGES + "-")), "")
    header = next((one for one in map(_header, lines) if one), None)
    if header is None:
        _refuse(source, "no header")
    columns, prefix, first = header
    device = next((m[1] for m in map(_PATTERNS["of_device"].fullmatch, columns) if m), "")
    operators: list[TableOperator] = []
    totals: dict[str, int | None] = {}
    rows, others = list[dict[str, str]](), list[str]()
    num_broken = 0
    for line in chain(first, (line.removeprefix(prefix) for line in lines)):
        if total := _PATTERNS["total"].match(line.strip()):
            totals.setdefault(total[1], _ns(total[2].strip()))
        elif _PATTERNS["header"].match(line):
            others = [line, *lines]
            break
        elif line.strip(_RULES) and not totals:
            rows.append(_row(line, columns, is_last=line == last))
        if len(rows) > MAX_ROWS:
            _refuse(source, f"more than {MAX_ROWS:,} rows")
    whole = {what: _Whole(totals.get(what)) for what in ("CPU", device or "CUDA")}
    for row, (what, one) in product(rows, whole.items()):
        one.take_all(row, what)
    for row in rows:
        for what, one in whole.items():
            one.fill(row, what)
        made = _operator(row, device)
        num_broken += made is None and "0.000us" not in row.values()  # [memory] has no time
        if made is not None and made.name.lower() not in ("total", "sum"):
            operators.append(made)
    signed = (f"Self {device} %", f"{device} total %", "CPU total %")
    if any(_PATTERNS["negative"].match(row.get(at, "")) for row, at in product(rows, signed)):
        _refuse(source, "times below 0: all are wrong")
    if not operators:
        _refuse(source, f"no readable row, {num_broken:,} unreadable rows")
    notes = [f"Unreadable rows, skipped: {num_broken:,}."] * (num_broken > 0)
    if not device and any(re.fullmatch(r"(?!CPU)\w+ total", name) for name in columns):
        notes.append("The table has no own times of the GPU.")
    known = {what: one.ns for what, one in whole.items()}
    # What an operator calls takes at least its time: if that is more than all rows, some are cut.
    inside = max((one.device_ns for one in operators if "aten::" in one.name), default=0)
    if not known.get(device) and inside > 2 * sum(one.self_device_ns for one in operators) > 0:
        known[device] = inside
    is_asked = not first and any(map(_PATTERNS["memory_asked"].search, every))
    table = OperatorTable(
        operators=tuple(operators),
        device=next(iter(totals.keys() - {"CPU"}), device) if first else device,
        self_cpu_ns=known["CPU"],
        self_device_ns=known[device or "CUDA"],
        notes=tuple(notes),
        is_from_top=not first,
        most_memory=tuple(_most_memory(rows, device)) if is_asked else (),
    )
    if others and num_before < _MOST_TABLES:
        with suppress(InputError):
            return _with_second(table, _operators(source, others, num_before + 1))
    left_out = (f"Only {num_before + 1} tables are read: keep each in a file of its own.",)
    return msgspec.structs.replace(table, notes=table.notes + left_out) if others else table


def _most_memory(rows: Sequence[Mapping[str, str]], device: str) -> Iterator[str]:
    """What allocates most memory of the device."""
    each = ((row["Name"], row.get(f"Self {device or 'CUDA'} Mem", "")) for row in rows if row)
    read = ((_PATTERNS["bytes"].fullmatch(size), name) for name, size in each)
    sizes = [
        (float(o[1]) * 1_024 ** " KMGT".index(o[2] or " "), o[0], name) for o, name in read if o
    ]
    for _, size, name in [one for one in sorted(sizes)[-1:] if one[0] > 0]:
        yield f"{name} allocates most memory of the rows shown: {size}."


def _with_second(table: OperatorTable, second: OperatorTable) -> OperatorTable:
    """A table with the one after it, or with its rows if both are of one run, in another order."""
    totals = {at: (getattr(table, at), getattr(second, at)) for at in _TOTALS}
    both = [pair for pair in totals.values() if all(pair)]
    is_same = bool(both) and all(isclose(*pair, rel_tol=_SAME) for pair in both)
    if not is_same or table.device != second.device:
        return msgspec.structs.replace(table, second=second)
    known = {(row.name, row.num_calls) for row in table.operators}
    more = (row for row in second.operators if (row.name, row.num_calls) not in known)
    return msgspec.structs.replace(
        table,
        operators=(*table.operators, *more),
        is_from_top=False,
        second=second.second,
        **{at: one or other for at, (one, other) in totals.items()},
    )


def _rows(lines: Iterable[str]) -> Iterator[str]:
    """Lines, of which those that a terminal or a mail wrapped are joined."""
    row: list[str] = []
    for line in lines:
        if row and not _PATTERNS["goes_on"].match(line):
            yield "  ".join(row)
            row.clear()
        row.append(line)
    yield "  ".join(row)


def _header(line: str) -> tuple[list[str], str, list[str]] | None:
    """Columns, what a launcher prints before them, and the line itself if it is a row."""
    if found := _PATTERNS["header"].match(line):
        before = found[1].rstrip()
        head = line[len(found[1]) :][:4_000]  # no header is longer
        head = re.sub(" [TA](?=otal|ime|vg)", lambda one: one[0].lower(), head)
        head = re.sub(r"\b(\w+) time\b(?! avg)(?!.*\b\1 total\b)", r"\1 total", head)
        head = re.sub(r"(Self \w+) total", r"\1", head.replace("GPU", "CUDA"))  # as torch prints it
        return ["Name", *_PATTERNS["column"].findall(head)[1:]], before, []
    if not _PATTERNS["headless"].match(line):
        return None
    known: dict[str, list[str]] = table_beside(__package__, "operator_table.toml")["columns"]
    columns, rest = ["Name"], "".join(map(_sign, _split(line, 0)[1:]))
    while rest:
        signs = next((signs for signs in known if rest.startswith(signs)), None)
        if signs is None:
            return None
        columns, rest = columns + known[signs], rest[len(signs) :]
    return columns, "", [line]


def _sign(value: str) -> str:
    """What a value is: a percentage, time, memory, whole number or another figure."""
    known = ("p", "percent"), ("t", "duration"), ("m", "memory"), ("i", "whole_number")
    return next((sign for sign, name in known if _PATTERNS[name].fullmatch(value)), "f")


def _split(line: str, most: int) -> list[str]:
    """Name and values of a row; ``most`` values are enough, 0 for any number, else it is none."""
    text = line.strip(_EDGES)
    if (mark := "|" if text.count("|") > 1 else "\t") in text:
        return [cell.strip() for cell in text.split(mark)]
    first = _PATTERNS["values"].search(text)
    if first is None:
        return []
    cells, at = [text[: first.start()].strip()], first.start()
    while value := _PATTERNS["value"].match(text, at):
        cells.append(value[0].strip())
        at = value.end()
    is_whole = not text[at:].strip("0123456789.mnuµ")  # or cut within its last value
    return cells if is_whole or len(cells) > most else []


def _row(line: str, columns: Sequence[str], *, is_last: bool) -> dict[str, str]:
    """Values of a row by column, possibly without the last ones; empty if it is none."""
    valued = [name for name in columns if name not in _TEXTS]
    most = [*takewhile(valued.__contains__, dropwhile(_TEXTS.__contains__, columns))]
    cells = _split(line, 0 if is_last else len(most))
    is_marked = len(cells) > len(valued) + 1
    return dict(zip(columns if is_marked else ("Name", *valued), cells, strict=False))


class _Whole:
    """The time of all rows, by the share of a row that is printed most exactly."""

    def __init__(self, ns: int | None = None) -> None:
        self.ns = ns
        self._error = _MOST_ERROR if ns is None else 0.0
        self._most: float | None = None  # Of the times with calls and the shares without them

    def take(self, spent: int | None, share: str, *, is_bound: bool = False) -> None:
        """Add a row, with its share in percent; one that is coarse, or 0, may be a bound."""
        if not spent or not _PATTERNS["share"].fullmatch(share):
            return
        percent, half = float(share), 0.5 * 0.1 ** len(share.partition(".")[2])
        if percent > 0 and half / percent < self._error:
            self._error = half / percent
            self.ns = round(spent / percent * 100)
        elif self._error == _MOST_ERROR and (is_bound or not percent):  # at least this much
            self.ns = max(self.ns or 0, round(spent / (percent + half) * 100))

    def take_all(self, row: dict[str, str], what: str) -> None:
        """Add a row of columns."""
        for column, share in _shares(row, what):
            ns, inside = (_ns(row.get(name, "")) for name in (column, f"{what} total"))
            is_cpu = what == "CPU"
            self.take(ns, share if is_cpu or share.strip("0.") else "", is_bound=not is_cpu)
            if ns is None and inside:
                self._most = min(self._most or inside * 1e4, inside / max(float(share), 0.01) * 100)

    def fill(self, row: dict[str, str], what: str) -> None:
        """Times that are cut, or that the table does not print, by their shares."""
        if self.ns is None and self._most:
            self.ns, self._error = round(self._most), 0.0
        for column, share in _shares(row, what) if self._error < _SAME else ():
            if _ns(row.get(column, "")) is None:
                row[column] = f"{round((self.ns or 0) * float(share) / 100)}ns"


def _shares(row: Mapping[str, str], what: str) -> Iterator[tuple[str, str]]:
    """Columns of times of a device, and their shares in percent, unless they are cut."""
    for column in (f"Self {what}", f"{what} total"):
        share, sign, _ = row.get(f"{column} %", "").partition("%")
        if sign and _PATTERNS["share"].fullmatch(share):
            yield column, share


def _kind(name: str) -> CollectiveKind:
    kind: CollectiveKind = classifier_for(CommunicationConfig()).verdict(name).kind
    return (_PATTERNS["of_library"].search(name) and collective_kind(name)) or kind


def _operator(row: Mapping[str, str], device: str) -> TableOperator | None:
    """The operator of a row; None if it is no row of this table."""
    calls = next((row[name] for name in _CALLS if name in row), "0")
    if not any(map(_ns, row.values())) or not _PATTERNS["whole_number"].fullmatch(calls):
        return None
    ns = {name: _ns(text) or 0 for name, text in row.items()}
    name = row["Name"].strip("`")
    return TableOperator(
        name=name[:MAX_NAME],
        kind=_kind(name),
        num_calls=int(calls),
        self_cpu_ns=ns.get("Self CPU", 0),
        cpu_ns=ns.get("CPU total", 0),
        self_device_ns=ns.get(f"Self {device}", 0),
        device_ns=ns.get(f"{device or 'CUDA'} total", 0),
    )


def _ns(text: str) -> int | None:
    found = _PATTERNS["duration"].fullmatch(text)
    return round(float(found[1]) * _NS[found[2]]) if found else None


SOURCES = (
    Source(
        bound=BOUND,
        place=79,
        origin="table of operators",
        name="a table of operators",
        fits=fits_operator_table,
        read=read_operator_table,
    ),
)
