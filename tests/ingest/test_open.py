"""From files to a Run, on real traces."""

import errno
import gzip
import json
import os
import pickle
import shutil
from pathlib import Path

import fsspec
import pytest
from msgspec.structs import replace

from distprof.config import CommunicationConfig, NamePattern
from distprof.errors import InputError
from distprof.ingest import cache as entries
from distprof.ingest import rank
from distprof.ingest.cache import CachedTables, EntryWriter, HeldTables
from distprof.ingest.discovery import TraceFile
from distprof.ingest.open import open_run
from distprof.ingest.rank import IngestOptions
from distprof.ingest.tables_file import Part
from distprof.intervals import intersect, total, union
from distprof.run.tables import intervals_of
from distprof.terms import ActivityKind, Origin, StepSource
from distprof.terms import CollectiveKind as Kind

GOLDEN = Path(__file__).parents[1] / "golden" / "kineto"
GLOO = GOLDEN / "gloo-ddp-2ranks"
DLRM = GOLDEN / "dlrm-v100-8gpu"


@pytest.fixture
def options(tmp_path):
    return IngestOptions(cache_dir=str(tmp_path / "cache"))


def busy_ns(loaded, kind):
    return union(intervals_of(loaded.activity.take(loaded.activity["kind"] == kind)))


def communication_and_overlap_ms(opened):
    loaded = opened.tables.load()
    communication = busy_ns(loaded, ActivityKind.COMMUNICATION)
    computation = busy_ns(loaded, ActivityKind.COMPUTATION)
    return total(communication) / 1e6, total(intersect(communication, computation)) / 1e6


def test_devices_missing_from_a_cut_file_are_not_blamed_on_the_profiler(options, tmp_path):
    whole = gzip.decompress((GOLDEN / "ddp-a100-2gpu-rank0" / "nccl_data.json.gz").read_bytes())
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[:3_000_000])  # host rows come first
    (opened,) = open_run(str(cut), options).ranks
    note = opened.quality.no_device
    assert "the trace lists 8 × NVIDIA A100" in note
    assert "may be in the missing part of the file" in note


def fill_disk(monkeypatch, *, below):
    """From now on no table can be written below a folder."""

    class Writer(EntryWriter):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            if self.path.is_relative_to(below):
                self.tables.write_table = self.fail

        def fail(self, *_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rank, "EntryWriter", Writer)


def test_a_full_cache_costs_no_rank(options, tmp_path, monkeypatch):
    fill_disk(monkeypatch, below=tmp_path / "cache")
    run = open_run(str(GLOO), options, executor="serial")
    assert len(run) == 2
    assert all("No space left on device" in rank.quality.notes[-1] for rank in run)
    assert len(run.ranks[0].tables.load().activity) > 0


def test_a_cache_that_others_clear_costs_no_rank(options, tmp_path, monkeypatch):
    class Writer(EntryWriter):
        def commit(self):
            if self.path.is_relative_to(tmp_path / "cache"):
                self.path.unlink()
            return super().commit()

    monkeypatch.setattr(rank, "EntryWriter", Writer)
    run = open_run(str(GLOO), options, executor="serial")
    assert len(run) == 2
    assert all("this run is not cached" in rank.quality.notes[-1] for rank in run)
    assert len(run.ranks[0].tables.load().activity) > 0


def test_no_room_anywhere_is_a_sentence_with_a_way_out(options, monkeypatch):
    fill_disk(monkeypatch, below="/")
    with pytest.raises(InputError, match="disk space") as caught:
        open_run(str(GLOO), options, executor="serial")
    assert "--cache-dir" in caught.value.fix


def test_two_cpu_ranks_give_what_their_script_did(options):
    """Four all-reduces of 65,792 floats and a barrier in each of three steps."""
    run = open_run(str(GLOO), options)
    assert [(r.rank, r.rank_origin, r.device.name) for r in run] == [
        (0, "trace", "cpu"),
        (1, "trace", "cpu"),
    ]
    assert run.topology.world_size == 2
    for opened in run:
        table = opened.collectives
        assert table["kind"].tolist().count(Kind.ALL_REDUCE) == 12
        assert table["kind"].tolist().count(Kind.BARRIER) == 3
        sizes = table["bytes"][table["kind"] == Kind.ALL_REDUCE]
        assert set(sizes.tolist()) == {263168}
        assert (table["enqueue_ns"] > 0).all()
        assert (table["enqueue_ns"] <= table["start_ns"]).all()
        assert opened.steps["step"].tolist() == [2, 3, 4]
        assert opened.step_source is StepSource.PROFILER_STEP
    assert run.matches.count == 15
    assert run.matches.matched_ratio == 1


