"""Who made the others wait: the right rank and cause, and nobody in a healthy job."""

from dataclasses import replace

import numpy as np
import pytest

from distprof.ingest.assemble import assemble_run
from distprof.sections.context import RankAnalyses
from distprof.sections.stragglers.arrivals import judge_arrivals, range_argmax
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.sections.stragglers.patterns import chance_of_share
from distprof.terms import CollectiveKind, StragglerCause, StragglerPattern
from tests.builders import RankBuilder, identity_clock, make_run
from tests.drawn import drawn
from tests.sections.joined import join_by_seq, joined_run, stragglers_of, without_ranks
from tests.sections.measured import measure
from tests.simulator import (
    Collective,
    Compute,
    Exchange,
    LateHost,
    LateInput,
    MoreWork,
    SimulatedJob,
    SlowDevice,
    rotating,
)

MS, US = 1_000_000, 1_000
Pattern, Cause = StragglerPattern, StragglerCause


def named(result):
    return [(r.rank, r.pattern) for r in result.ranks if r.pattern is not Pattern.NONE]


def analyse(job: SimulatedJob):
    return stragglers_of(joined_run(job.run()))[0]


def by_hand(starts, *, residual_ns=0, kind=CollectiveKind.ALL_REDUCE, steps=1):
    """One collective per step; ``starts`` of each rank, all end at 900 of each 1,000."""
    ranks = []
    everyone = tuple(range(len(starts)))
    for rank, start in enumerate(starts):
        builder = RankBuilder(rank)
        for step in range(steps):
            low = 1_000 * step
            builder.step(step, low, low + 1_000)
            builder.comm("nccl", low + start, low + 900, ranks=everyone, seq=step, kind=kind)
        ranks.append(builder.rank())
    matches, _ = join_by_seq(ranks)
    clock = identity_clock(everyone, residual_ns)
    return make_run(ranks, steps=range(steps), matches=matches, clock=clock)


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_from_the_step_on_from_which_a_rank_is_slow_it_costs_what_others_wait(num_ranks):
    """Before that step they wait next to nothing, so both means are one."""
    steps = tuple(range(14, 20))
    job = SimulatedJob(
        num_nodes=1,
        ranks_per_node=num_ranks,
        num_steps=10,
        faults=(SlowDevice(rank=1, factor=1.3, steps=steps),),
    )
    result = analyse(job)
    (slow,) = result.sets
    cost = {one.rank: one.lost_ns_per_step for one in result.ranks}
    assert (slow.ranks, slow.since_step) == ((1,), 14)
    assert slow.lost_ns_per_step == pytest.approx(cost[1], rel=0.03)


# Blame, by hand -----------------------------------------------------------------------------------


def test_the_last_to_start_is_blamed_for_the_median_wait_of_the_others():
    result, _ = stragglers_of(by_hand([100, 200, 400, 800]))
    lost = {record.rank: record.lost_ns_per_step for record in result.ranks}
    assert lost == {0: 0, 1: 0, 2: 0, 3: 600}  # 700, 600, 400
    assert result.ranks[0].rank == 3
    assert result.ranks[0].late_ratio == 1.0
    (step,) = result.steps
    assert (step.rank, step.lost_ns, step.rank_lost_ns) == (3, 600, 600)


def test_renumbering_ranks_renumbers_the_blame_and_nothing_else():
    starts = [100, 200, 400, 800]
    for turn in range(4):
        turned = starts[turn:] + starts[:turn]
        result, _ = stragglers_of(by_hand(turned))
        assert result.ranks[0].rank == turned.index(800)
        assert result.ranks[0].lost_ns_per_step == 600


def test_waits_below_the_clock_residual_blame_nobody():
    result, _ = stragglers_of(by_hand([100, 101, 102, 103], residual_ns=5))
    assert result.lost_ns_per_step == 0
    assert result.steps[0].rank is None
    assert (result.num_judged, result.num_below_residual) == (1, 1)


