"""Which changes to make, in which order, and where the step is after each.

The graph of the run is simulated with one change after another. Faults come before causes that all
ranks share, and those before tuning: a slow rank is mended before transfers are hidden, unless that
gives back far more. Of changes that give back about the same, the narrowest comes first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.schema import Int64Array
from distprof.sections.whatif.result import Repair, RepairPlan
from distprof.sections.whatif.scenarios import Change, step_times
from distprof.sections.whatif.trace_graph import TraceGraph
from distprof.units import name_ranks

__all__ = ["Priced", "Simulation", "Workbench", "is_actionable"]

MIN_GAIN_RATIO = 0.02
"""Share of the step that a change must give back to be worth a place in the plan."""

MAX_REPAIRS = 6

ABOUT_AS_MUCH = 0.8
"""A narrower change that gives back this share of what a wide one does comes first."""

FAR_MORE = 4.0
"""A change of a later class that gives back this many times as much comes first."""


class _Class(IntEnum):
    """Faults come before causes that all ranks share, and those before tuning."""

    FAULT = 0
    SHARED = 1
    TUNING = 2


_ACTIONS: tuple[tuple[str, _Class, int, str], ...] = (
    ("rank ", _Class.FAULT, 0, "{} mended"),
    ("ranks ", _Class.FAULT, 1, "{} mended"),
    ("expert-imbalance", _Class.FAULT, 1, "experts balanced"),
    ("hardware ", _Class.FAULT, 1, "{} at its best bandwidth"),
    ("stage-imbalance", _Class.FAULT, 2, "stages balanced"),
    ("uneven-input", _Class.FAULT, 2, "input evened out"),
    ("even-work", _Class.FAULT, 2, "work evened out"),
    ("repeated gradients", _Class.SHARED, 0, "gradients reduced once per update"),
    ("input", _Class.SHARED, 1, "input always ready"),
    ("sync-calls", _Class.SHARED, 1, "synchronising calls removed"),
    ("launch-gaps", _Class.SHARED, 2, "launches on time"),
    ("late ranks", _Class.SHARED, 3, "ranks evened out"),
    ("copies", _Class.TUNING, 0, "copies overlapped"),
    ("small collectives", _Class.TUNING, 0, "small collectives merged"),
    ("overlap", _Class.TUNING, 1, "communication overlapped"),
)
"""Key, or beginning of the key, of each change that can be made; its class; how much of its
class it covers; and the step afterwards, in words. Other scenarios, such as transfers that take no
time, are bounds and no changes."""

_COMMON = ("late ranks", "overlap")
"""Changes that remove what many causes have in common."""


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """The plan, and what other changes still give back after it.

    Args:
        plan: The changes in order.
        remaining_ns: Key of each scenario asked for to what it gives back: of one in the plan,
            after those before it; of any other, after the whole plan.
    """

    plan: RepairPlan
    remaining_ns: Mapping[str, int]

    @property
    def order(self) -> tuple[str, ...]:
        """Keys of the plan's scenarios."""
        return tuple(repair.what for repair in self.plan.repairs)

    def is_wide(self, what: str) -> bool:
        """Whether the scenario is a bound, or removes what many causes have in common."""
        return what in _COMMON or not is_actionable(what)


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """A run that can be simulated with any of its changes.

    Args:
        graph: The run.
        changes: Key to change.
        step_ns: Mean simulated step, nothing changed.
        alone_ns: Key to what each change gives back alone.
    """

    graph: TraceGraph
    changes: Mapping[str, Change]
    step_ns: int
    alone_ns: Mapping[str, int]

    def price(self, claimed: Collection[str]) -> Priced:
        """Plan repairs among the scenarios that findings name, and price the other ones.

        Args:
            claimed: Keys of scenarios that findings name; unknown ones are left out.
        """
        known = [what for what in dict.fromkeys(claimed) if what in self.changes]
        repairs: list[Repair] = []
        chosen: list[Change] = []
        open_ = [what for what in known if is_actionable(what)]
        while open_ and len(repairs) < MAX_REPAIRS:
            now = repairs[-1].step_ns if repairs else self.step_ns
            gains = self._gains(chosen, open_, now)
            best = _next(gains, MIN_GAIN_RATIO * self.step_ns)
            if gains[best] < MIN_GAIN_RATIO * self.step_ns:
                break
            chosen.append(self._as_far_as_possible(chosen, best))
            repairs.append(self._repair(best, gains[best], now))
            open_.remove(best)
        left = [what for what in known if what not in {repair.what for repair in repairs}]
        last = repairs[-1].step_ns if repairs else self.step_ns
        remaining = {repair.what: repair.gain_ns for repair in repairs}
        return Priced(
            plan=RepairPlan(step_ns=self.step_ns, repairs=tuple(repairs)),
            remaining_ns={**remaining, **self._gains(chosen, left, last)},
        )

    def _as_far_as_possible(self, chosen: Sequence[Change], what: str) -> Change:
        """The change, or the part of it that gives back as much as its bound allows."""
        change = self.changes[what]
        if change.most_ns is None:
            return change
        before, after = (
            step_times(self.graph, [combined(self.graph, part)])[0]
            for part in (chosen, (*chosen, change))
        )
        gain = before - after
        return (
            change if gain <= change.most_ns else partly(self.graph, change, change.most_ns / gain)
        )

    def _repair(self, what: str, gain_ns: int, now_ns: int) -> Repair:
        change = self.changes[what]
        return Repair(
            what=what,
            title=change.title,
            done=_done(change),
            ranks=change.ranks,
            alone_ns=self.alone_ns[what],
            gain_ns=gain_ns,
            step_ns=now_ns - gain_ns,
        )

    def _gains(self, chosen: Sequence[Change], whats: Sequence[str], now_ns: int) -> dict[str, int]:
        """What each change gives back after those chosen, never below 0."""
        if not chosen:
            return {what: self.alone_ns[what] for what in whats}
        further = [(*chosen, self.changes[what]) for what in whats]
        together = [combined(self.graph, changes) for changes in (chosen, *further)]
        base, *steps = step_times(self.graph, together)
        gains: dict[str, int] = {}
        for what, step_ns in zip(whats, steps, strict=True):
            most = self.changes[what].most_ns
            gain = max(base - step_ns, 0)
            gains[what] = min(gain if most is None else min(gain, most), now_ns)
        return gains