def test_four_of_eight_ranks_match_and_say_who_is_missing(options):
    run = open_run(str(DLRM), options)
    assert [r.rank for r in run] == [0, 1, 2, 3]
    assert [len(r.collectives) for r in run] == [8, 8, 8, 8]
    assert {gap.what: gap.ranks for gap in run.gaps}["missing-ranks"] == (4, 5, 6, 7)
    first = run.rank(0).collectives
    assert first["kind"].tolist().count(Kind.ALL_TO_ALL) == 5
    assert (first["kind_origin"] == Origin.DERIVED).all()
    assert (first["bytes"] > 0).all()
    for opened, (communication, overlap) in zip(
        run, [(5.80, 0.26), (11.34, 0.28), (3.49, 0.27), (9.77, 0.32)], strict=True
    ):
        assert communication_and_overlap_ms(opened) == pytest.approx(
            (communication, overlap), abs=0.006
        )


def test_nccl_arguments_reach_the_records(options):
    (opened,) = open_run(str(GOLDEN / "ddp-a100-2gpu-rank0"), options)
    table = opened.collectives
    assert table["kind"].tolist().count(Kind.ALL_REDUCE) == 15
    assert table["kind"].tolist().count(Kind.BROADCAST) == 6
    assert (table["bytes_origin"] == Origin.MEASURED).all()
    assert set(table.coded("group_ranks").decode()) == {"0-1"}
    assert opened.versions["nccl"] == "2.17.1"
    assert communication_and_overlap_ms(opened) == pytest.approx((46.88, 7.32), abs=0.006)


def test_symmetric_memory_is_communication(options):
    (opened,) = open_run(str(GOLDEN / "tp8-b200-rank0"), options)
    assert len(opened.collectives) == 74
    assert opened.collectives["kind"].tolist().count(Kind.ALL_REDUCE) == 73
    assert (opened.collectives["bytes"] > 0).all()
    assert communication_and_overlap_ms(opened) == pytest.approx((2.14, 0), abs=0.006)


def test_broken_json_of_torch_is_mended(options):
    (opened,) = open_run(str(GOLDEN / "torch213-bad-quote"), options)
    assert opened.quality.num_repaired > 0
    names = opened.tables.load().host.coded("name").values
    assert 'load "train" split' in names
    with pytest.raises(InputError):
        open_run(str(GOLDEN / "torch213-bad-quote"), IngestOptions(strict=True, use_cache=False))


def test_device_rows_alone_give_the_same_communication(options):
    source = str(GOLDEN / "ddp-a100-2gpu-rank0")
    (whole,) = open_run(source, options)
    (device,) = open_run(source, IngestOptions(rows="device", cache_dir=options.cache_dir))
    for name in ("start_ns", "end_ns", "kind", "bytes", "group_size"):
        assert device.collectives[name].tolist() == whole.collectives[name].tolist()
    assert not device.tables.load().has_host
    assert whole.tables.load().has_host


def test_device_rows_of_a_cpu_trace_are_what_the_host_did(options):
    device = open_run(str(GLOO), IngestOptions(rows="device", cache_dir=options.cache_dir))
    assert [len(r.collectives) for r in device] == [15, 15]
    assert device.rank(0).tables.load().has_host


def test_a_warm_cache_parses_nothing_and_says_the_same(options, monkeypatch):
    cold = open_run(str(GLOO), options)
    monkeypatch.setattr(rank, "read_trace", None)
    warm = open_run(str(GLOO), options)
    for before, after in zip(cold, warm, strict=True):
        assert before.collectives["start_ns"].tolist() == after.collectives["start_ns"].tolist()
        for name in ("rank", "path", "groups", "device", "versions", "quality", "step_note"):
            assert getattr(before, name) == getattr(after, name)


def test_a_trace_alone_is_measured_from_memory_and_says_the_same(options, monkeypatch):
    source = str(GOLDEN / "ddp-a100-2gpu-rank0")
    (alone,) = open_run(source, options).ranks
    (cached,) = open_run(source, options).ranks
    same_tables(alone, cached)
    monkeypatch.setattr(entries, "open_tables", None)
    assert len(alone.tables.load().activity) > 0
    with pytest.raises(TypeError):
        cached.tables.load()


def test_of_several_traces_one_at_a_time_is_in_memory(options):
    for opened in open_run(str(GLOO), options):
        assert set(opened.tables.held) == {Part.STEPS, Part.COLLECTIVES}


def test_other_patterns_do_not_find_the_tables_of_the_first(options):
    source = str(GOLDEN / "mi250-1gpu")
    (plain,) = open_run(source, options)
    assert len(plain.collectives) == 0
    own = CommunicationConfig(patterns=(NamePattern(match="Cijk_", kind=Kind.ALL_REDUCE.label),))
    (changed,) = open_run(source, IngestOptions(cache_dir=options.cache_dir, communication=own))
    assert len(changed.collectives) > 0


