"""The unit of parallel work: read one trace file into one rank, with its tables in the cache.

Small results (the rank's summary, its steps and collectives) return to the caller. Large tables
stay on disk and are loaded one rank at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from distprof.artefacts.files import cache_root, shared_url
from distprof.artefacts.record import made_from
from distprof.bounds import open_plain
from distprof.config import CommunicationConfig
from distprof.errors import InputError
from distprof.ingest.cache import (
    FAILED,
    NO_ROOM,
    CachedTables,
    CacheKey,
    EntryWriter,
    HeldHostRows,
    HeldTables,
    SharedCache,
    TooManyRowsError,
    find_entry,
)
from distprof.ingest.collectives import Membership
from distprof.ingest.collectives.device_records import device_records, mark_communication
from distprof.ingest.collectives.gloo_records import gloo_records
from distprof.ingest.communication import Classifier, classifier_for, shipped_patterns
from distprof.ingest.discovery import TraceFile, check_whole, open_trace, version_of
from distprof.ingest.flight.recorder import FlightEntries, read_flight
from distprof.ingest.host_activity import (
    executed_activity,
    host_activity,
    is_known,
    missing_device,
    with_collectives,
)
from distprof.ingest.kineto.parsed import ParsedTrace
from distprof.ingest.kineto.reader import HostSink, read_trace
from distprof.ingest.metadata import TraceMetadata, read_metadata
from distprof.ingest.recognise import refuse_chrome_trace
from distprof.ingest.steps import Steps, find_steps
from distprof.ingest.tables_file import DamagedTablesError, Part, open_tables
from distprof.join.invariants import checked, mended
from distprof.run.run import Count, Device, Quality, Rank, TableSource, TraceFacts
from distprof.run.tables import HOST, MODULE_CATEGORY, RankTables
from distprof.run.topology import shared_group
from distprof.schema import ABSENT, Table
from distprof.terms import ActivityKind, StepSource

CONCLUSIONS_VERSION = 12  # increased whenever the same trace would lead to different conclusions
_MAX_NOTES = 12


class Conclusions(msgspec.Struct, frozen=True, kw_only=True):
    """What one file shows about its rank."""

    metadata: TraceMetadata  # What the file records about itself.
    device: Device  # The accelerator, named ``cpu`` if the host did the work.
    activity: Table  # ACTIVITY table, communication marked.
    collectives: Table  # COLLECTIVES table.
    steps: Steps  # The steps and how they were found.
    quality: Quality  # Quality of the file; its notes include every assumption.
    end_ns: int  # End of the last event that can have lasted so long.


def has_device_rows(parsed: ParsedTrace) -> bool:
    """Whether the trace recorded what a device did."""
    return bool((parsed.activity["kind"] != ActivityKind.ANNOTATION).any())


def conclude(
    parsed: ParsedTrace, host: Table, classifier: Classifier, flight: FlightEntries | None = None
) -> Conclusions:
    """Infer activity, collectives and steps of a rank from its parsed file.

    ``host`` is the HOST table: the parsed one suffices if the file has device rows; otherwise every
    row is needed. ``flight`` holds the Flight Recorder's entries of the rank, None without a dump.
    """
    metadata = read_metadata(parsed.metadata)
    problem = ""
    counts: dict[str, Count] = {}
    membership = Membership(groups=metadata.groups, world_size=metadata.world_size)
    if has_device_rows(parsed):
        activity = mark_communication(parsed.activity, parsed.comm_args, classifier)
        activity, counts = mended(activity, host)
        device, marked = metadata.device, activity
        on_device = (activity["kind"] == ActivityKind.COMMUNICATION).any()
        if not on_device and len(executed := executed_activity(host, classifier)):
            # ranks with GPUs but gloo groups: the GPU waits while a CPU thread reduces
            activity = with_collectives(activity, executed)
            records = gloo_records(executed, parsed.comm_args, membership, classifier, flight)
        else:
            records = device_records(activity, host, parsed.comm_args, membership, classifier)
    elif problem := missing_device(parsed, host, metadata):
        activity, device, marked = parsed.activity, metadata.device, parsed.activity
        records = device_records(activity, host, parsed.comm_args, membership, classifier)
    else:
        activity = host_activity(host, classifier)
        executed = executed_activity(host, classifier)
        records = gloo_records(executed, parsed.comm_args, membership, classifier, flight)
        device, marked = Device(name="cpu"), parsed.activity  # steps are the host's own
    end_ns = parsed.last_ns
    if "overlong-activities" in counts:
        ends = (table["end_ns"].max() for table in (activity, host) if len(table))
        end_ns = int(max(ends))
    steps = find_steps(marked, host, first_ns=parsed.first_ns, last_ns=end_ns)
    damaged = flight.notes if flight is not None else ()
    notes = (*parsed.quality.notes, *metadata.notes, *records.notes, *damaged)
    return Conclusions(
        metadata=metadata,
        device=device,
        activity=activity,
        collectives=records.table,
        steps=steps,
        quality=replace(
            _checked_quality(parsed, activity, host, steps, counts),
            no_device=problem,
            with_stack=metadata.with_stack,
            notes=tuple(dict.fromkeys(notes))[:_MAX_NOTES],
        ),
        end_ns=end_ns,
    )


def _checked_quality(
    parsed: ParsedTrace, activity: Table, host: Table, steps: Steps, counts: Mapping[str, Count]
) -> Quality:
    """The quality with what breaks the invariants of one rank."""
    quality = parsed.quality
    found = {
        **counts,
        "impossible-durations": Count(count=quality.num_clamped, of=quality.num_events),
        "overlapping-steps": Count(count=steps.num_overlapping, of=len(steps.table)),
        "empty-step-ends": Count(count=steps.num_empty, of=len(steps.table)),
    }
    found = {key: one for key, one in found.items() if one.count}
    if not has_device_rows(parsed):
        return replace(quality, counts=found)
    whole = steps.table["complete"] & (steps.source is not StepSource.CAPTURE)
    rows = checked(activity, host, steps.table.take(whole))
    return replace(
        quality,
        counts={**found, **rows.counts},
        paces=rows.paces,
        content=rows.content,
        kernels=rows.kernels,
        num_ranges=rows.num_ranges,
        num_launches=rows.num_launches,
    )


# The unit of parallel work: one trace file to one rank, its tables in the cache ------------------

Rows = Literal["all", "device"]


class IngestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How traces are read."""

    # ``device`` reads device rows only, which is faster but gives no data about the host.
    rows: Rows = "all"
    strict: bool = False  # Refuse damaged traces instead of salvaging their intact parts.
    cache_dir: str | None = None  # Where parsed tables are kept; None for the default place.
    # Whether tables of an earlier read may be used, and are kept for a later one.
    use_cache: bool = True
    # The folder that the traces came from; a run directory keeps its own cache.
    run_dir: str | None = None
    # Keep tables in memory instead of the cache: for small traces, which can be read again faster
    # than their tables.
    in_memory: bool = False
    # Whether this is the only trace. The process that reads it then also analyses it, so the tables
    # of a parsed trace stay in memory as well.
    is_alone: bool = False
    # Names that are communication, in addition to those that ship with distprof.
    communication: CommunicationConfig = msgspec.field(default_factory=CommunicationConfig)


