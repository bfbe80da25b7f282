"""Readers of a run directory: what was run, how it ended, and what its probes recorded.

Here a job is described from run.json and from what its ranks recorded about themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from distprof.artefacts import ERROR_FILE, FLIGHT_FILE, RANK_FILE, RANK_SCHEMA, RUN_FILE, RUN_SCHEMA
from distprof.artefacts.record import Gap
from distprof.artefacts.run_file import (
    AttachFile,
    ErrorFile,
    RankEntry,
    RankFile,
    RunFile,
    with_ranks,
)
from distprof.bounds import Bound, decode_json, expanded
from distprof.errors import InputError, SchemaError
from distprof.ingest.discovery import TraceFile
from distprof.ingest.files import Folder
from distprof.ingest.job.rank_folder import BROKEN, RankFolder
from distprof.run.run import Rank
from distprof.run.topology import world_size_of_job
from distprof.units import few_names, fold_ranks, name_ranks

MAX_RUN_BYTES = 1 << 28  # of run.json: ten thousand ranks take about 20 MB
MAX_RANK_BYTES = 1 << 24  # of rank.json and error.json

BOUND = Bound(
    reads="run.json of a run directory", num_bytes=MAX_RUN_BYTES, depth=1_000, beyond="skipped"
)

_RANK_FOLDER = re.compile(r"^rank(\d{5,7})$")
_MAX_NAMED = 5
_T = TypeVar("_T")


class RunDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A job as its run directory describes it."""

    folder: Folder  # The directory.
    job: RunFile  # The job; built from what its ranks recorded if run.json cannot be read.
    # Rank number to its folder.
    records: dict[int, RankFolder] = msgspec.field(default_factory=dict)
    errors: tuple[ErrorFile, ...] = ()  # Why the Python code of ranks stopped, in order of time.
    gaps: tuple[Gap, ...] = ()  # What is damaged or missing.


def find_run_directory(source: str) -> str | None:
    """The run directory that a source names, as a path or URL; None if it names none."""
    if any(sign in source for sign in "*?["):
        return None
    plain = source.rstrip("/") or source
    if PurePosixPath(plain).name == RUN_FILE:
        parent = plain[: -len(RUN_FILE)].rstrip("/") or "."
        return parent if Folder(parent).size(RUN_FILE) is not None else None
    folder = Folder(plain if "://" in plain else expanded(plain))
    names = folder.names()
    first = next((name for name in names if _RANK_FOLDER.match(name)), None)
    if RUN_FILE in names:
        return folder.path
    if first is not None:  # any program may write rank folders, but only distprof their files
        return folder.path if folder.child(first).size(RANK_FILE) is not None else None
    inside = [name for name in folder.folders() if folder.child(name).size(RUN_FILE) is not None]
    if len(inside) > 1:
        newest = max(inside, key=lambda name: (_started(folder.child(name)), name))
        raise InputError(
            source,
            expected="one run",
            found=f"{len(inside)} run directories: {few_names(inside, _MAX_NAMED)}",
            fix=f"name one; the newest is {folder.child(newest).path}",
        )
    return folder.child(inside[0]).path if inside else None


def open_run_directory(path: str) -> RunDirectory:
    """Read the description of a job; damaged files are skipped and listed as gaps."""
    folder = Folder(path)
    matches = ((_RANK_FOLDER.match(name), name) for name in folder.names())
    ranks = {
        int(match[1]): RankFolder(int(match[1]), folder.child(name).path)
        for match, name in matches
        if match
    }
    run, gaps = _run_file(folder)
    rank_files: list[RankFile] = []
    errors: list[ErrorFile] = []
    damaged: list[int] = []
    for number, rank_folder in ranks.items():
        at = Folder(rank_folder.path)
        rank_file, is_good = _optional(at, RANK_FILE, RankFile)
        error, error_is_good = _optional(at, ERROR_FILE, ErrorFile)
        if rank_file is not None and rank_file.schema == RANK_SCHEMA and rank_file.rank == number:
            rank_files.append(rank_file)
        if error is not None and error.rank == number:
            errors.append(error)
        if not (is_good and error_is_good):
            damaged.append(number)
    if damaged:
        which = f"{RANK_FILE} or {ERROR_FILE} of {name_ranks(damaged)}"
        message = f"{which} is damaged: distprof ignores it."
        gaps.append(Gap(what="rank-file", message=message, ranks=tuple(damaged)))
    return RunDirectory(
        folder=folder,
        job=_merged(run, rank_files),
        records=ranks,
        errors=tuple(sorted(errors, key=lambda error: error.time_ns)),
        gaps=tuple(gaps),
    )


