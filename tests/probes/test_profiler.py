"""The traced window: which steps, what is in the file, and who goes first."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from distprof_probes.options import ProbeOptions
from distprof_probes.session import Session

from tests.probes.sessions import open_session, rank_file_of, status_of, steps_of

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'distprof[run]'")

from distprof_probes.probes.profiler import ProfilerProbe, save_trace  # noqa: E402

OPTIONS = ProbeOptions(start_step=3, num_steps=2, warmup=2, measure_overhead=False)


@pytest.fixture(autouse=True)
def _no_profiler_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH"):
        monkeypatch.delenv(name, raising=False)
    entrances = (
        torch.autograd.profiler._prepare_profiler,
        torch.autograd.profiler._enable_profiler,
    )
    yield
    assert not torch._C._autograd._profiler_enabled()
    assert entrances == (
        torch.autograd.profiler._prepare_profiler,
        torch.autograd.profiler._enable_profiler,
    )


def train(session: Session, steps: int, at: dict[int, Callable[[], object]] | None = None) -> None:
    """Run this many steps; something else may happen in the middle of some."""
    weight = torch.ones(4, 4, requires_grad=True)
    for step in range(steps):
        with session.phase("forward"):
            loss = (weight * weight).sum()
        if at and step in at:
            at[step]()
        loss.backward()
        session.step(loss=loss)


def trace_of(run_dir: Path) -> dict[str, Any]:
    with gzip.open(run_dir / "rank00000/trace.json.gz") as file:
        trace: dict[str, Any] = json.load(file)
    return trace


def names_of(run_dir: Path, begin: str) -> list[str]:
    events = trace_of(run_dir)["traceEvents"]
    return sorted(e["name"] for e in events if str(e.get("name")).startswith(begin))


def test_the_steps_asked_for_are_traced_under_their_own_numbers(tmp_path: Path) -> None:
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        train(session, 8)

    assert names_of(tmp_path, "ProfilerStep#") == ["ProfilerStep#3", "ProfilerStep#4"]
    assert [s.step for s in steps_of(tmp_path) if s.is_traced] == [3, 4]
    assert names_of(tmp_path, "distprof:") == ["distprof:phase name=forward"] * 2
    assert status_of(tmp_path, "profiler").num_records == 2
    assert sorted(f.name for f in (tmp_path / "rank00000").iterdir()) == [
        "rank.json",
        "steps.jsonl",
        "trace.json.gz",
    ]


def test_the_marks_of_steps_agree_with_the_step_log(tmp_path: Path) -> None:
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        train(session, 8)
    trace = trace_of(tmp_path)
    logged = {f"ProfilerStep#{s.step}": s for s in steps_of(tmp_path)}

    for event in trace["traceEvents"]:
        if str(event.get("name")).startswith("ProfilerStep#"):
            start_ns = event["ts"] * 1000 + trace["baseTimeNanoseconds"]
            step = logged[event["name"]]
            assert abs(start_ns - step.start_ns) < 50_000_000
            assert event["dur"] * 1000 < step.end_ns - step.start_ns + 1_000_000


def test_the_time_it_takes_to_arm_and_save_belongs_to_no_step(tmp_path: Path) -> None:
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        train(session, 8)
    steps = steps_of(tmp_path)
    gaps = [later.step for earlier, later in pairwise(steps) if later.start_ns != earlier.end_ns]

    assert set(gaps) <= {1, 3, 5}  # armed before 1, begun before 3, saved before 5
    assert 5 in gaps


def test_the_trace_says_where_its_rank_stands(tmp_path: Path) -> None:
    session = open_session(
        tmp_path,
        [ProfilerProbe()],
        options=OPTIONS,
        rank=3,
        world_size=4,
        mesh={"pp": 2, 'od"d': 2},
        coordinates={"pp": 1},
    )
    with session:
        train(session, 6)
    with gzip.open(tmp_path / "rank00003/trace.json.gz") as file:
        found = json.load(file)["distprof"]

    assert (found["rank"], found["world_size"], found["first_step"]) == (3, 4, 3)
    assert (found["mesh"], found["coordinates"]) == ({"pp": 2, "od_d": 2}, {"pp": 1})


def test_the_name_of_a_phase_cannot_break_the_file(tmp_path: Path) -> None:
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        for _ in range(6):
            with session.phase('my "own"\n\\phase'):
                pass
            session.step()

    assert names_of(tmp_path, "distprof:") == ["distprof:phase name=my _own___phase"] * 2
    assert steps_of(tmp_path)[0].phases[0].name == 'my "own"\n\\phase'


def test_neither_can_the_name_of_the_folder(tmp_path: Path) -> None:
    with open_session(tmp_path / 'a "run"', [ProfilerProbe()], options=OPTIONS) as session:
        train(session, 6)

    assert trace_of(tmp_path / 'a "run"')["traceName"] == "trace.json.gz"


def test_waiting_for_input_has_the_name_that_readers_look_for(tmp_path: Path) -> None:
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        for _ in range(6):
            with session.phase("input"):
                pass
            session.step()

    assert names_of(tmp_path, "distprof:") == ["distprof:input"] * 2


# Jobs that end early ------------------------------------------------------------------------------


def test_a_job_that_ends_within_the_window_keeps_whole_steps_only(tmp_path: Path) -> None:
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        train(session, 4)

    assert names_of(tmp_path, "ProfilerStep#") == ["ProfilerStep#3"]
    assert names_of(tmp_path, "distprof:cut") == ["distprof:cut step=4"]
    assert status_of(tmp_path, "profiler").reason == "1 of 2 steps were traced"


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_job_that_ends_before_the_window_says_so_and_leaves_no_file(
    tmp_path: Path, steps: int
) -> None:
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        train(session, steps)

    status = status_of(tmp_path, "profiler")
    assert (status.state, status.num_records) == ("on", 0)
    assert "ended before step 3" in status.reason or steps == 3
    assert not (tmp_path / "rank00000/trace.json.gz").exists()


def test_an_exception_in_training_keeps_the_trace(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("boom")

    session = open_session(tmp_path, [ProfilerProbe()], options=OPTIONS)
    with pytest.raises(RuntimeError, match="boom"), session:
        train(session, 8, at={4: fail})

    assert names_of(tmp_path, "ProfilerStep#") == ["ProfilerStep#3"]


def test_recording_stops_before_it_holds_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = iter(range(0, 10**12, 10**8))
    monkeypatch.setattr("distprof_probes.probes.profiler.resident_bytes", lambda: next(memory))
    options = ProbeOptions(
        start_step=1, num_steps=50, warmup=1, measure_overhead=False, max_growth_mb=150
    )
    with open_session(tmp_path, [ProfilerProbe()], options=options) as session:
        train(session, 10)

    assert names_of(tmp_path, "ProfilerStep#") == ["ProfilerStep#1", "ProfilerStep#2"]
    assert "stopped after 2 of 50 steps" in status_of(tmp_path, "profiler").reason


# The user's own profiler --------------------------------------------------------------------------


def start_own(into: list[Any], **keywords: Any) -> Callable[[], None]:
    def start() -> None:
        profile = torch.profiler.profile(**keywords)
        profile.start()
        into.append(profile)

    return start


@pytest.mark.parametrize("step", [0, 1, 2, 3, 4])
def test_a_profiler_of_the_program_works_whenever_it_starts(tmp_path: Path, step: int) -> None:
    """Armed from step 1, recording from 3: their start would fail in any of these."""
    own: list[Any] = []
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        train(session, 8, at={step: start_own(own)})
    own[0].stop()

    assert any(event.name == "aten::mul" for event in own[0].events())
    status = status_of(tmp_path, "profiler")
    assert status.state == "yielded"
    assert status.num_records == max(0, step - 3)
    assert (tmp_path / "rank00000/trace.json.gz").exists() == (step > 3)
    assert len(steps_of(tmp_path)) == 8


def test_a_profiler_of_the_program_with_a_schedule_has_its_whole_window(tmp_path: Path) -> None:
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
    with (
        open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session,
        torch.profiler.profile(schedule=schedule) as own,
    ):
        weight = torch.ones(4, requires_grad=True)
        for _ in range(8):
            weight.sum().backward()
            session.step()
            own.step()

    assert status_of(tmp_path, "profiler").state == "yielded"


def test_a_profiler_around_the_whole_session_is_respected(tmp_path: Path) -> None:
    with (
        torch.profiler.profile() as own,
        open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session,
    ):
        train(session, 8)

    assert sum(event.name == "aten::mul" for event in own.events()) >= 8
    status = status_of(tmp_path, "profiler")
    assert (status.state, status.reason) == (
        "yielded",
        "the program's own profiler was running",
    )


def test_a_profiler_of_the_program_that_is_over_before_the_window_costs_nothing(
    tmp_path: Path,
) -> None:
    with torch.profiler.profile():
        torch.ones(1)
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        train(session, 8)

    assert status_of(tmp_path, "profiler").state == "on"


# distprof attach --profile, which torch's worker server runs on a thread of its own ---------------


class OnDemand:
    """A trace on demand, as the worker server makes it."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.content, self.error = b"", ""
        self._seconds = seconds
        self._thread = threading.Thread(target=self._run)

    def get_param(self, name: str) -> str:
        return str(self._seconds)

    def set_content(self, content: bytes, kind: str) -> None:
        self.content = content

    def set_status(self, status: int) -> None:
        pass

    def _run(self) -> None:
        handlers = pytest.importorskip("torch.distributed.debug._handlers")
        try:
            handlers._torch_profile(self, self)
        except Exception as error:
            self.error = str(error)

    def begin(self) -> None:
        self._thread.start()
        while not (torch.autograd.profiler._is_profiler_enabled or self.error):
            time.sleep(0.001)

    def end(self) -> None:
        self._thread.join()

    def all(self) -> None:
        self._thread.start()
        self._thread.join()