def test_a_damaged_cache_entry_is_made_again(options):
    open_run(str(GLOO), options)
    for path in Path(options.cache_dir).rglob("*.tables"):
        path.write_bytes(b"{")
    assert len(open_run(str(GLOO), options)) == 2


def test_without_the_cache_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTPROF_CACHE_DIR", str(tmp_path / "usual"))
    monkeypatch.setattr("distprof.ingest.open.IN_MEMORY_BYTES", 1_000)
    run = open_run(str(GLOO), IngestOptions(use_cache=False))
    assert len(run.rank(0).tables.load().activity) > 0
    assert not (tmp_path / "usual").exists()


@pytest.mark.parametrize(("most", "held"), [(1_000_000, HeldTables), (1_000, CachedTables)])
def test_without_the_cache_a_trace_alone_stays_in_memory(options, monkeypatch, most, held):
    monkeypatch.setattr("distprof.ingest.open.IN_MEMORY_BYTES", 1_000)
    monkeypatch.setattr("distprof.ingest.open.ALONE_IN_MEMORY_BYTES", most)
    source = str(GOLDEN / "ddp-a100-2gpu-rank0")
    (alone,) = open_run(source, IngestOptions(use_cache=False)).ranks
    assert type(alone.tables) is held
    (cached,) = open_run(source, options).ranks
    same_tables(alone, cached)
    assert {type(one.tables) for one in open_run(str(GLOO), IngestOptions(use_cache=False))} == {
        CachedTables
    }


def test_a_run_directory_keeps_its_own_cache(tmp_path, monkeypatch):
    for number in range(2):
        folder = tmp_path / f"rank{number:05d}"
        folder.mkdir()
        shutil.copy(GLOO / f"rank-{number}.pt.trace.json.gz", folder / "trace.json.gz")
    (tmp_path / "run.json").write_text("{}")
    monkeypatch.setattr("distprof.ingest.open.IN_MEMORY_BYTES", 1_000)
    assert len(open_run(str(tmp_path))) == 2
    assert list((tmp_path / "cache").rglob("*.tables"))
    assert len(open_run(str(tmp_path))) == 2


