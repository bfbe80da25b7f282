import contextlib
import errno
import io
import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from distprof.artefacts.cache_place import cache_root
from distprof.ingest.cache import (
    ACTIVITY_FILE,
    CALLS_FILE,
    COLLECTIVES_FILE,
    HOST_FILE,
    RANK_FILE,
    STEPS_FILE,
    CachedTables,
    CacheKey,
    DamagedCacheError,
    EntryWriter,
    ParquetHostSink,
    find_entry,
    is_temporary,
    read_table,
    write_table,
)
from distprof.ingest.kineto.reader import read_trace
from distprof.run.tables import ACTIVITY, COLLECTIVES, HOST, STEPS
from distprof.schema import Coded, Table
from tests.ingest.kineto.traces import rows_of

TRACE = (
    Path(__file__).parents[1] / "golden/kineto/ddp-a100-2gpu-rank0/nccl_data.json.gz"
)  # fmt: skip


def host_table(names, first_ns=1000):
    count = len(names)
    start = np.arange(count, dtype=np.int64) * 10 + first_ns
    return Table(
        HOST,
        {
            "start_ns": start,
            "end_ns": start + 5,
            "name": Coded.encode(names),
            "category": Coded.encode(["cpu_op"] * count),
            "thread": Coded.encode(["1/2"] * count),
            "correlation": np.full(count, -1, np.int64),
        },
    )


def make_entry(root, key, names=("a", "b")):
    with EntryWriter(root, key) as entry:
        write_table(entry.folder / CALLS_FILE, host_table(names))
        write_table(entry.folder / HOST_FILE, host_table(names))
        write_table(entry.folder / ACTIVITY_FILE, Table.empty(ACTIVITY))
        write_table(entry.folder / COLLECTIVES_FILE, Table.empty(COLLECTIVES))
        write_table(entry.folder / STEPS_FILE, Table.empty(STEPS))
        (entry.folder / RANK_FILE).write_text("{}")
        return entry.commit()


@pytest.fixture
def key():
    return CacheKey.of(io.BytesIO(b"trace"), {"rows": "all"})


def test_tables_survive_a_round_trip(tmp_path):
    parsed = read_trace(TRACE)
    for name, table in (("a", parsed.activity), ("h", parsed.host)):
        write_table(tmp_path / name, table)
        assert rows_of(read_table(tmp_path / name, table.schema)) == rows_of(table)


@pytest.mark.parametrize("schema", [ACTIVITY, HOST, COLLECTIVES, STEPS], ids=lambda s: s.name)
def test_empty_tables_survive_a_round_trip(schema, tmp_path):
    write_table(tmp_path / "t", Table.empty(schema))

    assert len(read_table(tmp_path / "t", schema)) == 0


def test_rows_written_piecewise_are_read_whole_and_shifted(tmp_path, monkeypatch):
    monkeypatch.setattr("distprof.ingest.cache._ROW_GROUP", 4)
    with ParquetHostSink(tmp_path / "host") as sink:
        for start in range(10):
            sink.write(host_table([f"n{start}", "same", f"n{start + 1}"], first_ns=start))
        sink.shift(10**18)
    table = read_table(tmp_path / "host", HOST)

    assert table.coded("name").decode()[:6] == ["n0", "same", "n1", "n1", "same", "n2"]
    assert len(table) == 30
    assert table["start_ns"][:4].tolist() == [10**18, 10**18 + 10, 10**18 + 20, 10**18 + 1]
    assert len(set(table.coded("name").values)) == len(table.coded("name").values) == 12


@pytest.mark.parametrize("num_writes", [1, 5])
def test_rows_that_cannot_be_written_are_an_error_of_the_writer(num_writes, tmp_path, monkeypatch):
    """Row groups are written by a thread, whose error must not be lost, at the next or the end."""

    def write(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("distprof.ingest.cache._ROW_GROUP", 2)
    monkeypatch.setattr(ParquetHostSink, "_write_group", write)

    def fill():
        with ParquetHostSink(tmp_path / "host") as sink:
            for _ in range(num_writes):
                sink.write(host_table(["a", "b", "c"]))

    with pytest.raises(OSError, match="No space") as error:
        fill()
    assert error.value.errno == errno.ENOSPC
    assert not [t for t in threading.enumerate() if t.name.startswith("distprof-write")]


def test_a_sink_without_rows_gives_an_empty_table(tmp_path):
    with ParquetHostSink(tmp_path / "host"):
        pass

    assert len(read_table(tmp_path / "host", HOST)) == 0


def test_a_trace_read_into_a_sink_equals_a_trace_read_whole(tmp_path):
    with ParquetHostSink(tmp_path / "host") as sink:
        read_trace(TRACE, host_sink=sink)

    assert rows_of(read_table(tmp_path / "host", HOST)) == rows_of(read_trace(TRACE).host)


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
    folder = make_entry(tmp_path, key)

    assert find_entry(tmp_path, key) == folder
    tables = CachedTables(str(folder), has_host=True).load()
    assert tables.host.coded("name").decode() == ["a", "b"]
    assert len(CachedTables(str(folder), has_host=False).load().host) == 0
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_an_entry_without_commit_leaves_nothing(tmp_path, key):
    with EntryWriter(tmp_path, key) as entry:
        (entry.folder / RANK_FILE).write_text("{}")

    assert find_entry(tmp_path, key) is None
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("name", [HOST_FILE, RANK_FILE, ACTIVITY_FILE])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_entry_is_not_found_and_is_made_again(tmp_path, key, name, damage):
    folder = make_entry(tmp_path, key)
    file = folder / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(data if damage == "flip" else data[:-1])

    assert find_entry(tmp_path, key) is None
    again = make_entry(tmp_path, key, names=("c",))
    assert find_entry(tmp_path, key) == again
    assert CachedTables(str(again), has_host=True).load().host.coded("name").decode() == ["c"]


def test_what_a_killed_process_left_half_made_goes_after_a_day(tmp_path, key):
    parent = key.folder(tmp_path).parent
    for name, age_s in ((".making-old", 100_000), (".making-new", 100)):
        (parent / name).mkdir(parents=True)
        (parent / name / RANK_FILE).touch()
        os.utime(parent / name, (time.time() - age_s,) * 2)
    with EntryWriter(tmp_path, key):
        pass
    assert [path.name for path in parent.iterdir()] == [".making-new"]


def test_the_first_of_two_writers_of_one_entry_wins(tmp_path, key):
    with EntryWriter(tmp_path, key) as late:
        first = make_entry(tmp_path, key)
        (late.folder / RANK_FILE).write_text("{}")
        assert late.commit() == first

    assert (first / HOST_FILE).exists()
    assert [path.name for path in first.parent.iterdir()] == [first.name]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"PAR1" * 100])
