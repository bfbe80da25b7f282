"""The plan of repairs, against the same simulated jobs with their faults really mended."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import distprof
from distprof.ingest.assemble import assemble_run
from distprof.run.run import Run
from distprof.sections.computation import Saves
from distprof.sections.idle import CPU_OPTIMIZER
from distprof.sections.moe import MoeResult
from distprof.sections.pipeline import MICRO_BATCHES, SCHEDULE, PipelineResult
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.sections.whatif import RepairPlan
from distprof.sections.whatif.measure import analyze_whatif
from distprof.sections.whatif.plan import FAR_MORE, Workbench, is_actionable
from distprof.terms import ActivityKind
from tests.builders import MemoryTables
from tests.sections.measured import measure
from tests.simulator.job import (
    MS,
    Collective,
    Compute,
    Input,
    LateInput,
    NamedPause,
    SimulatedJob,
    SlowDevice,
)
from tests.simulator.shapes import pipeline
from tests.simulator.trials import report_of

STEP = (
    Input(),
    Compute(ns=10 * MS, kernels=20),
    Compute(ns=20 * MS, kernels=40),
    Collective(transfer_ns=2 * MS),
)
SLOW, LATE = SlowDevice(rank=3, factor=1.4), LateInput(rank=5, ns=6 * MS)


def job(*faults: SlowDevice | LateInput) -> SimulatedJob:
    return SimulatedJob(num_nodes=2, ranks_per_node=4, num_steps=8, program=STEP, faults=faults)


def true_step_ns(*faults: SlowDevice | LateInput) -> float:
    """The mean step with these faults only."""
    return job(*faults).run().mean_step_ns()


def with_early_kernels(run: Run, early_ns: int) -> Run:
    """Kernels after a collective begin this long before it ends, as dependent launches do."""
    ranks = []
    for rank in run.ranks:
        tables = rank.tables.load(every_host_row=True)
        start = tables.activity["start_ns"].copy()
        ends = np.sort(tables.collectives["end_ns"])
        is_kernel = tables.activity["kind"] == ActivityKind.COMPUTATION
        at = np.maximum(np.searchsorted(ends, start, side="right") - 1, 0)
        follows = is_kernel & (start >= ends[at]) & (start - ends[at] < 10_000)
        assert follows.any()
        start[follows] = ends[at[follows]] - early_ns
        activity = tables.activity.with_columns(start_ns=start)
        moved = MemoryTables(structs.replace(tables, activity=activity))
        ranks.append(structs.replace(rank, tables=moved))
    return structs.replace(run, ranks=tuple(ranks))


@pytest.mark.parametrize("early_ns", [0, 20, 40, 2_000])
@pytest.mark.parametrize("fault", [SLOW, LATE])
def test_kernels_that_begin_in_the_tail_of_a_collective_have_waited_for_it(
    fault: SlowDevice | LateInput, early_ns: int
) -> None:
    middle = Collective(transfer_ns=MS)
    program = (*STEP[:2], middle, Compute(ns=5 * MS, kernels=10), middle, *STEP[2:])
    faulty, sound = (replace(job(*one), program=program) for one in ((fault,), ()))
    run = assemble_run("simulated", faulty.run().to_ranks())
    report = distprof.analyze(with_early_kernels(run, early_ns), executor="serial")
    truth = faulty.run().mean_step_ns() - sound.run().mean_step_ns()
    assert report.findings[0].ranks == (fault.rank,)
    assert report.findings[0].recoverable_ns == pytest.approx(truth, rel=0.1)


def plan_of(simulated: SimulatedJob, claimed: list[str]) -> RepairPlan:
    """The plan where findings name these scenarios, whatever rules say."""
    run = assemble_run("simulated", simulated.run().to_ranks())
    measured = measure(run)
    stragglers = analyze_stragglers(run, measured.analyses, measured.step_time)
    bench = Workbench()
    analyze_whatif(run, measured.analyses, stragglers, MoeResult(), PipelineResult(), bench)
    bench.price(claimed)
    return bench.plan


def test_two_faults_are_two_repairs_and_the_step_lands_where_it_really_does() -> None:
    """The late input costs nothing as long as the slow rank is later still."""
    plan = plan_of(job(SLOW, LATE), ["rank 5", "rank 3"])
    first, second = plan.repairs
    assert (first.what, second.what) == ("rank 3", "rank 5")
    assert second.alone_ns < 0.1 * second.gain_ns
    assert plan.step_ns == pytest.approx(true_step_ns(SLOW, LATE), rel=0.01)
    assert first.step_ns == pytest.approx(true_step_ns(LATE), rel=0.02)
    assert second.step_ns == pytest.approx(true_step_ns(), rel=0.02)


@pytest.mark.parametrize("wide", [(), ("late ranks", "overlap")])
def test_faults_that_hide_each_other_are_both_mended_before_what_they_have_in_common(
    wide: tuple[str, ...],
) -> None:
    """Either alone gives next to nothing back; a rank that is not slow is not mended with them."""
    faults = SLOW, LateInput(rank=5, ns=12 * MS)
    plan = plan_of(job(*faults), ["rank 3", "rank 5", "rank 2", *wide])
    assert max(repair.alone_ns for repair in plan.repairs[:2]) < 0.1 * plan.repairs[1].gain_ns
    assert {repair.what for repair in plan.repairs[:2]} == {"rank 3", "rank 5"}
    assert "rank 2" not in {repair.what for repair in plan.repairs}
    assert plan.repairs[1].step_ns == pytest.approx(true_step_ns(), rel=0.02)


def test_a_small_fault_is_mended_before_a_pipeline_gets_another_design() -> None:
    """Four micro-batches on four stages idle nearly half of the time."""
    sound = pipeline(4, 2, random.Random(3), micro_batches=4)
    found = report_of(replace(sound, faults=(LateInput(rank=1, ns=900_000),)).run())
    first, design = found.plan.repairs[:2]
    assert (first.what, design.what) == ("rank 1", "micro-batches")
    assert first.alone_ns < design.alone_ns / FAR_MORE
    assert (found.findings[0].code, found.findings[0].ranks) == ("STR101", (1,))


def test_a_rank_that_is_late_in_every_second_step_began_the_first_one_late_too() -> None:
    """The CPU runs ahead, so that the first stall comes before the first kernel of the capture."""
    sound = pipeline(2, 2, random.Random(3))
    sound = replace(sound, synchronise=False, queue_depth=8, capture_skip={})
    late = replace(sound, faults=(LateInput(rank=1, ns=12 * MS, steps=range(10, 18, 2)),))
    (found,) = (one for one in report_of(late.run()).findings if one.code == "STR102")
    assert found.steps == (11, 13, 15)
    longer = late.run().mean_step_ns() - sound.run().mean_step_ns()
    assert found.recoverable_ns == pytest.approx(longer, rel=0.05)


def test_gains_of_a_plan_add_up() -> None:
    plan = plan_of(job(SLOW, LATE), ["rank 5", "rank 3", "overlap", "launch-gaps"])
    assert plan.step_ns is not None
    assert plan.step_ns - sum(repair.gain_ns for repair in plan.repairs) == plan.repairs[-1].step_ns


def test_what_was_not_simulated_is_left_out() -> None:
    assert plan_of(job(SLOW), ["rank 77", "", "communication"]).repairs == ()


def test_verdict_first_finding_and_plan_say_the_same() -> None:
    report = report_of(job(SLOW).run())
    first = report.findings[0]
    assert report.plan.repairs[0].what == "rank 3"
    assert (first.code, first.ranks) == ("STR101", (3,))
    assert report.verdict.headline == first.headline
    assert first.remaining_ns == report.plan.repairs[0].gain_ns
    assert "(rank 3 fixed)" in report.verdict.why[0]


def test_a_wide_finding_is_priced_at_what_the_fault_leaves() -> None:
    """Alone, communication without waiting would give back the fault too."""
    report = report_of(job(SLOW).run())
    wide = [found for found in report.findings if found.code == "COM102"]
    for found in wide:
        assert found.recoverable_ns is not None
        assert found.remaining_ns is not None
        assert found.remaining_ns < found.recoverable_ns / 2
        assert found.remaining_ns == pytest.approx(2 * MS, rel=0.3)


def test_a_finding_of_which_nothing_is_left_is_left_out() -> None:
    program = (*STEP[:-1], Collective(transfer_ns=1000))
    report = report_of(replace(job(SLOW), program=program).run())
    assert [found.code for found in report.findings if found.code.startswith("COM")] == []


def test_a_healthy_job_has_no_repair_of_a_rank() -> None:
    plan = report_of(job().run()).plan
    assert not any(repair.ranks for repair in plan.repairs)


@pytest.mark.parametrize("what", ["rank 3", "overlap", "stage-imbalance", "hardware all_reduce dp"])
def test_a_change_that_can_be_made_is_actionable(what: str) -> None:
    assert is_actionable(what)


@pytest.mark.parametrize(
    "what",
    [
        CPU_OPTIMIZER,
        MICRO_BATCHES,
        SCHEDULE,
        *(value for name, value in vars(Saves).items() if name.isupper()),
    ],
)
def test_a_change_that_another_module_names_is_in_the_table(what: str) -> None:
    assert is_actionable(what)


@pytest.mark.parametrize("what", ["exposed transfer", "communication", "axis tp", ""])
def test_a_bound_is_not(what: str) -> None:
    assert not is_actionable(what)


@settings(max_examples=12, deadline=None)
@given(st.floats(1.0, 1.8), st.integers(0, 12))
def test_every_repair_is_a_finding_and_the_first_one_is_the_verdict(factor: float, ms: int) -> None:
    faults = (SlowDevice(rank=3, factor=factor), LateInput(rank=5, ns=ms * MS))
    report = report_of(job(*faults).run())
    steps = [report.plan.step_ns, *(repair.step_ns for repair in report.plan.repairs)]
    assert steps == sorted(steps, reverse=True)
    gains = [repair.gain_ns for repair in report.plan.repairs]
    assert steps[0] == steps[-1] + sum(gains)
    assert set(gains) <= {found.remaining_ns for found in report.findings}
    if gains:
        first = report.findings[0]
        assert first.remaining_ns == gains[0]
        assert report.verdict.headline == first.headline


def test_a_capture_is_planned_as_a_whole_and_the_words_say_so() -> None:
    """Without the fault all its steps are as long as they are without it."""
    run = assemble_run("simulated", job(SLOW).run().to_ranks())
    report = distprof.analyze(run, window="capture", executor="serial", debug=True)
    first = report.plan.repairs[0]
    longer = (true_step_ns(SLOW) - true_step_ns()) * 8
    assert first.gain_ns == pytest.approx(longer, rel=0.05)
    assert report.findings[0].remaining_ns == first.gain_ns
    assert report.findings[0].cost_ns_per_step is None
    assert "take turns" not in report.verdict.headline  # a single window shows no turns
    assert report.verdict.why[0].endswith("The capture is simulated.")


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_repairs_of_different_parts_of_one_stretch_of_work_add_up(num_nodes: int) -> None:
    """No collective comes between them, so both shorten the same segment of own time."""
    ranks = range(4 * num_nodes)
    late = tuple(LateInput(rank=rank, ns=25 * MS) for rank in ranks)
    paused = tuple(NamedPause(rank=rank, ns=20 * MS, name="checkpoint") for rank in ranks)
    jobs = {
        faults: SimulatedJob(
            num_nodes=num_nodes, ranks_per_node=4, num_steps=8, program=STEP, faults=faults
        )
        for faults in ((), late, late + paused)
    }
    plan = plan_of(jobs[late + paused], ["input", "pause checkpoint", "late ranks"])
    assert [repair.what for repair in plan.repairs] == ["input", "pause checkpoint"]
    for repair, left in zip(plan.repairs, (paused, ()), strict=True):
        truth = replace(jobs[()], faults=left).run().mean_step_ns()
        assert repair.step_ns == pytest.approx(truth, rel=0.02)
