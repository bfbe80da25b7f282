"""JSON of rocprofv3: records of processes by kind, converted to torch.profiler events.

A file is a single object, so it is read whole, up to a size limit. Times count from the boot of
the system, so ranks can be compared only through their collectives.

Source: ROCm/rocprofiler-sdk, ``source/docs/how-to/using-rocprofv3.rst`` (``--output-format json``)
and ``tests/rocprofv3`` (``buffer_records``, ``strings``, ``kernel_symbols``, ``agents``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import msgspec

from distprof.bounds import Bound, num_parts, within
from distprof.errors import InputError
from distprof.ingest.files import DAMAGE, beginning, opened, read_some
from distprof.ingest.kineto.made import StepRanges, on_device, on_host, opened_events

_SIGN = b'"rocprofiler-sdk-tool"'
BOUND = Bound(
    reads="a trace of rocprofv3 as JSON",
    num_bytes=1 << 29,
    rows=1 << 26,
    depth=1_000,
    seconds_per_mb=2,
)
_SNIFFED_BYTES = 4_096
_ENDINGS = (".json", ".json.gz")
_EXPECTED = "JSON of rocprofv3 with kernels (rocprofv3 --runtime-trace --output-format json)"
_RECORD = "record with rocprofv3 --runtime-trace --output-format json -- COMMAND"
_GPU = 2  # type of an agent
_CALLS = ("hip_api", "hip_api_ext")
_RANGES = ("marker_api", "marker_api_ext")
_COPY = re.compile(r"MEMORY_COPY_(HOST|DEVICE)_TO_(HOST|DEVICE)")
_LARGEST_NS = 1 << 62  # later times are invalid
_MAX_NAME = 2_000  # characters kept of a name


class _Handle(msgspec.Struct):
    handle: int = 0


class _Correlation(msgspec.Struct):
    internal: int = 0


class _Dispatch(msgspec.Struct):
    kernel_id: int = -1
    agent_id: _Handle = msgspec.field(default_factory=_Handle)
    queue_id: _Handle = msgspec.field(default_factory=_Handle)


class _Record(msgspec.Struct):
    kind: int = -1
    operation: int = -1
    thread_id: int = 0
    start_timestamp: int = 0
    end_timestamp: int = 0
    bytes: int | None = None
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)
    stream_id: _Handle | None = None
    src_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    dst_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    dispatch_info: _Dispatch = msgspec.field(default_factory=_Dispatch)


class _Records(msgspec.Struct):
    kernel_dispatch: list[_Record] = []
    memory_copy: list[_Record] = []
    hip_api: list[_Record] = []
    hip_api_ext: list[_Record] = []
    marker_api: list[_Record] = []
    marker_api_ext: list[_Record] = []


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Message(msgspec.Struct):
    key: int
    value: str = ""


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Message] = []


class _Symbol(msgspec.Struct):
    kernel_id: int = -1
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class _Agent(msgspec.Struct):
    id: _Handle = msgspec.field(default_factory=_Handle)
    type: int = 0
    name: str = ""
    product_name: str = ""
    logical_node_id: int = 0


class _Node(msgspec.Struct):
    hostname: str = ""


class _About(msgspec.Struct):
    pid: int = 0
    node: _Node = msgspec.field(default_factory=_Node)


class _Tool(msgspec.Struct):
    metadata: _About = msgspec.field(default_factory=_About)
    agents: list[_Agent] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Records = msgspec.field(default_factory=_Records)


class _File(msgspec.Struct):
    tools: list[_Tool] = msgspec.field(default_factory=list, name="rocprofiler-sdk-tool")


def begins_rocprof(head: bytes) -> bool:
    """Whether a file with this uncompressed beginning is from rocprofv3."""
    return _SIGN in head


def is_rocprof(path: str | Path) -> bool:
    """Whether a regular file is from rocprofv3, by its name and beginning; never raises."""
    return begins_rocprof(beginning(str(path), _SNIFFED_BYTES, endings=_ENDINGS))


def processes_in_rocprof(path: str | Path) -> list[int]:
    """Positions of the processes with kernels in a file, usually a single one."""
    tools = _read(path).tools
    found = [n for n, tool in enumerate(tools) if tool.buffer_records.kernel_dispatch]
    if not found:
        raise InputError(
            str(path),
            expected="a trace of rocprofv3 with kernels",
            found="a trace of rocprofv3 without kernels",
            fix=_RECORD,
        )
    return found


@contextmanager
def opened_rocprof(path: str | Path, place: int) -> Iterator[BinaryIO]:
    """The trace of one process, to be read once from start to end."""
    tools = _read(path).tools
    if place >= len(tools):
        raise InputError(str(path), expected=_EXPECTED, found="fewer processes", fix=_RECORD)
    tool, streams = tools[place], dict[tuple[int, int], int]()
    named = {agent.id.handle: agent.product_name or agent.name for agent in tool.agents}
    gpus = [{"id": n, "name": named[handle][:200]} for handle, n in _gpus(tool).items()]
    host = tool.metadata.node.hostname[:200]
    head = {"schemaVersion": 1, "host_name": host, "deviceProperties": gpus}
    parts = (_kernels(tool, streams), _copies(tool, streams), _calls(tool), _ranges(tool))
    with opened_events(head, chain.from_iterable(parts)) as stream:
        yield stream


def _read(path: str | Path) -> _File:
    try:
        with opened(str(path)) as stream:
            data, damage = read_some(stream, BOUND.num_bytes + 1)
        if damage:
            raise InputError(str(path), expected=_EXPECTED, found=damage, fix=_RECORD)
        data = within(data, BOUND.num_bytes, str(path))
        if BOUND.rows is not None and num_parts(data) > BOUND.rows:
            raise ValueError(f"more than {BOUND.rows:,} values")
        return msgspec.json.decode(data, type=_File)
    except (*DAMAGE, RecursionError) as error:
        text = " ".join(f"{error}".split())[:200]
        raise InputError(str(path), expected=_EXPECTED, found=text, fix=_RECORD) from error


def _gpus(tool: _Tool) -> dict[int, int]:
    """Handle of each GPU to its GPU number, in the order of the system."""
    gpus = sorted((a for a in tool.agents if a.type == _GPU), key=lambda a: a.logical_node_id)
    return {agent.id.handle: number for number, agent in enumerate(gpus)}


def _timed(records: list[_Record]) -> Iterator[_Record]:
    for record in records:
        if 0 <= record.start_timestamp <= record.end_timestamp < _LARGEST_NS:
            yield record


def _stream(record: _Record, queue: int, streams: dict[tuple[int, int], int]) -> int:
    """A small number for the stream, or for the queue if the stream is unknown."""
    stream = record.stream_id
    key = (0, stream.handle) if stream is not None else (1, queue)
    return streams.setdefault(key, len(streams))


def _correlation(record: _Record) -> int | None:
    number = record.correlation_id.internal
    return number if 0 < number < _LARGEST_NS else None


def _kernels(tool: _Tool, streams: dict[tuple[int, int], int]) -> Iterator[bytes]:
    gpus = _gpus(tool)
    names = {}
    for one in tool.kernel_symbols:
        name = one.formatted_kernel_name or one.demangled_kernel_name or one.kernel_name
        names[one.kernel_id] = msgspec.json.encode((name or "unknown")[:_MAX_NAME])
    for record in _timed(tool.buffer_records.kernel_dispatch):
        dispatch = record.dispatch_info
        yield on_device(
            b"kernel",
            names.get(dispatch.kernel_id, b'"unknown"'),
            record.start_timestamp,
            record.end_timestamp,
            device=gpus.get(dispatch.agent_id.handle, 0),
            stream=_stream(record, dispatch.queue_id.handle, streams),
            correlation=_correlation(record),
        )


def _operation(tool: _Tool, record: _Record) -> str:
    """The name of a record's operation; empty if it is unknown."""
    kinds = tool.strings.buffer_records
    operations = kinds[record.kind].operations if 0 <= record.kind < len(kinds) else []
    known = 0 <= record.operation < len(operations)
    return operations[record.operation][:_MAX_NAME] if known else ""


