"""More micro-batches as a repair of traced pipelines, against pipelines that really run so."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

import distprof
from distprof.costs.known_schedules import orders
from distprof.documents.saved import Report
from distprof.sections.moe import MoeResult
from distprof.sections.pipeline.measure import analyze_pipeline
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.sections.whatif import RepairPlan
from distprof.sections.whatif.measure import analyze_whatif
from distprof.sections.whatif.plan import Workbench
from tests.sections.measured import measure
from tests.sections.pipeline.test_truth import job_of
from tests.simulator.pipeline_job import PipelineJob

MS = 1_000_000


def job(
    schedule: str = "1f1b", ranks: int = 4, batches: int = 4, *, long: float = 1.0, **more: object
) -> PipelineJob:
    """The batch of a step is the same, however many micro-batches there are."""
    each = 40 * MS // batches
    stages = [round(each * (long if place == 2 else 1)) for place in range(ranks)]
    order = orders(schedule, ranks, batches)
    settings: dict[str, object] = {"num_steps": 4, "noise": 0.01, "message_ns": 20_000, **more}
    return job_of(order, forward=stages, inputs=stages, weight=stages, **settings)


def evened(one: PipelineJob) -> PipelineJob:
    """The same work, the same on all stages."""
    mean = [round(fmean(one.forward_ns))] * len(one.forward_ns)
    return replace(one, forward_ns=mean, input_ns=mean, weight_ns=mean)


def true_step_ns(one: PipelineJob) -> float:
    return fmean(step.end - step.begin for step in one.run().steps)


def report_of(one: PipelineJob) -> Report:
    return distprof.analyze(one.run().to_run(), executor="serial", debug=True)


def plan_of(one: PipelineJob, claimed: list[str]) -> RepairPlan:
    """The plan where findings name these scenarios, whatever rules say."""
    run = one.run().to_run()
    measured = measure(run)
    stragglers = analyze_stragglers(run, measured.analyses, measured.step_time)
    pipeline = analyze_pipeline(run, measured.analyses)
    bench = Workbench()
    analyze_whatif(run, measured.analyses, stragglers, MoeResult(), pipeline, bench)
    bench.price(claimed)
    return bench.plan


def test_more_micro_batches_land_where_they_do() -> None:
    plan = report_of(job()).plan
    (repair,) = [one for one in plan.repairs if one.what == "micro-batches"]
    assert plan.step_ns == pytest.approx(true_step_ns(job()), rel=0.01)
    assert repair.step_ns == pytest.approx(true_step_ns(job(batches=16)), rel=0.02)
    assert repair.done == "16 micro-batches instead of 4, same batch"


SHAPES = pytest.mark.parametrize(
    ("ranks", "batches", "replicas"), [(4, 4, 1), (4, 8, 2), (8, 8, 1)]
)


@SHAPES
def test_with_balanced_stages_they_land_where_they_do(
    ranks: int, batches: int, replicas: int
) -> None:
    """Whichever of the two comes first."""
    before = job(ranks=ranks, batches=batches, long=1.6, replicas=replicas)
    after = job(ranks=ranks, batches=4 * batches, long=1.6, replicas=replicas)
    plan = plan_of(before, ["micro-batches", "stage-imbalance"])
    landed = {one.what: one.step_ns for one in plan.repairs}
    truth = {
        "stage-imbalance": true_step_ns(evened(before)),
        "micro-batches": true_step_ns(after),
    }
    first, second = landed
    assert landed[first] == pytest.approx(truth[first], rel=0.01)
    assert landed[second] == pytest.approx(true_step_ns(evened(after)), rel=0.05)


@SHAPES
def test_after_the_slow_gpus_of_a_stage_are_mended_they_land_where_they_do(
    ranks: int, batches: int, replicas: int
) -> None:
    """The long stage runs the kernels of the others, slower."""
    shape = {"ranks": ranks, "replicas": replicas}
    plan = report_of(job(batches=batches, long=1.6, **shape)).plan
    mended, refilled = plan.repairs
    assert mended.ranks == tuple(range(2 * replicas, 3 * replicas))
    assert mended.step_ns == pytest.approx(true_step_ns(job(batches=batches, **shape)), rel=0.05)
    truth = true_step_ns(job(batches=4 * batches, **shape))
    assert refilled.step_ns == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize("launch_ns", [0, 300_000])
def test_what_is_outside_of_the_pipeline_stays(launch_ns: int) -> None:
    """A third of the step is the optimizer, which no order of micro-batches shortens."""
    more = {"optimizer_ns": 100 * MS, "launch_ns": launch_ns}
    plan = report_of(job(**more)).plan
    truth = true_step_ns(job(batches=16, **more))
    assert plan.repairs[-1].step_ns == pytest.approx(truth, rel=0.1)


def test_the_finding_is_priced_by_the_plan() -> None:
    report = report_of(job(long=1.6))
    found = next(one for one in report.findings if one.code == "PIP102")
    repair = next(one for one in report.plan.repairs if one.what == "micro-batches")
    assert found.remaining_ns == repair.gain_ns
    assert found.recoverable_ns == repair.alone_ns
    assert found.fix.startswith("Divide the same batch into 16 micro-batches, or use ")
    assert found.fix.endswith(" per step (predicted).")
    assert found.fix.count(" ms") == 1  # the plan has the time of the first


def test_a_slow_rank_is_mended_before_the_pipeline_is_filled() -> None:
    codes = [one.code for one in report_of(job(long=1.6)).findings]
    assert codes[0] == "STR101"
    assert codes.index("STR101") < codes.index("PIP102")
