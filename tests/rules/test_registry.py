"""Finding rules: by code and name, and not at all."""

from types import MappingProxyType

import pytest

from distprof import rules as registry
from distprof.errors import UsageError
from distprof.rules import all_rules, find_rule
from distprof.rules.base import parse_page, rule
from distprof.sections.idle import IdleResult
from distprof.sections.step_log import StepLogResult
from distprof.terms import Severity


def test_rules_are_found_by_code_and_by_name_in_any_case():
    assert find_rule("com101") is find_rule("low-overlap") is find_rule(" COM101 ")


def test_rules_are_ordered_by_code():
    codes = [rule.code for rule in all_rules()]
    assert codes == sorted(codes)


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [("low-overlp", "low-overlap"), ("COM10", "COM101"), ("str-101", "STR101")],
)
def test_a_near_miss_is_suggested(typed, suggested):
    with pytest.raises(UsageError, match=f"did you mean.*{suggested}"):
        find_rule(typed)


def test_nonsense_points_to_the_list():
    with pytest.raises(UsageError, match="list all with distprof rule --all"):
        find_rule("zzzzzzzzzz")


def test_a_retired_code_says_so(monkeypatch):
    retired = MappingProxyType({"COM900": ("old-name", "merged into low-overlap.")})
    monkeypatch.setattr(registry, "RETIRED", retired)
    for typed in ("COM900", "old-name"):
        with pytest.raises(UsageError, match="retired: merged into low-overlap"):
            find_rule(typed)


def test_a_page_without_docstring_is_empty_and_fails_nothing():
    page = parse_page("")
    assert (page.summary, dict(page.sections)) == ("", {})


def test_a_rule_needs_what_the_parameters_of_its_check_ask_for():
    def check(idle: IdleResult, log: StepLogResult, limits):
        yield from ()

    made = rule("TST101", Severity.INFO)(check)
    assert made.needs == (IdleResult, StepLogResult)


def test_a_parameter_without_a_type_is_named():
    def check(idle, limits):
        yield from ()

    with pytest.raises(TypeError, match="parameter 'idle' has no type"):
        rule("TST101", Severity.INFO)(check)
