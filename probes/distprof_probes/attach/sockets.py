"""Where the sockets of the ranks of this node are, and which ranks these are."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from distprof_probes.probe import Unavailable

MAX_SOCKET_PATH = 107  # bytes: sizeof(sockaddr_un.sun_path) - 1 on Linux
SOCKET_PREFIX = "distprof-"
_LONGEST_NAME = 60  # bytes for the name of a folder and of a socket in it
_MOST_ENTRIES = 100_000
_MOST_RANKS = 1_024
"""Limit per node, because a temporary folder may hold folders of any name."""


def socket_folder(run_dir: Path, rank: int) -> Path:
    """A new directory of mode 0700 with a path short enough to hold a socket.

    A run directory may be deep or on a network file system, where sockets do not work.
    """
    for base in _bases():
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=f"{_prefix(run_dir)}{rank}-", dir=base))
    raise Unavailable("no folder for a socket: XDG_RUNTIME_DIR and /tmp are not writable")


def local_ranks(run_dir: Path) -> set[int]:
    """Ranks of this node that opened a socket; some may be gone.

    No other node can see these folders, so each node finds its own ranks without reading the shared
    file system.
    """
    name = re.compile(rf"{re.escape(_prefix(run_dir))}(\d{{1,8}})-")
    found: set[int] = set()
    for base in dict.fromkeys(_bases()):
        with contextlib.suppress(OSError), os.scandir(base) as entries:
            matches = (name.match(entry.name) for entry in islice(entries, _MOST_ENTRIES))
            found.update(islice((int(match[1]) for match in matches if match), _MOST_RANKS))
    return found


def turn_file(run_dir: Path) -> Path:
    """The file by which the ranks of this node agree on one that looks for requests."""
    for base in _bases():
        if os.access(base, os.W_OK):
            return Path(base, f"{_prefix(run_dir)}poller")
    return Path("/tmp", f"{_prefix(run_dir)}poller")


def _bases() -> Iterator[str]:
    for base in (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"):
        if base and len(os.fsencode(base)) <= MAX_SOCKET_PATH - _LONGEST_NAME:
            yield base


def _prefix(run_dir: Path) -> str:
    """Prefix of the folder names of one job on one node.

    Containers on one machine may share the folder, but cannot reach each other's ranks.
    """
    processes = ""
    with contextlib.suppress(OSError):
        processes = str(Path("/proc/self/ns/pid").stat().st_ino)
    place = "\n".join((str(run_dir.absolute()), socket.gethostname(), processes))
    return f"{SOCKET_PREFIX}{hashlib.sha256(place.encode()).hexdigest()[:8]}-"
