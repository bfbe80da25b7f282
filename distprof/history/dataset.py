"""The dataset: a Parquet file per appended summary, under any folder or fsspec URL.

A file is named by its content and never changed, so that writers at the same time lose nothing and
a run that is added twice is there once.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from distprof.artefacts.summary_file import SummaryFile
from distprof.errors import InputError, MissingExtraError
from distprof.report.saved import write_atomically

__all__ = ["COLUMNS", "DEFAULT_FOLDER", "append", "query", "read", "row_of"]

DEFAULT_FOLDER = ".distprof/history"
_SUFFIX = ".parquet"
_MAX_FILES = 200_000

COLUMNS: dict[str, str] = {
    "created_ns": "int64",
    "git_commit": "string",
    "label": "string",
    "source": "string",
    "series": "string",
    "workload": "string",
    "strategy": "string",
    "device": "string",
    "backend": "string",
    "world_size": "int64",
    "num_nodes": "int64",
    "step_ns": "int64",
    "num_steps": "int64",
    "is_traced": "bool",
    "tokens_per_step": "float64",
    "samples_per_step": "float64",
    "overlap_ratio": "float64",
    "exposed_comm_ratio": "float64",
    "bubble_ratio": "float64",
    "imbalance_ratio": "float64",
    "expert_imbalance_ratio": "float64",
    "mfu_ratio": "float64",
    "peak_memory_bytes": "int64",
    "energy_per_step_j": "float64",
    "versions": "string",
    "summary": "string",
}
"""Columns and their types; ``step_ns`` is the median step, ``summary`` the whole as JSON.

``series`` is the same for runs of the same job on the same hardware: what may be compared.
"""


def append(folder: str, summaries: Iterable[SummaryFile]) -> int:
    """Add summaries; returns how many were not there yet.

    Args:
        folder: Local folder, made where it is missing, or fsspec URL.
        summaries: Of runs.

    Raises:
        InputError: If it cannot be written.
    """
    added = 0
    for summary in summaries:
        row = row_of(summary)
        name = f"{row['created_ns']:020d}-{_digest(row['summary'])}{_SUFFIX}"
        added += _put(folder, name, _parquet(row))
    return added


def row_of(summary: SummaryFile) -> dict[str, Any]:
    """A summary as one row."""
    figures = {
        name: getattr(summary, name)
        for name in COLUMNS
        if name in SummaryFile.__struct_fields__ and name != "step_ns"
    }
    print_ = summary.fingerprint
    job = {name: getattr(print_, name) for name in COLUMNS if hasattr(print_, name)}
    text = msgspec.json.encode(summary).decode()
    return {
        **figures,
        **job,
        "series": _series(summary),
        "step_ns": int(np.median(summary.step_ns)) if summary.step_ns else None,
        "num_steps": len(summary.step_ns),
        "versions": json.dumps(print_.versions, sort_keys=True),
        "summary": text,
    }


def read(folder: str) -> tuple[tuple[SummaryFile, ...], tuple[str, ...]]:
    """Every summary, oldest first, and a sentence for each file that cannot be read.

    Raises:
        InputError: If there is no history.
        MissingExtraError: If DuckDB is not installed (extra ``history``).
    """
    _, rows, notes = _queried(folder, "SELECT summary FROM history ORDER BY created_ns")
    return tuple(msgspec.json.decode(row[0], type=SummaryFile) for row in rows), notes


def query(folder: str, sql: str) -> tuple[list[str], list[tuple[Any, ...]], tuple[str, ...]]:
    """The answer to a query of the table ``history``: columns, rows, and notes on damaged files.

    The query sees that table only: no files, no network.

    Raises:
        InputError: If there is no history, or the query is wrong.
        MissingExtraError: If DuckDB is not installed (extra ``history``).
    """
    return _queried(folder, sql)


def _series(summary: SummaryFile) -> str:
    """Same hardware, job and configuration; software may differ."""
    known = msgspec.to_builtins(summary.fingerprint)
    kept = {name: value for name, value in known.items() if name not in ("versions", "environment")}
    kept["config"] = {
        name: value for name, value in known["config"].items() if not name.startswith("probes.")
    }
    return _digest(json.dumps(kept, sort_keys=True))[:12]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _parquet(row: dict[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "string": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
    }
    schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    table = pa.Table.from_pylist([{name: row.get(name) for name in COLUMNS}], schema=schema)
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def _put(folder: str, name: str, data: bytes) -> bool:
    """Write one file, whole or not at all; False where it was there."""
    try:
        if "://" not in folder:
            place = Path(folder).expanduser()
            place.mkdir(parents=True, exist_ok=True)
            if (place / name).exists():
                return False
            write_atomically(place / name, data)
            return True
        system, path = _remote(folder)
        system.makedirs(path, exist_ok=True)
        if system.exists(f"{path}/{name}"):
            return False
        system.pipe_file(f"{path}/{name}", data)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(
            folder,
            expected="a folder or URL where history can be written",
            found=str(error),
            fix="choose another with --history",
        ) from error
    return True


def _remote(folder: str) -> tuple[Any, str]:
    import fsspec

    system, path = fsspec.core.url_to_fs(folder)
    return system, str(path).rstrip("/")


def _files(folder: str) -> list[str]:
    """Names of the dataset's files."""
    try:
        if "://" not in folder:
            place = Path(folder).expanduser()
            names = [str(file) for file in place.iterdir()] if place.is_dir() else []
        else:
            system, path = _remote(folder)
            names = [str(name) for name in system.ls(path, detail=False)]
    except (OSError, ValueError, ImportError):
        names = []
    found = sorted(name for name in names if name.endswith(_SUFFIX))[-_MAX_FILES:]
    if found:
        return found
    raise InputError(
        folder,
        expected="a history: a folder of summaries in Parquet",
        found="none",
        fix="add runs: distprof history add RUN…",
    )


