"""Wide findings beside narrower ones that name the reason of the same time."""

import msgspec

from distprof.rules.engine import run_rules
from distprof.sections.collectives import CollectivesResult
from distprof.sections.ending import EndingResult
from distprof.sections.gradients import GradientsResult
from distprof.terms import Severity
from tests.rules.fixtures.job import bad_job_failed
from tests.rules.samples import MS, US, collective_class, collectives, gradient_group, healthy
from tests.rules.samples import gradients as gradients_of
from tests.rules.test_engine import draft, rule_of, run, yields

WIDE, NARROW, OTHER = "TST101", "TST102", "TST103"


def codes(*rules):
    return [finding.code for finding in run(*rules).findings]


def wide(cost, **more):
    return rule_of(yields(draft(cost)), code=WIDE, **more)


def narrow(cost, *, code=NARROW, explains=(WIDE,), **more):
    return rule_of(yields(draft(cost, explains=explains)), code=code, **more)


def test_a_finding_that_explains_most_of_a_wide_one_replaces_it():
    assert codes(wide(100), narrow(80)) == [NARROW]


def test_a_finding_that_explains_half_comes_first_though_it_costs_less():
    assert codes(wide(100), narrow(50)) == [NARROW, WIDE]


def test_one_that_explains_little_changes_nothing():
    assert codes(wide(100), narrow(49)) == [WIDE, NARROW]


def test_a_dearer_finding_stays_between_neither():
    other = rule_of(yields(draft(70)), code=OTHER)
    assert codes(wide(100), narrow(60), other) == [OTHER, NARROW, WIDE]


def test_parts_are_not_added_up_since_they_may_be_the_same_time():
    assert codes(wide(100), narrow(45), narrow(45, code=OTHER)) == [WIDE, NARROW, OTHER]


def test_without_a_cost_nothing_is_explained():
    assert codes(wide(None), narrow(50)) == [NARROW, WIDE]
    assert codes(wide(100), narrow(None)) == [WIDE, NARROW]


def test_a_remark_explains_no_warning_away():
    assert codes(wide(100), narrow(90, severity=Severity.INFO)) == [WIDE, NARROW]


def test_findings_that_claim_to_explain_each_other_or_themselves_both_stay():
    first = narrow(100, code=WIDE, explains=(NARROW, WIDE))
    assert codes(first, narrow(90)) == [WIDE, NARROW]


def test_the_order_in_which_rules_run_does_not_matter():
    rules = [wide(100), narrow(60), rule_of(yields(draft(70)), code=OTHER)]
    assert codes(*rules) == codes(*reversed(rules))


def findings(results):
    return [finding.name for finding in run_rules(results.values(), debug=True).findings]


def test_exposed_communication_is_silent_where_accumulation_is_the_reason():
    slow = healthy(exposed_transfer=6.0, communication_ms=14.0)
    assert findings(slow) == ["exposed-communication", "low-overlap"]
    group = gradient_group(
        micro_batches=4.0,
        times_reduced=4.0,
        exposed_ns_per_step=6 * MS,
        redundant_ns_per_step=5_500 * US,
    )
    assert findings({**slow, GradientsResult: gradients_of(group)}) == [
        "accumulation-without-no-sync"
    ]


def test_exposed_communication_comes_after_small_collectives_that_are_half_of_it():
    tiny = collective_class(
        bytes=4_096, count=5_000, exposed_ns_per_step=4 * MS, exposed_wait_ns_per_step=0
    )
    results = healthy(exposed_transfer=6.0, communication_ms=14.0)
    results = {**results, CollectivesResult: collectives(collective_class(), tiny)}
    assert findings(results) == ["tiny-collectives", "exposed-communication", "low-overlap"]


def test_what_ranks_print_that_lost_the_one_that_failed_first_is_no_finding():
    lost = EndingResult(
        state="failed", cause="peer", verdict="Rank 0 lost the connection to another rank."
    )
    results = {**bad_job_failed(), EndingResult: lost}
    assert findings(results) == ["job-failed"]
    results[EndingResult] = msgspec.structs.replace(lost, cause="memory", ranks=(2,))
    assert findings(results) == ["job-failed", "job-stopped"]
    assert findings({**healthy(), EndingResult: lost}) == ["job-stopped"]
