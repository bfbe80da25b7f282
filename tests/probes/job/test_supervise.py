"""Watching ranks: real processes that only pretend to train, so that no test waits for torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from distprof_probes.job import rank_process
from distprof_probes.job.interrupts import Interrupts
from distprof_probes.job.supervise import Patience, Phase, Supervisor

QUICK = Patience(suspicion_s=0.5, stall_s=1.5, first_step_s=60, drain_s=0.3, end_s=0.6)

RANK = """
import faulthandler, json, os, signal, sys, time
folder = os.path.join(os.environ["RUN"], "rank%05d" % int(os.environ["RANK"]))
faulthandler.register(signal.SIGUSR1, file=open(os.path.join(folder, "stacks.txt"), "a"))
log = open(os.path.join(folder, "steps.jsonl"), "a", buffering=1)
def step(number):
    now = time.time_ns()
    line = {"step": number, "start_ns": now - 10**7, "end_ns": now, "tokens": 512}
    log.write(json.dumps(line) + "\\n")
def error(kind, message, peer):
    line = {"rank": int(os.environ["RANK"]), "time_ns": time.time_ns(), "kind": kind,
            "message": message, "traceback": "", "is_peer_loss": peer}
    open(os.path.join(folder, "error.json"), "w").write(json.dumps(line))
def wait_for_ever():
    while True:
        time.sleep(0.01)  # pause() misses a signal that came just before it
