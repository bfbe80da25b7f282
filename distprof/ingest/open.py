"""Open what the user named as a Run."""

from __future__ import annotations

import atexit
import glob
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from distprof.artefacts import NCCL_LOG_FILE, OUTPUT_FILE, RANK_DIR_FORMAT
from distprof.artefacts.files import has_own_place, scratch_folder
from distprof.artefacts.record import Gap, grouped
from distprof.bounds import expanded
from distprof.errors import DistprofError, InputError
from distprof.ingest.assemble import assemble_run, recent_part, same_steps
from distprof.ingest.cache import is_temporary
from distprof.ingest.discovery import Discovery, TraceFile, discover, ranks_in_names
from distprof.ingest.executor import (
    Outcome,
    ProcessExecutor,
    Progress,
    SerialExecutor,
    map_each,
    running,
)
from distprof.ingest.files import Folder, walked
from distprof.ingest.job import (
    RunDirectory,
    describe_rank,
    find_run_directory,
    open_run_directory,
    with_flight,
)
from distprof.ingest.kinds import Source, fitting_kind, open_source
from distprof.ingest.kineto.source import watched
from distprof.ingest.rank import IngestOptions, ingest_rank
from distprof.join.windows import same_run
from distprof.run.logs import JobOutput, NcclLog, TrainingLog
from distprof.run.run import Rank, Run
from distprof.schema import ABSENT
from distprof.units import few_names, name_ranks, verb

# If all traces together are smaller than this as stored, starting processes costs more than it
# saves; a number of processes that the user requests is started anyway.
SMALL_RUN_BYTES = 4_000_000
# If they are at most this large, reading them again takes less time than importing pyarrow and
# reading their tables from the cache; a cache that the user names is used anyway.
IN_MEMORY_BYTES = 1_000_000
# The same of a trace that is read without a cache: pyarrow takes 50 MB, its rows take 10 MB.
ALONE_IN_MEMORY_BYTES = 8_000_000


