"""Run the rules on the results of one analysis and sort their findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import signature
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from distprof.artefacts.record import made_from, shared_fields
from distprof.errors import UsageError
from distprof.escape import fitting
from distprof.rules import all_rules, find_rule
from distprof.rules.base import (
    Draft,
    Evidence,
    Finding,
    InsufficientEvidenceError,
    Limits,
    NotChecked,
    Rule,
    advice,
)
from distprof.terms import Severity
from distprof.units import format_duration

Overrides = Mapping[str, Mapping[str, float]]

EXPLAINED = 0.8
"""A narrower finding that explains at least this share of a wider one's cost replaces it."""

OUTWEIGHS = 5.0  # A cost of at least this many times the gain of a repair is a different problem
MOSTLY = 0.5  # From this share, the narrower finding comes first, although it costs less
_ON_RECORDING = "CAP"  # Prefix of rules about the recording

_Order: TypeAlias = tuple[float, int, bool, str]

_Place: TypeAlias = tuple[int, int, _Order]


class Prices(Protocol):
    """A plan of repairs, and the time that each scenario still recovers."""

    @property
    def order(self) -> Sequence[str]:
        """Keys of the scenarios in the plan, in order."""

    @property
    def remaining_ns(self) -> Mapping[str, int]:
        """Key to the time that a scenario recovers after those before it, or after the plan."""

    def is_wide(self, what: str) -> bool:
        """Whether the scenario removes an effect that many causes share."""


Planner: TypeAlias = "Callable[[Collection[str]], Prices | None]"
"""Maps the scenarios that findings name to their prices; None if nothing was simulated."""

NEGLIGIBLE_NS = 50_000  # Gain per step that is not worth a wide finding: steps vary by more


class RuleOutcome(msgspec.Struct, frozen=True):
    """Findings, most expensive first, and the rules that could not be checked."""

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]


class Judged(msgspec.Struct, frozen=True):
    """A draft with its rule and prices, from which the order of findings follows."""

    rule: Rule  # The rule.
    draft: Draft  # The draft of a finding, from the rule's check.
    recoverable_ns: int | None  # Time that its scenario recovers alone; None if not simulated.
    # Time that its scenario recovers after those above; None if unknown.
    remaining_ns: int | None = None
    # Position of its scenario in the plan of repairs; None outside the plan.
    place: int | None = None
    # Whether its scenario is outside the plan because many causes share the effect.
    is_bound: bool = False

    @property
    def severity(self) -> Severity:
        """The rule's severity, unless the check sets another."""
        return self.draft.severity or self.rule.severity

    @property
    def order(self) -> _Order:
        """The sort key of findings: errors without a cost first, then by descending cost.

        Among findings with unknown cost, losses of time come before those of memory or quality.
        """
        candidates = (self.remaining_ns, self.recoverable_ns, self.draft.cost_ns_per_step)
        cost = next((ns for ns in candidates if ns is not None), None)
        if cost is not None:
            first: float = -cost
        else:
            first = -math.inf if self.severity is Severity.ERROR else math.inf
        return (first, -self.severity.rank, not self.rule.costs_time, self.rule.code)

    def explains(self, wide: Judged) -> bool:
        """Whether it explains time that another finding, no more severe, also counts.

        Two findings that explain each other do not count as explained: both would disappear.
        """
        return (
            wide.rule.code in self.draft.explains
            and self.rule.code not in wide.draft.explains
            and self.severity.rank >= wide.severity.rank
        )