def test_a_trace_on_demand_before_the_window_costs_nothing(tmp_path: Path) -> None:
    asked = OnDemand()
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        asked.all()
        train(session, 8)

    assert b"traceEvents" in asked.content
    status = status_of(tmp_path, "profiler")
    assert (status.state, status.reason, status.num_records) == ("on", "", 2)
    assert names_of(tmp_path, "ProfilerStep#") == ["ProfilerStep#3", "ProfilerStep#4"]


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_trace_on_demand_is_refused_while_the_window_is_traced(tmp_path: Path, step: int) -> None:
    asked = OnDemand()
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        train(session, 8, at={step: asked.all})

    assert asked.error == "distprof traces the capture window of this rank: ask again later"
    assert status_of(tmp_path, "profiler").state == "on"
    assert names_of(tmp_path, "ProfilerStep#") == ["ProfilerStep#3", "ProfilerStep#4"]


def test_a_trace_on_demand_that_runs_into_the_window_delays_it(tmp_path: Path) -> None:
    asked = OnDemand(seconds=1.0)
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        train(session, 8, at={0: asked.begin, 3: asked.end})

    assert b"traceEvents" in asked.content
    status = status_of(tmp_path, "profiler")
    assert (status.state, status.reason) == ("on", "1 of 2 steps were traced")
    assert names_of(tmp_path, "ProfilerStep#") == ["ProfilerStep#4"]


