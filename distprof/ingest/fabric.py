"""Fabric profiles: files of ``distprof bench``, and output of nccl-tests or perftest.

A log of nccl-tests is searched line by line for headers and rows, so prefixes of launchers and
output of other programs do no harm. The command line, the first lines or the file name identify the
test. Otherwise the ratio of the bandwidths in the table does, if it is unambiguous. Format:
nccl-tests, src/common.cu, 2.0 to 2.17. Tables of other programs are read if one column is a size
and another a bandwidth, by their names and units.
"""

from __future__ import annotations

import gzip
import io
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import msgspec

from distprof.artefacts.fabric_file import (
    BOTH_WAYS,
    EITHER,
    FABRIC_SCHEMA,
    ONE_LINK,
    SOCKETS,
    FabricCurve,
    FabricFile,
    FabricPoint,
)
from distprof.artefacts.record import grouped
from distprof.bounds import Bound, TooLargeError, decode_json, patterns_beside, read_plain
from distprof.costs.collectives import bus_factor
from distprof.costs.fabric import fitted, point
from distprof.errors import InputError, SchemaError, StatementError
from distprof.ingest.communication import collective_kind
from distprof.ingest.files import DAMAGE, refusing
from distprof.ingest.wrapped import lines_of
from distprof.terms import CollectiveKind
from distprof.units import format_bytes

_STDIN = "-"
BOUND = Bound(reads="a fabric profile", num_bytes=64 << 20)
_MAX_LINE = 2_000
_MAX_RANKS, _MOST_MEANS = 1 << 20, 3

_SAYS = patterns_beside(__package__, "fabric.toml")
_VERBS_BYTES = {"MB": 1 << 20, "MiB": 1 << 20, "Gb": 1e9 / 8}
"""perftest's MB are 2**20 bytes, its Gb 1e9 bits."""
_LARGE_BYTES = 1 << 20

_BYTES = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_US = {"n": 1e-3, "u": 1.0, "µ": 1.0, "μ": 1.0, "m": 1e3, "s": 1e6}
_MOST_COLUMNS = 40
_ROUNDING = 0.005
"""GB/s by which printed bandwidths may be off."""


_KEEP_ALL = "keep the complete output, with the command and the lines that list the GPUs"
_OTHER = "the table is of another program than nccl-tests"
_KEEP_ROWS = "keep whole rows of large sizes, or test them (-b 1M -e 4G -f 2)"
_CUT = "output of nccl-tests, cut before the rows of its table"
_refuse = refusing(
    expected=f"a fabric profile, at most {BOUND.num_bytes >> 20} MiB",
    fix="name a file that can be read whole: the part that nccl-tests printed is enough",
)
_OF_ONE_RANK = "no bus bandwidth, because each test has a single rank"
_JOIN = "build nccl-tests with MPI=1 and start one process per GPU, or name GPUs with -g"


class _Row(msgspec.Struct):
    """One row of a table."""

    num_bytes: int
    has_operator: bool
    has_root: bool
    dtype: str
    halves: tuple[tuple[float, float, float, str], ...]  # µs, GB/s, GB/s, wrong: out of, in place


class _Column(msgspec.Struct, frozen=True):
    """A column of a table of another program: its place, and what its numbers are multiples of."""

    what: str  # ``size``, ``bus`` or ``speed`` (several of a kind are of as many runs), ``time``.
    place: int
    unit: float  # Bytes, µs or GB/s.
    run: str  # What its name calls the run.


class _Table(msgspec.Struct):
    """The output of one test."""

    test: str = ""
    label: str = ""  # What the text calls it.
    hosts: dict[int, str] = msgspec.field(default_factory=dict)
    first_ranks: set[tuple[str, str]] = msgspec.field(default_factory=set)  # Host and process.
    device: str = ""
    num_iterations: int | None = None
    runs: tuple[str, ...] = ()  # Of which a row has a speed each.
    rows: list[_Row] = msgspec.field(default_factory=list)


def read_fabric(source: str) -> FabricFile:
    """Read a fabric profile.

    ``source`` is a file that ``distprof bench -o`` wrote, or output of a program of nccl-tests or
    perftest, gzipped or not; ``-`` for standard input. Each curve has its fit or the reason for
    having none, ``notes`` lists what was left out.
    """
    data = _all_of(source)
    if data.lstrip()[:1] == b"{":
        return _own(data, source)
    lines = data.decode("utf-8", "replace").splitlines()
    return _perftest(lines, source) or _nccl_tests(lines, source)


