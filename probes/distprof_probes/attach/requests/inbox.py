"""New requests in a run directory, and which of them a rank obeys.

A request makes ranks act, so it counts only if this user or root wrote it, no other user could
have, and it has not expired. One check opens one folder. On a network file system, opening asks the
server for the time of the last change. So a file from another node is seen within the poll period,
although attributes are cached for longer (Linux: ``nfs_lookup_verify_inode``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from itertools import islice
from pathlib import Path

import msgspec

from distprof.artefacts import REPLIES_DIR, REQUEST_SCHEMA, REQUESTS_DIR
from distprof.artefacts.run_file import MAX_REQUEST_BYTES, RequestFile
from distprof_probes.own_files import OwnFile

REQUEST_NAME = re.compile(r"(profile|stacks|flight)-\d{8}-\d{6}-[0-9a-f]{8}")
MAX_SECONDS = 600.0
_LONGEST_NS = 4 * 3_600 * 10**9  # from a request to its deadline
_MOST_ENTRIES = 10_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class RefusedError(Exception):
    """A request that no rank obeys. The text gives the reason, as the end of a sentence."""


class Inbox:
    """The folder of requests of one job."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / REQUESTS_DIR
        self._changed_ns = 0
        self._look_again = False
        self._seen: set[str] = set()

    def make(self) -> None:
        """Create the folder, so that it has the owner of the job."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700)

    def news(self) -> list[str]:
        """Names of new requests, from one check of the folder's time.

        A missing folder is created, unless the run directory is also missing. RefusedError if
        another user may write to the folder.
        """
        try:
            folder = OwnFile(self.folder, _FOLDER)
        except FileNotFoundError:
            self.make()
            return []
        except OSError:
            return []
        try:
            return self._listed(folder)
        finally:
            folder.close()

    def _listed(self, folder: OwnFile) -> list[str]:
        found = os.fstat(folder.number)
        if not folder.is_open() or not self._has_changed(found.st_mtime_ns):
            return []
        _check_owner(found)
        with os.scandir(folder.number) as entries:
            names = {entry.name for entry in islice(entries, _MOST_ENTRIES)}
        stems = {name.removesuffix(".json") for name in names if name.endswith(".json")}
        there = {stem for stem in stems if REQUEST_NAME.fullmatch(stem)}
        new = sorted(there - self._seen)
        self._seen = there
        return new

    def _has_changed(self, changed_ns: int) -> bool:
        """Whether the folder may hold a new request.

        On a file system that counts in seconds, two changes may have the same time, so the check
        after a change also counts as a change.
        """
        is_new = changed_ns != self._changed_ns
        look_again, self._look_again = self._look_again, is_new
        self._changed_ns = changed_ns
        return is_new or look_again


def read_request(file: Path, *, now_ns: int | None = None) -> RequestFile:
    """A request that may be obeyed; RefusedError if of another user, malformed, or too late."""
    request = _decoded(_content(file))
    if request.schema != REQUEST_SCHEMA:
        raise RefusedError(f"is in the format {request.schema[:60]!r}, not {REQUEST_SCHEMA}")
    if request.id != file.stem:
        raise RefusedError("has the name of another")
    _check_times(request, time.time_ns() if now_ns is None else now_ns)
    return request


def check_start(request: RequestFile, *, now_ns: int | None = None) -> None:
    """Refuse if a rank that begins now would trace nothing that the others trace."""
    late_ns = (time.time_ns() if now_ns is None else now_ns) - request.start_ns
    if request.kind == "profile" and late_ns > request.seconds * 1e9:
        late_s = late_ns / 1e9
        raise RefusedError(f"was seen {late_s:.1f} s after the start, when the trace had ended")


def is_our_folder(folder: Path) -> bool:
    """Whether it is a folder, not a link, that only this user or root may write to."""
    try:
        found = folder.lstat()
        _check_owner(found)
    except (OSError, RefusedError):
        return False
    return stat.S_ISDIR(found.st_mode)


def replies_folder(run_dir: Path, request: str) -> Path:
    """Where the nodes answer a request."""
    return run_dir / REQUESTS_DIR / request / REPLIES_DIR


def _content(file: Path) -> bytes:
    try:
        opened = OwnFile(file, _FILE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RefusedError("is a link") from None
        raise
    try:
        found = os.fstat(opened.number)
        if not stat.S_ISREG(found.st_mode):
            raise RefusedError("is not a file")
        _check_owner(found)
        if found.st_size > MAX_REQUEST_BYTES:
            raise RefusedError(f"has more than {MAX_REQUEST_BYTES:,} bytes")
        return os.read(opened.number, MAX_REQUEST_BYTES)
    finally:
        opened.close()


def _check_owner(found: os.stat_result) -> None:
    """Check that only this user or root can have written it."""
    if found.st_uid not in (os.geteuid(), 0):
        raise RefusedError(f"belongs to user {found.st_uid}, and the job to {os.geteuid()}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RefusedError("can be written by other users")


def _decoded(content: bytes) -> RequestFile:
    try:
        return msgspec.json.decode(content, type=RequestFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(f"is no request: {error}"[:300]) from None


def _check_times(request: RequestFile, now_ns: int) -> None:
    if request.kind == "profile" and not 0 < request.seconds <= MAX_SECONDS:
        raise RefusedError(f"asks for {request.seconds:g} s, of {MAX_SECONDS:g} at most")
    if not request.asked_ns <= request.start_ns <= request.deadline_ns:
        raise RefusedError("has times that are out of order")
    if request.deadline_ns - request.asked_ns > _LONGEST_NS:
        raise RefusedError("is valid for more than four hours")
    if now_ns > request.deadline_ns:
        late_s = (now_ns - request.deadline_ns) / 1e9
        raise RefusedError(f"expired {late_s:.0f} s ago, by the clock of this node")
    if now_ns < request.asked_ns - _LONGEST_NS:
        raise RefusedError("is hours in the future, by the clock of this node")
