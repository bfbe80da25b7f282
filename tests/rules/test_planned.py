"""Findings in the order of a plan, priced by what those above leave; the plan is hand-written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import pytest

from distprof.rules.base import Draft, Finding, Rule
from distprof.rules.engine import run_rules
from distprof.sections.base import Result
from distprof.terms import Severity
from tests.rules.samples import Results, healthy
from tests.rules.test_engine import draft, rule_of, yields

BOUND = "communication"
"""The only scenario here that is a bound and no change."""

SCENARIOS = {"rank 3": 100, "overlap": 60, BOUND: 150, "input": 40}
"""What each gives back alone."""


class Plan(msgspec.Struct, frozen=True):
    """What a planner answers."""

    order: tuple[str, ...]
    remaining_ns: Mapping[str, int]

    def is_wide(self, what: str) -> bool:
        return what == BOUND


def planner(claimed: Collection[str]) -> Plan:
    """First rank 3, then overlap; they leave 20 to the bound, and all of input."""
    order = tuple(what for what in ("rank 3", "overlap") if what in claimed)
    left = {"rank 3": 100, "overlap": 55, BOUND: 20, "input": 40}
    return Plan(order, {what: left[what] for what in claimed if what in left})


def simulated() -> Results:
    """Healthy results, one of which knows what scenarios give back."""

    class Simulated(Result, frozen=True, kw_only=True):
        @property
        def recoverable_ns(self) -> Mapping[str, int]:
            return SCENARIOS

    return {**healthy(), Simulated: Simulated()}


def found(*rules: Rule) -> tuple[Finding, ...]:
    return run_rules(simulated().values(), rules=rules, planner=planner).findings


def of(code: str, *drafts: Draft, **more: Any) -> Rule:
    return rule_of(yields(*drafts), code=code, **more)


RANK = of("TST101", draft(90, without="rank 3"))
OVERLAP = of("TST102", draft(200, without="overlap"))
WIDE = of("TST103", draft(300, without=BOUND))
INPUT = of("TST104", draft(45, without="input"))


def test_the_plan_comes_first_whatever_things_cost() -> None:
    assert [one.code for one in found(WIDE, OVERLAP, INPUT, RANK)] == ["TST101", "TST102", "TST104"]


def test_each_finding_has_a_price_alone_and_one_after_those_above() -> None:
    prices = {one.code: (one.recoverable_ns, one.remaining_ns) for one in found(OVERLAP, RANK)}
    assert prices == {"TST101": (100, 100), "TST102": (60, 55)}


def test_a_gain_that_documents_show_beside_the_finding_is_not_a_sentence_too() -> None:
    """Both costs are more than twice what the simulation recovers."""
    rank = of("TST101", draft(900, without="rank 3"))  # alone and in the plan: 100
    overlap = of("TST102", draft(200, without="overlap"))  # alone 60, in the plan 55
    first, second = found(rank, overlap)
    assert first.cost_ns_per_step == first.remaining_ns == 100
    assert "(simulated)" not in first.message
    assert second.message.endswith("Its repair alone would save 60 ns (simulated).")


def test_a_wide_finding_of_which_little_is_left_is_left_out() -> None:
    assert "TST103" not in {one.code for one in found(WIDE, RANK)}  # 20 of 150


def test_errors_without_a_cost_still_come_before_the_plan() -> None:
    error = of("TST105", draft(None), severity=Severity.ERROR)
    assert [one.code for one in found(RANK, error)] == ["TST105", "TST101"]


def test_a_narrow_finding_replaces_the_wide_one_that_asks_for_the_same_change() -> None:
    reason = of("TST106", draft(50, without="overlap", explains=("TST102",)))
    assert [one.code for one in found(OVERLAP, reason)] == ["TST106"]


@pytest.mark.parametrize(("cost", "codes"), [(180, ["TST106"]), (20, ["TST102", "TST106"])])
def test_a_narrow_finding_without_a_change_takes_that_of_what_it_mostly_explains(
    cost: int, codes: list[str]
) -> None:
    reason = of("TST106", draft(cost, explains=("TST102",)))
    assert [one.code for one in found(OVERLAP, reason)] == codes


def last_resort(least_ns: int) -> Rule:
    return of("TST107", draft(40, without="input", last_resort_ns=least_ns))


def test_a_finding_of_last_resort_counts_only_if_no_other_names_its_scenario() -> None:
    assert [one.code for one in found(last_resort(30), INPUT)] == ["TST104"]
    assert [one.code for one in found(last_resort(30))] == ["TST107"]


def test_a_finding_of_last_resort_is_left_out_where_too_little_is_left() -> None:
    assert found(last_resort(41)) == ()


def test_without_a_plan_findings_are_in_the_order_of_what_they_recover() -> None:
    findings = run_rules(simulated().values(), rules=(RANK, WIDE, INPUT)).findings
    assert [one.code for one in findings] == ["TST103", "TST101", "TST104"]
    assert {one.remaining_ns for one in findings} == {None}


# What comes before and after the plan ------------------------------------------------------------


def test_a_finding_that_must_come_first_precedes_the_plan() -> None:
    unknown = of("TST108", draft(10, comes_first=True))
    assert [one.code for one in found(RANK, unknown)] == ["TST108", "TST101"]


def test_information_comes_after_warnings_whatever_it_costs() -> None:
    hint = of("TST108", draft(900), severity=Severity.INFO)
    small, free = of("TST109", draft(1)), of("TST110", draft(None))
    codes = [one.code for one in found(hint, free, small, RANK)]
    assert codes == ["TST101", "TST109", "TST110", "TST108"]


def test_findings_on_the_recording_come_after_those_on_the_job() -> None:
    recording, job = of("CAP199", draft(None)), of("TST108", draft(None))
    assert [one.code for one in found(recording, job)] == ["TST108", "CAP199"]


def test_of_unknown_costs_time_comes_before_quality() -> None:
    quality = of("TST108", draft(None), costs_time=False)
    time = of("TST109", draft(None))
    assert [one.code for one in found(quality, time)] == ["TST109", "TST108"]


def test_where_nothing_was_timed_the_reason_comes_before_what_it_explains() -> None:
    wide = of("TST108", draft(None))
    reason = of("TST109", draft(None, explains=("TST108",)))
    assert [one.code for one in found(wide, reason)] == ["TST109", "TST108"]


def test_a_capture_without_steps_is_planned_too() -> None:
    results = {**simulated(), **healthy(steps=False)}
    findings = run_rules(results.values(), rules=(OVERLAP, RANK), planner=planner).findings
    prices = [(one.code, one.recoverable_ns, one.remaining_ns) for one in findings]
    assert prices == [("TST101", 100, 100), ("TST102", 60, 55)]
    assert {one.cost_ns_per_step for one in findings} == {None}


def test_a_cost_without_a_scenario_that_outweighs_the_plan_comes_first() -> None:
    """A network that is not used costs six times what the plan's only repair recovers."""
    network = of("TST107", draft(600, without=""))
    assert [one.code for one in found(RANK, network)] == ["TST107", "TST101"]
    network = of("TST107", draft(400, without=""))
    assert [one.code for one in found(RANK, network)] == ["TST101", "TST107"]