def _all_of(source: str) -> bytes:
    """A file, a pipe or standard input, gzipped or not."""
    data = bytes(BOUND.num_bytes + 1)  # of a file that is too large
    try:
        if source == _STDIN:
            data = sys.stdin.buffer.read(BOUND.num_bytes + 1)
        else:
            with suppress(TooLargeError):
                data = read_plain(source, BOUND.num_bytes)
        if data.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                data = packed.read(BOUND.num_bytes + 1)
    except (*DAMAGE, ValueError) as error:
        _refuse(source, getattr(error, "strerror", None) or str(error))
    if len(data) > BOUND.num_bytes:
        _refuse(source, "a larger file")
    return lines_of(data)


def best_of_test(text: str) -> tuple[str, dict[int, str]]:
    """What nccl-tests measured in a text, as a sentence, and the hosts of ranks that it lists."""
    lines = text.splitlines()
    tables = list(_tables(lines))
    best = [_best(t) for t in tables if any(h[2] for row in t.rows for h in row.halves)]
    mean = [f"{float(one[1]):.3g} GB/s" for one in map(_SAYS["mean"].search, lines) if one]
    listed = sorted({pair for table in tables for pair in table.hosts.items()})
    hosts = dict(listed)
    if len(hosts) < len(listed):  # tests on different hosts: no rank has one
        hosts = {~place: host for place, (_, host) in enumerate(listed)}
    if best:
        return f"In nccl-tests, {best[-1]}.", hosts
    if any(table.rows for table in tables):
        return f"nccl-tests measured {_OF_ONE_RANK}.", hosts
    means = f"In nccl-tests, the mean bus bandwidth is {', '.join(mean[:_MOST_MEANS])}."
    return means * bool(mean), hosts


def _own(data: bytes, source: str) -> FabricFile:
    try:
        profile = decode_json(data, FabricFile)
    except (ValueError, RecursionError) as error:
        raise _other_schema(source, str(error)) from error
    if profile.schema != FABRIC_SCHEMA:
        raise _other_schema(source, f'"schema": "{profile.schema[:60]}"')
    if any(not _is_sound(curve) for curve in profile.curves):
        raise _other_schema(source, "an impossible bandwidth curve")
    speeds = [rate.flops for rate in profile.rates]
    if not all(0 < speed < math.inf for speed in (*speeds, profile.memory_bytes_per_s or 1)):
        raise _other_schema(source, "an impossible speed of computation")
    return msgspec.structs.replace(profile, source="" if source == _STDIN else source)


def _is_sound(curve: FabricCurve) -> bool:
    sizes = [p.bytes for p in curve.points]
    return (
        curve.kind.upper() in CollectiveKind.__members__
        and 1 <= curve.group_size <= _MAX_RANKS
        and sizes == sorted(set(sizes))
        and all(p.bytes > 0 and p.time_ns > 0 and p.busbw_bytes_per_s > 0 for p in curve.points)
        and (curve.fit is None or min(curve.fit.alpha_ns, curve.fit.bandwidth_bytes_per_s) > 0)
    )


def _other_schema(source: str, found: str) -> SchemaError:
    return SchemaError(source, expected=f'"schema": "{FABRIC_SCHEMA}"', found=found[:200])


