"""The base class of probes. A probe observes one aspect of training and records it.

A probe never stops training. The session calls it inside a guard: an exception disables the probe,
appears in run.json as its state and does not propagate. In the steps that measure overhead (between
:meth:`Probe.pause` and :meth:`Probe.resume`) a probe does nothing: its threads do not run, and its
hooks return at once.

A probe's module defines exactly one subclass of :class:`Probe`, constructed without arguments.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from distprof.artefacts.records import Header
from distprof.artefacts.run_file import ProbeStatus
from distprof_probes.records import RecordWriter

if TYPE_CHECKING:
    from distprof_probes.environment import Placement
    from distprof_probes.options import ProbeOptions
    from distprof_probes.plan import Plan
    from distprof_probes.rank_file import Mesh

Traced: TypeAlias = Literal["", "light", "full"]
"""What was recorded of a step: nothing, the GPU alone, or also the CPU's operators."""


class Recording(Protocol):
    """What a probe sees of its session."""

    run_dir: Path  # The run directory.
    rank_dir: Path  # This rank's directory in it.
    rank: int  # Global rank.
    placement: Placement  # Where this rank runs.
    options: ProbeOptions  # Which probes run and when.
    mesh: Mesh  # Sizes and this rank's coordinates, if known.
    plan: Plan  # What happens in each step.
    current_step: int  # Number of the current step, from 0.

    def note(self, text: str) -> None:
        """Add a sentence to ``rank.json``."""
        ...


class Unavailable(Exception):  # noqa: N818  # a state, not a fault
    """This probe cannot run here, for this reason; raised by :meth:`Probe.start` or later."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Yielded(Unavailable):
    """The probe stopped because the user's own profiler is running."""


class Probe:
    """Base of all probes. The session calls these methods from the training thread.

    Attributes:
        name: Its name in run.json.
        writer: Writer of its line-wise file; None if it has none.
        remark: One sentence for run.json when the probe works; usually empty.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self.writer: RecordWriter | None = None
        self.remark = ""
        self.num_records = 0  # of probes that write no line-wise file
        self.num_dropped = 0

    def start(self, session: Recording) -> None:
        """Start the probe; Unavailable if it cannot run here."""

    def step_started(self, step: int) -> None:
        """A step starts in which this probe records."""

    def step_ended(self, step: int) -> None:
        """A step ends in which this probe recorded."""

    def phase_started(self, name: str) -> None:
        """A phase of the step starts. Called only if the probe also has :meth:`phase_ended`."""

    def phase_ended(self, name: str, start_ns: int, end_ns: int) -> None:
        """A phase of the step ended. Times are in ns since the epoch."""

    def pause(self) -> None:
        """Stop all activity, threads and hooks included, until :meth:`resume`."""

    def resume(self) -> None:
        """Record again."""

    def stop(self) -> None:
        """Stop for good: restore all changes, end threads. The session closes the writer."""

    def open_writer(
        self, session: Recording, file: str, schema: str, about: dict[str, Any] | None = None
    ) -> RecordWriter:
        """Open the writer of this probe's file in the rank's directory and write its header."""
        header = Header(schema=schema, rank=session.rank, about=about or {})
        limit = session.options.queue_records
        self.writer = RecordWriter(session.rank_dir / file, header, limit=limit)
        return self.writer

    def status(self) -> ProbeStatus:
        """Its own view of its status; the session adds the failures that it caught."""
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
    """A probe that runs in the traced window only and needs time between steps.

    Tracers are not part of the always-on blocks: they are neither paused nor resumed.
    """

    def between_steps(self, next_step: int) -> bool:  # noqa: ARG002
        """Prepare, start, stop or save. Called between two steps and before the first.

        Returns whether it did any of these. That time then belongs to no step.
        """
        return False

    def end_mark(self, step: int) -> Traced:  # noqa: ARG002
        """Close the mark of the step that ends; return what was recorded of the whole step."""
        return ""

    def open_mark(self, name: str) -> AbstractContextManager[Any] | None:  # noqa: ARG002
        """Enter a mark in the trace for a phase; None while nothing is recorded."""
        return None

    def failed(self) -> None:
        """Training stopped with an exception: save what helps to find its cause."""
