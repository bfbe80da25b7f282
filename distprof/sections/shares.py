"""Mean step of a run: what rules measure shares and costs against."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.capture.result import CaptureResult
from distprof.sections.collectives.result import CollectiveClass, CollectivesResult
from distprof.sections.overlap.result import OverlapResult
from distprof.sections.time.result import RankWaterfall, StepTimeResult, WaterfallResult
from distprof.terms import CollectiveKind, MeshAxis
from distprof.units import format_bytes, format_duration, format_ratio

__all__ = [
    "WIDER_TRANSFER",
    "WIDER_WAIT",
    "MeanStep",
    "collective_label",
    "has_all_members",
    "hideable_ns",
    "mean_step",
    "only_messages",
    "split_classes",
]


MOST_INCOMPLETE_RATIO = 0.5
"""From here on transfer and waiting for missing ranks are not told apart."""

WIDER_TRANSFER = ("COM101", "COM102", "COM104")
"""Findings on exposed transfer as such: for ``Draft.explains`` of those that name a reason."""

WIDER_WAIT = ("COM102", "COM103")
"""Findings on waiting for late ranks as such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStep:
    """The mean step over ranks and steps; without step marks, the mean rank's whole capture.

    Args:
        step_ns: Its length.
        word: ``step`` or ``capture``.
        num_samples: Ranks times steps.
        total: All ranks and steps added up.
    """

    step_ns: int
    word: str
    num_samples: int
    total: RankWaterfall

    def mean(self, total_ns: int) -> int:
        """A sum over all ranks and steps as a mean per rank and step, ns."""
        return total_ns // self.num_samples

    def ratio(self, mean_ns: float) -> float:
        """Share of the mean step."""
        return mean_ns / self.step_ns

    def share(self, mean_ns: int) -> str:
        """For example ``31.0 % of each step (6.90 ms of 22.3 ms)``."""
        of = "each step" if self.word == "step" else "the capture"
        times = f"{format_duration(mean_ns)} of {format_duration(self.step_ns)}"
        return f"{format_ratio(self.ratio(mean_ns))} of {of} ({times})"

    @property
    def exposed_transfer_ns(self) -> int:
        """Mean exposed transfer; includes what could not be split into transfer and waiting."""
        return self.mean(self.total.exposed_transfer_ns + self.total.exposed_comm_unsplit_ns)

    @property
    def exposed_wait_ns(self) -> int:
        """Mean exposed waiting in collectives."""
        return self.mean(self.total.exposed_wait_ns)

    @property
    def is_split(self) -> bool:
        """Whether waiting and transfer could be told apart for most of the exposed time."""
        total = self.total
        known = total.exposed_transfer_ns + total.exposed_wait_ns + total.exposed_p2p_wait_ns
        return known >= total.exposed_comm_unsplit_ns


def mean_step(waterfall: WaterfallResult, step_time: StepTimeResult) -> MeanStep:
    """The mean step.

    Raises:
        InsufficientEvidenceError: If no time was analysed.
    """
    total = waterfall.all
    samples = waterfall.num_ranks * max(waterfall.num_steps, 1)
    if total is None or samples == 0 or total.span_ns < samples:
        why = "; ".join(waterfall.unavailable)
        raise InsufficientEvidenceError("no step was measured" + (f": {why}" if why else ""))
    return MeanStep(
        step_ns=total.span_ns // samples,
        word="capture" if step_time.median_ns is None else "step",
        num_samples=samples,
        total=total,
    )


def has_all_members(capture: CaptureResult) -> bool:
    """Whether transfer can be trusted: else it may be waiting for ranks that are not recorded."""
    return (capture.incomplete_ratio or 0.0) <= MOST_INCOMPLETE_RATIO


def hideable_ns(step: MeanStep, overlap: OverlapResult) -> int:
    """Exposed transfer that computation now running alone could have hidden, mean per step.

    No more than the exposed transfer, and no more than the computation without communication
    beside it: the part beyond is bound by the network however well the program overlaps.
    """
    alone = sum(rank.computation_ns - rank.overlapped_ns for rank in overlap.ranks)
    return min(step.exposed_transfer_ns, step.mean(alone))


_POINT_TO_POINT = frozenset(kind.label for kind in CollectiveKind if kind.is_point_to_point)


def split_classes(collectives: CollectivesResult) -> list[CollectiveClass]:
    """Classes whose waiting and transfer are told apart; not send and recv.

    Waiting in a pipeline's messages is its bubble, and no matter of late ranks.
    """
    return [
        record
        for record in collectives.classes
        if record.kind not in _POINT_TO_POINT and record.exposed_wait_ns_per_step is not None
    ]


def only_messages(collectives: CollectivesResult) -> bool:
    """Whether nothing but send and recv was recorded."""
    return all(record.kind in _POINT_TO_POINT for record in collectives.classes)


def collective_label(record: CollectiveClass) -> str:
    """For example ``all_reduce in dp_shard (26.2 MB)``: the axis, or the group where none says."""
    name = record.group if record.axis in (None, MeshAxis.WORLD) else record.axis
    group = f" in {name}" if name else ""
    size = f" ({format_bytes(record.bytes)})" if record.bytes is not None else ""
    return f"{record.kind}{group}{size}"
