"""Common steps, overlap of captures, transients of the profiler's start."""

import pytest
from msgspec.structs import replace

from distprof.ingest.assemble import assemble_run
from distprof.terms import StepSource
from tests.ingest.dlrm import dlrm_ranks
from tests.simulator import Collective, Compute, SimulatedJob
from tests.simulator.by_hand import collective, rank_by_hand

MS = 1_000_000


def run_of(*ranks):
    return assemble_run("test", ranks)


def whats(run):
    return {gap.what for gap in run.gaps}


def steps(*numbers):
    return [(n, n * 100, n * 100 + 100) for n in numbers]


def test_steps_complete_on_all_ranks_are_kept():
    first = rank_by_hand(0, [], steps(1, 2, 3, 4), incomplete=[4])
    second = rank_by_hand(1, [], steps(2, 3, 4, 5))
    window = run_of(first, second).window
    assert window.steps == (2, 3)
    assert window.dropped == {
        1: "not recorded by rank 1",
        4: "cut by the capture of rank 0",
        5: "not recorded by rank 0",
    }


def test_no_common_step_is_a_gap_with_a_way_out():
    run = run_of(rank_by_hand(0, [], steps(1, 2)), rank_by_hand(1, [], steps(3, 4)))
    assert run.window.steps == ()
    (gap,) = [gap for gap in run.gaps if gap.what == "no-common-step"]
    assert "torch.profiler.schedule" in gap.message


def test_without_any_step_marks_there_are_no_steps_and_no_gap_about_them():
    run = run_of(rank_by_hand(0, [collective(0, 9)]), rank_by_hand(1, [collective(0, 9)]))
    assert run.window.steps == ()
    assert not whats(run) & {"no-common-step", "no-step-marks"}


def test_marks_on_some_ranks_only_are_a_gap():
    run = run_of(rank_by_hand(0, [], steps(1, 2)), rank_by_hand(1, [collective(0, 9)]))
    assert run.window.steps == (1, 2)
    assert "no-step-marks" in whats(run)


def test_overlap_is_what_all_share_of_what_any_covers():
    run = run_of(
        rank_by_hand(0, [], steps(1, 2, 3)),  # 100 to 400
        rank_by_hand(1, [], steps(2, 3, 4)),  # 200 to 500
    )
    assert run.window.overlap_ratio == pytest.approx(200 / 400)


def test_overlap_is_taken_on_the_common_clock():
    recording = SimulatedJob(clock_offset_ns=(0, 400 * MS)).run()
    assert assemble_run("test", recording.to_ranks()).window.overlap_ratio > 0.99


def test_captures_apart_in_time_are_a_gap():
    later = rank_by_hand(1, [], [(3, 10**12, 10**12 + 100)])
    run = run_of(rank_by_hand(0, [], steps(1, 2)), later)
    assert run.window.overlap_ratio == 0
    assert "disjoint-windows" in whats(run)


def test_overlap_is_unknown_for_one_rank_and_for_clocks_without_epoch_or_collectives():
    assert run_of(rank_by_hand(0, [], steps(1))).window.overlap_ratio is None
    ranks = [rank_by_hand(n, [], steps(1), has_epoch=False) for n in range(2)]
    assert run_of(*ranks).window.overlap_ratio is None


def test_the_step_in_which_ranks_wait_for_a_profiler_to_start_is_left_out():
    recording = SimulatedJob(profiler_start_ns={2: 300 * MS}).run()
    window = assemble_run("test", recording.to_ranks()).window
    assert window.transient_steps == (10,)
    assert window.steps == (11, 12, 13, 14)
    assert "profiler" in window.dropped[10]


def test_a_slow_first_step_of_the_job_itself_is_kept():
    """Captures start together: the wait is the job's own."""
    from tests.simulator import LateInput

    late = LateInput(rank=2, ns=300 * MS, steps=(10,))
    window = assemble_run("test", SimulatedJob(faults=(late,)).run().to_ranks()).window
    assert window.transient_steps == ()
    assert 10 in window.steps


def numbered(*spans):
    return [
        collective(start, end, group="0", group_ranks="0-1", group_size=2, seq=number)
        for number, (start, end) in enumerate(spans)
    ]


def test_a_first_collective_that_is_long_though_nobody_is_late_is_kept():
    """Both ranks and both captures start together: something else made it last."""
    spans = [(0, 50 * MS)] + [(n * 100 * MS, n * 100 * MS + MS) for n in range(1, 4)]
    marks = [(n, n * 100 * MS, (n + 1) * 100 * MS) for n in range(4)]
    ranks = [rank_by_hand(number, numbered(*spans), marks) for number in range(2)]
    window = run_of(*ranks).window
    assert window.transient_steps == ()
    assert window.steps == (0, 1, 2, 3)


def test_the_only_step_is_kept_and_the_doubt_is_said():
    recording = SimulatedJob(num_steps=1, program=(Compute(ns=MS), *[Collective()] * 5),
                             profiler_start_ns={2: 300 * MS}).run()  # fmt: skip
    run = assemble_run("test", recording.to_ranks())
    assert run.window.steps == (10,)
    assert run.window.transient_steps == ()
    assert "start-transient" in whats(run)


def test_the_wait_for_a_profiler_is_measured_where_it_stays():
    """Two of three ranks wait 300 ms for the third: 200 ms in the mean."""
    job = SimulatedJob(
        num_steps=1,
        program=(Compute(ns=MS), *[Collective()] * 5),
        num_nodes=1,
        ranks_per_node=3,
        profiler_start_ns={2: 300 * MS},
    )
    recording = job.run()
    window = assemble_run("test", recording.to_ranks()).window
    assert len(window.start_waits) == 1
    assert window.start_wait_ns == pytest.approx(200 * MS, rel=0.02)


def test_no_wait_stays_where_the_step_is_left_out():
    recording = SimulatedJob(profiler_start_ns={2: 300 * MS}).run()
    assert assemble_run("test", recording.to_ranks()).window.start_wait_ns == 0


def test_the_only_step_of_real_ranks_is_kept():
    window = assemble_run("test", dlrm_ranks()).window
    assert window.steps == (10,)
    assert window.start_wait_ns == pytest.approx(3.59 * MS, rel=0.01)


def test_steps_counted_from_where_a_capture_starts_are_said_to_disagree():
    """One rank's numbers are off by one: its collectives lie in other steps than their partners."""
    first, second, *_ = SimulatedJob(num_nodes=1).run().to_ranks()
    columns = {c.name: second.steps[c.name] for c in second.steps.schema}
    wrong = type(second.steps)(second.steps.schema, columns | {"step": columns["step"] + 1})
    assert "steps-disagree" in whats(run_of(first, replace(second, steps=wrong)))
    assert "steps-disagree" not in whats(run_of(first, second))


def test_steps_on_the_device_need_no_launch_time():
    ranks = SimulatedJob(synchronise=False).run().to_ranks()
    assert {rank.step_source for rank in ranks} == {StepSource.DEVICE}
    run = assemble_run("test", ranks)
    assert run.window.steps == (10, 11, 12, 13, 14)
    assert "steps-disagree" not in whats(run)
