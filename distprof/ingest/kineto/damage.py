"""Decode events that the usual decoders cannot read, one by one, and repair broken ones.

Real traces contain quotes that were not escaped (a range named ``forward "x"``), ``nan`` and
``inf`` as numbers, raw control characters, single backslashes in Windows paths, bytes that are not
UTF-8, and halves of surrogate pairs. A repaired event is counted, never accepted silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from distprof.ingest.kineto.events import (
    DECODE_LOOSE,
    INVALID_NS,
    NO_ARGUMENTS,
    NO_COLLECTIVE,
    NO_DURATION,
    NO_TEXT,
    SOME_COLLECTIVE,
    Arguments,
    Complete,
    Loose,
    Metadata,
    MetadataArguments,
    text_to_ns,
)
from distprof.schema import ABSENT

_NOT_A_NUMBER = re.compile(r"(?<=[:\[,\s])[-+]?(?:nan|inf|infinity)(?=\s*[,}\]])", re.IGNORECASE)
_LONE_BACKSLASH = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_CLOSES_KEY = re.compile(r"\s*:")
_CLOSES_VALUE = re.compile(r'\s*(?:\}|,\s*"[^"\n]*"\s*:)')
_CLOSES_ITEM = re.compile(r"\s*[\],]")
_QUOTE = re.compile(r'(\\.)|"', re.DOTALL)  # or something that is escaped already
_LONGEST = 1 << 20


def repair_event(text: bytes) -> dict[str, Any] | None:
    """The event that ``text`` was meant to be; None if it cannot be repaired."""
    if len(text) > _LONGEST:
        return None
    decoded = text.decode("utf-8", "replace")
    for repair in (str, _repair_numbers, _repair_quotes):  # first unchanged
        decoded = repair(decoded)
        try:
            event = json.loads(decoded, strict=False)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            return event
    return None


def clean_text(text: str) -> str:
    """``text`` without halves of surrogate pairs, which no table can hold."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def clean_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which every text is clean; a value that is nested too deeply becomes None."""
    cleaned: dict[str, Any] = {}
    for key, value in values.items():
        try:
            cleaned[clean_text(key)] = _clean(value)
        except RecursionError:
            cleaned[clean_text(key)] = None
    return cleaned


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _repair_numbers(text: str) -> str:
    return _LONE_BACKSLASH.sub(
        lambda escape: escape[0] if escape[1] else "\\\\", _NOT_A_NUMBER.sub("null", text)
    )


def _repair_quotes(text: str) -> str:
    """Escape quotes inside strings: a quote ends a string only where JSON can continue after it."""
    out: list[str] = []
    opened: list[str] = []
    position = 0
    expects_key = False
    while position < len(text):
        char = text[position]
        if char == '"':
            closes = _CLOSES_ITEM if opened and opened[-1] == "[" else _CLOSES_VALUE
            closes = _CLOSES_KEY if expects_key else closes
            end = _end_of_string(text, position + 1, closes)
            inner = _QUOTE.sub(lambda match: match[1] or '\\"', text[position + 1 : end])
            out.append(f'"{inner}"')
            position = end + 1
            continue
        if char in "{[":
            opened.append(char)
        elif char in "}]" and opened:
            opened.pop()
        if char in "{,:[":
            expects_key = char in "{," and bool(opened) and opened[-1] == "{"
        out.append(char)
        position += 1
    return "".join(out)


def _end_of_string(text: str, start: int, closes: re.Pattern[str]) -> int:
    position = start
    while (position := text.find('"', position)) >= 0:
        backslashes = position - len(text[start:position].rstrip("\\")) - start
        if backslashes % 2 == 0 and closes.match(text, position + 1):
            return position
        position += 1
    return len(text)


# Values ------------------------------------------------------------------------------------------

_LARGEST = 2**63 - 1
NO_STREAM = 2**32 - 1  # how an unsigned writer prints stream -1


def as_int(value: Any) -> int:
    """An int64; ABSENT for anything that is not a decimal integer or does not fit."""
    if isinstance(value, str):
        try:
            value = int(value) if len(value) < 20 else ABSENT
        except ValueError:
            return ABSENT
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return ABSENT
    return value if -_LARGEST <= value <= _LARGEST else ABSENT


