"""Which files of a folder, a glob or a URL are traces of this run, and of which rank."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from msgspec.structs import replace

from distprof import artefacts
from distprof.artefacts import CACHE_DIR, REQUESTS_DIR, RUN_FILE
from distprof.artefacts.record import Gap
from distprof.bounds import NotAFileError, expanded, open_plain
from distprof.errors import InputError
from distprof.ingest.files import walked
from distprof.ingest.nsys import ENDINGS, opened_process, processes_in, why_not_an_export
from distprof.ingest.recognise import foreign_format, refuse_foreign
from distprof.ingest.rocprof import begins_rocprof, is_rocprof, opened_rocprof, processes_in_rocprof
from distprof.remote import without_login
from distprof.units import few_names

if TYPE_CHECKING:  # few jobs use object stores, and asyncio and fsspec take long to import
    from distprof.remote.download import Stored

_TRACE_NAME = re.compile(r"\.(json(\.gz)?|sqlite3?)$", re.IGNORECASE)
_OWN_FILES = {value for name, value in vars(artefacts).items() if name.endswith("_FILE")}
_NOT_TRACES = (_OWN_FILES - {artefacts.TRACE_FILE}) | {"package.json", "tsconfig.json"}
_SNIFF_BYTES = 1 << 16
_SNIFF_BYTES_REMOTE = 1 << 14  # of an object in a store: only this is downloaded twice
_SPECIAL = "a pipe or device"
_MAX_NAMED = 5  # files that a message names
_TRACE_KEYS = (
    *(b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"'),
    *(b'"distributedInfo"', b'"baseTimeNanoseconds"', b'"displayTimeUnit"'),
)
# Keys of the events of an operation timeline (``kinds/timelines.py``), but not of kernels.
_OPERATION_SIGNS = (b'"model_chunk"', b'"mb_id"')

# rank-0, rank_3, rank00003, rank3_trace, worker3, _r3; dynolog and tensorboard_trace_handler write
# a host and a process id instead, and neither is a rank.
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])(?:rank|worker|r)[-_.=]?(\d{1,7})(?!\d)", re.IGNORECASE)
# Also train-5501233.0.out of SLURM's %j.%t; with an underline, tasks of an array are other jobs
_NUMBERED = re.compile(
    r"(?:.{0,99}(?<!\d)\d{4,12}[-.]|(?:log|out(?:put)?|err|std(?:out|err)|proc(?:ess)?|gpu|task)"
    r"[-_.]?)?(\d{1,5})(?:\.[a-z]+)*",
    re.IGNORECASE,
)


class TraceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file that may hold the trace of one rank."""

    path: str  # Local path or fsspec URL.
    # Rank in the name of the file or its folder, None if there is none.
    name_rank: int | None = None
    size_bytes: int | None = None  # Size as stored, None if the file system does not report it.
    # Version that the object store listed; empty for local files and stores without versions.
    tag: str = ""
    flight: str = ""  # The Flight Recorder's dump of the same rank, empty if there is none.
    # Process in a file of Nsight Systems or rocprofv3, which may hold several; None for a trace of
    # torch.profiler.
    process: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether ``path`` is a path on this machine rather than a URL."""
        return "://" not in self.path


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """The traces that a source holds."""

    source: str  # Path, glob or URL, as the user gave it.
    folder: Path | None  # Local folder of the run, None for a single file, a glob or a URL.
    traces: tuple[TraceFile, ...]  # Candidates, ordered by the rank in their name, then by path.
    gaps: tuple[Gap, ...] = ()  # Files that were left out, and why.


def rank_in_name(path: str) -> int | None:
    """The rank in a file's name (``rank-0.json``), or else its folder's (``rank00003/``)."""
    parts = PurePosixPath(path.replace("\\", "/")).parts
    for part in reversed(parts[-2:]):
        match = _RANK_IN_NAME.search(part)
        if match:
            return int(match.group(1))
    return None


def ranks_in_names(paths: Sequence[str]) -> list[int | None]:
    """The rank of each log in its name; without any, the number of its file or folder.

    A single log is of a rank only if its name says so in full, unlike ``r7.txt``. Numbers
    (``0/stderr.log``, ``out.1``) are ranks if all of several files have one, from 0 on, and most of
    them are there.
    """
    is_alone = len(paths) == 1 and not re.search(r"(?i)rank[-_.=]?\d", paths[0])
    ranks: list[int | None] = [None] if is_alone else [*map(rank_in_name, paths)]
    last = (reversed(PurePosixPath(path.replace("\\", "/")).parts[-2:]) for path in paths)
    found = [next(filter(None, map(_NUMBERED.fullmatch, parts)), None) for parts in last]
    numbers = [None if one is None else int(one[1]) for one in found]
    known = {number for number in numbers if number is not None}
    is_numbered = None not in numbers and 0 in known and 0 < max(known) < 2 * len(known)
    return numbers if is_numbered and {*ranks} == {None} else ranks


def discover(source: str, *, may_be_empty: bool = False) -> Discovery:
    """Find the traces that a file, a folder (searched to any depth), a glob or an fsspec URL names.

    ``may_be_empty`` makes a folder without traces a valid result.
    """
    if "://" in source:
        return _discover_url(source, may_be_empty=may_be_empty)
    if not source:  # an unset variable in a script; Path reads it as the current folder
        raise InputError(
            "(empty name)",
            expected="a trace file, or a folder or glob of them",
            found="nothing",
            fix="name a path; . is the current folder",
        )
    path = Path(expanded(source))
    try:
        path.exists()
    except (OSError, ValueError) as error:  # too long, or with a null character
        raise InputError(
            source,
            expected="the name of a trace file, or of a folder or glob of them",
            found=getattr(error, "strerror", None) or str(error),
            fix="check the path",
        ) from error
    if path.is_dir():
        return _select(source, path, [*_walk(path)], may_be_empty=may_be_empty)
    if path.is_file():
        if not (_is_export(str(path)) or is_rocprof(path)):
            refuse_foreign(path)
        return Discovery(source=source, folder=None, traces=_parts(_local(path)))
    if path.exists():
        raise InputError(
            source,
            expected="a regular file, because distprof reads it twice",
            found=_SPECIAL,
            fix="write its output to a file first",
        )
    if any(sign in source for sign in "*?["):
        return _select(source, None, _glob(path))
    raise InputError(
        source,
        expected="a trace file, or a folder or glob of them",
        found="nothing of that name",
        fix="check the path; a URL needs its scheme, for example s3://bucket/run",
    )


@contextmanager
def open_trace(trace: TraceFile) -> Iterator[str | BinaryIO]:
    """Yield what the reader takes: a local path, or an open file for a URL."""
    if trace.process is not None:
        open_process = opened_process if _is_export(trace.path) else opened_rocprof
        with open_process(trace.path, trace.process) as stream:
            yield stream
        return
    if trace.is_local:
        yield trace.path
        return
    from distprof.remote.download import download

    try:
        stream = download(_stored(trace))
    except (OSError, ValueError) as error:
        raise _unreadable(trace.path, error) from error
    with stream:
        yield stream


def check_whole(trace: TraceFile, opened: str | BinaryIO) -> None:
    """Refuse a trace whose download failed part-way: the file itself may be fine."""
    failure = getattr(opened, "failure", None)
    if failure is not None:
        raise _unreadable(trace.path, failure) from failure


def version_of(opened: str | BinaryIO) -> str:
    """An identifier of a file's content that needs no reading; empty if there is none."""
    stored = getattr(opened, "stored", None)
    if stored is None or not stored.tag:
        return ""
    return json.dumps([without_login(stored.url), stored.size, stored.tag])


