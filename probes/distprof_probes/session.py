"""A session: the probes of one rank, from the first step to the last.

The session is the only part that training code uses. Its errors never reach training: an exception
in a probe disables that probe, an exception in the session disables the session, and ``rank.json``
records both.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from distprof.artefacts import RANK_DIR_FORMAT
from distprof.artefacts.run_file import Outcome, Overhead, ProbeStatus
from distprof_probes.environment import Placement, placement
from distprof_probes.options import ProbeOptions, options_from_environment
from distprof_probes.overhead import OverheadMeter
from distprof_probes.panel import Panel
from distprof_probes.plan import make_plan
from distprof_probes.probe import Probe, Traced
from distprof_probes.rank_file import (
    Mesh,
    conclude_run_file,
    mesh_of,
    start_run_file,
    write_error_file,
    write_rank_file,
)
from distprof_probes.records import drain, drain_when_this_thread_ends
from distprof_probes.termination import Terminated, close_on_sigterm

_log = logging.getLogger("distprof.probes")


class SessionFiles:
    """Writes rank.json and error.json, and run.json if no launcher did."""

    def __init__(
        self, run_dir: Path, rank_dir: Path, place: Placement, mesh: Mesh, started_ns: int
    ) -> None:
        self._run_dir = run_dir
        self._rank_dir = rank_dir
        self._place = place
        self._mesh = mesh
        self._started_ns = started_ns
        self._owns_run_file = False
        self._notes: dict[str, None] = {}
        self._writing = threading.Lock()
        self._has_ended = False

    def note(self, text: str) -> None:
        """Add a sentence to rank.json; the same one is kept once."""
        self._notes[text] = None

    def begin(self, options: ProbeOptions, probes: tuple[ProbeStatus, ...]) -> None:
        """Write the facts known at the start."""
        try:
            if self._place.rank == 0:
                self._owns_run_file = start_run_file(
                    self._run_dir, self._place, self._mesh, options, self._started_ns
                )
            self._write_rank_file(probes, (), None)
        except OSError as error:
            self.note(f"not all files could be written: {error.strerror}")

    def error(self, error: BaseException, last_step: int) -> None:
        """Record why training stopped; ``last_step`` is negative if no step was completed."""
        try:
            write_error_file(
                self._rank_dir, self._place.rank, error, last_step if last_step >= 0 else None
            )
        except OSError as failure:
            self.note(f"error.json could not be written: {failure.strerror}")

    def measured(self, probes: tuple[ProbeStatus, ...], overhead: tuple[Overhead, ...]) -> None:
        """Write the measurements so far, during training. Call this from a separate thread."""
        with self._writing, suppress(OSError):  # end() writes it again
            if not self._has_ended:
                self._write_rank_file(probes, overhead, None)

    def end(
        self,
        outcome: Outcome,
        probes: tuple[ProbeStatus, ...],
        overhead: tuple[Overhead, ...],
        ended_ns: int,
    ) -> None:
        """Write the facts known at the end."""
        try:
            with self._writing:
                self._has_ended = True
                self._write_rank_file(probes, overhead, ended_ns)
            if self._owns_run_file:
                conclude_run_file(self._run_dir, outcome, ended_ns)
        except (OSError, msgspec.MsgspecError) as failure:
            _log.warning("distprof: %s is incomplete: %s", self._run_dir, failure)

    def _write_rank_file(
        self,
        probes: tuple[ProbeStatus, ...],
        overhead: tuple[Overhead, ...],
        ended_ns: int | None,
    ) -> None:
        write_rank_file(
            self._rank_dir,
            self._place,
            self._mesh,
            started_ns=self._started_ns,
            ended_ns=ended_ns,
            probes=probes,
            overhead=overhead,
            notes=tuple(self._notes),
        )


def outcome_of(error: BaseException | None) -> Outcome:
    """The outcome of a run, from the exception that left the session's block, if any."""
    if isinstance(error, KeyboardInterrupt | Terminated):
        return "interrupted"
    if isinstance(error, SystemExit):
        return "completed" if error.code in (None, 0) else "failed"
    return "failed" if isinstance(error, Exception) else "completed"