def as_stream(value: Any) -> int:
    """A stream number; ABSENT for 2**32 - 1, for pointers such as ``0x0`` and for text."""
    stream = as_int(value)
    return ABSENT if stream == NO_STREAM or stream < 0 else stream


def as_text(value: Any) -> str:
    """A string as it is, other values as compact JSON, empty for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return clean_text(value)
    try:
        return msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
        return clean_text(str(value)[:1000])


# Events of unusual types --------------------------------------------------------------------------


class PermissiveEvents(msgspec.Struct):
    """The result of decoding a list of event texts."""

    # Complete events, typed as by the usual decoder.
    rows: list[Complete] = msgspec.field(default_factory=list)
    start_ns: list[int] = msgspec.field(default_factory=list)  # Exact start of each event.
    # All arguments of each event.
    arguments: list[Mapping[str, Any]] = msgspec.field(default_factory=list)
    metadata: list[Metadata] = msgspec.field(default_factory=list)  # Process and thread names.
    num_repaired: int = 0  # Texts that had to be repaired.
    num_quarantined: int = 0  # Texts that were given up.
    # Events that needed no repair, but have types that the usual decoder refuses.
    num_unusual: int = 0
    first_fault: bytes | None = None  # The first text that was repaired or given up.


def decode_permissively(texts: Iterable[bytes]) -> PermissiveEvents:
    """Decode each text separately."""
    events = PermissiveEvents()
    for text in texts:
        event: Loose | None
        try:
            event = DECODE_LOOSE(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            fields = repair_event(text)
            event = None if fields is None else _loose(fields)
            events.first_fault = events.first_fault or text
            events.num_repaired += event is not None
        if event is None or not _add(events, event):
            events.first_fault = events.first_fault or text
            events.num_quarantined += 1
    return events


def _loose(fields: dict[str, Any]) -> Loose:
    clean = clean_keys(fields)
    known: dict[str, Any] = {name: clean.get(name) for name in Loose.__struct_fields__}
    known["ts"] = msgspec.Raw(as_text(known["ts"]).encode())
    return Loose(**known)


def _add(events: PermissiveEvents, event: Loose) -> bool:
    """Add an event; return False if it is not an event at all."""
    if not isinstance(event.ph, str) or not event.ph:
        return False
    if event.ph == "M":
        name = event.args.get("name") if isinstance(event.args, dict) else None
        arguments = MetadataArguments(name=None if name is None else as_text(name))
        who = _identity(event.pid), _identity(event.tid)
        events.metadata.append(Metadata(as_text(event.name), *who, arguments))
    elif event.ph == "X":
        text = bytes(event.ts).strip(b' "').decode("ascii", "replace")
        start_ns = text_to_ns(text) if len(text) < 64 else INVALID_NS
        if start_ns == INVALID_NS:
            return False
        events.rows.append(
            Complete(
                name=as_text(event.name),
                ts=0.0,
                cat=as_text(event.cat),
                pid=_identity(event.pid),
                tid=_identity(event.tid),
                dur=_duration(event.dur),
                args=_arguments(event.args),
            )
        )
        events.start_ns.append(start_ns)
        events.arguments.append(event.args if isinstance(event.args, dict) else {})
        events.num_unusual += _is_unusual(event)
    return True


def _arguments(args: Any) -> Arguments:
    if not isinstance(args, dict):
        return NO_ARGUMENTS
    collective, grid = args.get("Collective name"), args.get("grid")
    return Arguments(
        stream=as_stream(args.get("stream")),
        correlation=as_int(args.get("correlation")),
        device=as_int(args.get("device")),
        bytes=as_int(args.get("bytes")),
        grid=tuple(map(as_int, grid)) if isinstance(grid, list) else None,
        collective=NO_COLLECTIVE if collective is None else SOME_COLLECTIVE,
        sequence=as_int(args.get("Sequence number")),
        values=_raw(args.get("Concrete Inputs")),
        types=_raw(args.get("Input type")),
        sizes=_raw(args.get("Input Dims", args.get("Input dims"))),
    )


def _raw(value: Any) -> msgspec.Raw:
    return NO_TEXT if value is None else msgspec.Raw(as_text(value).encode())


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


def _duration(value: Any) -> float:
    try:
        return float(value) if not isinstance(value, bool) else NO_DURATION
    except (TypeError, ValueError, OverflowError):
        return NO_DURATION


def _identity(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return clean_text(as_text(value))