def rank_of_folder(path: str) -> int | None:
    """The rank whose folder in a run directory holds the file at ``path``."""
    match = _RANK_FOLDER.match(PurePosixPath(path.replace("\\", "/")).parent.name)
    return int(match[1]) if match else None


class _Schema(msgspec.Struct):
    """The version, read before any other field."""

    schema: str = ""


def _run_file(folder: Folder) -> tuple[RunFile | None, list[Gap]]:
    """run.json, or a gap that says why it cannot be used."""
    try:
        if folder.size(RUN_FILE) is None:
            return None, [_no_run_file("is missing")]
        data = folder.read(RUN_FILE, MAX_RUN_BYTES)
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema != RUN_SCHEMA and schema.startswith("distprof.run/"):
            raise SchemaError(
                folder.child(RUN_FILE).path,
                expected=f'"schema": "{RUN_SCHEMA}"',
                found=f'"schema": "{schema[:60]}"',
                fix="analyse it with the version of distprof that wrote it or a newer one: pip "
                "install --upgrade distprof",
            )
        return decode_json(data, RunFile), []
    except OSError as error:
        return None, [_no_run_file(f"is not readable ({error.strerror})")]
    except BROKEN as error:
        return None, [_no_run_file(f"is damaged ({' '.join(str(error).split())[:200]})")]


def _no_run_file(why: str) -> Gap:
    known = "distprof knows the command and its outcome only from what the ranks recorded"
    return Gap(what="run-file", message=f"{RUN_FILE} {why}: {known}.")


def _optional(folder: Folder, name: str, kind: type[_T]) -> tuple[_T | None, bool]:
    """A small JSON file, None if there is none; and whether it is undamaged."""
    if folder.size(name) is None:
        return None, True
    try:
        return decode_json(folder.read(name, MAX_RANK_BYTES), kind), True
    except (OSError, *BROKEN):
        return None, False


def _merged(run: RunFile | None, rank_files: Sequence[RankFile]) -> RunFile:
    """The job as launcher and ranks describe it.

    The launcher merges the files of the ranks when the job ends. If it was killed before that, they
    are merged here. They never override what a launcher that ran to the end has written.
    """
    if run is None:
        first = min((file.started_ns for file in rank_files), default=0)
        run = RunFile(distprof_version="", kind="session", command=(), started_ns=first)
    if run.ended_ns is not None:
        known = {entry.rank for entry in run.ranks if entry.pid is not None}
        rank_files = [file for file in rank_files if file.rank not in known]
    return with_ranks(run, list(rank_files))


def _started(folder: Folder) -> int:
    class Started(msgspec.Struct):
        started_ns: int = 0

    found, _ = _optional(folder, RUN_FILE, Started)
    return found.started_ns if found else 0


# Ranks with and without a trace -------------------------------------------------------------------

_PROFILER = "profiler"


def with_flight(trace: TraceFile, directory: RunDirectory) -> TraceFile:
    """The trace with the Flight Recorder's dump of its rank, if there is one."""
    number = rank_of_folder(trace.path)
    place = directory.records.get(number) if number is not None else None
    if place is None or Folder(place.path).size(FLIGHT_FILE) is None:
        return trace
    return replace(trace, flight=Folder(place.path).child(FLIGHT_FILE).path)