def run_rules(
    results: Iterable[Evidence],
    overrides: Overrides | None = None,
    *,
    rules: Iterable[Rule] | None = None,
    planner: Planner | None = None,
    site: str = "",
    debug: bool = False,
) -> RuleOutcome:
    """Judge the results, in any order, with the rules of their subject, or with those given.

    ``overrides`` maps the code or name of a rule to values by the names of limits; findings link to
    the documentation on ``site``, if there is one. With ``debug``, a rule that fails raises its
    exception; otherwise it is not checked.

    Errors without a cost come first, then the plan of repairs in its order, then warnings and
    errors about the job, then the rest. The last two groups are sorted by the step time that their
    repair still recovers in the simulation, or by their cost if that was not simulated (unknown
    last), then by severity. A wide finding that a narrower one explains comes after it or is left
    out (:func:`in_order`). A wide finding is also left out if the plan leaves nothing of it.
    Without step marks, costs are None because the capture is not a step; the order is the same, and
    the simulation covers the capture.
    """
    by_type: dict[type[Evidence], Evidence] = {type(result): result for result in results}
    changed = _resolve(overrides or {})
    recoverable = {key: ns for one in by_type.values() for key, ns in one.recoverable_ns.items()}
    judged: list[Judged] = []
    skipped: list[NotChecked] = []
    subjects = {kind.subject for kind in by_type}
    for rule in all_rules() if rules is None else rules:
        if subjects and rule.subject not in subjects:
            continue
        limits = {name: limit.value for name, limit in rule.limits.items()}
        limits |= changed.get(rule.code, {})
        drafts, why = _run(rule, by_type, limits, debug=debug)
        judged += [Judged(rule, draft, recoverable.get(draft.without)) for draft in drafts]
        if why:
            skipped.append(NotChecked(code=rule.code, name=rule.name, why=why))
    has_steps = all(result.marks_steps for result in by_type.values())
    priced = _priced(judged, planner)
    findings = tuple(_finding(item, site, has_steps=has_steps) for item in in_order(priced))
    return RuleOutcome(findings, tuple(skipped))


def _priced(judged: Sequence[Judged], planner: Planner | None) -> list[Judged]:
    """The findings with their places in the plan and the time that they still recover.

    Wide findings are left out if the findings above leave almost nothing of them.
    """
    claimed = {item.draft.without for item in judged if item.draft.last_resort_ns is None}
    items = [
        item
        for item in judged
        if item.draft.last_resort_ns is None or item.draft.without not in claimed
    ]
    prices = planner(_claims(items)) if planner else None
    if planner is None or prices is None:
        return items
    worth = [item for item in items if _is_last_resort_worth(item, prices)]
    # Give a narrow finding outside the plan the scenario of the wide finding that it explains
    planned = [item for item in worth if item.draft.without in prices.order]
    found = []
    for item in worth:
        wide = [other for other in planned if item.explains(other) and _is_its_change(item, other)]
        if wide and item not in planned:
            widest = max(wide, key=lambda other: other.draft.cost_ns_per_step or 0)
            draft = replace(item.draft, without=widest.draft.without)
            item = replace(item, draft=draft, recoverable_ns=widest.recoverable_ns)
        found.append(item)
    worth = found
    if _claims(worth) != _claims(items):
        prices = planner(_claims(worth)) or prices
    places = {what: place for place, what in enumerate(prices.order)}
    priced = [
        _with_price(
            item, prices.remaining_ns.get(item.draft.without), places.get(item.draft.without)
        )
        for item in worth
    ]
    wide_claims = {what for what in _claims(priced) if prices.is_wide(what)}
    return [
        replace(item, is_bound=item.place is None and item.draft.without in wide_claims)
        for item in priced
        if item.draft.explains or not prices.is_wide(item.draft.without) or not _is_used_up(item)
    ]


def _is_its_change(narrow: Judged, wide: Judged) -> bool:
    """Whether the wide finding's change also fixes the narrow one: most of its cost, some gain.

    If computation is short, more overlap recovers almost nothing, but sending half as much does.
    """
    cost = narrow.draft.cost_ns_per_step or 0
    return _share(narrow, wide) >= EXPLAINED and (wide.recoverable_ns or 0) >= cost / OUTWEIGHS


def _share(narrow: Judged, wide: Judged) -> float:
    """The cost of the narrow finding as a share of the wide one's; 0 if either is unknown."""
    whole = wide.draft.cost_ns_per_step
    return (narrow.draft.cost_ns_per_step or 0) / whole if whole else 0.0


def _claims(items: Iterable[Judged]) -> list[str]:
    return [item.draft.without for item in items if item.draft.without]


def _is_last_resort_worth(item: Judged, prices: Prices) -> bool:
    least = item.draft.last_resort_ns
    return least is None or prices.remaining_ns.get(item.draft.without, 0) >= least


