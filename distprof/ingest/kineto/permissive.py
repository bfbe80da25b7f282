"""Events one by one, whatever their types, mended where they are broken. Slow, rarely needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from distprof.ingest.kineto.events import (
    DECODE_LOOSE,
    NO_ARGUMENTS,
    NO_COLLECTIVE,
    NO_DURATION,
    SOME_COLLECTIVE,
    Arguments,
    Complete,
    Loose,
    Metadata,
    MetadataArguments,
)
from distprof.ingest.kineto.repair import as_int, as_stream, as_text, clean_text, repair_event
from distprof.ingest.kineto.times import INVALID_NS, text_to_ns

__all__ = ["PermissiveEvents", "decode_permissively"]


@dataclass(slots=True)
class PermissiveEvents:
    """What came of a list of event texts.

    Args:
        rows: Complete events, typed as the usual decoder types them.
        start_ns: Exact start of each.
        arguments: All arguments of each.
        metadata: Process and thread names.
        num_repaired: Texts that had to be mended.
        num_quarantined: Texts given up.
        num_unusual: Events that the usual decoder would not take, but which needed no mending.
        first_fault: The first text that was mended or given up.
    """

    rows: list[Complete] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)
    arguments: list[Mapping[str, Any]] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)
    num_repaired: int = 0
    num_quarantined: int = 0
    num_unusual: int = 0
    first_fault: bytes | None = None


def decode_permissively(texts: Iterable[bytes]) -> PermissiveEvents:
    """Decode each text by itself."""
    events = PermissiveEvents()
    for text in texts:
        event = _decode(text)
        if event is None:
            event = _repaired(text)
            events.first_fault = events.first_fault or text
            events.num_repaired += event is not None
        if event is None or not _add(events, event):
            events.first_fault = events.first_fault or text
            events.num_quarantined += 1
    return events


def _decode(text: bytes) -> Loose | None:
    try:
        return DECODE_LOOSE(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _repaired(text: bytes) -> Loose | None:
    fields = repair_event(text)
    if fields is None:
        return None
    known: dict[str, Any] = {name: fields.get(name) for name in Loose.__struct_fields__}
    known["ts"] = msgspec.Raw(as_text(known["ts"]).encode())
    return Loose(**known)


def _add(events: PermissiveEvents, event: Loose) -> bool:
    """Enter an event; False when it is not an event at all."""
    if not isinstance(event.ph, str) or not event.ph:
        return False
    if event.ph == "M":
        events.metadata.append(_metadata(event))
    elif event.ph == "X":
        start_ns = _start(event.ts)
        if start_ns == INVALID_NS:
            return False
        row = _complete(event)
        events.rows.append(row)
        events.start_ns.append(start_ns)
        events.arguments.append(event.args if isinstance(event.args, dict) else {})
        events.num_unusual += _is_unusual(event)
    return True


def _complete(event: Loose) -> Complete:
    return Complete(
        name=as_text(event.name),
        ts=0.0,
        cat=as_text(event.cat),
        pid=_identity(event.pid),
        tid=_identity(event.tid),
        dur=_duration(event.dur),
        args=_arguments(event.args),
    )


def _arguments(args: Any) -> Arguments:
    if not isinstance(args, dict):
        return NO_ARGUMENTS
    collective = args.get("Collective name")
    return Arguments(
        stream=as_stream(args.get("stream")),
        correlation=as_int(args.get("correlation")),
        device=as_int(args.get("device")),
        bytes=as_int(args.get("bytes")),
        collective=NO_COLLECTIVE if collective is None else SOME_COLLECTIVE,
    )


def _metadata(event: Loose) -> Metadata:
    name = event.args.get("name") if isinstance(event.args, dict) else None
    return Metadata(
        name=as_text(event.name),
        pid=_identity(event.pid),
        tid=_identity(event.tid),
        args=MetadataArguments(name=None if name is None else as_text(name)),
    )


def _is_unusual(event: Loose) -> bool:
    """Whether the usual decoder refuses this event's types (an estimate that may be too high)."""
    try:
        msgspec.convert(
            {"name": event.name, "cat": event.cat, "pid": event.pid, "tid": event.tid}
            | {"args": event.args or {}, "dur": event.dur, "ts": 0.0},
            Complete,
        )
    except msgspec.ValidationError:
        return True
    return bytes(event.ts).startswith(b'"')


def _start(ts: msgspec.Raw) -> int:
    text = bytes(ts).strip(b' "')
    return text_to_ns(text.decode("ascii", "replace")) if len(text) < 64 else int(INVALID_NS)


def _duration(value: Any) -> float:
    try:
        return float(value) if not isinstance(value, bool) else NO_DURATION
    except (TypeError, ValueError, OverflowError):
        return NO_DURATION


def _identity(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return clean_text(as_text(value))
