"""What-if on logs of operations: a pipeline by hand, what must always hold, published figures."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.ingest.kinds.operation_table import read_operation_table
from distprof.sections.whatif import operation_replay as by
from distprof.sections.whatif.operation_graph import lay_out
from distprof.sections.whatif.operation_replay import OperationReplay, replay_of
from distprof.sections.whatif.operations import simulate_operations
from tests.operation_logs import BY_HAND, MS, joined, log_of, pipeline_rows

GOLDEN = Path(__file__).parents[2] / "golden" / "straggler" / "bytedance-ST"


def replay(log) -> OperationReplay:
    rows = lay_out(log)
    assert rows is not None
    return replay_of(rows)


# By hand ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_hand():
    return simulate_operations(log_of(BY_HAND))


def test_two_stages_replay_to_what_was_written_by_hand(by_hand):
    assert by_hand.source == "operations"
    assert by_hand.unavailable == ()
    assert (by_hand.num_operations, by_hand.num_steps) == (20, 1)
    assert by_hand.step_ns == by_hand.replayed_ns == 157 * MS
    assert by_hand.model_error_ratio == 0


def test_ideal_computation_is_the_mean_of_both_stages(by_hand):
    # F 15, B 30 on both: 0-15 F0, 16-31 F0', 31-61 B0', 61-76 F1', 76-106 B1', 107-137 B1, 139, 142
    assert by_hand.ideal_ns == 142 * MS
    assert by_hand.slowdown == pytest.approx(157 / 142)


def test_stages_are_slow_as_each_alone_makes_the_step(by_hand):
    assert [stage.slowdown for stage in by_hand.stages] == pytest.approx([127 / 142, 172 / 142])
    assert [stage.compute_ns for stage in by_hand.stages] == [60 * MS, 120 * MS]
    assert [stage.ranks for stage in by_hand.stages] == [(0,), (1,)]


def test_a_worker_is_as_slow_as_the_lesser_of_its_row_and_its_stage(by_hand):
    slowdowns = {worker.rank: worker.slowdown for worker in by_hand.workers}
    assert slowdowns == pytest.approx({1: 157 / 142, 0: 127 / 142})
    assert by_hand.workers[0].rank == 1


def test_kinds_are_slow_as_each_alone_makes_the_step(by_hand):
    slowdowns = {kind.kind: kind.slowdown for kind in by_hand.kinds}
    assert slowdowns["forward-compute"] == pytest.approx(147 / 142)
    assert slowdowns["backward-compute"] == pytest.approx(152 / 142)
    assert slowdowns["forward-pp-comm"] == slowdowns["optimizer"] == 1


def test_shares_of_the_last_stage_and_of_the_slowest_worker_may_exceed_one(by_hand):
    assert by_hand.m_s == pytest.approx((157 - 127) / (157 - 142))
    assert by_hand.m_w == pytest.approx(2.0)


def test_scenarios_recover_what_they_would(by_hand):
    recovered = {scenario.what: scenario.recoverable_ns // MS for scenario in by_hand.without}
    assert recovered["last-stage"] == 30
    assert recovered["stage-imbalance"] == 15
    assert recovered["micro-batch-imbalance"] == 0
    assert recovered["launch-gaps"] == 0
    gains = [scenario.recoverable_ns for scenario in by_hand.without]
    assert gains == sorted(gains, reverse=True)


def test_the_critical_path_adds_up_to_the_step(by_hand):
    shares = {(s.rank, s.kind, s.name): s.ns_per_step // MS for s in by_hand.path}
    assert shares[1, "compute", "backward-compute"] == 80
    assert shares[1, "compute", "forward-compute"] == 40
    assert shares[0, "compute", "forward-compute"] == 10
    assert shares[0, "compute", "backward-compute"] == 20
    assert shares[None, "transfer", "optimizer-clip-main-grad"] == 2
    assert sum(share.ns_per_step for share in by_hand.path) == 157 * MS
    assert sum(share.share_ratio for share in by_hand.path) == pytest.approx(1)


def test_what_is_launched_late_is_the_model_error_and_a_scenario():
    rows = [
        (
            d,
            s,
            kind,
            seq,
            start + (10 if kind == "optimizer" else 0),
            end + 10 * (kind == "optimizer"),
        )
        for d, s, kind, seq, start, end in BY_HAND
    ]
    result = simulate_operations(log_of(rows))
    assert result.step_ns == 167 * MS
    assert result.replayed_ns == 157 * MS
    assert result.model_error_ratio == pytest.approx(-10 / 167)
    gaps = next(s for s in result.without if s.what == "launch-gaps")
    assert gaps.recoverable_ns == 10 * MS


def test_steps_are_listed_slowest_first():
    longer = [(d, s, k, q, 2 * a, 2 * b) for d, s, k, q, a, b in BY_HAND]
    result = simulate_operations(joined([log_of(BY_HAND), log_of(longer, steps=(8,))]))
    assert [step.step for step in result.steps] == [8, 7]
    assert result.steps[0].slowdown == pytest.approx(2 * result.steps[1].slowdown)


# What must hold -----------------------------------------------------------------------------------


@st.composite
def jobs(draw):
    """A pipeline job of a few steps, lengths of computation drawn for every operation."""
    dp, stages = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    batches, steps = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    shape = {"dp": dp, "stages": stages, "micro_batches": batches}
    return joined(
        [
            log_of(
                pipeline_rows(lambda *_: int(rng.integers(1_000, 9_000)), **shape),
                unit=1,
                steps=(step,),
            )
            for step in range(steps)
        ]
    )


@settings(max_examples=40, deadline=None)
@given(jobs())
def test_a_simulated_pipeline_is_replayed_exactly_where_nothing_was_launched_late(log):
    again = replay(log)
    measured = [log.step_ns[step] for step in again.rows.steps.tolist()]
    assert again.simulated().tolist() == measured


@settings(max_examples=25, deadline=None)
@given(jobs())
def test_keeping_all_is_the_step_and_keeping_none_the_ideal(log):
    again = replay(log)
    everything = np.ones(len(again.rows), bool)
    kept = again.keeping([everything, ~everything])
    fixed = again.fixing([everything, ~everything])
    ideal = [again.ideal_step()] * again.num_steps
    assert kept[0].tolist() == fixed[1].tolist() == again.simulated().tolist()
    assert kept[1].tolist() == fixed[0].tolist() == ideal


@settings(max_examples=25, deadline=None)
@given(jobs())
def test_one_ideal_row_stands_for_all_ideal_rows(log):
    again = replay(log)
    rows = range(int(again.rows.dp_rank.max()) + 1)
    alone = again.keeping([again.rows.dp_rank == row for row in rows])
    assert by.by_dp_rank(again).tolist() == alone.tolist()


@settings(max_examples=25, deadline=None)
@given(jobs(), st.integers(2, 9))
def test_another_unit_of_time_changes_no_ratio(log, factor):
    table = log.operations
    slower = log_like(log, start_ns=table["start_ns"] * factor, end_ns=table["end_ns"] * factor)
    one, other = simulate_operations(log), simulate_operations(slower)
    assert other.slowdown == pytest.approx(one.slowdown, rel=1e-3)  # ideal lengths are whole ns
    assert other.replayed_ns == pytest.approx((one.replayed_ns or 0) * factor, abs=factor)


@settings(max_examples=25, deadline=None)
@given(jobs(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(log, random):
    order = list(range(len(log.operations)))
    random.shuffle(order)
    shuffled = log_like(log, table=log.operations.take(np.array(order)))
    assert simulate_operations(shuffled) == simulate_operations(log)


def log_like(log, *, table=None, **columns):

    return replace(log, operations=table or log.operations.with_columns(**columns))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(100, 10_000))
def test_operations_that_are_all_alike_are_ideal(dp, stages, batches, length):
    rows = pipeline_rows(lambda *_: length, dp=dp, stages=stages, micro_batches=batches)
    result = simulate_operations(log_of(rows, unit=1))
    assert result.slowdown == 1
    assert {kind.slowdown for kind in result.kinds} == {1}
    assert {worker.slowdown for worker in result.workers} == {1}
    assert result.m_w is None
    assert result.m_s is None
    assert all(scenario.recoverable_ns == 0 for scenario in result.without)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 7), st.integers(0, 3), st.floats(1.3, 3.0))
def test_one_slow_worker_explains_the_slow_down(row, stage, factor):
    def length(dp_rank, at, *_):
        return round(1_000_000 * (factor if (dp_rank, at) == (row, stage) else 1.0))

    rows = pipeline_rows(length, dp=8, stages=4, micro_batches=8)
    result = simulate_operations(log_of(rows, unit=1))
    assert result.workers[0].rank == row * 4 + stage
    assert result.m_w == pytest.approx(1, abs=0.15)
    slowest = next(s for s in result.without if s.what == "slowest-workers")
    assert row * 4 + stage in slowest.ranks
    named = next(s for s in result.without if s.what == f"rank {row * 4 + stage}")
    assert named.recoverable_ns > 0.8 * ((result.replayed_ns or 0) - (result.ideal_ns or 0))


def test_a_slow_stage_is_told_from_slow_micro_batches():
    def by_stage(_, stage, *__):
        return 2_000_000 if stage == 1 else 1_000_000

    def by_batch(dp_rank, _, kind, batch):
        return 1_000_000 * (1 + (7 * dp_rank + 3 * batch) % 5) * (2 if "back" in kind else 1)

    shape = {"dp": 4, "stages": 4, "micro_batches": 8}
    stage = simulate_operations(log_of(pipeline_rows(by_stage, **shape), unit=1))
    batch = simulate_operations(log_of(pipeline_rows(by_batch, **shape), unit=1))
    assert gain(stage, "stage-imbalance") > 0.9 * lost(stage)
    assert gain(stage, "micro-batch-imbalance") == 0
    assert gain(batch, "micro-batch-imbalance") > 0.9 * lost(batch)
    assert gain(batch, "stage-imbalance") == 0
    assert batch.micro_batch_correlation == pytest.approx(1)
    assert stage.micro_batch_correlation is None


def gain(result, what):
    return next(s.recoverable_ns for s in result.without if s.what == what)


def lost(result):
    return result.replayed_ns - result.ideal_ns


# What cannot be told ------------------------------------------------------------------------------


def test_steps_with_other_operations_are_left_out_and_counted():
    log = joined([log_of(BY_HAND, steps=(1, 2)), log_of(BY_HAND[:-1], steps=(3,))])
    result = simulate_operations(log)
    assert result.num_steps == 2
    assert result.unavailable == (
        "Steps left out because their operations differ from those of most steps: 1 of 3.",
    )


def test_kinds_without_a_known_place_are_left_out_and_named():
    result = simulate_operations(log_of((*BY_HAND, (0, 0, "evaluation", 0, 200, 300))))
    assert result.replayed_ns == 157 * MS
    assert "evaluation" in result.unavailable[0]


def test_a_log_of_unknown_kinds_only_says_so():
    result = simulate_operations(log_of([(0, 0, "evaluation", 0, 0, 10)]))
    assert result.slowdown is None
    assert "no operation whose place" in result.unavailable[0]


def test_workers_without_a_common_clock_are_not_compared():
    result = simulate_operations(log_like_clockless())
    assert result.slowdown is None
    assert "share no clock" in result.unavailable[0]


def log_like_clockless():

    return replace(log_of(BY_HAND), shares_clock=False)


def test_a_step_that_takes_no_time_is_no_division_by_zero():
    result = simulate_operations(log_of([(d, s, k, q, 0, 0) for d, s, k, q, *_ in BY_HAND]))
    assert result.slowdown is None
    assert result.unavailable == ("The log's steps take no time.",)


def test_a_message_without_partner_is_counted():
    rows = [row for row in BY_HAND if row[2:4] != ("forward-recv", 1)]
    result = simulate_operations(log_of(rows))
    assert "without a partner in the log: 1" in result.unavailable[0]
    assert result.slowdown is not None


def test_stages_without_logged_messages_wait_for_each_other():
    rows = [row for row in BY_HAND if not row[2].endswith(("send", "recv"))]
    again = replay(log_of(rows))
    # As by hand without the 1 ms of four messages that the step waits for
    assert again.simulated().tolist() == [155 * MS]


# Published ----------------------------------------------------------------------------------------


def assert_as_published(folder: Path, name: str) -> None:
    published = {
        part: json.loads((folder / f"{part}-{name}.json").read_text())
        for part in ("result", "ms", "mw")
    }
    result = published["result"]
    log = read_operation_table(str(folder / f"trace-{name}.parquet"))
    again = replay(log)
    steps = [str(step) for step in again.rows.steps.tolist()]
    simulated, ideal, measured = again.simulated(), again.ideal_step(), again.measured()

    def near(values, wanted):
        np.testing.assert_allclose(values, wanted, rtol=1e-6, atol=0)

    near(measured / 1e9, [result["step_t_base"][step] for step in steps])
    near(simulated / 1e9, [result["step_t_nodelay"][step] for step in steps])
    near(ideal / 1e9, next(iter(result["step_t_noblk"].values())))
    near(simulated.mean() / ideal, result["blocking_slowdown"])
    near(measured.mean() / simulated.mean(), result["launch_slowdown"])
    near(simulated / ideal, [result["blocking_step_slowdown"][step] for step in steps])
    near(measured / simulated, [result["launch_step_slowdown"][step] for step in steps])
    parts = {
        "optype": by.by_kind(again),
        "stage": {str(i): row for i, row in enumerate(by.by_stage(again))},
        "dp_rank": {str(i): row for i, row in enumerate(by.by_dp_rank(again))},
    }
    for part, lengths in parts.items():
        assert lengths.keys() == result[f"blocking_decompose_by_{part}"].keys()
        per_step = result[f"blocking_decompose_by_{part}_per_step"]
        for key, length in lengths.items():
            near(length.mean() / ideal, result[f"blocking_decompose_by_{part}"][key])
            near(length / ideal, [per_step[step][key] for step in steps])
    answer = simulate_operations(log)
    near(answer.slowdown, result["blocking_slowdown"])
    assert answer.m_s == pytest.approx(published["ms"]["Ms"], abs=1e-6)
    assert answer.m_w == pytest.approx(published["mw"]["Mw"], abs=1e-6)
    assert_explained_as_published(again, answer, published)


def assert_explained_as_published(again, answer, published) -> None:
    """The four step times behind M_S and M_W, and both shares."""
    last = again.rows.stage == again.rows.num_stages - 1
    late = next(s.ranks for s in answer.without if s.what == "slowest-workers")
    for part, mask in (("ms", last), ("mw", np.isin(again.rows.rank, late))):
        base, ideal = again.simulated().mean(), again.ideal_step()
        removed, added = again.fixing([mask]).mean(), again.keeping([mask]).mean()
        figures = {
            "trem": removed / 1e9,
            "tadd": added / 1e9,
            "tori": base / 1e9,
            "tideal": ideal / 1e9,
            "rem": (base - removed) / (base - ideal),
            "add": (added - ideal) / (base - ideal),
        }
        for name, value in figures.items():
            assert value == pytest.approx(published[part][name], rel=1e-6, abs=1e-6)


def test_stage_imbalance_table_gives_every_published_figure():
    assert_as_published(GOLDEN, "ST")


def test_stage_imbalance_table_is_blamed_on_the_last_stage():
    answer = simulate_operations(read_operation_table(str(GOLDEN)))
    assert answer.stages[-1].slowdown == max(stage.slowdown for stage in answer.stages)
    assert {worker.rank for worker in answer.workers[:2]} == {6, 7}
    assert gain(answer, "stage-imbalance") > 0.8 * lost(answer)


@pytest.mark.corpus
def test_sequence_imbalance_table_gives_every_published_figure():
    root = os.environ.get("DISTPROF_CORPUS")
    if root is None:
        pytest.skip("DISTPROF_CORPUS does not name the folder of real traces")
    assert_as_published(Path(root) / "straggler" / "bytedance-SE", "SE")