def _nccl_tests(lines: Sequence[str], source: str) -> FabricFile:
    every = [*_tables(lines)]
    tables = _joined([table for table in every if table.rows])
    sockets = next(filter(None, map(_SAYS["sockets"].search, lines)), None)
    why = sockets and (f"{sockets[1]} is set" if sockets[1] else "libibverbs could not be opened")
    is_fast = any(map(_SAYS["other_network"].search, lines))
    notes = [f"{SOCKETS}, because {why}."] if why and not is_fast else []
    set_to = filter(None, map(_SAYS["restricts"].search, lines))
    notes += [
        f"{one[1]} {'leaves it one network card' if 'HCA' in one[1] else 'restricts it'}: "
        "measure again without this setting."
        for one in set_to
        if "HCA" not in one[1] or len({*chain(*(table.hosts.values() for table in tables))}) != 1
    ]
    if len(tables) == 1:
        tables[0].label = ""
    curves = [curve for table in tables for curve in _curves(table, source, notes)]
    if not curves:
        apart = max(len(table.first_ranks) for table in every)
        if apart or any(map(_SAYS["start"].search, lines)):
            is_alone = apart > 1 or max(len(table.hosts) for table in every) == 1
            found = _OF_ONE_RANK if is_alone else best_of_test("\n".join(lines))[0].rstrip(".")
            if apart > 1:
                found = f"{apart} tests that ran each by itself, and no row of their tables"
            found, fix = found or _CUT, _JOIN if is_alone else _KEEP_ROWS
            raise StatementError(source, expected="rows", found=found, fix=fix)
        raise InputError(
            source,
            expected="a fabric profile of distprof bench, or output of nccl-tests",
            found="no row of an nccl-tests table",
            fix="distprof bench -o fabric.json, or all_reduce_perf … | tee all_reduce.log",
        )
    hosts = next(
        (one.hosts for one in tables if one.hosts.keys() == set(range(len(one.hosts)))), {}
    )
    return FabricFile(
        origin="nccl-tests" if any(t.rows[0].dtype for t in tables) else "table of bandwidths",
        source="" if source == _STDIN else source,
        device=next((table.device for table in tables if table.device), ""),
        backend="nccl" if any(t.rows[0].dtype for t in tables) else "",
        world_size=max(curve.group_size for curve in curves) or None,
        hosts=tuple(hosts[rank] for rank in sorted(hosts)),
        num_copies=max(1, *(len(table.first_ranks) for table in tables)),
        curves=tuple(curves),
        notes=tuple(dict.fromkeys(notes)),
    )


def _joined(tables: list[_Table]) -> list[_Table]:
    """The tables, but tests of one size each as the tests of many sizes that they are parts of."""
    if any(len(table.rows) > 1 for table in tables):
        return tables
    found: list[_Table] = []
    for table in tables:
        last = found[-1] if found else _Table()
        is_next = (last.test, last.label, last.hosts) == (table.test, table.label, table.hosts)
        if is_next and last.rows and last.rows[-1].num_bytes < table.rows[0].num_bytes:
            last.rows += table.rows
        else:
            found.append(table)
    return found


def _perftest(lines: Sequence[str], source: str) -> FabricFile | None:
    """The bandwidths of ib_write_bw and its sisters; None if there are none."""
    speeds: dict[str, dict[int, list[float]]] = {"host": {}, "GPU": {}}
    unit, memory, next_memory = 0.0, "host", "host"
    for line in lines:
        if _SAYS["verbs_memory"].search(line[:_MAX_LINE]):  # before the header of the test
            next_memory = "GPU"
        elif header := _SAYS["verbs_unit"].search(line[:_MAX_LINE]):
            unit, memory, next_memory = _VERBS_BYTES[header[1]], next_memory, "host"
        row = _SAYS["verbs_row"].fullmatch(line[:_MAX_LINE])
        if unit and row and float(row["speed"]):
            speeds[memory].setdefault(int(row["size"]), []).append(float(row["speed"]) * unit)
    curves = tuple(_of_link(memory, speeds[memory]) for memory in speeds if speeds[memory])
    if not curves:
        return None
    return FabricFile(
        origin="perftest",
        source="" if source == _STDIN else source,
        backend="verbs",
        world_size=2,
        curves=curves,
        notes=(ONE_LINK, *(BOTH_WAYS,) * any("Bidirectional" in line for line in lines)),
    )


def _of_link(memory: str, speeds: dict[int, list[float]]) -> FabricCurve:
    """Bandwidths by size, bytes per second, from and to memory of the host or of a GPU."""
    kind = CollectiveKind.SEND_RECV
    times = {size: [size / speed * 1e9 for speed in speeds[size]] for size in sorted(speeds)}
    return FabricCurve(
        kind=kind.label,
        group_size=2,
        memory=memory,
        points=tuple(point(kind, 2, size, each) for size, each in times.items()),
        refusal="perftest has several messages in flight",
    )


def holds_speeds(text: str) -> bool:
    """Whether a text has a table with a column of sizes and one of bandwidths."""
    return any(table.rows for table in _tables(text.splitlines()))


