"""Convert records of rocprofv3, in any of its formats, to Kineto events."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from distprof.ingest.kineto.made import StepRanges, on_device, on_host

LARGEST_NS = 1 << 62
"""Later times are invalid."""

MAX_NAME = 2_000
"""Characters kept of a name."""

RECORD = "record with rocprofv3 --runtime-trace --output-format json -- COMMAND"

_COPY = re.compile(r"MEMORY_COPY_(HOST|DEVICE)_TO_(HOST|DEVICE)")


def kernel_event(
    name: bytes, start: int, end: int, *, device: int, stream: int, correlation: int
) -> bytes:
    """The event of a kernel; its name is JSON, its correlation rocprofv3's number of the call."""
    return on_device(
        b"kernel",
        name,
        start,
        end,
        device=device,
        stream=stream,
        correlation=_known(correlation),
    )


def copy_event(
    operation: str,
    start: int,
    end: int,
    *,
    device: int,
    stream: int,
    correlation: int,
    num_bytes: int | None,
) -> bytes:
    """The event of a copy, with the direction from the name of its operation."""
    way = _COPY.search(operation)
    ends = [end.capitalize() for end in way.groups()] if way else ["Device", "Device"]
    kind = f"{ends[0][0]}to{ends[1][0]}"
    return on_device(
        b"gpu_memcpy",
        f'"Memcpy {kind} ({ends[0]} -> {ends[1]})"'.encode(),
        start,
        end,
        device=device,
        stream=stream,
        correlation=_known(correlation),
        num_bytes=num_bytes,
    )


def call_event(
    name: str, start: int, end: int, *, pid: int, thread: int, correlation: int
) -> Iterator[bytes]:
    """The event of a HIP call; nothing for calls that the compiler inserts to register kernels."""
    if not name.startswith("__"):
        yield on_host(
            b"cuda_runtime",
            msgspec.json.encode(name or "unknown"),
            start,
            end,
            pid=pid,
            tid=thread,
            correlation=_known(correlation),
        )


def _known(correlation: int) -> int | None:
    return correlation if 0 < correlation < LARGEST_NS else None


class Ranges:
    """Events of ROCTx ranges, and additional events for steps with Kineto's name for them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._steps = StepRanges()

    def event(self, name: str, start: int, end: int, thread: int) -> Iterator[bytes]:
        """The event of a range, unless it has no name or no length."""
        if name and end > start:
            yield self._range(msgspec.json.encode(name), start, end, thread)
            self._steps.note(name, start, end, thread)

    def steps(self) -> Iterator[bytes]:
        """Events of the ranges that mark steps; call this after the last range."""
        for step, start, end, thread in self._steps.chosen():
            yield self._range(step, start, end, thread)

    def _range(self, name: bytes, start: int, end: int, thread: int) -> bytes:
        return on_host(b"user_annotation", name, start, end, pid=self._pid, tid=thread)