def test_a_narrow_cost_that_only_a_bound_would_remove_comes_before_a_small_plan() -> None:
    """Sharding across nodes exposes six times what the plan recovers; communication is wide."""
    communication = of("TST102", draft(650, without=BOUND))
    across = of("TST106", draft(600, without=BOUND, explains=("TST101",)))
    codes = [one.code for one in found(RANK, across, communication)]
    assert codes == ["TST106", "TST101"]
    assert [one.code for one in found(RANK, communication)] == ["TST101"]


@pytest.mark.parametrize(
    ("cost", "severity", "codes"),
    [
        pytest.param(300, Severity.ERROR, ["TST101", "TST106", "TST102"], id="a clear error"),
        pytest.param(90, Severity.ERROR, ["TST101", "TST102", "TST106"], id="a small error"),
        pytest.param(300, Severity.WARNING, ["TST101", "TST102", "TST106"], id="a warning"),
    ],
)
def test_an_error_larger_than_each_repair_comes_before_causes_that_all_share(
    cost, severity, codes
) -> None:
    """Axes in the wrong order: it cannot be simulated, and no tuning is worth as much."""
    rank = of("TST101", draft(90, without="rank 3", ranks=(3,)))
    order = of("TST106", draft(cost, without=BOUND, explains=("TST109",), severity=severity))
    assert [one.code for one in found(rank, OVERLAP, order)] == codes


def test_a_busy_machine_names_ranks_but_is_shared_by_all() -> None:
    """Tensor parallelism across nodes costs more than what CPUs of their own would recover."""
    across = of("TST106", draft(300, without=BOUND, explains=("TST109",), severity=Severity.ERROR))
    for is_partial, first in ((True, "TST106"), (False, "TST101")):
        busy = draft(90, without="rank 3", ranks=(2, 3), is_partial=is_partial)
        assert found(of("TST101", busy), across)[0].code == first


def test_a_cost_stands_if_its_scenario_removes_only_a_part_of_it() -> None:
    """All ranks wait for a CPU: keeping up with each other recovers little."""
    for is_partial, price in ((True, (600, None)), (False, (40, 40))):
        wide = of("TST102", draft(600, without="input", is_partial=is_partial))
        (one,) = (one for one in found(RANK, wide) if one.code == "TST102")
        assert (one.cost_ns_per_step, one.recoverable_ns) == price


def test_a_narrow_finding_does_not_take_a_change_that_recovers_next_to_nothing() -> None:
    """Half the bytes save 450 of an exposed 500; overlapping them would recover 60."""
    wide = of("TST102", draft(500, without="overlap"))
    narrow = of("TST106", draft(450, explains=("TST102",)))
    prices = {one.code: one.recoverable_ns for one in found(wide, narrow)}
    assert prices["TST106"] is None


def test_what_comes_first_does_not_lose_its_own_place_in_the_plan() -> None:
    """It asks for the first repair of the plan; another finding names ranks, too."""
    shared = of("TST108", draft(90, without="rank 3", ranks=(0, 1), comes_first=True))
    overlap = of("TST102", draft(200, without="overlap", ranks=(2,)))
    assert [one.code for one in found(overlap, shared)] == ["TST108", "TST102"]
