"""Operation tables of what-if straggler studies: a Parquet file, one row per operation of a worker.

The layout is that of the public tables of ByteDance-Seed/StragglerAnalysis: columns ``dp_rank``,
``stage``, ``rank``, ``step``, ``optype``, ``start_ts`` and ``duration`` (seconds), ``seq_id``,
``mc``, ``mb_id`` and, for interleaved model chunks, ``gmc``.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.bounds import Bound, expanded, open_plain, read_plain
from distprof.errors import InputError
from distprof.ingest.files import refusing
from distprof.ingest.kinds import Source
from distprof.remote import ask
from distprof.run.evidence import OPERATIONS, OperationLog
from distprof.schema import ABSENT, Coded, Int64Array, Table

MAX_BYTES = 65_536
_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):[ \t]+(\S.*)")
_SIZE = re.compile(r"[0-9]{1,9}")
# Limit on pipeline stages and on chunks per stage, which are laid out one by one.
MOST_PLACES = 1_024
_SIZES = {"pp_size": "pp", "dp_size": "dp", "dsp_size": "dsp", "tp_size": "tp"}
_FIX = "write one `key: value` per line, with sizes that are positive integers, or remove the file"


class JobSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a job, from its meta file."""

    # Axis to size, slowest varying first; axes that the file does not name are left out.
    mesh: dict[str, int]
    world_size: int | None = None  # World size, None if the file does not say.


def find_sizes(table: str) -> Path | None:
    """The meta file next to ``trace-NAME.parquet`` or ``NAME.parquet``, None if missing."""
    if "://" in table:
        return None
    path = Path(table)
    names = dict.fromkeys((path.stem.removeprefix("trace-"), path.stem))
    places = (path.with_name(f"meta-{name}.{end}") for name in names for end in ("yaml", "yml"))
    return next((place for place in places if place.is_file()), None)


def _wrong(path: Path, expected: str, found: str) -> InputError:
    return InputError(str(path), expected=expected, found=found, fix=_FIX)


def read_sizes(path: Path) -> JobSizes:
    """Sizes of the job."""
    sizes: dict[str, int] = {}
    for key, value in _values(path).items():
        most = MOST_PLACES if key in ("pp_size", "vpp_size") else 10**9
        is_size = _SIZE.fullmatch(value) is not None and 1 <= int(value) <= most
        if key.endswith("_size") and not is_size:
            expected = f"sizes that are positive integers, at most {MOST_PLACES:,} for stages"
            raise _wrong(path, expected, f"{key}: {value[:60]}")
        if key.endswith("_size"):
            sizes[key] = int(value)
    mesh = {axis: sizes[key] for key, axis in _SIZES.items() if key in sizes}
    world = sizes.get("world_size")
    product = math.prod(mesh.values())
    if world is not None and len(mesh) == len(_SIZES) and product != world:
        expected = f"a world_size of {product}, the product of the other sizes"
        raise _wrong(path, expected, f"world_size: {world}")
    return JobSizes(mesh=mesh, world_size=world)


