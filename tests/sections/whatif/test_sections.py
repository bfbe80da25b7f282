"""What ranks are compared with, section by section."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.sections.whatif.delays import Sections, evened, mean_of_peers, median_of_others


def test_one_factor_per_rank_is_taken_away():
    """Two sections of which only the first follows the length of the batch."""
    length = np.array([1.0, 2.0, 6.0])
    values = 100 * np.outer(length, [1, 0]) + [0, 50]
    assert evened(values) == pytest.approx(np.array([[300, 50]] * 3))


def test_noise_in_one_section_of_many_stays():
    rng = np.random.default_rng(4)
    length = np.array([0.8, 1.0, 1.0, 1.2])
    noise = rng.normal(0, 2, (4, 200))
    even = evened(np.outer(length, np.full(200, 100.0)) + noise)
    assert even.mean(axis=1) == pytest.approx(100 + 0 * length, abs=0.5)
    assert even.std(axis=1)[1:3] == pytest.approx(noise.std(axis=1)[1:3], rel=0.1)
    assert (even.std(axis=1) > 0.6 * noise.std(axis=1)).all()  # mean_of_peers leaves 0.5 of it


def test_ranks_that_are_alike_stay_as_they_are():
    values = np.tile([3.0, 5.0, 0.0], (4, 1))
    assert evened(values) == pytest.approx(values)


@given(
    st.lists(st.lists(st.integers(0, 10**9), min_size=3, max_size=3), min_size=2, max_size=6),
    st.randoms(use_true_random=False),
)
def test_the_order_of_ranks_does_not_matter(rows, dice):
    values = np.array(rows, dtype=np.float64)
    order = list(range(len(values)))
    dice.shuffle(order)
    for measure in (mean_of_peers, median_of_others, evened):
        expected = measure(values)[order]
        assert measure(values[order]) == pytest.approx(expected, abs=1e-3 * (1 + values.max()))
    assert (evened(values) >= 0).all()


def test_a_section_gives_up_its_pause_where_it_lies():
    """Three ranks of one section each: two segments of computation, and a pause in the first."""
    sections = Sections(
        of_segment=np.repeat(np.arange(3), 2),
        first=np.arange(3)[:, None],
        count=np.ones((3, 1), dtype=np.int64),
        peers=((0, 1, 2),),
        stages={},
        is_expert=np.zeros(3, dtype=np.bool_),
    )
    work, pause = np.array([40, 60] * 3), np.array([70, 0, 0, 0, 0, 0])
    parts = np.stack((work, pause), axis=1)
    totals = sections.totals(parts.sum(axis=1))
    target = sections.targets(totals, median_of_others)
    assert sections.limited(parts, target).tolist() == work.tolist()
    assert sections.limited(work[:, None], np.full(3, 50.0)).tolist() == [20, 30] * 3
