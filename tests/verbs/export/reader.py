"""A Perfetto trace read back with Google's protobuf and Perfetto's own definitions.

It follows the rules by which trace_processor reads track events: packets are sorted by time, those
of equal time stay in the order of the file; on a track the innermost open slice closes; names are
looked up in the table of the packet's sequence; slices with one flow id are a chain in order of
time. It shares no code with the writer.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.optional import optional

_proto = optional("perfetto", reason="the package perfetto is not installed")

SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4
CLEARED, NEEDED = 1, 2


def definitions() -> Any:
    """Perfetto's messages."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    return perfetto_trace_pb2


@dataclass
class ReadSlice:
    track: tuple[str, ...]
    name: str
    category: str
    start: int
    end: int = -1
    depth: int = 0
    flows: tuple[int, ...] = ()
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class ReadTrace:
    """What a viewer would show."""

    slices: list[ReadSlice]
    marks: list[ReadSlice]
    counters: dict[tuple[str, ...], list[tuple[int, float]]]
    units: dict[tuple[str, ...], str]
    about: dict[tuple[str, ...], str]
    clocks: dict[int, int]

    def on(self, *track: str) -> list[ReadSlice]:
        """Slices of the tracks whose names begin so, part by part."""
        return [
            one
            for one in self.slices
            if len(one.track) >= len(track)
            and all(part.startswith(wanted) for part, wanted in zip(one.track, track, strict=False))
        ]

    def arrows(self) -> list[tuple[ReadSlice, ReadSlice]]:
        """From each slice to the next one with the same flow, in order of start."""
        chains: dict[int, list[ReadSlice]] = defaultdict(list)
        for one in self.slices:  # already in the order in which they begin
            for flow in one.flows:
                chains[flow].append(one)
        return [pair for chain in chains.values() for pair in pairwise(chain)]


def read_trace(path: Path) -> ReadTrace:
    """Read a trace; an AssertionError says what a viewer could not make sense of."""
    pb = definitions()
    trace = pb.Trace()
    trace.ParseFromString(path.read_bytes())
    tracks: dict[int, Any] = {}
    names: dict[int, dict[str, dict[int, str]]] = {}
    events = []
    clocks: dict[int, int] = {}
    for packet in trace.packet:
        sequence = packet.trusted_packet_sequence_id
        assert sequence > 0
        if packet.sequence_flags & CLEARED:
            names[sequence] = defaultdict(dict)
        if packet.HasField("clock_snapshot"):
            clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
        if packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid not in tracks
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("interned_data"):
            for kind in ("event_names", "event_categories", "debug_annotation_names"):
                for entry in getattr(packet.interned_data, kind):
                    assert entry.iid not in names[sequence][kind]
                    names[sequence][kind][entry.iid] = entry.name
        if packet.HasField("track_event"):
            assert packet.sequence_flags & NEEDED
            assert packet.track_event.track_uuid in tracks
            events.append((packet.timestamp, packet.track_event, names[sequence]))
    events.sort(key=lambda event: event[0])
    return _replayed(events, tracks, clocks)


def _replayed(events: list[Any], tracks: dict[int, Any], clocks: dict[int, int]) -> ReadTrace:
    paths = {uuid: _path(uuid, tracks) for uuid in tracks}
    result = ReadTrace([], [], defaultdict(list), {}, {}, clocks)
    for uuid, track in tracks.items():
        result.about[paths[uuid]] = track.description
        if track.HasField("counter"):
            result.units[paths[uuid]] = track.counter.unit_name
    stacks: dict[int, list[ReadSlice]] = defaultdict(list)
    for at, event, known in events:
        stack, path = stacks[event.track_uuid], paths[event.track_uuid]
        if event.type == SLICE_BEGIN:
            assert not stack or stack[-1].start <= at
            stack.append(_slice(path, at, event, known, len(stack)))
            result.slices.append(stack[-1])
        elif event.type == SLICE_END:
            stack.pop().end = at
        elif event.type == INSTANT:
            result.marks.append(_slice(path, at, event, known, 0))
        else:
            assert event.type == COUNTER
            assert tracks[event.track_uuid].HasField("counter")
            kind = event.WhichOneof("counter_value_field")
            result.counters[path].append((at, getattr(event, kind)))
    assert not any(stacks.values()), "a slice that never ends"
    return result


def _slice(path: Any, at: int, event: Any, known: Any, depth: int) -> ReadSlice:
    args = {
        known["debug_annotation_names"][one.name_iid]: getattr(one, one.WhichOneof("value"))
        for one in event.debug_annotations
    }
    categories = [known["event_categories"][iid] for iid in event.category_iids]
    return ReadSlice(
        track=path,
        name=known["event_names"][event.name_iid],
        category=",".join(categories),
        start=at,
        depth=depth,
        flows=tuple(event.flow_ids),
        args=args,
    )


def _path(uuid: int, tracks: dict[int, Any]) -> tuple[str, ...]:
    track = tracks[uuid]
    above = _path(track.parent_uuid, tracks) if track.HasField("parent_uuid") else ()
    return (*above, track.name)
