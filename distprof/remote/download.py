"""An object as a file that is read from start to end, downloaded in parallel ranges, each once.

A response must be of the listed version, have the right length and arrive in time; otherwise the
block is requested again, a few times. Blocks are kept on disk, for readers that seek back.
"""

from __future__ import annotations

import asyncio
import errno
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, BinaryIO, Final, cast

import msgspec

from distprof.bounds import Bound, Seekable, TooLargeError
from distprof.remote import (
    LIMIT_S,
    ChangedError,
    StoreError,
    ask,
    explained,
    file_system,
    is_async,
    is_final,
)

LIST_LIMIT_S = 600.0
"""Time limit for listing a folder. A million objects take several minutes."""
_AT_ONCE = 64
_THREADS = 8
_PATTERN = "*?["
_TAGS = ("generation", "ETag", "etag")
"""Names that stores use for the version of an object, the most exact one first."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """An object as its store describes it."""

    url: str  # Address.
    size: int | None = None  # Size in bytes; None if the store does not report it.
    tag: str = ""  # Version, which changes with the content; empty if the store has none.


def stat(url: str) -> Stored:
    """The object at a URL; OSError if it does not exist, is a folder, or cannot be accessed."""
    return _stored(url, ask(url, _fresh_info))


def find(url: str) -> tuple[Stored, ...] | Stored:
    """The object at a URL, or all objects of a folder or pattern, sorted by name."""
    try:
        return stat(url)
    except (FileNotFoundError, IsADirectoryError):
        found = ask(url, _listed, LIST_LIMIT_S)
    system, _ = file_system(url)
    pairs = sorted((str(name), info) for name, info in found.items())
    return tuple(
        _stored(system.unstrip_protocol(name), info)
        for name, info in pairs
        if info.get("type") == "file"
    )


def beginnings(stored: Sequence[Stored], size: int) -> list[bytes | OSError]:
    """The first bytes of each object, or the error; many requests to one store run in parallel."""
    if not stored:
        return []
    system, _ = file_system(stored[0].url)
    if not is_async(system):
        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(lambda one: _opened_beginning(one.url, size), stored))
    found = ask(stored[0].url, lambda system, _: _all_beginnings(system, stored, size), 3_600)
    return [
        explained(one.url, part) if isinstance(part, BaseException) else bytes(part)
        for one, part in zip(stored, found, strict=True)
    ]


async def _all_beginnings(system: Any, stored: Sequence[Stored], size: int) -> list[Any]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(object_: Stored) -> Any:
        end = size if object_.size is None else min(size, object_.size)
        if end == 0:
            return b""
        path = system._strip_protocol(object_.url)
        async with places:
            return await asyncio.wait_for(system._cat_file(path, start=0, end=end), 60)

    return await asyncio.gather(*map(one, stored), return_exceptions=True)


def _opened_beginning(url: str, size: int) -> bytes | OSError:
    def read(system: Any, path: str) -> bytes:
        with system.open(path, "rb") as stream:
            return bytes(stream.read(size))

    try:
        return bytes(ask(url, read))
    except OSError as error:
        return error


def _fresh_info(system: Any, path: str) -> Any:
    """The current description by the store: the file system would return a cached listing."""
    system.invalidate_cache(path)
    return system._info(path) if is_async(system) else system.info(path)


def _listed(system: Any, path: str) -> Any:
    name = "glob" if any(sign in path for sign in _PATTERN) else "find"
    return getattr(system, f"_{name}" if is_async(system) else name)(path, detail=True)


def _stored(url: str, info: dict[str, Any]) -> Stored:
    if info.get("type") != "file":
        raise IsADirectoryError(21, "a folder", url)
    tag = next((str(info[name]) for name in _TAGS if info.get(name)), "")
    size = info.get("size")
    return Stored(
        url=url,
        size=int(size) if size is not None else None,
        tag="" if tag.startswith("W/") else tag,  # a weak tag does not identify the exact bytes
    )


BOUND: Final = Bound(reads="an object of a store (s3://, gs://, az://)", num_bytes=1 << 36)
BLOCK_BYTES = 1 << 22
_AHEAD = 6
"""Blocks in flight: at most 24 MiB of memory."""
TRIES = 3
PAUSE_S = 0.5
_LOCAL = ("memory", "file", "local")
"""Protocols of this machine, whose files are read in place."""
_Read = Callable[[int, int], Awaitable[bytes]]


class Download(Seekable):
    """An object that is being downloaded: the part on disk, and the blocks still to come.

    ``failure`` is the error that ended the download; None if there was none.
    """

    def __init__(self, stored: Stored, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self.stored = stored
        self.failure: OSError | None = None
        self._blocks = blocks
        self._kept = tempfile.TemporaryFile(prefix="distprof-")  # noqa: SIM115 - closed with this
        self._length = 0

    def close(self) -> None:
        """Close the file and stop the download."""
        if not self.closed:
            self._kept.close()
            getattr(self._blocks, "close", lambda: None)()
        super().close()

    def _size(self) -> int:
        """The size of the object; downloads all of it first."""
        while self._more():
            pass
        return self._length

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` with the available bytes: at least one, except at the end."""
        while self._at >= self._length and self._more():
            pass
        self._kept.seek(self._at)
        count = self._kept.readinto(memoryview(buffer)[: max(0, self._length - self._at)])
        self._at += count
        return count

    def _more(self) -> bool:
        if self.failure is not None:
            raise self.failure
        try:
            block = next(self._blocks, b"")
            self._kept.seek(self._length)
            self._kept.write(block)
        except OSError as error:
            self.failure = error
            if error.errno == errno.ENOSPC:
                where = f"no disk space for the download in {tempfile.gettempdir()}"
                self.failure = StoreError(where, "free space, or set TMPDIR")
            raise self.failure from error.__cause__
        self._length += len(block)
        return bool(block)