def test_reading_a_damaged_table_says_so(tmp_path, content):
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(DamagedCacheError, match="cannot read the cached table"):
        read_table(tmp_path / "t", HOST)
    with pytest.raises(DamagedCacheError):
        read_table(tmp_path / "none", HOST)


def test_a_table_of_another_schema_is_refused(tmp_path):
    write_table(tmp_path / "t", Table.empty(STEPS))
    with pytest.raises(DamagedCacheError):
        read_table(tmp_path / "t", HOST)


def test_a_cache_that_cannot_be_written_gives_way_to_a_temporary_folder(tmp_path, key, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "file").write_text("in the way")
    folder = None
    with EntryWriter(tmp_path / "file", key) as entry:
        (entry.folder / RANK_FILE).write_text("{}")
        folder = entry.commit()

    assert "Cannot write to the cache" in entry.note
    assert (folder / RANK_FILE).exists()
    assert is_temporary(str(folder))
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


@pytest.mark.parametrize("what", ["device", "pipe", "link", "outside"])
def test_an_entry_that_leads_elsewhere_is_not_opened(tmp_path, key, what):
    """A run directory brings its own cache, and may come from somebody else."""
    folder = make_entry(tmp_path, key)
    contents = json.loads((folder / "entry.json").read_bytes())
    sums = contents["files"]
    file = folder / HOST_FILE
    if what == "outside":
        other = tmp_path / "other"
        other.write_bytes(b"secret")
        sums["../../other"] = [6, zlib.crc32(b"secret")]
    else:
        kept = file.rename(tmp_path / "kept")
        if what == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to("/dev/zero" if what == "device" else kept)
    (folder / "entry.json").write_text(json.dumps(contents))

    assert find_entry(tmp_path, key) is None
    again = make_entry(tmp_path, key, names=("c",))
    assert find_entry(tmp_path, key) == again


@pytest.mark.parametrize("how", ["moved", "copied", "swapped"])
def test_an_entry_of_another_trace_is_not_believed(tmp_path, key, how):
    """It is whole, and the user's own; its place says that it belongs to another trace."""
    other = CacheKey.of(io.BytesIO(b"another trace"), {"rows": "all"})
    mine, its = make_entry(tmp_path, key), make_entry(tmp_path, other, names=("other",))
    if how == "swapped":
        mine.rename(tmp_path / "between")
        its.rename(mine)
        (tmp_path / "between").rename(its)
    else:
        shutil.rmtree(mine)
        shutil.copytree(its, mine)
        if how == "moved":
            shutil.rmtree(its)

    assert find_entry(tmp_path, key) is None
    again = make_entry(tmp_path, key)
    assert find_entry(tmp_path, key) == again
    assert CachedTables(str(again), has_host=True).load().host.coded("name").decode() == ["a", "b"]


def test_sums_without_end_are_not_read(tmp_path, key):
    folder = make_entry(tmp_path, key)
    (folder / "entry.json").unlink()
    (folder / "entry.json").symlink_to("/dev/zero")
    assert find_entry(tmp_path, key) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_an_entry_of_another_user_is_not_believed(tmp_path, key):
    folder = make_entry(tmp_path, key)
    os.chown(folder, 12345, -1)
    assert find_entry(tmp_path, key) is None
    os.chown(tmp_path, 12345, -1)  # whose cache it is, may fill it
    assert find_entry(tmp_path, key) == folder


@pytest.mark.skipif(os.name == "nt", reason="modes")
def test_an_entry_that_everybody_may_write_is_not_believed(tmp_path, key):
    folder = make_entry(tmp_path, key)
    folder.chmod(0o777)
    assert find_entry(tmp_path, key) is None
    again = make_entry(tmp_path, key, names=("c",))
    assert find_entry(tmp_path, key) == again


def test_where_a_foreign_entry_cannot_be_replaced_the_run_is_not_cached(tmp_path, key, monkeypatch):
    folder = make_entry(tmp_path, key)
    folder.chmod(0o777)

    def rename(*_):
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with EntryWriter(tmp_path, key) as entry:
        (entry.folder / RANK_FILE).write_text("{}")
        assert entry.commit() != folder
    assert "(Operation not permitted): this run is not cached" in entry.note


def damages_and_makes(root, key, rounds):
    """What a process does that meets a damaged entry, again and again."""
    for _ in range(rounds):
        with contextlib.suppress(OSError):
            (key.folder(root) / RANK_FILE).write_text("damaged")
        made = make_entry(root, key)
        assert made == key.folder(root)


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
    parent = key.folder(tmp_path).parent
    assert [path.name for path in parent.iterdir()] == [key.folder(tmp_path).name]
