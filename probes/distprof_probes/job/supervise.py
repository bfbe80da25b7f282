"""Watches the ranks of one host: their processes, their steps, and their clean end.

The launcher calls :meth:`Supervisor.look` every few tens of milliseconds. Nothing here waits: each
call reads ``/proc`` and the lines added to ``steps.jsonl``, decides, and returns. A job passes
through four phases, forwards only::

    RUNNING ──a rank fails, exits early, or all stall──────▶ DRAINING   the others notice it and
       │                                                        │       write what they know
       └─────────────interrupt()───────▶ ENDING ◀───────────────┘       SIGTERM: probes save
                                            │
                                            ▼ patience is over: SIGKILL
                                          OVER (also when every rank has ended by itself)
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import msgspec

from distprof.artefacts import STEPS_FILE
from distprof.artefacts.run_file import Exit, Failure
from distprof_probes.job.directory import rank_directory
from distprof_probes.job.evidence import RankEvidence, rank_evidence
from distprof_probes.job.failure import first_cause
from distprof_probes.job.memory_killer import KillCounts, kill_counts, who_struck
from distprof_probes.job.process import exit_of, process_state, send, takes_signal
from distprof_probes.job.progress import StepTail

STACKS_SIGNAL = signal.SIGUSR1
"""A rank that handles it writes its Python stacks to stacks.txt."""

_S = 10**9
_IDLE_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time limits, in seconds."""

    suspicion_s: float  # Time without a step on any rank until stacks are taken; the job continues.
    # Time without a step on any rank until the job is ended, if no rank computes; ten times as long
    # if one does.
    stall_s: float
    # The same before the first step, which includes set-up and compilation.
    first_step_s: float = 900.0
    drain_s: float = 2.0  # Time for the others to notice a rank's failure and write their evidence.
    end_s: float = 8.0  # Time between SIGTERM and SIGKILL.

    @classmethod
    def of(cls, group_timeout_s: float) -> Patience:
        """Limits for a job whose collectives time out after ``group_timeout_s``.

        The ranks' own timeout comes first, so that they report which rank they waited for.
        """
        return cls(
            suspicion_s=group_timeout_s / 2,
            stall_s=2 * group_timeout_s + 30,
            first_step_s=max(900.0, 4 * group_timeout_s),
        )