def describe_rank(rank: Rank, directory: RunDirectory, entries: Mapping[int, RankEntry]) -> Rank:
    """The rank, with values from run.json that its trace lacks.

    The folder of a trace determines its rank, because the launcher made the folder.
    """
    number = rank_of_folder(rank.path)
    if number is not None and number in directory.records:
        rank = replace(rank, rank=number, rank_origin="run.json")
    entry = entries.get(rank.rank)
    if entry is None:
        return rank
    return replace(
        rank,
        world_size=rank.world_size or world_size_of_job(directory.job),
        host=rank.host or entry.host or None,
        device=rank.device if rank.device.name else replace(rank.device, name=entry.device),
    )


def missing_ranks(missing: Sequence[int], world_size: int) -> Gap:
    """A gap for ranks without a trace."""
    return Gap(
        what="missing-ranks",
        message=f"{len(missing)} of {world_size} ranks have no trace ({fold_ranks(missing)}): the "
        "straggler may be one of them.",
        ranks=tuple(missing),
    )


def trace_gaps(ranks: Sequence[Rank], directory: RunDirectory) -> list[Gap]:
    """Gaps for ranks without a trace: those that were not selected, and those that lost theirs."""
    job = directory.job
    traced = {rank.rank for rank in ranks}
    all_ranks = set(directory.records) | {entry.rank for entry in job.ranks}
    all_ranks |= set(range(world_size_of_job(job) or 0)) | traced
    missing = all_ranks - traced
    if not missing:
        return []
    reasons = _reasons(directory, missing)
    why = "; ".join(f"{name_ranks(numbers)}: {text}" for text, numbers in reasons.items())
    if not traced:
        told = (next(iter(reasons)) if len(reasons) == 1 else why).removeprefix(_UNTRACED)
        message = f"No rank was traced ({told})." if why else "No trace was written."
        return [Gap(what="no-traces", message=message)]
    chosen = job.coverage.profiled_ranks
    wanted = all_ranks if chosen is None else all_ranks & set(chosen)
    gaps = []
    if wanted != all_ranks:
        selected = f"{name_ranks(wanted)} of {len(all_ranks)} were selected for tracing"
        message = f"Only {selected} ({job.coverage.text})."
        left = tuple(sorted(all_ranks - wanted))
        gaps.append(Gap(what="chosen-ranks", message=message, ranks=left))
    lost = sorted(missing & wanted)
    if lost:
        gap = missing_ranks(lost, len(all_ranks))
        gaps.append(replace(gap, message=f"{gap.message} {why}." if why else gap.message))
    return gaps


_UNTRACED = "nothing was traced: "  # how a rank's own remark begins


def _reasons(directory: RunDirectory, ranks: set[int]) -> dict[str, list[int]]:
    """Why the profiler of some of these ranks recorded nothing: reason to ranks."""
    reasons: dict[str, list[int]] = {}
    for entry in directory.job.ranks:
        status = next((probe for probe in entry.probes if probe.name == _PROFILER), None)
        if entry.rank not in ranks or status is None:
            continue
        if status.state != "on" or (status.reason and not status.num_records):
            why = status.reason.rstrip(".") or f"the profiler was {status.state}"
            reasons.setdefault(why, []).append(entry.rank)
    return reasons


def is_running(process: AttachFile) -> bool | None:
    """Whether a rank's process runs; None if this machine cannot tell.

    The pid alone is not enough, because another process may have it now.
    """
    import socket

    if process.host != socket.gethostname() or not process.started_ticks:
        return None
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text("utf-8", "replace")
        letter, *fields = text[text.rfind(")") + 2 :].split()
        return letter not in "ZX" and int(fields[18]) == process.started_ticks
    except FileNotFoundError:
        return False
    except (OSError, ValueError, IndexError):
        return None
