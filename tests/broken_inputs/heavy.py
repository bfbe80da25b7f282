"""Inputs that may hang or fill memory: for a process of its own with limits."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from tests.broken_inputs.files import folder_with_special_files
from tests.broken_inputs.intact import (
    EITHER,
    INTACT,
    REFUSED,
    TOLD,
    Build,
    Cases,
    Outcome,
    content,
    dumped,
    event_of,
    intact,
)

CASES = Cases()


MIB = 1 << 20


def bomb(head: bytes, filling: bytes, tail: bytes, *, mib: int) -> Build:
    """A small gz file that unpacks to ``mib`` MiB: members of one MiB of ``filling``."""

    def build(folder: Path) -> Path:
        block = gzip.compress((filling * (MIB // len(filling) + 1))[:MIB], 9, mtime=0)
        path = folder / "trace.json.gz"
        with path.open("wb") as file:
            file.write(gzip.compress(head))
            for _ in range(mib):
                file.write(block)
            file.write(gzip.compress(tail))
        return path

    return build


EVENT = b'{"ph":"X","cat":"kernel","name":"'
HEADLESS = b'{"traceEvents":['


def fifo(folder: Path) -> Path:
    path = folder / "trace.json"
    os.mkfifo(path)
    return path


def endless_device(folder: Path) -> Path:
    path = folder / "trace.json"
    path.symlink_to("/dev/zero")
    return path


def million_groups(folder: Path) -> Path:
    trace = intact()
    trace["distributedInfo"]["pg_config"] = [{"pg_name": "1", "ranks": [0]}] * 1_000_000
    return content(gzip.compress(dumped(trace), 1), "trace.json.gz")(folder)


def million_ranks_in_a_group(folder: Path) -> Path:
    trace = intact(0, 1_000_000)
    return content(gzip.compress(dumped(trace), 1), "trace.json.gz")(folder)


def million_names(folder: Path) -> Path:
    """Every operator of its own name: the dictionary of names is as long as the table."""
    trace = intact()
    trace["traceEvents"] += [
        event_of(cat="cpu_op", name=f"operator {number}", ts=float(number), dur=0.5, args={})
        for number in range(300_000)
    ]
    return content(gzip.compress(dumped(trace), 1), "trace.json.gz")(folder)


HEAVY_CASES: dict[str, tuple[Outcome, Build]] = {
    "a gz bomb of zeros": (REFUSED, bomb(b"", bytes(64), b"", mib=4096)),
    "a gz bomb of spaces": (REFUSED, bomb(b"", b" " * 64, b"", mib=1024)),
    "a gz bomb of open brackets": (REFUSED, bomb(b"", b"[" * 64, b"", mib=1024)),
    "a gz bomb in one name": (EITHER, bomb(HEADLESS + EVENT, b"k" * 64, b'"}]}', mib=768)),
    "a gz bomb in one metadata value": (
        EITHER,
        bomb(b'{"a":"', b"k" * 64, b'","traceEvents":[]}', mib=768),
    ),
    "a gz bomb of numbers for events": (EITHER, bomb(HEADLESS, b"1,", b"1]}", mib=512)),
    "a gz bomb of nested arguments": (
        EITHER,
        bomb(HEADLESS + EVENT + b'k","args":{"x":', b"[" * 64, b"", mib=512),
    ),
    "a gz bomb behind a good trace": (EITHER, bomb(INTACT, bytes(64), b"", mib=768)),
    "a gz bomb of white space between events": (
        EITHER,
        bomb(
            INTACT[: INTACT.index(b"[") + 1], b" " * 64, INTACT[INTACT.index(b"[") + 1 :], mib=768
        ),
    ),
    "a named pipe that nobody writes to": (REFUSED, fifo),
    "a device that never ends": (REFUSED, endless_device),
    "a folder with pipes and devices": (TOLD, folder_with_special_files),
    "a million process groups": (EITHER, million_groups),
    "a million ranks in one group": (EITHER, million_ranks_in_a_group),
    "three hundred thousand names": (EITHER, million_names),
}
for _name, (_outcome, _build) in HEAVY_CASES.items():
    CASES.add(_name, _outcome, _build)