def _stored(trace: TraceFile) -> Stored:
    from distprof.remote.download import Stored

    return Stored(url=trace.path, size=trace.size_bytes, tag=trace.tag)


def _local(path: Path) -> TraceFile:
    return TraceFile(
        path=str(path), name_rank=rank_in_name(str(path)), size_bytes=path.stat().st_size
    )


def _walk(folder: Path) -> Iterator[TraceFile]:
    """Files below a folder whose names fit a trace.

    Hidden files and installed packages are left out. In a run directory, so are its cache and the
    recordings of ``distprof attach``: they show the same ranks at another time, and each is a
    separate run directory.
    """
    for parent, folders, files in walked(folder):
        excluded = {CACHE_DIR, REQUESTS_DIR} if RUN_FILE in files else {CACHE_DIR}
        folders[:] = [name for name in folders if name not in excluded]
        paths = [Path(parent, name) for name in files]
        yield from (_local(path) for path in paths if _may_be_trace(path.name))


def _glob(pattern: Path) -> list[TraceFile]:
    import glob

    paths = [Path(name) for name in glob.glob(str(pattern), recursive=True)]  # noqa: PTH207
    traces = [_local(path) for path in paths if path.is_file() and _may_be_trace(path.name)]
    traces += [trace for path in paths if path.is_dir() for trace in _walk(path)]
    return list({trace.path: trace for trace in traces}.values())