def _tables(lines: Iterable[str]) -> Iterator[_Table]:
    """The output of each test; a new one begins with its settings, its GPUs or its columns."""
    table, test, label = _Table(), "", ""
    head: list[_Column] = []
    width = 0
    for long_line in lines:
        line = _SAYS["launcher"].sub("", long_line[:_MAX_LINE])
        begun = None
        if program := _SAYS["program"].search(line):
            test = program[program.lastindex or 0].replace("-", "_")
            table.test = table.test if table.rows else test
        if _SAYS["start"].search(line):
            settings = _SAYS["iterations"].search(line)
            begun = _Table(num_iterations=int(settings[1]) if settings else None)
        elif table.rows and _SAYS["device"].search(line):  # the settings of a new test are cut off
            begun = _Table()
        elif row := _row(line) or _row_below(head, width, line):
            if _is_of_another(row, table.rows):
                yield table
                table = _Table(test=test)
            if not table.rows:
                table.label, label = label, ""
                are_runs = len(row.halves) > 1 and not row.dtype
                table.runs = tuple(one.run for one in head[1 : 1 + len(row.halves)] if are_runs)
            table.rows.append(row)
        elif found := _head(line):
            head, width = found
            begun = _Table() if table.rows else None
        elif named := _SAYS["label"].fullmatch(line):
            label = named[1].rpartition(". ")[2]
        elif _SAYS["sound"].search(line):  # in place, all-to-all is not checked
            for row in table.rows:
                row.halves = tuple((*half[:3], "") for half in row.halves)
        if begun is not None:
            yield table
            table = begun
            table.test = test
        if device := _SAYS["device"].search(line):
            table.hosts.setdefault(int(device["rank"]), device["host"])
            if int(device["rank"]) == 0:
                table.first_ranks.add((device["host"], device["pid"]))
            table.device = table.device or device["name"].strip()
    yield table


def _is_of_another(row: _Row, rows: Sequence[_Row]) -> bool:
    """Whether rows of a size have another number of ranks, so each is of a run of its own."""
    (_, speed, bus, _), (_, before, bus_before, _) = row.halves[0], (*rows, row)[0].halves[0]
    is_again = any(each.num_bytes == row.num_bytes for each in rows)
    differs = bus_before > 0 and abs(bus / bus_before * before - speed) > 0.004 * speed + 0.02
    return is_again and differs


def _head(line: str) -> tuple[list[_Column], int] | None:
    """Columns of a header, that of sizes first, and their number; None for another line."""
    for between in ("columns",) if _SAYS["sentence"].search(line) else ("columns", "words"):
        joined = _SAYS["before_unit"].sub("", line) if between == "words" else line
        cells = _SAYS[between].split(joined.strip("|# \t"))[:_MOST_COLUMNS]
        found: list[_Column] = []
        for what, most in (("size", 1), ("bus", None), ("speed", None), ("time", 1)):
            fits = [i for i, cell in enumerate(cells) if _SAYS[f"of_{what}"].search(cell)]
            runs = [i for i in fits if not _SAYS["no_run"].search(cells[i])] or fits[:1]
            of = {_SAYS["unnamed"].sub("", cells[i]).strip(" _-,"): i for i in runs[::-1]}
            more = f" {joined}" * (what in ("bus", "speed"))  # another column may have the unit
            columns = [_Column(what, i, _unit(cells[i] + more, what), run) for run, i in of.items()]
            found += columns[::-1][:most]
        held = {column.what for column in found}
        is_timed = "time" in held and re.search("byte|latency|count", line.lower())
        if len(cells) > 1 and "size" in held and (is_timed or held & {"bus", "speed"}):
            return found, len(cells)
    return None


def _unit(text: str, what: str) -> float:
    """What a number is a multiple of, by the unit after it or in its header."""
    if what == "time":
        named = _SAYS["unit_of_time"].search(text)
        return _US[named[1][0].lower()] if named else 1.0
    named = _SAYS["unit_of_speed" if what != "size" else "unit_of_size"].search(text)
    if named is None:
        return 1.0
    power = _BYTES[named[1].upper()]
    if what == "size":
        return power
    return power / 1e9 / (8 if named[2][0] == "b" else 1)


