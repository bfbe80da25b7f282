"""Files from untrusted web servers: every response is limited in time and size.

A server may send an endless header or body, one byte per second, less than it announces, or a
redirect to an address that only this machine can reach. ``fsspec`` alone has no protection against
any of these.
"""

from __future__ import annotations

import base64
import errno
import http.client
import io
import ipaddress
import os
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, cast
from urllib.parse import unquote, urljoin, urlsplit

import fsspec

from distprof.bounds import Bound, Seekable, TooLargeError
from distprof.errors import WebError

BOUND: Final = Bound(reads="a file behind http:// or https://", num_bytes=1 << 36)
UNSIZED_BYTES = 1 << 30
"""Size limit if the server does not announce the size of the file."""
LIMIT_S = 60.0
"""Time limit for the start of a response, and for each block of it: 17 kB/s."""
MAX_REDIRECTS = 5
BLOCK_BYTES = 1 << 20
_KEPT_BLOCKS = 8
_FRESH_S = 60.0
_PAGE_BYTES = 1 << 22
_MAX_PAGES = 1_000
_LINK = re.compile(r"""<a\s[^>]{0,1000}?href\s*=\s*["']?([^"'>\s]{1,2000})""", re.IGNORECASE)
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


# One request --------------------------------------------------------------------------------------


class _Visit:
    """One request and its redirects."""

    def __init__(self) -> None:
        self.hops = 0  # Redirects so far.
        self.began_inside = False  # Whether the URL of the user leads to a non-public address.
        self.socket: socket.socket | None = None  # The current connection.
        self.is_late = False  # Whether the time limit has passed.

    def check(self, connected: socket.socket) -> None:
        """Reject a redirect to a private address from a public one, or to a link-local one."""
        self.socket = connected
        address = ipaddress.ip_address(connected.getpeername()[0].partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if self.hops == 0:
            self.began_inside = not address.is_global
        elif address.is_link_local or not (address.is_global or self.began_inside):
            connected.close()
            raise WebError(f"a redirect to {address}, which is not a public address")

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Close the connection, WebError, if the block takes longer than :data:`LIMIT_S`."""
        timer = threading.Timer(LIMIT_S, self._stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            if self.is_late:
                raise WebError(_SLOW) from error
            raise
        finally:
            timer.cancel()
        if self.is_late:
            raise WebError(_SLOW)

    def _stop(self) -> None:
        self.is_late = True
        if self.socket is not None:
            try:
                self.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


_SLOW = f"a server that sends less than {BLOCK_BYTES >> 20} MiB in {LIMIT_S:g} s"


class _Request(urllib.request.Request):
    visit: _Visit


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections, and checks their address before anything is sent."""

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_connecting(http.client.HTTPConnection, req), req)

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_connecting(http.client.HTTPSConnection, req), req)