def open_run(
    source: str,
    options: IngestOptions | None = None,
    executor: str | Executor = "process",
    progress: Progress | None = None,
    ranks: Collection[int] | None = None,
    bytes_read: Progress | None = None,
    max_collectives: int | None = None,
) -> Run:
    """Read a recording of a job, with arguments as in :func:`distprof.api.open_run`.

    ``source`` may also be a log of another tool (:mod:`distprof.ingest.kinds`). Traces whose names
    give another rank than ``ranks`` are not opened. ``bytes_read`` is called after each block if
    this process reads the traces, else after each trace. A trace that cannot be read costs only its
    rank and is listed in ``gaps``. An executor of ``concurrent.futures`` stays open.

    Raises:
        InputError: If no trace can be read (a run directory without any is still a run), or one is
            damaged and ``options.strict`` is set.
        UsageError: If the executor does not exist or does not answer.
    """
    other = open_source(source)
    if other is not None:
        return other
    place = find_run_directory(source)
    directory = open_run_directory(place) if place is not None else None
    try:
        discovery = discover(place or source, may_be_empty=directory is not None)
    except InputError:
        inside = open_folder(source) if directory is None else None
        if inside is None:
            raise
        return inside
    options = _with_place(options or IngestOptions(), discovery, executor)
    wanted = None if ranks is None else {*ranks}
    traces = [t for t in discovery.traces if _is_among(wanted, t.name_rank)]
    if directory is not None:
        traces = [with_flight(trace, directory) for trace in traces]
    options = replace(options, is_alone=len(traces) == 1)
    counter = _BytesRead(traces, bytes_read) if bytes_read is not None else None
    with _noting_the_cache(options):
        most = None if max_collectives is None else max(1, max_collectives // max(1, len(traces)))
        read_one = partial(_read, options=options, most=most)
        outcomes = _read_each(traces, read_one, executor, progress, counter)
    may_be_empty = directory is not None
    read, gaps = _ranks_and_gaps(
        source, traces, outcomes, strict=options.strict, may_be_empty=may_be_empty
    )
    _delete_at_exit(read)
    if directory is not None:
        entries = {entry.rank: entry for entry in directory.job.ranks}
        read = [describe_rank(rank, directory, entries) for rank in read]
    kept, left_out = same_run([r for r in read if _is_among(wanted, r.rank)])
    kept, earlier = same_steps(kept)
    if not kept and (directory is None or (wanted and not wanted & set(directory.records))):
        raise InputError(
            source,
            expected=f"traces of {name_ranks(wanted or ())}",
            found=f"none of them among {len(discovery.traces)} traces",
            fix="name ranks of the job",
        )
    left_out = (*left_out, earlier) if earlier else left_out
    run = assemble_run(source, kept, (*discovery.gaps, *gaps, *left_out), directory)
    if directory is not None:
        for found in (_nccl_logs(directory, wanted), _outputs(directory, wanted)):
            run = run if found is None else run.having(found)
    return run if wanted is None else _with_selection(run, wanted)


@contextmanager
def _noting_the_cache(options: IngestOptions) -> Iterator[None]:
    """Add a note to an interruption that parsed traces stay in the cache."""
    try:
        yield
    except BaseException as error:
        if options.use_cache and not options.in_memory and not isinstance(error, Exception):
            error.add_note("Traces that were parsed stay in the cache.")
        raise


class _BytesRead:
    """Reports the bytes of traces read so far, and the total; unknown sizes count as 0."""

    def __init__(self, traces: Sequence[TraceFile], report: Progress) -> None:
        self._sizes = [trace.size_bytes or 0 for trace in traces]
        self._report = report
        self._read = self._finished = 0

    def read(self, count: int) -> None:
        """Count bytes of a trace that this process reads."""
        self._read += count
        self._report_all()

    def finished(self, index: int) -> None:
        """Count a trace as done, even if it was in the cache and was not read."""
        self._finished += self._sizes[index]
        self._report_all()

    def _report_all(self) -> None:
        total = sum(self._sizes)
        self._report(max(min(self._read, total), self._finished), total)


def _read(trace: TraceFile, options: IngestOptions, most: int | None) -> Rank:
    """The rank of a trace, or its last steps with at most ``most`` collectives."""
    rank = ingest_rank(trace, options)
    return rank if most is None else recent_part(rank, most)


def _read_each(
    traces: Sequence[TraceFile],
    read: Callable[[TraceFile], Rank],
    executor: str | Executor,
    progress: Progress | None,
    counter: _BytesRead | None,
) -> list[Outcome[Rank]]:
    """The rank of each trace; single reads are counted only in this process."""
    with running(_suitable(executor, traces)) as pool:
        if isinstance(pool, ProcessExecutor):
            import_module("pyarrow.parquet")  # once, before the workers are forked
        is_here = len(traces) == 1 or isinstance(pool, SerialExecutor)
        watching = watched(counter.read) if counter is not None and is_here else nullcontext()
        with watching:
            return map_each(pool, read, traces, progress, counter.finished if counter else None)


def _nccl_logs(directory: RunDirectory, wanted: set[int] | None) -> NcclLog | None:
    """NCCL's log of the ranks of a run directory; None if there is none."""
    paths = {
        rank: Folder(place.path).child(NCCL_LOG_FILE).path
        for rank, place in sorted(directory.records.items())
        if _is_among(wanted, rank) and Folder(place.path).size(NCCL_LOG_FILE)
    }
    if not paths:
        return None
    from distprof.ingest.kinds.logs import read_rank_logs

    return read_rank_logs(paths)


def _outputs(directory: RunDirectory, wanted: set[int] | None) -> JobOutput | None:
    """What the ranks printed about the end of a job that did not complete; None without any."""
    if directory.job.outcome in ("completed", "interrupted"):
        return None
    files: list[tuple[str, str, int | None]] = []
    for rank, place in sorted(directory.records.items()):
        folder, shown = Folder(place.path), f"{RANK_DIR_FORMAT.format(rank=rank)}/{OUTPUT_FILE}"
        if _is_among(wanted, rank) and folder.size(OUTPUT_FILE):
            files.append((folder.child(OUTPUT_FILE).path, shown, rank))
    launcher = directory.folder
    if launcher.size(OUTPUT_FILE):
        files.append((launcher.child(OUTPUT_FILE).path, OUTPUT_FILE, None))
    if not files:
        return None
    from distprof.ingest.output.read import read_output

    return read_output(files)


def _is_among(wanted: set[int] | None, rank: int | None) -> bool:
    """Whether a rank was requested; a trace of an unknown rank may be of one."""
    return wanted is None or rank in (None, ABSENT) or rank in wanted


def _with_selection(run: Run, wanted: set[int]) -> Run:
    """The run, with ranks left out on request separated from missing ones."""
    present = {rank.rank for rank in run.ranks} or wanted & set(run.records)
    absent = wanted - present
    missing = f" There is no trace of {name_ranks(absent)}." if absent else ""
    message = f"Only {name_ranks(present)} {verb(present, 'are')} read, as requested.{missing}"
    gap = Gap(what="chosen-ranks", message=message, ranks=tuple(sorted(absent)))
    others = tuple(g for g in run.gaps if g.what != "missing-ranks")
    records = {rank: source for rank, source in run.records.items() if rank in wanted}
    return replace(run, gaps=(gap, *others), records=records)


def _delete_at_exit(ranks: Sequence[Rank]) -> None:
    """Delete tables that found no place in a cache when this process exits."""
    for rank in ranks:
        if is_temporary(rank.tables.path):
            atexit.register(Path(rank.tables.path).unlink, missing_ok=True)


def _with_place(
    options: IngestOptions, discovery: Discovery, executor: str | Executor
) -> IngestOptions:
    """Options with the place of the tables: memory, a folder next to the run, or scratch space."""
    is_requested = options.use_cache and has_own_place(options.cache_dir)
    # a remote trace would have to be fetched again
    may_be_held = executor in ("process", "serial") and all(t.is_local for t in discovery.traces)
    is_alone = not options.use_cache and len(discovery.traces) == 1
    most = ALONE_IN_MEMORY_BYTES if is_alone else IN_MEMORY_BYTES
    if may_be_held and not is_requested and _bytes(discovery.traces) <= most:
        return replace(options, in_memory=True)
    if options.use_cache:
        return replace(options, run_dir=str(discovery.folder) if discovery.folder else None)
    return replace(options, cache_dir=str(scratch_folder("scratch")))


def _suitable(executor: str | Executor, traces: Sequence[TraceFile]) -> str | Executor:
    """The executor; no processes for little work or for files that only this process can see."""
    if not isinstance(executor, str) or not executor.startswith("process"):
        return executor
    if len(traces) < 2 or any(trace.path.startswith("memory://") for trace in traces):
        return "serial"
    small = _bytes(traces) < SMALL_RUN_BYTES
    return "serial" if small and executor == "process" else executor


def _bytes(traces: Sequence[TraceFile]) -> float:
    """Size of all traces as stored; infinite if one is unknown."""
    return sum(math.inf if trace.size_bytes is None else trace.size_bytes for trace in traces)


def _ranks_and_gaps(
    source: str,
    traces: Sequence[TraceFile],
    outcomes: Sequence[Outcome[Rank]],
    *,
    strict: bool,
    may_be_empty: bool,
) -> tuple[list[Rank], list[Gap]]:
    """Ranks that were read, and a gap for each trace that was not."""
    read = [outcome.result for outcome in outcomes if outcome.result is not None]
    failed = [(t, o.failure) for t, o in zip(traces, outcomes, strict=True) if o.failure]
    if failed and (strict or not (read or may_be_empty)):
        error = failed[0][1].error
        if isinstance(error, DistprofError):
            raise error
        found = f"{len(failed)} unreadable traces; the first: {type(error).__name__}: {error}"
        fix = "if the trace is valid, please report this with its first lines"
        raise InputError(source, expected="readable traces", found=found, fix=fix) from error
    gaps = []
    for trace, failure in failed:
        message = f"{trace.path} is unreadable and was skipped: {' '.join(failure.reason.split())}"
        ranks = () if trace.name_rank is None else (trace.name_rank,)
        gaps.append(Gap(what="unreadable", message=message, ranks=ranks))
    if gaps:  # the first stands for all of them in the evidence line
        unknown = sum(not gap.ranks for gap in gaps)
        known = {rank for gap in gaps for rank in gap.ranks}
        files = f"{unknown:,} unreadable {'files' if unknown > 1 else 'file'}" if unknown else ""
        named = f"{name_ranks(known)} unreadable" if known else ""
        gaps[0] = replace(gaps[0], fact=" · ".join(filter(None, (named, files))))
    return read, gaps


_MAX_FILES = 256  # that are checked: a folder with more holds something else
_MAX_NAMED = 4
_ATTEMPT = re.compile(r"[/\\]attempt_(\d{1,5})[/\\]")  # of torchrun, which starts ranks again
SourceFile = tuple[Source[Any], str]  # a kind of source, and a file or folder of that kind


def open_folder(source: str) -> Run | None:
    """The run in the files of a folder; None for anything else, or if none of them is a source.

    One file of each kind is read, and those that can accompany a recording are joined. Several logs
    of a training program are those of ranks, or of runs that are compared.
    """
    sources, log, speeds = _with_one_log(_sources_inside(source))
    if not sources:
        return None
    (kind, path), *others = _one_of_each(source, sources)
    run = kind.run_of(path)
    for other, place in others:
        run = other.joined(run, place) if other.name else run
    if log is None or run.get(TrainingLog) is None:
        return run
    from distprof.ingest.kinds.small_tables import scaling_in

    run, table = replace(run.having(log), source=source), scaling_in(speeds)
    return run if table is None or table.names else run.having(table)


def _with_one_log(sources: list[SourceFile]) -> tuple[list[SourceFile], TrainingLog | None, str]:
    """The sources with one of several logs of a training program, which says what all of them say.

    Of runs, also their speeds, as lines of text.
    """
    from distprof.ingest.kinds.logs import TRAINING_LOG

    paths = [path for kind, path in sources if kind is TRAINING_LOG]
    if len(paths) < 2:
        return sources, None, ""
    from distprof.ingest.training_logs.read import read_several

    attempts = [(_ATTEMPT.search(path) or ("", ""))[1] for path in paths]
    last = max(attempts, key=lambda attempt: (len(attempt), attempt))
    paths = [path for path, one in zip(paths, attempts, strict=True) if one in ("", last)]
    log, speeds = read_several(paths, ranks_in_names(paths))
    others = [one for one in sources if one[0] is not TRAINING_LOG]
    return [(TRAINING_LOG, log.files[0]), *others], log, speeds


def files_of_evidence(sources: Sequence[str]) -> list[str]:
    """Files that accompany a recording; of a folder, those inside unless one kind reads it."""
    paths: list[str] = []
    for source in sources:
        inside = () if fitting_kind(source) is not None else _sources_inside(source)
        one_log, _, speeds = _with_one_log([*inside])
        inside = inside if speeds else one_log  # runs, of which any may be that of the recording
        chosen = _one_of_each(source, [one for one in inside if one[0].name])
        paths += [path for _, path in chosen] or [source]
    return paths


def _one_of_each(source: str, sources: Sequence[SourceFile]) -> list[SourceFile]:
    """The file of each kind, in the order of kinds; InputError for several of one kind."""
    ordered = sorted(sources, key=lambda one: (one[0].place, one[1]))
    by_kind = grouped([(one[0].place, one) for one in ordered])
    most = max(by_kind.values(), key=len, default=[])
    if len(most) > 1:
        kind, path = most[0]
        names = [other.removeprefix(f"{Path(expanded(source))}/") for _, other in most]
        raise InputError(
            source,
            expected="the files of one job",
            found=f"{len(most)} sources of one kind ({kind.origin}): "
            f"{few_names(names, _MAX_NAMED)}",
            fix=f"name one of them: distprof analyze {path}",
        )
    return [several[0] for several in by_kind.values()]


def _sources_inside(source: str) -> list[SourceFile]:
    """Files and folders below a folder that are of a known kind."""
    root = Path(expanded(source))
    if "://" in source or root.is_file():
        return []
    sources: list[SourceFile] = []
    known: dict[str, Source[Any]] = {}  # by names without numbers: those of ranks are alike
    num_files = 0
    matching = [(str(root), list[str](), [*_matching(source)])]
    for parent, folders, names in walked(root) if root.is_dir() else matching:
        folder_kind = fitting_kind(parent) if Path(parent) != root else None
        if folder_kind is not None:
            folders.clear()
            sources.append((folder_kind, parent))
            continue
        for path in (str(Path(parent, name)) for name in names if not name.startswith(".")):
            alike = re.sub(r"\d+", "0", path)
            num_files += alike not in known
            if num_files > _MAX_FILES:
                return []
            kind = known.get(alike)
            kind = kind if kind is not None and kind.fits(path) else fitting_kind(path)
            if kind is not None:
                known[alike] = kind
                sources.append((kind, path))
    return sources


def _matching(pattern: str) -> Iterator[str]:
    """The files that a pattern names, by their absolute paths."""
    found = map(Path, sorted(glob.glob(expanded(pattern), recursive=True)))  # noqa: PTH207
    return (str(path.absolute()) for path in found if path.is_file())
