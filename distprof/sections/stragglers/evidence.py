"""What may show why a rank is late, and how it is said."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np

from distprof.schema import Floats, Int64Array
from distprof.sections.context import RankAnalysis
from distprof.sections.idle.measure import HostPauses
from distprof.sections.own_time import OwnTime
from distprof.sections.stragglers import SequenceImbalance
from distprof.sections.telemetry import TelemetryResult
from distprof.terms import StragglerCause
from distprof.units import format_duration


class Cause(msgspec.Struct, frozen=True):
    """Why a rank is late."""

    cause: StragglerCause
    evidence: tuple[str, ...] = ()  # Sentences.
    detail: str = ""  # Detail of the cause, for example the kind of work; empty if unknown.
    confidence: float = 0.0  # Confidence in the cause, 0 to 1.
    # Whether counts of kernels, thread blocks or tokens prove more work, and not only kernel
    # durations.
    is_counted: bool = False


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements that may show why a rank is late."""

    analyses: Mapping[int, RankAnalysis]  # Analyses of all ranks.
    mean_step: float  # Their mean step, ns.
    own_time: OwnTime  # Own time of all ranks.
    pauses: Mapping[int, HostPauses]  # Probe records of each rank's training thread.
    telemetry: TelemetryResult | None = None  # GPU sensors, which may show why a GPU is slow.
    # Computation that differs with sequence lengths, if it does.
    sequences: SequenceImbalance | None = None
    exchanged: Mapping[int, float] = {}  # Amount that the all-to-alls of each rank carry.
    # Ranks that share CPUs with another rank while all of these CPUs are busy.
    crowded: Collection[int] = ()

    @property
    def is_cpu(self) -> bool:
        """Whether no GPU computes."""
        return all(analysis.is_cpu for analysis in self.analyses.values())

    def is_crowded(self, late: Late) -> bool:
        """Whether a rank shares busy CPUs with another rank."""
        return self.own_time.ranks[late.position] in self.crowded

    def recorded(self, field: str, steps: Sequence[int]) -> Floats | None:
        """Mean time of each rank in these steps, ns; None unless all ranks recorded it."""
        times = self.recorded_by_step(field, steps)
        return None if times is None else times.mean(axis=1)

    def recorded_by_step(self, field: str, steps: Sequence[int]) -> Int64Array | None:
        """The same for each step, shape (ranks, steps); 0 where a rank recorded none."""
        records = [getattr(self.pauses.get(rank), field, None) for rank in self.own_time.ranks]
        present = [times for times in records if times is not None]
        if len(present) < len(records) or not len(steps):
            return None
        table = np.zeros((len(records), self.own_time.num_steps), dtype=np.int64)
        for row, times, rank in zip(table, present, self.own_time.ranks, strict=True):
            own = self.analyses[rank].steps
            row[: len(own)] = [times.get(step.step, 0) for step in own]
        return table[:, list(steps)]


class Late(msgspec.Struct, frozen=True):
    """A rank and the steps in which it was late."""

    position: int  # Position of the rank in ``own_time``.
    steps: Sequence[int]  # Indices of these steps.
    ns: float  # Its mean lateness, or cost to the others, in one of these steps.

    def mean(self, part: Int64Array) -> float:
        """Mean of the rank over its late steps, from a table of ranks and steps."""
        return float(part[self.position, list(self.steps)].mean())

    def others(self, own_time: OwnTime) -> list[int]:
        """Positions of the other ranks among its peers."""
        return [peer for peer in own_time.peers[self.position] if peer != self.position]


class Excess(msgspec.Struct, frozen=True):
    """Time per late step that a rank spends on something, above the median of its peers."""

    what: str
    ns: float
    peers_ns: float

    @staticmethod
    def of(late: Late, what: str, values: Int64Array, beyond: Floats) -> Excess:
        """From a table of ranks and steps, and its values above the peers'."""
        if len(late.steps) == 0 or len(values) < 2:
            return Excess(what, 0.0, 0.0)
        steps = list(late.steps)
        own, more = values[late.position, steps], beyond[late.position, steps]
        return Excess(what, float(more.mean()), float((own - more).mean()))

    @property
    def text(self) -> str:
        """As a sentence of evidence."""
        return (
            f"{self.what} takes {format_duration(self.ns + self.peers_ns)} in a late step, "
            f"compared with a median of {format_duration(self.peers_ns)} on its peers"
        )

    def share(self, lateness_ns: float) -> float:
        """Explained share of the lateness, as a confidence."""
        return min(0.99, max(self.ns, 0.0) / max(lateness_ns, 1.0))
