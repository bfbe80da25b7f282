"""Parses Python stacks that ``faulthandler`` prints, and groups identical ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distprof.artefacts.records import FRAME, LIBRARY

MAX_FRAMES = 1_000

_THREAD = re.compile(r"^(?P<current>Current t|T)hread (?P<id>0x[0-9a-f]+)(?: \[(?P<name>.*?)\])?")
_PROBES = f"{Path(__file__).resolve().parents[1]}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One call."""

    file: str  # Path of the source.
    line: int | None  # Line in it; None if Python does not know.
    name: str  # Of the function.

    def __str__(self) -> str:
        """A short text for the user."""
        where = self.file.rpartition("/")[2]
        return f"{self.name} ({where}:{'?' if self.line is None else self.line})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One thread."""

    thread: str  # Its id, as Python prints it.
    name: str = ""  # Its name, from Python 3.14 on; else empty.
    frames: tuple[Frame, ...] = ()  # Innermost first; empty for a thread that runs no Python.


def parse_stacks(text: str) -> tuple[Stack, ...]:
    """The stacks in a dump of ``faulthandler``; unreadable ones are left out."""
    stacks: list[tuple[re.Match[str], list[Frame]]] = []
    for line in text.splitlines():
        if (thread := _THREAD.match(line)) is not None:
            stacks.append((thread, []))
        elif stacks and (found := FRAME.match(line)) and len(stacks[-1][1]) < MAX_FRAMES:
            number = int(found["line"]) if found["line"].isdecimal() else None
            stacks[-1][1].append(Frame(file=found["file"], line=number, name=found["name"]))
    return tuple(
        Stack(thread=thread["id"], name=thread["name"] or "", frames=tuple(frames))
        for thread, frames in stacks
    )


def training_stack(stacks: Sequence[Stack]) -> Stack | None:
    """The stack of the main thread, which Python prints last; None if no thread runs Python."""
    return next((stack for stack in reversed(stacks) if stack.frames), None)


def own_frame(stack: Stack) -> Frame | None:
    """The innermost call in the user's own code, else the innermost of all."""
    own = (frame for frame in stack.frames if not _is_library(frame.file))
    return next(own, stack.frames[0] if stack.frames else None)


def _is_library(file: str) -> bool:
    return LIBRARY.search(file) is not None or file.startswith(_PROBES)


def fold(stacks: Mapping[int, Stack]) -> list[tuple[tuple[int, ...], Stack]]:
    """Ranks grouped by identical calls, smallest groups first.

    The rank to look at is in a different call while all others wait.
    """
    groups: dict[tuple[Frame, ...], list[int]] = {}
    for rank in sorted(stacks):
        groups.setdefault(stacks[rank].frames, []).append(rank)
    found = [(tuple(ranks), stacks[ranks[0]]) for ranks in groups.values()]
    return sorted(found, key=lambda group: (len(group[0]), group[0]))
