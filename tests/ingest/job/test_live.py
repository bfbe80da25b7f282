"""A run directory that is looked at while its job writes: each record counts once, whole."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts import STEPS_FILE
from distprof.artefacts.records import Header, MemoryRecord, NvmlRecord, Phase, StepRecord
from distprof.errors import InputError
from distprof.ingest.job import growing
from distprof.ingest.job.growing import GrowingFile, LiveRun
from tests.job_folders import MS, START_NS, JobFolder

GOLDEN = Path(__file__).parents[2] / "golden" / "job" / "nccl-fsdp-2ranks-h100"
HEADER = msgspec.json.encode(Header(schema="distprof.steps/1", rank=0)) + b"\n"


def line(step: int, ms: float = 10, **fields) -> bytes:
    start = START_NS + step * 100 * MS
    record = StepRecord(step=step, start_ns=start, end_ns=start + round(ms * MS), **fields)
    return msgspec.json.encode(record) + b"\n"


@pytest.fixture
def job(tmp_path):
    folder = JobFolder(tmp_path / "run", mesh={"dp_replicate": 2})
    folder.steps(0, [10, 12]).write()
    return folder


def steps_file(job: JobFolder, rank: int = 0) -> Path:
    return job.rank_dir(rank) / STEPS_FILE


def test_what_was_added_since_is_added(job):
    run = LiveRun(str(job.path))
    assert run.ranks == {}
    run.look()
    assert (run.ranks[0].num_steps, run.ranks[0].steps_ns) == (2, 22 * MS)
    run.look()
    assert run.ranks[0].num_steps == 2
    with steps_file(job).open("ab") as stream:
        stream.write(line(2, 20, tokens=512, loss=1.5))
    run.look()
    rank = run.ranks[0]
    assert (rank.num_steps, rank.steps_ns, rank.tokens) == (3, 42 * MS, 512)
    assert rank.last.loss == 1.5
    assert list(rank.recent_ns) == [10 * MS, 12 * MS, 20 * MS]


@given(cuts=st.lists(st.integers(0, 600), max_size=6))
def test_a_line_counts_when_its_end_is_there_and_once(tmp_path_factory, cuts):
    """The writer's buffer may end anywhere, inside a line too."""
    folder = tmp_path_factory.mktemp("run")
    whole = HEADER + b"".join(line(step) for step in range(5))
    file, found = folder / "steps.jsonl", []
    tail = GrowingFile(file, "distprof.steps/1", StepRecord, 0, whole=True)
    for end in (*sorted(cuts), len(whole)):
        file.write_bytes(whole[:end]) if not file.exists() else _append(file, whole, end)
        found += [record.step for record in tail.added()]
        assert found == list(range(max(0, whole[:end].count(b"\n") - 1)))
    assert tail.num_bad == 0


def _append(file: Path, whole: bytes, end: int) -> None:
    with file.open("ab") as stream:
        stream.write(whole[file.stat().st_size : end])


def test_a_rank_that_appears_later_is_found(job):
    run = LiveRun(str(job.path))
    run.look()
    job.steps(1, [10])
    run.look()
    assert [run.ranks[rank].num_steps for rank in sorted(run.ranks)] == [2, 1]


def test_another_job_in_the_same_place_begins_anew(job):
    """Counters of Prometheus may fall to 0; going on from the old ones would be wrong."""
    run = LiveRun(str(job.path))
    run.look()
    steps_file(job).unlink()
    steps_file(job).write_bytes(HEADER + line(0, 5))
    run.look()
    assert (run.ranks[0].num_steps, run.ranks[0].steps_ns) == (1, 5 * MS)


def test_a_file_that_was_cut_begins_anew(job):
    run = LiveRun(str(job.path))
    run.look()
    with steps_file(job).open("r+b") as stream:
        stream.truncate(len(HEADER))
    run.look()
    assert run.ranks[0].num_steps == 0


def test_damage_costs_its_line_and_is_counted(job):
    with steps_file(job).open("ab") as stream:
        stream.write(b"\xff{nonsense\n[]\n" + line(2, 30))
        stream.write(line(3, -5))  # ends before it starts
    run = LiveRun(str(job.path))
    run.look()
    assert (run.ranks[0].num_steps, run.ranks[0].num_bad) == (3, 3)


def test_a_line_without_end_takes_no_memory(job, monkeypatch):
    monkeypatch.setattr(growing, "MAX_LINE_BYTES", 1_000)
    run = LiveRun(str(job.path))
    run.look()
    with steps_file(job).open("ab") as stream:
        stream.write(b"x" * 5_000)
    for _ in range(3):
        run.look()
        assert len(run._files[0]["steps"]._rest) < 1_000
    with steps_file(job).open("ab") as stream:
        stream.write(b"\n" + line(2))
    run.look()
    assert run.ranks[0].num_steps == 3


def test_a_long_file_is_read_in_parts(job, monkeypatch):
    monkeypatch.setattr(growing, "WHOLE_BYTES_PER_LOOK", 30)
    run = LiveRun(str(job.path))
    looks = 0
    while not run.ranks or run.ranks[0].num_steps < 2:
        run.look()
        looks += 1
        assert looks < 50
    assert looks > 3


def test_a_file_of_another_kind_is_no_step_log(job):
    steps_file(job).write_bytes(HEADER.replace(b"steps", b"other") + line(0))
    run = LiveRun(str(job.path))
    run.look()
    assert run.ranks[0].num_steps == 0


def test_memory_and_sensors_are_the_last_ones_and_phases_have_few_names(job):
    job.memory(0, *(MemoryRecord(step=i, t_ns=i, rss_bytes=i) for i in range(3)))
    job.nvml(0, NvmlRecord(t_ns=1, power_w=300.0), NvmlRecord(t_ns=2, power_w=310.0))
    phases = [Phase(f"mine {i}", START_NS, START_NS + MS) for i in range(50)]
    phases.append(Phase("forward", START_NS, START_NS + 2 * MS))
    with steps_file(job).open("ab") as stream:
        stream.write(line(2, 100, phases=tuple(phases)))
    run = LiveRun(str(job.path))
    run.look()
    rank = run.ranks[0]
    assert (rank.memory.rss_bytes, rank.sensors.power_w) == (2, 310.0)
    assert rank.phases_ns == {"other": 50 * MS, "forward": 2 * MS}


def test_the_directory_may_vanish_and_come_back(job, tmp_path):
    run = LiveRun(str(job.path))
    run.look()
    job.path.rename(tmp_path / "away")
    run.look()
    assert run.ranks[0].num_steps == 2
    assert run.job is None
    (tmp_path / "away").rename(job.path)
    run.look()
    assert run.ranks[0].num_steps == 2
    assert run.job is not None


def test_a_pipe_in_place_of_a_file_is_not_waited_for(job):
    steps_file(job).unlink()
    os.mkfifo(steps_file(job))
    run = LiveRun(str(job.path))
    run.look()
    assert run.ranks[0].num_steps == 0


def test_nothing_is_written_and_no_file_stays_open(tmp_path):
    folder = shutil.copytree(GOLDEN, tmp_path / "run")
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    run = LiveRun(str(folder))
    handles = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        run.look()
    assert len(list(Path("/proc/self/fd").iterdir())) == handles
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    assert [rank.num_steps for rank in run.ranks.values()] == [14, 14]
    assert run.ranks[0].num_bad == 0


@pytest.mark.parametrize("name", ["absent", "s3://bucket/run", "."])
def test_what_is_no_run_directory_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        LiveRun(name)