def test_ranks_too_close_to_tell_share_the_blame():
    result, _ = stragglers_of(by_hand([100, 100, 100, 100, 600, 603], residual_ns=5))
    lost = {record.rank: record.lost_ns_per_step for record in result.ranks}
    # the median of 503, 503, 503, 503, 3 is 503; both 4 and 5 may have been last
    assert (lost[4], lost[5]) == (251, 251)
    assert result.ranks[0].late_ratio == 0.5


def test_hidden_waiting_costs_nothing():
    builder = [RankBuilder(rank).step(0, 0, 1_000) for rank in (0, 1)]
    builder[0].kernel("gemm", 100, 800).comm("nccl", 100, 900, ranks=(0, 1), seq=1)
    builder[1].comm("nccl", 800, 900, ranks=(0, 1), seq=1)
    ranks = [b.rank() for b in builder]
    run = make_run(ranks, steps=[0], matches=join_by_seq(ranks)[0])
    result, _ = stragglers_of(run)
    assert result.lost_ns_per_step == 0


@pytest.mark.parametrize("kind", [CollectiveKind.BROADCAST, CollectiveKind.REDUCE])
def test_operations_that_need_not_wait_for_all_blame_nobody(kind):
    result, _ = stragglers_of(by_hand([100, 200, 800], kind=kind))
    assert result.ranks == ()
    assert result.unavailable


def test_grouped_send_and_receive_of_many_is_an_all_to_all():
    blame = judge(by_hand([100, 200, 800], kind=CollectiveKind.SEND_RECV))
    assert blame.num_judged == 1
    assert judge(by_hand([100, 800], kind=CollectiveKind.SEND_RECV)).num_judged == 0


def judge(run):
    measured = measure(run)
    return judge_arrivals(run, measured.analyses, measured.analyses.num_windows)


def test_a_single_rank_accuses_nobody_and_says_why():
    result, _ = stragglers_of(make_run([RankBuilder(0).step(0, 0, 10).rank()], steps=[0]))
    assert result.ranks == ()
    assert result.unavailable == ("one rank alone cannot show who waits for whom",)


def test_no_ranks_at_all_is_no_failure():
    run = by_hand([1, 2])
    measured = measure(run)
    result = analyze_stragglers(run, RankAnalyses.of([]), measured.step_time)
    assert result.ranks == ()


# Patterns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.05, 1.1, 1.2, 1.3])
def test_a_slow_device_is_a_persistent_straggler_with_that_cause(factor):
    result = analyse(SimulatedJob(faults=(SlowDevice(rank=1, factor=factor),)))
    assert named(result) == [(1, Pattern.PERSISTENT)]
    assert result.ranks[0].cause is Cause.SLOW_DEVICE
    assert result.pattern is Pattern.PERSISTENT


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (MoreWork(rank=2, factor=1.5), Cause.MORE_WORK),
        (LateInput(rank=2, ns=3 * MS), Cause.LATE_INPUT),
        (LateHost(rank=2, ns=3 * MS), Cause.LATE_HOST),
    ],
)
def test_causes_are_told_apart(fault, cause):
    result = analyse(SimulatedJob(faults=(fault,)))
    assert named(result) == [(2, Pattern.PERSISTENT)]
    assert result.ranks[0].cause is cause
    assert all(text for text in result.ranks[0].evidence)


def test_what_a_straggler_costs_is_what_the_others_waited():
    job = SimulatedJob(
        program=(Compute(ns=10 * MS), Collective(transfer_ns=MS)),
        faults=(SlowDevice(rank=3, factor=1.2),),
        compute_noise=0.0,
    )
    recording = job.run()
    result, _ = stragglers_of(joined_run(recording))
    truth = np.mean([recording.lost_ns(step)[3] for step in job.steps])
    assert result.ranks[0].lost_ns_per_step == pytest.approx(truth, rel=0.01)
    assert truth == pytest.approx(2 * MS, rel=0.01)