def test_a_trace_on_demand_over_the_whole_window_is_named(tmp_path: Path) -> None:
    asked = OnDemand(seconds=1.0)
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        train(session, 8, at={0: asked.begin, 7: asked.end})

    status = status_of(tmp_path, "profiler")
    assert (status.state, status.reason) == (
        "on",
        "nothing was traced: a trace on demand (distprof attach) ran at that time",
    )
    assert not (tmp_path / "rank00000/trace.json.gz").exists()


def test_a_tool_that_holds_cupti_makes_it_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        train(session, 8)

    status = status_of(tmp_path, "profiler")
    assert status.state == "unavailable"
    assert "Nsight Systems" in status.reason


def test_torch_prints_nothing_of_its_own(tmp_path: Path) -> None:
    program = f"""
import distprof_probes, torch
options = distprof_probes.ProbeOptions(start_step=3, num_steps=2, measure_overhead=False)
with distprof_probes.session({str(tmp_path)!r}, options=options) as session:
    for _ in range(6):
        torch.ones(3).sum()
        session.step()
"""
    environment = {k: v for k, v in os.environ.items() if k != "KINETO_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env=environment,
    )

    assert (done.stdout, done.stderr) == ("", "")


# Saving -------------------------------------------------------------------------------------------


class Export:
    """Replaces a stopped profile: writes the given text."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_bytes(self.data)


def test_a_trace_that_the_disk_took_half_of_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="whole trace"):
        save_trace(Export(b'{"traceEvents": [{"name": "a"'), tmp_path / "trace.json.gz")

    assert list(tmp_path.iterdir()) == []


def test_what_torch_leaves_when_the_disk_is_full_is_removed(tmp_path: Path) -> None:
    class Full:
        def export_chrome_trace(self, path: str) -> None:
            Path(f"{path}.tmp").write_bytes(b'{"traceEv')

    with pytest.raises(OSError, match="torch wrote none"):
        save_trace(Full(), tmp_path / "trace.json.gz")

    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_when_saving_disables_the_probe_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("distprof_probes.probes.profiler.save_trace", full)
    with open_session(tmp_path, [ProfilerProbe()], options=OPTIONS) as session:
        train(session, 8)

    status = status_of(tmp_path, "profiler")
    assert (status.state, "No space left" in status.reason) == ("failed", True)
    assert len(steps_of(tmp_path)) == 8


def test_renaming_a_cut_step_works_across_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distprof_probes.probes.profiler._CHUNK_BYTES", 7)
    lines = [b'  {"name": "ProfilerStep#%d", "cat": "kernel"},\n' % step for step in (1, 12, 2)]
    saved = save_trace(
        Export(b"{[\n" + b"".join(lines) + b"]}"), tmp_path / "trace.json.gz", cut_step=2
    )
    text = gzip.decompress((tmp_path / "trace.json.gz").read_bytes())

    assert saved.has_device_events
    assert saved.num_bytes == (tmp_path / "trace.json.gz").stat().st_size
    assert [text.count(b'"%s"' % name) for name in (b"ProfilerStep#1", b"ProfilerStep#12")] == [
        1,
        1,
    ]
    assert b'"ProfilerStep#2"' not in text
    assert b'"distprof:cut step=2"' in text


# What training notices ----------------------------------------------------------------------------


def losses(session: Session | None) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5), torch.nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(30):
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if session is not None:
            session.step(loss=loss)
        found.append(loss.item())
    return found


def test_the_loss_is_the_same_to_the_last_bit_with_all_probes_and_without(tmp_path: Path) -> None:
    from distprof_probes import session as open_all

    without = losses(None)
    with open_all(tmp_path, options=ProbeOptions()) as session:
        probed = losses(session)

    assert probed == without
    assert [step.loss for step in steps_of(tmp_path)] == without
    assert status_of(tmp_path, "profiler").num_records == 4
    assert any(not step.is_probed for step in steps_of(tmp_path))
    assert rank_file_of(tmp_path).ended_ns is not None


def test_analyze_reads_what_a_session_wrote(tmp_path: Path) -> None:
    from distprof_probes import session as open_all

    with open_all(tmp_path, options=OPTIONS) as session:
        losses(session)
    done = subprocess.run(
        [sys.executable, "-m", "distprof", "analyze", str(tmp_path), "--format", "json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [step["step"] for step in report["breakdown"]["steps"]] == [3, 4]
    assert report["run"]["num_steps"] == 2
