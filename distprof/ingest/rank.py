"""The unit of parallel work: one trace file to one rank, its tables in the cache.

Small things (the rank's summary, its steps and collectives) come back to the caller; the large
tables stay on disk and are loaded one rank at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from distprof.config import CommunicationConfig
from distprof.errors import InputError
from distprof.ingest import cache
from distprof.ingest.collectives.device_records import Records, device_records, mark_communication
from distprof.ingest.collectives.gloo_records import gloo_records
from distprof.ingest.collectives.group_columns import Membership
from distprof.ingest.communication import Classifier, classifier_for, shipped_patterns
from distprof.ingest.discovery import TraceFile, open_trace
from distprof.ingest.flight.recorder import FlightEntries, read_flight
from distprof.ingest.foreign import refuse_chrome_trace
from distprof.ingest.host_activity import executed_activity, host_activity, with_collectives
from distprof.ingest.kineto.parsed import ParsedTrace
from distprof.ingest.kineto.reader import read_trace
from distprof.ingest.metadata import TraceMetadata, read_metadata
from distprof.ingest.no_device import is_known, missing_device
from distprof.ingest.steps import Steps, find_steps
from distprof.run.run import Device, Quality, Rank
from distprof.run.tables import COLLECTIVES, HOST, STEPS
from distprof.run.topology import shared_group
from distprof.schema import ABSENT, Table
from distprof.terms import ActivityKind, StepSource

__all__ = [
    "CONCLUSIONS_VERSION",
    "Conclusions",
    "IngestOptions",
    "conclude",
    "has_device_rows",
    "ingest_rank",
]

CONCLUSIONS_VERSION = 9
"""Raised whenever the same trace would lead to other conclusions: cached ones are not used then."""

_MAX_NOTES = 12


class Conclusions(msgspec.Struct, frozen=True, kw_only=True):
    """What one file tells about its rank.

    Args:
        metadata: What it says about itself.
        device: The accelerator, named ``cpu`` where the host did the work.
        activity: ACTIVITY table, communication marked.
        collectives: COLLECTIVES table.
        steps: The steps and how they were found.
        quality: What was met, everything assumed among its notes.
    """

    metadata: TraceMetadata
    device: Device
    activity: Table
    collectives: Table
    steps: Steps
    quality: Quality


def has_device_rows(parsed: ParsedTrace) -> bool:
    """Whether the trace recorded what a device did."""
    return bool((parsed.activity["kind"] != ActivityKind.ANNOTATION).any())


def conclude(
    parsed: ParsedTrace,
    host: Table,
    classifier: Classifier,
    flight: FlightEntries | None = None,
) -> Conclusions:
    """Conclude from a parsed file.

    Args:
        parsed: The file.
        host: HOST table: the parsed one suffices where the file has device rows, every row is
            needed where it has none.
        classifier: Tells communication.
        flight: What the Flight Recorder knows of the rank, None without its dump.
    """
    metadata = read_metadata(parsed.metadata)
    problem = ""
    membership = Membership(groups=metadata.groups, world_size=metadata.world_size)
    if has_device_rows(parsed):
        activity = mark_communication(parsed.activity, parsed.comm_args, classifier)
        device, marked = metadata.device, activity
        on_device = (activity["kind"] == ActivityKind.COMMUNICATION).any()
        if not on_device and len(executed := executed_activity(host, classifier)):
            # ranks with GPUs whose groups are gloo's: the GPU waits while a CPU thread reduces
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
    steps = find_steps(marked, host, first_ns=parsed.first_ns, last_ns=parsed.last_ns)
    return Conclusions(
        metadata=metadata,
        device=device,
        activity=activity,
        collectives=records.table,
        steps=steps,
        quality=_quality(parsed, metadata, records, problem, flight),
    )


def _quality(
    parsed: ParsedTrace,
    metadata: TraceMetadata,
    records: Records,
    problem: str,
    flight: FlightEntries | None,
) -> Quality:
    damaged = flight.notes if flight is not None else ()
    notes = [*parsed.quality.notes, *metadata.notes, *records.notes, *damaged]
    return replace(
        parsed.quality,
        no_device=problem,
        with_stack=metadata.with_stack,
        notes=tuple(dict.fromkeys(notes))[:_MAX_NOTES],
    )


# The unit of parallel work: one trace file to one rank, its tables in the cache ------------------

Rows = Literal["all", "device"]


class IngestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How traces are read.

    Args:
        rows: ``device`` reads device rows only: faster, but nothing about the host is known.
        strict: Refuse damaged traces instead of salvaging what is whole.
        cache_dir: Where parsed tables are kept; None for the usual place.
        use_cache: Whether tables of an earlier read may be used, and are kept for a later one.
        run_dir: The folder that the traces came from; a run directory keeps its own cache.
        communication: Names that are communication, beyond those that ship with distprof.
    """

    rows: Rows = "all"
    strict: bool = False
    cache_dir: str | None = None
    use_cache: bool = True
    run_dir: str | None = None
    communication: CommunicationConfig = msgspec.field(default_factory=CommunicationConfig)