@pytest.fixture
def usual_place(tmp_path, monkeypatch):
    """The cache of somebody who names none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "distprof"


def same_tables(one, other):
    for every in (False, True):
        first, second = (rank.tables.load(every_host_row=every) for rank in (one, other))
        for name in ("activity", "host", "collectives", "steps"):
            a, b = getattr(first, name), getattr(second, name)
            for column in a.schema:
                if column.dtype == "category":
                    assert a.coded(column.name).decode() == b.coded(column.name).decode()
                else:
                    assert a[column.name].tolist() == b[column.name].tolist()
        assert first.has_host == second.has_host


@pytest.mark.parametrize("rows", ["all", "device"])
@pytest.mark.parametrize("name", ["gloo-ddp-2ranks", "dlrm-v100-8gpu", "mi210-gpu-only"])
def test_small_traces_stay_in_memory_and_say_the_same(name, rows, options, usual_place):
    small = open_run(str(GOLDEN / name), IngestOptions(rows=rows))
    cached = open_run(str(GOLDEN / name), replace(options, rows=rows))
    assert not usual_place.exists()
    assert {type(rank.tables) for rank in small.ranks} == {HeldTables}
    assert {type(rank.tables) for rank in cached.ranks} == {CachedTables}
    for one, other in zip(small.ranks, cached.ranks, strict=True):
        same_tables(one, other)
        summaries = [
            replace(rank, tables=None, steps=None, collectives=None) for rank in (one, other)
        ]
        assert summaries[0] == summaries[1]


def test_larger_traces_are_cached_in_the_usual_place(usual_place, monkeypatch):
    monkeypatch.setattr("distprof.ingest.open.IN_MEMORY_BYTES", 1_000)
    opened = open_run(str(GLOO))
    assert {type(rank.tables) for rank in opened.ranks} == {CachedTables}
    assert len(list(usual_place.rglob("*.tables"))) == 2


def test_a_small_file_that_unpacks_to_many_rows_is_cached(usual_place, monkeypatch):
    monkeypatch.setattr(entries, "MOST_HELD_ROWS", 10)
    opened = open_run(str(GLOO))
    assert {type(rank.tables) for rank in opened.ranks} == {CachedTables}


@pytest.mark.parametrize("executor", ["process:2", "serial"])
def test_other_processes_find_tables_in_the_cache(executor, usual_place):
    opened = open_run(str(GLOO), executor=executor)
    held = {type(rank.tables) for rank in opened.ranks} == {HeldTables}
    assert held == (executor == "serial")
    assert held != usual_place.exists()


@pytest.mark.parametrize("executor", ["process:2", "serial"])
def test_collectives_are_in_memory_once(executor, usual_place, monkeypatch):
    """Parsed, read from the cache, and sent by another process."""
    monkeypatch.setattr(entries, "MOST_HELD_ROWS", 10)
    for _ in range(2):
        for one in open_run(str(GLOO), executor=executor):
            assert one.tables.held[Part.COLLECTIVES] is one.collectives


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_small_file_without_permission_is_named(usual_place, tmp_path):
    locked = tmp_path / "trace.json"
    locked.write_text("{}")
    locked.chmod(0)
    with pytest.raises(InputError, match="check the name and your permissions"):
        open_run(str(locked))


def test_a_small_file_that_vanishes_is_named(usual_place, tmp_path):
    gone = TraceFile(path=str(tmp_path / "gone.json"), size_bytes=10)
    with pytest.raises(InputError, match=r"gone\.json(?s:.)*check the name and your permissions"):
        rank.ingest_rank(gone, IngestOptions(in_memory=True))


def test_a_rank_that_cannot_be_read_costs_that_rank_only(tmp_path, options):
    shutil.copytree(GLOO, tmp_path / "run")
    damaged = tmp_path / "run" / "rank-1.pt.trace.json.gz"
    damaged.write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": "none"}'))
    run = open_run(str(tmp_path / "run"), options)
    assert [r.rank for r in run] == [0]
    gap = next(gap for gap in run.gaps if gap.what == "unreadable")
    assert gap.ranks == (1,)
    assert "rank-1.pt.trace.json.gz" in gap.message
    with pytest.raises(InputError):
        open_run(str(tmp_path / "run"), IngestOptions(strict=True, use_cache=False))


def test_when_no_trace_can_be_read_the_first_error_is_told(tmp_path, options):
    for number in range(2):
        (tmp_path / f"rank{number}.json").write_text('{"traceEvents": 3}')
    with pytest.raises(InputError, match="rank0"):
        open_run(str(tmp_path), options)


def test_a_url_is_read_like_a_file(options):
    memory = fsspec.filesystem("memory")
    for number in range(2):
        memory.pipe(
            f"/gloo/rank{number}.json.gz",
            (GLOO / f"rank-{number}.pt.trace.json.gz").read_bytes(),
        )
    try:
        run = open_run("memory://gloo", options)
    finally:
        memory.rm("/gloo", recursive=True)
    assert [len(r.collectives) for r in run] == [15, 15]
    assert run.rank(1).path == "memory:///gloo/rank1.json.gz"


def test_worker_processes_give_the_same_run(options):
    told = []
    run = open_run(
        str(DLRM), options, executor="process:2", progress=lambda done, total: told.append(done)
    )
    assert [len(r.collectives) for r in run] == [8, 8, 8, 8]
    assert told == [1, 2, 3, 4]


def test_ranks_left_out_as_asked_are_not_missing_and_absent_ones_are_told(options):
    run = open_run(str(DLRM), options, ranks=range(1, 6))
    gaps = {gap.what: gap for gap in run.gaps}
    assert "missing-ranks" not in gaps
    assert gaps["chosen-ranks"].message == (
        "Only ranks 1-3 are read, as requested. There is no trace of ranks 4-5."
    )
    assert gaps["chosen-ranks"].ranks == (4, 5)


def test_only_some_ranks_are_read(options):
    assert [r.rank for r in open_run(str(DLRM), options, ranks=(1, 3))] == [1, 3]
    with pytest.raises(InputError, match="rank 9"):
        open_run(str(DLRM), options, ranks=(9,))


def test_a_rank_is_small_and_crosses_process_boundaries(options):
    opened = open_run(str(GLOO), options).rank(1)
    copy = pickle.loads(pickle.dumps(opened))
    assert copy.collectives["start_ns"].tolist() == opened.collectives["start_ns"].tolist()
    assert len(copy.tables.load().activity) == len(opened.tables.load().activity)


def test_launches_missing_from_the_trace_are_counted(tmp_path, options):
    """A kernel whose runtime call was recorded, and one whose call was not."""
    events = [
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": 1,
            "dur": 1,
            "args": {"correlation": 5},
        },
        *(
            {
                "ph": "X",
                "cat": "kernel",
                "name": "k",
                "pid": 0,
                "tid": 7,
                "ts": 10 * n,
                "dur": 5,
                "args": {"correlation": n, "stream": 7, "device": 0},
            }
            for n in (5, 6)
        ),
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert open_run(str(path), options).rank(0).quality.num_unlaunched == 1
