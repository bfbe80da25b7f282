"""Which changes to make, in which order, and how long the step takes after each.

The run is simulated with one change after another, from its traces
(:mod:`~distprof.sections.whatif.trace_model`) or from a log of operations
(:mod:`~distprof.sections.whatif.operations`); the plan needs only their common interface. Faults
come before causes that all ranks share, and those before tuning: a slow rank is fixed before
transfers are overlapped, unless overlap recovers far more. Of changes that recover about the same
time, the narrowest comes first. Faults that hide each other are fixed one after another, although
the first of them recovers almost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.artefacts.record import made_from
from distprof.bounds import table_beside
from distprof.costs.known_schedules import SCHEDULES
from distprof.costs.prediction import Candidate, StageWork, predict
from distprof.schema import Int64Array
from distprof.sections.pipeline import (
    MICRO_BATCHES,
    SCHEDULE,
    PipelineGroup,
    PipelineResult,
    refill_key,
)
from distprof.sections.whatif import Repair, RepairPlan, Scenario
from distprof.units import name_ranks

Made: TypeAlias = Mapping[str, float]
"""Changes that are made, by key, with the share of each, above 0 and at most 1."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario changes; subclasses add how, for each kind of run."""

    what: str  # Stable key.
    title: str  # What changes, as a clause that follows "if".
    ranks: tuple[int, ...] = ()  # Ranks whose operations change; empty for all.
    done: str = ""  # The change as a fact, if the wording of its kind does not say enough.
    # Upper bound of the time that it recovers, for a reason that is not simulated.
    most_ns: int | None = None


class Model(Protocol):
    """A run that can be simulated with any set of its changes."""

    def step_times(self, made: Sequence[Made]) -> list[int]:
        """Mean step, ns, with each of these sets of changes; the empty set is the run as it was."""

    def stage_work(self, made: Made) -> Mapping[int, float]:
        """How long each rank works in its pipeline stages, in any unit; empty if unknown."""


def lower(values: Int64Array, changed: Sequence[Int64Array | None]) -> Int64Array | None:
    """The smallest of the changed values, plus all increases; None for no change.

    If two changes shorten the same value, the one that shortens it more counts.
    """
    present = [one for one in changed if one is not None]
    if not present:
        return None
    less = np.min([np.minimum(one - values, 0) for one in present], axis=0)
    more = np.sum([np.maximum(one - values, 0) for one in present], axis=0)
    result: Int64Array = values + less + more
    return result


# Another order of a pipeline ----------------------------------------------------------------------


class Refill(Change, frozen=True, kw_only=True):
    """More micro-batches or another schedule, as a change that is made after others.

    The same batch in more and smaller micro-batches, or in another order, fills a pipeline better.
    The time saved depends on the changes before it: stages of unequal length leave gaps that no
    order fills. Therefore both orders are replayed again with the work of the stages after these
    changes, and the pipeline's time shrinks by the ratio of the two. The rest of the step stays the
    same.
    """

    group: PipelineGroup  # The pipeline.
    present: Candidate  # Its present order.
    other: Candidate  # The order that replaces it.

    def saved_ns(self, step_ns: int, usual: Mapping[int, float], work: Mapping[int, float]) -> int:
        """Time that the other order saves after other changes."""
        now, then = self._makespans(self._factors(usual, work))
        if now <= 0 or then >= now:
            return 0
        group = self.group
        outside = max((group.step_ns or 0) - (group.span_ns or 0), 0)
        span = min(max(step_ns - outside, now), step_ns)
        return int(span * (1 - then / now))

    def _factors(self, usual: Mapping[int, float], work: Mapping[int, float]) -> list[float]:
        """Work at each position of the busiest pipeline of this shape, over the measured work."""
        # The measured pipeline is ``group.ranks``, the one with the median span.
        replicas = self.group.replicas or (self.group.ranks,)
        busiest = max(replicas, key=lambda ranks: max(work.get(rank, 0.0) for rank in ranks))
        return [
            work[rank] / usual[measured] if rank in work and usual.get(measured) else 1.0
            for rank, measured in zip(busiest, self.group.ranks, strict=True)
        ]

    def _makespans(self, factors: Sequence[float]) -> tuple[int, int]:
        """Makespans of the present order and the other one."""
        group, stages = self.group, self.group.stages_detail
        scale = np.array([factors[stage.position] for stage in stages])
        forward, backward = (
            np.rint(np.array([getattr(stage, name) or 0 for stage in stages]) * scale)
            for name in ("forward_ns", "backward_ns")
        )
        backward = backward.astype(np.int64)
        work = StageWork(
            forward_ns=forward.astype(np.int64),
            backward_input_ns=backward // 2,
            backward_weight_ns=backward - backward // 2,
            num_micro_batches=group.num_micro_batches,
        )
        orders, transfer_ns = (self.present, self.other), group.message_ns or 0
        made = predict(work, len(group.ranks), orders, transfer_ns=transfer_ns)
        return (made[0].makespan_ns, made[1].makespan_ns) if len(made) == 2 else (0, 0)