class Phase(Enum):
    """Phase of a job."""

    RUNNING = "running"
    DRAINING = "draining"
    ENDING = "ending"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of the slowest rank of this host."""

    num_steps: int  # Steps completed.
    # Sum over the ranks of this host in the last step, None when unknown.
    tokens_per_s: float | None
    num_ranks: int  # Number of ranks watched.


@dataclass(slots=True, kw_only=True)
class _Watched:
    """One rank of this host."""

    rank: int
    pid: int
    started_ticks: int | None
    tail: StepTail
    exit: Exit | None = None
    alive_until_ns: int | None = None
    told_to_end_ns: int | None = None
    state: str = ""
    cpu_s: float = 0.0


@dataclass(slots=True)
class Supervisor:
    """Watches the ranks of one host until all have ended."""

    run_dir: Path  # The run directory.
    patience: Patience  # Time limits.
    num_steps: int | None = None  # Number of steps that each rank should run, None when unknown.
    clock_ns: Callable[[], int] = time.time_ns  # Returns ns since the epoch; tests pass their own.
    phase: Phase = field(default=Phase.RUNNING, init=False)
    detected_ns: int | None = field(default=None, init=False)
    is_interrupted: bool = field(default=False, init=False)
    notes: list[str] = field(default_factory=list, init=False)
    _ranks: dict[int, _Watched] = field(default_factory=dict, init=False)
    _moved_ns: int = field(default=0, init=False)
    _phase_ns: int = field(default=0, init=False)
    _is_suspicious: bool = field(default=False, init=False)
    _cpu_at_move_s: float = field(default=0.0, init=False)
    _kills_before: KillCounts = field(default_factory=kill_counts, init=False)

    def __post_init__(self) -> None:
        self._moved_ns = self._phase_ns = self.clock_ns()

    def watch(self, rank: int, pid: int) -> None:
        """Watch a rank of this host; call this after its process has started."""
        state = process_state(pid)
        self._ranks[rank] = _Watched(
            rank=rank,
            pid=pid,
            started_ticks=state.started_ticks if state else None,
            tail=StepTail(rank_directory(self.run_dir, rank) / STEPS_FILE),
        )

    def look(self) -> Phase:
        """Check the ranks, do what is due, and return the phase of the job."""
        now_ns = self.clock_ns()
        for each in self._ranks.values():
            self._look_at(each, now_ns)
        if self._ranks and all(each.exit is not None for each in self._ranks.values()):
            self._enter(Phase.OVER, now_ns)
        elif self.phase is Phase.RUNNING:
            self._watch_for_trouble(now_ns)
        elif self.phase is Phase.DRAINING and self._waited_s(now_ns) > self.patience.drain_s:
            self._end_all(now_ns)
        elif self.phase is Phase.ENDING and self._waited_s(now_ns) > self.patience.end_s:
            self.kill()
        return self.phase

    def interrupt(self) -> None:
        """Ask every rank to end, so that its probes save. A second call has no effect."""
        if self.phase in (Phase.RUNNING, Phase.DRAINING):
            self.is_interrupted = self.phase is Phase.RUNNING
            self._end_all(self.clock_ns())

    def remote_failure(self) -> None:
        """A rank on another host failed: check ours, and end them unless they end themselves."""
        if self.phase is Phase.RUNNING:
            self._drain(self.clock_ns())

    @property
    def is_sound(self) -> bool:
        """Whether no rank of this host has had trouble or was asked to end."""
        return self.phase in (Phase.RUNNING, Phase.OVER) and not any(
            self._left_badly(each) for each in self._ranks.values()
        )

    def kill(self) -> None:
        """End every rank at once."""
        self.is_interrupted = self.is_interrupted or self.phase is Phase.RUNNING
        for each in self._living():
            each.told_to_end_ns = each.told_to_end_ns or self.clock_ns()
            send(each.pid, signal.SIGKILL)

    def ask_stacks(self) -> None:
        """Ask every running rank that supports it to write its Python stacks."""
        for each in self._living():
            if takes_signal(each.pid, STACKS_SIGNAL):
                send(each.pid, STACKS_SIGNAL)

    @property
    def progress(self) -> Progress:
        """Progress of the slowest rank of this host."""
        tails = [each.tail for each in self._ranks.values()]
        rates = [tail.tokens_per_s for tail in tails if tail.tokens_per_s is not None]
        done = [0 if tail.last_step is None else tail.last_step + 1 for tail in tails]
        return Progress(
            num_steps=min(done, default=0),
            tokens_per_s=sum(rates) if rates else None,
            num_ranks=len(tails),
        )

    @property
    def exits(self) -> dict[int, Exit]:
        """Exit status of each rank that has ended."""
        return {rank: each.exit for rank, each in self._ranks.items() if each.exit is not None}

    def evidence(self) -> list[RankEvidence]:
        """Evidence about each rank, for :func:`distprof_probes.job.failure.first_cause`."""
        struck = who_struck(self._kills_before, kill_counts())
        return [
            rank_evidence(
                self.run_dir,
                each.rank,
                exit=each.exit,
                alive_until_ns=each.alive_until_ns,
                told_to_end_ns=each.told_to_end_ns,
                state=each.state,
                struck_by=struck,
            )
            for each in self._ranks.values()
        ]

    def failure(self, elsewhere: Sequence[RankEvidence] = ()) -> Failure | None:
        """The first failure; None if nothing went wrong, or the user ended a healthy job."""
        return first_cause(
            [*self.evidence(), *elsewhere],
            num_steps=self.num_steps,
            detected_ns=self.detected_ns,
            is_interrupted=self.is_interrupted,
        )

    def _look_at(self, each: _Watched, now_ns: int) -> None:
        if each.exit is not None:
            return
        if each.tail.read():
            self._moved(now_ns)
        ended = exit_of(each.pid)
        if ended is None:
            each.alive_until_ns = now_ns
            return
        each.tail.read()  # lines that it wrote between the two statements above
        by_us = each.told_to_end_ns is not None
        each.exit = msgspec.structs.replace(ended, ended_ns=now_ns, by_launcher=by_us)

    def _moved(self, now_ns: int) -> None:
        self._moved_ns = now_ns
        self._is_suspicious = False
        self._cpu_at_move_s = self._cpu_s()

    def _watch_for_trouble(self, now_ns: int) -> None:
        if any(self._left_badly(each) for each in self._ranks.values()):
            self._drain(now_ns)
            return
        still_s = (now_ns - self._moved_ns) / _S
        if not self._is_suspicious and still_s > max(self.patience.suspicion_s, self._usual_s()):
            self._is_suspicious = True
            self._note_states()
            self.ask_stacks()
        if still_s > self._stall_limit_s(still_s):
            self.notes.append(
                f"The launcher ended the job: no rank completed a step for {still_s:.0f} s."
            )
            self._drain(now_ns)
            self._end_all(now_ns)

    def _left_badly(self, each: _Watched) -> bool:
        if each.exit is None:
            return False
        if each.exit.signal or each.exit.code:
            return True
        if each.tail.is_lost:  # its last step is unknown
            return False
        last = each.tail.last_step
        return self.num_steps is not None and (last is None or last + 1 < self.num_steps)

    def _usual_s(self) -> float:
        """A few times the longest step so far: slow ranks are not necessarily stuck."""
        return 5 * max((each.tail.longest_ns for each in self._ranks.values()), default=0) / _S

    def _stall_limit_s(self, still_s: float) -> float:
        started = any(each.tail.last_step is not None for each in self._ranks.values())
        limit = self.patience.stall_s if started else self.patience.first_step_s
        limit = max(limit, 2 * self._usual_s())
        computed_s = self._cpu_s() - self._cpu_at_move_s
        return limit if computed_s < _IDLE_RATIO * still_s else 10 * limit

    def _cpu_s(self) -> float:
        """CPU time of all running ranks so far."""
        states = (process_state(each.pid) for each in self._living())
        return sum(state.cpu_s for state in states if state is not None)

    def _drain(self, now_ns: int) -> None:
        """At the first sign of trouble, save the present evidence and let the others notice."""
        self.detected_ns = now_ns
        self._note_states()
        self.ask_stacks()
        self._enter(Phase.DRAINING, now_ns)

    def _note_states(self) -> None:
        for each in self._living():
            state = process_state(each.pid)
            each.state = state.letter if state else ""

    def _end_all(self, now_ns: int) -> None:
        for each in self._living():
            each.told_to_end_ns = now_ns
            send(each.pid, signal.SIGTERM)
            send(each.pid, signal.SIGCONT)  # a stopped process handles no other signal
        self._enter(Phase.ENDING, now_ns)

    def _living(self) -> list[_Watched]:
        return [each for each in self._ranks.values() if each.exit is None]

    def _enter(self, phase: Phase, now_ns: int) -> None:
        if phase is not self.phase:
            self.phase = phase
            self._phase_ns = now_ns

    def _waited_s(self, now_ns: int) -> float:
        return (now_ns - self._phase_ns) / _S
