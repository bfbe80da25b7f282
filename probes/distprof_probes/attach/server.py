"""The socket through which ``distprof attach`` reaches a rank, even one that hangs.

torch's worker server (``torch.distributed.debug``) answers on a separate C++ thread, even while the
training thread is stuck in a collective or in a loop. It listens on a Unix socket in a directory
that only this user may enter, never on TCP.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from distprof.artefacts import ATTACH_FILE
from distprof.artefacts.files import write_atomically
from distprof.artefacts.run_file import AttachFile
from distprof_probes.attach.requests.poller import Poller
from distprof_probes.attach.sockets import socket_folder
from distprof_probes.job.process import process_state
from distprof_probes.own_files import high_numbers
from distprof_probes.probe import Probe, Recording, Unavailable

_QUIET = 2  # c10's log level ERROR


class WorkerServerProbe(Probe):
    """Opens the socket, writes its path to ``attach.json``, and serves requests of other nodes."""

    name = "attach"

    def __init__(self) -> None:
        super().__init__()
        self._folder: Path | None = None
        self._pid = 0
        self._poller: Poller | None = None

    def start(self, session: Recording) -> None:
        """Open the socket; Unavailable without torch, or with one that has no worker server."""
        try:
            path = self._listen(session.run_dir, session.rank)
        except Unavailable as unavailable:
            _write(session, AttachFile(**_self(session.rank), reason=unavailable.reason))
            raise
        place = session.placement
        self._poller = Poller(session.run_dir, place.local_rank or 0, note=session.note)
        self._poller.start()
        _write(session, AttachFile(**_self(session.rank), socket=str(path), takes_requests=True))

    def pause(self) -> None:
        """Stop looking for requests, unless the pause never ends."""
        if self._poller is not None:
            self._poller.pause()

    def resume(self) -> None:
        """Look for requests again."""
        if self._poller is not None:
            self._poller.resume()

    def stop(self) -> None:
        """Remove the socket; its thread sleeps until the process ends."""
        if self._poller is not None and os.getpid() == self._pid:
            self._poller.end()
        folder, self._folder = self._folder, None
        if folder is not None and os.getpid() == self._pid:
            shutil.rmtree(folder, ignore_errors=True)

    def _listen(self, run_dir: Path, rank: int) -> Path:
        server = _worker_server()
        self._folder, self._pid = socket_folder(run_dir, rank), os.getpid()
        path = self._folder / "s"
        path.unlink(missing_ok=True)
        try:
            with _quiet_log(), high_numbers():
                started = server(str(path))
        except (RuntimeError, OSError) as error:
            self.stop()
            raise Unavailable(f"torch's worker server did not start: {error}") from None
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        # Never released: its destructor would print, and wait for requests, while Python exits.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(started))
        return path


def _worker_server() -> Any:
    """The worker server class of torch."""
    if "torch" not in sys.modules:
        raise Unavailable("the program does not use torch")
    try:
        import torch.distributed.debug._handlers  # noqa: F401 - it registers what is answered
        from torch._C._distributed_c10d import _WorkerServer
    except ImportError:
        raise Unavailable(
            "this torch has no worker server: install version 2.10 or newer"
        ) from None
    return _WorkerServer


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """Suppress torch's line about its new server, so that the program's output is unchanged."""
    import torch

    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # another build of torch: the line appears
        yield
        return
    before = level.value
    level.value = max(before, _QUIET)
    try:
        yield
    finally:
        level.value = before


def _self(rank: int) -> dict[str, Any]:
    state = process_state(os.getpid())
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started_ticks": state.started_ticks if state else 0,
    }


def _write(session: Recording, file: AttachFile) -> None:
    with contextlib.suppress(OSError):
        write_atomically(session.rank_dir / ATTACH_FILE, msgspec.json.encode(file))
