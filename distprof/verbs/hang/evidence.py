"""Finds the dumps of a job in a folder, and the logs and stacks next to them.

A file is recognised as a dump by its content. Its rank is taken from the rank's folder or from the
last number in the file name: ``_dump_3``, ``nccl_trace_rank_3``, ``fr_rank3.gz``,
``rank00003/flight.json``.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from distprof.artefacts import FLIGHT_FILE, REQUESTS_DIR, RUN_FILE, STACKS_FILE
from distprof.artefacts.record import grouped
from distprof.artefacts.records import main_stack
from distprof.bounds import expanded
from distprof.errors import DistprofError, InputError, explaining
from distprof.ingest.discovery import ranks_in_names
from distprof.ingest.executor import Outcome, Progress, map_each, running
from distprof.ingest.files import Folder
from distprof.ingest.flight.recorder import MAX_BYTES, looks_like_dump, parse_flight
from distprof.ingest.job import RunDirectory, find_run_directory, open_run_directory
from distprof.ingest.kinds.logs import paths_of_output
from distprof.ingest.output.read import read_output
from distprof.ingest.output.stacks import calls_of
from distprof.ingest.wrapped import begins_object
from distprof.run.records import FlightDump
from distprof.sections.ending import EndingLine
from distprof.sections.ending.words import words
from distprof.units import NS_PER_S, name_ranks
from distprof.verbs.hang import HangEvidence
from distprof.verbs.hang.logs import (
    NAME,
    dead_ranks,
    find_stop,
    is_stale,
    last_step,
    lines_of_output,
    lines_of_ras,
    modified_ns,
)

EXIT_TOGETHER_NS = 5 * NS_PER_S
"""Ranks of a job that ends normally exit within this time of each other."""


MAX_FILES = 200_000
MAX_DEPTH = 4
MAX_LOGS = 4_096
MAX_WORLD = 1 << 20
_HEAD_BYTES = 4_096
_FEW = 8  # up to this many dumps are read in this process: a pool would cost more than it saves
_MOST_NAMED = 5
_RANK_FOLDER = re.compile(r"^rank[_-]?(\d{1,7})$")
_STEM = re.compile(r"(?:\.(?:json|pickle|pkl|bin|dat|gz))+$")
_RANK_WORD = re.compile(r"rank[_-]?(\d{1,7})(?!\d)")
_LAST_NUMBER = re.compile(r"(?<!\d)(\d{1,7})$")
_LOG = re.compile(r"\.(?:log|out|err|txt)(?:\.gz)?$|^(?:stdout|stderr)$")
_NOT_DUMPS = re.compile(
    r"\.(?:jsonl|log|out|err|txt|parquet|toml|py|md|html)(?:\.gz)?$|^report\.json$"
)
_SKIPPED = frozenset(("cache", ".git", "__pycache__"))


class DumpFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that may be a dump; picklable, so another process can read it."""

    folder: Folder  # Folder of the file.
    name: str  # Name of the file in the folder.
    shown: str  # Name in reports.
    rank: int
    is_certain: bool = False  # Whether its name alone shows that it is a dump.


def read_evidence(
    *sources: str, executor: str = "process", progress: Progress | None = None
) -> HangEvidence:
    """Read all dumps of a folder, and the logs and stacks next to them."""
    source = sources[0] if len(sources) == 1 else f"{sources[0]} and {len(sources) - 1} more"
    found = [find_files(one) for one in sources]
    root = found[0][0]
    dumps = [dump for _, some, _, _ in found for dump in some]
    logs = [log for _, _, some, _ in found for log in some][:MAX_LOGS]
    stacks = [stack for _, _, _, some in found for stack in some]
    paths, names = [path for path, _ in logs], [shown for _, shown in logs]
    output = read_output(zip(paths, names, ranks_in_names(paths), strict=True))
    if not (dumps or output.num_lines or output.events):
        raise _nothing(source)
    with running(executor if len(dumps) > _FEW else "serial") as pool:
        outcomes = map_each(pool, read_dump, dumps, progress)
    notes: list[str] = [*output.notes]
    good = _chosen(dumps, outcomes, source, notes) if dumps else ()
    ras_lines, ras_notes = lines_of_ras(logs)
    notes += ras_notes
    return _with_run(
        HangEvidence(
            source=source,
            dumps=good,
            log_lines=(*ras_lines, *lines_of_output(output)),
            output=output,
            failed=dead_ranks(ras_lines),
            stacks={rank: calls for rank, calls in _stacks(stacks) if calls},
            notes=tuple(notes),
            num_other_dumps=sum(one.result is not None for one in outcomes) - len(good),
        ),
        root,
    )


