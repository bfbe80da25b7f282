"""Which changes to make, in which order, and where the step is after each.

The run is simulated with one change after another, from its traces or from a log of operations.
Faults come before causes that all ranks share, and those before tuning: a slow rank is mended
before transfers are hidden, unless that gives back far more. Of changes that give back about the
same, the narrowest comes first. Faults that hide each other are mended one after another, although
the first of them gives back next to nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import IntEnum

import msgspec
from msgspec.structs import replace

from distprof.sections.pipeline.result import MICRO_BATCHES, SCHEDULE
from distprof.sections.whatif.changes import Change, Made, Model
from distprof.sections.whatif.refill import Refill
from distprof.sections.whatif.result import Repair, RepairPlan, Scenario
from distprof.units import name_ranks

__all__ = ["Priced", "Simulation", "Workbench", "is_actionable"]

MIN_GAIN_RATIO = 0.02
"""Share of the step that a change must give back to be worth a place in the plan."""

MAX_REPAIRS = 6

ABOUT_AS_MUCH = 0.8
"""A narrower change that gives back this share of what a wide one does comes first."""

FAR_MORE = 4.0
"""A change of a later class that gives back this many times as much comes first."""

CLEAR_RATIO = 0.05
"""Share of the step from which a fault comes first in any case."""

CLEAR_OF_RANKS = 0.03
"""The same of a slow rank or link: mending it redesigns nothing."""


class _Class(IntEnum):
    """Faults come before causes that all ranks share, and those before tuning."""

    FAULT = 0
    SHARED = 1
    TUNING = 2


_ACTIONS: tuple[tuple[str, _Class, int, str], ...] = (
    ("rank ", _Class.FAULT, 0, "{} mended"),
    ("ranks ", _Class.FAULT, 1, "{} mended"),
    ("link ", _Class.FAULT, 1, "links of {} mended"),
    ("expert-imbalance", _Class.FAULT, 1, "experts balanced"),
    ("hardware ", _Class.FAULT, 1, "{} at its best bandwidth"),
    ("slowest-workers", _Class.FAULT, 0, "{} mended"),
    ("kind ", _Class.FAULT, 1, "{} at its median"),
    ("stage-imbalance", _Class.FAULT, 2, "stages balanced"),
    ("uneven-input", _Class.FAULT, 2, "input evened out"),
    ("micro-batch-imbalance", _Class.FAULT, 2, "micro-batches evened out"),
    ("even-work", _Class.FAULT, 2, "work evened out"),
    ("repeated gradients", _Class.SHARED, 0, "gradients reduced once per update"),
    ("input", _Class.SHARED, 1, "input always ready"),
    ("sync-calls", _Class.SHARED, 1, "synchronising calls removed"),
    ("launch-gaps", _Class.SHARED, 2, "launches on time"),
    ("late ranks", _Class.SHARED, 3, "ranks evened out"),
    ("copies", _Class.TUNING, 0, "copies overlapped"),
    ("small collectives", _Class.TUNING, 0, "small collectives merged"),
    (MICRO_BATCHES, _Class.TUNING, 1, "more micro-batches"),
    (SCHEDULE, _Class.TUNING, 1, "another schedule"),
    ("overlap", _Class.TUNING, 1, "communication overlapped"),
)
"""Key, or beginning of the key, of each change that can be made; its class; how much of its
class it covers; and the step afterwards, in words. Other scenarios, such as transfers that take no
time, are bounds and no changes."""

_COMMON = ("late ranks", "overlap")
"""Changes that remove what many causes have in common."""


_DESIGN = (MICRO_BATCHES, SCHEDULE)
"""Changes of a pipeline that is as it was meant to be. Every pipeline has a bubble, and what
another order gives back is predicted without the cost of smaller micro-batches."""


_BROKEN = ("rank ", "ranks ", "link ")
"""How keys of faults of a rank or a link begin; the others are uneven work, which is design too."""


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
        model: The run.
        changes: Key to change.
        refill: Another order of the run's pipeline, with its key among the changes; None without.
        usual_work: What the model's ranks work in their stages, nothing changed.
        step_ns: Mean simulated step, nothing changed.
        alone_ns: Key to what each change gives back alone.
    """

    model: Model
    changes: Mapping[str, Change]
    refill: Refill | None
    usual_work: Mapping[int, float]
    step_ns: int
    alone_ns: Mapping[str, int]

    @classmethod
    def of(
        cls, model: Model, changes: Mapping[str, Change], refill: Refill | None = None
    ) -> Simulation:
        """Simulate the run as it was, and with each change alone."""
        every = dict(changes) if refill is None else {**changes, refill.what: refill}
        bare = cls(
            model=model,
            changes=every,
            refill=refill,
            usual_work={} if refill is None else model.stage_work({}),
            step_ns=0,
            alone_ns={},
        )
        usual, *steps = bare.steps([{}, *({what: 1.0} for what in every)])
        alone = {
            what: bare._gain(what, usual, step_ns)
            for what, step_ns in zip(every, steps, strict=True)
        }
        return replace(bare, step_ns=usual, alone_ns=alone)

    def scenarios(self) -> Iterator[Scenario]:
        """What each change gives back alone."""
        for what, gain in self.alone_ns.items():
            change = self.changes[what]
            yield Scenario(
                what=what,
                title=change.title,
                step_ns=self.step_ns - gain,
                recoverable_ns=gain,
                ranks=change.ranks,
            )

    def steps(self, made: Sequence[Made]) -> list[int]:
        """Mean step with each set of changes, ns; sets that differ in the refill are one."""
        plain = [{what: one[what] for what in one if not self._is_refill(what)} for one in made]
        distinct = {tuple(one.items()): one for one in plain}
        known = dict(zip(distinct, self.model.step_times(list(distinct.values())), strict=True))
        return [
            self._refilled(known[tuple(rest.items())], rest, one)
            for rest, one in zip(plain, made, strict=True)
        ]

    def _is_refill(self, what: str) -> bool:
        return self.refill is not None and what == self.refill.what

    def _refilled(self, step_ns: int, rest: Made, made: Made) -> int:
        if self.refill is None or len(rest) == len(made):
            return step_ns
        work = self.model.stage_work(rest)
        return step_ns - self.refill.saved_ns(step_ns, self.usual_work, work)

    def price(self, claimed: Collection[str]) -> Priced:
        """Plan repairs among the scenarios that findings name, and price the other ones.

        Args:
            claimed: Keys of scenarios that findings name; unknown ones are left out.
        """
        known = [what for what in dict.fromkeys(claimed) if what in self.changes]
        repairs: list[Repair] = []
        made: dict[str, float] = {}
        open_ = [what for what in known if is_actionable(what)]
        while open_ and len(repairs) < MAX_REPAIRS:
            now = repairs[-1].step_ns if repairs else self.step_ns
            gains = self._gains(made, open_, now)
            best = _next(gains, self.step_ns)
            hidden = self._hidden(made, gains, best) if len(repairs) < MAX_REPAIRS - 1 else ()
            if not hidden and gains[best] < self._least_ns:
                break
            for what in hidden[: MAX_REPAIRS - len(repairs)] or (best,):
                now = repairs[-1].step_ns if repairs else self.step_ns
                gain = self._gains(made, [what], now)[what] if hidden else gains[what]
                made[what] = self._share(made, what)
                repairs.append(self._repair(what, gain, now))
                open_.remove(what)
        left = [what for what in known if what not in made]
        last = repairs[-1].step_ns if repairs else self.step_ns
        remaining = {repair.what: repair.gain_ns for repair in repairs}
        return Priced(
            plan=RepairPlan(step_ns=self.step_ns, repairs=tuple(repairs)),
            remaining_ns={**remaining, **self._gains(made, left, last)},
        )

    @property
    def _least_ns(self) -> float:
        """What a change must give back for a place in the plan."""
        return MIN_GAIN_RATIO * self.step_ns

    def _hidden(self, made: Made, gains: Mapping[str, int], best: str) -> tuple[str, ...]:
        """Faults of ranks that give back little one by one, because each hides the others.

        Args:
            made: The changes before.
            gains: What each open change gives back after those.
            best: The change that would come next. Nothing is hidden behind a fault that is worth
                its place.

        Returns:
            The faults without which less is given back, most first; empty where they are worth no
            more together, or far less than another change.
        """
        few = {what for what in gains if _is_of_ranks(what, self.changes[what])}
        if len(few) < 2 or (gains[best] >= self._least_ns and _action(best)[1] is _Class.FAULT):
            return ()
        chosen = dict(made) | dict.fromkeys(few, 1.0)
        for what in sorted(few, key=lambda one: gains[one]):
            rest = {one: share for one, share in chosen.items() if one != what}
            with_it, without = self.steps([chosen, rest])
            chosen = chosen if without - with_it >= self._least_ns else rest
        base, together = self.steps([made, chosen])
        worth = base - together
        clear = worth >= CLEAR_OF_RANKS * self.step_ns
        if worth < self._least_ns or not (clear or FAR_MORE * worth >= gains[best]):
            return ()
        return tuple(sorted(chosen.keys() - made.keys(), key=lambda what: (-gains[what], what)))

    def _share(self, made: Made, what: str) -> float:
        """All of the change, or the part that gives back as much as its bound allows."""
        most = self.changes[what].most_ns
        if most is None:
            return 1.0
        before, after = self.steps([made, {**made, what: 1.0}])
        return min(1.0, most / max(before - after, 1))

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

    def _gains(self, made: Made, whats: Sequence[str], now_ns: int) -> dict[str, int]:
        """What each change gives back after those made, at most what the step takes now."""
        if not made:
            return {what: self.alone_ns[what] for what in whats}
        base, *steps = self.steps([made, *({**made, what: 1.0} for what in whats)])
        return {
            what: min(self._gain(what, base, step_ns), now_ns)
            for what, step_ns in zip(whats, steps, strict=True)
        }

    def _gain(self, what: str, before_ns: int, after_ns: int) -> int:
        most = self.changes[what].most_ns
        gain = max(before_ns - after_ns, 0)
        return gain if most is None else min(gain, most)


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


