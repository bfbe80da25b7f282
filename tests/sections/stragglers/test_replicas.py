"""Pipelines with data-parallel copies: stages are compared with their like, ranks are named."""

import random
from dataclasses import replace

import pytest

from distprof.ingest.assemble import assemble_run
from distprof.sections.own_time import held_stages
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.terms import StragglerCause, StragglerPattern
from tests.sections.measured import measure
from tests.simulator import GarbageCollection, LateInput, Marked, SlowDevice
from tests.simulator.shapes import pipeline

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
    assert any("unlike pipeline stages" in text for text in result.unavailable)


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