def test_two_slow_devices_are_both_named():
    faults = (SlowDevice(rank=1, factor=1.2), SlowDevice(rank=5, factor=1.2))
    result = analyse(SimulatedJob(ranks_per_node=4, num_steps=10, faults=faults))
    assert sorted(named(result)) == [(1, Pattern.PERSISTENT), (5, Pattern.PERSISTENT)]


def test_one_bad_step_is_transient_and_its_kernels_show_the_cause():
    faults = (SlowDevice(rank=1, factor=1.5, steps=(14,)),)
    result = analyse(SimulatedJob(num_steps=10, faults=faults))
    assert named(result) == [(1, Pattern.TRANSIENT)]
    assert result.ranks[0].cause is Cause.SLOW_DEVICE
    assert result.sets[0].steps == (14,)


def test_another_rank_in_each_step_is_rotating():
    faults = rotating(range(8), 1.4, range(10, 22))
    result = analyse(SimulatedJob(ranks_per_node=4, num_steps=12, faults=faults))
    assert result.pattern is Pattern.ROTATING
    assert {pattern for _, pattern in named(result)} == {Pattern.ROTATING}


def test_two_steps_cannot_show_that_lateness_lasts():
    result = analyse(SimulatedJob(num_steps=2, faults=(SlowDevice(rank=1, factor=1.5),)))
    assert named(result) == [(1, Pattern.TRANSIENT)]
    assert any("whether it lasts" in text for text in result.ranks[0].evidence)


@pytest.mark.parametrize("seeds", drawn([range(6), range(6, 22)], always=1))
@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("shape", [(1, 2), (2, 2), (2, 4)])
def test_healthy_jobs_accuse_nobody(shape, noise, seeds):
    for seed in seeds:  # 198 jobs over all parameters
        job = SimulatedJob(
            num_nodes=shape[0], ranks_per_node=shape[1], seed=seed, compute_noise=noise
        )
        result = analyse(job)
        assert (named(result), result.pattern) == ([], Pattern.NONE), seed


def test_shifting_a_nodes_clock_changes_nothing_when_it_is_aligned():
    job = SimulatedJob(faults=(SlowDevice(rank=1, factor=1.2),))
    shifted = replace(job, clock_offset_ns=(0, 9 * MS))
    assert analyse(job) == analyse(shifted)


# Missing members, meshes, pipelines ---------------------------------------------------------------


def test_missing_members_lower_confidence_and_are_said():
    recording = SimulatedJob(
        ranks_per_node=4, faults=(SlowDevice(rank=1, factor=1.3),), num_steps=10
    ).run()
    whole, _ = stragglers_of(joined_run(recording))
    part, _ = stragglers_of(joined_run(without_ranks(recording, (0, 1, 2, 3))))
    assert named(part) == named(whole) == [(1, Pattern.PERSISTENT)]
    assert part.ranks[0].confidence < whole.ranks[0].confidence
    assert any("lack a member" in text for text in part.unavailable)
    assert any("lack a member" in text for text in part.ranks[0].evidence)


def test_a_rank_that_could_not_be_measured_is_a_missing_member():
    run = by_hand([100, 200, 400, 800])
    measured = measure(run)
    left = RankAnalyses(
        by_rank={rank: a for rank, a in measured.analyses.items() if rank != 3},
        wait_ends=measured.analyses.wait_ends,
    )
    result = analyze_stragglers(run, left, measured.step_time)
    assert [record.rank for record in result.ranks] == [2, 0, 1]
    assert any("lack a member" in text for text in result.unavailable)


def mesh(*faults):
    """Four tensor-parallel groups of four; gradients are reduced across them."""
    layer = (Compute(ns=MS), Collective(axis="tp", transfer_ns=100 * US, bytes=1 << 20))
    program = (*layer * 6, Collective(axis="dp", transfer_ns=2 * MS), Compute(ns=MS, name="adam"))
    axes = {
        "tp": tuple(tuple(range(4 * i, 4 * i + 4)) for i in range(4)),
        "dp": tuple(tuple(range(i, 16, 4)) for i in range(4)),
    }
    return SimulatedJob(
        num_nodes=4, ranks_per_node=4, num_steps=6, program=program, axes=axes, faults=faults
    )