class _Summary(TraceFacts, frozen=True, kw_only=True):
    """``rank.json`` of a cache entry: a :class:`Rank` without its tables and file name."""

    rank: int | None
    groups: tuple[msgspec.Raw, ...]  # JSON of ProcessGroups, most of which other ranks share
    has_host: bool


def ingest_rank(trace: TraceFile, options: IngestOptions) -> Rank:
    """Read one trace, from the cache if it has been read before.

    The file's name gives the rank if the trace does not. If neither does, the result's ``rank`` is
    ABSENT with the origin ``assumed``, and the caller numbers it.
    """
    flight = read_flight(trace.flight) if trace.flight else None
    with open_trace(replace(trace, process=None)) as opened:  # nothing of a URL is read yet
        source = _Source(trace=trace, opened=opened, flight=flight)
        if options.in_memory:
            with suppress(TooManyRowsError):
                return _parse_into_memory(source, options)
        return _cached(source, options)


def _cached(source: _Source, options: IngestOptions) -> Rank:
    """The rank with its tables in the cache: found there, fetched from a shared one, or parsed."""
    root = cache_root(options.run_dir, options.cache_dir)
    key = _key(source, options)
    entry, note = find_entry(root, key), ""
    shared = None
    if url := shared_url(options.run_dir, options.cache_dir):
        shared = SharedCache(url)
    if entry is None and shared is not None:
        entry, note = shared.fetch(key, root)
    if entry is not None:
        kept = _from_entry(source.trace, options, entry, key.digest)
        if kept is not None:
            return kept
    made = _parse_into_cache(source, options, root, key)
    if shared is not None and not note:
        note = shared.store(key, Path(made.tables.path))
    if not note:
        return made
    return replace(made, quality=replace(made.quality, notes=(*made.quality.notes, note)))


