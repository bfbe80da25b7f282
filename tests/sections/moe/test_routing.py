"""Routing logs: drift over the steps, calls one by one, and ranks by the mesh alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.run.records import ROUTING, STEP_LOG, RankRecords
from distprof.schema import ABSENT
from distprof.sections.context import RankAnalyses
from distprof.sections.moe import calls
from distprof.sections.moe.calls import combine_routing, measure_routing
from distprof.sections.moe.measure import placement_of_log, with_exchanges
from tests.builders import RankBuilder, make_run, table_of


def records(calls, *, rank=0, traced=()):
    """A log of (step, layer, tokens per expert)."""
    rows, counts = [], []
    for step, layer, tokens in calls:
        rows.append(
            {
                "step": step,
                "layer": layer,
                "micro_batch": 0,
                "num_tokens": sum(tokens),
                "top_k": 1,
                "capacity": ABSENT,
                "dropped": 0,
                "aux_loss": 1.0,
                "first": len(counts),
                "num_experts": len(tokens),
            }
        )
        counts += tokens
    steps = sorted({step for step, _, _ in calls})
    log = [
        {
            "step": step,
            "start_ns": step,
            "end_ns": step + 1,
            "loss": 0.0,
            "is_traced": step in traced,
            "is_probed": True,
        }
        for step in steps
    ]
    return RankRecords(
        rank=rank,
        routing=table_of(ROUTING, rows),
        expert_tokens=np.array(counts, np.int64),
        step_log=table_of(STEP_LOG, log),
    )


def combined(*found):
    return combine_routing([measure_routing(r) for r in found], {})


# Drift -------------------------------------------------------------------------------------------


def test_drift_is_the_distance_between_the_first_and_the_last_third():
    """(75, 25) for two steps, then anything, then (25, 75): half of the tokens went elsewhere."""
    steps = [[75, 25], [75, 25], [50, 50], [50, 50], [25, 75], [25, 75]]
    (drift,) = combined(records([(i, "0", t) for i, t in enumerate(steps)])).drift
    assert drift.distance == 0.5
    assert (drift.first_step, drift.last_step) == (0, 5)
    assert (drift.first_max_over_mean, drift.last_max_over_mean) == (1.5, 1.5)


def test_the_same_routing_at_all_steps_does_not_drift():
    (drift,) = combined(records([(i, "0", [30, 10]) for i in range(9)])).drift
    assert drift.distance == 0.0
    assert 0 < drift.chance_distance < 0.1


def test_samples_of_one_distribution_are_about_as_far_apart_as_chance_says():
    random = np.random.default_rng(5)
    ratios = []
    for _ in range(40):
        calls = [(i, "0", random.multinomial(500, [0.4, 0.3, 0.2, 0.1]).tolist()) for i in range(9)]
        (drift,) = combined(records(calls)).drift
        ratios.append(drift.distance / drift.chance_distance)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.25)


def test_a_few_steps_have_no_thirds():
    assert combined(records([(i, "0", [3, 1]) for i in range(5)])).drift == ()


# Experts -----------------------------------------------------------------------------------------


def test_dead_experts_are_named_and_the_least_used_is_told():
    (layer,) = combined(records([(0, "0", [300, 0, 299, 1])])).layers
    assert layer.dead_experts == (1, 3)
    assert layer.dead_ratio == 0.5
    assert layer.min_over_mean == 0.0


# Calls -------------------------------------------------------------------------------------------


def test_calls_are_those_of_the_traced_steps_in_the_order_of_the_log():
    calls = [(s, layer, [s, 1]) for s in range(30) for layer in ("b", "a")]
    found = measure_routing(records(calls, traced=(3, 4))).calls
    assert found.step.tolist() == [3, 3, 4, 4]
    assert [found.names[i] for i in found.layer.tolist()] == ["b", "a", "b", "a"]
    assert found.tokens.tolist() == [[3, 1], [3, 1], [4, 1], [4, 1]]


def test_without_traced_steps_the_last_ones_are_kept():
    found = measure_routing(records([(s, "0", [1, 1]) for s in range(40)])).calls
    assert found.step.tolist() == list(range(40 - calls.MAX_CALL_STEPS, 40))


def test_as_many_steps_are_kept_as_memory_allows(monkeypatch):
    monkeypatch.setattr(calls, "MAX_CALL_COUNTS", 10)
    found = measure_routing(records([(s, "0", [1, 1, 1, 1]) for s in range(9)])).calls
    assert found.step.tolist() == [7, 8]
    monkeypatch.setattr(calls, "MAX_CALL_COUNTS", 3)
    assert measure_routing(records([(0, "0", [1, 1, 1, 1])])).calls is None


@pytest.mark.parametrize(("capacity", "dropped", "tokens", "left"), [
    (5, 3, [5, 2], 0),  # 8 and 2 asked for, an expert takes 5
    (5, 1, [8, 2], 1),  # the capacity does not explain the drops: nothing is assumed
    (ABSENT, 0, [8, 2], 0),
])  # fmt: skip
def test_calls_hold_what_experts_took(capacity, dropped, tokens, left):
    logged = records([(0, "0", [8, 2])])
    changed = logged.routing.with_columns(
        capacity=np.array([capacity]), dropped=np.array([dropped])
    )
    found = measure_routing(replace(logged, routing=changed)).calls
    assert (found.tokens.tolist(), found.dropped.tolist()) == ([tokens], [left])


def test_layers_of_unequal_numbers_of_experts_are_padded():
    found = measure_routing(records([(0, "a", [1, 2, 3]), (0, "b", [4, 5])])).calls
    assert found.tokens.tolist() == [[1, 2, 3], [4, 5, 0]]
    assert found.num_experts.tolist() == [3, 2]


@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=1, max_size=5))
def test_calls_hold_every_token_of_their_steps(steps):
    calls = [(i, "0", tokens) for i, tokens in enumerate(steps)]
    found = measure_routing(records(calls)).calls
    assert found.tokens.tolist() == steps


# Ranks by the mesh -------------------------------------------------------------------------------

EP = {0: {"ep": 0}, 1: {"ep": 1}}


def test_ranks_of_the_expert_axis_hold_contiguous_blocks():
    """Together 8, 4, 2, 2: ranks have 12 and 4, placed anew 8 and 8 or as near as slots allow."""
    logs = [measure_routing(records([(0, "0", [4, 2, 1, 1])], rank=rank)) for rank in (0, 1)]
    (row,) = placement_of_log(logs, EP)
    assert (row.num_ranks, row.max_over_mean, row.expert_max_over_mean) == (2, 1.5, 2.0)
    assert row.replaced_max_over_mean == 1.25
    assert row.rank_of_expert == (0, 1, 1, 0)
    assert row.lost_ns_per_step is None


def test_without_an_expert_axis_or_all_its_logs_ranks_are_not_compared():
    logs = [measure_routing(records([(0, "0", [4, 2, 1, 1])], rank=0))]
    assert placement_of_log(logs, EP) == ()
    assert placement_of_log(logs, {0: {"dp": 0}, 1: {"dp": 1}}) == ()


def test_a_log_beside_traces_without_all_to_alls_says_that_no_time_is_known():
    builder = RankBuilder(0).kernel("gemm", 0, 10).step(0, 0, 10)
    log = measure_routing(records([(0, "0", [4, 2, 1, 1])]))
    moe = with_exchanges(
        make_run([builder.rank()]), RankAnalyses.of([]), combine_routing([log], {}), [log]
    )
    assert moe.layers
    assert moe.lost_ns_per_step is None
    assert any("could be matched" in text for text in moe.unavailable)


def test_without_log_traces_or_counts_there_is_nothing():
    moe = with_exchanges(make_run([]), RankAnalyses.of([]), combine_routing([], {}, ("why",)), [])
    assert (moe.layers, moe.placement, moe.origin, moe.unavailable) == ((), (), None, ("why",))