def _values(path: Path) -> dict[str, str]:
    try:
        text = read_plain(path, MAX_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(path, "a short text", f"{type(error).__name__}: {error}") from error
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None or match.group(1) in values:
            what = "a second value for a key" if match else "something else"
            found = f"{what} in line {number}: {line[:60]!r}"
            raise _wrong(path, "lines of `key: value`, each key once", found)
        values[match.group(1)] = match.group(2)
    return values


ORIGIN = "operation table"

BOUND = Bound(reads="a table of operations", num_bytes=1_000_000_000, rows=10_000_000, names=256)
"""A table with more rows is refused: it would take more than about 1 GB."""

MAX_KINDS = 256
MAX_SECONDS = 1e6  # a step that lasts longer (11 days) was written in another unit
_WHOLE = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id")
COLUMNS = (*_WHOLE[:4], "optype", "start_ts", "duration", *_WHOLE[4:])
_LARGEST = {"step": 2**53, "dp_rank": 2**20, "stage": MOST_PLACES - 1, "mc": MOST_PLACES - 1}
_NEVER_NEGATIVE = ("dp_rank", "stage", "rank", "seq_id")
_LAYOUT = f"the columns {', '.join(COLUMNS)}"
_WRITE_AGAIN = "write the table again; docs/how-to/operation-tables.md describes its columns"


def fits_operation_table(source: str) -> bool:
    """Whether ``source`` is a Parquet file, or a folder whose only Parquet file is such a table."""
    return _table_path(source) is not None


def read_operation_table(source: str) -> OperationLog:
    """Read a table and its meta file; times count from the start of their step, exact to the ns."""
    path = _table_path(source) or source
    columns = _checked(path, _read_columns(path))
    meta_file = find_sizes(path)
    sizes = JobSizes(mesh={}) if meta_file is None else read_sizes(meta_file)
    return log_of_columns(path, columns, ORIGIN, sizes)


def log_of_columns(
    path: str, columns: Mapping[str, Any], origin: str, sizes: JobSizes
) -> OperationLog:
    """The log from the columns of an operation table, wherever they were written.

    ``columns`` has the names in :data:`COLUMNS`: whole numbers as int64, ``optype`` coded, times in
    seconds. ``origin`` is the kind of log, for users.
    """
    operations, notes = _operations(path, columns)
    steps, index = np.unique(operations["step"], return_inverse=True)
    lengths = np.zeros(len(steps), dtype=np.int64)  # from the first start to the last end
    np.maximum.at(lengths, index, operations["end_ns"])
    mesh = {}
    for axis, column in (("pp", "stage"), ("dp", "dp_rank")):
        seen = len(np.unique(operations[column]))
        size = mesh[axis] = sizes.mesh.get(axis, int(operations[column].max()) + 1)
        if seen != size:
            notes.append(f"The table has operations for {seen:,} of {size:,} values of {column}.")
    forwards = operations.coded("kind").equals("forward-compute")
    batches = np.unique(operations["micro_batch"][forwards])
    return OperationLog(
        operations=operations,
        origin=origin,
        world_size=sizes.world_size,
        mesh=mesh | {axis: size for axis, size in sizes.mesh.items() if size > 1},
        num_micro_batches=int((batches >= 0).sum()) or None,
        step_ns=dict(zip(steps.tolist(), lengths.tolist(), strict=True)),
        notes=tuple(notes),
    )


def _table_path(source: str) -> str | None:
    """The Parquet file that ``source`` names; None if it names something else."""
    if "://" in source:
        return source if source.lower().endswith(".parquet") else None
    path = Path(expanded(source))
    try:
        if path.is_file():
            return str(path) if path.suffix.lower() == ".parquet" else None
        if not path.is_dir() or (path / "run.json").exists():
            return None
        tables = [child for child in path.iterdir() if child.suffix.lower() == ".parquet"]
    except (OSError, ValueError):
        return None
    return str(tables[0]) if len(tables) == 1 and _has_columns(tables[0]) else None


def _has_columns(path: Path) -> bool:
    """Whether a file in a folder is such a table; a folder of traces may hold other tables."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_plain(path) as stream:
            return set(COLUMNS) <= set(pq.read_schema(stream).names)
    except (pa.ArrowException, OSError):
        return False


# The file -----------------------------------------------------------------------------------------


def _read_columns(path: str) -> dict[str, Any]:
    """The needed columns as Arrow arrays, if the file is not too large."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with _opened(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            if size > BOUND.num_bytes:
                most = f"at most {BOUND.num_bytes:,} bytes"
                refusing(most, fix="keep fewer steps")(path, f"{size:,} bytes")
            stream.seek(0)
            file = pq.ParquetFile(stream)
            present = Counter(file.schema_arrow.names)
            _check(path, present, file.metadata.num_rows)
            names = [*COLUMNS, *({"gmc"} & present.keys())]
            file = pq.ParquetFile(stream, metadata=file.metadata, read_dictionary=["optype"])
            table = file.read(columns=names, use_threads=False).combine_chunks()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            path,
            expected=f"a Parquet file with {_LAYOUT}",
            found=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
            fix=f"check that the file is complete, or {_WRITE_AGAIN}",
        ) from error
    return {name: table.column(name) for name in names}