class _Summary(msgspec.Struct, frozen=True, kw_only=True):
    """``rank.json`` of a cache entry: a :class:`Rank` without its tables and its file's name."""

    rank: int | None
    world_size: int | None
    host: str | None
    backend: str
    device: Device
    groups: tuple[msgspec.Raw, ...]  # JSON of ProcessGroups, most of which other ranks have too
    versions: Mapping[str, str]
    capture_start_ns: int
    capture_end_ns: int
    has_epoch: bool
    has_host: bool
    step_source: StepSource
    step_note: str
    quality: Quality


def ingest_rank(trace: TraceFile, options: IngestOptions) -> Rank:
    """Read one trace, from the cache where it has been read before.

    Args:
        trace: The file. Its name tells the rank where the trace does not; where neither does, the
            result's ``rank`` is ABSENT and its origin ``assumed``: the caller numbers it.
        options: How to read.

    Raises:
        InputError: If the file is no Kineto trace, or is damaged and ``options.strict`` is set.
    """
    root = cache.cache_root(options.run_dir, options.cache_dir)
    flight = read_flight(trace.flight) if trace.flight else None
    key = _key(trace, options, flight)
    entry = cache.find_entry(root, key)
    if entry is not None:
        kept = _from_entry(trace, entry)
        if kept is not None:
            return kept
    try:
        return _made(trace, options, cache.EntryWriter(root, key), flight)
    except OSError as error:
        if error.errno not in cache.NO_ROOM:
            raise
        return _made_elsewhere(trace, options, cache.EntryWriter(root, key, error), flight)


def _made(
    trace: TraceFile,
    options: IngestOptions,
    writer: cache.EntryWriter,
    flight: FlightEntries | None,
) -> Rank:
    with writer:
        summary, found = _write_entry(trace, options, writer.folder, writer.note, flight)
        return _rank(trace, summary, writer.commit(), found.steps.table, found.collectives)


def _made_elsewhere(
    trace: TraceFile,
    options: IngestOptions,
    writer: cache.EntryWriter,
    flight: FlightEntries | None,
) -> Rank:
    """A full cache costs no rank, unless the place for temporary files is full too."""
    try:
        return _made(trace, options, writer, flight)
    except OSError as error:
        if error.errno not in cache.NO_ROOM:
            raise
        raise InputError(
            trace.path,
            expected="disk space for the parsed tables",
            found=f"none, neither in the cache nor in {writer.folder.parent}",
            fix="free some space, or name a folder with enough space with --cache-dir",
        ) from error


def _key(trace: TraceFile, options: IngestOptions, flight: FlightEntries | None) -> cache.CacheKey:
    """What the tables of this file under these options are kept by."""
    depends = {
        "rows": options.rows,
        "strict": options.strict,
        "conclusions": CONCLUSIONS_VERSION,
        "patterns": repr((options.communication, shipped_patterns())),
        "flight": flight.digest if flight is not None else "",
    }
    try:
        with open_trace(trace) as opened:
            return cache.CacheKey.of(opened, depends)
    except OSError as error:
        raise InputError(
            trace.path,
            expected="a readable trace",
            found=f"{type(error).__name__}: {error.strerror}",
            fix="check the name and your permissions",
        ) from error


