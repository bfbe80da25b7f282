"""Mean step of a run, which rules use for shares and costs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import msgspec
from msgspec.structs import replace

from distprof.artefacts.record import Gap
from distprof.rules.base import Evidence, Finding, InsufficientEvidenceError
from distprof.rules.engine import is_on_recording
from distprof.sections.capture import CaptureResult
from distprof.sections.idle import IdleResult
from distprof.sections.overlap import OverlapResult
from distprof.sections.stragglers import StragglersResult
from distprof.sections.time import RankWaterfall, StepTimeResult, WaterfallResult
from distprof.terms import Confidence
from distprof.units import format_duration, format_ratio, name_ranks

MOST_INCOMPLETE_RATIO = 0.1
"""Share of incomplete collectives above which transfer and waiting for missing ranks cannot be
separated. The ragged ends of captures cause fewer, one missing rank of a group of eight more."""

WIDER_TRANSFER = ("COM101", "COM102", "COM104")
"""Findings on exposed transfer in general: for ``Draft.explains`` of findings with a reason."""

WIDER_WAIT = ("COM102", "COM103")  # Findings on waiting for late ranks in general


class MeanStep(msgspec.Struct, frozen=True, kw_only=True):
    """The mean step over ranks and steps; without step marks, the mean rank's whole capture."""

    step_ns: int  # Its length.
    word: str  # ``step`` or ``capture``.
    num_samples: int  # Ranks times steps.
    total: RankWaterfall  # Sum over all ranks and steps.

    def mean(self, total_ns: int) -> int:
        """A sum over all ranks and steps as a mean per rank and step, ns."""
        return total_ns // self.num_samples

    def ratio(self, mean_ns: float) -> float:
        """Share of the mean step."""
        return mean_ns / self.step_ns

    def share(self, mean_ns: int) -> str:
        """For example ``31.0 % of each step (6.90 ms of 22.3 ms)``."""
        return f"{self.part(mean_ns)} ({self.amount(mean_ns)})"

    def part(self, mean_ns: int) -> str:
        """For example ``31.0 % of each step``."""
        of = "each step" if self.word == "step" else "the capture"
        return f"{format_ratio(self.ratio(mean_ns))} of {of}"

    def amount(self, mean_ns: int) -> str:
        """For example ``6.90 ms of 22.3 ms``."""
        return f"{format_duration(mean_ns)} of {format_duration(self.step_ns)}"

    @property
    def exposed_transfer_ns(self) -> int:
        """Mean exposed transfer, including time that could not be split into transfer and wait."""
        return self.mean(self.total.exposed_transfer_ns + self.total.exposed_comm_unsplit_ns)

    @property
    def exposed_wait_ns(self) -> int:
        """Mean exposed waiting in collectives."""
        return self.mean(self.total.exposed_wait_ns)

    @property
    def is_split(self) -> bool:
        """Whether waiting and transfer could be separated for most of the exposed time."""
        total = self.total
        known = total.exposed_transfer_ns + total.exposed_wait_ns + total.exposed_p2p_wait_ns
        return known >= total.exposed_comm_unsplit_ns


class StepTimes(msgspec.Struct, Evidence, frozen=True):
    """The two results that tell the mean step, which rules need for shares and costs."""

    waterfall: WaterfallResult
    step_time: StepTimeResult

    @classmethod
    def found_in(cls, results: Mapping[type[Evidence], Evidence]) -> Self | None:
        """Both, or None if one is missing."""
        waterfall = WaterfallResult.found_in(results)
        step_time = StepTimeResult.found_in(results)
        return None if waterfall is None or step_time is None else cls(waterfall, step_time)

    def mean_step(self) -> MeanStep:
        """The mean step."""
        total = self.waterfall.all
        samples = self.waterfall.num_ranks * max(self.waterfall.num_steps, 1)
        if total is None or samples == 0 or total.span_ns < samples:
            why = "; ".join(self.waterfall.unavailable)
            raise InsufficientEvidenceError(f"no step was measured. {why}".rstrip(". "))
        return MeanStep(
            step_ns=total.span_ns // samples,
            word="capture" if self.step_time.median_ns is None else "step",
            num_samples=samples,
            total=total,
        )

    @property
    def mean_step_ns(self) -> int | None:
        """The length of the mean step; None if nothing was timed."""
        step = self.mean_step_if_timed()
        return None if step is None else step.step_ns

    def mean_step_if_timed(self) -> MeanStep | None:
        """The mean step; None if nothing was timed, as in a run with only NCCL's log."""
        try:
            return self.mean_step()
        except InsufficientEvidenceError:
            return None


