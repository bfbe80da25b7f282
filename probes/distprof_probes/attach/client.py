"""Sends requests to one running rank through the Unix socket of its worker server."""

from __future__ import annotations

import http.client
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

MAX_ANSWER_BYTES = 2 * 2**30
_CHUNK_BYTES = 2**20
_MOST_WORDS_BYTES = 300
_LINE = "\n"  # after it comes a traceback
_CREDENTIALS = struct.Struct("3i")  # process, user and group, as Linux gives them


class NoAnswer(Exception):  # noqa: N818  # a state of the rank, not a fault of ours
    """The rank did not answer; the text says why in a few words."""


def ask(path: str, question: str, *, pid: int | None, within_s: float) -> bytes:
    """Send a request to a rank and return its answer; NoAnswer if it is stopped, gone or too old.

    The path of its socket comes from a file of the run directory, which another user may have
    written, so nothing is sent unless the rank's own process serves the socket. The question is the
    name of a handler of torch's worker server, with parameters as in a URL. ``within_s`` is the
    time for each part of the answer.
    """
    parts: list[bytes] = []
    fetch(path, question, pid=pid, within_s=within_s, take=parts.append)
    return b"".join(parts)


def fetch(
    path: str,
    question: str,
    *,
    pid: int | None,
    within_s: float,
    take: Callable[[bytes], object],
) -> None:
    """As :func:`ask`, but pass on the answer in parts of at most 1 MiB.

    Exceptions of ``take`` propagate.
    """
    connection = http.client.HTTPConnection("localhost", timeout=within_s)
    try:
        parts = _parts(connection, path, question, pid=pid, within_s=within_s)
        while chunk := _next(parts, within_s):
            take(chunk)
    finally:
        connection.close()


def _next(parts: Iterator[bytes], within_s: float) -> bytes:
    """The next part of an answer, empty at its end. Turns errors into this module's messages."""
    try:
        return next(parts, b"")
    except TimeoutError:
        raise NoAnswer(f"no answer within {within_s:g} s") from None
    except FileNotFoundError:
        raise NoAnswer("its socket no longer exists") from None
    except ConnectionRefusedError:
        raise NoAnswer("its socket is no longer served") from None
    except PermissionError:
        raise NoAnswer("it belongs to another user") from None
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"its answer was cut off: {error!r}") from None


def _parts(
    connection: http.client.HTTPConnection,
    path: str,
    question: str,
    *,
    pid: int | None,
    within_s: float,
) -> Iterator[bytes]:
    """Connect, ask, and read up to a size limit."""
    connection.sock = _connected(path, within_s)
    _check_peer(connection.sock, pid)
    connection.request("POST", f"/handler/{question}")
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        text = answer.read(_MOST_WORDS_BYTES).decode("utf-8", "replace").strip()
        raise NoAnswer(f"it answered with status {answer.status}: {text.partition(_LINE)[0]}")
    size = 0
    while chunk := answer.read(_CHUNK_BYTES):
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise NoAnswer("its answer is larger than 2 GiB")
        yield chunk


def _connected(path: str, within_s: float) -> socket.socket:
    if not Path(path).is_socket():
        raise FileNotFoundError(path)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(within_s)
    try:
        link.connect(path)
    except BaseException:
        link.close()
        raise
    return link


def _check_peer(link: socket.socket, pid: int | None) -> None:
    """Refuse a socket of another process: it may be a service of the machine."""
    if not hasattr(socket, "SO_PEERCRED"):
        return
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    server, owner, _ = _CREDENTIALS.unpack(found)
    if server != pid:
        raise NoAnswer(f"its socket is served by process {server}, not by the rank (process {pid})")
    if owner != os.geteuid() and os.geteuid() != 0:
        raise NoAnswer("it belongs to another user")