def _row_below(head: Sequence[_Column], width: int, line: str) -> _Row | None:
    """A row of numbers below a header, where columns have equally many parts; else None."""
    begin = head[0].place + 1 if head else 0
    for how in ("columns", "words") if head else ():
        cells = _SAYS[how].split(line.strip("| \t"))
        parts, rest = divmod(len(cells) - begin, max(width - begin, 1))
        if max(one.place for one in head) < len(cells) and (len(cells) <= width or not rest):
            break
    else:
        return None
    cells = [*cells[:begin], *cells[begin :: max(parts, 1)]]
    values: dict[str, list[float]] = {}
    for column in head:
        number = _SAYS["number"].match(cells[column.place])
        if number is None:
            return None
        typed = number[2] and _unit(number[2], column.what)
        value = float(re.sub("[,_]", "", number[1])) * (typed or column.unit)
        values.setdefault(column.what, []).append(value)
    size, us = values["size"][0], values.get("time", [0.0])[0]
    buses = values.get("bus") or values.get("speed") or [size / us / 1e3 if us else 0.0]
    speeds, us = (buses, 0.0) if len(buses) > 1 else (values.get("speed", buses), us)
    unit = 1e3 if us and 4e5 < size / us / (speeds[0] or math.inf) < 2.5e6 else 1.0  # GB called MB
    pairs = [(v * unit, bus * unit) for v, bus in zip(speeds, buses, strict=False)]
    halves = tuple((us or (v and size / v / 1e3), v, bus, "") for v, bus in pairs)
    return _Row(round(size), False, False, "", halves) if size >= 1 else None


def _row(line: str) -> _Row | None:
    match = _SAYS["row"].search(_SAYS["tag"].sub(" ", line))
    if match is None:
        return None
    cells = match.groups()[4:]
    halves = tuple(
        (float(cells[i]), float(cells[i + 1]), float(cells[i + 2]), cells[i + 3] or "")
        for i in (0, 4)
        if cells[i] is not None
    )
    is_reduced, has_root = match["redop"] not in (None, "none"), match["root"] not in (None, "-1")
    return _Row(int(match["size"]), is_reduced, has_root, match["type"], halves)


def _curves(table: _Table, source: str, notes: list[str]) -> Iterator[FabricCurve]:
    """One curve out of place and one in place."""
    halves = [half for row in table.rows for half in row.halves]
    if not any(half[2] or half[1] > 2 * _ROUNDING for half in halves):
        largest = format_bytes(max(row.num_bytes for row in table.rows))
        raise StatementError(
            source,
            expected="sizes that have a bandwidth",
            found=f"the bandwidth is not decided, because messages of up to {largest} show the "
            f"latency, here {min(half[0] for half in halves):g} µs or more",
            fix=_KEEP_ROWS,
        )
    if not any(half[2] for half in halves):
        raise StatementError(
            source,
            expected="a test of several ranks",
            found=_OF_ONE_RANK,
            fix=_JOIN,
        )
    kind = _kind(table, source, notes)
    by_ratio = _ranks_by_ratio(table, kind)
    ranks = max(max(table.hosts, default=-1) + 1, by_ratio or 0) or None
    is_whole = table.hosts.keys() == set(range(ranks or 0))
    nodes = len(set(table.hosts.values())) if table.hosts and is_whole else None
    cells = [[half[3] for half in row.halves] for row in table.rows]
    if not (ranks and table.rows[0].dtype) or bus_factor(kind, ranks) is None:
        lacks = [*("which collective it is",) * (not kind), *("over how many ranks",) * (not ranks)]
        refusal = f"the text does not say {' and '.join(lacks)}: {_KEEP_ALL}" if lacks else _OTHER
        for at, run in enumerate(table.runs or [table.label]):
            yield FabricCurve(
                kind=kind.label,
                group_size=ranks or 0,
                num_nodes=nodes,
                label=run,
                points=_as_printed(table, slice(at, at + 1) if table.runs else slice(None)),
                num_wrong=sum(map(_is_wrong, chain.from_iterable(cells))),
                refusal=refusal,
            )
        return
    if nodes is None:
        known = "Some GPUs have no line" if table.hosts else "No line lists hosts"
        how = "the ratio of bandwidths gives" if ranks == by_ratio else "the last one gives"
        notes.append(
            f"{known}: {how} {ranks} ranks, but the number of nodes is unknown, so distprof "
            "predicts nothing from this profile."
        )
    for place in range(max(len(row.halves) for row in table.rows)):
        points = _points(table, kind, ranks, place, notes)
        if points:
            yield fitted(
                FabricCurve(
                    kind=kind.label,
                    group_size=ranks,
                    num_nodes=nodes,
                    tier=None if nodes is None else "node" if nodes == 1 else "across",
                    in_place=place == 1,
                    dtype=table.rows[0].dtype,
                    label=table.label,
                    points=points,
                    num_wrong=sum(_is_wrong(of[place]) for of in cells if place < len(of)),
                )
            )