def has_all_members(capture: CaptureResult) -> bool:
    """Whether transfer can be trusted; if not, it may be waiting for unrecorded ranks."""
    return (capture.incomplete_ratio or 0.0) <= MOST_INCOMPLETE_RATIO


def unrecorded(capture: CaptureResult) -> str:
    """The ranks that the others may have waited for unseen, with a relative clause."""
    missing = capture.ranks_missing
    if not missing:
        return "ranks that were not recorded"
    return f"{name_ranks(missing)}, which {'was' if len(missing) == 1 else 'were'} not recorded"


def hideable_ns(step: MeanStep, overlap: OverlapResult) -> int:
    """Exposed transfer that could overlap with computation now running alone, mean per step."""
    return min(step.exposed_transfer_ns, alone_ns(step, overlap))


def idle_gpu_ns(idle: IdleResult, waterfall: WaterfallResult, step_ns: float) -> dict[int, float]:
    """Time of a step in which each rank's GPU idles, by the traces; empty for CPU ranks."""
    if idle.is_cpu:
        return {}
    spans = {rank.rank: rank.span_ns for rank in waterfall.ranks}
    known = (one for one in idle.ranks if spans.get(one.rank))
    return {one.rank: one.idle_ns / spans[one.rank] * step_ns for one in known}


def hidden_waits(
    waits: Mapping[int, float], idle_ns: Mapping[int, float], least_ratio: float
) -> set[int]:
    """The ranks whose GPU has work while their CPU waits.

    A CPU that runs ahead of its GPU can lose time without delaying it, if the GPU does not idle for
    ``least_ratio`` of the wait. ``idle_ns`` is as by :func:`idle_gpu_ns`; a rank without it counts
    as delayed.
    """
    return {rank for rank, ns in waits.items() if idle_ns.get(rank, ns) < least_ratio * ns}


def alone_ns(step: MeanStep, overlap: OverlapResult) -> int:
    """Computation without concurrent communication, mean per step."""
    return step.mean(sum(rank.computation_ns - rank.overlapped_ns for rank in overlap.ranks))


CHANCE = 0.01  # Probability up to which something is not called chance


def latest_by_chance(stragglers: StragglersResult, rank: int) -> bool:
    """Whether one of equal ranks may by chance be the latest in as many steps as this one."""
    steps, ranks = len(stragglers.steps), len(stragglers.ranks)
    if ranks < 2:
        return True
    late = sum(step.rank == rank for step in stragglers.steps)
    return ranks * chance_of_hits(late, steps, 1 / ranks) > CHANCE


def medians_of_others(values: Sequence[float]) -> list[float]:
    """For each of at least two values, the median of all others; they are sorted once."""
    ordered = sorted(values)
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    medians = []
    for value in values:
        place = bisect_left(ordered, value)
        medians.append((ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2)
    return medians


def chance_of_hits(hits: int, trials: int, ratio: float) -> float:
    """Probability of at least this many hits; each has the probability ``ratio``, below 1."""
    one, none = math.log(ratio), math.log1p(-ratio)
    return sum(
        math.exp(log_choose(trials, k) + k * one + (trials - k) * none)
        for k in range(hits, trials + 1)
    )


def log_choose(whole: int, part: int) -> float:
    """Logarithm of the number of ways to choose ``part`` of ``whole``."""
    return math.lgamma(whole + 1) - math.lgamma(part + 1) - math.lgamma(whole - part + 1)


def in_doubt(findings: Iterable[Finding], capture: CaptureResult) -> tuple[Finding, ...]:
    """The findings, with lower confidence in those about ranks whose recording is damaged."""
    damaged = [gap for gap in capture.gaps if gap.fact]
    return tuple(
        replace(found, confidence=Confidence.INFERRED) if _depends(found, damaged) else found
        for found in findings
    )


def _depends(found: Finding, damaged: Iterable[Gap]) -> bool:
    if found.confidence is not Confidence.MEASURED or is_on_recording(found.code):
        return False
    return any(
        not gap.ranks or not found.ranks or set(gap.ranks).intersection(found.ranks)
        for gap in damaged
    )
