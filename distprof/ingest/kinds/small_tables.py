"""Small tables of other programs: tokens per expert, readiness of input, collectives by rank.

docs/concepts/expert-imbalance.md has the forms of counts per expert, and
docs/how-to/read-training-logs.md the columns of the others. HTA's table of kernels
(``TraceAnalysis.get_gpu_kernel_breakdown()[1].to_csv(…)``) has no group and no size, so each kernel
is a class. Source: facebookresearch/HolisticTraceAnalysis, ``hta/analyzers/breakdown_analysis.py``.

Throughput by the number of GPUs or nodes is text as people type it: a number of GPUs and a rate,
the time of an iteration, of an epoch or of the job in each line or sentence, a line with the number
before lines with the rest, or a table with both as columns.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, groupby, product
from math import prod
from operator import truediv
from statistics import median, mode
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from distprof.bounds import Bound, patterns_beside
from distprof.ingest.communication import collective_kind
from distprof.ingest.files import beginning, decoded, refusing, whole
from distprof.ingest.kinds import Source, known_sources
from distprof.ingest.kinds.logs import NCCL_SETTINGS, TRAINING_LOG, fits_training_log
from distprof.ingest.kinds.operator_table import fits_operator_table
from distprof.ingest.metadata import parse_ranks
from distprof.ingest.wrapped import untagged, unwrapped
from distprof.run.evidence import (
    CollectiveSummary,
    ExpertCounts,
    InputReadiness,
    ScalingTable,
    SummaryClass,
)
from distprof.units import seconds_in

COUNTS_BOUND = Bound(reads="tokens per expert", num_bytes=64_000_000, rows=8_000_000, depth=1_000)
_HEAD_BYTES = 1 << 16
_BEGINS_WITH_COUNTS = re.compile(rb"\s*\[\s*\[\s*\d")
_HAS_COUNTS = re.compile(rb'"(?:domains"\s*:\s*\{[^{}\[\]]*\[\s*\[|layers"\s*:\s*\[\s*\[)\s*\d')
_NOT_COUNTS = (b'"traceEvents"', b'"schemaVersion"', b'"schema":"distprof.')
_refuse_counts = refusing(
    expected="counts per expert, a list for each layer: "
    '[[…], …], {"layers": […]} or {"domains": {…}}',
    fix="write one whole number per expert and layer; docs/concepts/expert-imbalance.md shows how",
)


def fits_expert_counts(source: str) -> bool:
    """Whether a file begins like counts of tokens per expert."""
    start = beginning(source, _HEAD_BYTES, endings=(".json",))
    is_other = any(word in start for word in _NOT_COUNTS)
    return not is_other and bool(_BEGINS_WITH_COUNTS.match(start) or _HAS_COUNTS.search(start))


_MAX_LAYERS = 10_000
_Layer = Annotated[list[Annotated[int, Meta(ge=0, lt=1 << 53)]], Meta(min_length=1)]
_Layers = Annotated[list[_Layer], Meta(min_length=1, max_length=_MAX_LAYERS)]


class _Counts(msgspec.Struct):
    """The document; its layers are names if there are domains."""

    domains: Annotated[dict[str, _Layers], Meta(min_length=1, max_length=1_000)] | None = None
    layers: (
        Annotated[list[int | str | _Layer], Meta(min_length=1, max_length=_MAX_LAYERS)] | None
    ) = None
    num_experts: int | None = None
    top_k: Annotated[int, Meta(gt=0, lt=1 << 53)] | None = None
    model: Any = None


def read_expert_counts(source: str) -> ExpertCounts:
    """Read counts of tokens per expert."""
    read: Any = decoded(source, COUNTS_BOUND, _Counts | _Layers, _refuse_counts)  # type: ignore[arg-type]
    document = read if isinstance(read, _Counts) else _Counts(layers=read)
    parts: dict[str, Any] = document.domains or {"": document.layers or []}
    first = next(iter(parts.values()))
    num_experts = len(first[0]) if first and isinstance(first[0], list) else 0
    for name, layers in parts.items():
        where = f"domains.{name}" if name else "layers"
        if len(layers) != len(first) or not layers:
            _refuse_counts(source, f"{len(layers) or 'no'} layers under {where}")
        for index, row in enumerate(layers):
            if not isinstance(row, list) or len(row) != num_experts:
                _refuse_counts(source, f"not {num_experts} counts under {where}[{index}]")
    names = document.layers if document.domains and document.layers else range(len(first))
    if not len({*map(str, names)}) == len(names) == len(first):
        _refuse_counts(source, f"{len({*map(str, names)})} different names under layers")
    if document.num_experts not in (None, num_experts):
        found = f"{num_experts} counts per layer, but num_experts is {document.num_experts}"
        _refuse_counts(source, found)
    return ExpertCounts(
        tokens={name: np.array(layers, dtype=np.int64) for name, layers in parts.items()},
        layers=tuple(map(str, names)),
        top_k=document.top_k,
        model=document.model if isinstance(document.model, str) else "",
        notes=("Tokens per expert are counts from a file; nothing was timed.",),
    )


EXPERT_COUNTS = Source(
    bound=COUNTS_BOUND,
    place=10,
    origin="table of expert counts",
    fits=fits_expert_counts,
    read=read_expert_counts,
    notes="assumed",
)


TIME = "event_time"
READINESS_BOUND = Bound(
    reads="input readiness per rank",
    num_bytes=64_000_000,
    rows=5_000_000,
    names=20_000,
    depth=1_000,
)
_refuse_readiness = refusing(
    expected=f'columns of readiness per rank, {{"{TIME}": […], "0": […], "1": […]}}',
    fix="export the columns again, all with the same length",
)


def fits_input_readiness(source: str) -> bool:
    """Whether a file begins like such columns; never raises for other files."""
    start = beginning(source, _HEAD_BYTES, endings=(".json", ".json.gz"))
    return start.lstrip().startswith(b"{") and f'"{TIME}"'.encode() in start[:4_096]


def read_input_readiness(source: str) -> InputReadiness:
    """Read input readiness."""
    columns = decoded(source, READINESS_BOUND, dict[str, list[Any]], _refuse_readiness)
    ranks = sorted((int(name), name) for name in columns if name.isdecimal() and len(name) < 10)
    if READINESS_BOUND.names is not None and len(ranks) > READINESS_BOUND.names:
        _refuse_readiness(source, f"{len(ranks):,} ranks, more than {READINESS_BOUND.names:,}")
    read = (map(_number, map(str, columns[name])) for name in (TIME, *(n for _, n in ranks)))
    times, *values = (np.array([*column], np.float64) for column in read)  # NaN for no number
    if not ranks or not len(times):
        _refuse_readiness(source, "no rank column, or no time column")
    if any(len(column) != len(times) for column in values):
        _refuse_readiness(source, "columns of different lengths")
    ratio = np.array(values, np.float64)
    absurd = (ratio < 0) | (ratio > 1)
    ratio[absurd] = np.nan
    known = np.isfinite(times) & (np.abs(times) < 1e12)
    order = np.argsort(times[known], kind="stable")
    notes = [f"Skipped values outside 0 to 1: {int(absurd.sum()):,}."] * bool(absurd.any())
    notes += [f"Skipped samples without a time: {int((~known).sum()):,}."] * (not known.all())
    return InputReadiness(
        time_s=times[known][order].astype(np.int64),
        ranks=tuple(rank for rank, _ in ranks),
        ratio=ratio[:, known][:, order],
        notes=tuple(notes),
    )


INPUT_READINESS = Source(
    bound=READINESS_BOUND,
    place=100,
    origin="table of input readiness",
    name="input readiness per rank",
    fits=fits_input_readiness,
    read=read_input_readiness,
)


COLUMNS = ("rank", "Collective name", "dur_mean", "operation_count")
_HTA_COLUMNS = {"name", "kernel_type", "rank"}
_UNITS = {"sum (ns)": 1.0, "sum (us)": 1e3}

_NO_GROUPS = (
    "The table names no process groups: distprof compares ranks as if every collective ran across "
    "all of them."
)
SUMMARY_BOUND = Bound(reads="a table of collectives per rank", num_bytes=128_000_000, rows=500_000)
MAX_MICROSECONDS = 1e12
_WAITS = "Breakdown with straggler effect"
_CUT = "The table is cut in {}, so times of the last operations are missing: keep all of it."
_LARGEST = 1 << 53
_LOGGER = b"Comm. Op            Message Size"
_CALL = re.compile(
    r"\| comm op: (\w[^|\n]{0,99}?) \| time \(ms\): ([\d.]{1,20}) \| msg size: ([^|\n]{2,20}?) \|"
)
_HEADS = re.compile(r"Message Size|Count|\w[\w ]{0,40}\(\w+\)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)B")


_refuse_summary = refusing(
    expected=f"a CSV table of collectives per rank, with the columns {', '.join(COLUMNS)}",
    fix="write the table again, for example with TraceLens' NCCL analysis",
)


def fits_collective_summary(source: str) -> bool:
    """Whether a file begins like such a table; never raises for other files."""
    if _LOGGER in (text := beginning(source, _HEAD_BYTES)):
        return True
    if b"| comm op: " in text and not TRAINING_LOG.fits(source):
        return _CALL.search(text.decode("utf-8", "replace")) is not None
    start = beginning(source, _HEAD_BYTES, endings=(".csv", ".csv.gz"))
    header = start.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace")
    cells = {cell.strip().strip('"') for cell in header.split(",")}
    return set(COLUMNS) <= cells or (cells >= _HTA_COLUMNS and bool(cells & _UNITS.keys()))


def read_collective_summary(source: str) -> CollectiveSummary:
    """Read a table of collectives by rank."""
    classes: dict[SummaryClass, int] = {}
    rows: list[tuple[int, int, int, int]] = []
    num_broken = 0
    has_groups = True
    waited = spent = 0.0
    cut = ""
    for entry in _entries(source):
        cut = entry.get("cut", "")
        has_groups &= "kernel_type" not in entry
        waited += _number(entry.get("straggler")) or 0.0
        spent += (_number(entry.get("straggler")) and _number(entry.get("total"))) or 0.0
        row = _row(entry, classes)
        if row is None:
            num_broken += 1
            continue
        if len(rows) == SUMMARY_BOUND.rows:
            _refuse_summary(source, f"more than {SUMMARY_BOUND.rows:,} rows")
        rows.append(row)
    if not rows:
        _refuse_summary(source, f"no readable row, {num_broken:,} unreadable rows")
    num_broken -= bool(cut)
    table = np.array(rows, np.int64)
    notes = [f"Unreadable rows, skipped: {num_broken:,}."] if num_broken else []
    notes += [] if has_groups else [_NO_GROUPS]
    notes += [_CUT.format(cut)] * bool(cut)
    return CollectiveSummary(
        classes=tuple(classes),
        class_index=table[:, 0],
        rank=table[:, 1],
        num_calls=table[:, 2],
        mean_ns=table[:, 3],
        wait_ratio=min(waited / spent, 1.0) if spent else None,
        notes=tuple(notes),
    )


def _entries(source: str) -> Iterator[Mapping[str, str]]:
    data = whole(source, SUMMARY_BOUND.num_bytes, _refuse_summary)
    text = data.decode("utf-8-sig", "replace").replace("\0", "")
    if calls := _CALL.findall(text):  # each as it ends, of the first rank
        rows = (f"{name}\n{size}  1  {ms}" for name, ms, size in calls)
        text = "\n".join(["Comm. Op  Message Size  Count  Total Latency(ms)", *rows])
    if calls or _LOGGER in data:
        yield from _logged(text)
        return
    try:
        for entry in csv.DictReader(text.splitlines(keepends=True), restval=""):
            if not entry.keys() >= _HTA_COLUMNS:
                yield entry
            elif entry["kernel_type"] == "COMMUNICATION" and entry["name"] != "others":
                yield _of_hta(entry)
    except csv.Error as error:
        _refuse_summary(source, f"{error}")


def _logged(text: str) -> Iterator[Mapping[str, str]]:
    """Rows of DeepSpeed's logger of communication, which names an operation above its sizes."""
    head: list[str] = []
    name = cut = ""
    _, _, waits = text.rpartition(_WAITS)  # the same calls again, each divided
    for line in (waits if "Comm. Op" in waits else text).splitlines():
        cells = re.split(r"\s{2,}|\s+\|\s+", line.strip())
        _, is_head, names = line.partition("Comm. Op")  # behind the prefix of a log
        if is_head:
            head = [one.strip() for one in _HEADS.findall(names)]
        elif not (size := _SIZE.fullmatch(cells[0])):
            name = cut = cells[0]
        elif len(cells) != len(head):
            cut = name
        else:
            row, cut = dict(zip(head, cells, strict=True)), ""
            parts = (row.get(f"Total {one}(ms)") for one in ("comm lat", "straggler"))
            total = _number(row.get("Total Latency(ms)")) or sum(_number(one) or 0 for one in parts)
            num_bytes = float(size[1]) * 1_024 ** " KMGT".index(size[2] or " ")
            yield {
                "rank": "0",
                "Collective name": name,
                "dtype": "byte",
                "In msg nelems": str(num_bytes),
                "operation_count": row.get("Count", ""),
                "dur_mean": str(1e3 * total / (_number(row.get("Count")) or 1)),
                "straggler": row.get("Total straggler(ms)", ""),
                "total": str(total),
            }
    if collective_kind(cut[:200]):
        yield {"cut": cut}


