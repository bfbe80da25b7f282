"""Requests to one running rank: its stacks, its Flight Recorder, a trace."""

from __future__ import annotations

import contextlib
import os
import secrets
import zlib
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from distprof.artefacts import FLIGHT_FILE, RANK_FILE
from distprof.artefacts.files import write_atomically
from distprof_probes.attach.client import NoAnswer, ask, fetch
from distprof_probes.attach.ranks import LivingRank
from distprof_probes.own_files import OwnFile

STACKS_WITHIN_S = 5.0
FLIGHT_WITHIN_S = 30.0
EXPORT_WITHIN_S = 120.0
_LEVEL = 3  # zlib: a third larger than level 6, in little more than half the time
_GZIP = 31
_MARK = b"traceEvents"


def stacks(rank: LivingRank) -> str:
    """The Python stacks of all its threads."""
    answer = ask(rank.socket, "dump_traceback", pid=rank.pid, within_s=STACKS_WITHIN_S)
    return answer.decode("utf-8", "replace")


def flight(rank: LivingRank) -> bytes:
    """Its Flight Recorder, as JSON."""
    answer = ask(rank.socket, "fr_trace_json", pid=rank.pid, within_s=FLIGHT_WITHIN_S)
    try:
        msgspec.json.decode(answer)
    except msgspec.DecodeError:
        raise NoAnswer("its Flight Recorder returned invalid JSON") from None
    return answer


def trace(rank: LivingRank, seconds: float, file: Path) -> int:
    """Trace it from now on, into a file that is compressed while it arrives; return its bytes.

    Nothing is left behind if the file cannot be written.
    """
    question = f"torch_profile?duration={seconds:g}"
    with _Packed(file) as packed:
        within_s = seconds + EXPORT_WITHIN_S
        fetch(rank.socket, question, pid=rank.pid, within_s=within_s, take=packed.add)
    return packed.num_bytes


def keep_neighbours(rank: LivingRank, folder: Path) -> None:
    """Write the files that an analysis reads next to a trace: the Flight Recorder and rank.json."""
    with contextlib.suppress(NoAnswer):
        write_atomically(folder / FLIGHT_FILE, flight(rank))
    with contextlib.suppress(OSError):
        write_atomically(folder / RANK_FILE, (rank.folder / RANK_FILE).read_bytes())


class _Packed:
    """A compressed trace that is whole or absent.

    It may be written inside a rank. So it holds one MiB of the trace at a time, and checks its file
    descriptor before each write, because the program may close files that it did not open.

    Args:
        file: Its final name.
    """

    def __init__(self, file: Path) -> None:
        self.num_bytes = 0
        self._file = file
        self._part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
        self._compressor = zlib.compressobj(_LEVEL, wbits=_GZIP)
        self._is_trace = False
        self._tail = b""

    def __enter__(self) -> Self:
        self._open = OwnFile(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        return self

    def add(self, chunk: bytes) -> None:
        """The next bytes of the trace."""
        if not self._is_trace:
            self._is_trace = _MARK in self._tail + chunk
            self._tail = chunk[-len(_MARK) :]
        self._write(self._compressor.compress(chunk))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._write(self._compressor.flush())
                if not self._is_trace:
                    raise NoAnswer("it returned something other than a trace")
                self._part.replace(self._file)
        finally:
            self._open.close()
            self._part.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        if data and not self._open.is_usable():
            raise FileNotFoundError(2, "its file was deleted while it was written", self._part)
        while data:
            written = os.write(self._open.number, data)
            self.num_bytes += written
            data = data[written:]
