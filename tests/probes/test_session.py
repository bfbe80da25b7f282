"""What a session writes down, and that nothing in it ever reaches training."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import distprof_probes
import msgspec
import pytest
from distprof_probes.options import ProbeOptions
from distprof_probes.probe import Unavailable, Yielded

from distprof.artefacts.run_file import ErrorFile, RunFile
from distprof.errors import UsageError
from tests.probes.sessions import (
    QUIET,
    Clock,
    Witness,
    open_session,
    rank_file_of,
    status_of,
    steps_of,
)


def run_file_of(run_dir: Path) -> RunFile:
    return msgspec.json.decode((run_dir / "run.json").read_bytes(), type=RunFile)


def test_steps_and_phases_are_logged_with_the_times_they_had(tmp_path: Path) -> None:
    clock = Clock(1_000)
    with open_session(tmp_path, clock=clock) as session:
        clock.now_ns = 1_100
        with session.phase("input"):
            clock.now_ns = 1_150
        with session.phase("forward"):
            clock.now_ns = 1_200
            with session.phase("attention"):
                clock.now_ns = 1_250
            clock.now_ns = 1_300
        with session.phase("forward"):
            clock.now_ns = 1_400
        session.step(loss=2.5, tokens=64, samples=4)
        clock.now_ns = 1_700
        session.step()

    first, second = steps_of(tmp_path)
    assert (first.step, first.start_ns, first.end_ns) == (0, 1_000, 1_400)
    assert [(p.name, p.start_ns, p.end_ns) for p in first.phases] == [
        ("input", 1_100, 1_150),
        ("forward", 1_150, 1_300),
        ("attention", 1_200, 1_250),
        ("forward", 1_300, 1_400),
    ]
    assert (first.loss, first.tokens, first.samples) == (2.5, 64, 4)
    assert first.num_micro_batches == 2
    assert (second.step, second.start_ns, second.end_ns) == (1, 1_400, 1_700)
    assert (second.phases, second.loss, second.num_micro_batches) == ((), None, None)


def test_a_clock_that_is_set_back_gives_no_negative_step(tmp_path: Path) -> None:
    clock = Clock(1_000)
    with open_session(tmp_path, clock=clock) as session:
        clock.now_ns = 2_000
        session.step()
        clock.now_ns = 500
        session.step()

    assert [(s.start_ns, s.end_ns) for s in steps_of(tmp_path)] == [(1_000, 2_000), (2_000, 2_000)]


def test_a_phase_that_began_before_the_step_is_cut_at_its_start(tmp_path: Path) -> None:
    clock = Clock(1_000)
    with open_session(tmp_path, clock=clock) as session:
        with session.phase("epoch"):
            clock.now_ns = 1_500
            session.step()
            clock.now_ns = 1_700
        clock.now_ns = 1_800
        session.step()

    assert [p.start_ns for p in steps_of(tmp_path)[1].phases] == [1_500]


def test_a_phase_left_by_an_exception_is_logged_and_the_exception_goes_on(tmp_path: Path) -> None:
    session = open_session(tmp_path)
    with pytest.raises(KeyError), session.phase("forward"):
        raise KeyError("mine")
    session.step()
    session.close()

    assert [p.name for p in steps_of(tmp_path)[0].phases] == ["forward"]


def test_phases_and_steps_of_a_second_thread_are_ignored_and_noted(tmp_path: Path) -> None:
    def other() -> None:
        with session.phase("input"):
            pass
        session.step()

    with open_session(tmp_path) as session:
        session.step()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    assert len(steps_of(tmp_path)) == 1
    assert len([note for note in rank_file_of(tmp_path).notes if "second thread" in note]) == 2


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_left_out_and_said(tmp_path: Path, loss: float) -> None:
    with open_session(tmp_path) as session:
        session.step(loss=1.0)
        session.step(loss=loss)
        session.step(loss=loss)

    assert [s.loss for s in steps_of(tmp_path)] == [1.0, None, None]
    assert status_of(tmp_path, "step_log").reason == f"the loss was first {loss} in step 1"


def test_a_loss_of_a_wrong_type_costs_the_session_but_not_the_training(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.step(loss="low")
        session.step(loss=1.0)

    assert "ValueError" in rank_file_of(tmp_path).notes[0]


def test_rank_and_run_files_say_how_it_went(tmp_path: Path) -> None:
    with open_session(tmp_path, mesh={"pp": 2, "tp": 4}, coordinates={"pp": 0, "tp": 0}) as session:
        started = rank_file_of(tmp_path)
        assert run_file_of(tmp_path).outcome == "running"
        session.step()
    ended, run = rank_file_of(tmp_path), run_file_of(tmp_path)

    assert (started.rank, started.ended_ns, started.pid) == (0, None, os.getpid())
    assert ended.ended_ns is not None
    assert (ended.mesh, ended.coordinates) == ({"pp": 2, "tp": 4}, {"pp": 0, "tp": 0})
    assert (run.kind, run.outcome, run.ended_ns is not None) == ("session", "completed", True)
    assert run.mesh == {"pp": 2, "tp": 4}
    assert run.config["probes"]["mode"] == "always-on"
    assert [entry.rank for entry in run.ranks] == [0]
    assert [probe.name for probe in run.ranks[0].probes] == ["step_log"]


def test_a_run_file_of_a_launcher_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("the launcher's")
    with open_session(tmp_path) as session:
        session.step()

    assert (tmp_path / "run.json").read_text() == "the launcher's"


def test_ranks_other_than_the_first_write_no_run_file(tmp_path: Path) -> None:
    with open_session(tmp_path, rank=3, world_size=4) as session:
        session.step()

    assert not (tmp_path / "run.json").exists()
    assert (rank_file_of(tmp_path, 3).rank, rank_file_of(tmp_path, 3).world_size) == (3, 4)


def test_an_exception_is_written_down_and_goes_on(tmp_path: Path) -> None:
    def train() -> None:
        with open_session(tmp_path) as session:
            session.step()
            session.step()
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        train()

    error = msgspec.json.decode((tmp_path / "rank00000/error.json").read_bytes(), type=ErrorFile)
    assert (error.kind, error.message, error.step) == ("RuntimeError", "out of luck", 1)
    assert "out of luck" in error.traceback
    assert not error.is_peer_loss
    assert run_file_of(tmp_path).outcome == "failed"
    assert len(steps_of(tmp_path)) == 2


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(0), "completed"),
        (SystemExit(), "completed"),
    ],
)
def test_leaving_on_purpose_is_no_error(tmp_path: Path, error: BaseException, outcome: str) -> None:
    with pytest.raises(type(error)), open_session(tmp_path):
        raise error

    assert run_file_of(tmp_path).outcome == outcome
    assert not (tmp_path / "rank00000/error.json").exists()


def test_a_nonzero_exit_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), open_session(tmp_path):
        raise SystemExit(3)

    assert run_file_of(tmp_path).outcome == "failed"
    assert (tmp_path / "rank00000/error.json").exists()


def test_a_session_may_be_closed_twice_and_used_after(tmp_path: Path) -> None:
    session = open_session(tmp_path)
    session.step()
    session.close()
    session.close()
    session.step()
    with session.phase("input"):
        pass

    assert len(steps_of(tmp_path)) == 1
    assert distprof_probes.current() is None


def test_a_program_that_forgets_to_close_leaves_whole_files(tmp_path: Path) -> None:
    program = f"""
