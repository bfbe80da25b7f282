"""How a ring splits the sequence."""

from __future__ import annotations

import torch
from distprof_runs.workloads.sequence_attention import local_positions
from hypothesis import given
from hypothesis import strategies as st


def test_contiguous_ranks_have_one_piece_each() -> None:
    assert local_positions(8, 1, 2, zigzag=False).tolist() == [4, 5, 6, 7]


def test_zigzag_ranks_have_one_piece_from_each_end() -> None:
    assert local_positions(8, 0, 2, zigzag=True).tolist() == [0, 1, 6, 7]
    assert local_positions(8, 1, 2, zigzag=True).tolist() == [2, 3, 4, 5]


@given(size=st.integers(1, 6), each=st.integers(1, 4))
def test_zigzag_leaves_all_ranks_the_same_work_and_no_token_out(size: int, each: int) -> None:
    sequence = 2 * size * each
    parts = [local_positions(sequence, rank, size, zigzag=True) for rank in range(size)]
    assert torch.cat(parts).sort().values.tolist() == list(range(sequence))
    # A query sees its own position and all before it.
    assert len({int((part + 1).sum()) for part in parts}) == 1
