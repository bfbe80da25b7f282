"""Pipelines whose order of forwards and backwards is unknown."""

import pytest
from msgspec.structs import replace

from distprof.rules.engine import run_rules
from distprof.sections.pipeline.result import PipelineResult
from tests.rules.samples import MS, healthy, pipeline, pipeline_group


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


@pytest.mark.parametrize(("batches", "idle"), [(64, 12), (8, 30)])
def test_enough_micro_batches_or_another_order_are_no_finding(batches, idle):
    """64 leave 9.9 %; a pipeline that idles less than its count allows runs another order."""
    assert "too-few-micro-batches" not in found(of_unknown_order(batches=batches, idle=idle))
