"""Stores a history: one Parquet file per appended summary, in any folder or fsspec URL.

A file is named after its content and never changes, so concurrent writers lose no data.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from distprof.artefacts.files import write_atomically
from distprof.artefacts.summary_file import SUMMARY_SCHEMA, SummaryFile
from distprof.bounds import Bound, decode_json, expanded, read_plain, table_beside, within
from distprof.errors import DistprofError, InputError
from distprof.remote import file_system
from distprof.verbs.history import series_of

DEFAULT_FOLDER = ".distprof/history"
MANY_FILES = 2_000
"""Minimum number of files for which merging pays off."""
_ATTEMPTS = 5  # attempts to read while other processes merge files


def append(folder: str, summaries: Iterable[SummaryFile]) -> int:
    """Add summaries to a folder or fsspec URL, created if missing, and return how many were new."""
    store = Store.at(folder)
    mine, others = store.names()
    if others and not mine:
        raise InputError(
            folder,
            expected="a history, or an empty or new folder",
            found=f"a folder with other files, for example {others[0]}",
            fix="choose another folder with --history",
        )
    found: set[str] = set()
    for name in mine:
        if MERGED_NAME.fullmatch(name):
            with suppress(ValueError):  # readers report damaged files
                found.update(summaries_in(store.get(name)))
    added = 0
    for summary in summaries:
        row = row_of(summary)
        if row["summary"] not in found:
            added += store.put(
                f"{max(row['created_ns'] or 0, 0):020d}-{_digest([row['summary']])}.parquet",
                parquet_of([row]),
            )
    return added


def read(folder: str) -> tuple[tuple[SummaryFile, ...], tuple[str, ...]]:
    """Every summary, oldest first, and a note on each file that cannot be read."""
    found, notes = _texts(Store.at(folder))
    summaries: dict[str, SummaryFile] = {}
    damaged: dict[str, str] = {}
    for file, text in found:
        if text in summaries:
            continue
        try:
            summaries[text] = _decoded(text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            damaged[file] = str(error)
    notes += [_left_out(f"a row of {file}", why) for file, why in damaged.items()]
    return tuple(sorted(summaries.values(), key=lambda one: one.created_ns)), tuple(notes)


def compact(folder: str) -> tuple[int, int]:
    """Merge all files into one, written before the others go; return numbers of files and runs."""
    store = Store.at(folder)
    found, _ = _texts(store)
    rows: dict[str, dict[str, Any]] = {}
    whole: dict[str, bool] = {}
    for file, text in found:
        try:
            rows.setdefault(text, {**row_of(_decoded(text)), "summary": text})
        except (msgspec.MsgspecError, ValueError, RecursionError):
            whole[file] = False  # stays in place, so it can be repaired
            continue
        whole.setdefault(file, True)
    ordered = sorted(rows.values(), key=lambda row: (row["created_ns"] or 0, row["summary"]))
    if not ordered:
        return 0, 0
    merged = f"merged-{_digest(row['summary'] for row in ordered)}.parquet"
    store.put(merged, parquet_of(ordered))
    old = [file for file, is_whole in whole.items() if is_whole and file != merged]
    for file in old:
        store.remove(file)
    return len(old), len(ordered)


def count_files(folder: str) -> int:
    """Number of files in a history."""
    return len(Store.at(folder).names()[0])


def _decoded(text: str) -> SummaryFile:
    """Decode a summary; raises ValueError, or an error of msgspec."""
    summary = decode_json(text.encode(), SummaryFile)
    if summary.schema != SUMMARY_SCHEMA:
        raise ValueError(f'"schema": "{summary.schema[:60]}"')
    return summary


def _texts(store: Store) -> tuple[list[tuple[str, str]], list[str]]:
    """Each summary as JSON with the name of its file, and notes."""
    for _ in range(_ATTEMPTS):
        names, notes = _names(store)
        found: list[tuple[str, str]] = []
        is_gone = False
        for name in names:
            try:
                data = store.get(name)
                found += [(name, text) for text in summaries_in(data)]
            except InputError as error:
                notes.append(_left_out(name, error.found))
            except ValueError as error:
                notes.append(_left_out(name, str(error)))
            else:
                is_gone = is_gone or data is None
        if not is_gone:  # else another process has merged it into a file that was not listed
            break
    return found, notes


def _names(store: Store) -> tuple[list[str], list[str]]:
    """The history's files, of which there must be some, and a note on other files in the folder."""
    mine, others = store.names()
    if not mine:
        raise InputError(
            store.folder,
            expected="a history: a folder written by distprof history add",
            found=f"other files, for example {others[0]}" if others else "no files",
            fix="add runs: distprof history add RUN…",
        )
    note = "and other files that are not part of a history are left out."
    return mine, [f"{others[0]} {note}"] if others else []


def _left_out(what: str, why: str) -> str:
    first = why.partition("\n")[0][:200].rstrip(".")
    return f"{what} cannot be read and is left out: {first}."


# Rows, and the files that hold them ---------------------------------------------------------------

COLUMNS: dict[str, str] = table_beside(__package__, "columns.toml")["columns"]
"""Columns and their types; ``step_ns`` is the median step, ``summary`` the whole summary as JSON.

``series`` is the same for comparable runs: the same job on the same hardware.
"""

_LARGEST = 2**63 - 1
_SURROGATES = re.compile("[\ud800-\udfff]")