def _may_be_trace(name: str) -> bool:
    return bool(_TRACE_NAME.search(name)) and name not in _NOT_TRACES and name[0] != "."


def _discover_url(source: str, *, may_be_empty: bool) -> Discovery:
    from distprof.remote.download import Stored, find

    try:
        listing = find(source)
    except (OSError, ValueError) as error:
        raise _unreadable(source, error) from error
    if isinstance(listing, Stored):
        return Discovery(source=source, folder=None, traces=(_of_store(listing),))
    excluded = tuple(
        stored.url.removesuffix(RUN_FILE) + REQUESTS_DIR + "/"
        for stored in listing
        if stored.url.endswith("/" + RUN_FILE)
    )
    traces = []
    for stored in listing:
        *folders, name = PurePosixPath(stored.url.partition("://")[2]).parts or ("",)
        is_excluded = CACHE_DIR in folders or stored.url.startswith(excluded)
        if _may_be_trace(name) and not is_excluded:
            traces.append(_of_store(stored))
    return _select(source, None, traces, may_be_empty=may_be_empty)


def _of_store(stored: Stored) -> TraceFile:
    rank = rank_in_name(stored.url)
    return TraceFile(path=stored.url, name_rank=rank, size_bytes=stored.size, tag=stored.tag)


def _unreadable(source: str, error: Exception) -> InputError:
    return InputError(
        source,
        expected="a readable file",
        found=_reason(error),
        fix=getattr(error, "fix", "") or "check the name and your permissions",
    )


def _reason(error: Exception) -> str:
    """The reason in words: the text of distprof's own error, else the type and text of another."""
    if type(error).__module__.partition(".")[0] == "distprof":
        return str(error)
    return f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"


def _select(
    source: str, folder: Path | None, candidates: Sequence[TraceFile], *, may_be_empty: bool = False
) -> Discovery:
    """Keep the files that look like traces; list the others as gaps."""
    if not candidates and not may_be_empty:
        if folder is not None:
            refuse_foreign(folder)
        raise InputError(
            source,
            expected="Kineto traces (*.json or *.json.gz), or what a job printed",
            found="no file with a matching name, and no text that distprof reads",
            fix="write traces with torch.profiler (export_chrome_trace or "
            "tensorboard_trace_handler), or name the log of the job itself",
        )
    exports = [trace for trace in candidates if _is_export(trace.path)]
    heads = _heads([trace for trace in candidates if trace not in exports])
    unread = {path: head for path, head in heads.items() if isinstance(head, OSError)}
    verdicts = {path: _judge_head(head) for path, head in heads.items() if isinstance(head, bytes)}
    for path in [path for path, error in unread.items() if isinstance(error, NotAFileError)]:
        verdicts[path] = _SPECIAL
        del unread[path]
    for trace in exports:
        verdicts[trace.path] = "an SQLite database that is not on this machine"
        if trace.is_local:
            verdicts[trace.path] = why_not_an_export(trace.path)
    traces: list[TraceFile] = []
    for trace in (trace for trace in candidates if verdicts.get(trace.path) == ""):
        try:
            traces += _parts(trace)
        except InputError as error:
            verdicts[trace.path] = error.found
    if not traces and not may_be_empty:
        _refuse(source, folder, verdicts, unread)
    order = sorted(traces, key=lambda t: (t.name_rank is None, t.name_rank or 0, t.path))
    gaps = tuple(_gaps(verdicts, unread))
    return Discovery(source=source, folder=folder, traces=tuple(order), gaps=gaps)