import distprof_probes
session = distprof_probes.session({str(tmp_path)!r})
for _ in range(3):
    session.step(loss=1.0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)

    assert len(steps_of(tmp_path)) == 3
    assert rank_file_of(tmp_path).ended_ns is not None
    assert run_file_of(tmp_path).outcome == "completed"


def test_without_torch_a_session_keeps_its_step_log_and_imports_nothing(tmp_path: Path) -> None:
    program = f"""
import sys
import distprof_probes
with distprof_probes.session({str(tmp_path)!r}) as session:
    for _ in range(20):
        with session.phase("forward"):
            session.step(loss=1.0)
assert "torch" not in sys.modules
assert "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)

    assert len(steps_of(tmp_path)) == 20
    assert status_of(tmp_path, "profiler").state == "unavailable"
    assert "torch" in status_of(tmp_path, "profiler").reason


# Probes -------------------------------------------------------------------------------------------


def test_a_probe_is_called_in_order(tmp_path: Path) -> None:
    witness, clock = Witness(), Clock()
    with open_session(tmp_path, [witness], clock=clock) as session:
        with session.phase("input"):
            clock.now_ns += 7
        session.step()

    assert witness.calls == [
        "start",
        "step_started 0",
        "phase_ended input 7",
        "step_ended 0",
        "step_started 1",
        "stop",
    ]


@pytest.mark.parametrize(
    "where", ["start", "step_started", "step_ended", "phase_ended", "pause", "resume", "stop"]
)
def test_a_probe_that_raises_is_disabled_and_all_else_goes_on(tmp_path: Path, where: str) -> None:
    broken, sound = Witness("broken", **{where: ZeroDivisionError("oops")}), Witness("sound")
    options = ProbeOptions(mode="always-on", settle_steps=0, overhead_rounds=1)
    with open_session(tmp_path, [broken, sound], options=options) as session:
        for _ in range(4):
            with session.phase("forward"):
                pass
            session.step()

    status = status_of(tmp_path, "broken")
    assert (status.state, "ZeroDivisionError: oops" in status.reason) == ("failed", True)
    assert sum(call.startswith(where) for call in broken.calls) == 1
    assert broken.calls[-1] == "stop"
    assert status_of(tmp_path, "sound").state == "on"
    assert len(steps_of(tmp_path)) == 4


@pytest.mark.parametrize(
    ("refusal", "state"),
    [(Unavailable("no such device"), "unavailable"), (Yielded("yours goes first"), "yielded")],
)
@pytest.mark.parametrize("where", ["start", "step_ended"])
def test_a_probe_may_say_that_it_cannot_work(
    tmp_path: Path, where: str, refusal: Unavailable, state: str
) -> None:
    with open_session(tmp_path, [Witness(**{where: refusal})]) as session:
        session.step()

    status = status_of(tmp_path, "witness")
    assert (status.state, status.reason) == (state, refusal.reason)


def test_in_steps_left_alone_probes_rest_and_the_log_says_so(tmp_path: Path) -> None:
    witness = Witness()
    options = ProbeOptions(mode="always-on", settle_steps=1, overhead_rounds=1)
    with open_session(tmp_path, [witness], options=options) as session:
        for _ in range(6):
            with session.phase("forward"):
                pass
            session.step(loss=1.0)

    between = witness.calls[witness.calls.index("pause") : witness.calls.index("resume") + 1]
    assert between == ["pause", "resume"]
    assert [s.is_probed for s in steps_of(tmp_path)] == [True, True, False, False, True, True]
    assert [len(s.phases) for s in steps_of(tmp_path)] == [1, 1, 0, 0, 1, 1]
    assert all(s.loss == 1.0 for s in steps_of(tmp_path))
    assert [call for call in witness.calls if call.startswith("step_ended")] == [
        f"step_ended {step}" for step in (0, 1, 4, 5)
    ]


def test_overhead_is_measured_from_what_probes_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step takes 1000 ns of training; the probe adds 30 at its end and 20 at its start.

    Records are written between steps, before the probes pause: 7000 ns, which belong to no step.
    """
    clock = Clock()

    def drain(_: float) -> None:
        clock.now_ns += 7_000

    module = sys.modules["distprof_probes.session"]  # its name in the package is a function's
    monkeypatch.setattr(module, "drain", drain)

    class Costly(Witness):
        def step_started(self, step: int) -> None:
            clock.now_ns += 20

        def step_ended(self, step: int) -> None:
            clock.now_ns += 30

    options = ProbeOptions(mode="always-on", overhead_rounds=3)
    with open_session(tmp_path, [Costly()], options=options, clock=clock) as session:
        for _ in range(20):
            clock.now_ns += 1_000
            session.step()

    (overhead,) = rank_file_of(tmp_path).overhead
    assert (overhead.mode, overhead.num_pairs, overhead.step_ns) == ("always_on", 6, 1_000)
    assert (overhead.low, overhead.ratio, overhead.high) == (0.05, 0.05, 0.05)
    durations = [record.end_ns - record.start_ns for record in steps_of(tmp_path)]
    assert max(durations) < 2_000


