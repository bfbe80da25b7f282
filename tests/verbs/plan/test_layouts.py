"""Layouts as they are written, and what forbids one."""

from __future__ import annotations

import pytest

from distprof.errors import UsageError
from distprof.verbs.plan.layout import Layout, objections, parse_layout
from distprof.verbs.plan.search import judge_layout
from tests.verbs.plan.jobs import cluster, question


def kinds(text: str, *, model: str = "llama2-7b", batch: int = 128, sequence: int = 4096):
    asked = question(model)
    layout = parse_layout(text, num_gpus=64, batch=batch)
    found = objections(layout, asked.model, asked.cluster, batch=batch, sequence=sequence)
    return [objection.kind for objection in found]


def test_what_is_left_out_follows():
    layout = parse_layout("tp=8, pp=2,micro-batch=2", num_gpus=64, batch=128)
    assert layout == Layout(dp=4, tp=8, pp=2, micro_batch=2, micro_batches=16)
    assert parse_layout(layout.text, num_gpus=64, batch=128) == layout


@pytest.mark.parametrize(
    "text", ["tp=4,sharding=hsdp,shards=2,recomputation=full", "pp=4,stages=2,sharding=zero-1"]
)
def test_the_text_of_a_layout_leads_back_to_it(text):
    layout = parse_layout(text, num_gpus=64, batch=128)
    assert parse_layout(layout.text, num_gpus=64, batch=128) == layout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=x", "tp must be a number"), ("tp=0", "tp must be a number"),
        ("tensor=8", "unknown key 'tensor'"), ("sharding=zero-4", "sharding must be one of"),
        ("sharding=hsdp", "needs shards"), ("shards=8", "works only with sharding=hsdp"),
        ("", "unknown key ''"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_named(text, message):
    with pytest.raises(UsageError, match=message):
        parse_layout(text, num_gpus=64, batch=128)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("dp=3", "ranks do not add up"),
        ("dp=4,tp=16", "tensor parallelism leaves the fast domain"),
        ("pp=64", "more stages than layers"),
        ("cp=4", "sequence too short to share"),
        ("ep=2", "experts not divisible"),
        ("sharding=hsdp,shards=7", "shards not divisible"),
        ("micro-batch=3", "batch not divisible"),
        ("pp=16,micro-batch=4,micro-batches=8", "too few micro-batches"),
        ("stages=2", "micro-batches not divisible"),
    ],
)
def test_each_reason_to_refuse(text, kind):
    assert kind in kinds(text)


def test_nothing_is_said_against_a_sound_layout():
    assert kinds("tp=8,pp=2,sharding=zero-1") == []
    assert kinds("tp=2,ep=8,sharding=fsdp", model="mixtral-8x7b") == []


def test_heads_must_divide():
    assert "heads not divisible" in kinds("dp=1,tp=64")
    assert kinds("tp=4", model="llama2-13b") == []


def test_state_that_does_not_fit_is_an_objection_with_numbers():
    """7 B take 112 GB of state alone."""
    asked = question(gpus=8, batch=8)
    plan = judge_layout(asked, parse_layout("dp=8", num_gpus=8, batch=8))
    assert plan.fitting == 0
    assert "needs" in plan.objections[0]
    assert plan.best[0].memory.optimizer_bytes == pytest.approx(12 * 6.738e9, rel=0.001)


def test_groups_lie_on_the_links_they_need():
    nodes = cluster(64)
    assert nodes.path(8, 1).tier == "scale-up"
    assert nodes.path(2, 4).tier == "scale-up"
    assert nodes.path(16, 1).tier == "inter-node"
    assert nodes.path(8, 8).bandwidth == pytest.approx(0.8 * 50e9)
    assert nodes.path(64, 1).bandwidth == pytest.approx(min(8 * 40e9, 0.8 * 450e9))
    assert cluster(64, per_node=64).path(64, 1).tier == "scale-up"


@pytest.mark.parametrize(("gpus", "per_node"), [(12, 8), (0, 8)])
def test_clusters_that_cannot_be_are_refused(gpus, per_node):
    with pytest.raises(UsageError):
        cluster(gpus, per_node=per_node)