def _next(gains: Mapping[str, int], step_ns: int) -> str:
    """The change to make next: of the first class with one that is worth it, the narrowest.

    A later class comes first only if it gives back far more, and no fault is clear; another design
    of a pipeline never comes before a slow rank or link.

    Args:
        gains: What each change gives back now.
        step_ns: The step as it is.
    """
    least_ns = MIN_GAIN_RATIO * step_ns
    best: dict[_Class, int] = {}
    for what, gain in gains.items():
        kind = _action(what)[1]
        best[kind] = max(best.get(kind, 0), gain)
    chosen = max(best, key=lambda kind: best[kind])
    broken = any(gain >= least_ns for what, gain in gains.items() if what.startswith(_BROKEN))
    others = max((gain for what, gain in gains.items() if what not in _DESIGN), default=0)
    for kind in sorted(best):
        most = others if broken and kind is _Class.FAULT else best[chosen]
        clear = kind is _Class.FAULT and _is_clear(gains, best[kind], step_ns)
        if clear or (best[kind] >= least_ns and FAR_MORE * best[kind] >= most):
            chosen = kind
            break
    near = {
        what: gain
        for what, gain in gains.items()
        if _action(what)[1] is chosen and gain >= ABOUT_AS_MUCH * best[chosen]
    }
    return min(near, key=lambda what: (_action(what)[2], -near[what], what))


def _is_of_ranks(what: str, change: Change) -> bool:
    return bool(change.ranks) and _action(what)[1] is _Class.FAULT


def _is_clear(gains: Mapping[str, int], most: int, step_ns: int) -> bool:
    """Whether some fault, of which the largest gives back ``most``, is so in any case."""
    of_ranks = max((gain for what, gain in gains.items() if what.startswith(_BROKEN)), default=0)
    return most >= CLEAR_RATIO * step_ns or of_ranks >= CLEAR_OF_RANKS * step_ns


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
    if change.done:
        return change.done
    key, _, _, words = _action(change.what)
    return words.format(name_ranks(change.ranks) if change.ranks else change.what.removeprefix(key))