def _row(
    entry: Mapping[str, str], classes: dict[SummaryClass, int]
) -> tuple[int, int, int, int] | None:
    rank, calls = _whole(entry.get("rank")), _whole(entry.get("operation_count"))
    mean = _number(entry.get("dur_mean"))
    if rank is None or not calls or mean is None or not 0 <= mean < MAX_MICROSECONDS:
        return None
    from distprof.costs.operators import element_bytes

    item = element_bytes(entry.get("dtype") or "")
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


def _of_hta(entry: dict[str, str]) -> dict[str, str]:
    """A row of HTA's table in the columns of the others: each kernel is a group of its own."""
    unit = next((unit for unit in _UNITS if unit in entry), "")
    spent, mean = (_number(entry.get(name)) or 0.0 for name in (unit, unit.replace("sum", "mean")))
    return entry | {
        "Process Group Name": entry["name"][:200],
        "Collective name": entry["name"],
        "operation_count": f"{spent / mean if 0 < mean <= spent else 0.0:.0f}",
        "dur_mean": str(mean * _UNITS.get(unit, 1.0) / 1e3),
    }


def _whole(text: str | None) -> int | None:
    value = _number(text)
    return int(value) if value is not None and value >= 0 else None


def _number(text: str | None) -> float | None:
    """A number with or without commas between thousands; None for anything else, as one cut off."""
    try:
        value = float((text := text or "").replace(",", ""))
    except ValueError:
        return None
    return value if abs(value) < _LARGEST and text[-1:] != "." else None