def _queried(folder: str, sql: str) -> tuple[list[str], list[tuple[Any, ...]], tuple[str, ...]]:
    duckdb = _duckdb()
    files = _files(folder)
    notes: tuple[str, ...] = ()
    with duckdb.connect() as connection:
        if "://" in folder:
            connection.register_filesystem(_remote(folder)[0])
            prefix = folder.partition("://")[0]
            files = [name if "://" in name else f"{prefix}://{name}" for name in files]
        try:
            _load(connection, files)
        except duckdb.Error:
            files, notes = _sound(files, _reader(connection))
            _load(connection, files)
        connection.execute("SET enable_external_access = false")
        try:
            answer = connection.execute(sql)
            columns = [entry[0] for entry in answer.description or ()]
            return columns, answer.fetchall(), notes
        except duckdb.Error as error:
            raise InputError(
                folder,
                expected="SQL of DuckDB over the table history",
                found=str(error).partition("\n")[0],
                fix=f"columns: {', '.join(COLUMNS)}",
            ) from error


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError("distprof history", "history") from error
    return duckdb


def _load(connection: Any, files: Sequence[str]) -> None:
    if not files:
        columns = ", ".join(f"{name} {_SQL[kind]}" for name, kind in COLUMNS.items())
        connection.execute(f"CREATE OR REPLACE TABLE history ({columns})")
        return
    connection.execute(
        "CREATE OR REPLACE TABLE history AS "
        "SELECT * FROM read_parquet($files, union_by_name = true)",
        {"files": list(files)},
    )


_SQL = {"string": "VARCHAR", "int64": "BIGINT", "float64": "DOUBLE", "bool": "BOOLEAN"}


def _reader(connection: Any) -> Callable[[str], None]:
    def read_one(file: str) -> None:
        connection.execute("SELECT created_ns, summary FROM read_parquet($f)", {"f": [file]})
        connection.fetchall()

    return read_one


def _sound(
    files: Sequence[str], read_one: Callable[[str], None]
) -> tuple[list[str], tuple[str, ...]]:
    """The files that can be read, and a sentence for each that cannot."""
    import duckdb

    sound, notes = [], []
    for file in files:
        try:
            read_one(file)
            sound.append(file)
        except duckdb.Error as error:
            why = str(error).partition("\n")[0]
            notes.append(f"{file} cannot be read and is left out: {why}.")
    return sound, tuple(notes)
