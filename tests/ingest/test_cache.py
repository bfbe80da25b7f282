import contextlib
import errno
import io
import multiprocessing
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from distprof.artefacts.files import cache_root
from distprof.ingest.cache import (
    CachedTables,
    CacheKey,
    EntryWriter,
    find_entry,
    is_temporary,
)
from distprof.ingest.tables_file import DamagedTablesError, Part, TablesReader, open_tables
from distprof.run.tables import ACTIVITY, COLLECTIVES, STEPS
from distprof.schema import Table
from tests.ingest.stored import host_table


def make_entry(root, key, names=("a", "b"), problem=None):
    with EntryWriter(root, key, problem) as entry:
        entry.tables.write_table(Part.CALLS, host_table(names))
        entry.tables.write_table(Part.HOST, host_table(names))
        entry.tables.write_table(Part.ACTIVITY, Table.empty(ACTIVITY))
        entry.tables.write_table(Part.COLLECTIVES, Table.empty(COLLECTIVES))
        entry.tables.write_table(Part.STEPS, Table.empty(STEPS))
        entry.tables.write_rank(b"{}")
        return entry.commit()


@pytest.fixture
def key():
    return CacheKey.of(io.BytesIO(b"trace"), {"rows": "all"})


def test_the_key_follows_content_and_options_not_the_path(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "b").write_bytes(b"x" * 3_000_000)
    (tmp_path / "c").write_bytes(b"x" * 2_000_000 + b"y" + b"x" * 999_999)
    a, b, c = (CacheKey.of(tmp_path / name, {"rows": "all"}) for name in "abc")

    assert a == b != c
    assert CacheKey.of(tmp_path / "a", {"rows": "device"}) != a
    with (tmp_path / "a").open("rb") as file:
        assert CacheKey.of(file, {"rows": "all"}) == a


def test_a_new_version_of_the_tables_has_other_keys(key, monkeypatch):
    monkeypatch.setattr("distprof.ingest.cache.CACHE_VERSION", 10**6)

    assert CacheKey.of(io.BytesIO(b"trace"), {"rows": "all"}) != key


def test_an_entry_is_found_once_it_is_whole(tmp_path, key):
    assert find_entry(tmp_path, key) is None
    entry = make_entry(tmp_path, key)

    assert find_entry(tmp_path, key) == entry
    tables = CachedTables(str(entry), has_host=True).load()
    assert tables.host.coded("name").decode() == ["a", "b"]
    assert len(CachedTables(str(entry), has_host=False).load().host) == 0
    assert list(entry.parent.iterdir()) == [entry]


def test_an_entry_without_commit_leaves_nothing(tmp_path, key):
    with EntryWriter(tmp_path, key) as entry:
        entry.tables.write_rank(b"{}")

    assert find_entry(tmp_path, key) is None
    assert not list(key.path(tmp_path).parent.iterdir())


