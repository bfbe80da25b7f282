"""Metadata of a Kineto file: its rank, process groups, device and software.

Any value may be absent, nonsense, or of another type than upstream writes today. distprof uses
values that make sense and notes the others. It never gives up a file because of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from distprof.ingest.kineto.damage import clean_keys, repair_event
from distprof.run.run import Device
from distprof.run.topology import ProcessGroup, axis_of

_MAX_RANK = 1 << 18  # more ranks than any job has: larger numbers are nonsense
_MAX_TEXT = 200


class TraceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What one file records about itself."""

    rank: int | None  # Global rank, None if the file does not record it.
    world_size: int | None  # Number of ranks of the job, None if the file does not record it.
    backend: str  # Backend of the default group, empty when unknown.
    host: str | None  # Host name, None when unknown.
    device: Device  # The accelerators of the host; the name is empty if none is listed.
    groups: tuple[ProcessGroup, ...]  # Process groups that this rank belongs to.
    versions: Mapping[str, str]  # Software name to its version.
    with_stack: bool  # Whether Python stacks were recorded, which slows the CPU.
    notes: tuple[str, ...]  # Problems found, one sentence each.


def read_metadata(metadata: Mapping[str, Any]) -> TraceMetadata:
    """Read the top-level keys of a Kineto file except ``traceEvents``; values may have any type."""
    notes: list[str] = []
    about = metadata.get("distributedInfo")
    info = _mapping(about)
    if about is not None and not isinstance(about, Mapping):
        notes.append("distributedInfo is not an object: its content is unknown.")
    rank = _count(info.get("rank"), "rank", notes)
    world = _count(info.get("world_size"), "world_size", notes) or None
    if rank is not None and world is not None and rank >= world:
        notes.append(
            f"distributedInfo says rank {rank} of {world}: distprof ignores the world size."
        )
        world = None
    versions: dict[str, str] = {}
    for key, value in (*metadata.items(), *info.items()):
        name, separator, _ = key.partition("_version")
        if separator and isinstance(value, str | int) and not isinstance(value, bool):
            versions[_text(name)] = _text(value)
    return TraceMetadata(
        rank=rank,
        world_size=world,
        backend=_text(info.get("backend")),
        host=_text(metadata.get("host_name")) or _text(metadata.get("hostname")) or None,
        device=_device(metadata.get("deviceProperties"), notes),
        groups=_groups(info.get("pg_config"), rank, world, notes),
        versions=versions,
        with_stack=metadata.get("with_stack") in (1, True),
        notes=tuple(notes),
    )


def parse_ranks(value: object) -> tuple[int, ...]:
    """Ranks of a group, ascending, from a list or its text; empty if abbreviated or invalid."""
    if isinstance(value, str):
        if not re.fullmatch(r"\s*\[[\s\d,]*\]\s*", value):
            return ()
        value = re.findall(r"\d+", value)
    if not isinstance(value, list | tuple):
        return ()
    ranks = [_as_int(item) for item in value]
    if any(rank is None or not 0 <= rank < _MAX_RANK for rank in ranks):
        return ()
    return tuple(sorted({rank for rank in ranks if rank is not None}))


def _groups(
    value: object, rank: int | None, world: int | None, notes: list[str]
) -> tuple[ProcessGroup, ...]:
    if isinstance(value, Mapping):  # some builds write an object keyed by name
        value = [{"pg_name": name, **_mapping(group)} for name, group in value.items()]
    if value is None:
        return ()
    if not isinstance(value, list):
        notes.append("distributedInfo.pg_config is not a list: process groups are unknown.")
        return ()
    entries = [item for item in value if isinstance(item, Mapping)]
    if len(entries) < len(value):
        notes.append(f"{len(value) - len(entries)} entries of pg_config are not objects.")
    groups = dict.fromkeys(_group(entry, world) for entry in entries)  # each once
    return tuple(g for g in groups if rank is None or not g.ranks or rank in g.ranks)


