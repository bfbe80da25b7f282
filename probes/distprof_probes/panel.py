"""Creates the probes of a session, calls them inside a guard and collects their states."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from inspect import isclass
from typing import Any, Literal

import msgspec

from distprof.artefacts.run_file import ProbeStatus
from distprof_probes.options import ProbeOptions
from distprof_probes.probe import Probe, Recording, Traced, Tracer, Unavailable, Yielded
from distprof_probes.probes.step_log import StepLog

State = Literal["on", "off", "unavailable", "yielded", "failed"]

_log = logging.getLogger("distprof.probes")

# Probe name, option, module. NCCL's environment must be set before anything else, and probes that
# use the socket of attach must stop before it.
_PROBES: tuple[tuple[str, str, str], ...] = (
    ("nccl_debug", "nccl_debug", "distprof_probes.probes.nccl_debug"),
    ("memory", "memory", "distprof_probes.probes.memory"),
    ("nvml", "nvml", "distprof_probes.probes.nvml"),
    ("pauses", "pauses", "distprof_probes.probes.pauses"),
    ("settings", "settings", "distprof_probes.probes.settings"),
    ("pipeline_marks", "pipeline_marks", "distprof_probes.probes.pipeline_marks"),
    ("moe_routing", "moe_routing", "distprof_probes.probes.moe_routing"),
    ("clock", "clock", "distprof_probes.probes.clock"),
    ("flight_recorder", "flight_recorder", "distprof_probes.probes.flight_recorder"),
    ("collective_times", "collective_times", "distprof_probes.probes.collective_times"),
    ("attach", "attach", "distprof_probes.attach.server"),
    ("profiler", "", "distprof_probes.probes.profiler"),
)

_MOMENTS = (
    *("step_started", "step_ended", "phase_started", "phase_ended"),
    *("between_steps", "open_mark", "end_mark"),
)
"""Methods that training calls, in each step or phase."""


class _Slot:
    """A probe and its state."""

    def __init__(
        self, name: str, probe: Probe | None, state: State = "on", reason: str = ""
    ) -> None:
        self.name = name
        self.probe = probe
        self.state: State = state
        self.reason = reason

    @property
    def is_on(self) -> bool:
        return self.probe is not None and self.state == "on"

    def status(self) -> ProbeStatus:
        try:
            own = self.probe.status() if self.probe else ProbeStatus(name=self.name, state="on")
        except Exception as error:
            own = ProbeStatus(name=self.name, state="failed", reason=_sentence(error))
        if self.state == "on":
            return own
        return msgspec.structs.replace(own, state=self.state, reason=self.reason)


class Panel:
    """All probes of a session.

    Args:
        session: The session that owns them.
        given: Replaces the probes that the options select; the step log is always included.
    """

    def __init__(self, session: Recording, given: Sequence[Probe] | None) -> None:
        self._session = session
        self._given = given
        self._slots: list[_Slot] = []
        self._refusal = ""
        self.step_log: StepLog | None = None  # The step log; None if it could not start.
        self._watchers: tuple[_Slot, ...] = ()
        self._tracers: tuple[_Slot, ...] = ()
        self._called: dict[str, tuple[_Slot, ...]] = {}

    def start(self) -> None:
        """Create and start the probes. Those that cannot run report why and are left out."""
        if self._refusal:
            return
        log = _Slot(StepLog.name, StepLog())
        self._slots = [log, *self._made()]
        for slot in self._slots:
            if slot.is_on:
                self._call(slot, "start", self._session)
        if log.is_on:
            self.step_log = log.probe  # type: ignore[assignment]
        self._sort()

    def turn_off(self, reason: str) -> None:
        """Stop all probes for this reason; those not created yet never will be."""
        self._refusal = reason
        if not self._slots:
            names = [StepLog.name, *(name for name, _, _ in _PROBES)]
            self._slots = [_Slot(name, None, "off", reason) for name in names]
        for slot in self._slots:
            if slot.is_on:
                self._end(slot, "failed", reason)
        self._sort()

    # Called at each step, from the training thread ------------------------------------------------

    def step_started(self, step: int) -> None:
        """A step starts in which the probes record."""
        self._call_each("step_started", step)

    def end_mark(self, step: int) -> Traced:
        """Close the step's mark in the trace and return what was recorded of the step."""
        return next(filter(None, self._call_each("end_mark", step)), "")

    def step_ended(self, step: int) -> None:
        """A step ends in which the probes recorded."""
        self._call_each("step_ended", step)

    def between_steps(self, next_step: int) -> bool:
        """Let the tracers start, stop and save; return whether that took time."""
        return any(self._call_each("between_steps", next_step))

    def phase_started(self, name: str) -> None:
        """Report the start of a phase to the probes that record phases."""
        self._call_each("phase_started", name)

    def phase_ended(self, name: str, start_ns: int, end_ns: int) -> None:
        """Report a phase to the probes that record phases."""
        self._call_each("phase_ended", name, start_ns, end_ns)

    def open_mark(self, name: str) -> list[AbstractContextManager[Any]]:
        """Open a mark in the trace, if one is being recorded; pass it to :meth:`close_mark`."""
        return [mark for mark in self._call_each("open_mark", name) if mark is not None]

    def close_mark(self, marks: list[AbstractContextManager[Any]]) -> None:
        """Close a mark in the trace."""
        for mark in marks:
            try:
                mark.__exit__(None, None, None)
            except Exception as error:
                self._session.note(f"a mark in the trace was not closed: {_sentence(error)}")

    def pause(self) -> None:
        """Pause all probes except tracers."""
        for slot in self._watchers:
            self._call(slot, "pause")

    def resume(self) -> None:
        """Resume the paused probes."""
        for slot in self._watchers:
            self._call(slot, "resume")

    def call_by_name(self, name: str, method: str, *args: Any, **keywords: Any) -> None:
        """Call a method that only this probe has; do nothing if the probe is not on."""
        for slot in self._slots:
            if slot.name == name and slot.is_on:
                self._call(slot, method, *args, **keywords)

    # Ending ---------------------------------------------------------------------------------------

    def failed(self) -> None:
        """Training stopped with an exception: tracers save what helps to find its cause."""
        for slot in self._tracers:
            self._call(slot, "failed")

    def stop(self) -> None:
        """Stop all probes and close their files."""
        for slot in self._slots:
            if slot.is_on:
                self._end(slot, "on", "")
        self._assign(())
        self.step_log = None

    def status(self) -> tuple[ProbeStatus, ...]:
        """Status of each probe so far."""
        return tuple(slot.status() for slot in self._slots)

    def recorded_steps(self, what: Traced) -> tuple[int, ...]:
        """Steps that were recorded from start to end in this way."""
        of_slots = (getattr(slot.probe, "recorded_steps", {}) for slot in self._slots)
        return tuple(sorted({step for steps in of_slots for step in steps.get(what, ())}))

    # The guard ------------------------------------------------------------------------------------

    def _call_each(self, moment: str, *args: Any) -> list[Any]:
        return [self._call(slot, moment, *args) for slot in self._called.get(moment, ())]

    def _call(self, slot: _Slot, method: str, *args: Any, **keywords: Any) -> Any:
        try:
            return getattr(slot.probe, method)(*args, **keywords)
        except Yielded as why:
            self._end(slot, "yielded", why.reason)
        except Unavailable as why:
            self._end(slot, "unavailable", why.reason)
        except Exception as error:
            self._end(slot, "failed", f"{method}: {_sentence(error)}")
        self._sort()
        return None

    def _end(self, slot: _Slot, state: State, reason: str) -> None:
        probe = slot.probe
        slot.state, slot.reason = state, reason
        if state == "failed":
            _log.warning("distprof: probe %s stopped, training continues: %s", slot.name, reason)
        if probe is None:
            return
        try:
            probe.stop()
        except Unavailable as why:  # the probe finds out only now that there was nothing to record
            slot.state, slot.reason = "unavailable", why.reason
        except Exception as error:
            if state == "on":
                slot.state, slot.reason = "failed", f"stop: {_sentence(error)}"
        if probe.writer is not None:
            probe.writer.close()

    def _sort(self) -> None:
        self._assign([slot for slot in self._slots if slot.is_on])
        if self.step_log is not None and not self._slots[0].is_on:
            self.step_log = None

    def _assign(self, on: Sequence[_Slot]) -> None:
        """Assign probes to the moments at which they act: even an empty call would cost time."""
        self._tracers = tuple(slot for slot in on if isinstance(slot.probe, Tracer))
        self._watchers = tuple(slot for slot in on if not isinstance(slot.probe, Tracer))
        ordered = (*self._watchers, *self._tracers)
        self._called = {
            moment: tuple(slot for slot in ordered if _has(slot, moment)) for moment in _MOMENTS
        }

    def _made(self) -> list[_Slot]:
        if self._given is not None:
            return [_Slot(probe.name, probe) for probe in self._given]
        return [self._make(name, option, module) for name, option, module in _PROBES]

    def _make(self, name: str, option: str, module: str) -> _Slot:
        options = self._session.options
        why_not = _why_off(options, option, self._session.rank)
        if why_not:
            return _Slot(name, None, "off", why_not)
        try:
            return _Slot(name, _probe_in(module))
        except ImportError as error:
            return _Slot(name, None, "unavailable", f"import failed: {error}")


def _why_off(options: ProbeOptions, option: str, rank: int) -> str:
    if options.mode == "off":
        return "mode=off"
    if option:
        return "" if getattr(options, option) else "switched off"
    if options.mode != "window":
        return f"mode={options.mode}"
    return "" if options.profiles(rank) else f"only these ranks are traced: {options.profile_ranks}"


def _probe_in(module: str) -> Probe:
    """The only subclass of :class:`Probe` that the module defines."""
    loaded = importlib.import_module(module)
    found = [
        value
        for value in vars(loaded).values()
        if isclass(value) and issubclass(value, Probe) and value.__module__ == module
    ]
    if len(found) != 1:
        raise ImportError(f"{module} defines {len(found)} probes instead of one")
    return found[0]()


def _has(slot: _Slot, moment: str) -> bool:
    """Whether the probe of this slot acts at that moment; only tracers have some of the methods."""
    nothing = getattr(Tracer, moment)
    return getattr(type(slot.probe), moment, nothing) is not nothing


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
