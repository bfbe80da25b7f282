"""Ranks of a run by their numbers."""

from __future__ import annotations

import pytest

from tests.builders import RankBuilder, make_run


def test_a_rank_is_found_by_its_number_whichever_are_missing() -> None:
    run = make_run([RankBuilder(rank=number).rank() for number in (0, 3, 4, 9)])
    assert [run.rank(number).rank for number in (0, 3, 4, 9)] == [0, 3, 4, 9]
    assert [run.find(number) for number in (-1, 1, 5, 10)] == [None] * 4
    with pytest.raises(ValueError, match="rank 5 is not part of this run"):
        run.rank(5)