def _opened(path: str) -> Any:
    if "://" not in path:
        return open_plain(path)
    try:
        return ask(path, lambda system, place: system.open(place, "rb"))
    except ValueError as error:
        raise OSError(str(error)) from error


def _check(path: str, present: Counter[str], rows: int) -> None:
    """Refuse a file with other columns, without rows, or with too many."""
    twice = next((name for name in (*COLUMNS, "gmc") if present[name] > 1), "")
    missing = [name for name in COLUMNS if name not in present]
    known = ", ".join(sorted(present)[:20]) or "none"
    most = rows if BOUND.rows is None else BOUND.rows
    if twice:
        fix = f"check which one is meant, and {_WRITE_AGAIN}"
        refusing("one column of each name", fix)(path, f"{present[twice]} columns {twice}")
    if missing:
        fix = "name an operation table; to analyse a run directory, name its folder"
        found = f"no {', '.join(missing)}; columns present: {known[:300]}"
        refusing(_LAYOUT, fix)(path, found)
    if not rows:
        fix = "check that the program that wrote it recorded a step"
        refusing("one row per operation", fix)(path, "a table without rows")
    if rows > most:
        fix = "write fewer steps into one table: a few dozen are enough"
        refusing(f"at most {most:,} operations", fix)(path, f"{rows:,}")


# Values -------------------------------------------------------------------------------------------


def _checked(path: str, columns: dict[str, Any]) -> dict[str, Any]:
    """Columns as numpy arrays of the required types; ``optype`` stays dictionary-encoded."""
    checked: dict[str, Any] = {"optype": _kinds(path, columns.pop("optype"))}
    for name, column in columns.items():
        values = _numbers(path, name, column)
        is_time = name in ("start_ts", "duration")
        checked[name] = values if is_time else _whole(path, name, values)
    return checked


def _bad(path: str, name: str, expected: str, found: str) -> InputError:
    return InputError(path, expected=f"{expected} in column {name}", found=found, fix=_WRITE_AGAIN)


def _kinds(path: str, column: Any) -> Coded:
    import pyarrow as pa

    if column.null_count:
        raise _bad(path, "optype", "a kind for every operation", f"{column.null_count:,} without")
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    try:
        values = array.dictionary.to_pylist()
    except UnicodeDecodeError as error:
        raise _bad(path, "optype", "names of kinds in UTF-8", str(error)) from None
    if not all(isinstance(value, str) and 0 < len(value) <= 200 for value in values):
        raise _bad(path, "optype", "names of kinds", f"{array.dictionary.type} values")
    if len(values) > MAX_KINDS:
        raise _bad(path, "optype", f"at most {MAX_KINDS} kinds", f"{len(values):,}")
    codes = array.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    return Coded(codes, tuple(values))


def _numbers(path: str, name: str, column: Any) -> NDArray[Any]:
    import pyarrow as pa

    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise _bad(path, name, "numbers", f"type {column.type}")
    if column.null_count:
        raise _bad(path, name, "a number in every row", f"{column.null_count:,} rows without")
    values: NDArray[Any] = column.to_numpy()
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        found = f"{values[wrong[0]]} in row {wrong[0]:,} and {len(wrong) - 1:,} others"
        raise _bad(path, name, "finite numbers", found)
    return values


def _whole(path: str, name: str, values: NDArray[Any]) -> Int64Array:
    if values.dtype.kind == "f" and (values != np.rint(values)).any():
        raise _bad(path, name, "whole numbers", "fractions")
    low, high = values.min(), values.max()
    largest = _LARGEST.get(name, 2**31 - 1)
    if low < (0 if name in _NEVER_NEGATIVE else -largest) or high > largest:
        raise _bad(path, name, "plausible numbers", f"{low} to {high}")
    return values.astype(np.int64)


# The table ----------------------------------------------------------------------------------------


