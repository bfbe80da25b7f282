"""The present state of the ranks of a run directory."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from distprof.artefacts import ATTACH_FILE, RANK_DIR_FORMAT, RANK_FILE, STEPS_FILE
from distprof.artefacts.run_file import AttachFile, RankFile
from distprof_probes.attach.sockets import SOCKET_PREFIX, turn_file
from distprof_probes.job.process import ProcessState, process_state
from distprof_probes.job.progress import StepTail

_MAX_FILE_BYTES = 16 * 2**20
_RANK_DIR = re.compile(r"^rank(\d+)$")

_File = TypeVar("_File", AttachFile, RankFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingRank:
    """One rank, seen from outside."""

    rank: int  # Global rank.
    folder: Path  # Its directory.
    host: str = ""  # Where it runs; empty when unknown.
    pid: int | None = None  # Process id there, None when unknown.
    is_here: bool = True  # Whether it runs on this host.
    process: ProcessState | None = None  # Its process now, None if it is gone or on another host.
    has_ended: bool = False  # Whether it reported its own end.
    socket: str = ""  # Path of its socket; empty if it cannot be queried.
    why_not: str = ""  # Why it cannot be queried.
    last_step: int | None = None  # Last step completed, None before the first.
    progressed_ns: int | None = None  # End of that step, ns since the epoch.
    world_size: int | None = None  # Ranks in its job, None when unknown.
    takes_requests: bool = False  # Whether its probes look for requests in the run directory.

    @property
    def can_be_asked(self) -> bool:
        """Whether a query can succeed; a stopped process would not answer."""
        return bool(self.is_here and self.process and self.socket and not self.is_stopped)

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped by SIGSTOP, job control or a debugger."""
        return self.process is not None and self.process.letter in "Tt"

    @property
    def why_silent(self) -> str:
        """Why a rank of this host cannot be queried, as a message."""
        if self.process is None:
            return "it has ended" if self.has_ended else "its process is gone"
        if self.is_stopped:
            return f"it is stopped and does not answer; resume it with kill -CONT {self.pid}"
        return self.why_not or "it cannot be queried"


def look(
    run_dir: Path, *, at_steps: bool = True, only: Collection[int] | None = None
) -> list[LivingRank]:
    """Every rank that has a directory, ascending.

    ``at_steps`` reads the step logs, which are long in a long job. With ``only``, the directory of
    the job is not listed: it may have thousands of entries.
    """
    if only is not None:
        folders = {rank: run_dir / RANK_DIR_FORMAT.format(rank=rank) for rank in sorted(only)}
        there = {rank: folder for rank, folder in folders.items() if folder.is_dir()}
        return [_look_at(folder, rank, at_steps=at_steps) for rank, folder in there.items()]
    found = []
    for folder in run_dir.iterdir():
        match = _RANK_DIR.match(folder.name)
        if match is not None and folder.is_dir():
            found.append(_look_at(folder, int(match[1]), at_steps=at_steps))
    return sorted(found, key=lambda rank: rank.rank)


def remove_sockets(run_dir: Path) -> None:
    """Remove sockets left by ranks of this host that did not end cleanly; keep those in use."""
    with contextlib.suppress(FileNotFoundError):  # a rank deleted the run directory
        here = [rank for rank in look(run_dir, at_steps=False) if rank.is_here]
        for rank in here:
            if rank.process is None and rank.socket:
                _remove(Path(rank.socket))
        if not any(rank.process for rank in here):
            with contextlib.suppress(OSError):
                turn_file(run_dir).unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """Remove a socket, and its folder if it is ours and empty. The name comes from a file."""
    with contextlib.suppress(OSError):
        if path.is_socket() and path.parent.name.startswith(SOCKET_PREFIX):
            path.unlink()
            path.parent.rmdir()


def _look_at(folder: Path, rank: int, *, at_steps: bool) -> LivingRank:
    attach = _read(folder / ATTACH_FILE, AttachFile)
    said = _read(folder / RANK_FILE, RankFile)
    tail = StepTail(folder / STEPS_FILE)
    if at_steps:
        tail.read()
    host = (attach.host if attach else "") or (said.host if said else "")
    pid = attach.pid if attach else said.pid if said else None
    is_here = host in ("", socket.gethostname())
    return LivingRank(
        rank=rank,
        folder=folder,
        host=host,
        pid=pid,
        is_here=is_here,
        process=_process(pid, attach) if is_here else None,
        has_ended=said is not None and said.ended_ns is not None,
        socket=attach.socket if attach else "",
        why_not=_why_not(attach),
        last_step=tail.last_step,
        progressed_ns=tail.ended_ns,
        world_size=said.world_size if said else None,
        takes_requests=attach is not None and attach.takes_requests,
    )


def _process(pid: int | None, attach: AttachFile | None) -> ProcessState | None:
    """Its process; None if it is gone, even if another process has its pid now."""
    state = process_state(pid) if pid is not None else None
    if state is None or state.letter == "Z":
        return None
    expected = attach.started_ticks if attach else 0
    return state if expected in (0, state.started_ticks) else None


def _why_not(attach: AttachFile | None) -> str:
    if attach is None:
        return "it was started without --attach"
    return attach.reason


def _read(file: Path, kind: type[_File]) -> _File | None:
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            return None
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
