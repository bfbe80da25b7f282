"""Plans what happens in each step. All ranks agree: it follows from options and world size.

::

    0 1 2 | A B B A  A B B A  A B B A | w | L L L L | w w w | T T T T | _ | A B B A … then always A
    settle  overhead rounds            warm  light   warm-up  traced  settle

A: probes on; B: probes paused; L: only the GPU is recorded; T: the CPU's operators, too. The steps
before the profiler's first one say how long a step takes without it. The order ``with, without,
without, with`` cancels drift of the step time within a round. Ranks must switch together, because
one slow rank slows its peers.
"""

from __future__ import annotations

from dataclasses import dataclass

from distprof_probes.options import ProbeOptions

_FEWEST_STEPS = 4

_FREEDOM = 12
"""Least product of (ranks - 1) and (steps - 1) from which chance can be estimated well enough to
name a slow rank (LEAST_FREEDOM of distprof/sections.stragglers.slowness.py)."""

_ROUNDS_BEFORE = 3
_ROUND = 4  # blocks
_LIGHT_WARMUP = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens in each step."""

    settled: int  # First step that measurements may use.
    light: range  # Steps to record without operators; empty if there is no room for them.
    warmup: range  # Steps in which the profiler warms up, immediately before ``traced``.
    traced: range  # Steps to record; empty without tracing.
    pairs: tuple[tuple[range, range], ...]  # Adjacent blocks, with and without probes.
    paused: frozenset[int]  # Steps in which probes are paused.

    @property
    def light_warmup(self) -> range:
        """Steps in which the profiler warms up for the light ones."""
        first = self.light.start - _LIGHT_WARMUP if self.light else self.light.start
        return range(first, self.light.start)

    @property
    def window(self) -> range:
        """All steps that a profiler affects, from its first start to its last stop."""
        if not self.traced:
            return range(0)
        first = min([*self.light_warmup, *self.warmup, self.traced.start])
        return range(first, self.traced.stop)

    def is_quiet(self, step: int) -> bool:
        """Whether only the always-on probes affect the step, and it is not one of the first.

        The step after the window is not quiet: ranks finish saving at different times.
        """
        touched = range(self.window.start, self.window.stop + 1) if self.window else range(0)
        return step >= self.settled and step not in touched


def steps_to_trace(num_ranks: int | None) -> int:
    """Number of steps needed to show which rank is slow: 13 on 2 ranks, 7 on 3, 5 on 4, else 4."""
    if num_ranks is None or num_ranks < 2:
        return _FEWEST_STEPS
    return max(_FEWEST_STEPS, 1 + -(-_FREEDOM // (num_ranks - 1)))


def make_plan(
    options: ProbeOptions, *, is_traced: bool = True, num_ranks: int | None = None
) -> Plan:
    """The plan of a session. The paused steps do not depend on whether this rank is traced.

    The world size determines the number of traced steps if ``options`` does not.
    """
    length = options.num_steps or steps_to_trace(num_ranks)
    window = _window(options, length) if options.mode == "window" else range(0)
    warmup = range(max(0, window.start - options.warmup), window.start)
    light = _light(options, warmup)
    first = light.start - _LIGHT_WARMUP if light else warmup.start
    rounds = _rounds(options, range(first, window.start), window)
    pairs = tuple(pair for first in rounds for pair in _pairs(first, options.overhead_block))
    return Plan(
        settled=options.settle_steps,
        light=light if is_traced else range(0),
        warmup=warmup if is_traced else range(0),
        traced=window if is_traced else range(0),
        pairs=pairs,
        paused=frozenset(step for _, without in pairs for step in without),
    )


def _window(options: ProbeOptions, length: int) -> range:
    """Steps to trace: the requested ones, else soon after the first steps and some rounds."""
    if options.start_step >= 0:
        return range(options.start_step, options.start_step + length)
    earliest = max(options.warmup, 1) + 1
    total = options.total_steps
    for before in _steps_before(options):
        start = max(earliest, options.settle_steps + before + options.warmup)
        if not total or start + length <= total:
            return range(start, start + length)
    start = max(0, min(earliest, total - length)) if total else earliest
    return range(start, start + length)


def _steps_before(options: ProbeOptions) -> tuple[int, ...]:
    """Numbers of steps between the first ones and the warm-up: the best, then for shorter jobs."""
    if not _measures(options):
        return ()
    light = _LIGHT_WARMUP + options.light_steps if options.light_steps else 0
    fewer, all_ = (
        min(rounds, options.overhead_rounds) * _ROUND * options.overhead_block
        for rounds in (_ROUNDS_BEFORE - 1, _ROUNDS_BEFORE)
    )
    return all_ + light, fewer + light, fewer


def _light(options: ProbeOptions, warmup: range) -> range:
    """Light steps just before the warm-up of the others, if settled ones are left before them."""
    length = options.light_steps
    first = warmup.start - length
    if not length or first - _LIGHT_WARMUP < options.settle_steps + _ROUND:
        return range(warmup.start, warmup.start)
    return range(first, warmup.start)


def _measures(options: ProbeOptions) -> bool:
    return options.measure_overhead and options.mode != "off" and options.overhead_rounds > 0


def _rounds(options: ProbeOptions, warmup: range, window: range) -> list[int]:
    """First steps of the overhead rounds: as many as fit before the window, the rest after it."""
    if not _measures(options):
        return []
    length = _ROUND * options.overhead_block
    starts: list[int] = []
    step = options.settle_steps
    while len(starts) < options.overhead_rounds:
        if window and step < window.stop + 1 and step + length > warmup.start:
            step = window.stop + 1
        if options.total_steps and step + length > options.total_steps:
            break
        starts.append(step)
        step += length
    return starts


def _pairs(first: int, block: int) -> list[tuple[range, range]]:
    a1, b1, b2, a2 = (range(first + i * block, first + (i + 1) * block) for i in range(_ROUND))
    return [(a1, b1), (a2, b2)]