def row_of(summary: SummaryFile) -> dict[str, Any]:
    """A summary as one row."""
    print_ = summary.fingerprint
    row = {
        **{name: getattr(summary, name) for name in COLUMNS if hasattr(summary, name)},
        **{name: getattr(print_, name) for name in COLUMNS if hasattr(print_, name)},
        "series": series_of(print_),
        "step_ns": int(np.median(summary.step_ns)) if summary.step_ns else None,
        "num_steps": len(summary.step_ns),
        "versions": json.dumps(print_.versions, sort_keys=True),
        "summary": _json(summary),
    }
    return {name: _storable(row.get(name)) for name in COLUMNS}


def _json(summary: SummaryFile) -> str:
    """The summary as JSON; lone surrogates, from names that are not UTF-8, are escaped."""
    try:
        return msgspec.json.encode(summary).decode()
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(summary), ensure_ascii=False)
        return _SURROGATES.sub(lambda found: f"\\\\u{ord(found.group()):04x}", text)


def _storable(value: Any) -> Any:
    """A value that Parquet can store: without lone surrogates, None for integers over 64 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        return None
    return value


def _digest(texts: Iterable[str]) -> str:
    content = hashlib.sha256()
    for text in texts:
        content.update(text.encode())
        content.update(b"\0")
    return content.hexdigest()[:24]


def parquet_of(rows: list[dict[str, Any]]) -> bytes:
    """Bytes of a Parquet file, without statistics or dictionaries, most of a file of one row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()])
    out = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist(rows, schema=schema),
        out,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    )
    return out.getvalue()


def summaries_in(data: bytes | None) -> list[str]:
    """The column ``summary`` of a file, empty without one; ValueError if the file is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if data is None:
        return []
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        texts = file.read(["summary"], use_threads=False).column("summary").to_pylist()
    except (pa.ArrowException, OSError, LookupError, OverflowError) as error:
        raise ValueError(str(error)) from error
    return [str(text) for text in texts if text is not None]


# Where a history is stored: a folder, or any URL that fsspec supports -----------------------------

FILE_NAME = re.compile(r"\d{20}-[0-9a-f]{24}\.parquet")
"""Name of a file with one summary: end of the run, and digest of the content."""
MERGED_NAME = re.compile(r"merged-[0-9a-f]{24}\.parquet")
"""Name of a file with merged summaries."""
BOUND = Bound(reads="a file of a history", num_bytes=1 << 28)
_HARMLESS = ("README", "README.md", "desktop.ini", "lost+found")


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """The location of a history."""

    folder: str  # Folder or URL, as the user named it.
    path: str  # Path within ``system``, or a local path.
    system: Any = None  # fsspec file system; None for local folders.

    @classmethod
    def at(cls, folder: str) -> Store:
        """Find the location that the user named."""
        if "://" not in folder:
            path = expanded(folder)
            return cls(folder=folder, path=path)
        from fsspec.implementations.local import LocalFileSystem

        try:
            system, path = file_system(folder)
        except DistprofError:
            raise
        except Exception as error:  # each file system has its own errors
            raise _unusable(folder, error) from error
        if isinstance(system, LocalFileSystem):
            return cls(folder=folder, path=str(path))
        return cls(folder=folder, path=str(path).rstrip("/"), system=system)

    def names(self) -> tuple[list[str], list[str]]:
        """Files of the history in order of their names, and all other files."""
        try:
            if self.system is None:
                found = sorted(entry.name for entry in Path(self.path).iterdir())
            else:
                self.system.invalidate_cache()
                listed = self.system.ls(self.path, detail=False)
                found = sorted(str(name).rpartition("/")[2] for name in listed)
        except FileNotFoundError:
            found = []
        except Exception as error:  # each file system has its own errors
            raise _unusable(self.folder, error) from error
        mine = [name for name in found if FILE_NAME.fullmatch(name) or MERGED_NAME.fullmatch(name)]
        known = {*mine, *_HARMLESS}
        return mine, [name for name in found if name not in known and not name.startswith(".")]

    def put(self, name: str, data: bytes) -> bool:
        """Write one file; False if it exists already."""
        try:
            if self.system is None:
                file = Path(self.path, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                if file.exists():
                    return False
                write_atomically(file, data)
                return True
            if self.system.exists(f"{self.path}/{name}"):
                return False
            self.system.makedirs(self.path, exist_ok=True)
            self.system.pipe_file(f"{self.path}/{name}", data)
        except Exception as error:  # each file system has its own errors
            raise _unusable(self.folder, error) from error
        return True

    def get(self, name: str) -> bytes | None:
        """Content of a file; None if it is gone, because other processes may merge files."""
        try:
            if self.system is None:
                return read_plain(Path(self.path, name), BOUND.num_bytes)
            with self.system.open(f"{self.path}/{name}", "rb") as stream:
                return within(bytes(stream.read(BOUND.num_bytes + 1)), BOUND.num_bytes, name)
        except FileNotFoundError:
            return None
        except Exception as error:  # each file system has its own errors
            raise _unusable(self.folder, error) from error

    def remove(self, name: str) -> None:
        """Remove one file, unless another process has already done so."""
        try:
            if self.system is None:
                Path(self.path, name).unlink(missing_ok=True)
            else:
                self.system.rm_file(f"{self.path}/{name}")
        except FileNotFoundError:
            return
        except Exception as error:  # each file system has its own errors
            raise _unusable(self.folder, error) from error


def _unusable(folder: str, error: Exception) -> InputError:
    return InputError(
        folder,
        expected="a folder or URL that holds, or can hold, a history",
        found=getattr(error, "strerror", None) or str(error) or type(error).__name__,
        fix="choose another with --history",
    )