def _with_price(item: Judged, remaining_ns: int | None, place: int | None) -> Judged:
    """Add the price. The cost of a last-resort finding is the time that the others leave.

    A scenario that removes only a part of the cost, and the time of other causes as well, counts
    for what the plan leaves to it, and says nothing outside the plan.
    """
    draft = item.draft
    if draft.last_resort_ns is not None:
        draft = replace(draft, cost_ns_per_step=remaining_ns)
    if draft.is_partial and place is None:
        return replace(item, draft=replace(draft, without=""), recoverable_ns=None)
    alone = remaining_ns if draft.is_partial else item.recoverable_ns
    return replace(item, draft=draft, recoverable_ns=alone, remaining_ns=remaining_ns, place=place)


def _is_used_up(item: Judged) -> bool:
    """Whether the findings above recover nearly all the time that this one would."""
    if item.place is not None or item.remaining_ns is None or item.recoverable_ns is None:
        return False
    return item.remaining_ns <= max((1 - EXPLAINED) * item.recoverable_ns, NEGLIGIBLE_NS)


def _run(
    rule: Rule, by_type: Mapping[type[Evidence], Evidence], limits: Limits, *, debug: bool
) -> tuple[list[Draft], str]:
    """The drafts of a rule, or none and the reason why it could not judge."""
    given = [need.found_in(by_type) for need in rule.needs]
    missing = [need.__name__ for need, one in zip(rule.needs, given, strict=True) if one is None]
    if missing:
        return [], f"the analysis has no {', '.join(missing)}"
    try:
        takes_limits = len(signature(rule.check).parameters) > len(given)
        drafts = list(rule.check(*given, *[limits] * takes_limits))
    except InsufficientEvidenceError as lack:
        return [], str(lack)
    except Exception as error:
        if debug:
            raise
        return [], f"failed: {type(error).__name__}: {error}"
    steps_ns = [step_ns for one in given if one and (step_ns := one.mean_step_ns)]
    shares = [limits[name] for name, limit in rule.limits.items() if limit.is_least_cost]
    return [draft for draft in drafts if _is_worth(draft, steps_ns, shares)], ""


def _is_worth(draft: Draft, steps_ns: Sequence[int], shares: Sequence[float]) -> bool:
    """Whether its cost is at least these shares of the mean step, if both are known."""
    cost = draft.cost_ns_per_step
    return cost is None or all(cost / ns >= share for ns in steps_ns for share in shares)


