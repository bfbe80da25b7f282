"""distprof finds dumps under any name, with logs and stacks, and reports broken files."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import msgspec
import pytest

from distprof.artefacts.run_file import ErrorFile, Exit, RankEntry, RunFile
from distprof.errors import InputError
from distprof.ingest.output.stacks import stacks_in
from distprof.verbs.hang.evidence import read_evidence
from tests.flight_jobs import START_NS, dump, job, op, written

ONE = dump([op(1), op(2)], {"0": [0, 1]})
DATA = json.dumps(ONE).encode()
STACKS = """Thread 0x00007f1 (most recent call first):
  File "/opt/site-packages/torch/_tensor.py", line 5 in wait

Current thread 0x00007f2 (most recent call first):
  File "/opt/site-packages/torch/_tensor.py", line 623 in backward
  File "/home/me/train.py", line 40 in average
  File "/home/me/train.py", line 90 in <module>
"""


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("_dump_3", pickle.dumps(ONE, protocol=2)),
        ("nccl_trace_rank_3", DATA),
        ("nccl_trace_rank_3.json", DATA),
        ("fr_trace_rank3.json.gz", gzip.compress(DATA)),
        ("job-17.node2.rank_3.pickle", pickle.dumps(ONE)),
        ("deep/er/trace_3", DATA),
        ("rank00003/flight.json", DATA),
        ("rank00003/flight.json.gz", gzip.compress(DATA)),
    ],
)
def test_a_dump_is_found_under_any_name(tmp_path: Path, name: str, data: bytes) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    (found,) = read_evidence(str(tmp_path)).dumps
    assert (found.rank, len(found.entries), found.source) == (3, 2, name)
    assert found.written_ns


def test_one_dump_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_7").write_bytes(DATA)
    (tmp_path / "nccl_trace_rank_8").write_bytes(DATA)
    found = read_evidence(str(tmp_path / "nccl_trace_rank_7"))
    assert [dump.rank for dump in found.dumps] == [7]


def test_other_files_are_let_alone(tmp_path: Path) -> None:
    written(tmp_path, job({0: [op(1)], 1: [op(1)]}))
    (tmp_path / "rank_0.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    (tmp_path / "notes_1").write_text("not a dump")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "_dump_5").write_bytes(DATA)
    found = read_evidence(str(tmp_path))
    assert ([dump.rank for dump in found.dumps], found.notes) == ([0, 1], ())


def test_a_broken_dump_is_named_and_the_others_are_used(tmp_path: Path) -> None:
    written(tmp_path, job({0: [op(1)], 1: [op(1)]}))
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00trueR.")
    (tmp_path / "nccl_trace_rank_3").write_bytes(pickle.dumps(ONE, protocol=2)[:-90])
    found = read_evidence(str(tmp_path))
    assert [dump.rank for dump in found.dumps] == [0, 1]
    assert "instruction GLOBAL" in found.notes[0]
    assert found.notes[1].startswith(
        "nccl_trace_rank_3 cannot be read: a pickle that distprof does not read: "
    )


def test_of_several_dumps_of_a_rank_the_newest_is_used(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "_dump_0").write_bytes(DATA)
    later = dump([op(1, at_ms=500), op(2, at_ms=501), op(3, at_ms=502)], {"0": [0]})
    (tmp_path / "_dump_0").write_text(json.dumps(later))
    found = read_evidence(str(tmp_path))
    assert [len(dump.entries) for dump in found.dumps] == [3]
    assert found.notes == ("Several dumps of rank 0: distprof uses the newest of each.",)


@pytest.mark.parametrize("content", [None, b"", b"\x80\x02.", b"{}"])
def test_a_folder_without_a_dump_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "_dump_0").write_bytes(content)
    with pytest.raises(InputError, match="Flight Recorder"):
        read_evidence(str(tmp_path))


LINES = {
    "timeout": "[rank3]:[E1 12:00:00 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=96, OpType=ALLREDUCE) ran for 600029 milliseconds",
    "nccl": "gpu-1:81:99 [3] misc/socket.cc:49 NCCL WARN socketProgressOpt: abort",
    "device": "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    "peer": "RuntimeError: Connection closed by peer [127.0.0.1]:26018",
    "error": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
}


@pytest.mark.parametrize("about", LINES)
def test_lines_of_trouble_are_found_with_rank_and_number(tmp_path: Path, about: str) -> None:
    written(tmp_path, job({0: [op(1)], 3: [op(1)]}))
    quiet = "step 12, loss 3.1, tokens 999\nNCCL INFO Connected all rings error=0\n"
    (tmp_path / "train_rank3.log").write_text(f"{quiet}{LINES[about]}\n{LINES[about]}\n")
    (found,) = read_evidence(str(tmp_path)).log_lines
    expected = "peer" if about == "nccl" else about  # a socket that aborts is the other side's end
    assert (found.rank, found.line, found.file, found.about) == (
        3, 3, "train_rank3.log", expected)  # fmt: skip


def test_the_rank_in_a_line_counts_where_the_file_is_of_many(tmp_path: Path) -> None:
    written(tmp_path, job({0: [op(1)]}))
    (tmp_path / "slurm-1234.out").write_text(f"{LINES['timeout']}\n")
    (found,) = read_evidence(str(tmp_path)).log_lines
    assert found.rank == 3


def test_a_large_log_is_read_whole(tmp_path: Path) -> None:
    written(tmp_path, job({0: [op(1)]}))
    fine = ["fine"] * 300_000
    (tmp_path / "rank0.log").write_text(
        "\n".join([LINES["peer"], *fine, LINES["device"], *fine, LINES["timeout"]])
    )
    found = read_evidence(str(tmp_path)).log_lines
    assert [(line.about, line.line) for line in found] == [
        ("peer", 1), ("device", 300_002), ("timeout", 600_003)]  # fmt: skip


def test_the_main_thread_of_a_stack_dump_is_the_one_that_counts() -> None:
    assert stacks_in(STACKS)[0] == ("average (train.py:40)", "<module> (train.py:90)")
    assert stacks_in("nonsense")[0] == ()


def test_a_run_directory_tells_size_hosts_ends_and_stacks(tmp_path: Path) -> None:
    run = RunFile(
        distprof_version="0", kind="run", command=(), started_ns=START_NS, world_size=3,
        outcome="failed",
        ranks=(
            RankEntry(rank=0, host="gpu-1"),
            RankEntry(rank=1, host="gpu-2", exit=Exit(signal="SIGKILL")),
            RankEntry(rank=2, host="gpu-2", exit=Exit(signal="SIGTERM", by_launcher=True)),
        ),
    )  # fmt: skip
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(run))
    for rank in (0, 2):
        folder = tmp_path / f"rank{rank:05d}"
        folder.mkdir()
        (folder / "flight.json").write_bytes(DATA)
        (folder / "stacks.txt").write_text(STACKS)
        lost = ErrorFile(rank=rank, time_ns=1, kind="RuntimeError", message="Connection closed",
                         traceback="", is_peer_loss=True)  # fmt: skip
        (folder / "error.json").write_bytes(msgspec.json.encode(lost))
    found = read_evidence(str(tmp_path))
    assert found.world_size == 3
    assert found.hosts == {0: "gpu-1", 1: "gpu-2", 2: "gpu-2"}
    assert found.failed == {1: "SIGKILL ended its process"}
    assert found.stacks[0][0] == "average (train.py:40)"
    assert [(line.rank, line.about) for line in found.log_lines] == [(0, "peer"), (2, "peer")]
    assert not found.has_ended_well


def test_answers_to_requests_of_a_run_are_not_of_its_hang(tmp_path: Path) -> None:
    """GIVEN dumps and stacks that somebody asked for earlier, THEN those of the ranks count."""
    run = RunFile(
        distprof_version="0", kind="run", command=(), started_ns=START_NS, world_size=2, ranks=()
    )
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(run))
    later = [op(1), op(2), op(3, at_ms=90_000)]
    asked = tmp_path / "requests" / "flight-20260101-000000-0123abcd"
    for rank in (0, 1):
        own, other = tmp_path / f"rank{rank:05d}", asked / f"rank{rank:05d}"
        own.mkdir()
        other.mkdir(parents=True)
        (own / "flight.json").write_bytes(DATA)
        (other / "flight.json").write_text(json.dumps(dump(later, {"0": [0, 1]})))
        (other / "stacks.txt").write_text(STACKS)
        (other / "worker.log").write_text("torch.OutOfMemoryError: CUDA out of memory\n")
    found = read_evidence(str(tmp_path))
    assert [one.source for one in found.dumps] == ["rank00000/flight.json", "rank00001/flight.json"]
    assert (found.num_other_dumps, found.stacks, found.log_lines) == (0, {}, ())
    assert len(read_evidence(str(asked)).dumps) == 2


def test_a_folder_named_requests_that_is_in_no_run_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "requests").mkdir()
    written(tmp_path / "requests", job({0: [op(1)], 1: [op(1)]}))
    assert [dump.rank for dump in read_evidence(str(tmp_path)).dumps] == [0, 1]