# A session: the probes of one rank, from the first step to the last ------------------------------

_CLOSING_S = 60.0  # time limit for saving in the main thread after SIGTERM

_DRAIN_S = 0.02  # how long the last record of a block may delay the next block

_active: Session | None = None

Clock = Callable[[], int]


def session(
    out: str | os.PathLike[str],
    *,
    options: ProbeOptions | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Any = None,
    coordinates: Mapping[str, int] | None = None,
) -> Session:
    """Start recording the training of this process.

    Args:
        out: The run directory, the same for all ranks; created if it is missing.
        options: Which probes run and when, the same for all ranks; by default the options that
            a launcher passed in the environment.
        rank: Global rank; by default from torchrun, SLURM or MPI, else 0.
        world_size: Number of ranks in the job; by default from the same sources.
        mesh: Mesh axis to size, slowest varying first, or a torch ``DeviceMesh``.
        coordinates: This rank's index along each axis; not needed with a ``DeviceMesh``.

    Returns:
        The session. Use it as a context manager, or end it with :meth:`Session.close`.

    Raises:
        UsageError: If the options cannot be read. It raises nothing else.
    """
    chosen = options if options is not None else options_from_environment()
    chosen.profiles(0)  # report a misspelt list of ranks to the caller at once
    return Session(
        Path(out),
        options=chosen,
        rank=rank,
        world_size=world_size,
        mesh=mesh,
        coordinates=coordinates,
    )


def current() -> Session | None:
    """The session that is open in this process, if any."""
    return _active if _active is not None and _active.is_open else None


