"""Logs that NCCL writes with NCCL_DEBUG=INFO: one file of one rank, or a terminal of many.

A log is taken as it is: other programs' lines, launchers' prefixes, colours, several texts on one
line. What is not understood is counted and some of it kept, so that nothing is lost in silence.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from distprof.errors import InputError
from distprof.ingest.discovery import rank_in_name
from distprof.ingest.kinds.nccl.assemble import Assembler
from distprof.ingest.kinds.nccl.lines import Lines, Splitter
from distprof.ingest.log_files import DAMAGE, opened, read_some
from distprof.run.nccl_log import NcclLog

__all__ = ["fits_nccl_log", "read_nccl_log", "read_rank_logs"]

MAX_FILES = 20_000
_SNIFFED_BYTES = 1 << 22
_SIGNS = (b"NCCL INFO ", b"NCCL WARN ", b"NCCL version ", b"RCCL version ")
_OTHER_KINDS = (".json", ".json.gz", ".jsonl", ".pkl", ".parquet", ".csv", ".tar", ".zip", ".py")
_TRACES = (".json", ".json.gz")


def fits_nccl_log(source: str) -> bool:
    """Whether a source is a log of NCCL, or a folder with such logs and no trace."""
    try:
        if "://" not in source and Path(source).expanduser().is_dir():
            return bool(_logs_of_folder(source))
        return _is_log(source)
    except (OSError, ValueError, ImportError):
        return False


def read_nccl_log(source: str) -> NcclLog:
    """Read a log, or all logs of a folder.

    Args:
        source: Path or fsspec URL of a file, gzipped or not, or a folder on this machine.

    Raises:
        InputError: If it cannot be opened or holds nothing of NCCL.
    """
    is_folder = "://" not in source and Path(source).expanduser().is_dir()
    paths = _logs_of_folder(source) if is_folder else [source]
    log = _read({path: rank_in_name(path) if is_folder else None for path in paths})
    if not (log.num_info or log.num_warn or log.versions):
        raise InputError(
            source,
            expected="a log that NCCL wrote with NCCL_DEBUG=INFO",
            found="; ".join(log.notes) or f"{log.num_lines:,} lines without a word of NCCL",
            fix="set NCCL_DEBUG=INFO, and keep what the ranks print",
        )
    return log


def read_rank_logs(paths: Mapping[int, str]) -> NcclLog | None:
    """Read the logs of ranks that are known; None where there is nothing in them.

    Args:
        paths: Global rank to path or URL of its log.
    """
    log = _read({path: rank for rank, path in paths.items()})
    return log if log.num_info or log.num_warn or log.versions else None


def _read(paths: Mapping[str, int | None]) -> NcclLog:
    assembler = Assembler()
    counts = {"lines": 0, "bytes": 0}
    notes: list[str] = []
    for path, rank in paths.items():
        try:
            with opened(path) as stream:
                lines = Lines(stream)
                _take_all(lines, assembler, rank)
        except DAMAGE as error:
            notes.append(f"{path} cannot be read: {' '.join(str(error).split())}.")
            continue
        counts["lines"] += lines.num_lines
        counts["bytes"] += lines.num_bytes
        if lines.damage:
            notes.append(f"{path} is read up to its damage: {lines.damage}.")
        if lines.num_shortened:
            notes.append(f"Lines of {path} longer than 64 KiB are cut: {lines.num_shortened:,}.")
    return assembler.result(tuple(paths), counts, notes)


def _take_all(lines: Lines, assembler: Assembler, rank: int | None) -> None:
    splitter = Splitter()
    for some in lines:
        assembler.take_lines(some, splitter, rank)


def _is_log(path: str) -> bool:
    if path.lower().endswith(_OTHER_KINDS):
        return False
    try:
        with opened(path) as stream:
            start, _ = read_some(stream, _SNIFFED_BYTES)
    except DAMAGE:
        return False
    return any(sign in start for sign in _SIGNS) and not start.lstrip().startswith(b"{")


def _logs_of_folder(source: str) -> list[str]:
    """Logs in a folder and its folders; none where it holds a trace or is a run directory."""
    files: list[str] = []
    for path in _files(Path(source).expanduser()):
        name = PurePosixPath(path).name.lower()
        if name.endswith(_TRACES) or len(files) >= MAX_FILES:
            return []
        files.append(path)
    return [path for path in sorted(files) if _is_log(path)]


def _files(folder: Path) -> Iterable[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (str(Path(parent, name)) for name in sorted(names))