def _group(entry: Mapping[str, Any], world: int | None) -> ProcessGroup:
    ranks = parse_ranks(entry.get("ranks"))
    size = _as_int(entry.get("pg_size"))
    if ranks or size is None or not 0 < size < _MAX_RANK:
        size = len(ranks) or None
    if not ranks and size is not None and size == world:
        ranks = tuple(range(world))
    description = _text(entry.get("pg_desc"))
    return ProcessGroup(
        name=_text(entry.get("pg_name")) or _text(entry.get("uid")),
        description=description,
        ranks=ranks,
        size=size,
        backend=_backend(_text(entry.get("backend_config")) or _text(entry.get("backend"))),
        axis=axis_of(description, ranks, size, world),
    )


def _backend(config: str) -> str:
    """Backend of the accelerator in ``cuda:nccl`` or ``cpu:gloo,cuda:nccl``, else of the CPU."""
    by_device = dict(part.split(":", 1) for part in config.split(",") if ":" in part)
    if not by_device:
        return config
    return next((b for device, b in by_device.items() if device != "cpu"), by_device.get("cpu", ""))


def _device(value: object, notes: list[str]) -> Device:
    if not isinstance(value, list):
        if value is not None:
            notes.append("deviceProperties is not a list: the GPU is unknown.")
        return Device(name="")
    devices = [item for item in value if isinstance(item, Mapping)]
    if not devices:
        return Device(name="")
    names = {_text(item.get("name")) for item in devices}
    if len(names) > 1:
        notes.append(
            f"The host has GPUs of {len(names)} models; distprof uses the name of the first."
        )
    first = devices[0]
    return Device(
        name=_text(first.get("name")),
        count=len(devices),
        memory_bytes=_as_int(first.get("totalGlobalMem")),
        num_multiprocessors=_as_int(first.get("numSms")),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: object, name: str, notes: list[str]) -> int | None:
    """A rank or a number of ranks, None if absent or nonsense."""
    if value is None:
        return None
    number = _as_int(value)
    if number is None or not 0 <= number < _MAX_RANK:
        notes.append(f"distributedInfo.{name} is not a valid rank number: distprof ignores it.")
        return None
    return number


def _as_int(value: object) -> int | None:
    """An integer written as a number or text; None for anything else, including True and False."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,18}\s*", value):
        return int(value)
    return value if isinstance(value, int) else None


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return str(value)[:_MAX_TEXT]


# The keys of a trace other than its events -------------------------------------------------------

_KEY = re.compile(r'[{,]\s*"([^"\\\n]*)"\s*:\s*')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})(?=\s*[,}])')
_EVENTS = "traceEvents"
_MOST_DAMAGED = 16 << 20
_MOST_BROKEN = 16  # each unreadable value costs time in proportion to the text, so both are limited


def parse_metadata(head: bytes, tail: bytes, *, ended: bool) -> tuple[Mapping[str, Any], bool]:
    """Top-level keys except ``traceEvents``, and whether their text was complete.

    ``head`` is the text up to the array of events, empty for a bare list, which has no metadata;
    ``tail`` the text after the array, or after the last complete event if the array has not ended.
    """
    if not head:
        return {}, ended and not tail.strip()
    if not ended:
        # the base of all times may be somewhere in a damaged end; no event holds it
        base = _BASE.search(tail)
        found = {"baseTimeNanoseconds": int(base[1])} if base else {}
        return clean_keys({**_events_left_out(_keys_of(head)), **found}), False
    whole = b"%b[]%b" % (head, tail)
    try:
        parsed = json.loads(whole)
        complete = True
    except (ValueError, RecursionError):
        parsed = repair_event(whole)
        complete = parsed is not None
    if not isinstance(parsed, dict):
        parsed = {**_keys_of(head), **_keys_of(b"{" + tail)}
    return clean_keys(_events_left_out(parsed)), complete


def _events_left_out(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if key != _EVENTS}


def _keys_of(text: bytes) -> dict[str, Any]:
    """The readable top-level keys of a damaged object, in order."""
    decoded = text[:_MOST_DAMAGED].decode("utf-8", "replace")
    decoder = json.JSONDecoder(strict=False)
    keys: dict[str, Any] = {}
    position = num_broken = 0
    while num_broken < _MOST_BROKEN and (match := _KEY.search(decoded, position)):
        position = match.end()
        try:
            keys[match[1]], position = decoder.raw_decode(decoded, match.end())
        except (ValueError, RecursionError):
            num_broken += 1
    return keys
