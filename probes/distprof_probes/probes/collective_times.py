"""GPU times of NCCL's operations in each step, from torch's Flight Recorder.

The recorder is read through the socket of torch's worker server, which answers from a C++ thread.
torch's Python call would hold the interpreter lock for the whole dump, and so would stop the
training thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from distprof.artefacts import ATTACH_FILE, COLLECTIVES_FILE
from distprof.artefacts.run_file import AttachFile, ProbeStatus
from distprof_probes.attach.client import NoAnswer, fetch
from distprof_probes.probe import Probe, Recording, Unavailable
from distprof_probes.probes.collective_steps import CollectiveSteps, Dump, Window
from distprof_probes.probes.flight_recorder import has_process_group
from distprof_probes.probes.nccl_debug import backends
from distprof_probes.records import RecordWriter

TIMING_VARIABLE = "TORCH_NCCL_ENABLE_TIMING"

PERIOD_S = 5.0
REST = 200
"""Pause after a reading, as a multiple of its duration: a reading takes 19 us of a core for each
entry of the ring, and the pause limits that to 0.5 % of a core."""

MOST_BYTES = 64 << 20
"""Limit of a dump: about 100,000 entries."""

_WITHIN_S = 30.0
_STOP_WITHIN_S = 2.0
_MOST_FAILURES = 5  # in a row
_HANDLER = "dump_nccl_trace_json"
_YES = frozenset({"1", "y", "yes", "t", "true"})  # the values that torch accepts
_ALSO_TIMES = "TORCH_NCCL_DESYNC_DEBUG"

Read = Callable[[], bytes]


class CollectiveTimes(Probe):
    """Writes ``collectives.jsonl``, on ranks that use NCCL with its timing on.

    Args:
        read: Used in place of the worker server: returns a dump as JSON, raises NoAnswer.
        clock: Returns nanoseconds since the epoch.
        period_s: Minimum seconds between two readings.
    """

    name = "collective_times"

    def __init__(
        self,
        read: Read | None = None,
        clock: Callable[[], int] = time.time_ns,
        period_s: float = PERIOD_S,
    ) -> None:
        super().__init__()
        self._read = read
        self._clock = clock
        self._period_s = period_s
        self._has_recorder = read is not None
        self._reader: _Reader | None = None
        self._began: tuple[int, int] | None = None

    def start(self, session: Recording) -> None:
        """Start to read; Unavailable without NCCL, or its timing."""
        backend, named = backends()
        if backend and "nccl" not in backend:
            raise Unavailable(f"backend {named} has no GPU operations of NCCL to time")
        if not any(os.environ.get(name, "").lower() in _YES for name in _SWITCHES):
            raise Unavailable(
                f"NCCL's timing is off: set {TIMING_VARIABLE}=1 to know the own time of GPU ranks"
            )
        read = self._read or _Socket(session.rank_dir / ATTACH_FILE)
        writer = self.open_writer(session, COLLECTIVES_FILE, "distprof.collectives/1")
        self._reader = _Reader(read, writer, self._clock, self._period_s)
        self._reader.start()

    def step_started(self, step: int) -> None:
        """Note when the step begins, by the recorder's clock."""
        self._began = step, self._clock()

    def step_ended(self, step: int) -> None:
        """Note when it ended. Another thread does the rest."""
        # Before there is a group, a dump would create a recorder, and steps have no collectives
        self._has_recorder = self._has_recorder or has_process_group()
        if self._reader is None or not self._has_recorder:
            return
        if self._began is not None and self._began[0] == step:
            self._reader.steps.windows.append(Window(step, self._began[1], self._clock()))

    def pause(self) -> None:
        """Read nothing."""
        self._began = None
        if self._reader is not None:
            self._reader.running.clear()

    def resume(self) -> None:
        """Read again."""
        if self._reader is not None:
            self._reader.running.set()

    def stop(self) -> None:
        """Read a last time and end the thread."""
        if self._reader is not None:
            self._reader.end(_STOP_WITHIN_S)

    def status(self) -> ProbeStatus:
        """The status, with the reason for missing readings."""
        if self._reader is not None:
            self.remark = self._reader.remarks()
        own = super().status()
        trouble = self._reader.trouble if self._reader is not None else ""
        if not trouble:
            return own
        state: Literal["failed", "unavailable"] = "failed" if own.num_records else "unavailable"
        return msgspec.structs.replace(own, state=state, reason=trouble)


