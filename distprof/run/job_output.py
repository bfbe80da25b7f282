"""What the printed output of a job says about its end: events, one for each line that matters."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class OutputEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A line, or a record of several lines, that an expression of the table recognises."""

    name: str  # Name of the expression.
    yields: str  # What the line is about, as the table says: ``timeout``, ``exit``, ``memory``, ….
    file: str  # File, as shown.
    line: int  # Number of the line, from 1.
    text: str  # The line, without control characters, truncated.
    rank: int | None = None  # Rank that the line is about; None if unknown.
    # Time of the line, or of the last line before it that has one, in seconds that ascend within a
    # year; None without one nearby.
    at_s: float | None = None
    # What the expression captured, by name.
    fields: Mapping[str, str] = msgspec.field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """A captured whole number; None if it was not captured or is out of range."""
        text = self.fields.get(name, "").replace(",", "")
        digits = text.removeprefix("-")
        return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None

    def ranks(self) -> tuple[int, ...]:
        """The ranks in a captured list, such as ``1, 2, 5``."""
        words = self.fields.get("ranks", "").replace("[", " ").replace("]", " ").split(",")
        numbers = [word.strip() for word in words]
        return tuple(int(n) for n in numbers if n.isascii() and n.isdigit() and len(n) < 8)


class OutputStack(msgspec.Struct, frozen=True, kw_only=True):
    """The Python stack of a process's main thread, as a tool or a signal printed it."""

    file: str  # File, as shown.
    line: int  # Number of the first line of the stack.
    rank: int | None  # Rank of the process; None if unknown.
    calls: tuple[str, ...]  # ``function (file:line)``, innermost first.


class JobOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What the output of a job, or of some of its ranks, says about how it ended."""

    files: tuple[str, ...] = ()  # Files, as shown.
    events: tuple[OutputEvent, ...] = ()  # Events, by file and line.
    stacks: tuple[OutputStack, ...] = ()  # Stacks, by file and line.
    ranks: tuple[int, ...] = ()  # Ranks that printed at least one line that names them.
    # Ranks of the job according to the output; None if it does not say.
    world_size: int | None = None
    num_lines: int = 0  # Lines read.
    lines_of: Mapping[str, int] = msgspec.field(default_factory=dict)  # Lines of each file.
    notes: tuple[str, ...] = ()  # Damaged or left-out data, one sentence each.
