"""More work by counts of kernels, where times are too noisy to prove anything."""

import numpy as np
import pytest

from distprof.run.run import Device
from distprof.sections.kernels.measure import MOST_NAMES
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.sections.stragglers.slowness import work_by_counts
from distprof.terms import CollectiveKind, StragglerCause, StragglerPattern
from tests.builders import RankBuilder, identity_clock, make_run
from tests.sections.joined import join_by_seq
from tests.sections.measured import measure

STEPS = 4
US = 1_000
GPU, CPU = Device(name="NVIDIA H100"), Device(name="cpu")
MANY = tuple(f"short {number}" for number in range(2 * MOST_NAMES))


def noisy_pair(counts, names=("gemm", "gemm"), *, seed=0, short=(), more=(), device=GPU):
    """Two ranks whose kernels take 20 to 60 µs each, all kinds of times in every step.

    Args:
        counts: Kernels of each rank.
        names: Of these.
        seed: Of the times.
        short: Names of further kernels of each rank, of 1 µs.
        more: Name and µs of each kernel that rank 1 runs in addition.
        device: Of both.
    """
    noise = np.random.default_rng(seed)
    ranks = []
    for rank, (count, name) in enumerate(zip(counts, names, strict=True)):
        builder = RankBuilder(rank)
        for step in range(STEPS):
            low = at = 4_000 * US * step
            builder.step(step, low, low + 4_000 * US)
            each = [(name, ns) for ns in noise.integers(20 * US, 60 * US, count).tolist()]
            each += [(little, US) for little in short[rank]] if short else []
            each += [(other, us * US) for other, us in more] if rank == 1 else []
            for kernel, ns in each:
                builder.kernel(kernel, at, at + ns)
                at += ns
            builder.comm(
                "nccl",
                at,
                low + 3_900 * US,
                ranks=(0, 1),
                seq=step,
                kind=CollectiveKind.ALL_REDUCE,
            )
        ranks.append(builder.rank(device=device))
    clock = identity_clock((0, 1), 10)
    return make_run(ranks, steps=range(STEPS), matches=join_by_seq(ranks)[0], clock=clock)


def judged(run):
    found = measure(run)
    return analyze_stragglers(run, found.analyses, found.step_time)


@pytest.mark.parametrize("seed", range(4))
def test_four_steps_prove_a_rank_that_launches_nearly_twice_as_many_kernels(seed):
    result = judged(noisy_pair((16, 30), seed=seed))
    late = result.ranks[0]
    assert (late.rank, late.pattern) == (1, StragglerPattern.PERSISTENT)
    assert late.cause is StragglerCause.MORE_WORK


@pytest.mark.parametrize("seed", range(4))
def test_equal_counts_prove_nothing(seed):
    work = work_by_counts(measure(noisy_pair((16, 16), seed=seed)).analyses, ((0, 1), (0, 1)))
    assert work is not None
    assert np.array_equal(work[0], work[1])


def test_another_version_of_a_kernel_is_the_same_work():
    run = noisy_pair((16, 16), names=("gemm_v1", "gemm_v2"))
    work = work_by_counts(measure(run).analyses, ((0, 1), (0, 1)))
    assert work is not None
    assert work[1] == pytest.approx(work[0])


def test_a_long_kernel_of_one_rank_is_more_work_though_short_ones_are_not_listed():
    run = noisy_pair((16, 16), short=(MANY, MANY), more=[("matmul", 60)] * 10)
    work = work_by_counts(measure(run).analyses, ((0, 1), (0, 1)))
    assert work is not None
    assert (work[1] - work[0]).tolist() == pytest.approx([10 * 60 * US] * STEPS)
    assert judged(run).ranks[0].cause is StragglerCause.MORE_WORK


def test_a_kernel_that_is_listed_for_one_rank_by_chance_is_no_more_work():
    run = noisy_pair((16, 16), short=(MANY, MANY[::-1]))
    work = work_by_counts(measure(run).analyses, ((0, 1), (0, 1)))
    assert work is not None
    assert work[1] == pytest.approx(work[0])


def test_more_launches_of_an_operator_take_what_they_add_to_its_time():
    """16 launches of 40 µs on both ranks, four more of 300 µs on rank 1."""
    run = noisy_pair((16, 16), more=[("gemm", 300)] * 4, device=CPU)
    work = work_by_counts(measure(run).analyses, ((0, 1), (0, 1)))
    assert work is not None
    assert (work[1] - work[0]).mean() == pytest.approx(4 * 300 * US, rel=0.25)


def test_smaller_launches_of_an_operator_take_no_more_than_they_add():
    """16 launches of 40 µs on both ranks, 40 more of 15 µs on rank 1: 600 µs, not 1,600."""
    run = noisy_pair((16, 16), more=[("gemm", 15)] * 40, device=CPU)
    work = work_by_counts(measure(run).analyses, ((0, 1), (0, 1)))
    assert work is not None
    assert (work[1] - work[0]).mean() == pytest.approx(600 * US, rel=0.4)


def test_launches_that_noise_hides_are_work_still():
    """Rank 0's take longer by chance, so that ten more seem to add nothing."""
    run = noisy_pair((16, 16), more=[("gemm", 1)] * 10, device=CPU)
    work = work_by_counts(measure(run).analyses, ((0, 1), (0, 1)))
    assert work is not None
    assert ((work[1] - work[0]) > 10 * 3 * US).all()


def test_few_more_launches_do_not_take_what_noise_adds():
    run = noisy_pair((30, 31), device=CPU)
    work = work_by_counts(measure(run).analyses, ((0, 1), (0, 1)))
    assert work is not None
    assert (work[1] - work[0]).max() < 60 * US
