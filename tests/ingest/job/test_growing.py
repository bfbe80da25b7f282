"""Reading files that grow: each record once, whatever way its bytes arrive, and nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.artefacts.records import Header, StepRecord
from distprof.artefacts.run_file import AttachFile
from distprof.ingest.job import growing as module
from distprof.ingest.job import is_running
from distprof.ingest.job.growing import GrowingFile, GrowingRun
from tests.job_folders import JobFolder


def header(rank: int = 0, schema: str = "distprof.steps/1") -> bytes:
    return msgspec.json.encode(Header(schema=schema, rank=rank)) + b"\n"


def line(step: int) -> bytes:
    return msgspec.json.encode(StepRecord(step=step, start_ns=step, end_ns=step + 1)) + b"\n"


def growing(path: Path, rank: int = 0) -> GrowingFile[StepRecord]:
    return GrowingFile(path, "distprof.steps/1", StepRecord, rank)


def steps(records: list[StepRecord]) -> list[int]:
    return [record.step for record in records]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 40), max_size=30))
def test_every_record_is_read_once_however_its_bytes_arrive(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("live") / "steps.jsonl"
    data, at, found = header() + b"".join(map(line, range(12))), 0, []
    file = growing(path)
    with path.open("wb") as stream:
        for size in [*sizes, len(data)]:
            stream.write(data[at : at + size])
            stream.flush()
            at += size
            found += steps(file.added())
    assert found == list(range(12))
    assert file.num_bad == 0


def test_a_line_that_is_no_record_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    bad = [b"\xff\xfe\n", b"{}\n", b'{"step": "one"}\n', b"[" * 5_000 + b"\n", b"null\n"]
    path.write_bytes(header() + line(1) + b"".join(bad) + line(2))
    file = growing(path)
    assert steps(file.added()) == [1, 2]
    assert file.num_bad == len(bad)


def test_a_line_without_end_is_left_out_and_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 100)
    path = tmp_path / "steps.jsonl"
    file = growing(path)
    path.write_bytes(header())
    assert file.added() == []
    with path.open("ab") as stream:
        for _ in range(5):
            stream.write(b"x" * 90)
            stream.flush()
            assert file.added() == []
            assert len(file._rest) <= 100
        stream.write(b"\n" + line(3))
    assert steps(file.added()) == [3]
    assert file.num_bad == 1


def test_of_a_long_file_its_end_is_read_and_its_header_counts(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(header() + b"".join(map(line, range(5_000))))
    file = growing(path)
    found = steps(file.added())
    assert found == list(range(found[0], 5_000))
    assert 500 < len(found) < 2_000
    assert file.num_bad == 0
    other = growing(path, rank=1)
    assert other.added() == []
    assert other.problem == "it was written by rank 0"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_that_begins_again_is_read_from_its_start(tmp_path: Path, in_place: bool) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(header() + line(7) + line(8))
    file = growing(path)
    assert steps(file.added()) == [7, 8]
    if not in_place:
        new = tmp_path / "new"
        new.write_bytes(header() + line(0) + line(1) + line(2))
        new.replace(path)
        assert steps(file.added()) == [0, 1, 2]
        return
    path.write_bytes(header() + line(0))
    assert steps(file.added()) == [0]


def test_a_file_that_is_gone_has_nothing_and_may_come_back(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    file = growing(path)
    assert file.added() == []
    path.write_bytes(header() + line(0))
    assert steps(file.added()) == [0]
    path.unlink()
    assert file.added() == []
    path.write_bytes(header() + line(1) + line(2))
    assert steps(file.added()) == [1, 2]


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "steps.jsonl")
    assert growing(tmp_path / "steps.jsonl").added() == []


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(header(schema="distprof.steps/2\x1b[31m") + line(0))
    file = growing(path)
    assert file.added() == []
    assert file.problem == "its schema is 'distprof.steps/2\\x1b[31m', not 'distprof.steps/1'"


def test_ranks_appear_as_they_come(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    assert not run.look().is_there
    folder = JobFolder(tmp_path / "run", mesh={"dp_replicate": 2}, ended_ns=None, outcome="running")
    folder.steps(0, [10, 10]).write()
    first = run.look()
    assert first.run is not None
    assert [(added.rank, len(added.steps)) for added in first.ranks] == [(0, 2)]
    assert run.look().ranks == ()
    folder.steps(1, [10]).rank_file(1, device="cpu").error(1, "no")
    (second,) = run.look().ranks
    assert (second.rank, len(second.steps)) == (1, 1)
    assert second.said is not None
    assert second.error is not None


def test_another_run_in_the_same_place_is_noticed(tmp_path: Path) -> None:
    JobFolder(tmp_path, mesh={"dp_replicate": 1}).steps(0, [10, 10]).write()
    run = GrowingRun(tmp_path)
    assert not run.look().is_another_run
    again = JobFolder(tmp_path, mesh={"dp_replicate": 1}, started_ns=5, notes=("again",))
    again.steps(0, [10, 10, 10]).write()
    added = run.look()
    assert added.is_another_run
    assert [len(each.steps) for each in added.ranks] == [3]


def test_what_another_rank_wrote_is_not_taken(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, mesh={"dp_replicate": 2})
    folder.steps(0, [10]).rank_file(0).error(0, "no")
    folder.rank_dir(0).rename(tmp_path / "rank00001")
    folder.rank_dir(0).joinpath("rank.json").write_bytes(b"{")
    added = GrowingRun(tmp_path).look()
    assert added.ranks == ()
    assert added.problems == ("steps.jsonl of rank 1 is not read: it was written by rank 0",)


def test_a_process_is_known_by_its_start_not_its_number_alone() -> None:
    program = [sys.executable, "-c", "input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        ticks = int(stat.rpartition(")")[2].split()[19])
        here = AttachFile(rank=0, host=socket.gethostname(), pid=process.pid, started_ticks=ticks)
        assert is_running(here)
        assert is_running(msgspec.structs.replace(here, started_ticks=ticks + 1)) is False
        assert is_running(msgspec.structs.replace(here, host="elsewhere")) is None
        assert is_running(msgspec.structs.replace(here, started_ticks=0)) is None
        process.communicate(b"\n")
    assert is_running(here) is False