def _from_entry(trace: TraceFile, entry: Path) -> Rank | None:
    """The rank of a cache entry; None where this version cannot read it."""
    try:
        summary = msgspec.json.decode((entry / cache.RANK_FILE).read_bytes(), type=_Summary)
        steps = cache.read_table(entry / cache.STEPS_FILE, STEPS)
        collectives = cache.read_table(entry / cache.COLLECTIVES_FILE, COLLECTIVES)
        return _rank(trace, summary, entry, steps, collectives)
    except (OSError, msgspec.MsgspecError, cache.DamagedCacheError):
        return None


def _write_entry(
    trace: TraceFile,
    options: IngestOptions,
    folder: Path,
    note: str,
    flight: FlightEntries | None,
) -> tuple[_Summary, Conclusions]:
    """Parse the trace and write its tables and summary to ``folder``."""
    parsed = _parse(trace, options, folder)
    if options.rows == "device" and not has_device_rows(parsed):
        parsed = _parse(trace, replace(options, rows="all"), folder)  # the host did the work
    host = parsed.host
    if not has_device_rows(parsed):
        host = cache.read_table(folder / cache.HOST_FILE, HOST)  # every operator counts
        if not is_known(host):
            categories = host.coded("category").values
            refuse_chrome_trace(trace.path, parsed.metadata, categories)
    found = conclude(parsed, host, classifier_for(options.communication), flight)
    cache.write_table(folder / cache.ACTIVITY_FILE, found.activity)
    cache.write_table(folder / cache.CALLS_FILE, parsed.host)
    cache.write_table(folder / cache.COLLECTIVES_FILE, found.collectives)
    cache.write_table(folder / cache.STEPS_FILE, found.steps.table)
    summary = _summary(parsed, found, has_host=_has_host(parsed, options), note=note)
    (folder / cache.RANK_FILE).write_bytes(msgspec.json.encode(summary))
    return summary, found


def _parse(trace: TraceFile, options: IngestOptions, folder: Path) -> ParsedTrace:
    """Read the file, its host rows going to ``folder`` as they come."""
    with open_trace(trace) as opened, cache.ParquetHostSink(folder / cache.HOST_FILE) as sink:
        return read_trace(
            opened,
            rows=options.rows,
            strict=options.strict,
            host_sink=sink,
            source=trace.path,
        )


def _has_host(parsed: ParsedTrace, options: IngestOptions) -> bool:
    """Whether host rows were looked for and found."""
    asked = options.rows == "all" or not has_device_rows(parsed)
    return asked and len(parsed.host) > 0


def _summary(parsed: ParsedTrace, found: Conclusions, *, has_host: bool, note: str) -> _Summary:
    quality = found.quality
    if note:
        quality = replace(quality, notes=(*quality.notes, note))
    return _Summary(
        rank=found.metadata.rank,
        world_size=found.metadata.world_size,
        host=found.metadata.host,
        backend=found.metadata.backend,
        device=found.device,
        groups=tuple(msgspec.Raw(msgspec.json.encode(group)) for group in found.metadata.groups),
        versions=found.metadata.versions,
        capture_start_ns=parsed.first_ns,
        capture_end_ns=parsed.last_ns,
        has_epoch=parsed.has_epoch,
        has_host=has_host,
        step_source=found.steps.source,
        step_note=found.steps.note,
        quality=quality,
    )


def _rank(
    trace: TraceFile, summary: _Summary, entry: Path, steps: Table, collectives: Table
) -> Rank:
    """The rank that an entry holds, under the name of the file asked for."""
    number, origin = _number(trace, summary.rank)
    collectives = collectives.compact()  # of all ranks it stays in memory
    shared: dict[str, Any] = {
        name: getattr(summary, name)
        for name in _Summary.__struct_fields__
        if name not in ("rank", "groups", "has_host")
    }
    return Rank(
        rank=number,
        path=trace.path,
        rank_origin=origin,
        groups=tuple(shared_group(bytes(group)) for group in summary.groups),
        steps=steps,
        collectives=collectives,
        tables=cache.CachedTables(str(entry), summary.has_host, collectives, steps),
        **shared,
    )


def _number(
    trace: TraceFile, told: int | None
) -> tuple[int, Literal["trace", "file name", "assumed"]]:
    """Rank and where it comes from."""
    if told is not None:
        return told, "trace"
    if trace.name_rank is not None:
        return trace.name_rank, "file name"
    return ABSENT, "assumed"
