"""Keeps the first trace that the program's own profiler exports, for the report.

If the program profiles itself, distprof records no trace of its own.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 30
"""Size from which a trace is not copied: the program's own file remains."""

_ENTRANCE = "export_chrome_trace"


class ExportWatch:
    """Copies one exported trace in a separate thread, without getting in the way of the program.

    The copy ends in ``.json.gz``; an existing trace stays.
    """

    def __init__(self, target: Path, is_wanted: Callable[[], bool]) -> None:
        self._target = target
        self._is_wanted = is_wanted
        self._thread: threading.Thread | None = None
        self._replaced: tuple[Any, Any] | None = None

    def install(self) -> None:
        """Start to watch; does nothing with a torch that lacks this function."""
        profile = getattr(sys.modules["torch"].profiler.profiler, "_KinetoProfile", None)
        original = getattr(profile, _ENTRANCE, None)
        if original is not None and self._replaced is None:
            watched = self._watched(original)
            self._replaced = (original, watched)
            setattr(profile, _ENTRANCE, watched)

    def remove(self) -> None:
        """Restore the function, unless other code has wrapped it since."""
        if self._replaced is not None:
            original, watched = self._replaced
            profile = sys.modules["torch"].profiler.profiler._KinetoProfile
            if getattr(profile, _ENTRANCE) is watched:
                setattr(profile, _ENTRANCE, original)
            self._replaced = None

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def watched(profile: Any, path: Any, *args: Any, **keywords: Any) -> Any:
            result = original(profile, path, *args, **keywords)
            if self._thread is None and self._is_wanted():
                self._copy(path)
            return result

        return watched

    def _copy(self, path: Any) -> None:
        """Copy the file, opened at once because the program may move or delete it at any time.

        The process ends only after the copy, because the thread is not a daemon.
        """
        self.remove()
        try:
            source = Path(path).open("rb")  # noqa: SIM115 - the thread closes it
        except (OSError, TypeError, ValueError):
            return
        self._thread = threading.Thread(target=self._write, args=(source,))
        self._thread.start()

    def _write(self, source: Any) -> None:
        part = self._target.with_name(f".exported-{os.getpid()}.part")
        try:
            with source:
                if os.fstat(source.fileno()).st_size > MOST_BYTES or self._target.exists():
                    return
                is_packed = source.read(2) == b"\x1f\x8b"
                source.seek(0)
                with part.open("wb") if is_packed else _packing(part) as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
            os.link(part, self._target)  # unless a trace exists by now
        except OSError:
            return
        finally:
            part.unlink(missing_ok=True)


def _packing(path: Path) -> gzip.GzipFile:
    """Compress quickly: the file is large, and the end of the program may have to wait."""
    return gzip.GzipFile(path, "wb", compresslevel=1)