def _resolve(overrides: Overrides) -> dict[str, dict[str, float]]:
    changed: dict[str, dict[str, float]] = {}
    for key, values in overrides.items():
        rule = find_rule(key)
        for name, value in values.items():
            if name not in rule.limits:
                names = ", ".join(rule.limits) or "none"
                raise UsageError(f"rule {rule.code} has no limit {name!r}; its limits: {names}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(f"limit {name} of rule {rule.code} must be a number")
            if not math.isfinite(value):
                raise UsageError(f"limit {name} of rule {rule.code} must be finite")
            changed.setdefault(rule.code, {})[name] = float(value)
    return changed


def _finding(judged: Judged, site: str, *, has_steps: bool) -> Finding:
    rule, draft = judged.rule, _as_simulated(judged)
    # a cost from a training log is per iteration of that log, independent of the steps in traces
    has_cost = has_steps or any(need.has_own_steps for need in rule.needs)
    return made_from(
        draft,
        Finding,
        code=rule.code,
        name=rule.name,
        severity=judged.severity,
        headline=fitting(draft.headline),
        cost_ns_per_step=draft.cost_ns_per_step if has_cost else None,
        fix=draft.fix or advice(rule.name),
        docs=rule.docs,
        docs_url=rule.docs_url(site),
        **shared_fields(Finding, judged),
        repair=None if judged.place is None else judged.place + 1,
    )


def _as_simulated(judged: Judged) -> Draft:
    """The draft, which claims no cost that its own simulation contradicts by half.

    A wait for a rank is measured, but another rank may make the others wait just as long.
    """
    draft = judged.draft
    if draft.cost_ns_per_step is None or judged.recoverable_ns is None or draft.is_partial:
        return draft
    saved = max(judged.recoverable_ns, judged.remaining_ns or 0)
    if 2 * saved >= draft.cost_ns_per_step:
        return draft
    if saved and judged.remaining_ns in (None, saved):
        return replace(draft, cost_ns_per_step=saved)  # every document says it as the gain
    amount = format_duration(saved) if saved else "nothing"
    change = "Removing all of it" if judged.is_bound else "Its repair alone"
    message = f"{draft.message} {change} would save {amount} (simulated)."
    return replace(draft, message=message, cost_ns_per_step=saved)


def in_order(judged: Iterable[Judged]) -> list[Judged]:
    """The findings worth showing: errors without a cost, the plan, then the most expensive first.

    A finding whose cost is mostly explained by a narrower one comes after that one. If little of
    its cost remains unexplained, it is left out.
    """
    items = list(judged)
    places = (item.place for item in items if item.place is not None)
    # a busy machine names its ranks, but blames none
    named = (item for item in items if item.draft.ranks and not item.draft.is_partial)
    with_ranks = {item.place for item in named if item.place is not None}
    common = min((place for place in places if place not in with_ranks), default=len(with_ranks))
    gain = max((item.remaining_ns or 0 for item in items if item.place is not None), default=0)
    placed: list[tuple[_Place, bool, _Place, Judged]] = []
    for item in items:
        narrower, share = _best_explanation(item, items)
        if _is_same_change(item, items) or (share >= EXPLAINED and item.place is None):
            continue
        place = own = _place(item, common, gain)
        if narrower is not None and share >= MOSTLY and item.place is None:
            place = max(place, _place(narrower, common, gain))
        placed.append((place, place > own, own, item))
    return [item for *_, item in sorted(placed, key=lambda entry: entry[:3])]


def _is_same_change(wide: Judged, items: Iterable[Judged]) -> bool:
    return wide.place is not None and any(
        item.place == wide.place and item.explains(wide) for item in items
    )


def _place(item: Judged, common: int, gain: int) -> _Place:
    """Errors without a cost first, then the plan, then warnings about the job, then the rest.

    A finding that costs many times the gain of the plan and has no repair that can be simulated,
    such as an unused network, comes before the plan. An error that costs more than each repair of
    the plan comes before those of causes that all ranks share.
    """
    if item.order[0] == -math.inf:
        return 0, 0, item.order
    if item.draft.comes_first and (item.place is None or item.place >= common):
        return 1, common - 1, (math.inf, *item.order[1:])
    if item.place is not None:
        return 1, item.place, item.order
    is_on_job = item.severity is not Severity.INFO and not is_on_recording(item.rule.code)
    gains = _unsimulated_ns(item) / gain if is_on_job and gain else 0
    if gains >= OUTWEIGHS:
        return 1, -1, item.order
    if gains > 1 and item.severity is Severity.ERROR:
        return 1, common - 1, (math.inf, *item.order[1:])
    return (2 if is_on_job else 3), 0, item.order


def _unsimulated_ns(item: Judged) -> int:
    """The cost of a finding whose own repair was not simulated, else 0: a bound is no repair."""
    is_priced = item.recoverable_ns is not None and not (item.is_bound and item.draft.explains)
    return 0 if is_priced else item.draft.cost_ns_per_step or 0


def is_on_recording(code: str) -> bool:
    """Whether a finding is about the recording instead of the job."""
    return code.startswith(_ON_RECORDING)


def _best_explanation(wide: Judged, items: Sequence[Judged]) -> tuple[Judged | None, float]:
    """The most expensive finding that explains part of this one's cost, and that share.

    The share is that of the largest part instead of the sum, because narrow findings may overlap in
    time.
    """
    narrower = [item for item in items if item.explains(wide)]
    if not narrower:
        return None, 0.0
    if wide.draft.cost_ns_per_step is None:  # nothing was timed: only the order is known
        return next(((one, MOSTLY) for one in narrower if one.place is None), (None, 0.0))
    best = max(narrower, key=lambda item: item.draft.cost_ns_per_step or 0)
    return best, _share(best, wide)
