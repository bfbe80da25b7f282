"""More work by counts of kernels, where times are too noisy to prove anything."""

import numpy as np
import pytest

from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.sections.stragglers.surplus import work_by_counts
from distprof.terms import CollectiveKind, StragglerCause, StragglerPattern
from tests.builders import RankBuilder, identity_clock, make_run
from tests.sections.joined import join_by_seq
from tests.sections.measured import measure

STEPS = 4
US = 1_000


def noisy_pair(counts, names=("gemm", "gemm"), seed=0):
    """Two ranks whose kernels take 20 to 60 µs each, all kinds of times in every step."""
    noise = np.random.default_rng(seed)
    ranks = []
    for rank, (count, name) in enumerate(zip(counts, names, strict=True)):
        builder = RankBuilder(rank)
        for step in range(STEPS):
            low = at = 2_000 * US * step
            builder.step(step, low, low + 2_000 * US)
            for ns in noise.integers(20 * US, 60 * US, count).tolist():
                builder.kernel(name, at, at + ns)
                at += ns
            builder.comm(
                "nccl",
                at,
                low + 1_900 * US,
                ranks=(0, 1),
                seq=step,
                kind=CollectiveKind.ALL_REDUCE,
            )
        ranks.append(builder.rank())
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