COLLECTIVE_SUMMARY = Source(
    bound=SUMMARY_BOUND,
    place=90,
    origin="table of collectives",
    name="a table of collectives per rank",
    fits=fits_collective_summary,
    read=read_collective_summary,
)

# Throughput by the number of GPUs ----------------------------------------------------------------

SCALING_BOUND = Bound(reads="throughput by GPUs", num_bytes=1 << 16)
_ANY = range(1 << 20)  # Numbers of GPUs; there may be no workers that load data
_SHORT = 4_000
"""Characters of a text in which two numbers of GPUs make a comparison; a longer one needs three."""
_WORDS = "zero one two|zwei|deux|dos|dois|duas|две|двух three|drei|trois|tres|три|трёх"
_WORDS += " four|vier|quatre|cuatro|quatro|четырёх five six seven eight|acht|huit|ocho|oito|восьми"
_NUMBERS = {one: n for n, word in enumerate(_WORDS.split()) for one in word.split("|")}
_NUMBERS |= {"both": 2} | dict(zip("双两二三四八", (2, 2, 2, 3, 4, 8), strict=True))  # others: one
_TIMES = {"half": 0.5, "twice": 2, "double": 2, "two": 2, "three": 3, "triple": 3, "four": 4}
_CONTRASTS = ("of_chip", "of_mode", "of_precision", "of_way", "of_change")
_MOST_WORDS = 7  # Of a name in a sentence
_UNLIKE = 5  # Ratio of shares of a speed that are those of different work
_MOST_APART = 100  # Ratio of times that are hardly those of the same work
_WORK = ("size", "hardware", "amount")  # What lines name that are of different work
_NEAR = 40  # Characters before a speed that may name a part of an iteration
_JOB_PER_S = 1 / 600  # What takes longer is no iteration
_SHORTEST_S = 1e-12
_ROUNDED = 0.0051  # A share that is rounded differs by less
_MOST_STATED = 6  # Speeds that a text compares in sentences
_NEXT = 3  # Lines from a speed to one that is set against it
_MOST_TOLD = 5  # Speeds of one run below its title
_LONG = 160  # Characters before and behind a speed that are quoted
_FEWEST_REPORTS = 3  # of a log that says more than words next to it
_RANGE = 0.6  # Share of the end of a range that its beginning is, so that their mean is a time
_SAME_SPEED = 0.95  # Share of a speed from which another is the same
_RUNS_APART = 0.2  # Difference of two runs on as many GPUs from which their settings differ
_FEWEST_RANKS, _SAME, _MOST_EFFICIENT = 3, 0.01, 1.2
_form = partial(re.compile(r"\d[\d.,:]*").sub, "#")  # Lines of one kind differ in numbers only
_NARROW = str.maketrans("（）：", "():")
_MARKS = " \t*#>`:|-–—~≈=()[]\"'“”"
_LABEL, _MOST_ROWS, _MOST_CELLS = 60, 200, 40  # Characters of a name; rows and columns of a table
_PATTERNS = patterns_beside(__package__, "scaling.toml", WORD=_WORDS.replace(" ", "|"))
_BETWEEN = ("bars", "tabs", "spaces", "commas")  # between cells, the first that a row has
_refuse_scaling = refusing("throughput of several numbers of GPUs", "name a file with such a table")


class _Value(msgspec.Struct, frozen=True):
    """A throughput, of all or each, or times as rates: of iterations, an epoch or a whole job."""

    kind: str  # "rate", "each", "iterations" or "time".
    per_s: float
    at: int  # Its place in the line.
    end: int = 0  # Where it ends.
    unit: str = ""  # What a rate counts, by its first letters.


def _values(line: str) -> Iterator[_Value]:
    is_of_step = "epoch" not in line.lower() and _PATTERNS["of_iterations"].search(line)
    for found in _PATTERNS["value"].finditer(line):
        if _PATTERNS["hoped"].search(line, 0, found.start()):
            continue
        if _PATTERNS["of_one_part"].match(line, found.end()):
            continue
        seconds = _number(found["bare"] or found["seconds"]) or 0.0
        for number, unit in _PATTERNS["duration"].findall((found["time"] or "").casefold()):
            low, high = (_number(one) or 0.0 for one in (found["low"] or number, number))
            seconds += (low > _RANGE * high) * (low + high) / 2 * seconds_in(unit)
        if seconds > _SHORTEST_S and not _PATTERNS["of_another"].search(line, 0, found.start()):
            kind = "iterations" if found["each"] or found["bare"] or is_of_step else "time"
            per_s = int(found["steps"] or (is_of_step and is_of_step["many"]) or 1) / seconds
            yield _Value(kind, per_s, max(found.start(), found.start("seconds")), found.end())
        unit = found["unit"] or found["unit_before"] or ""
        for text in filter(None, map(found.__getitem__, ("rate", "was", "after", "got"))):
            low, high = (_number(one) or 0.0 for one in (found["least"] or text, text))
            if low > _RANGE * high:
                value = (low + high) / 2
                yield _Value(
                    _kind_of_rate(unit), value, found.start(), found.end(), unit[:2].lower()
                )


def _clock(found: re.Match[str]) -> str:
    """The duration of a clock, for example “65 s” of “1:05”."""
    return f"{3_600 * int(found[1] or 0) + 60 * int(found[2]) + float(found[3]):g} s"


def _kind_of_rate(unit: str) -> str:
    if _PATTERNS["is_iteration"].match(unit):
        return "iterations"
    return "each" if _PATTERNS["of_gpu"].search(unit) else "rate"


def _counted(line: str) -> list[tuple[int, str, int]]:
    """Numbers of GPUs and nodes in a line, with what they count and their places."""
    found = []
    matches = [*_PATTERNS["count"].finditer(line)]
    for match in [one for one in matches if not one["n_load"]] or matches:
        known = {name: text for name, text in match.groupdict().items() if text}
        numbers = (text.lower() for name, text in known.items() if name.startswith("n_"))
        count = prod(
            int(n) if n.isdecimal() else _NUMBERS.get(n, n.count(",") + 1) for n in numbers
        )
        of = next((text for name, text in known.items() if name.startswith("of_")), "gpu")
        if count in _ANY[of.lower() != "worker" :]:
            found.append((count, _of(of), match.start()))
    return found