@pytest.mark.parametrize("part", [*Part, "index", "trailer"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_entry_is_not_found_and_is_made_again(tmp_path, key, part, damage):
    entry = make_entry(tmp_path, key)
    data = bytearray(entry.read_bytes())
    with open_tables(entry) as file:
        ends = {name: start + size for name, (start, size) in file._index.parts.items()}
    at = {"index": max(ends.values()) + 3, "trailer": len(data) - 3} | ends
    data[at[part] - 1] ^= 1
    if damage == "gone":
        entry.unlink()
    else:
        entry.write_bytes(data if damage == "flip" else data[: at[part]])

    assert find_entry(tmp_path, key) is None
    again = make_entry(tmp_path, key, names=("c",))
    assert find_entry(tmp_path, key) == again == entry
    assert CachedTables(str(again), has_host=True).load().host.coded("name").decode() == ["c"]


def test_an_entry_that_is_damaged_after_it_was_found_is_made_again(tmp_path, key):
    entry = make_entry(tmp_path, key)
    entry.write_bytes(b"x" * 1_000)
    with pytest.raises(DamagedTablesError, match=key.digest):
        CachedTables(str(entry), has_host=True).load()
    made = CachedTables(str(make_entry(tmp_path / "again", key)), has_host=True)
    again = CachedTables(str(entry), has_host=True, remake=lambda: made)
    assert len(again.load().host) == 2


def test_tables_of_a_cache_that_others_clear_are_made_elsewhere(tmp_path, key):
    """The entry is gone, and so is the next one before it is read."""
    gone = str(tmp_path / "gone")
    elsewhere = make_entry(tmp_path, key, problem=OSError(errno.ENOENT, "cleared"))
    made = iter((gone, str(elsewhere)))

    def remake():
        return CachedTables(next(made), has_host=True, key=key.digest)

    tables = CachedTables(gone, has_host=True, remake=remake, key=key.digest)
    assert len(tables.load().host) == 2
    assert not elsewhere.exists()


def test_what_a_killed_process_left_half_made_goes_after_a_day(tmp_path, key):
    parent = key.path(tmp_path).parent
    parent.mkdir()
    for name, age_s in ((".making-old", 100_000), (".making-new", 100)):
        (parent / name).touch()
        os.utime(parent / name, (time.time() - age_s,) * 2)
    with EntryWriter(tmp_path, key):
        pass
    assert [path.name for path in parent.iterdir()] == [".making-new"]


def test_two_writers_of_one_entry_leave_one(tmp_path, key):
    with EntryWriter(tmp_path, key) as late:
        first = make_entry(tmp_path, key)
        with first.open("rb") as reading:
            late.tables.write_rank(b"{}")
            assert late.commit() == first
            assert TablesReader(reading, "").rank() == b"{}"  # a reader keeps what it opened

    assert find_entry(tmp_path, key) == first
    assert list(first.parent.iterdir()) == [first]


def test_a_cache_that_cannot_be_written_gives_way_to_a_temporary_file(tmp_path, key, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "file").write_text("in the way")
    with EntryWriter(tmp_path / "file", key) as entry:
        entry.tables.write_rank(b"{}")
        made = entry.commit()

    assert "Cannot write to the cache" in entry.note
    with open_tables(made) as file:
        assert file.rank() == b"{}"
    assert is_temporary(str(made))
    assert not is_temporary(str(tmp_path))


def test_the_cache_lies_where_asked_else_beside_the_run_else_at_home(tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.setenv("DISTPROF_CACHE_DIR", str(tmp_path / "env"))

    assert cache_root(run, None) == tmp_path / "env"
    (run / "run.json").write_text("{}")
    assert cache_root(run, None) == run / "cache"
    assert cache_root(run, tmp_path / "asked") == tmp_path / "asked"

    monkeypatch.delenv("DISTPROF_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root(None, None) == tmp_path / "xdg" / "distprof"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root(None, None) == Path.home() / ".cache" / "distprof"


@pytest.mark.parametrize("what", ["device", "pipe", "link"])
def test_an_entry_that_leads_elsewhere_is_not_opened(tmp_path, key, what):
    """A run directory brings its own cache, and may come from somebody else."""
    entry = make_entry(tmp_path, key)
    kept = entry.rename(tmp_path / "kept")
    if what == "pipe":
        os.mkfifo(entry)
    else:
        entry.symlink_to("/dev/zero" if what == "device" else kept)

    assert find_entry(tmp_path, key) is None
    again = make_entry(tmp_path, key, names=("c",))
    assert find_entry(tmp_path, key) == again
    assert kept.exists()


@pytest.mark.parametrize("how", ["moved", "copied", "swapped"])
def test_an_entry_of_another_trace_is_not_believed(tmp_path, key, how):
    """It is whole, and the user's own; its place says that it belongs to another trace."""
    other = CacheKey.of(io.BytesIO(b"another trace"), {"rows": "all"})
    mine, its = make_entry(tmp_path, key), make_entry(tmp_path, other, names=("other",))
    if how == "swapped":
        mine.rename(tmp_path / "between")
        its.rename(mine)
        (tmp_path / "between").rename(its)
    elif how == "moved":
        its.rename(mine)
    else:
        shutil.copy(its, mine)

    assert find_entry(tmp_path, key) is None
    again = make_entry(tmp_path, key)
    assert find_entry(tmp_path, key) == again
    assert CachedTables(str(again), has_host=True).load().host.coded("name").decode() == ["a", "b"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_an_entry_of_another_user_is_not_believed(tmp_path, key):
    entry = make_entry(tmp_path, key)
    os.chown(entry, 12345, -1)
    assert find_entry(tmp_path, key) is None
    os.chown(tmp_path, 12345, -1)  # whose cache it is, may fill it
    assert find_entry(tmp_path, key) == entry


@pytest.mark.skipif(os.name == "nt", reason="modes")
def test_an_entry_that_everybody_may_write_is_not_believed(tmp_path, key):
    entry = make_entry(tmp_path, key)
    entry.chmod(0o666)
    assert find_entry(tmp_path, key) is None
    again = make_entry(tmp_path, key, names=("c",))
    assert find_entry(tmp_path, key) == again


@pytest.mark.parametrize("is_folder", [False, True])
def test_where_a_foreign_entry_cannot_be_replaced_the_run_is_not_cached(
    tmp_path, key, is_folder, monkeypatch
):
    entry = make_entry(tmp_path, key)
    if is_folder:
        entry.unlink()
        (entry / "other").mkdir(parents=True)
    else:
        entry.chmod(0o666)

    def refuse(path, **_):
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with EntryWriter(tmp_path, key) as writer:
        writer.tables.write_rank(b"{}")
        assert writer.commit() != entry
    assert "(Operation not permitted): this run is not cached" in writer.note


def damages_and_makes(root, key, rounds):
    """What a process does that meets a damaged entry, again and again."""
    for _ in range(rounds):
        with contextlib.suppress(OSError):
            key.path(root).write_text("damaged")
        assert make_entry(root, key) == key.path(root)


def test_processes_that_repair_one_entry_at_a_time_do_not_fail(tmp_path, key):
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=damages_and_makes, args=(tmp_path, key, 40)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert find_entry(tmp_path, key) is not None or make_entry(tmp_path, key)
    assert list(key.path(tmp_path).parent.iterdir()) == [key.path(tmp_path)]
