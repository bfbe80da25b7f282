"""Downloads from file systems other than S3: of several requests at a time, or one."""

import asyncio
import tempfile
from typing import ClassVar

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem

from distprof.ingest.open import open_run
from distprof.ingest.rank import IngestOptions
from distprof.remote import (
    ChangedError,
    StoreError,
    UnusableStoreError,
    download,
    explained,
    without_login,
)
from distprof.remote.download import BLOCK_BYTES, BOUND, Stored, beginnings, find, stat
from distprof.web import WebFileSystem
from tests.remote.web_server import serving_folder

LONG = bytes(range(251)) * (2 * BLOCK_BYTES // 251)


class Versioned(AsyncFileSystem):
    """A store with generations, which cannot be asked for one of them."""

    protocol = "versioned"
    files: ClassVar[dict[str, tuple[int, bytes]]] = {}
    running = most = 0

    async def _info(self, path, **_):
        if path not in self.files:
            raise FileNotFoundError(path)
        generation, data = self.files[path]
        return {"name": path, "size": len(data), "type": "file", "generation": str(generation)}

    async def _find(self, path, **_):
        return {name: await self._info(name) for name in self.files if name.startswith(path)}

    async def _cat_file(self, path, start=None, end=None, **_):
        type(self).running += 1
        type(self).most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        type(self).running -= 1
        return (await self._now(path))[start:end]

    async def _now(self, path):
        return self.files[path][1]


class Changing(Versioned):
    """The same; an object changes when its last bytes are asked for."""

    protocol = "changing"
    files: ClassVar[dict[str, tuple[int, bytes]]] = {}

    async def _cat_file(self, path, start=None, end=None, **_):
        generation, data = self.files[path]
        if end == len(data):
            self.files[path] = (generation + 1, data)
        return data[start:end]


@pytest.fixture(autouse=True)
def registered():
    for kind in (Versioned, Changing):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
        kind.files.clear()
    Versioned.most = 0


def test_blocks_are_asked_for_at_once_and_come_in_order():
    Versioned.files["a"] = (1, LONG * 3)
    with download.download(stat("versioned://a")) as stream:
        assert stream.read() == LONG * 3
    assert Versioned.most > 1


def test_an_object_that_changed_while_it_was_read_is_refused():
    Changing.files["a"] = (1, LONG)
    with download.download(stat("changing://a")) as stream:
        with pytest.raises(ChangedError, match="changed while it was read"):
            stream.read()
        assert isinstance(stream.failure, ChangedError)


def test_listings_have_sizes_and_versions():
    Versioned.files.update({"run/b": (7, b"xy"), "run/a": (3, b"")})
    assert find("versioned://run") == (
        Stored(url="versioned://run/a", size=0, tag="3"),
        Stored(url="versioned://run/b", size=2, tag="7"),
    )
    assert beginnings(find("versioned://run"), 1) == [b"", b"x"]


def test_a_beginning_that_cannot_be_read_costs_no_other():
    Versioned.files["run/b"] = (7, b"xy")
    gone, there = beginnings([Stored(url=f"versioned://run/{n}", size=2) for n in "ab"], 1)
    assert isinstance(gone, OSError)
    assert there == b"x"


def test_a_larger_object_than_any_trace_is_not_downloaded():
    with pytest.raises(OSError, match="more than"):
        download.download(Stored(url="versioned://a", size=BOUND.num_bytes + 1, tag="1"))


def test_a_full_disk_ends_the_download_with_a_sentence(monkeypatch):
    class Full:
        def seek(self, at):
            return at

        def write(self, _):
            raise OSError(28, "No space left on device")

        def close(self):
            return

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    Versioned.files["a"] = (1, b"xyz")
    with (
        download.download(stat("versioned://a")) as stream,
        pytest.raises(StoreError, match="no disk space"),
    ):
        stream.read()


def folder_of_traces(folder):
    folder.mkdir()
    for number in range(2):
        text = f'{{"schemaVersion": 1, "distributedInfo": {{"rank": {number}}}, "traceEvents": ['
        event = '{"ph": "X", "cat": "kernel", "name": "k", "ts": %s, "dur": 2, "pid": 0, "tid": 7}'
        events = [event.replace("%s", str(4 * i + number + 1)) for i in range(40_000)]
        (folder / f"rank{number}.json").write_text(text + ",".join(events) + "]}")
    return folder


@pytest.mark.parametrize("has_tags", [False, True])
def test_a_trace_on_a_web_server_is_downloaded_once(tmp_path, has_tags):
    folder = folder_of_traces(tmp_path / "run")
    options = IngestOptions(cache_dir=str(tmp_path / "cache"))
    with serving_folder(folder, has_tags=has_tags) as server:
        run = open_run(f"{server.url}/", options)
    assert [rank.quality.num_events for rank in run] == [40_000] * 2
    for number in range(2):
        size = (folder / f"rank{number}.json").stat().st_size
        assert size <= server.sent[f"/rank{number}.json"] <= size + (1 << 20)


def test_a_version_that_a_web_server_names_finds_the_tables(tmp_path):
    folder = folder_of_traces(tmp_path / "run")
    options = IngestOptions(cache_dir=str(tmp_path / "cache"))
    with serving_folder(folder, has_tags=True) as server:
        open_run(f"{server.url}/", options)
        server.sent.clear()
        WebFileSystem.clear_instance_cache()
        open_run(f"{server.url}/", options)
        assert server.sent["/rank0.json"] <= 2 << 20 < (folder / "rank0.json").stat().st_size
        WebFileSystem.clear_instance_cache()
        (folder / "rank0.json").write_text((folder / "rank1.json").read_text())
        run = open_run(f"{server.url}/rank0.json", options)
    assert run.rank(1).path.endswith("rank0.json")  # the new content, not the cached one


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("gs://b/x", type("DefaultCredentialsError", (Exception,), {})("none"), "no credentials"),
        ("az://b/x", ValueError("Must provide either a name with credentials!!"), "no credentials"),
        ("s3://b/x", PermissionError("AccessDenied"), "access denied"),
        ("s3://b/x", TimeoutError(), "no answer"),
        ("s3://b/x", KeyError("odd"), "KeyError"),
    ],
)
def test_errors_of_each_package_are_sentences(url, error, words):
    found = explained(url, error)
    assert words in str(found)
    assert isinstance(found, OSError)
    if "credentials" in words:
        assert isinstance(found, UnusableStoreError)
        assert found.fix


def test_control_characters_of_a_server_are_shown():
    assert "\x1b" not in str(explained("s3://b/x", OSError("\x1b[31mred")))


def test_a_name_and_password_name_nothing():
    assert without_login("https://me:word@host/a@b") == "https://host/a@b"
    assert without_login("s3://bucket/a@b") == "s3://bucket/a@b"


def test_an_object_that_is_not_read_asks_its_store_nothing():
    """Tables in the cache are found by what the listing says."""
    with download.download(Stored(url="unheard-of://a", size=3, tag="1")) as stream:
        assert stream.tell() == 0