def find_files(
    source: str,
) -> tuple[Folder, list[DumpFile], list[tuple[str, str]], list[tuple[int, Folder]]]:
    """The folder, its dumps, its logs with their names in reports, and rank folders with stacks."""
    path = source.rstrip("/") or source
    home = expanded(path)
    root = Folder(path if "://" in path else home)
    dumps: list[DumpFile] = []
    logs: list[tuple[str, str]] = []
    stacks: list[tuple[int, Folder]] = []
    if not root.names() and "://" not in path and Path(root.path).is_file():
        file = Path(root.path)
        folder = Folder(str(file.parent))
        dump = _dump_file(folder, file.name, file.name, None)
        head = _head(folder, file.name).lstrip()
        is_json = begins_object(head) and not _LOG.search(file.name)
        if dump is None and not (b"\0" in head or is_json or looks_like_dump(head)):
            return folder, [], [(root.path, file.name)], []
        certain = DumpFile(folder=folder, name=file.name, shown=file.name, rank=0, is_certain=True)
        return folder, [dump or certain], [], []
    if not root.names() and set("*?[") & set(path):
        return root, [], [(one, Path(one).name) for one in paths_of_output(path)], []
    for folder, name, shown in _walk(root):
        match = _RANK_FOLDER.match(folder.name)
        rank = int(match[1]) if match else None
        if name == STACKS_FILE and rank is not None:
            stacks.append((rank, folder))
        elif _LOG.search(name) or NAME.search(name):
            logs.append((folder.child(name).path, shown))
        elif (dump := _dump_file(folder, name, shown, rank)) is not None:
            dumps.append(dump)
    return root, sorted(dumps, key=lambda dump: (dump.rank, dump.shown)), logs, stacks


def _walk(root: Folder) -> Iterator[tuple[Folder, str, str]]:
    """Every file, with its folder and its path within the source; bounded in depth and number.

    In a run directory, the requests folder of ``distprof attach --all-nodes`` is skipped: it holds
    the same ranks at another time. Answers about the hang itself are copied into the rank folders.
    """
    ahead: list[tuple[Folder, str, int]] = [(root, "", 0)]
    count = 0
    while ahead:
        folder, prefix, depth = ahead.pop()
        names = folder.names()
        skipped = {*_SKIPPED, REQUESTS_DIR} if RUN_FILE in names else _SKIPPED
        for name in names:
            count += 1
            if count > MAX_FILES:
                return
            if folder.size(name) is not None:
                yield folder, name, f"{prefix}{name}"
            elif depth < MAX_DEPTH and name not in skipped:
                ahead.append((folder.child(name), f"{prefix}{name}/", depth + 1))


def _dump_file(folder: Folder, name: str, shown: str, rank: int | None) -> DumpFile | None:
    """A dump, recognised by its name, or by a number in its name and the start of its content."""
    if rank is not None and name in (FLIGHT_FILE, f"{FLIGHT_FILE}.gz"):
        return DumpFile(folder=folder, name=name, shown=shown, rank=rank, is_certain=True)
    if _NOT_DUMPS.search(name):
        return None
    stem = _STEM.sub("", name)
    match = _RANK_WORD.search(stem) or _LAST_NUMBER.search(stem)
    number = int(match[1]) if match else rank
    if number is None or not looks_like_dump(_head(folder, name)):
        return None
    return DumpFile(folder=folder, name=name, shown=shown, rank=number)


def _head(folder: Folder, name: str) -> bytes:
    try:
        with folder.open(name) as stream:
            head = stream.read(_HEAD_BYTES)
            if head[:2] == b"\x1f\x8b":
                stream.seek(0)
                with gzip.GzipFile(fileobj=stream) as unpacked:
                    head = unpacked.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""
    return head


def read_dump(file: DumpFile) -> FlightDump:
    """Read one dump."""
    with explaining(file.shown, "a readable file"):
        data = file.folder.read(file.name, MAX_BYTES)
    dump = parse_flight(data, rank=file.rank, source=file.shown)
    return replace(dump, written_ns=modified_ns(file.folder, file.name))


def _chosen(
    files: Sequence[DumpFile],
    outcomes: Sequence[Outcome[FlightDump]],
    source: str,
    notes: list[str],
) -> tuple[FlightDump, ...]:
    """The newest dump of each rank, with notes on files that cannot be read."""
    by_rank: dict[int, list[FlightDump]] = defaultdict(list)
    broken: list[tuple[DumpFile, str]] = []
    for file, outcome in zip(files, outcomes, strict=True):
        if outcome.result is not None:
            by_rank[file.rank].append(outcome.result)
        elif outcome.failure is not None:
            broken.append((file, _reason(outcome.failure.error)))
    if not by_rank:
        raise _unreadable(source, broken)
    for file, reason in broken[:_MOST_NAMED]:
        notes.append(f"{file.shown} cannot be read: {reason}.")
    if len(broken) > _MOST_NAMED:
        notes.append(f"{len(broken) - _MOST_NAMED:,} more files cannot be read.")
    several = [rank for rank, dumps in by_rank.items() if len(dumps) > 1]
    if several:
        notes.append(f"Several dumps of {name_ranks(several)}: distprof uses the newest of each.")
    return tuple(
        max(by_rank[rank], key=lambda d: (int(d.entries["created_ns"].max(initial=0)), d.source))
        for rank in sorted(by_rank)
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, InputError):
        return error.found
    return str(error) if isinstance(error, DistprofError) else type(error).__name__


