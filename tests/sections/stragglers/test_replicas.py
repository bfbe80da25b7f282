"""Pipelines with data-parallel copies: stages are compared with their like, ranks are named."""

import random
from dataclasses import replace

import pytest

from distprof.ingest.assemble import assemble_run
from distprof.sections.own_time import held_stages
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.terms import StragglerCause, StragglerPattern
from tests.sections.measured import measure
from tests.simulator import (
    GarbageCollection,
    LargerInputs,
    LateInput,
    Marked,
    MoreWork,
    SlowDevice,
)
from tests.simulator.shapes import pipeline
from tests.simulator.trials import report_of

MS = 1_000_000


def job_of(stages=4, replicas=2, skew=(), seed=3):
    return pipeline(stages, replicas, random.Random(seed), skew=skew)


def stragglers_of(job):
    run = assemble_run("simulated", job.run().to_ranks())
    found = measure(run)
    return analyze_stragglers(run, found.analyses, found.step_time)


def named(result):
    return [(r.rank, r.cause) for r in result.ranks if r.pattern is not StragglerPattern.NONE]


@pytest.mark.parametrize("rank", [0, 3, 4, 7])
def test_a_slow_device_is_named_on_whatever_stage(rank):
    result = stragglers_of(replace(job_of(), faults=(SlowDevice(rank=rank, factor=1.25),)))
    assert named(result) == [(rank, StragglerCause.SLOW_DEVICE)]


def test_a_stage_that_works_longer_is_no_straggler():
    assert named(stragglers_of(job_of(skew=(1.0, 1.3, 1.0, 1.0)))) == []


def test_the_slow_rank_of_an_uneven_pipeline_is_told_from_its_long_stage():
    job = replace(job_of(skew=(1.0, 1.3, 1.0, 1.0)), faults=(SlowDevice(rank=2, factor=1.2),))
    assert named(stragglers_of(job)) == [(2, StragglerCause.SLOW_DEVICE)]


def test_a_healthy_pipeline_names_nobody_and_says_which_collectives_it_does_not_judge():
    result = stragglers_of(job_of())
    assert named(result) == []
    assert any("different pipeline stages" in text for text in result.unavailable)


def test_without_copies_nothing_can_be_judged():
    result = stragglers_of(job_of(replicas=1))
    assert result.ranks == ()
    assert "by design" in result.unavailable[0]


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (LateInput(rank=1, ns=8 * MS), StragglerCause.LATE_INPUT),
        (GarbageCollection(rank=1, ns=8 * MS), StragglerCause.LATE_HOST),
    ],
)
def test_other_causes_are_told_in_a_pipeline_too(fault, cause):
    assert named(stragglers_of(replace(job_of(), faults=(fault,)))) == [(1, cause)]


def test_without_marks_the_place_in_the_pipelines_group_is_the_stage():
    job = job_of()
    plain = {
        rank: tuple(
            part for op in program for part in (op.ops if isinstance(op, Marked) else (op,))
        )
        for rank, program in job.programs.items()
    }
    run = assemble_run("simulated", replace(job, programs=plain).run().to_ranks())
    analyses = measure(run).analyses
    assert held_stages(analyses)[0] == ()
    assert held_stages(analyses, run) == {
        0: (0,), 1: (0,), 2: (1,), 3: (1,), 4: (2,), 5: (2,), 6: (3,), 7: (3,)
    }  # fmt: skip


def test_without_marks_a_slow_device_is_named_too():
    job = job_of()
    plain = {
        rank: tuple(
            part for op in program for part in (op.ops if isinstance(op, Marked) else (op,))
        )
        for rank, program in job.programs.items()
    }
    slow = replace(job, programs=plain, faults=(SlowDevice(rank=5, factor=1.25),))
    assert named(stragglers_of(slow)) == [(5, StragglerCause.SLOW_DEVICE)]


def unmarked(job):
    """The same work without annotations of stages."""
    plain = {
        rank: tuple(
            part for op in program for part in (op.ops if isinstance(op, Marked) else (op,))
        )
        for rank, program in job.programs.items()
    }
    return replace(job, programs=plain)


def report_without_marks(*faults, **shape):
    job = replace(unmarked(job_of(**shape)), faults=faults)
    return report_of(job.run()), job


def longer_ns(job, healthy):
    """Mean step of a job less that of another."""
    return mean_step_ns(job) - mean_step_ns(healthy)


def mean_step_ns(job):
    recording = job.run()
    return recording.mean_step_ns({instance.step for instance in recording.instances})


@pytest.mark.parametrize("rank", [1, 2])
def test_without_marks_a_rank_of_two_stages_is_priced_next_to_its_stage(rank):
    """Both stages send and receive equally often, so that counts do not separate them."""
    fault = LateInput(rank=rank, ns=12 * MS)
    report, job = report_without_marks(fault, stages=2)
    first = report.findings[0]
    assert (first.code, first.ranks) == ("STR101", (rank,))
    longer = longer_ns(job, replace(job, faults=()))
    assert first.recoverable_ns == pytest.approx(longer, rel=0.1)


def test_without_marks_unequal_stages_are_balanced_in_the_simulation():
    report, job = report_without_marks(stages=2, skew=(1.0, 1.6))
    even = unmarked(job_of(stages=2, skew=(1.3, 1.3)))
    found = {one.what: one.recoverable_ns for one in report.whatif.without}
    assert found["stage-imbalance"] == pytest.approx(longer_ns(job, even), rel=0.15)


@pytest.mark.parametrize("kind", [MoreWork, LargerInputs])
@pytest.mark.parametrize("first", [0, 1])
def test_a_pipeline_with_more_work_is_one_set(kind, first):
    """The data of one replica pass all of its stages, each next to one other rank."""
    ranks = range(first, 8, 2)
    report, job = report_without_marks(*(kind(rank=rank, factor=1.4) for rank in ranks))
    found = report.findings[0]
    assert (found.code, found.ranks) == ("STR101", tuple(ranks))
    assert "They have more work" in found.message
    assert [one.ranks for one in report.stragglers.sets] == [tuple(ranks)]
    longer = longer_ns(job, replace(job, faults=()))
    assert found.recoverable_ns == pytest.approx(longer, rel=0.1)


def test_two_ranks_with_more_work_on_different_stages_are_two():
    report, _ = report_without_marks(MoreWork(rank=0, factor=1.4), MoreWork(rank=5, factor=1.4))
    assert sorted(one.ranks for one in report.stragglers.sets) == [(0,), (5,)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_without_marks_the_stage_with_more_layers_is_named_with_all_of_its_ranks(replicas):
    report, _ = report_without_marks(stages=2, replicas=replicas, skew=(1.0, 1.6))
    found = next(one for one in report.findings if one.code == "PIP101")
    assert found.ranks == tuple(range(replicas, 2 * replicas))
    assert "in each step" in found.message
    assert "STR110" not in [one.code for one in report.findings]
    even = unmarked(job_of(stages=2, replicas=replicas, skew=(1.3, 1.3)))
    longer = longer_ns(unmarked(job_of(stages=2, replicas=replicas, skew=(1.0, 1.6))), even)
    assert found.recoverable_ns == pytest.approx(longer, rel=0.15)


def test_without_marks_no_stage_of_equal_layers_is_named():
    report, _ = report_without_marks()
    assert "PIP101" not in [one.code for one in report.findings]
