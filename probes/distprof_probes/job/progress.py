"""The progress of a rank, read from the lines that it adds to steps.jsonl."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

_CHUNK_BYTES = 2**20


class _Line(msgspec.Struct):
    """The fields of a step record that show progress; the header has no step."""

    step: int | None = None
    start_ns: int = 0
    end_ns: int = 0
    tokens: int | None = None


@dataclass(slots=True)
class StepTail:
    """Reads the lines added since the last time; never waits."""

    file: Path  # ``steps.jsonl`` of one rank; it may not exist yet.
    last_step: int | None = None  # Number of the last step completed, None before the first.
    ended_ns: int | None = None  # End of that step, ns since the epoch.
    longest_ns: int = 0  # Duration of the longest step so far.
    tokens_per_s: float | None = None  # Throughput of the last step, None when unknown.
    num_broken: int = 0  # Lines that could not be read.
    _offset: int = 0
    _rest: bytes = field(default=b"", repr=False)

    @property
    def is_lost(self) -> bool:
        """Whether the file was deleted after steps were read from it."""
        return self.last_step is not None and not self.file.exists()

    def read(self) -> bool:
        """Read new lines; return whether another step was completed."""
        before = self.last_step
        try:
            with self.file.open("rb") as stream:
                stream.seek(self._offset)
                while chunk := stream.read(_CHUNK_BYTES):
                    self._offset += len(chunk)
                    self._take(chunk)
        except OSError:  # it does not exist yet, or the file system is unreliable
            return False
        return self.last_step != before

    def _take(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take_line(line)

    def _take_line(self, text: bytes) -> None:
        try:
            line = msgspec.json.decode(text, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.num_broken += bool(text.strip())
            return
        if line.step is None:
            return
        duration_ns = max(line.end_ns - line.start_ns, 0)
        self.last_step = line.step
        self.ended_ns = line.end_ns
        self.longest_ns = max(self.longest_ns, duration_ns)
        known = line.tokens is not None and duration_ns > 0
        self.tokens_per_s = (line.tokens or 0) * 1e9 / duration_ns if known else None