def _unreadable(source: str, broken: Sequence[tuple[DumpFile, str]]) -> InputError:
    file, reason = broken[0]
    more = f" ({len(broken)} files in all)" if len(broken) > 1 else ""
    return InputError(
        source,
        expected="dumps of torch's Flight Recorder",
        found=f"{file.shown}: {reason}{more}",
        fix="dump again to TORCH_FR_DUMP_TEMP_FILE, or use distprof attach RUN --flight",
    )


def _nothing(source: str) -> InputError:
    path = Path(expanded(source))
    if Folder(source).names():
        found = "none"
    elif path.is_file():
        found = "an empty file"
    else:
        found = "an empty folder" if path.is_dir() else "no file or folder with that name"
    return InputError(
        source,
        expected=words().says("evidence", file=FLIGHT_FILE),
        found=found,
        fix=words().said["no dumps"],
    )


def _stacks(folders: Sequence[tuple[int, Folder]]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for rank, folder in folders:
        try:
            text = folder.read(STACKS_FILE, 1 << 24).decode("utf-8", "replace")
        except OSError:
            continue
        yield rank, calls_of(main_stack(text.splitlines()))


def _with_run(evidence: HangEvidence, root: Folder) -> HangEvidence:
    """Add the world size, the hosts and how ranks ended, if the folder is a run directory."""
    try:
        found = find_run_directory(root.path)
    except InputError:
        return evidence
    if found is None:
        return evidence
    job = open_run_directory(found)
    failed = {e.rank: f"{e.kind}: {' '.join(e.message.split())[:200]}" for e in reversed(job.errors)
              if not e.is_peer_loss}  # fmt: skip
    for entry in job.job.ranks:
        ended = entry.exit
        if ended and ended.signal and not ended.by_launcher and entry.rank not in failed:
            failed[entry.rank] = f"{ended.signal} ended its process"
    logged = {line.rank for line in evidence.log_lines if line.about in ("peer", "timeout")}
    lost = tuple(
        EndingLine(rank=e.rank, file="error.json", line=1, about="peer", text=e.message[:300])
        for e in job.errors
        if e.is_peer_loss and e.rank not in logged
    )
    for rank, why in (*_exited(job).items(), *evidence.failed.items()):
        failed.setdefault(rank, why)
    evidence = _with_steps(evidence, job)
    return replace(
        evidence,
        world_size=size if 0 < (size := job.job.world_size or 0) <= MAX_WORLD else None,
        hosts={entry.rank: entry.host for entry in job.job.ranks if entry.host},
        failed=failed,
        log_lines=(*lost, *evidence.log_lines),
        has_ended_well=job.job.outcome == "completed",
    )


def _exited(job: RunDirectory) -> dict[int, str]:
    """Ranks whose process failed, or exited while others continued, and how it exited."""
    ends = {entry.rank: entry.exit for entry in job.job.ranks if entry.exit is not None}
    own = {rank: end for rank, end in ends.items() if end.code is not None and not end.by_launcher}
    last = max((end.ended_ns or 0 for end in ends.values()), default=0)
    others_ran = len(ends) < (job.job.world_size or 0)
    return {
        rank: f"its process exited with code {end.code}"
        for rank, end in own.items()
        if end.code or others_ran or (end.ended_ns or last) < last - EXIT_TOGETHER_NS
    }


def _with_steps(evidence: HangEvidence, job: RunDirectory) -> HangEvidence:
    """Drop stacks older than their rank's last step, and add the stop of the job, if any."""
    folders = {rank: Folder(records.path) for rank, records in job.records.items()}
    steps = {rank: last for rank, at in folders.items() if (last := last_step(at)) is not None}
    taken = {rank: modified_ns(at, STACKS_FILE) for rank, at in folders.items()}
    stale = [rank for rank in evidence.stacks if is_stale(taken.get(rank), steps.get(rank))]
    dumped = {dump.rank: dump.written_ns for dump in evidence.dumps}
    old = [rank for rank, written in dumped.items() if is_stale(written, steps.get(rank))]
    ends = [entry.exit.ended_ns for entry in job.job.ranks if entry.exit and entry.exit.ended_ns]
    known = [(rank, at) for some in (taken, dumped) for rank, at in some.items() if at is not None]
    seen = {rank: max(times) for rank, times in grouped(known).items()}
    notes = list(evidence.notes)
    if stale:
        notes.append(words().says("stale stacks", who=name_ranks(stale)))
    if old:
        dumps, were = ("dumps", "were") if len(old) > 1 else ("dump", "was")
        notes.append(words().says("stale dumps", who=name_ranks(old), dumps=dumps, were=were))
    return replace(
        evidence,
        stacks={rank: calls for rank, calls in evidence.stacks.items() if rank not in stale},
        stop=None if job.job.outcome == "completed" else find_stop(steps, seen, ends),
        notes=tuple(notes),
    )
