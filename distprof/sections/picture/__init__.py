"""One step of all ranks on one clock, small enough to draw and to send.

Times are counted in units of a step, and written as text: numbers in digits of base 32, the least
first, each digit a character of :data:`DIGITS`; those that continue are 32 higher. Most numbers
take one or two characters.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from distprof.artefacts.record import Record
from distprof.schema import Int64Array

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_BITS = 5
_ALPHABET = np.frombuffer(DIGITS.encode(), np.uint8)
_VALUES = {ord(digit): value for value, digit in enumerate(DIGITS)}

COMPUTATION, WAIT, MESSAGE_WAIT, UNSPLIT, COPY, IDLE, TRANSFER = range(7)
"""Classes of time; from ``TRANSFER`` on, exposed transfers along each axis of communication."""

CLASSES = (
    "computation",
    "waiting for late ranks",
    "waiting in send/recv",
    "exposed communication",
    "exposed copies",
    "idle",
)
"""Their names; transfers are named by their axis."""


class DrawnLane(Record, frozen=True, kw_only=True):
    """Activities below one another's time, for example those of a stream."""

    name: str  # For example ``stream 7`` or ``CPU thread 12, level 2``.
    # For each piece three numbers: time since the end of the piece before, length, index into
    # ``names``.
    pieces: str


class DrawnRank(Record, frozen=True, kw_only=True):
    """One rank in the drawn step."""

    rank: int  # Global rank.
    # The time before the rank's step begins; then for each piece two numbers, its class and its
    # length. Pieces follow each other without gaps.
    split: str
    lanes: tuple[DrawnLane, ...] = ()  # Its collectives, pipeline slots, streams, CPU threads.


class DrawnWait(Record, frozen=True, kw_only=True):
    """A collective whose members wait for one rank."""

    name: str  # Kind, axis and size, for example ``all_reduce dp 16.8 MB``.
    late_rank: int  # The member that started last.
    waiting_rank: int  # The member that waited longest.
    start: int  # When that member started, in units since the start of the picture.
    end: int  # When the last member started.
    wait_ns: int  # Exposed waiting of all members together.
    num_waiting: int  # Members that waited.


class RepairedStep(Record, frozen=True, kw_only=True):
    """The same step, simulated after a repair of the plan and those before it."""

    done: str  # The last of these repairs, as a fact.
    number: int  # Its number in the plan, from 1.
    mean_ns: int  # Its simulated length, mean over all ranks.
    span_ns: int  # From the first rank's start to the last rank's end.
    ranks: tuple[DrawnRank, ...]  # The ranks that represent their groups.


class DrawnStep(Record, frozen=True, kw_only=True):
    """One step of every rank."""

    kind: str  # ``median`` or ``longest``, by its length; ``capture`` if nothing marks steps.
    step: int | None  # Its number; null for the whole capture.
    mean_ns: int  # Its length, mean over ranks.
    span_ns: int  # From the first rank's start to the last rank's end.
    unit_ns: int  # Length of a unit.
    names: tuple[str, ...]  # Names of pieces in lanes.
    ranks: tuple[DrawnRank, ...]  # Ranks, ascending.
    waits: tuple[DrawnWait, ...] = ()  # Those that cost most, in order of time.
    repaired: tuple[RepairedStep, ...] = ()  # After each repair of the plan; empty if unknown.


class AlikeRanks(Record, frozen=True, kw_only=True):
    """Ranks that spend the step alike."""

    ranks: tuple[int, ...]  # Global ranks, ascending.
    shown: int  # The rank that represents them.


class StepPicture(Record, frozen=True, kw_only=True):
    """The step, drawn; empty if no rank was measured."""

    axes: tuple[str, ...] = ()  # Axes of communication, in the order of their classes.
    groups: tuple[AlikeRanks, ...] = ()  # Ranks folded by likeness in the first step.
    steps: tuple[DrawnStep, ...] = ()  # The median step, then the longest one if there is room.
    # Whether starts on different ranks are comparable; if not, each rank begins at 0.
    is_one_clock: bool = True
    notes: tuple[str, ...] = ()  # What was left out, one sentence each.

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of all classes."""
        return (*CLASSES, *(f"exposed transfer, {axis}" for axis in self.axes))

    def brief(self) -> StepPicture:
        """The first step with a rank for each row, without lanes and repairs."""
        shown = {group.shown for group in self.groups}
        steps = (
            replace(
                step,
                names=(),
                ranks=tuple(replace(one, lanes=()) for one in step.ranks if one.rank in shown),
                repaired=(),
            )
            for step in self.steps[:1]
        )
        return replace(self, steps=tuple(steps))


def encode_numbers(numbers: Int64Array) -> str:
    """Numbers, none negative, as text."""
    if not len(numbers):
        return ""
    size = max(-(-int(numbers.max()).bit_length() // _BITS), 1)
    shifted = numbers[:, None] >> (_BITS * np.arange(size + 1))
    more = shifted[:, 1:] > 0
    kept = np.concatenate((np.ones((len(numbers), 1), np.bool_), more[:, :-1]), axis=1)
    digits = (shifted[:, :-1] & 31) | (more << _BITS)
    text: str = _ALPHABET[digits[kept]].tobytes().decode()
    return text


def decode_numbers(text: str) -> list[int]:
    """The numbers of a text; characters that are no digits count as 0."""
    found, value, shift = [], 0, 0
    for code in text.encode():
        digit = _VALUES.get(code, 0)
        value |= (digit & 31) << shift
        shift += _BITS
        if digit < 32:
            found.append(value)
            value, shift = 0, 0
    return found


def pieces_of(split: str) -> list[tuple[int, int, int]]:
    """Start, end and class of each piece of a rank's step, in units."""
    numbers = decode_numbers(split)
    at, found = (numbers[0] if numbers else 0), []
    for kind, length in zip(numbers[1::2], numbers[2::2], strict=False):
        found.append((at, at + length, kind))
        at += length
    return found


def lane_pieces(pieces: str) -> list[tuple[int, int, int]]:
    """Start, end and name of each piece of a lane, in units."""
    numbers, at, found = decode_numbers(pieces), 0, []
    for gap, length, name in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=False):
        found.append((at + gap, at + gap + length, name))
        at += gap + length
    return found


def packed_split(kind: Int64Array, end_ns: Int64Array, start_ns: int, unit: int) -> str:
    """Pieces one after another, as in :attr:`DrawnRank.split`; those below a unit vanish."""
    start, end = round(start_ns / unit), np.rint(end_ns / unit).astype(np.int64)
    length = np.diff(end, prepend=start)
    kept = length > 0
    pairs = np.stack((kind[kept], length[kept]), axis=1).ravel()
    return encode_numbers(np.concatenate(([start], pairs)).astype(np.int64))
