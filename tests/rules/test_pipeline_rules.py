"""Pipelines whose order of forwards and backwards is unknown."""

import pytest
from msgspec.structs import replace

from distprof.rules.engine import run_rules
from distprof.sections.pipeline import PipelineResult
from distprof.sections.placement import PlacementResult
from tests.rules.samples import (
    MS,
    healthy,
    pipeline,
    pipeline_group,
    placed_axis,
    placement,
    position,
)


def of_unknown_order(*, batches, idle):
    """Eight stages, known by their messages alone, that idle ``idle`` of 100 ms."""
    return replace(
        pipeline_group(),
        schedule="unknown order",
        num_micro_batches=batches,
        bubble_fraction=idle / 100,
        idle_ns=idle * MS,
        warm_up_drain_ns=None,
        exposed_p2p_ns=None,
        predictions=(),
    )


def found(group):
    results = {**healthy(), PipelineResult: pipeline(groups=(group,))}
    outcome = run_rules(results.values(), debug=True)
    return {one.name: one for one in outcome.findings}


def test_too_few_micro_batches_show_in_the_idle_time():
    """Eight stages and eight micro-batches idle 7 of 15 at best: 46.7 %."""
    finding = found(of_unknown_order(batches=8, idle=50))["too-few-micro-batches"]
    assert "8 micro-batches on 8 stages leave 46.7 % idle at best" in finding.message
    assert finding.cost_ns_per_step == pytest.approx(46.7 * MS, rel=1e-3)
    assert finding.confidence == "inferred"


def test_a_stage_that_was_not_recorded_counts():
    whole = of_unknown_order(batches=8, idle=50)
    part = replace(whole, ranks=whole.ranks[:-1])
    assert (
        found(part)["too-few-micro-batches"].message.partition(": ")[2]
        == (found(whole)["too-few-micro-batches"].message.partition(": ")[2])
    )


@pytest.mark.parametrize(("batches", "idle"), [(64, 12), (8, 30)])
def test_enough_micro_batches_or_another_order_are_no_finding(batches, idle):
    """64 leave 9.9 %; a pipeline that idles less than its count allows runs another order."""
    assert "too-few-micro-batches" not in found(of_unknown_order(batches=batches, idle=idle))


@pytest.mark.parametrize(
    ("samples", "advice"),
    [
        (None, "Use more micro-batches (32 or more for 8 stages)"),
        (64, "Use more micro-batches (32 or more for 8 stages)"),
        (16, "Use more micro-batches (16 or more for 8 stages)"),
        (8, "Each micro-batch is one sample: use a larger batch"),
    ],
)
def test_no_more_micro_batches_are_proposed_than_the_batch_has_samples(samples, advice):
    group = replace(of_unknown_order(batches=8, idle=50), samples_per_step=samples)
    assert found(group)["too-few-micro-batches"].fix.startswith(advice)


@pytest.mark.parametrize(("samples", "is_proposed"), [(None, True), (128, True), (32, False)])
def test_predictions_that_the_batch_cannot_have_are_no_advice(samples, is_proposed):
    """64 instead of 16 micro-batches need a multiple of 64 samples."""
    group = replace(pipeline_group(warm_up_drain=20), samples_per_step=samples)
    assert bool(group.better) == is_proposed
    assert ("into 64 micro-batches" in found(group)["too-few-micro-batches"].fix) == is_proposed


def why_not_checked(result):
    outcome = run_rules({**healthy(), PipelineResult: result}.values(), debug=True)
    return {one.name: one.why for one in outcome.not_checked}.get("unequal-stages", "")


def test_a_slow_stage_that_few_steps_cannot_prove_is_said_to_be_unproven():
    """Stage 1 works 45 % more in steps that differ as much: no finding, but not no slow stage."""
    busy = position(1, work_ns_per_micro_batch=1_450_000, excess_ratio=0.45, chance=0.03)
    result = pipeline(positions=(position(0), busy), lost_ns_per_step=5 * MS)
    assert "stage 1 works 45.0 % more than the others" in why_not_checked(result)
    equal = replace(busy, excess_ratio=0.02)
    assert not why_not_checked(replace(result, positions=(position(0), equal)))


def test_unequal_work_in_an_unknown_order_is_said_not_to_be_priced():
    """Ranks with several stages, known by their messages: no stage's own work is known."""
    group = replace(of_unknown_order(batches=8, idle=50), imbalance_ns=None, imbalance_ratio=1.4)
    assert "works 40.0 % more than the mean" in why_not_checked(
        pipeline(positions=(), groups=(group,))
    )
    even = replace(group, imbalance_ratio=1.02)
    assert not why_not_checked(pipeline(positions=(), groups=(even,)))


@pytest.mark.parametrize(
    ("num_nodes", "is_asked"),
    [
        pytest.param((1,), False, id="one node"),
        pytest.param((2,), True, id="two nodes"),
        pytest.param((1, 2), True, id="some on one node"),
        pytest.param((), True, id="unknown"),
    ],
)
@pytest.mark.parametrize("name", ["exposed-pipeline-messages", "bubble-above-ideal"])
def test_stages_on_one_node_are_not_to_be_put_on_one_node(num_nodes, is_asked, name):
    axes = [placed_axis(axis="pp", num_nodes=n, num_domains=n) for n in num_nodes]
    group = pipeline_group(messages=20)
    results = {
        **healthy(),
        PipelineResult: pipeline(groups=(group,)),
        PlacementResult: placement(*axes),
    }
    findings = {one.name: one for one in run_rules(results.values(), debug=True).findings}
    assert ("Put neighbouring stages on one node" in findings[name].fix) is is_asked
    assert ("which are on one node" in findings[name].fix) is not is_asked
