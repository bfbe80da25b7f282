"""Which blocks go where, and what cannot be."""

from __future__ import annotations

import pytest
from distprof_runs.pipeline_plan import SCHEDULES, plan_pipeline
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import UsageError


def test_one_stage_for_each_rank_with_one_boundary_less_than_ranks() -> None:
    plan = plan_pipeline("1f1b", ranks=4, layers=8, micro_batches=4)
    assert plan.blocks == (2, 2, 2, 2)
    assert [plan.stages_of(rank) for rank in range(4)] == [(0,), (1,), (2,), (3,)]
    assert list(plan.crossings()) == [(0, 1), (1, 2), (2, 3)]


def test_stages_go_round_and_round() -> None:
    plan = plan_pipeline("interleaved-1f1b", ranks=2, layers=4, micro_batches=2)
    assert [plan.stages_of(rank) for rank in range(2)] == [(0, 2), (1, 3)]
    assert list(plan.crossings()) == [(0, 1), (1, 0), (0, 1)]


@pytest.mark.parametrize("schedule", ["zbv", "dualpipev"])
def test_v_shaped_schedules_come_back_and_pass_to_themselves_at_the_turn(schedule: str) -> None:
    plan = plan_pipeline(schedule, ranks=3, layers=6, micro_batches=6)
    assert [plan.stages_of(rank) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert list(plan.crossings()) == [(0, 1), (1, 2), (2, 1), (1, 0)]


def test_blocks_left_over_go_to_the_middle() -> None:
    plan = plan_pipeline("gpipe", ranks=4, layers=6, micro_batches=1)
    assert plan.blocks == (1, 2, 2, 1)
    assert [plan.first_block(stage) for stage in range(4)] == [0, 1, 3, 5]


def test_a_split_is_taken_as_given() -> None:
    plan = plan_pipeline("gpipe", ranks=3, layers=8, micro_batches=1, split="2, 3,3")
    assert plan.blocks == (2, 3, 3)


@pytest.mark.parametrize(
    ("schedule", "changes", "way_out"),
    [
        ("gpipe", {"ranks": 1}, "--ranks 2"),
        ("gpipe", {"layers": 3}, "--layers 4"),
        ("gpipe", {"virtual_stages": 2}, "remove --virtual-stages"),
        ("zbv", {"virtual_stages": 3, "layers": 12}, "remove --virtual-stages"),
        ("1f1b", {"micro_batches": 3}, "--micro-batches 4"),
        ("dualpipev", {"micro_batches": 7, "layers": 8}, "--micro-batches 8"),
        ("interleaved-zb", {"micro_batches": 9, "layers": 8}, "--micro-batches 8"),
        ("gpipe", {"split": "1,2,3"}, "4 stages, for example 2,2,2,2"),
        ("gpipe", {"split": "1,2,x,1"}, "for example 2,2,2,2"),
        ("gpipe", {"split": "0,3,3,2"}, "for example 2,2,2,2"),
        ("gpipe", {"split": "1,2,3,1"}, "7 blocks, the model 8"),
    ],
)
def test_what_cannot_run_is_refused_with_the_way_out(
    schedule: str, changes: dict[str, object], way_out: str
) -> None:
    asked: dict[str, object] = {"ranks": 4, "layers": 8, "micro_batches": 8, **changes}
    with pytest.raises(UsageError, match=way_out):
        plan_pipeline(schedule, **asked)  # type: ignore[arg-type]


@given(
    schedule=st.sampled_from(sorted(SCHEDULES)),
    ranks=st.integers(2, 6),
    more=st.integers(0, 20),
)
def test_every_block_is_on_one_rank_and_ranks_have_equal_numbers_of_stages(
    schedule: str, ranks: int, more: int
) -> None:
    stages = ranks * SCHEDULES[schedule][0]
    plan = plan_pipeline(schedule, ranks=ranks, layers=stages + more, micro_batches=2 * ranks)
    assert sum(plan.blocks) == stages + more
    assert max(plan.blocks) - min(plan.blocks) <= 1
    held = [stage for rank in range(ranks) for stage in plan.stages_of(rank)]
    assert sorted(held) == list(range(stages))
    assert {len(plan.stages_of(rank)) for rank in range(ranks)} == {stages // ranks}