class _Reader(threading.Thread):
    """The thread that reads the recorder.

    Args:
        read: Returns a dump as JSON, raises NoAnswer.
        writer: Writes the records.
        clock: Returns nanoseconds since the epoch.
        period_s: Minimum seconds between two readings.
    """

    def __init__(
        self, read: Read, writer: RecordWriter, clock: Callable[[], int], period_s: float
    ) -> None:
        super().__init__(name="distprof-collectives", daemon=True)
        self.running = threading.Event()  # Cleared while nothing may be read.
        self.running.set()
        self.steps = CollectiveSteps()  # The steps so far.
        self.trouble = ""  # Why reading has stopped; empty while it continues.
        self._ask = read
        self._writer = writer
        self._clock = clock
        self._period_s = period_s
        self._ended = threading.Event()
        self._decoder = msgspec.json.Decoder(Dump)
        self._num_failed = 0
        self._num_in_a_row = 0
        self._why = ""

    def remarks(self) -> str:
        """Lost steps, failed readings and missing durations, in one sentence."""
        parts = []
        if self.steps.has_times is False:
            parts.append("no operation has a duration: was NCCL's timing on when groups were made?")
        if self.steps.num_lost:
            parts.append(
                f"{self.steps.num_lost} steps were overwritten before they were read: "
                "TORCH_FR_BUFFER_SIZE holds too few operations"
            )
        if self._num_failed:
            parts.append(f"{self._num_failed} readings failed: {self._why}")
        return "; ".join(parts)

    def run(self) -> None:
        """Read until ended, or until reading fails repeatedly."""
        pause_s = self._period_s
        while not self._ended.wait(pause_s) and not self.trouble:
            self.running.wait()
            if self._ended.is_set():
                break
            pause_s = max(self._period_s, REST * self._read())
        if not self.trouble:
            self._read()

    def end(self, within_s: float) -> None:
        """Read a last time, within ``within_s`` seconds."""
        self._ended.set()
        self.running.set()
        self.join(within_s)

    def _read(self) -> float:
        """Read once: write complete steps, or count a failure. Returns the duration in seconds."""
        if not self.steps.windows:
            return 0.0
        began = time.monotonic()
        try:
            asked_ns = self._clock()
            dump = self._decoder.decode(self._ask())
            for record in self.steps.take(dump, asked_ns=asked_ns):
                self._writer.put(record)
            self._num_in_a_row = 0
        except Unavailable as error:
            self.trouble = error.reason
        except Exception as error:  # any answer of a recorder of another version
            self._num_failed += 1
            self._num_in_a_row += 1
            self._why = str(error) if isinstance(error, NoAnswer) else _sentence(error)
            if self._num_in_a_row >= _MOST_FAILURES:
                self.trouble = f"the Flight Recorder cannot be read: {self._why}"
        return time.monotonic() - began


_SWITCHES = (TIMING_VARIABLE, _ALSO_TIMES)


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


class _Socket:
    """Reads the recorder of this process through its own socket, which ``attach.json`` names."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._path = ""

    def __call__(self) -> bytes:
        """A dump, as JSON; NoAnswer if there is none now, Unavailable if there never will be."""
        self._path = self._path or self._find()
        return _fetched(self._path, os.getpid())

    def _find(self) -> str:
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=AttachFile)
        except (OSError, msgspec.MsgspecError):
            raise Unavailable(f"{_THROUGH} of the probe attach, which is off") from None
        if not found.socket or found.pid != os.getpid():
            raise Unavailable(f"{_THROUGH} of the probe attach: {found.reason or 'there is none'}")
        return found.socket


_THROUGH = "the Flight Recorder is read through the socket"


def _fetched(path: str, pid: int) -> bytes:
    parts: list[bytes] = []

    def take(part: bytes) -> None:
        parts.append(part)
        if sum(map(len, parts)) > MOST_BYTES:
            raise NoAnswer(f"its dump is larger than {MOST_BYTES >> 20} MiB")

    fetch(path, _HANDLER, pid=pid, within_s=_WITHIN_S, take=take)
    return b"".join(parts)