class Workbench:
    """Keeps the simulation of a run, from where it is made to where the findings are known."""

    def __init__(self) -> None:
        self.simulation: Simulation | None = None
        self.plan = RepairPlan()

    def price(self, claimed: Collection[str]) -> Priced | None:
        """See :meth:`Simulation.price`; None for a run that could not be simulated."""
        if self.simulation is None:
            return None
        priced = self.simulation.price(claimed)
        self.plan = priced.plan
        return priced


def is_actionable(what: str) -> bool:
    """Whether the scenario is a change that can be made, and not a bound."""
    try:
        _action(what)
    except KeyError:
        return False
    return True


def combined(graph: TraceGraph, changes: Sequence[Change]) -> Change:
    """All changes at once: of two that shorten the same thing, the one that shortens it more."""
    own = graph.own_ns.sum(axis=1)
    return Change(
        what=" + ".join(change.what for change in changes),
        title="",
        own_ns=_lower(own, [change.own_ns for change in changes]),
        transfer_ns=_lower(graph.transfers.duration_ns, [change.transfer_ns for change in changes]),
        delay_ns=_lower(graph.delay_ns, [change.delay_ns for change in changes]),
    )


def partly(graph: TraceGraph, change: Change, share: float) -> Change:
    """The change made by a share of 0 to 1 only."""

    def between(values: Int64Array, changed: Int64Array | None) -> Int64Array | None:
        if changed is None:
            return None
        result: Int64Array = values + np.rint(share * (changed - values)).astype(np.int64)
        return result

    return replace(
        change,
        own_ns=between(graph.own_ns.sum(axis=1), change.own_ns),
        transfer_ns=between(graph.transfers.duration_ns, change.transfer_ns),
        delay_ns=between(graph.delay_ns, change.delay_ns),
    )


def _lower(values: Int64Array, changed: Sequence[Int64Array | None]) -> Int64Array | None:
    """The smallest of the changed values, plus what changes add elsewhere; None for no change."""
    known = [one for one in changed if one is not None]
    if not known:
        return None
    less = np.min([np.minimum(one - values, 0) for one in known], axis=0)
    more = np.sum([np.maximum(one - values, 0) for one in known], axis=0)
    result: Int64Array = values + less + more
    return result


def _next(gains: Mapping[str, int], least_ns: float) -> str:
    """The change to make next: of the first class with one that is worth it, the narrowest.

    A later class comes first only if it gives back far more.
    """
    best: dict[_Class, int] = {}
    for what, gain in gains.items():
        kind = _action(what)[1]
        best[kind] = max(best.get(kind, 0), gain)
    chosen = max(best, key=lambda kind: best[kind])
    for kind in sorted(best):
        if best[kind] >= least_ns and FAR_MORE * best[kind] >= best[chosen]:
            chosen = kind
            break
    near = {
        what: gain
        for what, gain in gains.items()
        if _action(what)[1] is chosen and gain >= ABOUT_AS_MUCH * best[chosen]
    }
    return min(near, key=lambda what: (_action(what)[2], -near[what], what))


def _action(what: str) -> tuple[str, _Class, int, str]:
    """The row of a change.

    Raises:
        KeyError: If the scenario is a bound, and no change.
    """
    for action in _ACTIONS:
        if what == action[0] or (action[0].endswith(" ") and what.startswith(action[0])):
            return action
    raise KeyError(what)


def _done(change: Change) -> str:
    key, _, _, words = _action(change.what)
    return words.format(name_ranks(change.ranks) if change.ranks else change.what.removeprefix(key))