def test_who_watches_learns_what_probes_cost_while_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written once, by a thread: the disk that hangs meanwhile holds no step up."""
    module = sys.modules["distprof_probes.session"]
    write, disk_works = module.write_rank_file, threading.Event()

    def hangs(*arguments: Any, **keywords: Any) -> None:
        assert disk_works.wait(10)
        write(*arguments, **keywords)

    clock = Clock()
    options = ProbeOptions(mode="always-on", overhead_rounds=3)
    with open_session(tmp_path, options=options, clock=clock) as session:
        monkeypatch.setattr(module, "write_rank_file", hangs)
        for _ in range(20):
            clock.now_ns += 1_000
            session.step()
        assert rank_file_of(tmp_path).overhead == ()
        disk_works.set()
        until = time.monotonic() + 10
        while not rank_file_of(tmp_path).overhead and time.monotonic() < until:
            time.sleep(0.01)
        (told,) = rank_file_of(tmp_path).overhead
        assert rank_file_of(tmp_path).ended_ns is None

    assert rank_file_of(tmp_path).overhead == (told,)
    assert rank_file_of(tmp_path).ended_ns is not None


def test_why_overhead_has_no_figure_is_noted(tmp_path: Path) -> None:
    options = ProbeOptions(mode="always-on", overhead_rounds=3)
    with open_session(tmp_path, options=options) as session:
        session.step()

    assert rank_file_of(tmp_path).overhead == ()
    assert rank_file_of(tmp_path).notes == (
        "overhead was not measured: 0 pairs of blocks, 6 needed",
    )


@pytest.mark.parametrize("mode", ["off", "always-on", "window"])
def test_modes_and_switches_turn_probes_off_with_a_reason(tmp_path: Path, mode: str) -> None:
    options = ProbeOptions(mode=mode, nvml=False, profile_ranks="1-3")  # type: ignore[arg-type]
    with distprof_probes.session(tmp_path, options=options) as session:
        session.step()

    states = {item.name: (item.state, item.reason) for item in rank_file_of(tmp_path).probes}
    assert states["step_log"][0] == "on"
    assert states["nvml"] == ("off", "mode=off" if mode == "off" else "switched off")
    reason = "only these ranks are traced: 1-3" if mode == "window" else f"mode={mode}"
    assert states["profiler"] == ("off", reason)
    assert (states["memory"][0] == "on") == (mode != "off")


def test_a_second_session_in_one_process_leaves_the_first_alone(tmp_path: Path) -> None:
    witness = Witness()
    with open_session(tmp_path / "first", [witness]) as first:
        with open_session(tmp_path / "second", [Witness()]) as second:
            assert distprof_probes.current() is first
            second.step()
        first.step()

    assert "step_ended 0" in witness.calls
    assert len(steps_of(tmp_path / "first")) == 1
    assert not (tmp_path / "second/rank00000/steps.jsonl").exists()
    assert "another session is open" in rank_file_of(tmp_path / "second").notes[0]


# What cannot be written ---------------------------------------------------------------------------


def test_an_unusable_directory_costs_the_records_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    witness = Witness()
    with open_session(tmp_path / "file" / "run", [witness]) as session:
        for _ in range(3):
            with session.phase("forward"):
                pass
            session.step(loss=1.0)

    assert session.current_step == 0
    assert witness.calls == []


def test_a_directory_that_vanishes_is_said_and_training_goes_on(tmp_path: Path) -> None:
    with open_session(tmp_path / "run") as session:
        session.step()
        (tmp_path / "run/rank00000").rename(tmp_path / "elsewhere")
        (tmp_path / "elsewhere/steps.jsonl").unlink()
        session.step()
        session.close()

    status = session.status()[0]
    assert (status.state, status.num_dropped > 0) == ("failed", True)
    assert "deleted" in status.reason


def test_a_queue_that_is_full_drops_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distprof_probes.records.FLUSH_PERIOD_S", 3600.0)
    options = msgspec.structs.replace(QUIET, queue_records=2)
    with open_session(tmp_path, options=options) as session:
        for _ in range(5):
            session.step()

    status = status_of(tmp_path, "step_log")
    assert status.num_records + status.num_dropped == 5
    assert status.num_dropped >= 2
    assert len(steps_of(tmp_path)) == status.num_records


# Options ------------------------------------------------------------------------------------------


def test_options_come_from_the_launcher_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ProbeOptions(mode="off", num_steps=7)
    monkeypatch.setenv("DISTPROF_PROBES", options.to_json())
    with distprof_probes.session(tmp_path) as session:
        assert session.options == options


@pytest.mark.parametrize("text", ["{", '{"mode": "sometimes"}', '{"unheard_of": 1}', "[]"])
def test_options_that_cannot_be_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("DISTPROF_PROBES", text)
    with pytest.raises(UsageError, match="DISTPROF_PROBES"):
        distprof_probes.session(tmp_path)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("all", {0, 1, 2, 3, 9}),
        ("none", set()),
        ("0", {0}),
        ("0,2-3", {0, 2, 3}),
        (" 1 , 9 ", {1, 9}),
    ],
)
def test_profiled_ranks(text: str, ranks: set[int]) -> None:
    options = ProbeOptions(profile_ranks=text)

    assert {rank for rank in (0, 1, 2, 3, 9) if options.profiles(rank)} == ranks


@pytest.mark.parametrize("text", ["some", "1-", "-1", "1;2", ""])
def test_a_misspelt_list_of_ranks_is_refused_at_once(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="profile_ranks"):
        distprof_probes.session(tmp_path, options=ProbeOptions(profile_ranks=text))
