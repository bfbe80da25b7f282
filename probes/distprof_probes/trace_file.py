"""Saving a recorded trace: whole or not at all."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from distprof.artefacts import TRACE_FILE

__all__ = ["SavedTrace", "save_trace"]

_CHUNK_BYTES = 1 << 22
_LEVEL = 3  # of zlib: a third larger than level 6 in little more than half the time
_DEVICE_EVENT = re.compile(rb'"cat": ?"(kernel|gpu_memcpy|gpu_memset)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTrace:
    """What was written.

    Args:
        num_bytes: Of the compressed file.
        has_device_events: Whether it holds work of an accelerator.
    """

    num_bytes: int
    has_device_events: bool


def save_trace(profile: Any, path: Path, *, cut_step: int | None = None) -> SavedTrace:
    """Write what a stopped torch profile recorded.

    Args:
        profile: A ``torch.profiler._KinetoProfile``.
        path: Where to, ending in ``.json.gz``.
        cut_step: A step that was not over when recording stopped. Its mark is renamed, so that no
            reader takes its part for the whole.

    Raises:
        OSError: If the disk does not take all of it; nothing is left behind.
    """
    plain = path.with_name(f".trace-{os.getpid()}.part.json")
    packed = path.with_name(f".trace-{os.getpid()}.part.json.gz")
    try:
        profile.export_chrome_trace(str(plain))
        _check_whole(plain)
        saved = _compress(plain, packed, cut_step)
        packed.replace(path)
    finally:
        for part in (plain, plain.with_name(f"{plain.name}.tmp"), packed):  # .tmp is torch's own
            part.unlink(missing_ok=True)
    return saved


def _check_whole(plain: Path) -> None:
    """Torch does not say when the disk was full: a whole file is there and ends with a brace."""
    if not plain.exists():
        raise OSError("the disk did not take the trace: torch wrote none")
    with plain.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(-min(file.tell(), 64), os.SEEK_END)
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(f"the disk did not take the whole trace ({plain.stat().st_size} bytes)")


def _compress(plain: Path, packed: Path, cut_step: int | None) -> SavedTrace:
    has_device_events = False
    # Torch writes its file's own path, a quotation mark in it and all, for a name.
    name_as_written, name = b'"' + os.fsencode(plain) + b'"', b'"%s"' % TRACE_FILE.encode()
    compressor = zlib.compressobj(_LEVEL, wbits=31)
    with plain.open("rb") as source, packed.open("wb") as target:
        for lines in _whole_lines(source):
            has_device_events = has_device_events or bool(_DEVICE_EVENT.search(lines))
            lines = lines.replace(name_as_written, name)
            if cut_step is not None:
                lines = lines.replace(
                    b'"ProfilerStep#%d"' % cut_step, b'"distprof:cut step=%d"' % cut_step
                )
            target.write(compressor.compress(lines))
        target.write(compressor.flush())
    return SavedTrace(num_bytes=packed.stat().st_size, has_device_events=has_device_events)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Chunks that end where a line ends, so that nothing searched for is cut in two."""
    rest = b""
    while chunk := file.read(_CHUNK_BYTES):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield rest + chunk[:end]
            rest = b""
        rest += chunk[end:]
    yield rest