def refill_of(pipeline: PipelineResult) -> Refill | None:
    """The better order of the longest pipeline; None if none is known."""
    groups = [group for group in pipeline.groups if group.better and group.schedule in SCHEDULES]
    if not groups:
        return None
    group = max(groups, key=lambda one: one.span_ns or 0)
    best, now = group.better[0], group.num_micro_batches
    count = f"{best.num_micro_batches} micro-batches"
    title = f"the same batch came in {count} instead of {now}"
    done = f"{count} instead of {now}, same batch"
    if refill_key(best) == SCHEDULE:
        title = f"the pipeline ran {best.schedule}"
        done = f"{best.schedule} instead of {group.schedule}"
    return Refill(
        what=refill_key(best),
        title=title,
        done=done,
        group=group,
        present=made_from(group, Candidate, keeps_stages=True),
        other=made_from(best, Candidate, keeps_stages=best.virtual_stages == group.virtual_stages),
    )


MIN_GAIN_RATIO = 0.02
"""Share of the step that a change must recover to be worth a place in the plan."""

MAX_REPAIRS = 6

ABOUT_AS_MUCH = 0.8
"""Share of a wide change's gain from which a narrower change comes first."""

FAR_MORE = 4.0
"""Ratio of gains from which a change of a later class comes first."""

CLEAR_RATIO = 0.05
"""Share of the step from which a fault comes first in any case."""

CLEAR_OF_RANKS = 0.03
"""The same for a slow rank or link: fixing it redesigns nothing."""


class _Class(IntEnum):
    """Faults come before causes that all ranks share, and those before tuning."""

    FAULT = 0
    SHARED = 1
    TUNING = 2


@cache
def _actions() -> tuple[tuple[str, _Class, int, str], ...]:
    """Changes that can be made: key, class, how much of its class it covers, and what is done."""
    table = table_beside(__package__, "changes.toml")
    return tuple((key, kind, *rest) for kind in _Class for key, *rest in table[kind.name.lower()])


_COMMON = ("late ranks", "overlap")
"""Changes that remove what many causes have in common."""

_DESIGN = (MICRO_BATCHES, SCHEDULE)
"""Changes to the design of a pipeline. Every pipeline has a bubble, and the predicted gain of
another order ignores the cost of smaller micro-batches."""

