"""What a rank does with time in which it waits for nobody, beside its peers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from msgspec.structs import replace

from distprof.sections.own_time import COMPUTATION, HOST, OwnTime, over_peers
from distprof.terms import IdleCause
from tests.builders import RankBuilder
from tests.sections.measured import measured


def test_each_value_is_compared_with_the_median_of_the_others():
    values = np.array([[10, 1], [20, 1], [60, 1], [40, 9]])
    #  others of 10: 20, 40, 60; of 20: 10, 40, 60; of 60: 10, 20, 40; of 40: 10, 20, 60
    assert over_peers(values).tolist() == [[-30, 0], [-20, 0], [40, 0], [20, 8]]


def test_between_two_the_peer_is_the_other_one():
    assert over_peers(np.array([[7], [10]])).tolist() == [[-3], [3]]


def test_alone_nobody_has_peers():
    assert over_peers(np.array([[7, 8]])).tolist() == [[0, 0]]


@given(arrays(np.int64, st.tuples(st.integers(2, 7), st.integers(1, 4)),
              elements=st.integers(0, 5)))  # fmt: skip
def test_it_is_what_leaving_out_each_in_turn_gives(values):
    expected = [
        values[row] - np.median(np.delete(values, row, axis=0), axis=0)
        for row in range(len(values))
    ]
    assert over_peers(values).tolist() == np.array(expected).tolist()


def rank_of(number, *, work, steps=3, stage=None):
    """Steps of 100 ns: computation first, then nothing."""
    builder = RankBuilder(number)
    for step in range(steps):
        low = 100 * step
        builder.step(step, low, low + 100)
        if stage is not None:
            builder.annotation(f"distprof:pp stage={stage} op=F mb=0", low, low + 90)
        builder.kernel("gemm", low, low + work, launched=(low, low + 1))
    return measured(builder)


def test_parts_are_those_of_each_step():
    analyses = {rank: rank_of(rank, work=work) for rank, work in enumerate((30, 30, 50))}
    own = OwnTime.of(analyses)
    assert own.ranks == (0, 1, 2)
    assert own.parts[COMPUTATION].tolist() == [[30] * 3, [30] * 3, [50] * 3]
    assert own.excess[COMPUTATION].tolist() == [[-10] * 3, [-10] * 3, [20] * 3]
    assert own.chance(COMPUTATION)[2] < 1e-6
    assert own.chance(COMPUTATION)[:2].tolist() == [1, 1]


def test_ranks_of_one_stage_are_compared_among_themselves():
    works = {0: (30, 0), 1: (30, 0), 2: (60, 1), 3: (70, 1)}
    analyses = {r: rank_of(r, work=work, stage=stage) for r, (work, stage) in works.items()}
    own = OwnTime.of(analyses)
    assert own.peers == ((0, 1), (0, 1), (2, 3), (2, 3))
    assert own.excess[COMPUTATION][:, 0].tolist() == [0, 0, -10, 10]


def test_a_stage_of_one_rank_is_compared_with_all():
    analyses = {r: rank_of(r, work=30 + 10 * r, stage=r) for r in range(3)}
    assert OwnTime.of(analyses).excess[COMPUTATION][:, 0].tolist() == [-15, 0, 15]


def test_on_cpu_ranks_waiting_for_a_collective_is_not_the_host_s_idling():
    analysis = replace(rank_of(0, work=30), is_cpu=True)
    waiting = replace(
        analysis, idle_ns={**analysis.idle_ns, IdleCause.COMM_WAIT: np.array([20, 30, 70])}
    )
    assert OwnTime.of({0: analysis}).parts[HOST].tolist() == [[70, 70, 70]]
    assert OwnTime.of({0: waiting}).parts[HOST].tolist() == [[50, 40, 0]]


@pytest.mark.parametrize("missing", [1, 2])
def test_a_step_that_a_rank_lacks_counts_nothing(missing):
    analyses = {0: rank_of(0, work=30), 1: rank_of(1, work=30, steps=3 - missing)}
    assert (
        OwnTime.of(analyses).parts[COMPUTATION][1].tolist() == [30] * (3 - missing) + [0] * missing
    )
