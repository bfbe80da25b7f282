"""Writes and reads capture.jsonl, the hook's diary of what it found in each process."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from distprof.artefacts import DIARY_FILE
from distprof.artefacts.records import DiaryLine

MAX_BYTES = 16 * 2**20

Event = Literal["python", "torch", "recording", "passed_over", "unusable", "closed"]


def write_down(run_dir: Path, event: Event, **about: Any) -> None:
    """Add a line with further fields of :class:`DiaryLine`. A failed write is ignored."""
    line = DiaryLine(
        event=event, t_ns=time.time_ns(), pid=os.getpid(), host=socket.gethostname(), **about
    )
    try:
        to = os.open(run_dir / DIARY_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        return
    try:
        os.write(to, msgspec.json.encode(line) + b"\n")
    except OSError:
        pass
    finally:
        os.close(to)


def read_diary(run_dir: Path) -> list[DiaryLine]:
    """Every readable line, in order; empty if no process loaded the hook."""
    try:
        with (run_dir / DIARY_FILE).open("rb") as stream:
            content = stream.read(MAX_BYTES)
    except OSError:
        return []
    lines = (_line(text) for text in content.split(b"\n"))
    return [line for line in lines if line is not None]


def _line(text: bytes) -> DiaryLine | None:
    try:
        return msgspec.json.decode(text, type=DiaryLine)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
