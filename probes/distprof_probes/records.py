"""Writes records outside the training thread, which never waits for the disk.

Records go into a bounded queue. One daemon thread per process writes the queues of all files, five
times a second. If a queue or the disk is full, records are dropped and counted. A file holds only
whole lines, as far as the file system permits: the remains of a failed write are cut off.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Protocol

import msgspec

from distprof.artefacts.records import Header
from distprof_probes.own_files import OwnFile

FLUSH_PERIOD_S = 0.2
_PATIENCE_S = 5.0  # time limit for a deferred record, and for the disk at the end
_AT_THREAD_END_S = 1.0


class Deferred(Protocol):
    """A record whose values are still being copied from the GPU."""

    def resolve(self, *, is_last_chance: bool) -> msgspec.Struct | None:
        """The record, or None while it must wait. At the last chance, omit missing values."""
        ...


class RecordWriter:
    """Appends records to one line-wise file.

    Args:
        path: The file; an existing one is truncated.
        header: Its first line.
        limit: Maximum number of records that may wait.
        background: Whether the process's writer thread serves this file. Without it, only
            :meth:`flush` and :meth:`close` write.

    Raises:
        OSError: If the file cannot be created.
    """

    def __init__(
        self, path: Path, header: Header, *, limit: int = 10_000, background: bool = True
    ) -> None:
        self.path = path
        self.num_records = 0  # Lines written, excluding the header.
        self.num_dropped = 0  # Records lost.
        self.problem = ""  # Why records were lost, in one sentence; empty if no write failed.
        self._limit = limit
        self._queue: deque[tuple[float, msgspec.Struct | Deferred]] = deque()
        self._encoder = msgspec.json.Encoder()
        self._header: bytes | None = self._encoder.encode(header) + b"\n"
        self._lock = threading.Lock()  # held while writing; never taken by put
        self._num_bytes = 0  # of whole lines in the file
        self._is_closed = False
        self._pid = os.getpid()
        self._file = OwnFile(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        if background:
            _Flusher.serve(self)

    def put(self, record: msgspec.Struct | Deferred) -> None:
        """Queue a record. Never blocks or raises. If the queue is full, drop and count it."""
        if self._is_closed or len(self._queue) >= self._limit:
            self.num_dropped += 1
        else:
            self._queue.append((time.monotonic(), record))

    def flush(self, *, is_last_chance: bool = False) -> None:
        """Write all waiting records that are ready, in the calling thread."""
        if os.getpid() != self._pid:  # a forked child: the file belongs to its parent
            self._queue.clear()
            return
        with self._lock:
            lines = self._take(is_last_chance)
            if lines or self._header is not None:
                self._append(lines)

    def close(self, timeout_s: float = _PATIENCE_S) -> None:
        """Write the rest and close the file; wait at most ``timeout_s`` for the disk."""
        if self._is_closed:
            return
        self._is_closed = True
        _Flusher.release(self)
        thread = threading.Thread(target=self._finish, name="distprof-close", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            self.problem = (
                self.problem or f"the disk did not accept the rest within {timeout_s:g} s"
            )
            self.num_dropped += len(self._queue)

    def _finish(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S / 2
        self.flush()
        while self._queue and time.monotonic() < deadline:  # values being copied from the GPU
            time.sleep(0.01)
            self.flush()
        self.flush(is_last_chance=True)
        with self._lock:
            self._file.close()

    def _take(self, is_last_chance: bool) -> list[bytes]:
        lines: list[bytes] = []
        while self._queue:
            queued_s, record = self._queue[0]
            is_late = is_last_chance or time.monotonic() - queued_s > _PATIENCE_S
            try:
                line = self._encode(record, is_last_chance=is_late)
            except Exception as error:  # one broken record must not silence the others
                self._lose(1, f"{self.path.name}: {type(error).__name__}: {error}")
                line = b""
            if line is None:
                break  # later records also wait, so that lines keep their order
            self._queue.popleft()
            if line:
                lines.append(line)
        return lines

    def _encode(self, record: msgspec.Struct | Deferred, *, is_last_chance: bool) -> bytes | None:
        """The record as a line; None while it waits for its values."""
        if not isinstance(record, msgspec.Struct):
            resolved = record.resolve(is_last_chance=is_last_chance)
            if resolved is None:
                if is_last_chance:
                    raise ValueError("the values of a record never arrived")
                return None
            record = resolved
        return self._encoder.encode(record) + b"\n"

    def _append(self, lines: list[bytes]) -> None:
        """Write whole lines; drop and count those that the disk does not accept."""
        if not self._file.is_usable() or os.fstat(self._file.number).st_nlink == 0:
            self._lose(len(lines), f"{self.path.name} was deleted while it was written")
            return
        if self._header is not None:
            lines = [self._header, *lines]
        data = b"".join(lines)
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file.number, data[written:])
        except OSError as error:
            self._keep_whole_lines(lines, error)
            return
        self._num_bytes += len(data)
        self._count(len(lines))

    def _keep_whole_lines(self, lines: list[bytes], error: OSError) -> None:
        size = os.fstat(self._file.number).st_size
        kept = 0
        while kept < len(lines) and self._num_bytes + len(lines[kept]) <= size:
            self._num_bytes += len(lines[kept])
            kept += 1
        try:
            os.ftruncate(self._file.number, self._num_bytes)
        except OSError:
            self._num_bytes = size  # the broken line stays; readers count it
        has_header = self._header is not None
        self._lose(len(lines) - max(kept, int(has_header)), f"{self.path.name}: {error.strerror}")
        self._count(kept)

    def _count(self, num_lines: int) -> None:
        """Count ``num_lines`` as written; the first is the header if it was pending."""
        if num_lines and self._header is not None:
            self._header = None
            num_lines -= 1
        self.num_records += num_lines

    def _lose(self, num_records: int, why: str) -> None:
        self.num_dropped += num_records
        self.problem = why


class _Flusher(threading.Thread):
    """The single writer thread of this process."""

    _current: _Flusher | None = None
    _lock = threading.Lock()

    def __init__(self, writers: tuple[RecordWriter, ...]) -> None:
        super().__init__(name="distprof-writer", daemon=True)
        self.writers = writers
        self.pid = os.getpid()
        self.wake = threading.Event()
        self.done = threading.Event()

    @classmethod
    def serve(cls, writer: RecordWriter) -> None:
        """Serve ``writer`` from now on; start the thread if it is the first."""
        with cls._lock:
            current = cls._current
            if current is not None and current.pid == os.getpid() and current.is_alive():
                current.writers = (*current.writers, writer)
                return
            cls._current = cls(current.writers if current and current.pid == os.getpid() else ())
            cls._current.writers += (writer,)
            cls._current.start()

    @classmethod
    def release(cls, writer: RecordWriter) -> None:
        """Stop serving ``writer``; the thread ends after the last one."""
        with cls._lock:
            current = cls._current
            if current is None:
                return
            current.writers = tuple(item for item in current.writers if item is not writer)
            if not current.writers:
                cls._current = None
                current.wake.set()

    def run(self) -> None:
        while self.writers:
            self.wake.wait(FLUSH_PERIOD_S)
            self.wake.clear()
            for writer in self.writers:
                writer.flush()
            self.done.set()


def drain(timeout_s: float) -> None:
    """Make the writer thread write all waiting records; wait at most ``timeout_s`` for it."""
    current = _Flusher._current
    if current is not None and current.pid == os.getpid():
        current.done.clear()
        current.wake.set()
        current.done.wait(timeout_s)


def drain_when_this_thread_ends() -> None:
    """Write waiting records when the calling thread ends, unless it is the main thread.

    A process that trains in another thread, as Ray's workers do, may be killed as soon as that
    thread has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        _of_thread.at_end = _AtEnd()


class _AtEnd:
    """Deleted with the thread-local variables, while the thread still counts as alive."""

    def __del__(self) -> None:
        drain(_AT_THREAD_END_S)


_of_thread = threading.local()
