"""Build torch.profiler traces from records of another tool, while they are read.

The reader of Kineto traces then reads them as well, and every analysis works on them unchanged.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import msgspec

_BLOCK_EVENTS = 2_000
_BUFFER_BYTES = 1 << 20
_MAX_STEPS = 100_000
_MAX_FAMILIES = 1_000


@contextmanager
def opened_events(head: Mapping[str, Any], events: Iterator[bytes]) -> Iterator[BinaryIO]:
    """Open a trace that can be read once, from start to end."""
    begin = msgspec.json.encode(head).removesuffix(b"}") + b',"traceEvents":[\n'
    with io.BufferedReader(_BlockStream(_blocks(begin, events)), _BUFFER_BYTES) as stream:
        yield cast("BinaryIO", stream)


def _blocks(begin: bytes, events: Iterator[bytes]) -> Iterator[bytes]:
    yield begin
    some: list[bytes] = []
    before = b""
    for event in events:
        some.append(event)
        if len(some) == _BLOCK_EVENTS:
            yield before + b",\n".join(some)
            some, before = [], b",\n"
    yield (before if some else b"") + b",\n".join(some) + b"\n]}"


class _BlockStream(io.RawIOBase):
    """A stream of blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = block
        size = min(len(memoryview(buffer)), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


# Events -------------------------------------------------------------------------------------------


def _micros(ns: int) -> bytes:
    """Nanoseconds as microseconds with three decimals."""
    return b"%d.%03d" % divmod(ns, 1_000) if ns >= 0 else b"-" + _micros(-ns)


def on_device(
    category: bytes,
    name: bytes,
    start: int,
    end: int,
    *,
    device: int,
    stream: int,
    correlation: int | None,
    num_bytes: int | None = None,
) -> bytes:
    """A GPU activity as an event; its name is JSON, and times are in ns."""
    launch = b"" if correlation is None else b'"correlation":%d,' % correlation
    size = b"" if num_bytes is None or num_bytes < 0 else b',"bytes":%d' % num_bytes
    return (
        b'{"ph":"X","cat":"%b","name":%b,"pid":%d,"tid":%d,"ts":%b,"dur":%b,"args":{%b"device":%d,'
        b'"stream":%d%b}}'
        % (category, name, device, stream, _micros(start), _micros(end - start), launch, device,
           stream, size)
    )  # fmt: skip


def on_host(
    category: bytes,
    name: bytes,
    start: int,
    end: int,
    *,
    pid: int,
    tid: int,
    correlation: int | None = None,
    told: bytes = b"",
) -> bytes:
    """A CPU activity as an event; times are in ns.

    The name is JSON, and so are the other arguments, ``told``, without braces.
    """
    if correlation is not None:
        told = b'"correlation":%d' % correlation + (b"," if told else b"") + told
    return b'{"ph":"X","cat":"%b","name":%b,"pid":%d,"tid":%d,"ts":%b,"dur":%b,"args":{%b}}' % (
        category, name, pid, tid, _micros(start), _micros(end - start), told,
    )  # fmt: skip


# Steps --------------------------------------------------------------------------------------------

_NUMBERED = re.compile(
    r"(ProfilerStep#|(?:(?:train(?:ing)?|global|optim(?:izer)?)[ _-]?)?"
    r"(?:step|iter(?:ation)?|batch)[ _:#=-]{0,3})(\d{1,12})",
    re.IGNORECASE,
)
_REPEATED = frozenset(
    ("step", "iteration", "iter", "train_step", "training_step", "train step", "training step")
)


class StepRanges:
    """Ranges that mark steps: numbered ones, or ones that repeat under one of a few names.

    Of several such families, the one that covers the most time is used. If that is Kineto's own,
    nothing needs to be added.
    """

    def __init__(self) -> None:
        self._families: dict[tuple[int, str], list[tuple[int, int, int]]] = {}

    def note(self, name: str, start: int, end: int, thread: int) -> None:
        """Register a range of a thread if it may mark a step."""
        numbered = _NUMBERED.fullmatch(name.strip())
        if numbered is not None:
            family, step = numbered[1].strip(" _:#=-").lower(), int(numbered[2])
        elif name.strip().lower() in _REPEATED:
            family, step = f"{name.strip().lower()} repeated", -1
        else:
            return
        is_new = (thread, family) not in self._families
        if is_new and len(self._families) >= _MAX_FAMILIES:
            return
        ranges = self._families.setdefault((thread, family), [])
        if len(ranges) < _MAX_STEPS:
            ranges.append((step, start, end))

    def chosen(self) -> Iterable[tuple[bytes, int, int, int]]:
        """Kineto's name, start, end and thread of each step, in order; each number appears once."""
        families = self._families.items()
        candidates = {key: r for key, r in families if len(r) > 1 or r[0][0] >= 0}
        if not candidates:
            return
        covered = {key: sum(end - start for _, start, end in r) for key, r in candidates.items()}
        thread, family = max(candidates, key=lambda key: (covered[key], key))
        if family == "profilerstep":
            return
        seen: set[int] = set()
        ranges = sorted(candidates[thread, family], key=lambda step: step[1])
        for place, (number, start, end) in enumerate(ranges):
            step = place if number < 0 else number
            if step not in seen:
                seen.add(step)
                yield b'"ProfilerStep#%d"' % step, start, end, thread
