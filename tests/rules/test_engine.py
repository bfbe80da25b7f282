"""Running rules: order, limits, lack of evidence, failures."""

import pytest

from distprof.errors import UsageError
from distprof.rules import find_rule
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Rule
from distprof.rules.engine import run_rules
from distprof.sections.time import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.verbs.plan import ConfigurationResult
from distprof.verbs.plan.layout import Layout
from distprof.version import __version__
from tests.rules.samples import healthy


def rule_of(check, *, code="TST101", name="test-rule", severity=Severity.WARNING, **more):
    return Rule(
        code=code,
        name=name,
        severity=severity,
        since="0.1.0",
        needs=more.pop("needs", (StepTimeResult,)),
        limits={"most": Limit(1.0, "most that is allowed")},
        text="# test-rule\n",
        check=check,
        **more,
    )


def yields(*drafts):
    def check(step_time, limits):
        yield from drafts

    return check


def draft(cost, **more):
    return Draft(
        headline="It costs 5 ns",
        message="It is so.",
        fix="Change it.",
        cost_ns_per_step=cost,
        **more,
    )


def run(*rules, **more):
    return run_rules(healthy().values(), rules=rules, **more)


def test_a_finding_carries_its_rules_code_name_severity_and_page():
    (finding,) = run(rule_of(yields(draft(5, ranks=(3,))))).findings
    assert (finding.code, finding.name, finding.severity) == ("TST101", "test-rule", "warning")
    assert (finding.cost_ns_per_step, finding.ranks) == (5, (3,))
    assert finding.docs == "reference/rules/test-rule.md"
    assert finding.confidence is Confidence.MEASURED


def test_a_rule_has_a_page_on_the_documentation_site():
    site = "https://docs.example.org/distprof/"
    (found,) = run(rule_of(yields(draft(5))), site=site).findings
    assert found.docs_url.endswith("/reference/rules/test-rule.html")
    own = find_rule("HST101").docs_url(site)
    assert own == (
        f"https://docs.example.org/distprof/{__version__}/reference/rules/launch-bound-host.html"
    )
    assert own == find_rule("HST101").docs_url(site.rstrip("/"))
    assert find_rule("HST101").docs_url("") == ""


def test_a_draft_may_raise_the_severity():
    check = yields(draft(5, severity=Severity.ERROR))
    assert run(rule_of(check)).findings[0].severity is Severity.ERROR


def test_errors_without_cost_come_first_then_the_most_expensive_and_unknown_cost_last():
    rules = (
        rule_of(yields(draft(None)), code="TST101", severity=Severity.INFO),
        rule_of(yields(draft(None)), code="TST102", severity=Severity.ERROR),
        rule_of(yields(draft(5)), code="TST103"),
        rule_of(yields(draft(50)), code="TST104"),
        rule_of(yields(draft(5)), code="TST105", severity=Severity.ERROR),
    )
    codes = [finding.code for finding in run(*rules).findings]
    assert codes == ["TST102", "TST104", "TST105", "TST103", "TST101"]


def test_without_step_marks_costs_are_unknown_but_keep_their_order():
    rules = (
        rule_of(yields(draft(5)), code="TST101"),
        rule_of(yields(draft(50)), code="TST102"),
    )
    outcome = run_rules(healthy(steps=False).values(), rules=rules)
    assert [finding.code for finding in outcome.findings] == ["TST102", "TST101"]
    assert {finding.cost_ns_per_step for finding in outcome.findings} == {None}


def test_a_rule_that_lacks_evidence_is_not_checked_and_says_why():
    def check(step_time, limits):
        raise InsufficientEvidenceError("no launch calls")
        yield

    outcome = run(rule_of(check))
    assert outcome.findings == ()
    assert [(s.code, s.why) for s in outcome.not_checked] == [("TST101", "no launch calls")]


def test_a_rule_without_its_result_is_not_checked():
    outcome = run_rules([], rules=[rule_of(yields(), needs=(WaterfallResult, StepTimeResult))])
    assert outcome.not_checked[0].why == "the analysis has no WaterfallResult, StepTimeResult"


def failing(step_time, limits):
    yield draft(1)
    raise ZeroDivisionError("oops")


def test_a_failing_rule_loses_nothing_but_itself():
    outcome = run(rule_of(failing), rule_of(yields(draft(5)), code="TST102"))
    assert [finding.code for finding in outcome.findings] == ["TST102"]
    assert outcome.not_checked[0].why == "failed: ZeroDivisionError: oops"


def test_under_debug_a_failing_rule_raises():
    with pytest.raises(ZeroDivisionError):
        run(rule_of(failing), debug=True)


def test_limits_are_the_rules_own_unless_overridden():
    outcome = run_rules(healthy().values(), {"COM101": {"overlap_ratio": 0.95}})
    assert [finding.code for finding in outcome.findings] == ["COM101"]
    assert run_rules(healthy().values()).findings == ()
    by_name = run_rules(healthy().values(), {"low-overlap": {"overlap_ratio": 0.95}})
    assert by_name == outcome


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"COM999": {"overlap_ratio": 0.5}}, "no rule 'COM999'"),
        ({"COM101": {"overlap": 0.5}}, "no limit 'overlap'; its limits: overlap_ratio"),
        ({"COM101": {"overlap_ratio": "half"}}, "must be a number"),
        ({"COM101": {"overlap_ratio": True}}, "must be a number"),
        ({"COM101": {"overlap_ratio": float("nan")}}, "must be finite"),
    ],
)
def test_wrong_overrides_are_usage_errors(overrides, message):
    with pytest.raises(UsageError, match=message):
        run_rules([], overrides)


def test_a_healthy_job_has_no_finding_with_and_without_steps():
    assert run_rules(healthy().values(), debug=True).findings == ()
    assert run_rules(healthy(steps=False).values(), debug=True).findings == ()


def test_rules_on_another_subject_are_neither_run_nor_said_to_be_unchecked():
    planned = rule_of(yields(draft(None)), code="TST102", needs=(ConfigurationResult,))
    recorded = rule_of(yields(draft(5)))
    layout = ConfigurationResult(layout=Layout(dp=8), usable_bytes=1.0)
    assert [f.code for f in run(planned, recorded).findings] == ["TST101"]
    assert run(planned, recorded).not_checked == ()
    outcome = run_rules([layout], rules=[planned, recorded])
    assert [f.code for f in outcome.findings] == ["TST102"]
    assert outcome.not_checked == ()
