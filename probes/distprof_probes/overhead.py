"""Measures the cost of the probes by comparing steps of one job with and without them.

Always-on probes: adjacent blocks of steps, with the probes running or paused, in the order with,
without, without, with. Another thread writes the records, the last of them between two steps before
the probes pause. Without a core to spare, writing also slows steps, which the estimate does not
include. The estimate is the median of the paired differences. Its interval is distribution-free:
two order statistics that enclose the true median with at least 95 % probability for any noise
distribution (inverted sign test; Conover, Practical Nonparametric Statistics, 3.2). It needs six
pairs; with fewer, no figure is given.

Tracing: traced steps are compared with the untraced ones before them, because a profiler that has
stopped may still slow steps down; steps after it are compared in the same way. With few steps
before, those after count, too. The estimate is the median of all pairwise differences. The interval
comes from the inverted rank-sum test (Hodges and Lehmann 1963; Conover 5.4), which is exact for
small samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal, TypeAlias

from distprof.artefacts.run_file import Overhead
from distprof_probes.plan import Plan

CONFIDENCE = 0.95

Mode: TypeAlias = Literal["tracing", "light", "after"]
_WIDE_RATIO = 0.2  # of a step
_NUM_AROUND = 12  # untraced steps to compare with, on each side of the window
_FEW = 4


def paired_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """95 % confidence interval of the median of ``differences``; None if there are too few."""
    count = len(differences)
    tail, below = 0.0, -1  # P(X <= below) for X ~ Binomial(count, 1/2)
    while below + 1 < count:
        more = tail + math.comb(count, below + 1) / 2**count
        if more > (1 - CONFIDENCE) / 2:
            break
        tail, below = more, below + 1
    if below < 0:
        return None
    ordered = sorted(differences)
    return ordered[below], ordered[count - 1 - below]


def shift_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float] | None:
    """95 % confidence interval of the shift of ``first`` against ``second``; None with few."""
    ordered = sorted(a - b for a in first for b in second)
    ways = _rank_sum_ways(len(first), len(second))
    total = math.comb(len(first) + len(second), len(first))
    tail, below = 0, -1
    while below + 1 < len(ways) and tail + ways[below + 1] <= total * (1 - CONFIDENCE) / 2:
        below += 1
        tail += ways[below]
    if below < 0 or not ordered:
        return None
    return ordered[below], ordered[len(ordered) - 1 - below]


def _rank_sum_ways(m: int, n: int) -> list[int]:
    """Number of orders of m + n values with a Mann-Whitney U statistic of 0, 1, …, m·n.

    These are the coefficients of the Gaussian binomial: the product of
    (1 - q^(n+i)) / (1 - q^i) over i from 1 to m.
    """
    size = m * n + 1
    ways = [1] + [0] * (size - 1)
    for i in range(1, m + 1):
        for k in range(size - 1, n + i - 1, -1):
            ways[k] -= ways[k - n - i]
        for k in range(i, size):
            ways[k] += ways[k - i]
    return ways


class OverheadMeter:
    """Collects step durations and compares them, as planned."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._always_on_until = max(
            (block.stop for pair in plan.pairs for block in pair), default=0
        )
        tracing_until = plan.traced.stop + 1 + _NUM_AROUND if plan.traced else 0
        self._last_needed = max(self._always_on_until, tracing_until)
        self._durations: dict[int, int] = {}

    def completes_always_on(self, step: int) -> bool:
        """Whether this step is the last that :meth:`always_on` waits for."""
        return step + 1 == self._always_on_until

    def record(self, step: int, duration_ns: int) -> None:
        """Record a step that ended; its duration includes the work of the probes."""
        if step < self._last_needed:
            self._durations[step] = duration_ns

    def always_on(self) -> Overhead | str:
        """Cost of the always-on probes, or why there is no figure."""
        pairs = self._complete_pairs()
        if not self._plan.pairs:
            return "overhead was not measured: it is off, or the run was too short"
        differences = [with_ - without for with_, without in pairs]
        interval = paired_interval(differences)
        if interval is None:
            return f"overhead was not measured: {len(pairs)} pairs of blocks, 6 needed"
        base = median(without for _, without in pairs)
        if _is_meaningless(median(differences), interval, base):
            return f"overhead was not measured: steps vary too much ({_percent(interval, base)})"
        block = len(self._plan.pairs[0][0])
        return Overhead(
            mode="always_on",
            method=f"blocks of {_steps(block)} with, without, without, with probes; median of"
            " paired differences, interval from order statistics",
            ratio=median(differences) / base,
            low=interval[0] / base,
            high=interval[1] / base,
            num_pairs=len(pairs),
            step_ns=round(base / block),
        )

    def tracing(self, traced: Sequence[int]) -> Overhead | str:
        """Cost of torch.profiler in the recorded steps, or why there is no figure."""
        return self._compared("tracing", "traced", traced)

    def light(self, recorded: Sequence[int]) -> Overhead | str:
        """Cost of recording the GPU alone, or why there is no figure."""
        return self._compared("light", "light", recorded)

    def after(self) -> Overhead | str:
        """How much longer steps take after the profiler than before, or why there is no figure."""
        before, after = self._around()
        if len(before) < _FEW:
            return "whether steps are slower after tracing was not measured: too few before it"
        return self._shift("after", "later", after, before)

    def _compared(self, mode: Mode, word: str, steps: Sequence[int]) -> Overhead | str:
        recorded = [self._durations[step] for step in steps if step in self._durations]
        before, after = self._around()
        return self._shift(mode, word, recorded, before if len(before) >= _FEW else before + after)

    def _shift(
        self, mode: Mode, word: str, steps: Sequence[int], others: Sequence[int]
    ) -> Overhead | str:
        interval = shift_interval(steps, others)
        if interval is None:
            return (
                f"the cost of tracing was not measured: {len(steps)} {word} steps and"
                f" {len(others)} untraced ones are too few"
            )
        base = median(others)
        shift = median(a - b for a in steps for b in others)
        if _is_meaningless(shift, interval, base):
            return (
                "the cost of tracing was not measured: steps vary too much"
                f" ({_percent(interval, base)})"
            )
        return Overhead(
            mode=mode,
            method=f"{len(steps)} {word} steps compared with {len(others)} untraced ones;"
            " median of all differences, interval from rank sums",
            ratio=shift / base,
            low=interval[0] / base,
            high=interval[1] / base,
            num_pairs=min(len(steps), len(others)),
            step_ns=round(base),
        )

    def _complete_pairs(self) -> list[tuple[int, int]]:
        return [
            (self._sum(with_), self._sum(without))
            for with_, without in self._plan.pairs
            if all(step in self._durations for block in (with_, without) for step in block)
        ]

    def _sum(self, steps: range) -> int:
        return sum(self._durations[step] for step in steps)

    def _around(self) -> tuple[list[int], list[int]]:
        """Untraced steps before the profiler's first start, and after its last stop."""
        window = self._plan.window
        quiet = [step for step in sorted(self._durations) if self._plan.is_quiet(step)]
        before = [step for step in quiet if step < window.start][-_NUM_AROUND:]
        after = [step for step in quiet if step >= window.stop][:_NUM_AROUND]
        return [self._durations[step] for step in before], [self._durations[step] for step in after]


def _is_meaningless(middle: float, interval: tuple[float, float], base: float) -> bool:
    """Whether the interval is wide, and wider than the absolute value of its middle."""
    return interval[1] - interval[0] > max(_WIDE_RATIO * base, abs(middle))


def _percent(interval: tuple[float, float], base: float) -> str:
    return f"the interval is {100 * interval[0] / base:.0f} % to {100 * interval[1] / base:.0f} %"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
