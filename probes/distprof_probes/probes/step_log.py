"""The step log: start and end of each step, its phases, and its loss, tokens and samples."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from distprof.artefacts import STEPS_FILE
from distprof.artefacts.records import Phase, StepRecord
from distprof_probes.gpu_pace import GpuPace
from distprof_probes.host_copy import HostCopy
from distprof_probes.probe import Probe, Traced
from distprof_probes.run_queue import CpuTime, RunQueue

INPUT = "input"
"""The phase in which a sleeping rank waits for its own data, not for another rank."""


class StepLog(Probe):
    """Writes ``steps.jsonl`` in every step; in paused steps it records no phases."""

    name = "step_log"

    def __init__(self) -> None:
        super().__init__()
        self._phases: list[Phase] = []
        self._queue = RunQueue()
        self._pace = GpuPace()
        self._input_began: CpuTime | None = None
        self._input_asleep_ns: int | None = None

    def start(self, session: Any) -> None:
        """Open the file."""
        self.open_writer(session, STEPS_FILE, "distprof.steps/1")

    def stop(self) -> None:
        """Close the file through which the thread is observed."""
        self._queue.close()

    def phase_started(self, name: str) -> None:
        """Note how long the thread has run, for phases in which its sleep is recorded."""
        if name == INPUT:
            self._input_began = self._queue.total()

    def phase_ended(self, name: str, start_ns: int, end_ns: int) -> None:
        """Keep the phase for the record of the current step."""
        self._phases.append(Phase(name, start_ns, end_ns))
        if name == INPUT and self._input_began is not None:
            asleep_ns = self._queue.asleep_ns(self._input_began, end_ns - start_ns)
            if asleep_ns is not None:
                self._input_asleep_ns = (self._input_asleep_ns or 0) + asleep_ns
            self._input_began = None

    def write(
        self,
        *,
        step: int,
        start_ns: int,
        end_ns: int,
        loss: Any,
        tokens: int | None,
        samples: int | None,
        traced: Traced,
        is_probed: bool,
    ) -> None:
        """Write the record of the step that ended, with times in ns since the epoch.

        The loss is a number, a tensor of one element on any device, or None. Tokens and samples are
        those of this rank.
        """
        phases, self._phases = self._phases, []
        cpu = self._queue.since_last()
        asleep_ns, self._input_asleep_ns = self._input_asleep_ns, None
        record = StepRecord(
            step=step,
            start_ns=start_ns,
            end_ns=end_ns,
            phases=_within(phases, start_ns, end_ns),
            tokens=tokens,
            samples=samples,
            num_micro_batches=sum(phase.name == "forward" for phase in phases) or None,
            run_queue_ns=cpu.waited_ns,
            cpu_ns=cpu.ran_ns,
            input_asleep_ns=asleep_ns,
            is_traced=bool(traced),
            is_light=traced == "light",
            gpu_behind=self._gpu_behind(is_probed=is_probed),
            is_probed=is_probed,
        )
        if self.writer is not None:
            self.writer.put(self._with_loss(record, loss))

    def _gpu_behind(self, *, is_probed: bool) -> bool | None:
        if not is_probed:
            self._pace.forget()
            return None
        return self._pace.step_ended()

    def _with_loss(self, record: StepRecord, loss: Any) -> StepRecord | _LossToCome:
        if loss is None:
            return record
        if not hasattr(loss, "detach"):
            return self._finite(record, float(loss))
        if loss.numel() != 1:
            self.remark = (
                f"the loss of step {record.step} has {loss.numel()} elements: not recorded"
            )
            return record
        copy = HostCopy(loss)
        if copy.is_ready():
            return self._finite(record, copy.values()[0])
        return _LossToCome(self, record, copy)

    def _finite(self, record: StepRecord, loss: float) -> StepRecord:
        if math.isfinite(loss):
            return msgspec.structs.replace(record, loss=loss)
        self.remark = self.remark or f"the loss was first {loss} in step {record.step}"
        return record


class _LossToCome:
    """A step's record that waits for its loss."""

    def __init__(self, log: StepLog, record: StepRecord, copy: HostCopy) -> None:
        self._log = log
        self._record = record
        self._copy = copy

    def resolve(self, *, is_last_chance: bool) -> StepRecord | None:
        """The record once the loss has arrived, or without the loss at the last chance."""
        if self._copy.is_ready():
            return self._log._finite(self._record, self._copy.values()[0])
        return self._record if is_last_chance else None


def _within(phases: list[Phase], start_ns: int, end_ns: int) -> tuple[Phase, ...]:
    """Phases in order of time; one that started before the step is cut at its start."""
    inside = (Phase(p.name, max(p.start_ns, start_ns), min(p.end_ns, end_ns)) for p in phases)
    return tuple(sorted(inside, key=lambda p: (p.start_ns, -p.end_ns)))