def test_lateness_handed_on_in_a_mesh_is_blamed_on_where_it_came_from():
    # ranks 13 to 15 wait for 12 in their tensor-parallel group, then come late to their dp groups
    result = analyse(mesh(SlowDevice(rank=12, factor=1.3)))
    assert named(result) == [(12, Pattern.PERSISTENT)]
    others = [r.share_of_step_ratio for r in result.ranks if r.rank != 12]
    assert max(others) < 0.005
    # 6 ms of layers and 1 ms of adam take 2.1 ms longer, and everybody waits for it
    assert result.ranks[0].lost_ns_per_step == pytest.approx(2.1 * MS, rel=0.1)


def test_a_healthy_mesh_accuses_nobody():
    assert named(analyse(mesh())) == []


def test_the_bubble_of_a_healthy_pipeline_accuses_nobody():
    # stage 1 (ranks 2 and 3) waits for stage 0 in each step, as it must
    program = (
        Compute(ns=4 * MS),
        Exchange(src=0, dst=1, axis="pp"),
        Compute(ns=4 * MS),
        Collective(axis="dp", transfer_ns=MS),
    )
    axes = {"pp": ((0, 2), (1, 3)), "dp": ((0, 1), (2, 3))}
    assert named(analyse(SimulatedJob(program=program, axes=axes, num_steps=8))) == []


# Parts --------------------------------------------------------------------------------------------


def test_chance_bounds_the_binomial_and_is_never_above_one():
    always = np.zeros((8, 5))
    always[3] = 1.0
    assert chance_of_share(always, 3) == pytest.approx(8 * (1 / 8) ** 5, rel=0.01)
    even = np.full((4, 10), 0.25)
    assert chance_of_share(even, 0) == 1.0
    assert chance_of_share(np.empty((4, 0)), 0) == 1.0


def test_chance_is_never_below_the_true_probability():
    # rank 0 costs most in 6 of 10 steps among 4: P(X >= 6) of a binomial, times 4 ranks
    shares = np.zeros((4, 10))
    shares[0, :6] = 1.0
    shares[1, 6:] = 1.0
    assert chance_of_share(shares, 0) >= 4 * 0.0197


def test_the_largest_of_each_range_is_found():
    dice = np.random.default_rng(0)
    values = dice.integers(0, 50, 200)
    low = dice.integers(0, 199, 300)
    high = low + 1 + dice.integers(0, 200 - low)
    found = range_argmax(values, low, high)
    for a, b, where in zip(low.tolist(), high.tolist(), found.tolist(), strict=True):
        assert a <= where < b
        assert values[where] == max(values[a:b].tolist())


# Own time -----------------------------------------------------------------------------------------


def with_noise(*, steps, stall=0, part="idle"):
    """Two ranks, one collective per step of 1,000 us; each is late by turns, rank 1 also stalls.

    Rank 0 computes 300 us, and 200 more in every second step; rank 1 does the same in the steps
    between. Before that rank 1 is idle, or computes, for ``stall`` us.
    """
    ranks = []
    for rank in (0, 1):
        builder = RankBuilder(rank)
        for step in range(steps):
            low = 1_000 * US * step
            own = stall * US if rank == 1 else 0
            work = (500 if step % 2 == rank else 300) * US + (own if part == "computation" else 0)
            begin = low + (own if part == "idle" else 0)
            builder.step(step, low, low + 1_000 * US)
            builder.kernel("gemm", begin, begin + work, launched=(begin, begin + US))
            builder.comm("nccl", begin + work, low + 950 * US, ranks=(0, 1), seq=step)
        ranks.append(builder.rank())
    return make_run(ranks, steps=range(steps), matches=join_by_seq(ranks)[0])


