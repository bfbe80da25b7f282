"""What a probe is: something that watches one aspect of training and writes it down.

A probe never stops training. The session calls it within a guard: what it raises disables it, is
shown in run.json as its state, and goes no further. In the steps that are left alone to measure
overhead (between :meth:`Probe.pause` and :meth:`Probe.resume`) it does nothing at all: no thread of
its own runs, no hook of its own does more than return.

A module that holds a probe defines exactly one subclass of :class:`Probe`, made without arguments.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from distprof.artefacts.records import Header
from distprof.artefacts.run_file import ProbeStatus
from distprof_probes.records import RecordWriter

if TYPE_CHECKING:
    from distprof_probes.session import Session

__all__ = ["Probe", "Tracer", "Unavailable", "Yielded"]


class Unavailable(Exception):  # noqa: N818  # a state, not a fault
    """This probe cannot work here; raised by :meth:`Probe.start` or later.

    Args:
        reason: One sentence for run.json.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Yielded(Unavailable):
    """The probe gives way to the user's own profiler."""


class Probe:
    """Base of all probes. The session calls these from the training thread.

    Attributes:
        name: As in run.json.
        writer: Its line-wise file; None if it writes none.
        remark: One sentence for run.json although all is well; mostly empty.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self.writer: RecordWriter | None = None
        self.remark = ""
        self.num_records = 0  # of probes that write no line-wise file
        self.num_dropped = 0

    def start(self, session: Session) -> None:
        """Begin.

        Raises:
            Unavailable: If it cannot work here.
        """

    def step_started(self, step: int) -> None:
        """A step begins in which this probe watches."""

    def step_ended(self, step: int) -> None:
        """A step ends in which this probe watched."""

    def phase_ended(self, name: str, start_ns: int, end_ns: int) -> None:
        """A phase of the step ended, times in ns since the epoch."""

    def pause(self) -> None:
        """Be silent until :meth:`resume`, to the last thread and hook."""

    def resume(self) -> None:
        """Watch again."""

    def stop(self) -> None:
        """End for good: restore what was changed, let threads go. The session closes the writer."""

    def open_writer(
        self, session: Session, file: str, schema: str, about: dict[str, Any] | None = None
    ) -> RecordWriter:
        """The writer of this probe's file in the rank's directory, with its header.

        Raises:
            OSError: If the file cannot be made.
        """
        header = Header(schema=schema, rank=session.rank, about=about or {})
        limit = session.options.queue_records
        self.writer = RecordWriter(session.rank_dir / file, header, limit=limit)
        return self.writer

    def status(self) -> ProbeStatus:
        """What it did so far, as far as it knows; the session adds failures it caught."""
        if self.writer is None:
            return ProbeStatus(
                name=self.name,
                state="on",
                reason=self.remark,
                num_records=self.num_records,
                num_dropped=self.num_dropped,
            )
        problem = self.writer.problem
        return ProbeStatus(
            name=self.name,
            state="failed" if problem else "on",
            reason=problem or self.remark,
            num_records=self.writer.num_records + self.num_records,
            num_dropped=self.writer.num_dropped + self.num_dropped,
        )


class Tracer(Probe):
    """A probe that works in the traced window only and takes long between steps.

    Tracers take no part in the always-on blocks: they are neither paused nor resumed.
    """

    def between_steps(self, next_step: int) -> bool:  # noqa: ARG002
        """Prepare, start, stop or save; called between two steps, and before the first.

        Returns:
            Whether it did any of these. The time it took then belongs to no step.
        """
        return False

    def end_mark(self, step: int) -> bool:  # noqa: ARG002
        """The step ends now: close its mark. Returns whether all of the step was recorded."""
        return False

    def open_mark(self, name: str) -> AbstractContextManager[Any] | None:  # noqa: ARG002
        """An entered mark in the trace for a phase; None while nothing is recorded."""
        return None

    def failed(self) -> None:
        """Training stops with an exception: save what helps to find out why."""