def _operations(path: str, columns: Mapping[str, Any]) -> tuple[Table, list[str]]:
    """OPERATIONS in order of rank, step and start, and the assumptions made."""
    start, end, num_negative = _times(path, columns)
    codes = columns["optype"].codes
    order = np.lexsort((columns["seq_id"], codes, start, columns["step"], columns["rank"]))
    _check_identity(path, columns)
    chunk, batch = columns["mc"], columns["mb_id"]
    table = Table(
        OPERATIONS,
        {
            "rank": columns["rank"][order].astype(np.int32),
            "dp_rank": columns["dp_rank"][order].astype(np.int32),
            "stage": columns["stage"][order].astype(np.int32),
            "step": columns["step"][order],
            "kind": columns["optype"].take(order),
            "start_ns": start[order],
            "end_ns": end[order],
            "seq": columns["seq_id"][order],
            "chunk": np.where(chunk < 0, ABSENT, chunk)[order].astype(np.int32),
            "micro_batch": np.where(batch < 0, ABSENT, batch)[order].astype(np.int32),
        },
    )
    notes = []
    if num_negative:
        notes.append(f"Negative durations, counted as 0: {num_negative:,} of {len(start):,}.")
    known = (columns.get("gmc", chunk) >= 0) & (chunk >= 0)
    round_robin = chunk * (columns["stage"].max() + 1) + columns["stage"]
    if (columns.get("gmc", round_robin) != round_robin)[known].any():
        notes.append(
            "Model chunks are not assigned to stages round-robin (gmc is not mc × stages + "
            "stage): messages between stages may be paired wrongly."
        )
    return table, notes


def _times(path: str, columns: Mapping[str, Any]) -> tuple[Int64Array, Int64Array, int]:
    """Start and end in ns since the step's start, and the number of negative durations.

    Seconds are added in the column's own precision, as the program that wrote them does. Transfer
    times are differences of ends and starts, so ends that are rounded differently would show in
    them.
    """
    seconds, duration = columns["start_ts"], columns["duration"]
    num_negative = int((duration < 0).sum())
    end_seconds = (seconds + np.maximum(duration, 0)).astype(np.float64)
    seconds = seconds.astype(np.float64)
    steps, index = np.unique(columns["step"], return_inverse=True)
    origin = np.full(len(steps), np.inf)
    np.minimum.at(origin, index, seconds)
    start, end = seconds - origin[index], end_seconds - origin[index]
    longest = float(end.max())
    if longest > MAX_SECONDS:
        in_seconds = refusing("start_ts and duration in seconds", "divide by 1e9 (ns) or 1e6 (µs)")
        in_seconds(path, f"a step of {longest:.3g} s")
    return np.rint(start * 1e9).astype(np.int64), np.rint(end * 1e9).astype(np.int64), num_negative


def _check_identity(path: str, columns: Mapping[str, Any]) -> None:
    """Check that each place of the mesh has one worker, and that no operation occurs twice."""
    place = columns["dp_rank"] * (columns["stage"].max() + 1) + columns["stage"]
    workers = np.unique(np.stack([columns["rank"], place], axis=1), axis=0)
    for which, name in ((0, "rank"), (1, "dp_rank and stage")):
        values, counts = np.unique(workers[:, which], return_counts=True)
        if (counts > 1).any():
            worker = f"rank {values[counts > 1][0]}" if which == 0 else "one of them"
            expected = "one rank for each dp_rank and stage, and vice versa"
            raise _bad(path, name, expected, f"{worker} has more than one")
    keys = (columns["seq_id"], columns["optype"].codes, columns["step"], columns["rank"])
    order = np.lexsort(keys)
    same = np.logical_and.reduce([np.diff(key[order]) == 0 for key in keys])
    if same.any():
        found = f"{int(same.sum()):,} repeated, the first in row {int(order[1:][same][0]):,}"
        expected = "a distinct number for each operation of a kind, rank and step"
        raise _bad(path, "seq_id", expected, found)


SOURCES = (
    Source(
        bound=BOUND,
        place=20,
        origin=ORIGIN,
        fits=fits_operation_table,
        read=read_operation_table,
        notes="assumed",
    ),
)
