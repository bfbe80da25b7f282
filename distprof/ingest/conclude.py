"""From a parsed file to what is known about its rank: no file is read or written here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from distprof.ingest.collective_records import Records, device_records, mark_communication
from distprof.ingest.communication import Classifier
from distprof.ingest.gloo_records import gloo_records
from distprof.ingest.group_columns import Membership
from distprof.ingest.host_activity import executed_activity, host_activity
from distprof.ingest.job.flight import FlightEntries
from distprof.ingest.kineto.parsed import ParsedTrace
from distprof.ingest.metadata import TraceMetadata, read_metadata
from distprof.ingest.steps import Steps, find_steps
from distprof.run.run import Device, Quality
from distprof.schema import Table
from distprof.terms import ActivityKind

__all__ = ["CONCLUSIONS_VERSION", "Conclusions", "conclude", "has_device_rows"]

CONCLUSIONS_VERSION = 4
"""Raised whenever the same trace would lead to other conclusions: cached ones are not used then."""

_MAX_NOTES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusions:
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
    membership = Membership(groups=metadata.groups, world_size=metadata.world_size)
    if has_device_rows(parsed):
        activity = mark_communication(parsed.activity, parsed.comm_args, classifier)
        records = device_records(activity, host, parsed.comm_args, membership, classifier)
        device, marked = metadata.device, activity
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
        quality=_quality(parsed, metadata, records, device, flight),
    )


def _quality(
    parsed: ParsedTrace,
    metadata: TraceMetadata,
    records: Records,
    device: Device,
    flight: FlightEntries | None,
) -> Quality:
    damaged = flight.notes if flight is not None else ()
    notes = [*parsed.quality.notes, *metadata.notes, *records.notes, *damaged]
    if device.name == "cpu" and metadata.device.name:
        way_out = (
            "The profiler writes it last: it may be in the part of the file that is lost."
            if parsed.quality.truncated
            else "Profile with ProfilerActivity.CUDA to see the device."
        )
        notes.append(
            f"No activity of the {metadata.device.name} was recorded: what follows is the host's "
            f"work. {way_out}"
        )
    return replace(
        parsed.quality,
        notes=tuple(dict.fromkeys(notes))[:_MAX_NOTES],
    )