class Session:
    """The probes of one rank; created by :func:`session`.

    Attributes:
        run_dir: The run directory.
        rank_dir: This rank's directory in it.
        rank: Global rank.
        placement: Where this rank runs.
        options: As given.
        mesh: Sizes and this rank's coordinates, if known.
        plan: What happens in each step.
        current_step: Number of the current step, from 0.
        is_open: True until :meth:`close`.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        options: ProbeOptions,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        coordinates: Mapping[str, int] | None = None,
        probes: list[Probe] | None = None,
        clock: Clock = time.time_ns,
        timer: Clock = time.perf_counter_ns,
    ) -> None:
        place = placement()
        if rank is not None:
            place = replace(place, rank=rank)
        if world_size is not None:
            place = replace(place, world_size=world_size)
        self.run_dir = run_dir
        self.placement = place
        self.rank = place.rank
        self.rank_dir = run_dir / RANK_DIR_FORMAT.format(rank=self.rank)
        self.options = options
        self.plan = make_plan(
            options, is_traced=options.profiles(self.rank), num_ranks=place.world_size
        )
        self.current_step = 0
        self.is_open = True
        self.mesh = mesh_of(mesh, coordinates)
        self._clock, self._timer = clock, timer
        self._pid = os.getpid()
        self._thread: int | None = None
        self._is_paused = False
        self._has_given_up = False
        self._closing = threading.Lock()
        self._closed = threading.Event()
        self._last_ns = self._step_start_ns = clock()
        self._files = SessionFiles(run_dir, self.rank_dir, place, self.mesh, self._last_ns)
        self._meter = OverheadMeter(self.plan)
        self._panel = Panel(self, probes)
        self._begin()

    # Called by training -------------------------------------------------------------------------

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Attribute the time inside the block to a part of the step.

        Args:
            name: ``input``, ``forward``, ``backward``, ``optimizer``, or your own. Phases may be
                nested, and repeated within a step.
        """
        return self._phase(name)

    def step(
        self, *, loss: Any = None, tokens: int | None = None, samples: int | None = None
    ) -> None:
        """End a step (one optimizer update) and start the next.

        Args:
            loss: A number, or a tensor of one element on any device. Reading it does not wait for
                the GPU.
            tokens: Tokens that this rank trained on in the step.
            samples: Samples that this rank trained on in the step.
        """
        if not self._is_ours("step"):
            return
        try:
            self._end_step(loss, tokens, samples)
        except Exception as error:
            self._give_up(error)

    def watch(self, *modules: Any) -> None:
        """Record the routing of the mixture-of-experts layers in ``modules``."""
        self._panel.call_by_name("moe_routing", "watch", *modules)

    def record_routing(
        self,
        layer: str | int,
        tokens_per_expert: Any,
        *,
        num_tokens: int,
        top_k: int,
        micro_batch: int | None = None,
        capacity: int | None = None,
        dropped: Any = 0,
        aux_loss: Any = None,
    ) -> None:
        """Record how one layer routed the tokens of one micro-batch.

        Args:
            layer: Index or name of the layer.
            tokens_per_expert: Number of assignments to each expert, all experts: numbers or a
                tensor.
            num_tokens: Tokens routed.
            top_k: Experts per token.
            micro_batch: Index within the step; counted per layer if None.
            capacity: Maximum number of assignments per expert, None if unlimited.
            dropped: Assignments over capacity, a number or a tensor.
            aux_loss: Load-balancing loss, a number or a tensor.
        """
        if self._is_paused:
            return
        self._panel.call_by_name(
            "moe_routing",
            "record_routing",
            layer,
            tokens_per_expert,
            num_tokens=num_tokens,
            top_k=top_k,
            micro_batch=micro_batch,
            capacity=capacity,
            dropped=dropped,
            aux_loss=aux_loss,
        )

    def note(self, text: str) -> None:
        """Add a sentence to ``rank.json``; the same one is kept once."""
        self._files.note(text)

    def close(self, error: BaseException | None = None) -> None:
        """End the session: stop the probes and write everything. Safe to call twice.

        Args:
            error: Why training stopped, unless it finished normally.
        """
        if os.getpid() != self._pid or not self._closing.acquire(blocking=False):
            return
        try:
            self._end(error)
        except Exception as failure:
            _log.warning("distprof: closing the session failed: %s", failure)
        finally:
            self.is_open = False
            self._closed.set()
            atexit.unregister(self.close)

    def close_on_sigterm(self) -> None:
        """On SIGTERM, close cleanly and exit, even while the main thread hangs in a collective.

        Only for programs that own their main thread. By default, a session handles no signals.
        """
        close_on_sigterm(self._close_from_elsewhere)

    def _close_from_elsewhere(self) -> None:
        self.close(Terminated())
        self._closed.wait(_CLOSING_S)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(error)

    # Beginning ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        global _active  # one session per process: two would record each other
        other = current()
        if other is not None:
            self.note(f"another session is open in this process ({other.run_dir}): probes are off")
            self._panel.turn_off(f"another session is open in this process: {other.run_dir}")
        else:
            _active = self
        atexit.register(self.close)
        try:
            self.rank_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._give_up(error)
            return
        self._panel.start()
        self._files.begin(self.options, self.status())
        self._guarded_boundary()

    def _guarded_boundary(self) -> None:
        try:
            self._switch_probes(0)
            self._panel.between_steps(0)
            self._mark = self._timer()
            if not self._is_paused:
                self._panel.step_started(0)
            self._step_start_ns = self._now()
        except Exception as error:
            self._give_up(error)

    # A step ---------------------------------------------------------------------------------------

    def _end_step(self, loss: Any, tokens: int | None, samples: int | None) -> None:
        step, end_ns = self.current_step, self._now()
        traced = self._panel.end_mark(step)
        self._step_log_write(step, end_ns, loss, tokens, samples, traced)
        if not self._is_paused:
            self._panel.step_ended(step)
        self._meter.record(step, self._timer() - self._mark)
        if self._meter.completes_always_on(step):
            self._publish_cost()
        self.current_step = step + 1
        took_long = self._switch_probes(step + 1)
        took_long |= self._panel.between_steps(step + 1)
        self._step_start_ns = self._now() if took_long else end_ns
        self._mark = self._timer()
        if not self._is_paused:
            self._panel.step_started(step + 1)

    def _publish_cost(self) -> None:
        """Publish the cost of the probes for ``distprof watch``; a slow disk slows no step."""

        def publish() -> None:
            cost = self._meter.always_on()
            if not isinstance(cost, str):
                self._files.measured(self.status(), (cost,))

        with suppress(RuntimeError):  # no thread can be started: end() writes it
            threading.Thread(target=publish, name="distprof-cost", daemon=True).start()

    def _step_log_write(
        self,
        step: int,
        end_ns: int,
        loss: Any,
        tokens: int | None,
        samples: int | None,
        traced: Traced,
    ) -> None:
        log = self._panel.step_log
        if log is not None:
            log.write(
                step=step,
                start_ns=self._step_start_ns,
                end_ns=end_ns,
                loss=loss,
                tokens=tokens,
                samples=samples,
                traced=traced,
                is_probed=not self._is_paused,
            )

    def _switch_probes(self, step: int) -> bool:
        """Pause or resume the probes as planned; return whether that took time."""
        should_pause = step in self.plan.paused
        is_pausing = should_pause and not self._is_paused
        if is_pausing:
            self._panel.pause()
            drain(_DRAIN_S)  # between steps: with a core to spare, writing slows no step
        elif self._is_paused and not should_pause:
            self._panel.resume()
        self._is_paused = should_pause
        return is_pausing

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        if self._is_paused or not self._is_ours("phase"):
            yield
            return
        self._panel.phase_started(name)
        start_ns = self._now()
        mark = self._panel.open_mark(name)
        try:
            yield
        finally:
            self._panel.close_mark(mark)
            if self.is_open and not self._is_paused:
                self._panel.phase_ended(name, start_ns, self._now())

    def _is_ours(self, what: str) -> bool:
        """Whether the caller is the training thread of the training process."""
        if not self.is_open or self._has_given_up or os.getpid() != self._pid:
            return False
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
            drain_when_this_thread_ends()
        if thread != self._thread:
            self.note(f"{what}() was called from a second thread and ignored")
            return False
        return True

    def _now(self) -> int:
        """Wall clock, ns since the epoch. Never decreases, although the system clock may."""
        self._last_ns = max(self._last_ns, self._clock())
        return self._last_ns

    # Ending ---------------------------------------------------------------------------------------

    def _end(self, error: BaseException | None) -> None:
        global _active
        if self._is_paused:
            self._panel.resume()
            self._is_paused = False
        outcome = outcome_of(error)
        if error is not None and outcome == "failed":
            self._files.error(error, self.current_step - 1)
        if outcome != "completed":
            self._panel.failed()
        self._panel.stop()
        if _active is self:
            _active = None
        overhead = self._overhead()  # before the files: it may add notes
        self._files.end(outcome, self.status(), overhead, self._now())

    def _overhead(self) -> tuple[Overhead, ...]:
        """The measured overheads. The notes give the reason for a missing one."""
        asked = [self._meter.always_on()] if self.plan.pairs else []
        light, full = self._panel.recorded_steps("light"), self._panel.recorded_steps("full")
        if light:
            asked.append(self._meter.light(light))
        if full:
            asked += [self._meter.tracing(full), self._meter.after()]
        for answer in asked:
            if isinstance(answer, str):
                self.note(answer)
        return tuple(answer for answer in asked if not isinstance(answer, str))

    def status(self) -> tuple[ProbeStatus, ...]:
        """Status of each probe so far."""
        return self._panel.status()

    def _give_up(self, error: Exception) -> None:
        """The session itself failed: training continues without it."""
        self._has_given_up = True
        self.note(f"the session stopped: {type(error).__name__}: {error}")
        _log.warning(
            "distprof: probes stopped, training continues: %s: %s", type(error).__name__, error
        )
        self._panel.turn_off(f"the session stopped: {error}")
