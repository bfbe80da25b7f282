"""The probe that reads the Flight Recorder: what it writes, and that nothing reaches training."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distprof_probes.attach.client import NoAnswer
from distprof_probes.options import ProbeOptions
from distprof_probes.probes.collective_times import TIMING_VARIABLE, CollectiveTimes
from distprof_probes.session import Session

from distprof.artefacts import COLLECTIVES_FILE
from distprof.artefacts.records import CollectivesRecord
from distprof.artefacts.run_file import ProbeStatus
from tests.probes.sessions import lines_of, open_session, status_of
from tests.warm import Starter

SCRIPTS = Path(__file__).parent / "scripts"


class FakeRecorder:
    """A Flight Recorder with a ring; it can be slow, fail, and answer with damage."""

    def __init__(self, size: int = 2_000) -> None:
        self.size = size
        self.entries: list[dict[str, Any]] = []
        self.answers: list[bytes | Exception] = []
        self.reads = 0
        self.blocked = threading.Event()
        self.blocked.set()

    def record(self, duration_ms: float | None = 0.5) -> None:
        number = self.entries[-1]["record_id"] + 1 if self.entries else 0
        self.entries.append(
            {
                "record_id": number,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": number + 1,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": time.time_ns(),
                "duration_ms": duration_ms,
                "retired": True,
            }
        )
        del self.entries[: -self.size]

    def __call__(self) -> bytes:
        self.reads += 1
        self.blocked.wait(20)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        return json.dumps({"entries": list(self.entries), "pg_config": config}).encode()


@pytest.fixture(autouse=True)
def _timing_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TIMING_VARIABLE, "1")


def trained(
    run_dir: Path,
    recorder: FakeRecorder,
    steps: int,
    *,
    each: Callable[[int], object] = lambda _: None,
    period_s: float = 0.001,
) -> Session:
    session = open_session(run_dir, [CollectiveTimes(recorder, period_s=period_s)])
    for number in range(steps):
        for _ in range(3):
            recorder.record()
        session.step()
        each(number)
    return session


def written(run_dir: Path) -> list[CollectivesRecord]:
    return lines_of(run_dir / "rank00000" / COLLECTIVES_FILE, CollectivesRecord)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not get there"
        threading.Event().wait(0.001)


def test_each_step_is_written_once_with_its_operations(tmp_path: Path) -> None:
    recorder = FakeRecorder()
    trained(tmp_path, recorder, 20).close()
    found = written(tmp_path)
    assert [record.step for record in found] == list(range(20))
    assert {group.total_ns for record in found for group in record.groups} == {(500_000,) * 3}
    status = status_of(tmp_path, "collective_times")
    assert (status.state, status.reason, status.num_records) == ("on", "", 20)


def test_what_was_enqueued_while_probes_pause_belongs_to_no_step(tmp_path: Path) -> None:
    recorder = FakeRecorder()
    options = ProbeOptions(mode="always-on", settle_steps=2, overhead_rounds=1)
    session = open_session(tmp_path, [CollectiveTimes(recorder, period_s=0.001)], options=options)
    for _ in range(10):
        recorder.record()
        session.step()
    session.close()
    found = written(tmp_path)
    assert [record.step for record in found] == [0, 1, 2, 5, 6, 7, 8, 9]
    assert all(sum(group.num for group in record.groups) == 1 for record in found)


@pytest.mark.parametrize("value", ["", "0", "false", "off"])
def test_without_timing_the_variable_is_named_and_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(TIMING_VARIABLE, value)
    recorder = FakeRecorder()
    trained(tmp_path, recorder, 3).close()
    status = status_of(tmp_path, "collective_times")
    assert status.state == "unavailable"
    assert status.reason == (
        "NCCL's timing is off: set TORCH_NCCL_ENABLE_TIMING=1 to know the own time of GPU ranks"
    )
    assert recorder.reads == 0
    assert not (tmp_path / "rank00000" / COLLECTIVES_FILE).exists()


def test_on_ranks_without_nccl_that_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "distprof_probes.probes.collective_times.backends", lambda: ("cpu:gloo", "gloo")
    )
    trained(tmp_path, FakeRecorder(), 3).close()
    status = status_of(tmp_path, "collective_times")
    assert status.state == "unavailable"
    assert status.reason == "backend gloo has no GPU operations of NCCL to time"


def test_a_recorder_that_does_not_answer_stops_no_step(tmp_path: Path) -> None:
    """The training goes on and ends while a reading hangs."""
    recorder = FakeRecorder()
    recorder.blocked.clear()
    session = trained(tmp_path, recorder, 5, each=lambda _: until(lambda: recorder.reads > 0))
    assert session.current_step == 5
    session.close()
    assert recorder.reads == 1
    recorder.blocked.set()


def test_after_a_slow_reading_there_is_a_long_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distprof_probes.probes import collective_times

    monkeypatch.setattr(collective_times, "REST", 10**9)
    recorder = FakeRecorder()
    session = trained(tmp_path, recorder, 3, each=lambda _: until(lambda: recorder.reads == 1))
    session.close()
    assert recorder.reads == 2  # and the last one, at the end
    assert len(written(tmp_path)) == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no JSON",
        b"[]",
        b'{"entries": 3}',
        b'{"entries": [{"record_id": "a"}]}',
        b'{"entries": [{"record_id": 1, "time_created_ns": 1e300, "profiling_name": "x"}]}',
        b"\xff\xfe",
        NoAnswer("no answer within 30 s"),
        RuntimeError("a\x1b[2Jb"),
    ],
)
def test_damage_costs_one_reading(tmp_path: Path, answer: bytes | Exception) -> None:
    recorder = FakeRecorder()
    recorder.answers = [answer]
    session = trained(tmp_path, recorder, 3, each=lambda _: until(lambda: recorder.reads >= 2))
    session.close()
    assert [record.step for record in written(tmp_path)] == [0, 1, 2]
    status = status_of(tmp_path, "collective_times")
    assert status.state == "on"
    assert status.reason.startswith("1 readings failed: ") or not status.reason


def test_a_recorder_that_always_fails_is_left_alone(tmp_path: Path) -> None:
    recorder = FakeRecorder()
    recorder.answers = [NoAnswer("it answered with status 404: no handler")] * 50
    session = trained(tmp_path, recorder, 1)
    until(lambda: recorder.reads >= 5)
    session.step()
    session.close()
    assert recorder.reads == 5
    status = status_of(tmp_path, "collective_times")
    assert (status.state, status.reason) == (
        "unavailable",
        "the Flight Recorder cannot be read: it answered with status 404: no handler",
    )


def test_steps_that_the_ring_lost_are_counted_and_the_variable_is_named(tmp_path: Path) -> None:
    recorder = FakeRecorder(size=7)
    trained(tmp_path, recorder, 20, period_s=60).close()
    assert [record.step for record in written(tmp_path)] == [18, 19]
    assert status_of(tmp_path, "collective_times").reason == (
        "18 steps were overwritten before they were read: TORCH_FR_BUFFER_SIZE holds too few"
        " operations"
    )


def test_groups_that_were_made_before_timing_was_on_are_said(tmp_path: Path) -> None:
    recorder = FakeRecorder()
    session = open_session(tmp_path, [CollectiveTimes(recorder, period_s=60)])
    recorder.record(duration_ms=None)
    session.step()
    session.close()
    assert "no operation has a duration" in status_of(tmp_path, "collective_times").reason


def test_a_full_disk_is_said_and_stops_no_step(tmp_path: Path) -> None:
    recorder = FakeRecorder()
    session = trained(tmp_path, recorder, 3, period_s=60)
    (tmp_path / "rank00000" / COLLECTIVES_FILE).unlink()
    session.step()
    session.close()
    status: ProbeStatus = status_of(tmp_path, "collective_times")
    assert (status.state, status.num_records) == ("unavailable", 0) or status.state == "failed"


PROGRAM = """
import os, time
os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1")
import distprof_probes
from distprof_probes.probes import collective_times
if {answers}:  # a build without NCCL records gloo's operations elsewhere, and does not time them
    collective_times._HANDLER = "fr_trace_json"
