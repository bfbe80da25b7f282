"""Which collectives cut the time of peers where those of two streams take turns differently."""

import numpy as np
import pytest

from distprof.sections.whatif.delays import common_cuts

TENSOR, GRADIENTS = 1, 2


def cuts(*programs):
    """Of ranks that all are peers, one window each."""
    high = np.cumsum([len(program) for program in programs])[:, None]
    low = np.concatenate(([[0]], high[:-1]))
    group = range(len(programs))
    found = common_cuts(np.concatenate(programs), [group], low, high)
    return [row.tolist() for row in np.split(found, high[:-1, 0])]


def test_one_program_is_cut_by_all_collectives():
    assert cuts([1, 2, 1], [1, 2, 1]) == [[True] * 3] * 2


def test_collectives_of_another_stream_that_take_turns_differently_do_not_cut():
    assert cuts([TENSOR, GRADIENTS, TENSOR], [TENSOR, TENSOR, GRADIENTS]) == [
        [True, False, True],
        [True, True, False],
    ]


@pytest.mark.parametrize("other", [[TENSOR], [GRADIENTS], []])
def test_peers_that_ask_for_nothing_alike_are_not_cut(other):
    first, second = cuts([TENSOR, TENSOR, GRADIENTS, GRADIENTS], other)
    assert not any(first + second)
