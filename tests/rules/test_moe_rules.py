"""Rules on experts beyond their fixtures: who is named, and what it costs."""

import msgspec
import pytest

from distprof.rules import find_rule
from distprof.rules.engine import run_rules
from distprof.sections.moe import MoeResult
from distprof.terms import Confidence
from tests.rules.samples import (
    MS,
    collective_class,
    collectives,
    moe_exchange,
    moe_layer,
    moe_placement,
)


def findings(moe, code, *classes):
    return run_rules([moe, collectives(*classes)], rules=[find_rule(code)]).findings


def hot(name, expert, share=0.5, **fields):
    return moe_layer(name, busiest_expert=expert, busiest_share_ratio=share, **fields)


def waiting(ns):
    return collective_class(kind="all_to_all", axis="ep", exposed_wait_ns_per_step=ns)


# Overloaded experts ------------------------------------------------------------------------------


def test_the_cost_is_what_was_measured_between_dispatch_and_combine():
    moe = MoeResult(layers=(hot("0", 2, lost_ns_per_step=3 * MS), moe_layer("1")))
    (finding,) = findings(moe, "MOE101", waiting(50 * MS))
    assert (finding.cost_ns_per_step, finding.confidence) == (3 * MS, Confidence.MEASURED)
    assert "3.00 ms" in finding.message


def test_without_that_it_is_the_waiting_in_all_to_alls():
    moe = MoeResult(layers=(hot("0", 2), hot("1", 5)))
    found = findings(moe, "MOE101", waiting(8 * MS))
    assert [finding.cost_ns_per_step for finding in found] == [4 * MS, 4 * MS]
    assert {finding.confidence for finding in found} == {Confidence.INFERRED}


def test_layers_of_pipeline_stages_cost_a_mean_rank_its_own():
    """Two stages of a layer each: every rank waits for one of them."""
    layers = tuple(hot(name, 2, lost_ns_per_step=4 * MS) for name in "01")
    rows = tuple(moe_placement(name, lost_ns_per_step=4 * MS) for name in "01")
    moe = MoeResult(layers=layers, placement=rows, lost_ns_per_step=4 * MS)
    (finding,) = findings(moe, "MOE101")
    assert finding.cost_ns_per_step == 4 * MS


def test_an_expert_that_is_hot_in_most_layers_is_named_and_the_others_are_folded():
    layers = tuple(hot(str(i), 7) for i in range(6))
    layers += tuple(hot(str(6 + i), i, 0.3 + i / 100) for i in range(4))
    first, second = findings(MoeResult(layers=layers), "MOE101")
    assert first.headline.startswith("Expert 7 gets 4.0 times")
    assert "6 of 10 layers" in first.message
    assert "expert 3 of layer 9" in second.message
    assert "up to 2.6 times" in second.headline
    assert "In 4 of 10 layers" in second.message


def test_up_to_three_experts_are_named_each():
    layers = tuple(hot(str(i), i) for i in range(3))
    assert [f.headline[:8] for f in findings(MoeResult(layers=layers), "MOE101")] == [
        "Expert 0", "Expert 1", "Expert 2"
    ]  # fmt: skip


# Placement and exchanges -------------------------------------------------------------------------


def test_a_placement_that_gains_too_little_is_not_worth_a_word():
    row = moe_placement("0", max_over_mean=1.6, replaced_max_over_mean=1.4)
    assert findings(MoeResult(placement=(row,)), "MOE104") == ()


def test_without_times_a_placement_has_no_cost():
    row = moe_placement("0", max_over_mean=1.6, replaced_max_over_mean=1.0)
    (finding,) = findings(MoeResult(placement=(row,)), "MOE104")
    assert finding.cost_ns_per_step is None


def test_few_tokens_make_ranks_uneven_by_chance():
    row = moe_placement("0", max_over_mean=1.6, replaced_max_over_mean=1.0, tokens_per_call=100.0)
    assert findings(MoeResult(placement=(row,)), "MOE104") == ()


def test_uneven_senders_are_told_from_uneven_receivers():
    exchange = moe_exchange(sent_max_over_mean=1.8, busiest_sender=3)
    (finding,) = findings(MoeResult(exchanges=(exchange,), layers=(moe_layer("0"),)), "MOE105")
    assert finding.headline.startswith("Rank 3 sends 1.8 times the mean")
    assert finding.cost_ns_per_step == pytest.approx(2 * MS * (1 - 1 / 1.8), abs=1)


def test_an_exchange_whose_waits_are_unknown_has_no_cost():
    exchange = moe_exchange(received_max_over_mean=2.0, transfer_ns_per_step=None)
    (finding,) = findings(MoeResult(exchanges=(exchange,), layers=(moe_layer("0"),)), "MOE105")
    assert finding.cost_ns_per_step is None


# Experts -----------------------------------------------------------------------------------------


def test_dead_experts_of_several_layers_are_one_finding():
    dead = moe_layer("0", dead_ratio=0.25, dead_experts=(1, 6))
    worse = moe_layer("1", dead_ratio=0.5, dead_experts=(0, 1, 2, 3))
    (finding,) = findings(MoeResult(layers=(dead, worse)), "MOE102")
    assert finding.headline == "4 of 8 experts of a layer get almost no tokens"
    assert finding.message.startswith("In layer 1 they get less than 1 % of the mean")
    assert "experts 0, 1, 2, 3" in finding.message
    assert "1 more layer" in finding.message


def test_a_limit_of_nothing_does_not_accuse_layers_that_lack_nothing():
    moe = MoeResult(layers=(moe_layer("0"),))
    for code, limit in (("MOE102", "dead_ratio"), ("MOE103", "dropped_ratio")):
        outcome = run_rules([moe, collectives()], {code: {limit: 0.0}}, rules=[find_rule(code)])
        assert outcome.findings == ()


def test_results_without_experts_are_no_evidence_of_anything():
    moe = msgspec.structs.replace(MoeResult(), unavailable=("no log",))
    for code in ("MOE101", "MOE102", "MOE103", "MOE104", "MOE105"):
        assert findings(moe, code) == ()