def _parse_into_cache(source: _Source, options: IngestOptions, root: Path, key: CacheKey) -> Rank:
    """The rank, with its tables in the cache or, if that fails, in a temporary folder."""
    try:
        return _parse_and_store(source, options, EntryWriter(root, key))
    except OSError as error:
        if error.errno not in FAILED:
            raise
        writer = EntryWriter(root, key, error)
    try:
        return _parse_and_store(source, options, writer)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise InputError(
            source.trace.path,
            expected="disk space for the parsed tables",
            found=f"none, neither in the cache nor in {writer.path.parent}",
            fix="free some space, or name a folder with enough space with --cache-dir",
        ) from error


class _Source(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of one rank."""

    trace: TraceFile  # Its trace.
    opened: Any  # The file, as the reader takes it.
    flight: FlightEntries | None  # Its Flight Recorder entries, None without a dump.


def _parse_and_store(source: _Source, options: IngestOptions, writer: EntryWriter) -> Rank:
    with writer:
        parsed, _, conclusions = _parse_and_conclude(source, options, writer.tables.host_rows)
        tables = {
            Part.ACTIVITY: conclusions.activity,
            Part.CALLS: parsed.host,
            Part.COLLECTIVES: conclusions.collectives,
            Part.STEPS: conclusions.steps.table,
        }
        for part, table in tables.items():
            writer.tables.write_table(part, table)
        has_host = _has_host(parsed, options)
        summary = _summary(parsed, conclusions, has_host=has_host, note=writer.note)
        writer.tables.write_rank(msgspec.json.encode(summary))
        again = partial(_reparsed, source.trace, options)
        place = str(writer.commit())
        steps, collectives = tables[Part.STEPS], tables[Part.COLLECTIVES].compact()
        held = {Part.STEPS: steps, Part.COLLECTIVES: collectives}
        if options.is_alone:
            held = {**tables, **held}
        kept = CachedTables(place, summary.has_host, held, again, writer.digest)
        return _rank(source.trace, summary, steps, collectives, kept)


def _key(source: _Source, options: IngestOptions) -> CacheKey:
    depends: dict[str, Any] = {
        "rows": options.rows,
        "strict": options.strict,
        "conclusions": CONCLUSIONS_VERSION,
        "patterns": repr((options.communication, shipped_patterns())),
        "flight": source.flight.digest if source.flight is not None else "",
    }
    if source.trace.process is not None:
        depends["process"] = source.trace.process
    with _readable(source):
        return CacheKey.of(version_of(source.opened).encode() or source.opened, depends)


@contextmanager
def _readable(source: _Source) -> Iterator[None]:
    """Name the file in the error if it cannot be opened or read inside the block."""
    try:
        yield
    except OSError as error:
        check_whole(source.trace, source.opened)
        raise InputError(
            source.trace.path,
            expected="a readable trace",
            found=f"{type(error).__name__}: {error.strerror}",
            fix="check the name and your permissions",
        ) from error


def _from_entry(trace: TraceFile, options: IngestOptions, entry: Path, digest: str) -> Rank | None:
    """The rank of a cache entry; None if this version cannot read it."""
    try:
        with open_tables(entry) as file:
            summary = msgspec.json.decode(file.rank(), type=_Summary)
            steps = file.table(Part.STEPS)
            collectives = file.table(Part.COLLECTIVES).compact()
    except (msgspec.MsgspecError, DamagedTablesError):
        return None
    again = partial(_reparsed, trace, options)
    held = {Part.STEPS: steps, Part.COLLECTIVES: collectives}
    tables = CachedTables(str(entry), summary.has_host, held, again, digest)
    return _rank(trace, summary, steps, collectives, tables)


def _reparsed(trace: TraceFile, options: IngestOptions) -> CachedTables:
    """The tables of a trace, read again because their entry is gone or not on this machine."""
    tables = ingest_rank(trace, options).tables
    assert isinstance(tables, CachedTables)
    return tables


def _parse_into_memory(source: _Source, options: IngestOptions) -> Rank:
    """Parse the trace and keep its tables in memory, unless they are too large for that."""
    with _readable(source):
        open_plain(source.trace.path).close()
    parsed, sink, conclusions = _parse_and_conclude(
        source, options, lambda: nullcontext(HeldHostRows())
    )
    has_host = _has_host(parsed, options)
    tables = RankTables(
        activity=conclusions.activity,
        host=parsed.host if has_host else Table.empty(HOST),
        collectives=conclusions.collectives.compact(),
        steps=conclusions.steps.table,
        has_host=has_host,
    )
    summary = _summary(parsed, conclusions, has_host=has_host, note="")
    held = HeldTables(tables, sink.table())
    return _rank(source.trace, summary, tables.steps, tables.collectives, held)


class _Sink(HostSink, Protocol):
    def table(self) -> Table: ...


def _parse_and_conclude(
    source: _Source, options: IngestOptions, new_sink: Callable[[], AbstractContextManager[_Sink]]
) -> tuple[ParsedTrace, _Sink, Conclusions]:
    """The parsed file, the sink of its host rows, and the conclusions for its rank."""
    parsed, sink = _parse(source, options, new_sink())
    if options.rows == "device" and not has_device_rows(parsed):
        parsed, sink = _parse(source, replace(options, rows="all"), new_sink())  # CPU did the work
    host = parsed.host
    if not has_device_rows(parsed):
        host = sink.table()  # every operator counts
        host = host.take(~host.coded("category").equals(MODULE_CATEGORY))
        if not is_known(host):
            categories = host.coded("category").values
            refuse_chrome_trace(source.trace.path, parsed.metadata, categories)
    conclusions = conclude(parsed, host, classifier_for(options.communication), source.flight)
    return parsed, sink, conclusions


def _parse(
    source: _Source, options: IngestOptions, opening: AbstractContextManager[_Sink]
) -> tuple[ParsedTrace, _Sink]:
    """Parse the file; its host rows go to the sink as they are read."""
    try:
        with opening as sink, _from_the_start(source) as opened:
            parsed = read_trace(
                opened,
                rows=options.rows,
                strict=options.strict,
                host_sink=sink,
                source=source.trace.path,
            )
    finally:
        check_whole(source.trace, source.opened)  # outranks the errors that it caused
    return parsed, sink


@contextmanager
def _from_the_start(source: _Source) -> Iterator[Any]:
    """Yield the reader's input from its start; for another tool's file, the trace of a process."""
    if source.trace.process is not None:
        with open_trace(source.trace) as made:
            yield made
        return
    if not source.trace.is_local:
        source.opened.seek(0)
    yield source.opened


def _has_host(parsed: ParsedTrace, options: IngestOptions) -> bool:
    """Whether host rows were requested and found, and most of them were not removed."""
    is_requested = options.rows == "all" or not has_device_rows(parsed)
    return is_requested and len(parsed.host) > 0 and not parsed.quality.is_filtered


def _summary(
    parsed: ParsedTrace, conclusions: Conclusions, *, has_host: bool, note: str
) -> _Summary:
    quality = conclusions.quality
    if note:
        quality = replace(quality, notes=(*quality.notes, note))
    metadata = conclusions.metadata
    return made_from(
        metadata,
        _Summary,
        device=conclusions.device,
        groups=tuple(msgspec.Raw(msgspec.json.encode(one)) for one in metadata.groups),
        capture_start_ns=parsed.first_ns,
        capture_end_ns=conclusions.end_ns,
        has_epoch=parsed.has_epoch,
        has_host=has_host,
        step_source=conclusions.steps.source,
        step_note=conclusions.steps.note,
        quality=quality,
    )


def _rank(
    trace: TraceFile, summary: _Summary, steps: Table, collectives: Table, tables: TableSource
) -> Rank:
    """The rank that a trace holds, under the path of the requested file."""
    origin: Literal["trace", "file name", "assumed"] = "trace"
    number = summary.rank
    if number is None:
        number, origin = trace.name_rank, "file name"
    if number is None:
        number, origin = ABSENT, "assumed"
    return made_from(
        summary,
        Rank,
        rank=number,
        path=trace.path,
        rank_origin=origin,
        groups=tuple(shared_group(bytes(group)) for group in summary.groups),
        steps=steps,
        collectives=collectives,
        tables=tables,
    )
