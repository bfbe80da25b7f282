"""Estimates against hand-written numbers and published runs; the ranking of all layouts."""

from __future__ import annotations

import time

import pytest

from distprof.verbs.plan.layout import Question, parse_layout
from distprof.verbs.plan.search import judge_layout, make_plan
from tests.verbs.plan.jobs import cluster, gpt, question

PUBLISHED = [
    ("22B", (48, 6144, 64), 8, 4, "tp=8,micro-batch=4", 1.10),
    ("175B", (96, 12288, 96), 64, 64, "tp=8,pp=8,stages=3", 13.75),
    ("530B", (105, 20480, 128), 280, 280, "tp=8,pp=35,stages=3", 37.83),
    ("1T", (128, 25600, 160), 512, 512, "tp=8,pp=64", 71.49),
]
"""Korthikanti et al. 2022, table 5: seconds per iteration with sequence parallelism and selective
recomputation on A100s with HDR InfiniBand."""


def judged(asked: Question, text: str):
    layout = parse_layout(text, num_gpus=asked.cluster.num_gpus, batch=asked.batch)
    plan = judge_layout(asked, layout)
    assert not plan.objections
    return plan.best[0]


@pytest.mark.parametrize(
    ("shape", "gpus", "batch", "text", "seconds"),
    [row[1:] for row in PUBLISHED],
    ids=[row[0] for row in PUBLISHED],
)
def test_published_runs_fit_and_take_about_as_long(shape, gpus, batch, text, seconds):
    where = cluster(gpus, gpu="a100", link="hdr")
    asked = Question(model=gpt(*shape), cluster=where, batch=batch, sequence=2048)
    found = judged(asked, text)
    assert found.step_ns / 1e9 == pytest.approx(seconds, rel=0.2)


def test_parts_of_a_step_add_up():
    for text in ("tp=8,pp=4,sharding=zero-1", "sharding=fsdp", "tp=2,sharding=hsdp,shards=4"):
        found = judged(question("llama2-13b"), text)
        parts = found.compute_ns + found.exposed_ns + found.bubble_ns + found.optimizer_ns
        # the bubble is of computation and of what is exposed in it
        assert found.step_ns == pytest.approx(parts, abs=10)


def test_volumes_are_the_formula_sheets():
    """Tensor parallel: 4 · 2 · 7/8 · 4096 · 4096 · 2 bytes a layer; data: 2 · 7/8 of the rest."""
    found = judged(question(), "tp=8,sharding=zero-1,micro-batch=2")
    tensor, data = found.axes
    layer = 4 * 2 * 7 / 8 * 2 * 4096 * 4096 * 2
    assert tensor.sent_bytes == pytest.approx(layer * 32 * found.layout.micro_batches)
    assert data.sent_bytes == pytest.approx(2 * 7 / 8 * 6_738_415_616 / 8 * 2, rel=1e-6)
    assert (tensor.tier, data.tier) == ("scale-up", "inter-node")


def test_memory_by_part():
    found = judged(question(), "tp=8,sharding=zero-1,micro-batch=1,recomputation=full")
    own = 6_738_415_616 / 8
    memory = found.memory
    assert memory.weights_bytes == memory.gradients_bytes == pytest.approx(2 * own)
    assert memory.optimizer_bytes == pytest.approx(12 * own / 8)
    assert memory.gathered_bytes == 0
    assert memory.logits_bytes == 6 * 4096 * 32000 / 8


def test_the_head_is_gathered_once_with_the_block_before_it():
    """Llama 3 8B: 128,256 × 4,096 in the head, and 6,979,588,096 / 32 in a block, 2 bytes each."""
    memory = judged(question("llama3-8b"), "sharding=fsdp").memory
    expected = 2 * (128_256 * 4_096 + 6_979_588_096 / 32)
    assert memory.gathered_bytes == pytest.approx(expected, rel=1e-4)


def test_bubble_is_the_formula_and_interleaving_shrinks_it():
    plain = judged(question("llama2-13b"), "tp=4,pp=4,sharding=zero-1")
    assert plain.bubble_fraction == pytest.approx(3 / (32 + 3))
    woven = judged(question("llama2-13b"), "tp=4,pp=4,stages=2,sharding=zero-1")
    assert woven.bubble_ns < plain.bubble_ns
    assert woven.memory.activations_bytes > plain.memory.activations_bytes


def test_full_recomputation_trades_time_for_memory_and_counts_in_hfu_only():
    kept = judged(question(), "tp=4,sharding=zero-1")
    repeated = judged(question(), "tp=4,sharding=zero-1,recomputation=full")
    assert repeated.memory.activations_bytes < kept.memory.activations_bytes
    assert repeated.step_ns > kept.step_ns
    assert kept.hfu == kept.mfu
    assert repeated.hfu == pytest.approx(repeated.mfu * 4 / 3)


def test_hybrid_sharding_keeps_gathering_off_slow_links():
    slow = question("llama2-13b", link="ethernet-100")
    flat, hybrid = (judged(slow, text) for text in ("sharding=fsdp", "sharding=hsdp,shards=8"))
    assert hybrid.axes[0].tier == "scale-up"
    assert hybrid.step_ns < flat.step_ns
    assert hybrid.memory.optimizer_bytes == 8 * flat.memory.optimizer_bytes


def test_experts_spread_over_ranks_shrink_state_and_cost_all_to_alls():
    alone = judged(question("mixtral-8x7b"), "tp=4,sharding=zero-1")
    spread = judged(question("mixtral-8x7b"), "tp=4,ep=8,sharding=zero-1")
    assert spread.memory.weights_bytes < alone.memory.weights_bytes
    assert [axis.axis for axis in spread.axes] == ["tp", "ep", "dp"]


def test_long_sequences_are_shared():
    asked = question("llama3-8b", sequence=131072, batch=8, gpus=64)
    plan = make_plan(asked)
    assert plan.best[0].layout.cp > 1


def test_the_fastest_is_first_and_every_layout_can_be():
    asked = question("llama2-70b")
    plan = make_plan(asked)
    times = [found.step_ns for found in plan.best]
    assert times == sorted(times)
    assert len(plan.best) == 10
    for found in plan.best:
        assert found.memory.total_bytes <= asked.usable_bytes
        assert not judge_layout(asked, found.layout).objections
    assert plan.considered == plan.fitting + sum(r.count for r in plan.rejections)


def test_where_nothing_fits_the_reasons_are_counted():
    plan = make_plan(question("llama3-405b", gpus=8, batch=8))
    assert (plan.best, plan.fitting) == ((), 0)
    assert plan.rejections[0].reason == "memory"


def test_the_same_question_has_the_same_answer():
    assert make_plan(question("mixtral-8x7b")) == make_plan(question("mixtral-8x7b"))


def test_a_thousand_layouts_take_less_than_a_second():
    began = time.thread_time()
    plan = make_plan(question("llama3-70b", gpus=1024, batch=512))
    seconds = time.thread_time() - began
    assert seconds / plan.considered * 1024 < 1
