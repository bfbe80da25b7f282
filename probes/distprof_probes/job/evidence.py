"""A launcher's evidence about each rank, from which it determines which failed first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from distprof.artefacts import ERROR_FILE, FLIGHT_FILE, OUTPUT_FILE, STACKS_FILE, STEPS_FILE
from distprof.artefacts.records import main_stack
from distprof.artefacts.run_file import ErrorFile, Exit
from distprof_probes.job.directory import rank_directory
from distprof_probes.job.progress import StepTail

_TAIL_BYTES = 16 * 2**10
_MAX_JSON_BYTES = 64 * 2**20
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')
_NOT_OWN = ("/torch/", "<frozen", "/threading.py", "/distprof_probes/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvidence:
    """Evidence about one rank."""

    rank: int  # Global rank.
    # How its process ended, None while it runs or if its end was not observed.
    exit: Exit | None = None
    alive_until_ns: int | None = None  # The last check that found it alive, ns since the epoch.
    told_to_end_ns: int | None = None  # When the launcher asked it to end, None if it never did.
    error: ErrorFile | None = None  # Error that its Python code reported, None if it reported none.
    # Letter of its process's state when trouble was seen, before any rank was stopped.
    state: str = ""
    last_step: int | None = None  # Last step it completed, None before the first.
    progressed_ns: int | None = None  # End of that step.
    # Sequence number of the last collective that it had enqueued in the default group, from the
    # Flight Recorder; None when unknown.
    last_collective: int | None = None
    output: str = ""  # The end of its output.
    where: str = ""  # ``function (file:line)`` it was in when trouble was seen; empty when unknown.
    waits: bool = False  # Whether it was then in ``torch.distributed``, called by its own code.
    # Where the out-of-memory killer struck during the job.
    struck_by: Literal["", "group", "machine"] = ""
    # Whether its launcher, on another host, should have reported its end and did not.
    is_lost: bool = False


def rank_evidence(run_dir: Path, rank: int, **seen: Any) -> RankEvidence:
    """Evidence from the rank's directory and from the launcher's own observations, ``seen``."""
    folder = rank_directory(run_dir, rank)
    tail = StepTail(folder / STEPS_FILE)
    tail.read()
    where, waits = where_it_is(folder / STACKS_FILE)
    return RankEvidence(
        rank=rank,
        error=read_error(folder / ERROR_FILE),
        last_step=tail.last_step,
        progressed_ns=tail.ended_ns,
        last_collective=latest_collective(folder / FLIGHT_FILE),
        output="\n".join(last_lines(folder / OUTPUT_FILE, 60)),
        where=where,
        waits=waits,
        **seen,
    )


def read_error(file: Path) -> ErrorFile | None:
    """Contents of error.json; None if it is missing or incomplete."""
    try:
        return msgspec.json.decode(_bounded(file), type=ErrorFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def latest_collective(file: Path) -> int | None:
    """Sequence number of the last collective that the default group had enqueued.

    Every rank belongs to the default group, so its numbers are comparable. On gloo, this field of
    the Flight Recorder is reliable; state and completion times are not.
    """
    try:
        dump = msgspec.json.decode(_bounded(file))
        status = dump["pg_status"]["0"]["last_enqueued_collective"]
        return int(status)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError):
        return None


def last_lines(file: Path, number: int) -> list[str]:
    """The last lines of a text file, at most 16 KiB; empty if there is no file."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(stream.seek(0, 2) - _TAIL_BYTES, 0))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-number:]


def where_it_is(file: Path) -> tuple[str, bool]:
    """The innermost frame of the user's own code in a rank's last stack, and whether it waits."""
    frames = [frame for line in stack_of(file) if (frame := _FRAME.match(line)) is not None]
    is_own = [not any(part in frame["file"] for part in _NOT_OWN) for frame in frames]
    inside = is_own.index(True) if True in is_own else 0
    waits = any("torch/distributed/" in frame["file"] for frame in frames[:inside])
    if not frames:
        return "", False
    shown = frames[inside]
    return f"{shown['name']} ({Path(shown['file']).name}:{shown['line']})", waits


def stack_of(file: Path) -> list[str]:
    """The main thread's frames in the stacks of a rank, innermost first."""
    return main_stack(last_lines(file, 2_000))


def _bounded(file: Path) -> bytes:
    if file.stat().st_size > _MAX_JSON_BYTES:
        raise OSError(f"{file} is too large")
    return file.read_bytes()