def test_in_few_noisy_steps_own_time_names_the_rank_that_idles_in_each():
    result, _ = stragglers_of(with_noise(steps=4, stall=150))
    assert named(result) == [(1, Pattern.PERSISTENT)]
    assert result.ranks[0].cause is Cause.LATE_HOST


@pytest.mark.parametrize("steps", [4, 10])
def test_noise_alone_names_nobody(steps):
    assert named(stragglers_of(with_noise(steps=steps))[0]) == []


def test_what_drowns_in_noise_names_nobody():
    result, _ = stragglers_of(with_noise(steps=4, stall=60, part="computation"))
    assert named(result) == []


def test_two_steps_are_too_few_for_own_time():
    assert named(stragglers_of(with_noise(steps=2, stall=150))[0]) == []


def test_between_two_ranks_that_stall_by_turns_nobody_is_transient():
    starts = [[100] * 12, [110] * 12]
    for step, rank in ((2, 0), (5, 1), (7, 0), (10, 1)):
        starts[rank][step] = 700
    ranks = []
    for rank in (0, 1):
        builder = RankBuilder(rank)
        for step, start in enumerate(starts[rank]):
            low = 1_000 * step
            builder.step(step, low, low + 1_000)
            builder.comm("nccl", low + start, low + 900, ranks=(0, 1), seq=step)
        ranks.append(builder.rank())
    run = make_run(ranks, steps=range(12), matches=join_by_seq(ranks)[0])
    assert named(stragglers_of(run)[0]) == []


def test_an_instance_belongs_to_the_first_step_in_which_a_member_sees_its_end():
    """Rank 1's thread notes the end of step 0's collective in step 1 only."""
    ranks = []
    for rank, end in ((0, 990), (1, 1_010)):
        builder = RankBuilder(rank).step(0, 0, 1_000).step(1, 1_000, 2_000)
        builder.comm("nccl", 100 + 500 * rank, end, ranks=(0, 1), seq=0)
        ranks.append(builder.rank())
    run = make_run(ranks, steps=(0, 1), matches=join_by_seq(ranks)[0])
    steps = stragglers_of(run)[0].steps
    assert [(step.step, step.rank, step.lost_ns) for step in steps] == [(0, 1, 500), (1, None, 0)]


START = (Compute(ns=MS), *[Collective()] * 5)


def blame_in_the_only_step(**job):
    """Time lost for each rank, judged with the window that was found in the recording."""
    recording = SimulatedJob(num_steps=1, program=START, **job).run()
    run = assemble_run("simulated", recording.to_ranks())
    return judge_arrivals(run, measure(run).analyses.by_rank, num_steps=1).lost_ns.sum(axis=1)


def test_no_rank_is_blamed_for_the_start_of_its_profiler():
    lost = blame_in_the_only_step(profiler_start_ns={2: 300 * MS})
    assert lost.max() < MS


def test_a_rank_that_is_late_by_itself_in_the_only_step_is_blamed():
    lost = blame_in_the_only_step(faults=(LateHost(rank=2, ns=300 * MS),))
    assert lost.argmax() == 2
    assert lost[2] == pytest.approx(300 * MS, rel=0.05)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (LateHost(rank=2, ns=1200 * US, steps=(11, 14, 17)), StragglerCause.LATE_HOST),
        (LateInput(rank=2, ns=1500 * US, steps=(11, 13, 15, 17)), StragglerCause.LATE_INPUT),
    ],
)
def test_stalls_that_come_again_are_named_with_all_their_steps(fault, cause):
    """Each of them is a tenth of a step, and reductions under backward hide the waiting."""
    run = assemble_run("simulated", SimulatedJob(num_steps=10, faults=(fault,)).run().to_ranks())
    measured = measure(run)
    (found,) = analyze_stragglers(run, measured.analyses, measured.step_time).sets
    assert (found.ranks, found.cause, found.steps) == ((2,), cause, tuple(fault.steps))