def _points(
    table: _Table, kind: CollectiveKind, ranks: int, place: int, notes: list[str]
) -> tuple[FabricPoint, ...]:
    """One point per size; sizes that rounding to elements leaves empty are left out."""
    rows = [(row.num_bytes, row.halves[place][0]) for row in table.rows if place < len(row.halves)]
    timed = [(size, time_us) for size, time_us in rows if size and time_us > 0]
    if empty := len(rows) - len(timed):
        notes.append(f"{empty} rows without bytes or time were skipped.")
    times = grouped([(size, time_us * 1_000) for size, time_us in timed])
    return tuple(
        point(kind, ranks, size, times[size], num_iterations=table.num_iterations)
        for size in sorted(times)
    )


def _as_printed(table: _Table, of: slice) -> tuple[FabricPoint, ...]:
    """One point per size, with the bandwidths of the table, or of some of its columns."""
    best = {row.num_bytes: max(row.halves[of], key=lambda half: half[2]) for row in table.rows}
    return tuple(
        FabricPoint(
            bytes=size,
            time_ns=max(1, round(us * 1e3)),
            algbw_bytes_per_s=algbw * 1e9,
            busbw_bytes_per_s=busbw * 1e9,
        )
        for size, (us, algbw, busbw, _) in sorted(best.items())
        if busbw
    )


def _is_wrong(text: str) -> bool:
    """Whether values were wrong: old versions print the largest difference, which is rounding."""
    try:
        return float(text) >= 1
    except ValueError:
        return False


def _kind(table: _Table, source: str, notes: list[str]) -> CollectiveKind:
    """The collective, from a ratio that only one has, names, or the ratio of bandwidths."""
    ratio = _ratio(table)
    if (ratio or 0) > 1.01 or (_ratio(table, 0.1) or 0) > 1.2:
        return CollectiveKind.ALL_REDUCE
    if table.test:
        return collective_kind(table.test)
    if test := _SAYS["in_name"].search(Path(source).name.lower()):
        return collective_kind(test[1])
    if not table.rows[0].dtype:
        return CollectiveKind.UNKNOWN
    if ratio is not None and ratio < 0.99 and any(row.has_operator for row in table.rows):
        return CollectiveKind.REDUCE_SCATTER
    if ratio is not None and ratio < 0.99 and not any(row.has_root for row in table.rows):
        notes.append(EITHER)
        return CollectiveKind.ALL_GATHER
    return CollectiveKind.UNKNOWN


def _best(table: _Table) -> str:
    """The highest bus bandwidth as printed, which needs no program and no number of ranks."""
    speed, size = max((half[2], row.num_bytes) for row in table.rows for half in row.halves)
    text = f"the bus bandwidth reaches {speed:g} GB/s at {format_bytes(size)}"
    if size >= _LARGE_BYTES:
        return text
    least = min(half[0] for row in table.rows for half in row.halves)
    return f"{text}; small messages show the latency, here {least:g} µs or more"


def _ratio(table: _Table, least: float = 1.0) -> float | None:
    """Bus bandwidth over algorithm bandwidth of the fastest row, where rounding matters least."""
    pairs = [(half[1], half[2]) for row in table.rows for half in row.halves]
    algbw, busbw = max(pairs, default=(0.0, 0.0))
    return busbw / algbw if algbw >= least else None


def _ranks_by_ratio(table: _Table, kind: CollectiveKind) -> int | None:
    """The number of ranks whose bus factor matches the bandwidths; None if several would fit."""
    ratio = _ratio(table)
    if not table.rows[0].dtype and (ratio or 0) < 1.01:
        return None  # one column of speeds, or two that another program defines
    factor_of_all = 2.0 if kind is CollectiveKind.ALL_REDUCE else 1.0
    if ratio is None or ratio >= factor_of_all or bus_factor(kind, 2) == bus_factor(kind, 4):
        return None
    ranks = factor_of_all / (factor_of_all - ratio)
    near = round(ranks)
    speed = max(half[1] for row in table.rows for half in row.halves)
    spread = ranks**2 / factor_of_all * ratio * _ROUNDING / speed
    return near if 2 <= near <= 64 and max(abs(ranks - near), spread) < 0.2 else None
