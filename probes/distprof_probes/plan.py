"""Which step does what: the same on every rank, because it follows from the options alone.

::

    0 1 2 | A B B A  A B B A | w w w | T T T T | _ | A B B A  A B B A …   then A for ever
    settle  overhead rounds    warm-up  traced   settle

A: probes on; B: probes left out. ``with, without, without, with`` cancels a drift of the step time
within a round. Ranks must switch together: one slow rank slows its peers.
"""

from __future__ import annotations

from dataclasses import dataclass

from distprof_probes.options import ProbeOptions

__all__ = ["Plan", "make_plan"]

_ROUNDS_BEFORE = 2
_ROUND = 4  # blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens in which step.

    Args:
        settled: First step that measurements may use.
        warmup: Steps with the profiler armed, right before ``traced``.
        traced: Steps recorded; empty without tracing.
        pairs: Neighbouring blocks, with and without probes.
        paused: Steps in which probes are left out.
    """

    settled: int
    warmup: range
    traced: range
    pairs: tuple[tuple[range, range], ...]
    paused: frozenset[int]

    def is_quiet(self, step: int) -> bool:
        """Whether nothing but the always-on probes touches the step, and it is no first step.

        The step after the window is not quiet: ranks come to it from saving at different times.
        """
        touched = range(self.warmup.start, self.traced.stop + 1) if self.traced else range(0)
        return step >= self.settled and step not in touched


def make_plan(options: ProbeOptions, *, is_traced: bool = True) -> Plan:
    """The plan of a session.

    Args:
        options: The same on all ranks.
        is_traced: Whether this rank records; the steps in which probes rest do not depend on it.
    """
    window = _window(options) if options.mode == "window" else range(0)
    warmup = range(max(0, window.start - options.warmup), window.start)
    rounds = _rounds(options, warmup, window)
    pairs = tuple(pair for first in rounds for pair in _pairs(first, options.overhead_block))
    return Plan(
        settled=options.settle_steps,
        warmup=warmup if is_traced else range(0),
        traced=window if is_traced else range(0),
        pairs=pairs,
        paused=frozenset(step for _, without in pairs for step in without),
    )


def _window(options: ProbeOptions) -> range:
    """Steps to trace: as asked, else after a few steps, and after two rounds if there is room."""
    length = options.num_steps
    if options.start_step >= 0:
        return range(options.start_step, options.start_step + length)
    earliest = max(options.warmup, 1) + 1
    start = earliest
    if _measures(options):
        before = min(_ROUNDS_BEFORE, options.overhead_rounds) * _ROUND * options.overhead_block
        start = max(start, options.settle_steps + before + options.warmup)
    total = options.total_steps
    if total and start + length > total:
        start = max(0, min(earliest, total - length))
    return range(start, start + length)


def _measures(options: ProbeOptions) -> bool:
    return options.measure_overhead and options.mode != "off" and options.overhead_rounds > 0


def _rounds(options: ProbeOptions, warmup: range, window: range) -> list[int]:
    """First steps of the overhead rounds, before the window as many as fit, the rest after it."""
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
