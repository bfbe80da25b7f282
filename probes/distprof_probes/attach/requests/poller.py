"""Looks for requests, in one rank of each node, on a thread that sleeps between two checks.

The thread is separate, because a hanging file system would otherwise hold up the thread that writes
records. The ranks of a node coordinate through a file on that node: the polling rank renews its
time. If the time grows old, because the rank is gone, stopped, or never releases the interpreter
lock, the next rank takes over. Two ranks that poll at once do no harm: each rank is claimed once
per request.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from distprof.artefacts.files import write_atomically
from distprof_probes.attach.requests.inbox import (
    Inbox,
    RefusedError,
    check_start,
    read_request,
)
from distprof_probes.attach.requests.serving import Serving, refuse
from distprof_probes.attach.sockets import turn_file
from distprof_probes.own_files import OwnFile

PERIOD_S = 2.0
"""Mean time between two checks. Each varies by up to a quarter, so that nodes check at different
times."""
_JITTER = 0.25
_SILENT_S = 3 * PERIOD_S
"""A rank that has not checked for this long has lost its turn."""
_NEXT_RANK_S = 0.5
_LAST_RANK = 8
_LONGEST_PAUSE_S = 30.0
"""Pauses last a few steps. A job that hangs in one must still serve requests."""
_TOKEN_BYTES = 16


class Turn:
    """Which rank of this node polls: the lowest local rank comes first.

    They coordinate through a file in a folder of this node.
    """

    def __init__(self, file: Path, local_rank: int) -> None:
        self._file = file
        self._token = secrets.token_hex(_TOKEN_BYTES // 2)
        self._patience_s = _SILENT_S + _NEXT_RANK_S * min(local_rank, _LAST_RANK)

    def is_ours(self) -> bool:
        """Whether this process polls now; takes the turn if no rank has it."""
        try:
            file = OwnFile(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return self._take()
        try:
            return self._decide(file)
        finally:
            file.close()

    def give_back(self) -> None:
        """Give the turn back, so that the next rank need not wait."""
        with contextlib.suppress(OSError):
            if self._file.read_bytes()[:_TOKEN_BYTES] == self._token.encode():
                self._file.unlink()

    def _decide(self, file: OwnFile) -> bool:
        found = os.fstat(file.number)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return self._take()  # of another user: ignore it
        if os.read(file.number, _TOKEN_BYTES) == self._token.encode():
            os.utime(file.number)
            return True
        age_s = time.time() - found.st_mtime
        return False if abs(age_s) < self._patience_s else self._take()

    def _take(self) -> bool:
        """Take the turn, even if the file cannot be written for the others."""
        with contextlib.suppress(OSError):
            write_atomically(self._file, self._token.encode(), mode=0o600)
        return True


class Poller(threading.Thread):
    """The thread that polls; ``note`` takes a sentence for ``rank.json``."""

    def __init__(self, run_dir: Path, local_rank: int, *, note: Callable[[str], None]) -> None:
        super().__init__(name="distprof-requests", daemon=True)
        self._run_dir = run_dir
        self._turn = Turn(turn_file(run_dir), local_rank)
        self._is_first = local_rank == 0
        self._note = note
        self._inbox = Inbox(run_dir)
        self._ended = threading.Event()
        self._paused_s: float | None = None
        self._serving: Serving | None = None

    def pause(self) -> None:
        """Stop polling until :meth:`resume`, or until the pause exceeds any regular one."""
        self._paused_s = time.monotonic()

    def resume(self) -> None:
        """Resume polling."""
        self._paused_s = None

    def end(self) -> None:
        """End the thread soon. A request that is being served is abandoned."""
        self._ended.set()

    def run(self) -> None:
        """Poll until the end. An error costs one check."""
        delay_s = 0.0 if self._is_first else PERIOD_S
        while not self._ended.wait(delay_s):
            delay_s = PERIOD_S * random.uniform(1 - _JITTER, 1 + _JITTER)
            if self._is_paused():
                continue
            try:
                self.look()
            except Exception as error:
                self._note(f"requests: {type(error).__name__}: {error}"[:300])
        self._turn.give_back()

    def look(self) -> None:
        """Check once, if it is this rank's turn."""
        if not self._turn.is_ours():
            return
        try:
            news = self._inbox.news()
        except RefusedError as why:
            self._note(f"no request is obeyed: the folder of requests {why}")
            return
        for name in news:
            self._take(name)

    def _take(self, name: str) -> None:
        try:
            request = read_request(self._inbox.folder / f"{name}.json")
            check_start(request)
            self._check_free()
        except OSError:
            return  # withdrawn
        except RefusedError as why:
            self._note(f"a request was not obeyed: it {why}")
            refuse(self._run_dir, name, f"the request {why}")
            return
        self._serving = Serving(self._run_dir, request, self._ended)
        self._serving.start()

    def _check_free(self) -> None:
        busy = self._serving
        if busy is not None and busy.is_busy:
            raise RefusedError(f"came while {busy.request.id} was being served: ask again later")

    def _is_paused(self) -> bool:
        since_s = self._paused_s
        return since_s is not None and time.monotonic() - since_s < _LONGEST_PAUSE_S