"""


@dataclass
class Ranks:
    """Starts pretended ranks and sees them to their end."""

    run_dir: Path
    supervisor: Supervisor
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *programs: str) -> None:
        for rank, program in enumerate(programs):
            command = rank_process.command(self.run_dir, [sys.executable, "-c", RANK + program])
            env = {**os.environ, "RUN": str(self.run_dir), "RANK": str(rank)}
            child = subprocess.Popen(command, env=env, start_new_session=True)
            self.children.append(child)
            self.supervisor.watch(rank, child.pid)

    def until(self, reached: Callable[[], bool]) -> None:
        limit = time.monotonic() + 30
        while not reached():
            assert time.monotonic() < limit, self.supervisor.phase
            self.supervisor.look()
            time.sleep(0.01)  # between looks, as a launcher does

    def to_the_end(self) -> None:
        self.until(lambda: self.supervisor.phase is Phase.OVER)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path, Supervisor(tmp_path, QUICK, num_steps=3))
    yield made
    for child in made.children:
        child.kill()
        child.wait()


GOOD = "for n in range(3): step(n)\n"
WAITS = "step(0)\nwait_for_ever()\n"
LOSES = """
step(0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
time.sleep(%s)
error("RuntimeError", "Timed out waiting 1000ms for recv operation", True)
sys.exit(1)
"""


def test_ranks_that_finish_make_a_sound_job(ranks: Ranks) -> None:
    ranks.start(GOOD, GOOD)
    ranks.to_the_end()
    assert ranks.supervisor.failure() is None
    assert [end.code for end in ranks.supervisor.exits.values()] == [0, 0]
    assert ranks.supervisor.progress.num_steps == 3
    assert ranks.supervisor.progress.tokens_per_s == pytest.approx(2 * 512 / 0.01)


def test_what_a_rank_prints_is_kept_in_order(ranks: Ranks) -> None:
    ranks.start("print('one', flush=True)\nsys.stderr.write('two\\n')\n" + GOOD)
    ranks.to_the_end()
    assert (ranks.run_dir / "rank00000" / "output.log").read_text() == "one\ntwo\n"


def test_a_killed_rank_is_found_and_the_rest_are_ended(ranks: Ranks) -> None:
    ranks.start(WAITS, "step(0)\nos.kill(os.getpid(), signal.SIGKILL)\n")
    ranks.to_the_end()
    failure = ranks.supervisor.failure()
    assert failure is not None
    assert (failure.rank, failure.kind, failure.step) == (1, "killed", 0)
    exits = ranks.supervisor.exits
    assert (exits[1].signal, exits[1].by_launcher) == ("SIGKILL", False)
    assert (exits[0].signal, exits[0].by_launcher) == ("SIGTERM", True)


def test_an_exception_is_found_by_what_the_rank_wrote(ranks: Ranks) -> None:
    ranks.start(LOSES % 0.1, "step(0)\nerror('ValueError', 'bad batch', False)\nsys.exit(1)\n")
    ranks.to_the_end()
    failure = ranks.supervisor.failure()
    assert failure is not None
    assert (failure.rank, failure.kind) == (1, "exception")


def test_a_rank_that_leaves_early_with_0_fails_the_job(ranks: Ranks) -> None:
    ranks.start(WAITS, "step(0)\nstep(1)\n")
    ranks.to_the_end()
    failure = ranks.supervisor.failure()
    assert failure is not None
    assert (failure.rank, failure.kind, failure.step) == (1, "exited", 1)


def test_a_stopped_rank_is_woken_to_end_and_blamed(ranks: Ranks) -> None:
    """The others time out first; the stopped one shows T in /proc at that moment."""
    ranks.start(LOSES % 0.5, "step(0)\nos.kill(os.getpid(), signal.SIGSTOP)\n", LOSES % 0.5)
    ranks.to_the_end()
    failure = ranks.supervisor.failure()
    assert failure is not None
    assert (failure.rank, failure.kind) == (1, "stopped")
    assert ranks.supervisor.exits[1].signal == "SIGTERM"  # woken, not killed


def test_a_rank_that_hangs_shows_where(ranks: Ranks) -> None:
    hangs = "def fetch_batch():\n    wait_for_ever()\nstep(0)\nfetch_batch()\n"
    ranks.start(LOSES % 0.5, hangs)
    ranks.to_the_end()
    failure = ranks.supervisor.failure()
    assert failure is not None
    assert (failure.rank, failure.kind) == (1, "hung")
    assert "wait_for_ever" in (ranks.run_dir / "rank00001" / "stacks.txt").read_text()
    assert "it was in wait_for_ever (<string>:" in failure.message


def test_a_rank_that_ignores_sigterm_is_killed(ranks: Ranks) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS
    ranks.start(stubborn, "step(0)\nsys.exit(7)\n")
    ranks.until(lambda: ranks.supervisor.progress.num_steps == 1)
    ranks.to_the_end()
    assert ranks.supervisor.exits[0].signal == "SIGKILL"
    assert ranks.supervisor.exits[0].by_launcher
    failure = ranks.supervisor.failure()
    assert failure is not None
    assert failure.rank == 1


def test_a_job_in_which_nobody_moves_is_ended(ranks: Ranks) -> None:
    ranks.start(WAITS, WAITS)
    ranks.to_the_end()
    failure = ranks.supervisor.failure()
    assert failure is not None
    assert (failure.rank, failure.kind) == (None, "hung")
    assert ranks.supervisor.notes == [
        f"The launcher ended the job: no rank completed a step for {1.5:.0f} s."
    ]


def test_stacks_are_taken_before_anything_is_ended(ranks: Ranks) -> None:
    ranks.start(WAITS, WAITS)
    stacks = ranks.run_dir / "rank00000" / "stacks.txt"
    ranks.until(lambda: stacks.is_file() and stacks.stat().st_size > 0)
    assert ranks.supervisor.phase is Phase.RUNNING


def test_a_rank_without_a_handler_is_not_asked_for_stacks(ranks: Ranks) -> None:
    """SIGUSR1 would end it."""
    bare = "signal.signal(signal.SIGUSR1, signal.SIG_DFL)\n" + WAITS
    ranks.start(bare)
    ranks.until(lambda: ranks.supervisor.progress.num_steps == 1)
    ranks.supervisor.ask_stacks()
    ranks.supervisor.look()
    assert ranks.supervisor.phase is Phase.RUNNING


def test_interrupted_once_ranks_end_in_order(ranks: Ranks) -> None:
    saves = "signal.signal(signal.SIGTERM, lambda *_: (step(1), os._exit(143)))\n" + WAITS
    ranks.start(saves, saves)
    ranks.until(lambda: ranks.supervisor.progress.num_steps == 1)
    ranks.supervisor.interrupt()
    ranks.to_the_end()
    assert ranks.supervisor.failure() is None
    assert [end.code for end in ranks.supervisor.exits.values()] == [143, 143]
    assert ranks.supervisor.progress.num_steps == 2


def test_interrupted_twice_ranks_end_at_once(ranks: Ranks) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS
    ranks.start(stubborn)
    ranks.until(lambda: ranks.supervisor.progress.num_steps == 1)
    said: list[str] = []
    with Interrupts(said.append) as interrupts:
        interrupts.has_ranks = True
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.serve(ranks.supervisor)
    ranks.to_the_end()
    assert ranks.supervisor.exits[0].signal == "SIGKILL"
    assert said == ["stopping the ranks; press Ctrl-C again to stop at once"]
    assert interrupts.exit_code == 130


def test_sigterm_sent_twice_by_a_launcher_is_one_request(ranks: Ranks) -> None:
    """SLURM ends the step and the job at the time limit; ranks keep the time to save."""
    ranks.start(WAITS)
    ranks.until(lambda: ranks.supervisor.progress.num_steps == 1)
    with Interrupts(lambda _: None) as interrupts:
        interrupts.has_ranks = True
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        interrupts.serve(ranks.supervisor)
    ranks.to_the_end()
    assert ranks.supervisor.exits[0].signal != "SIGKILL"
    assert interrupts.exit_code == 143


def test_an_interruption_before_any_rank_raises_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts(lambda _: None) as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_sigterm_before_any_rank_goes_to_the_handler_before() -> None:
    """The program then ends with its code for SIGTERM, not with that for Ctrl-C."""

    class EndedError(Exception):
        pass

    def end(*_: object) -> None:
        raise EndedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(EndedError), Interrupts(lambda _: None):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt), Interrupts(lambda _: None):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_rank_ends_with_its_launcher(tmp_path: Path) -> None:
    """However the launcher goes: here by SIGKILL."""
    launcher = f"""
import os, subprocess, sys, time
from pathlib import Path
from distprof_probes.job import rank_process
program = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"]
command = rank_process.command(Path({str(tmp_path)!r}), program)
subprocess.Popen(command, env={{**os.environ, "RANK": "0"}}, start_new_session=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", launcher])
    output = tmp_path / "rank00000" / "output.log"
    _wait(lambda: output.is_file() and output.read_text().endswith("\n"))
    parent.kill()
    parent.wait()
    pid = int(output.read_text())
    _wait(lambda: _is_gone(pid))


def _is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def _wait(reached: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_evidence_survives_half_written_files(tmp_path: Path) -> None:
    from distprof_probes.job.evidence import rank_evidence

    folder = tmp_path / "rank00003"
    folder.mkdir()
    (folder / "steps.jsonl").write_text(json.dumps({"step": 4, "end_ns": 5}) + '\n{"step": 5, "end')
    (folder / "error.json").write_text('{"rank": 3, "ti')
    (folder / "flight.json").write_text("[]")
    found = rank_evidence(tmp_path, 3)
    assert (found.last_step, found.error, found.last_collective) == (4, None, None)