def _refuse(
    source: str, folder: Path | None, verdicts: dict[str, str], unread: dict[str, OSError]
) -> None:
    """Raise an error that says why no file is a trace."""
    if folder is not None:
        refuse_foreign(folder)
    reasons = {**verdicts, **{path: f"cannot be read: {_reason(e)}" for path, e in unread.items()}}
    fixes = () if verdicts else (getattr(error, "fix", "") for error in unread.values())
    raise InputError(
        source,
        expected="at least one Kineto trace",
        found=few_names([f"{_name(p)} ({why})" for p, why in reasons.items()], _MAX_NAMED),
        fix=next(iter(fixes), "") or "name a folder or file that torch.profiler wrote",
    )


def _gaps(verdicts: dict[str, str], unread: dict[str, OSError]) -> Iterator[Gap]:
    """Gaps for files that are no traces, and for files that could not be opened."""
    skipped = [f"{_name(path)} ({why})" for path, why in verdicts.items() if why]
    if skipped:
        one, several = "file that is not a Kineto trace", "files that are not Kineto traces"
        files = one if len(skipped) == 1 else several
        message = f"Skipped {len(skipped)} {files}: {few_names(skipped, _MAX_NAMED)}."
        yield Gap(what="not-a-trace", message=message)
    for path, error in unread.items():
        rank = rank_in_name(path)
        message = f"{path} is unreadable and was skipped: {_reason(error)}"
        yield Gap(what="unreadable", message=message, ranks=() if rank is None else (rank,))


def _is_export(path: str) -> bool:
    return path.lower().endswith(ENDINGS)


def _parts(trace: TraceFile) -> tuple[TraceFile, ...]:
    """A trace per process in a file of Nsight Systems or rocprofv3; one of any other file."""
    if not trace.is_local:
        return (trace,)
    if _is_export(trace.path):
        processes = [process.number for process in processes_in(trace.path)]
    elif is_rocprof(trace.path):
        processes = processes_in_rocprof(trace.path)
    else:
        return (trace,)
    rank = trace.name_rank if len(processes) == 1 else None
    return tuple(replace(trace, process=process, name_rank=rank) for process in processes)


def _name(path: str) -> str:
    return "/".join(PurePosixPath(path.replace("\\", "/")).parts[-2:])


def _heads(candidates: Sequence[TraceFile]) -> dict[str, bytes | OSError]:
    """The beginning of each file, or why it cannot be read; store objects are read together."""
    heads: dict[str, bytes | OSError] = {}
    for trace in candidates:
        if trace.is_local:
            try:
                with open_plain(trace.path) as stream:  # no pipe: opening it waits for its writer
                    heads[trace.path] = stream.read(_SNIFF_BYTES)
            except OSError as error:
                heads[trace.path] = error
    stored = [_stored(trace) for trace in candidates if not trace.is_local]
    if not stored:
        return heads
    from distprof.remote.download import beginnings

    stored_heads = beginnings(stored, _SNIFF_BYTES_REMOTE)
    return heads | {one.url: head for one, head in zip(stored, stored_heads, strict=True)}


def _judge_head(head: bytes) -> str:
    if not head:
        return "empty"
    if head[:2] == b"\x1f\x8b":
        try:
            head = zlib.decompressobj(31).decompress(head, _SNIFF_BYTES)
        except zlib.error:
            return "damaged gzip"
    if begins_rocprof(head):
        return ""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if all(sign in text for sign in _OPERATION_SIGNS):
        return "an operation timeline"
    if text[:1] == b"[":
        foreign = foreign_format("", text)
        if b'"ph"' in text:
            return foreign.name if foreign else ""
        return "another kind of JSON"
    if text[:1] != b"{":
        return "not JSON"
    return "" if any(key in text for key in _TRACE_KEYS) else "another kind of JSON"