collective_times.CollectiveTimes.__init__.__defaults__ = (None, time.time_ns, 0.01)
options = distprof_probes.ProbeOptions(
    mode="always-on", measure_overhead=False, attach={attach}
)
with distprof_probes.session({run_dir!r}, options=options) as session:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for step in range(40):
        for _ in range(5):
            dist.all_reduce(torch.ones(step + 1))
        session.step()
    dist.destroy_process_group()
"""


def run(start: Starter, run_dir: Path, *, attach: bool = True, answers: bool = True) -> ProbeStatus:
    program = PROGRAM.format(run_dir=str(run_dir), attach=attach, answers=answers)
    done = start([sys.executable, "-c", program], {**os.environ, TIMING_VARIABLE: "1"})
    assert done.returncode == 0, done.stderr
    return status_of(run_dir, "collective_times")


@pytest.mark.distributed
def test_a_real_recorder_is_read_through_torchs_worker_server(
    tmp_path: Path, started_warm: Starter
) -> None:
    status = run(started_warm, tmp_path)
    assert status.state == "on"
    found = written(tmp_path)
    assert found
    for record in found:
        assert [(group.kind, group.num) for group in record.groups] == [("all", 5)]
    assert "no operation has a duration" in status.reason


@pytest.mark.distributed
def test_a_torch_without_nccl_is_said(tmp_path: Path, started_warm: Starter) -> None:
    status = run(started_warm, tmp_path, answers=False)
    assert status.state in ("on", "unavailable")
    assert "404" in status.reason


@pytest.mark.distributed
def test_without_the_socket_of_attach_that_is_said(tmp_path: Path, started_warm: Starter) -> None:
    status = run(started_warm, tmp_path, attach=False)
    assert status.state == "unavailable"
    assert status.reason == (
        "the Flight Recorder is read through the socket of the probe attach, which is off"
    )


@pytest.mark.gpu
@pytest.mark.distributed
def test_on_gpus_the_slow_one_of_two_ranks_is_named(tmp_path: Path, started_warm: Starter) -> None:
    """NCCL's operations have times, by the clock of the step log, and no step is lost.

    The rank that works longer is named.
    """
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    from distprof.ingest.job.growing import GrowingRun
    from distprof.verbs.watch.alerts import default_levels
    from distprof.verbs.watch.follow import report_on
    from distprof.verbs.watch.state import JobWatch

    script = SCRIPTS / "gpu_collectives.py"
    done = started_warm(
        [sys.executable, str(script), str(tmp_path)], {**os.environ, TIMING_VARIABLE: "1"}
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        status = status_of(tmp_path, "collective_times", rank)
        assert (status.state, status.reason) == ("on", "")
        found = lines_of(tmp_path / f"rank{rank:05d}" / COLLECTIVES_FILE, CollectivesRecord)
        groups = [group for record in found for group in record.groups]
        assert len(found) > 100
        assert {group.kind for group in groups} == {"all"}
        assert {(group.num, group.num_untimed, group.num_ranks) for group in groups} == {(4, 0, 2)}
    job = JobWatch(str(tmp_path), default_levels())
    job.take(GrowingRun(tmp_path).look(), now_s=0.0, now_ns=time.time_ns())
    report = report_on(job, now_s=0.0, now_ns=time.time_ns())
    assert report.own_known_from == "collectives"
    assert [late.rank for late in report.late if late.is_slow] == [1]