def _connecting(kind: Any, request: urllib.request.Request) -> Any:
    visit = cast("_Request", request).visit

    class Connection(kind):  # type: ignore[misc]
        def connect(self) -> None:
            super().connect()
            visit.socket = self.sock
            if not request.has_proxy():
                visit.check(self.sock)

    return Connection


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects, to http and https only, and never from https to http."""

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        """Follow a redirect, a few times and never from https to http, let alone to ``ftp:``."""
        del code, msg
        fp.close()
        place = headers.get("Location")
        if not place:
            return None
        visit, url = req.visit, urljoin(req.full_url, place)
        visit.hops += 1
        here, there = urlsplit(req.full_url).scheme, urlsplit(url).scheme
        if visit.hops > MAX_REDIRECTS:
            raise WebError(f"more than {MAX_REDIRECTS} redirects")
        if there not in ("http", "https") or (here, there) == ("https", "http"):
            raise WebError(f"a redirect from {here} to {there or 'nowhere'}")
        return self.parent.open(_request(url, dict(req.headers), visit), timeout=req.timeout)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _request(url: str, headers: dict[str, str], visit: _Visit) -> _Request:
    """A request. User name and password of the URL are not sent to other servers."""
    parts = urlsplit(url)
    login, _, place = parts.netloc.rpartition("@")
    try:
        made = _Request(parts._replace(netloc=place, fragment="").geturl(), headers=headers)
    except ValueError as error:
        raise WebError(f"not a valid URL ({error})") from error
    if login and visit.hops == 0:
        credentials = base64.b64encode(unquote(login).encode()).decode()
        made.add_unredirected_header("Authorization", f"Basic {credentials}")
    made.visit = visit
    return made


def _opener() -> urllib.request.OpenerDirector:
    """An opener for http and https only: urllib's default also reads ``file:`` and ``ftp:``."""
    made = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Handler(),
        _Redirects(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        made.add_handler(handler)
    return made


def _answer(url: str, headers: dict[str, str]) -> tuple[Any, _Visit]:
    """Send a request and return the response, its body unread; WebError if that fails."""
    visit = _Visit()
    all_headers = {"Accept-Encoding": "identity", "User-Agent": "distprof", **headers}
    try:
        request = _request(url, all_headers, visit)
        with visit.limited():
            return _opener().open(request, timeout=LIMIT_S), visit
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (404, 410):
            raise FileNotFoundError(errno.ENOENT, "no file with this name", url) from error
        if error.code == 416:
            raise EOFError from error
        raise WebError(f"HTTP status {error.code}: {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, WebError):
            raise reason from error
        raise WebError(f"no usable response ({type(reason).__name__}: {reason})") from error


# One file -----------------------------------------------------------------------------------------


class _Remote:
    """The blocks of one file. The latest blocks are kept: readers look at the first one again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.size: int | None = None
        self.made = time.monotonic()
        self._process = os.getpid()
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._tag = ""
        self.etag = ""
        self._lock = threading.Lock()
        self._stream: tuple[Any, _Visit, int] | None = None
        self._is_stream = False  # the server has no ranges
        self._failure: OSError | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether this process may still use its blocks: a forked process must not."""
        return self._process == os.getpid() and time.monotonic() - self.made < _FRESH_S

    def release(self) -> None:
        """Close the connection if one is open. Only the process that opened it may use it."""
        if self._stream is not None:
            self._stream[0].close()
            self._stream = None

    def block(self, index: int) -> bytes:
        """A block of the file: shorter at the end, and empty beyond it."""
        with self._lock:
            if self._failure is not None:  # later calls fail at once
                raise self._failure
            if index not in self._blocks:
                try:
                    self._blocks[index] = self._fetched(index)
                except BaseException as error:
                    self.release()
                    self._failure = error if isinstance(error, OSError) else None
                    raise
                while len(self._blocks) > _KEPT_BLOCKS:
                    self._blocks.popitem(last=False)
            return self._blocks[index]

    def _fetched(self, index: int) -> bytes:
        if self.size is not None and index * BLOCK_BYTES >= self.size:
            return b""
        if self._stream is not None or self._is_stream:
            return self._from_stream(index)
        start = index * BLOCK_BYTES
        try:
            answer, visit = _answer(self.url, {"Range": f"bytes={start}-{start + BLOCK_BYTES - 1}"})
        except EOFError:
            return b""
        self._stream = (answer, visit, 0)
        self._check_tag(answer)
        found = _RANGE.match(answer.headers.get("Content-Range", ""))
        if answer.status == 206 and found and int(found[1]) == start:
            self._set_size(None if found[3] == "*" else int(found[3]))
            block = self._whole(_read(answer, visit), start)
            self.release()
            return block
        self._is_stream = True
        length = answer.headers.get("Content-Length", "")
        self._set_size(int(length) if length.isdecimal() and len(length) < 19 else None)
        return self._from_stream(index)

    def _from_stream(self, index: int) -> bytes:
        """A block from a response that is read sequentially, from its start."""
        if self._stream is None or self._stream[2] > index:
            self.release()
            self._stream = (*_answer(self.url, {}), 0)
            self._check_tag(self._stream[0])
        answer, visit, at = self._stream
        while True:
            block = self._whole(_read(answer, visit), at * BLOCK_BYTES)
            at += 1
            self._stream = (answer, visit, at)
            if self.size is None and at * BLOCK_BYTES > UNSIZED_BYTES:
                raise _too_large(self.url, UNSIZED_BYTES)
            if len(block) < BLOCK_BYTES:
                self.release()
            if at > index or not block:
                return block

    def _whole(self, block: bytes, start: int) -> bytes:
        """The block, checked for its expected length."""
        if self.size is not None and len(block) < min(BLOCK_BYTES, self.size - start):
            raise WebError(
                f"a response that ends after {start + len(block):,} of {self.size:,} bytes"
            )
        return block

    def _set_size(self, size: int | None) -> None:
        if size is not None and size > BOUND.num_bytes:
            raise _too_large(self.url, BOUND.num_bytes)
        if self.size is not None and size != self.size:
            raise WebError("a file that changed while it was read")
        self.size = size

    def _check_tag(self, answer: Any) -> None:
        tag = answer.headers.get("ETag", "") or answer.headers.get("Last-Modified", "")
        if self._tag and tag != self._tag:
            raise WebError("a file that changed while it was read")
        self._tag = tag
        self.etag = answer.headers.get("ETag", "")


def _too_large(url: str, most: int) -> TooLargeError:
    return TooLargeError(errno.EFBIG, f"more than {most:,} bytes", url)


def _read(answer: Any, visit: _Visit, most: int = BLOCK_BYTES) -> bytes:
    """The next bytes of a response, at most ``most``; WebError if the connection fails."""
    try:
        with visit.limited():
            return bytes(answer.read(most))
    except http.client.IncompleteRead as error:
        return error.partial
    except (http.client.HTTPException, OSError, ValueError) as error:
        if isinstance(error, WebError):
            raise
        raise WebError(f"a broken connection ({type(error).__name__}: {error})") from error


class _WebFile(Seekable):
    """A file on a web server, seekable whether or not the server supports ranges."""

    def __init__(self, remote: _Remote) -> None:
        super().__init__()
        self._remote = remote

    def close(self) -> None:
        if not self.closed:
            self._remote.release()
        super().close()

    def _size(self) -> int:
        if self._remote.size is None:
            raise WebError("a server that does not announce the size of the file")
        return self._remote.size

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` from one block."""
        view = memoryview(buffer)
        index, skip = divmod(self._at, BLOCK_BYTES)
        data = self._remote.block(index)[skip : skip + len(view)]
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


class WebFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Reads files from web servers, and lists the links on their pages."""

    protocol = ("http", "https")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._remotes: OrderedDict[str, _Remote] = OrderedDict()
        self._pages = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def unstrip_protocol(self, name: str) -> str:
        """A path is already a URL."""
        return name

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size, type and version. A name that ends with a slash is a folder."""
        if path.endswith("/"):
            return {"name": path, "size": None, "type": "directory"}
        remote = self._remote(path)
        first = remote.block(0)
        remote.release()
        size = len(first) if remote.size is None and len(first) < BLOCK_BYTES else remote.size
        version = {"ETag": remote.etag} if remote.etag else {}
        return {"name": path, "size": size, "type": "file", **version}

    def isfile(self, path: str) -> bool:
        """Whether the file exists; OSError if the server cannot be used."""
        try:
            return bool(self.info(path)["type"] == "file")
        except FileNotFoundError:
            return False

    def exists(self, path: str, **_: Any) -> bool:
        """Whether the file exists; always true for folders."""
        return path.endswith("/") or self.isfile(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Links on the page of a folder that lead into the folder."""
        folder = path.rstrip("/") + "/"
        self._pages += 1
        if self._pages > _MAX_PAGES:
            raise WebError(f"more than {_MAX_PAGES:,} folders")
        answer, visit = _answer(folder, {})
        with answer:
            text = _read(answer, visit, _PAGE_BYTES).decode("utf-8", "replace")
        inside = {urljoin(folder, link).partition("#")[0] for link in _LINK.findall(text)}
        names = sorted(name for name in inside if name.startswith(folder) and name != folder)
        kinds = {name: "directory" if name.endswith("/") else "file" for name in names}
        if not detail:
            return names
        return [{"name": name, "size": None, "type": kind} for name, kind in kinds.items()]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> BinaryIO:
        if mode != "rb":
            raise WebError("a web server, which can only be read")
        remote = self._remote(path)
        remote.block(0)
        return cast("BinaryIO", io.BufferedReader(_WebFile(remote), 1 << 16))

    def _remote(self, url: str) -> _Remote:
        found = self._remotes.get(url)
        if found is None or not found.is_fresh:
            if found is not None:
                found.release()
            found = self._remotes[url] = _Remote(url)
            while len(self._remotes) > _KEPT_BLOCKS:
                self._remotes.popitem(last=False)
        return found
