"""Experts: load, time lost, placement and traffic against simulated jobs whose truth is known."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from distprof.rules import find_rule
from distprof.rules.engine import run_rules
from distprof.sections.moe import MoeResult
from distprof.sections.moe.calls import combine_routing, measure_routing
from distprof.sections.moe.measure import with_exchanges
from distprof.terms import MeshAxis
from tests.rules.samples import collectives
from tests.sections.measured import measure
from tests.sections.moe.moe_job import (
    TOKEN_BYTES,
    MoeJob,
    balanced,
    hot,
    simulate_moe,
    step_ns,
    uneven,
)

TWO_GROUPS = ((0, 2, 4, 6), (1, 3, 5, 7))


def analysed(simulated, *, log=True, present=None, change=None):
    """What the analysis says of a simulated job."""
    run = simulated.run(present=present)
    measured = measure(run)
    ranks = sorted(simulated.builders) if log else []
    records = [simulated.records(rank) for rank in ranks]
    records = [change(found) for found in records] if change else records
    routing = [measure_routing(found) for found in records]
    logged = combine_routing(routing, {}, () if log else ("no log",))
    return with_exchanges(run, measured.analyses, logged, routing)


def fired(moe, rule):
    outcome = run_rules([moe, collectives()], rules=[find_rule(rule)])
    assert outcome.not_checked == ()
    return outcome.findings


# Time lost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"micro_batches": 3},
        {"recompute": True},
        {"groups": TWO_GROUPS, "micro_batches": 2},
        {"fixed_ns": 300_000, "layers": 3},
    ],
    ids=["plain", "accumulation", "checkpoints", "two groups", "fixed part"],
)
def test_time_lost_by_layer_is_the_simulated_one_on_clocks_that_differ(seed, more):
    job = MoeJob(seed=seed, offset_ns=tuple(977_000 * r for r in range(8)), **more)
    job = replace(job, share=uneven(job.layers, job.experts, seed))
    simulated = simulate_moe(job)
    moe = analysed(simulated)
    assert [layer.layer for layer in moe.layers] == [f"blocks.{i}.moe" for i in range(job.layers)]
    for index, layer in enumerate(moe.layers):
        truth = simulated.truth.lost_ns(index, job.steps, len(job.groups))
        assert layer.lost_ns_per_step == pytest.approx(truth, rel=1e-3, abs=10)
        assert layer.expert_ns_per_step - layer.lost_ns_per_step == layer.balanced_ns_per_step
    assert moe.lost_ns_per_step == pytest.approx(
        sum(layer.lost_ns_per_step for layer in moe.layers), abs=10
    )
    assert moe.unavailable == ()


@pytest.mark.parametrize("seed", range(10))
def test_time_lost_is_what_even_experts_would_save(seed):
    """Dense layers that vary from rank to rank are not the experts' fault."""
    job = MoeJob(seed=seed, layers=3, micro_batches=2, jitter_ns=60_000, tokens=1_024)
    job = replace(job, share=uneven(job.layers, job.experts, seed))
    saved = step_ns(job) - step_ns(balanced(job))
    assert analysed(simulate_moe(job)).lost_ns_per_step == pytest.approx(saved, rel=0.1)


@pytest.mark.parametrize("seed", range(10))
def test_experts_placed_anew_take_what_the_simulation_of_that_placement_takes(seed):
    job = MoeJob(seed=seed, experts=16, tokens=2_048)
    job = replace(job, share=uneven(job.layers, job.experts, seed))
    moe = analysed(simulate_moe(job))
    place = np.array([row.rank_of_expert for row in sorted(moe.placement, key=lambda r: r.layer)])
    gain = step_ns(job) - step_ns(replace(job, place=place))
    assert moe.expert_ns_per_step - moe.replaced_ns_per_step == pytest.approx(gain, rel=0.1)
    assert moe.replaced_ns_per_step >= moe.balanced_ns_per_step


def test_waiting_in_combine_is_the_loss_as_the_other_ranks_see_it():
    moe = analysed(simulate_moe(MoeJob(share=hot(2, 8, 3, 3.0))))
    assert moe.combine_wait_ns_per_step == pytest.approx(moe.lost_ns_per_step, rel=1e-3)