@lru_cache(1024)  # texts repeat lines, which several readers ask about
def _counts(line: str) -> Sequence[tuple[int, str, int]]:
    """Numbers of GPUs or nodes in a line: of all GPUs, if it says how many a node has."""
    found = _counted(line)
    nodes, gpus = ([one for one in found if one[1] == of] for of in ("nodes", "GPUs"))
    if len(gpus) in (1, len(nodes)) and nodes and _PATTERNS["each_node"].search(line):
        pairs = zip(nodes, gpus * (len(nodes) // len(gpus)), strict=True)
        return [(node[0] * gpu[0], "GPUs", node[2]) for node, gpu in pairs]
    return nodes if len(nodes) > len(gpus) else gpus


def _of(name: str) -> str:
    return "nodes" if _PATTERNS["nodes"].match(name) else "GPUs"


def _number_in(name: str) -> int | None:
    """Number of GPUs or nodes in a cell, for example “8”, “8 x A100” and “single GPU”."""
    first = _whole(name.split(" ")[0])
    return next((count for count, *_ in _counts(name)), None) if first is None else first


def _head_kind(head: str) -> str:
    """What a column with this head holds: "time", "iterations" or "rate"; empty for another."""
    if _PATTERNS["head_of_times"].search(head):
        return "iterations" if _PATTERNS["of_iterations"].search(head) else "time"
    rate = _PATTERNS["head_of_rates"].search(head)
    return _kind_of_rate(rate[0]) if rate else ""


def _tables(lines: Iterable[str]) -> Iterator[tuple[str, list[list[str]]]]:
    """Tables, each with the line above it: rows of as many cells, filled up on the left."""
    above, rows, ways = "", list[list[str]](), 0
    is_clock = _PATTERNS["clock_cell"].fullmatch
    for line in map(str.strip, (*lines, "")):
        if not line:
            if rows:
                width = max(map(len, rows))
                yield above, [[""] * (width - len(row)) + row for row in rows[:_MOST_ROWS]]
            rows = []
            continue
        split = (_PATTERNS[way].split(_PATTERNS["edges"].sub("", line)) for way in _BETWEEN)
        way, cells = next((one for one in enumerate(split) if len(one[1]) > 1), (ways, []))
        rows, ways = [] if way < ways else rows, way  # a sentence above may have commas
        cells = [] if _BETWEEN[way] == "commas" and _PATTERNS["talk"].search(line) else cells
        if 0 < len(cells) <= _MOST_CELLS and any(map(str.isalnum, line)):
            rows.append([_clock(found) if (found := is_clock(one)) else one for one in cells])
        elif not rows:
            above = line


def _labels(row: Sequence[str], *, is_turned: bool) -> tuple[str, dict[int, str]]:
    """What the cells of a row name (GPUs, nodes, ways or columns), and where they do."""
    is_count, is_way = _PATTERNS["counted"].match, _PATTERNS["way"].match
    head = next(filter(None, row), "")
    of = "nodes" if any(map(_PATTERNS["of_nodes"].match, map(str.lower, row))) else "GPUs"
    if _PATTERNS["head_of_counts"].search(head):
        numbers = ((at, one, _number_in(one)) for at, one in enumerate(row) if one != head)
        return of, {at: one for at, one, number in numbers if number is not None and number in _ANY}
    known = {at: one for at, one in enumerate(row) if is_way(one) or is_count(one)}
    if len(known) > 1 and all(map(is_count, known.values())):
        return of, known
    sides = {at: name for at, name in enumerate(map(_side, row)) if name}
    timed = [at for at, one in enumerate(row) if _head_kind(one)]
    if len(timed) > 1 == sum(at not in sides for at in timed):  # its head has no more than others
        sides |= {at: row[at] for at in timed if at not in sides and "%" not in row[at]}
    if not is_turned or _PATTERNS["head_of_ways"].search(head):
        known = {at: one for at, one in (known | sides).items() if at or not is_turned}
    are_ways = all(is_way(one) or is_count(one) for one in known.values())
    return "ways" if is_turned or are_ways else "columns", known


class _Row(NamedTuple):
    """Speeds in a row or a column of a table, and what they are those of."""

    of: str  # What the names are, as of labels.
    names: tuple[str, ...]
    name: str  # Of the row itself.
    kind: str
    rates: tuple[float, ...]


def _table_rows(lines: Iterable[str]) -> Iterator[_Row]:
    """Speeds in tables with a column or a row for each number of GPUs, or way to train."""
    unit = next(filter(_PATTERNS["times_are"].match, lines := [*lines]), "")
    for (above, table), is_turned in product(_tables(lines), (False, True)):
        of, names, heads, batches = "", dict[int, str](), list[str](), dict[int, float]()
        columns = [*map(list, zip(*table, strict=True))] if is_turned else table
        if is_turned and len(columns) == 2:  # a name and its speed
            columns[0][0] = columns[0][0] or "run"
        for row in columns:
            now, labels = _labels(row, is_turned=is_turned)
            others = (cell for at, cell in enumerate(row) if at not in labels)
            is_data = any(map(_speed, row)) or any(map(_number, others))
            if len({*labels.values()}) > 1 and not is_data:
                of, names, heads = now, labels, row
            elif is_turned and of == "ways" and _PATTERNS["head_of_batch"].fullmatch(row[0]):
                batches = {at: _number(row[at]) or 1.0 for at in names}
            elif names:
                first = (at for at in names if _number(row[at]) or next(_values(row[at]), None))
                name = ", ".join(filter(None, row[: next(first, min(names))]))
                says: tuple[str, ...] = (name, unit)
                says += (heads[0], above) * (not _PATTERNS["no_side"].search(name))
                for some in _of_each_way(names, columns) if is_turned else (names,):
                    speeds: dict[str, tuple[str, float]] = {}
                    for at, one in some.items():
                        if speed := _speed(row[at], heads[at], *says):
                            is_step = speed[0] == "iterations" or _PATTERNS["of_step"].search(name)
                            size = batches.get(at, 1.0) if is_step else 1.0
                            speed = (speed[0], speed[1] * size)
                            is_better = of in ("GPUs", "nodes") and speeds.get(one, speed) < speed
                            speeds |= {one: speed} if is_better or one not in speeds else {}
                    kinds = {kind for kind, _ in speeds.values()}
                    if len(speeds) > 1 and len(kinds) == 1:
                        rates = tuple(rate for _, rate in speeds.values())
                        yield _Row(of, tuple(speeds), name, kinds.pop(), rates)


def _of_each_way(names: Mapping[int, str], columns: Iterable[list[str]]) -> list[dict[int, str]]:
    """Places of numbers of GPUs that a table has several times, of each way that a column names."""
    for column in columns if len({*names.values()}) < len(names) else ():
        ways = dict.fromkeys(column[at] for at in names)
        is_named = all(re.search("[a-zA-Z]{2}", way) and not _counts(way) for way in ways)
        if 1 < len(ways) < len(names) and is_named:
            return [{at: names[at] for at in names if column[at] == way} for way in ways]
    return [{**names}]


def _table_pairs(rows: Iterable[_Row]) -> tuple[dict[int, float], str, str]:
    """Numbers of GPUs or nodes to throughput, its kind, and what is counted."""
    kinds = ("rate", "each", "time", "iterations")
    counted = (row for row in rows if row.of in ("GPUs", "nodes"))
    for row in sorted(counted, key=lambda one: (kinds.index(one.kind), -len(one.names))):
        pairs = zip(map(_number_in, row.names), row.rates, strict=True)
        return {n: r for n, r in pairs if n is not None and n in _ANY}, row.kind, row.of
    return {}, "iterations", "GPUs"


def _by_name(rates: Mapping[str, float], of: str, *notes: str) -> ScalingTable:
    """Ranks, ways to train or speeds, the slowest first."""
    names, per_s = zip(*sorted(rates.items(), key=lambda one: one[1]), strict=True)
    names = tuple(name + ")" * (name.count("(") - name.count(")")) for name in names)
    return ScalingTable(counts=(1,) * len(names), rates=per_s, of=of, names=names, notes=notes)


def _rank_rates(lines: Sequence[str]) -> dict[str, float]:
    """Rates of ranks that are listed with one time each."""
    named = re.search(r"\((m?s)\)", " ".join(lines))
    return {
        f"rank {int(found[1])}": 1
        / (time * seconds_in((found[3] or (named[1] if named else "s")).casefold()))
        for found in filter(None, map(_PATTERNS["of_rank"].fullmatch, lines))
        if (time := _number(found[2])) and (found[3] or named)
    }


def _are_unlike(lines: Sequence[str], by: Sequence[str] = _WORK) -> bool:
    """Whether all speeds of some GPUs are of models, or kinds of GPUs, that differ like numbers."""
    ends = (below if not _counts(below) else "" for below in (*lines[1:], ""))
    ways = zip(lines, ends, strict=False)  # and the line below, which may have the speed
    told = [line for line, end in ways if _counts(line) and any(_values(f"{line} {end}"))]
    numbers = {count for line in told for count, *_ in _counts(line)}
    found = ([{*_PATTERNS[of].findall(one.lower())} for one in told] for of in by)
    return len(numbers) > 1 and any(all(some) and len({*chain(*some)}) > 1 for some in found)


def _sentence_pairs(
    lines: Sequence[tuple[str, Sequence[tuple[int, str, int]], list[_Value]]], kind: str
) -> dict[tuple[str, int], float]:
    """What is counted and how many to the first value of a kind, or the best of lines alike."""
    found: dict[tuple[str, int], list[float]] = {}  # Several below a line that only counts.
    forms: dict[tuple[str, int], str] = {}
    pending: tuple[str, int] | None = None
    again = 0.0  # The value that it has already.
    heading: object = None  # Whether the line that counts what is pending is one.
    values = [*chain(*(some for *_, some in lines))]
    units = ("", "/s", mode([one.unit for one in values if one.kind == kind and one.unit] or [""]))
    for line, counts, all_values in lines:
        form = _form(" ".join(line.lower().split()))
        values = [one for one in all_values if one.kind == kind and one.unit in units]
        is_named = heading and pending not in found and not values  # so a command says no other
        if not counts or (is_named and _PATTERNS["command"].fullmatch(form)):
            if again and values and abs(values[0].per_s / again - 1) > _RUNS_APART:
                return {}
            if pending and values and (heading or pending not in forms):
                found.setdefault(pending, []).append(values[0].per_s)
            elif pending in found:
                pending = None
            continue
        each = [*zip(counts, values, strict=False)]
        if len(counts) != len(values):
            links = (_PATTERNS["linked"].match(line, value.end) for value in values)
            ends = (o.end() if o else v.at for o, v in zip(links, values, strict=True))
            known = ([one for one in counts if one[2] < end] for end in ends)
            each = [(some[-1], value) for some, value in zip(known, values, strict=True) if some]
        for (count, of, _), value in each:
            rates = found.setdefault((of, count), [value.per_s])
            if forms.setdefault((of, count), form) == form:
                rates[0] = max(rates[0], value.per_s)
        last = max((value.at for value in values), default=-1)
        waiting = {(of, count) for count, of, at in counts if at > last}
        pending = waiting.pop() if len(waiting) == 1 else None
        again = found.get(pending, [0.0])[0] if pending else 0.0
        heading = pending and _PATTERNS["heading"].fullmatch(form)
    order = sorted(found) if all(len(c) == len(v) for _, c, v in lines if c and v) else found
    return {key: median(found[key]) for key in order}


def _related(line: str) -> dict[tuple[str, int], float]:
    """Throughput of two numbers of GPUs, if a sentence says how many times that of the other."""
    counts, ratio = _counts(line), _PATTERNS["ratio"].search(line)
    several = [*{(of, count) for count, of, _ in counts if count > 1}]
    if (gain := _PATTERNS["gain"].search(line)) and len(several) == 1:
        return {(several[0][0], 1): 1.0, several[0]: float(gain["gain"])}
    if len(counts) == 2 and _PATTERNS["no_ratio"].search(line):
        return {(of, count): 1.0 for count, of, _ in counts}
    others = _PATTERNS["expected"].search(line) or _PATTERNS["contrast"].search(line)
    if ratio is None or len(counts) != 2 or others:
        return {}
    value = float(ratio["n"] or _TIMES[ratio["word"].lower()])
    if ratio["percent"]:
        value = value / 100 if ratio["share"] else 1 + value * (-1 if ratio["slow"] else 1) / 100
    if ratio["longer"] or (ratio["slow"] and not ratio["percent"]):
        value = 1 / value if value else 0.0
    before = [_PATTERNS["reference"].search(line, 0, at) for *_, at in counts]
    other, one = counts if before[0] and not before[1] else counts[::-1]
    return {(other[1], other[0]): 1.0, (one[1], one[0]): value} if value > 0 else {}


def _lines(text: str) -> list[str]:
    """Sentences and lines, with numbers that can be read."""
    text = _PATTERNS["prefix"].sub("", re.sub("[*`]", "", untagged(text.translate(_NARROW))))
    many = {one[:2] for one in _counted(text) if one[0] > 1}
    known = {of: f"{count} " for count, of in many if sum(of == other for _, other in many) == 1}
    in_a_row = _PATTERNS["in_a_row"]
    text = in_a_row.sub(lambda f: re.sub(r"(\d[\d.]*)", rf"\1 {f[2]}", f[1]), text)
    text = _PATTERNS["from_to"].sub(r"from \2 \1 to \3 \1", text)
    text = _PATTERNS["multi"].sub(lambda found: known.get(_of(found[1]), found[0]), text)
    text = _PATTERNS["alike"].sub(r"\1 \2", text)
    text = _PATTERNS["thousands"].sub(lambda found: f"{float(found[1]) * 1e3:.0f}", text)
    text = _PATTERNS["primes"].sub(r"\1:\2 min", text)
    text = _PATTERNS["clock"].sub(lambda found: f" {_clock(found)}", text)
    text = _PATTERNS["spelled"].sub(_in_digits, text)
    lines = (line[:1_000] for line in _PATTERNS["sentence"].split(text))
    return [line for line in lines if not _PATTERNS["aside"].match(line)]


def _in_digits(found: re.Match[str]) -> str:
    word, *more = found[0].lower().split()
    number = _NUMBERS.get(word, int(word != "half"))
    return f"{number + 0.5 * ('half' in (word, *more)):g}"


def _is_torn(lines: Sequence[str]) -> bool:
    """Whether rows of a table of Markdown have more cells than its head, which is then wrong."""
    widths = [len(line.strip("| ").split("|")) for line in lines]
    rulers = (at for at, line in enumerate(lines) if _PATTERNS["ruler"].fullmatch(line))
    return any(1 < widths[at] < min(widths[at + 1 : at + 3], default=0) for at in rulers)


def scaling_in(text: str) -> ScalingTable | None:
    """Throughput by the number of GPUs or nodes; None if the numbers are not in order."""
    lines = _lines(text)
    if _are_unlike(lines) or _is_torn(lines) or _PATTERNS["own_jobs"].search(text):
        return None
    rows = [*_table_rows(lines)]
    pairs, kind, of = _table_pairs(rows)
    listed = (re.sub(r":\s+", "\t", line, count=1) for line in lines)
    is_of_ways = not (pairs or any(row.of == "columns" for row in rows))
    if is_of_ways and (ways := _sides(rows, "ways") or _sides(_table_rows(listed), "ways")):
        return ways
    bare = (re.sub("(?i)worker", "", line) for line in lines)
    of_others = any(_counts(one) or _PATTERNS["column_of_counts"].search(one) for one in bare)
    if len(pairs) < 2:
        if len(of_ranks := _rank_rates(lines)) >= _FEWEST_RANKS:
            return _by_name(of_ranks, "ranks")
        of_load = "(?i)(?<=num_)worker" if of_others else "(?!)"
        lines = [re.sub(of_load, "_" * 6, line) for line in lines if line.strip()]
        read = [(line, _counts(line), [*_values(line)]) for line in lines]
        fewest = 2 if len(text) <= _SHORT else 3
        by_time = sorted(("iterations", "time"), reverse="epoch" in text.lower()) * (fewest == 2)
        typed = {kind: _sentence_pairs(read, kind) for kind in ("rate", "each", *by_time)}
        options = (
            (kind, of, {count: rate for (what, count), rate in found.items() if what == of})
            for kind, found in typed.items()
            for of in ("GPUs", "nodes")
        )
        kind, of, pairs = next((one for one in options if len(one[2]) >= fewest), ("", of, {}))
        if not pairs and (related := next(filter(None, map(_related, lines)), None)):
            is_of_each = any(map(_PATTERNS["of_iterations"].search, lines))
            is_of_each &= not any(map(_PATTERNS["gain"].search, lines))
            kind, of = "iterations" if is_of_each else "time", next(iter(related))[0]
            pairs = {count: rate for (_, count), rate in related.items()}
    if len(pairs) > 1 and _PATTERNS["of_loader"].search(text) and not of_others:
        return _by_name({f"num_workers={n}": rate for n, rate in pairs.items()}, "ways")
    if len(pairs) < 2 or 0 in pairs or [*pairs] not in (sorted(pairs), sorted(pairs, reverse=True)):
        return None
    kind = "iterations" if kind == "time" and _PATTERNS["same_steps"].search(text) else kind
    is_of_steps = kind == "iterations" or (kind == "time" and "epoch" not in text.lower())
    is_of_job = kind == "time" and is_of_steps and min(pairs.values()) < _JOB_PER_S
    has_more_work = is_of_job and "batch" in text and len({f"{n:.2g}" for n in pairs.values()}) == 1
    found = ((_counts(line), _PATTERNS["batch"].search(line)) for line in lines)
    sizes = [(int(batch[1]), counts[0][0]) for counts, batch in found if counts and batch]
    totals, each = {n for n, _ in sizes}, {n / count for n, count in sizes}
    if has_more_work or (is_of_steps and len(totals) > 1 and (is_of_job or len(each) > 1)):
        return None
    others = {value.per_s for line in lines for value in _values(line)} - {*pairs.values()}
    products = [count * rate for count, rate in pairs.items() if count > 1]
    are_each = kind == "rate" and any(abs(o / n - 1) < _SAME for o in others for n in products)
    is_per_step = is_of_steps and (kind == "iterations" or len(totals) > 1)
    is_per_step &= not _PATTERNS["same_batch"].search(text)
    grows = is_per_step or are_each or kind == "each" or bool(_PATTERNS["per_gpu"].search(text))
    told = [float(one) / 100 for one in filter(None, _PATTERNS["percent"].findall(text))]
    share = pairs[max(pairs)] / pairs[min(pairs)]
    shares = (share, share * min(pairs) / max(pairs))  # if the batch grows, and if it does not
    is_told = [any(abs(one - share) < _ROUNDED for one in told) for share in shares]
    if is_told[0] != is_told[1]:
        grows, is_per_step = is_told[0], False
    by_count = {count: rate * count if grows else rate for count, rate in sorted(pairs.items())}
    note = f"The share holds if the batch grows with the number of {of}."
    is_open = is_per_step and not (len(totals) > 1 or _PATTERNS["batch_of_each"].search(text))
    for rates in (by_count, dict(sorted(pairs.items())))[: 1 + is_open]:  # or they share a batch
        first, *more = (rate / count for count, rate in rates.items())
        if max(more) <= _MOST_EFFICIENT * first:
            break
    else:
        return None  # not the same work
    by_count, is_open = rates, is_open and rates is by_count
    of = "workers" if of == "GPUs" and _PATTERNS["of_cpus"].search(text) else of
    counts, by_all = zip(*by_count.items(), strict=True)
    return ScalingTable(counts=counts, rates=by_all, of=of, notes=(note,) * is_open)


class _Said(NamedTuple):
    """A speed, and what a text says of it."""

    line: str  # The sentence,
    told: str  # its words before the speed,
    before: str  # those from the speed before it on,
    typed: str  # the speed,
    behind: str  # and the rest.
    title: str  # What a line above names.
    kind: str
    per_s: float
    unit: str = ""  # Of a rate.

    def own_words(self, between: str) -> str:
        """Words before it, without those behind the speed before it, which end at a sign."""
        words = _PATTERNS[between].split(self.before, maxsplit=1)
        return self.before if self.told == self.before else "".join(words[1:])

    @property
    def name(self) -> str:
        """The name of a run in a list, which has a sign behind it; empty in a sentence."""
        label = _label(words := self.own_words("separator"))
        own = _PATTERNS["fillers"].sub("", label)
        is_listed = _PATTERNS["listed"].search(words)
        others = _PATTERNS["markup"].search(self.before), _PATTERNS["of_steps"].match(label)
        return label if is_listed and not any(others) and _PATTERNS["named"].search(own) else ""

    @property
    def places(self) -> tuple[str, ...]:
        """Where, or with what, it is measured, by the words before it and behind it."""
        before = _PATTERNS["filler"].sub("", self.own_words("break"))
        found = _PATTERNS["place"].search(before), _PATTERNS["place_behind"].match(self.behind)
        return tuple(one[1][-_LABEL:].strip(_MARKS) if one else "" for one in found)

    @property
    def quantity(self) -> str:
        """What it is that of: an epoch, 4,000 steps, tokens; empty if it does not say it."""
        if self.kind != "time":
            return self.kind if self.kind == "iterations" else f"{self.kind}{self.unit}"
        units = _PATTERNS["of_unit"].finditer(self.line)
        near = min(units, key=lambda unit: abs(unit.start() - len(self.told)), default=None)
        return (f"{near[1] or 1} {near[2]}".lower() if near[2] else near[0]) if near else ""

    @property
    def is_stated(self) -> bool:
        """Whether a sentence says that something takes so long or is so fast."""
        is_told = self.quantity or _PATTERNS["takes"].search(self.told)
        others = _PATTERNS["no_speed"].search(self.told), _PATTERNS["of_data"].match(self.behind)
        return bool(is_told and not any(others) and _PATTERNS["prose"].search(self.line))

    @property
    def is_of_a_part(self) -> bool:
        """Whether it is the speed of a part of an iteration, or not of training."""
        part = _PATTERNS["part"].search(near := self.before[-_NEAR:])
        return bool(part and not _PATTERNS["of_runs"].search(near, 0, part.start()))


def _said(lines: Sequence[str]) -> Iterator[_Said]:
    """Speeds and what the text says of them.

    Lines that differ only in their numbers are steps of one run, unless each has a name: their
    median counts.
    """
    title, is_other = "", None
    told = (line for line in lines if line.strip() and not _PATTERNS["share_cell"].search(line))
    for _, block in groupby(told, _form):
        alike = [*block]
        said = [[*_said_in(line, title)] for line in alike]
        are_named = all(one.name or any(one.places) for one in chain(*said))
        if not said[0]:
            title = alike[0] if _PATTERNS["title"].fullmatch(alike[0]) else title
            is_other = _PATTERNS["other_work"].match(alike[0])
        elif is_other:  # speeds of testing
            continue
        elif len(alike) < _FEWEST_REPORTS or are_named:
            yield from chain(*said)
        else:
            usual = median(some[0].per_s for some in said if some)
            yield said[0][0]._replace(line="", before="", per_s=usual)


def _label(words: str) -> str:
    """The last of some words, without verbs and articles around them."""
    return _PATTERNS["filler"].sub("", words).strip(_MARKS)[-_LABEL:]


def _said_in(line: str, title: str) -> Iterator[_Said]:
    """Speeds in a line or sentence below a title."""
    bare = _PATTERNS["joins"].sub("", title).strip(_MARKS)
    above = bare if _PATTERNS["way"].match(bare) else _label(_PATTERNS["clause"].split(bare)[-1])
    end = 0
    for value in filter(lambda one: one.per_s, _values(line)):
        told, typed = line[: value.at], line[value.at : value.end].rstrip(" ,")
        before, end = told[end:], value.at + len(typed)
        words = line, told, before, typed, line[end:], above
        yield _Said(*words, value.kind, value.per_s, value.unit)


def _speed(cell: str, *says: str) -> tuple[str, float] | None:
    """The kind of a speed in a cell, whose unit others may say, and the speed; None without."""
    kind = next(filter(None, map(_head_kind, says)), "")
    unit = _PATTERNS["unit_of_head"].search(" ".join(says[:2]))
    cell = f"{cell} {unit[1]}" if unit and _number(cell.strip("~≈ ")) else cell
    if printed := next(_values(cell), None):
        is_of_step = any(map(_PATTERNS["of_iterations"].search, says)) and printed.kind == "time"
        return "iterations" if is_of_step else printed.kind, printed.per_s
    number = _number(cell.strip("~≈ " + "%" * (kind == "each"))) if kind else None
    is_time = any(map(_PATTERNS["head_of_times"].search, says))
    return (kind, 1 / number if is_time else number) if number else None


def _sides(rows: Iterable[_Row], *of: str) -> ScalingTable | None:
    """The median share that each of several ways has of the speed of the fastest."""
    ways = [row for row in rows if row.of in of and not _PATTERNS["of_calls"].match(row.name)]
    whole = [row for row in ways if _PATTERNS["of_whole"].search(row.name)]
    whole = whole or [row for row in ways if not _PATTERNS["part"].search(row.name)]
    ways = whole or [row for row in ways if _PATTERNS["of_device"].search(row.name)] or ways
    if not ways:
        return None
    names, kind = mode((row.names, row.kind) for row in ways)
    alike = [row for row in ways if (row.names, row.kind) == (names, kind)]
    are_parts = len(alike) > 1 and all(_PATTERNS["part"].search(row.name) for row in alike)
    shares = ([rate / max(row.rates) for rate in row.rates] for row in alike)
    usual = [*map(median, zip(*shares, strict=True))]
    if are_parts:
        each = zip(*(row.rates for row in alike), strict=True)
        usual = [1 / sum(1 / rate for rate in rates) for rates in each]
    by_name = dict(zip(names, usual, strict=True))
    at = names.index(max(by_name, key=by_name.__getitem__))
    others = [row.name for row in alike if row.rates[at] < _SAME_SPEED * max(row.rates)]
    name = alike[0].name * (alike[0].of == "columns")
    note = f"This is the row {name}" if _PATTERNS["named"].search(name) else ""
    if len(alike) > 1:
        note = f"These are {'sums' if are_parts else 'medians'} of {len(alike)} rows"
        note += f", and in {len(others)} another is faster: {'; '.join(others[:3])}" * bool(others)
    return _by_name(by_name, "ways", *[f"{note}."][: len(note)])


def _side(head: str) -> str:
    """The way to train that the head of a column names; empty if it names something else."""
    label = _PATTERNS["of_side"].sub(" ", head).strip(_MARKS)
    is_other = any(_PATTERNS[one].search(label) for one in ("no_side", "part", "counted"))
    is_name = _PATTERNS["named"].search(label) and len(label.split()) < _MOST_WORDS
    return label if is_name and not is_other else ""


def _compared(text: str) -> ScalingTable | None:
    """Speeds of several ways or moments that a short text compares."""
    lines = _lines(text)
    if (table := _sides(_table_rows(lines), "ways", "columns")) is not None:
        return table
    if proved := _PATTERNS["proved"].search(text):
        first, second, ratio = (_number(proved[at]) or 1.0 for at in ("first", "second", "ratio"))
        if abs(first / second / ratio - 1) < _SAME:
            return _by_name({proved["one"]: 1 / first, proved["other"]: 1 / second}, "ways")
    is_other = _PATTERNS["formula"].search(text) or _are_unlike(lines, _WORK[:2])
    found = [] if len(text) > _SHORT or is_other else [*_said(lines)]
    for kind in ("iterations", "rate", "each", "time"):
        said = [one for one in found if one.kind == kind]
        are_whole = len(said) > 1 and not any(one.is_of_a_part for one in said)
        if are_whole and (table := _ways(said)) is not None:
            return table
    return _extremes(found, lines, is_changed=_PATTERNS["changed"].search(text) is not None)


def _ways(said: Sequence[_Said]) -> ScalingTable | None:
    """Speeds by the names of runs, or by the titles above them."""
    by_word: dict[str, float] = {}
    for words in map(_PATTERNS.__getitem__, _CONTRASTS):
        behind = [words.findall(one.places[1])[:1] for one in said]
        before = (words.findall(f"{one.title} {one.before}")[-1:] for one in said)
        known = [*chain(*(behind if any(behind) else before))]
        plain = [re.sub(r" gpus?$|\W", "", one.lower()) for one in known]
        num = next((at for at, one in enumerate(plain) if one in plain[:at]), len(plain))
        if len(known) == len(said) and num > len(by_word):
            by_word = dict(zip(known[:num], (one.per_s for one in said), strict=False))
    names = [(one.name, one.per_s) for one in said if one.name]  # of runs, or settings in each
    named = {} if {1} < {*Counter(name for name, _ in names).values()} else _alike(names)
    in_words = [one for one in said if _PATTERNS["prose"].search(one.line)]
    columns = zip(*(one.places for one in in_words or said), strict=True)
    places = next((column for column in columns if all(column)), ())
    placed = _alike(zip(places, (one.per_s for one in in_words or said), strict=False))
    is_open = said[0].kind == "iterations" and any(map(_counts, placed))  # their batch may grow
    units = {one.quantity for one in in_words or said}
    is_open |= sum(one.endswith(("epoch", "step")) for one in units) > 1
    placed = {} if is_open or any(map(_PATTERNS["moment"].search, placed)) else placed
    counts = Counter(one.title for one in said if one.title).values()
    are_lists = max(counts, default=0) > _MOST_TOLD and len({*counts}) > 1  # of other things
    are_lists |= len({_PATTERNS["duration"].match(one.typed) is None for one in said}) > 1
    below = {} if are_lists else _alike([(one.title, one.per_s) for one in said if one.title])
    chosen = next((some for some in (by_word, named, placed, below) if len(some) > 1), {})
    batches = {name: found for name in chosen if (found := _PATTERNS["batch"].search(name))}
    if batches.keys() == chosen.keys() and said[0].kind == "iterations":
        chosen = {name: rate * int(batches[name][1]) for name, rate in chosen.items()}
    slowest, fastest = min(chosen.values(), default=1), max(chosen.values(), default=1)
    differs = slowest < _SAME_SPEED * fastest or said[0].kind == "iterations"
    differs |= chosen is below and not in_words
    differs &= len(chosen) <= _MOST_STATED or len({*map(_form, chosen)}) > 1  # no series of steps
    differs &= not any(map(_PATTERNS["of_calls"].match, chosen))
    are_alike = said[0].kind != "time" or fastest < _MOST_APART * slowest
    return _by_name(chosen, "ways") if chosen and differs and are_alike else None


def _alike(said: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The speed of each name; of names with several, its usual share of the fastest."""
    each: dict[str, list[float]] = {}
    for name, rate in said:
        each.setdefault(name, []).append(rate)
    best = [*map(max, zip(*each.values(), strict=False))]
    shares = {name: [*map(truediv, rates, best)] for name, rates in each.items()}
    are_alike = all(max(some) <= _UNLIKE * min(some) for some in shares.values())
    return {name: best[0] * median(some) for name, some in shares.items() if are_alike}


def _are_set_against(lines: Sequence[str], first: _Said, second: _Said) -> bool:
    """Whether a text itself compares two speeds: in a list, or in sentences next to each other.

    These have a word of contrast, or both say with what they were measured.
    """
    begin, end = (lines.index(one.line) for one in (first, second))
    between = "\n".join(lines[begin + (begin < end) : end + 1])
    is_contrast = _PATTERNS["against"].search(between) is not None
    are_measured = all(_PATTERNS["measured"].search(one.line) for one in (first, second))
    is_near = end - begin <= _NEXT and (is_contrast or are_measured)
    ratio = max(first.per_s / second.per_s, second.per_s / first.per_s)
    counts = _PATTERNS["count_of_parts"].findall(f"{first.line} {second.line}")
    is_part = any(abs(ratio / int(count) - 1) < _ROUNDED for count in counts if int(count) > 1)
    said = (first.told, second.before) if begin == end else (first.line, between)
    works = {_PATTERNS["evaluates"].search(words) is None for words in said}
    if is_part or len(works) > 1 or _PATTERNS["or"].fullmatch(second.before):
        return False
    is_list = all(len(one.before.split()) < 3 for one in (first, second))
    return is_near or is_list or _form(first.before) == _form(second.before)


def _extremes(
    found: Sequence[_Said], lines: Sequence[str], *, is_changed: bool
) -> ScalingTable | None:
    """The slowest and the fastest of a few speeds of one quantity; all if they fall with time."""
    stated: dict[tuple[str, str], list[_Said]] = {}
    parts = {one.line for one in found if _PATTERNS["part_behind"].match(one.behind)}
    of = ""
    for one in found:
        of = one.quantity or of
        if one.is_stated and not one.is_of_a_part and one.line not in parts:
            for where in (one.line, ""):  # those in one sentence first
                stated.setdefault((of, where), []).append(one)
    early = _PATTERNS["early"].search
    for _, alike in sorted(stated.items(), key=lambda o: (not early(o[1][0].before), not o[0][1])):
        slow, *_, fast = order = sorted((*alike, alike[0]), key=lambda one: one.per_s)
        are_unlike = slow.per_s < _SAME_SPEED * fast.per_s < _SAME_SPEED * _MOST_APART * slow.per_s
        names = {one.told.strip().partition(" ")[::2] for one in alike}
        is_list = len(names) == len(alike) > 2 and len({words for _, words in names}) == 1
        if len(alike) > _MOST_STATED or not are_unlike or is_list:  # a list is of other things
            continue
        is_late = any(_PATTERNS["late"].search(one.before) for one in alike[1:])
        falls = is_late and not is_changed and [*dict.fromkeys(order[::-1])] == alike
        falls &= any(_PATTERNS["over_time"].search(one.line) for one in alike)
        if falls and early(fast.before):
            return _by_name({one.typed: one.per_s for one in alike}, "moments")
        if not _are_set_against(lines, *sorted((fast, slow), key=found.index)):
            continue
        starts = (o.line.rfind(" ", 0, max(len(o.told) - _LONG, 0)) + 1 for o in (fast, slow))
        told = (o.line[at:][: 2 * _LONG] for o, at in zip((fast, slow), starts, strict=True))
        said = "; ".join(dict.fromkeys(one.strip(" #>.") for one in told))
        are_times = all(_PATTERNS["duration"].search(one.typed) for one in alike)
        both = {one.typed: one.per_s for one in (slow, fast)}
        return _by_name(both, "times" if are_times else "rates", f"The text says: {said}.")
    return None


def fits_scaling(source: str) -> bool:
    """Whether a small text lists throughput by the number of GPUs; never raises.

    Logs of several jobs count, each below a heading with its number of GPUs.
    """
    table = scaling_in(text := _text(source))
    if not table or (table.names and fits_operator_table(source)):
        return False
    headings = filter(_PATTERNS["heading"].fullmatch, text.splitlines())
    counts = {count[:2] for heading in headings for count in _counts(heading)}
    least = 1 if table.names else _FEWEST_REPORTS
    return len(counts) > 1 or not fits_training_log(source, least=least)


def _text(source: str) -> str:
    """A small text; empty for anything else."""
    start = beginning(source, SCALING_BOUND.num_bytes)
    is_text = b"\0" not in start and len(start) < SCALING_BOUND.num_bytes
    text = unwrapped(start).decode("utf-8", "replace") if is_text else ""
    return "" if _PATTERNS["page"].search(text) else text


def read_scaling(
    source: str, of: Callable[[str], ScalingTable | None] = scaling_in
) -> ScalingTable:
    """Read throughput by the number of GPUs, or what else a function finds in a text."""
    data = unwrapped(whole(source, SCALING_BOUND.num_bytes, _refuse_scaling))
    return of(data.decode("utf-8", "replace")) or _refuse_scaling(source, "fewer than two")


SCALING = Source(
    bound=SCALING_BOUND,
    place=75,
    origin="throughput by the number of GPUs",
    name="throughput by the number of GPUs",
    fits=fits_scaling,
    read=read_scaling,
    is_in_others=True,
)


def _told(text: str) -> ScalingTable | None:
    """Numbers of GPUs, if sentences say the same without a log; else what a text compares."""
    table = scaling_in("\n".join(filter(_PATTERNS["prose"].search, text.splitlines())))
    return table if table and not table.names and table == scaling_in(text) else _compared(text)


def fits_compared(source: str) -> bool:
    """Whether a small text of no other kind compares speeds, or sentences next to a log do."""
    table = _told(_text(source))
    others = (one for one in known_sources() if one not in (COMPARED, TRAINING_LOG, NCCL_SETTINGS))
    if not (table and min(table.rates)) or any(one.fits(source) for one in others):
        return False
    contrast = table.of in ("times", "rates") and _PATTERNS["contrast"].search(table.notes[0])
    are_told = bool(contrast) or all(map(_PATTERNS["preposition"].match, table.names))
    return are_told or not TRAINING_LOG.fits(source)


COMPARED = Source(
    bound=SCALING_BOUND,
    place=200,
    origin="speeds that a text compares",
    name="speeds that a text compares",
    fits=fits_compared,
    read=lambda source: read_scaling(source, _told),
    is_in_others=True,
)

SOURCES = (EXPERT_COUNTS, INPUT_READINESS, COLLECTIVE_SUMMARY, SCALING, COMPARED)