def _copies(tool: _Tool, streams: dict[tuple[int, int], int]) -> Iterator[bytes]:
    """Events of copies, with the direction from the name of the operation."""
    gpus = _gpus(tool)
    for record in _timed(tool.buffer_records.memory_copy):
        device = gpus.get(record.dst_agent_id.handle, gpus.get(record.src_agent_id.handle, 0))
        way = _COPY.search(_operation(tool, record))
        ends = [end.capitalize() for end in way.groups()] if way else ["Device", "Device"]
        kind = f"{ends[0][0]}to{ends[1][0]}"
        yield on_device(
            b"gpu_memcpy",
            f'"Memcpy {kind} ({ends[0]} -> {ends[1]})"'.encode(),
            record.start_timestamp,
            record.end_timestamp,
            device=device,
            stream=_stream(record, -1 - device, streams),
            correlation=_correlation(record),
            num_bytes=record.bytes,
        )


def _calls(tool: _Tool) -> Iterator[bytes]:
    """Events of HIP calls, without those that the compiler inserts to register kernels."""
    for kind in _CALLS:
        for record in _timed(getattr(tool.buffer_records, kind)):
            name = _operation(tool, record)
            if not name.startswith("__"):
                yield on_host(
                    b"cuda_runtime",
                    msgspec.json.encode(name or "unknown"),
                    record.start_timestamp,
                    record.end_timestamp,
                    pid=tool.metadata.pid,
                    tid=record.thread_id,
                    correlation=_correlation(record),
                )


def _ranges(tool: _Tool) -> Iterator[bytes]:
    """Events of ROCTx ranges, and additional events for steps with Kineto's name for them."""
    texts = {message.key: message.value[:_MAX_NAME] for message in tool.strings.marker_api}
    steps = StepRanges()

    def event(name: bytes, start: int, end: int, thread: int) -> bytes:
        return on_host(b"user_annotation", name, start, end, pid=tool.metadata.pid, tid=thread)

    for kind in _RANGES:
        for record in _timed(getattr(tool.buffer_records, kind)):
            name = texts.get(record.correlation_id.internal, "")
            start, end, thread = record.start_timestamp, record.end_timestamp, record.thread_id
            if name and end > start:
                yield event(msgspec.json.encode(name), start, end, thread)
                steps.note(name, start, end, thread)
    for step, start, end, thread in steps.chosen():
        yield event(step, start, end, thread)