@pytest.mark.parametrize("seed", range(12))
def test_the_hot_expert_is_named_with_all_its_layers_and_its_cost(seed):
    expert, times = seed % 8, 2.5 + seed % 3
    job = MoeJob(seed=seed, layers=3, share=hot(3, 8, expert, times), jitter_ns=20_000)
    moe = analysed(simulate_moe(job))
    (finding,) = fired(moe, "MOE101")
    assert finding.headline.startswith(f"Expert {expert} gets {times:.1f} times")
    assert "mean of 3 of 3 layers" in finding.message
    saved = step_ns(job) - step_ns(balanced(job))
    assert finding.cost_ns_per_step == pytest.approx(saved, rel=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_even_routing_is_accused_of_nothing(seed):
    moe = analysed(simulate_moe(MoeJob(seed=seed, jitter_ns=100_000)))
    for rule in ("MOE101", "MOE102", "MOE103", "MOE104", "MOE105"):
        assert fired(moe, rule) == ()


def test_busy_experts_on_one_rank_are_a_matter_of_placement():
    share = np.full((2, 16), 0.25 / 12)
    share[:, :4] = 0.75 / 4
    job = MoeJob(experts=16, share=share, tokens=2_048)
    moe = analysed(simulate_moe(job))
    (finding,) = fired(moe, "MOE104")
    row = moe.placement[0]
    assert row.max_over_mean == pytest.approx(3.0, rel=0.02)
    assert row.replaced_max_over_mean == pytest.approx(1.0, abs=0.03)
    assert finding.cost_ns_per_step == pytest.approx(moe.lost_ns_per_step, rel=0.1)


# Ranks and traffic -------------------------------------------------------------------------------


def test_who_sends_whom_how_much_is_told_in_global_ranks():
    job = MoeJob(groups=TWO_GROUPS, share=hot(2, 8, 5, 3.0))
    simulated = simulate_moe(job)
    moe = analysed(simulated)
    truth = {
        pair: round(tokens * TOKEN_BYTES / job.steps)
        for pair, tokens in simulated.truth.dispatched.items()
    }
    found = {(pair.sender, pair.receiver): pair.dispatched_per_step for pair in moe.pairs}
    assert found.keys() == truth.keys()
    assert all(found[pair] == pytest.approx(truth[pair], abs=1) for pair in truth)
    assert {exchange.busiest_receiver for exchange in moe.exchanges} == {4, 5}  # expert 5: third
    assert [exchange.unit for exchange in moe.exchanges] == ["bytes", "bytes"]


def test_what_a_rank_sends_and_gets_leaves_out_what_stays_on_it():
    job = MoeJob(layers=1, steps=2)
    simulated = simulate_moe(job)
    moe = analysed(simulated)
    for row in moe.ranks:
        tokens = simulated.truth.dispatched
        away = sum(n for (s, r), n in tokens.items() if s == row.rank != r)
        back = sum(n for (s, r), n in tokens.items() if r == row.rank != s)
        expected = 2 * (away + back) * TOKEN_BYTES / job.steps  # forward and backward
        assert row.sent_bytes_per_step == pytest.approx(expected, abs=1)
        assert row.received_bytes_per_step == pytest.approx(expected, abs=1)


def test_tokens_of_a_rank_are_those_of_its_experts():
    job = MoeJob(share=hot(2, 8, 0, 4.0))
    simulated = simulate_moe(job)
    moe = analysed(simulated)
    total = sum(routed.sum(axis=0) for routed in simulated.truth.routed.values())
    by_rank = total.reshape(4, 2).sum(axis=1) / job.steps
    assert [row.tokens_per_step for row in moe.ranks] == pytest.approx(by_rank.tolist())
    assert moe.ranks[0].load_ratio == pytest.approx(by_rank[0] / by_rank.mean())


# Less evidence -----------------------------------------------------------------------------------


def test_without_a_routing_log_ranks_are_compared_by_what_all_to_alls_brought():
    job = MoeJob(layers=3, micro_batches=2, share=hot(3, 8, 6, 3.0))
    simulated = simulate_moe(job)
    moe, with_log = analysed(simulated, log=False), analysed(simulated)
    assert moe.origin == "all-to-all sizes"
    assert moe.layers == ()
    assert [row.layer for row in moe.placement] == ["layer 0", "layer 1", "layer 2"]
    assert moe.lost_ns_per_step == with_log.lost_ns_per_step
    for index, row in enumerate(moe.placement):
        truth = simulated.truth.lost_ns(index, job.steps, 1)
        assert row.lost_ns_per_step == pytest.approx(truth, rel=1e-3)
        assert row.expert_max_over_mean is row.replaced_max_over_mean is None


def test_without_split_sizes_sections_are_paired_by_order_and_named_by_the_log():
    job = MoeJob(layers=3, micro_batches=2, share=hot(3, 8, 6, 3.0))
    simulated = simulate_moe(job)
    for builder in simulated.builders.values():
        for row in builder.collectives:
            row.pop("in_splits", None), row.pop("out_splits", None)
    moe = analysed(simulated)
    for index, layer in enumerate(moe.layers):
        truth = simulated.truth.lost_ns(index, job.steps, 1)
        assert layer.lost_ns_per_step == pytest.approx(truth, rel=1e-3)
    assert {row.origin for row in moe.placement} == {"routing log"}
    assert moe.pairs == ()
    assert any("Split sizes" in text for text in moe.unavailable)


def test_a_log_that_disagrees_with_the_all_to_alls_is_said_with_numbers():
    def halved(records):
        return structs.replace(records, expert_tokens=records.expert_tokens // 2)

    simulated = simulate_moe(MoeJob(share=hot(2, 8, 6, 3.0)))
    moe = analysed(simulated, change=halved)
    (said,) = moe.unavailable
    assert "disagree" in said
    assert "1,024" in said
    assert moe.replaced_ns_per_step is None
    assert {row.origin for row in moe.placement} == {"all-to-all sizes"}
    assert moe.lost_ns_per_step == analysed(simulated).lost_ns_per_step


def test_a_log_of_other_calls_costs_the_names_of_layers_only():
    def cut(records):
        return structs.replace(records, routing=records.routing.take(slice(None, None, 2)))

    simulated = simulate_moe(MoeJob(micro_batches=2, layers=3))
    moe = analysed(simulated, change=cut)
    assert any("do not match" in text for text in moe.unavailable)
    assert moe.placement == ()
    assert moe.lost_ns_per_step == analysed(simulated).lost_ns_per_step


def test_half_a_group_is_compared_alone_and_that_is_said():
    simulated = simulate_moe(MoeJob(share=hot(2, 8, 0, 3.0)))
    moe = analysed(simulated, present=(0, 1, 3))
    assert any("rank 2 was not recorded" in text for text in moe.unavailable)
    assert [row.rank for row in moe.ranks] == [0, 1, 3]
    assert moe.lost_ns_per_step > 0


def test_a_rank_alone_says_that_nothing_can_be_joined():
    moe = analysed(simulate_moe(MoeJob()), present=(1,))
    assert moe.lost_ns_per_step is None
    assert moe.layers
    assert any("could be matched" in text for text in moe.unavailable)


def test_embedding_tables_are_no_experts():
    """They go there forward and come back backward, once, in a group that nobody calls expert."""
    simulated = simulate_moe(MoeJob(layers=1))
    plain = [without_axis(group) for group in simulated.groups]
    for builder in simulated.builders.values():
        per_step = len(builder.collectives) // 3
        kept = [row for i, row in enumerate(builder.collectives) if i % per_step in (1, 2)]
        builder.collectives[:] = [{**row, "group_desc": "embeddings"} for row in kept]
    moe = analysed(replace(simulated, groups=tuple(plain)), log=False)
    assert moe == MoeResult(unavailable=("no log",))


def without_axis(group):
    return structs.replace(group, axis=None, description="embeddings")


def test_results_of_every_kind_are_json():
    moe = analysed(simulate_moe(MoeJob(groups=TWO_GROUPS, share=hot(2, 8, 5, 3.0))))
    assert msgspec.json.decode(msgspec.json.encode(moe), type=MoeResult) == moe


def test_without_a_log_rules_on_experts_cannot_judge_and_say_so():
    moe = analysed(simulate_moe(MoeJob()), log=False)
    for rule in ("MOE101", "MOE102", "MOE103", "MOE104"):
        (skipped,) = run_rules([moe, collectives()], rules=[find_rule(rule)]).not_checked
        assert "no routing was logged" in skipped.why


def test_heads_that_are_exchanged_are_no_experts_though_the_run_has_some():
    simulated = simulate_moe(MoeJob())
    other = [
        structs.replace(group, axis=MeshAxis.CP, description="mesh_cp")
        for group in simulated.groups
    ]
    for builder in simulated.builders.values():
        for row in builder.collectives:
            row.pop("in_splits", None), row.pop("out_splits", None)
    moe = analysed(replace(simulated, groups=tuple(other)))
    assert (moe.exchanges, moe.lost_ns_per_step) == ((), None)


@pytest.mark.parametrize(
    "splits", ["9" * 400, "²,1,1,1", "1,2", "1,2,3,4,5", "-1,1,1,1", ",,,", "x"]
)
def test_nonsense_for_split_sizes_is_no_size(splits):
    simulated = simulate_moe(MoeJob())
    for builder in simulated.builders.values():
        for row in builder.collectives:
            if "in_splits" in row:
                row["in_splits"] = row["out_splits"] = splits
    moe = analysed(simulated)
    assert moe.pairs == ()
    assert {row.origin for row in moe.placement} == {"routing log"}
    assert msgspec.json.decode(msgspec.json.encode(moe), type=MoeResult) == moe


def test_absurd_sizes_stay_what_a_report_can_hold():
    simulated = simulate_moe(MoeJob())
    for builder in simulated.builders.values():
        for row in builder.collectives:
            row["bytes"] = 1 << 62
            if "in_splits" in row:
                row["in_splits"] = row["out_splits"] = "0,0,0,1"
    moe = analysed(simulated)
    assert msgspec.json.decode(msgspec.json.encode(moe), type=MoeResult) == moe
    assert all(0 <= pair.amount_per_step <= 1 << 62 for pair in moe.pairs)


@given(
    st.lists(st.sampled_from(["", "1,1,1,1", "0,0,0,0", "4,0,0,0", "7,1"]), min_size=8, max_size=8)
)
def test_any_mixture_of_splits_gives_a_result(texts):
    simulated = simulate_moe(MoeJob(steps=1, layers=1))
    for rank, builder in simulated.builders.items():
        for index, row in enumerate(builder.collectives):
            row["in_splits"] = texts[(index + rank) % 8]
            row["out_splits"] = texts[(index * 3 + rank) % 8]
    for log in (True, False):
        moe = analysed(simulated, log=log)
        assert msgspec.json.decode(msgspec.json.encode(moe), type=MoeResult) == moe
