"""NCCL logs, written with NCCL_DEBUG=INFO: one file of one rank, or the terminal output of many.

A log may contain lines of other programs, launcher prefixes, colours, and several messages on one
line. Lines that are not understood are counted and some are kept, so nothing is lost silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.discovery import rank_in_name
from distprof.ingest.files import DAMAGE, NOT_LOGS, begins_object, opened, paths_of_logs, read_some
from distprof.ingest.kinds import training_log
from distprof.ingest.source import Source
from distprof.run.logs import NcclLog
from distprof.run.run import Run

MAX_FILES = 20_000
BOUND = Bound(
    reads="an NCCL log", num_bytes=1 << 38, names=1 << 17, beyond="skipped", seconds_per_mb=5
)
_MAX_FILES_CHECKED = 8  # for training iterations
_SNIFFED_BYTES = 1 << 22
# A message after its process, GPU or source line, not text about such messages.
_LINE = re.compile(rb"(?:\d\]?|\S:\d+) NCCL (?:INFO|WARN|TRACE|ABORT) ")
_VERSION = re.compile(rb"(?:^|[^A-Za-z `\"'(])\s*[NR]CCL version \S*\d", re.MULTILINE)
# Output of nccl-tests, which is for ``distprof fabric`` unless NCCL's initialisation is in it.
_TEST_SIGNS = (b"out-of-place", b"algbw", b"busbw")
_INITIALISATION_SIGNS = (b"NCCL INFO Bootstrap", b"NCCL INFO Channel ", b"NCCL INFO NET/")


def fits_nccl_log(source: str) -> bool:
    """Whether a source is an NCCL log, or a folder with such logs and no trace."""
    try:
        return any(_is_log(path) for path in paths_of_logs(source, MAX_FILES))
    except (OSError, ValueError, ImportError):
        return False


def read_nccl_log(source: str) -> NcclLog:
    """Read a log, or all logs in a folder."""
    paths = paths_of_logs(source, MAX_FILES)
    if paths == [source]:
        log = _read({source: None})
    else:
        log = _read({path: rank_in_name(path) for path in paths if _is_log(path)})
    if not (log.num_info or log.num_warn or log.versions):
        raise InputError(
            source,
            expected="an NCCL log, written with NCCL_DEBUG=INFO",
            found="; ".join(log.notes) or f"{log.num_lines:,} lines, none of them from NCCL",
            fix="set NCCL_DEBUG=INFO and keep the output of the ranks",
        )
    if min(log.num_jobs, len(log.versions), len(log.files)) > 1:
        first, *more = sorted(log.versions)
        raise InputError(
            source,
            expected="NCCL logs of one job",
            found=(
                f"{log.num_jobs:,} jobs that share no communicator, with NCCL {first} and "
                f"{len(more)} other version{'s' if len(more) > 1 else ''}"
            ),
            fix=f"name the logs of one job: distprof analyze {log.files[0]}",
        )
    return log


def read_rank_logs(paths: Mapping[int, str]) -> NcclLog | None:
    """Read the logs of known ranks; None if they hold nothing from NCCL."""
    log = _read({path: rank for rank, path in paths.items()})
    return log if log.num_info or log.num_warn or log.versions else None


def _read(paths: Mapping[str, int | None]) -> NcclLog:
    from distprof.ingest.nccl.assemble import Assembler
    from distprof.ingest.nccl.lines import Lines, Splitter

    assembler = Assembler()
    counts = {"lines": 0, "bytes": 0}
    notes: list[str] = []
    files: dict[str, range] = {}
    for path, rank in paths.items():
        before = assembler.num_processes
        try:
            with opened(path) as stream:
                lines = Lines(stream)
                splitter = Splitter()
                for some in lines:
                    assembler.take_lines(some, splitter, rank)
        except DAMAGE as error:
            notes.append(f"Cannot read {path}: {' '.join(str(error).split())}.")
            continue
        finally:
            files[path] = range(before, assembler.num_processes)
        counts["lines"] += lines.num_lines
        counts["bytes"] += lines.num_bytes
        if lines.damage:
            notes.append(f"{path} was read only up to the damage: {lines.damage}.")
        if lines.num_shortened:
            notes.append(f"Lines of {path} above 64 KiB, truncated: {lines.num_shortened:,}.")
    return assembler.result(files, counts, notes)


def _is_log(path: str) -> bool:
    if path.lower().endswith(NOT_LOGS):
        return False
    try:
        with opened(path) as stream:
            start, _ = read_some(stream, _SNIFFED_BYTES)
    except DAMAGE:
        return False
    if begins_object(start):
        return False
    if all(sign in start for sign in _TEST_SIGNS):
        return any(sign in start for sign in _INITIALISATION_SIGNS)
    return _LINE.search(start) is not None or _VERSION.search(start) is not None


def _with_iterations(run: Run) -> Run:
    """The run with the iterations that the training program printed between NCCL's lines, if any.

    Logs of several jobs are not searched: iterations of one job would be attributed to all.
    """
    log = run.get(NcclLog)
    files = log.files[:_MAX_FILES_CHECKED] if log is not None and log.num_jobs < 2 else ()
    found = next((path for path in files if training_log.SOURCE.fits(path)), None)
    return run if found is None else training_log.SOURCE.joined(run, found)


SOURCE = Source(
    bound=BOUND,
    place=50,
    origin="NCCL log",
    name="an NCCL log",
    fits=fits_nccl_log,
    read=read_nccl_log,
    notes="damaged",
    complete=_with_iterations,
)