_BROKEN = ("rank ", "ranks ", "link ")
"""Key prefixes of faults of a rank or a link. Other faults are uneven work, which is also
design."""


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """The plan, and the time that other changes still recover after it."""

    plan: RepairPlan  # The changes in order.
    # Time that each requested scenario recovers, by key: for one in the plan, after those before
    # it; for any other, after the whole plan.
    remaining_ns: Mapping[str, int]

    @property
    def order(self) -> tuple[str, ...]:
        """Keys of the plan's scenarios, in order."""
        return tuple(repair.what for repair in self.plan.repairs)

    def is_wide(self, what: str) -> bool:
        """Whether the scenario is a bound, or removes what many causes have in common."""
        return what in _COMMON or not is_actionable(what)


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """A run that can be simulated with any of its changes."""

    model: Model  # The run.
    changes: Mapping[str, Change]  # Changes by key.
    # Another order of the run's pipeline, also among the changes; None if there is none.
    refill: Refill | None
    # How long the model's ranks work in their stages, nothing changed.
    usual_work: Mapping[int, float]
    step_ns: int  # Mean simulated step, nothing changed.
    alone_ns: Mapping[str, int]  # Time that each change recovers alone, by key.

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
        """The scenario of each change made alone."""
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
        """Mean step with each set of changes, ns; sets that differ in the refill share a run."""
        refill = None if self.refill is None else self.refill.what
        plain = [{what: one[what] for what in one if what != refill} for one in made]
        distinct = {tuple(one.items()): one for one in plain}
        times = dict(zip(distinct, self.model.step_times(list(distinct.values())), strict=True))
        steps = []
        for rest, one in zip(plain, made, strict=True):
            step_ns = times[tuple(rest.items())]
            if self.refill is not None and len(rest) < len(one):
                work = self.model.stage_work(rest)
                step_ns -= self.refill.saved_ns(step_ns, self.usual_work, work)
            steps.append(step_ns)
        return steps

    def price(self, claimed: Collection[str]) -> Priced:
        """Plan repairs among the scenarios that findings name, and price the other ones."""
        known = [what for what in dict.fromkeys(claimed) if what in self.changes]
        repairs: list[Repair] = []
        made: dict[str, float] = {}
        open_ = [what for what in known if is_actionable(what)]
        while open_ and len(repairs) < MAX_REPAIRS:
            now = repairs[-1].step_ns if repairs else self.step_ns
            gains = self._gains(made, open_, now)
            best = _next(gains, self.step_ns)
            hidden = self._hidden(made, gains, best) if len(repairs) < MAX_REPAIRS - 1 else ()
            if not hidden and gains[best] < self._min_gain_ns:
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

    def made_by(self, plan: RepairPlan) -> Iterator[Made]:
        """The changes made after each repair of a plan of this run."""
        made: dict[str, float] = {}
        for repair in plan.repairs:
            made[repair.what] = self._share(made, repair.what)
            yield dict(made)

    @property
    def _min_gain_ns(self) -> float:
        """Time that a change must recover for a place in the plan."""
        return MIN_GAIN_RATIO * self.step_ns

    def _hidden(self, made: Made, gains: Mapping[str, int], best: str) -> tuple[str, ...]:
        """Faults of ranks that recover little one by one, because each hides the others.

        Those that add to the joint gain, largest first; empty if together they are not worth a
        place in the plan, or recover far less than another change.
        """
        faults = (what for what in gains if _action(what)[1] is _Class.FAULT)
        few = {what for what in faults if self.changes[what].ranks}
        if len(few) < 2 or (gains[best] >= self._min_gain_ns and _action(best)[1] is _Class.FAULT):
            return ()
        chosen = dict(made) | dict.fromkeys(few, 1.0)
        for what in sorted(few, key=lambda one: gains[one]):
            rest = {one: share for one, share in chosen.items() if one != what}
            with_it, without = self.steps([chosen, rest])
            chosen = chosen if without - with_it >= self._min_gain_ns else rest
        base, together = self.steps([made, chosen])
        worth = base - together
        clear = worth >= CLEAR_OF_RANKS * self.step_ns
        if worth < self._min_gain_ns or not (clear or FAR_MORE * worth >= gains[best]):
            return ()
        return tuple(sorted(chosen.keys() - made.keys(), key=lambda what: (-gains[what], what)))

    def _share(self, made: Made, what: str) -> float:
        """Share of the change to make: 1, or less if its bound allows only part of the gain."""
        most = self.changes[what].most_ns
        if most is None:
            return 1.0
        before, after = self.steps([made, {**made, what: 1.0}])
        return min(1.0, most / max(before - after, 1))

    def _repair(self, what: str, gain_ns: int, now_ns: int) -> Repair:
        change, (key, _, _, words) = self.changes[what], _action(what)
        named = name_ranks(change.ranks) if change.ranks else what.removeprefix(key)
        return Repair(
            what=what,
            title=change.title,
            done=change.done or words.format(named),
            ranks=change.ranks,
            alone_ns=self.alone_ns[what],
            gain_ns=gain_ns,
            step_ns=now_ns - gain_ns,
        )

    def _gains(self, made: Made, whats: Sequence[str], now_ns: int) -> dict[str, int]:
        """Time that each change recovers after those made, at most the current step."""
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
    """Keeps the simulation of a run until the findings are known."""

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
    """Whether the scenario is a change that can be made, rather than a bound."""
    return any(_is_row_of(action[0], what) for action in _actions())


def _next(gains: Mapping[str, int], step_ns: int) -> str:
    """The change to make next: the narrowest of the first class that has a worthwhile change."""
    # A later class comes first only if it recovers far more and no fault is clear. Another design
    # of a pipeline never comes before a slow rank or link.
    min_gain_ns = MIN_GAIN_RATIO * step_ns
    best: dict[_Class, int] = {}
    for what, gain in gains.items():
        kind = _action(what)[1]
        best[kind] = max(best.get(kind, 0), gain)
    chosen = max(best, key=lambda kind: best[kind])
    broken = max((gain for what, gain in gains.items() if what.startswith(_BROKEN)), default=0)
    others = max((gain for what, gain in gains.items() if what not in _DESIGN), default=0)
    for kind in sorted(best):
        is_fault = kind is _Class.FAULT
        most = others if broken >= min_gain_ns and is_fault else best[chosen]
        clear = best[kind] >= CLEAR_RATIO * step_ns or broken >= CLEAR_OF_RANKS * step_ns
        worth = best[kind] >= min_gain_ns and FAR_MORE * best[kind] >= most
        if worth or (is_fault and clear):
            chosen = kind
            break
    near = {
        what: gain
        for what, gain in gains.items()
        if _action(what)[1] is chosen and gain >= ABOUT_AS_MUCH * best[chosen]
    }
    return min(near, key=lambda what: (_action(what)[2], -near[what], what))


def _action(what: str) -> tuple[str, _Class, int, str]:
    """The row of an actionable change in the table of actions."""
    return next(action for action in _actions() if _is_row_of(action[0], what))


def _is_row_of(key: str, what: str) -> bool:
    return what == key or (key.endswith(" ") and what.startswith(key))