def download(stored: Stored) -> BinaryIO:
    """Open an object for reading. Its ``failure`` keeps an error that occurs later."""
    if stored.url.partition("://")[0] in _LOCAL:
        return cast("BinaryIO", ask(stored.url, lambda system, path: system.open(path, "rb")))
    described = stored if stored.tag or stored.size is not None else stat(stored.url)
    if described.size is not None and described.size > BOUND.num_bytes:
        raise TooLargeError(errno.EFBIG, f"more than {BOUND.num_bytes:,} bytes", stored.url)
    return cast("BinaryIO", Download(described, _blocks_of(described)))


def _blocks_of(stored: Stored) -> Iterator[bytes]:
    """The bytes of an object. The store's package takes 1 s to import, so only on first read."""
    system, path = file_system(stored.url)
    if not is_async(system) or stored.size is None:
        blocks = _sequential(stored.url)
        yield from _checked(stored, blocks) if stored.tag else blocks
    elif "s3" in system.protocol and stored.tag:
        yield from _ahead(system, stored, _S3Reader(system, path, stored.tag))
    else:
        yield from _checked(stored, _ahead(system, stored, _reader(system, path)))


def _sequential(url: str) -> Iterator[bytes]:
    """Blocks one after the other, for stores without parallel requests and for unknown sizes."""
    with ask(url, lambda system, path: system.open(path, "rb")) as stream:
        while block := _block_of(url, stream):
            yield block


def _block_of(url: str, stream: BinaryIO) -> bytes:
    try:
        return stream.read(BLOCK_BYTES)
    except Exception as error:  # each package has its own errors
        raise explained(url, error) from error


def _ahead(system: Any, stored: Stored, read: _Read) -> Iterator[bytes]:
    """Blocks in order, several of them in flight."""
    size = stored.size or 0
    parts = ((start, min(start + BLOCK_BYTES, size)) for start in range(0, size, BLOCK_BYTES))
    pending: deque[Any] = deque()

    def begin(part: tuple[int, int]) -> None:
        coroutine = _with_retries(read, *part, size)
        pending.append(asyncio.run_coroutine_threadsafe(coroutine, system.loop))

    try:
        for part in islice(parts, _AHEAD):
            begin(part)
        while pending:
            yield _result(stored.url, pending.popleft())
            for part in islice(parts, 1):
                begin(part)
    finally:
        for future in pending:
            future.cancel()


def _result(url: str, future: Any) -> bytes:
    try:
        return bytes(future.result(TRIES * (LIMIT_S + 10)))
    except Exception as error:  # each package has its own errors
        raise explained(url, error) from error


async def _with_retries(read: _Read, start: int, end: int, size: int) -> bytes:
    """Read a block, retrying after transient errors."""
    problem: Exception | None = None
    for number in range(TRIES):
        if number:
            await asyncio.sleep(PAUSE_S * 2 ** (number - 1))
        try:
            block = await asyncio.wait_for(read(start, end), LIMIT_S)
        except Exception as error:
            if is_final(error):
                raise
            problem = error
            continue
        if len(block) == end - start:
            return block
        how = "ends after" if len(block) < end - start else "continues after"
        problem = StoreError(f"a response that {how} {start + len(block):,} of {size:,} bytes")
    raise problem or AssertionError


def _reader(system: Any, path: str) -> _Read:
    async def read(start: int, end: int) -> bytes:
        return bytes(await system._cat_file(path, start=start, end=end))

    return read


def _checked(stored: Stored, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks; at the end ChangedError if the object changed while it was read."""
    yield from blocks
    now = stat(stored.url)
    if (now.tag, now.size) != (stored.tag, stored.size):
        raise ChangedError("an object that changed while it was read")


class _S3Reader:
    """Ranges of one version of an object. S3 refuses the request if there is another version."""

    def __init__(self, system: Any, path: str, tag: str) -> None:
        self._system, self._tag = system, tag
        self._bucket, self._key, version = system.split_path(path)
        self._version = {"VersionId": version} if version else {}

    async def __call__(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` up to ``end``; ChangedError if the object has changed."""
        try:
            answer = await self._system._call_s3(
                "get_object",
                Bucket=self._bucket,
                Key=self._key,
                Range=f"bytes={start}-{end - 1}",
                IfMatch=self._tag,
                **self._version,
            )
        except OSError as error:
            if getattr(error.__cause__, "response", {}).get("Error", {}).get("Code") in _CHANGED:
                raise ChangedError from error
            raise
        async with answer["Body"] as body:
            return await _all_of(body, end - start)


async def _all_of(body: Any, size: int) -> bytes:
    """The body of a response, cut to one byte more than expected if it is too long."""
    data = bytearray()
    while len(data) <= size and (part := await body.read(size + 1 - len(data))):
        data += part
    return bytes(data)


_CHANGED = ("PreconditionFailed", "412", "InvalidRange", "416")
