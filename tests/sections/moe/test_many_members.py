"""Exchanges of large groups: no memory for sizes that nobody knows, little for those known."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.schema import ABSENT
from distprof.sections.moe import exchange
from distprof.sections.moe.exchange import GroupExchanges, exchange_of, pairs_of


def exchanges(num: int, size: int, dice: np.random.Generator, *, told: float) -> GroupExchanges:
    """Random exchanges of which a share is told; all members but perhaps one were recorded."""
    members = np.arange(size) if dice.random() < 0.5 else np.arange(1, size)
    tokens = dice.integers(0, 9, (num, size, size)).astype(np.float32)
    tokens[dice.random(num) >= told] = np.nan
    unknown = np.broadcast_to(np.float32(np.nan), (num, len(members), size))
    dispatch = np.arange(0, num - 1, 2)
    return GroupExchanges(
        ranks=tuple(range(10, 10 + size)),
        members=members,
        is_expert=True,
        may_be=True,
        step=np.zeros(num, np.int64),
        duration_ns=np.ones((num, len(members)), np.int64),
        wait_ns=np.full((num, len(members)), ABSENT),
        sent=tokens[:, members] if told else unknown,
        received=tokens[:, :, members].swapaxes(1, 2) if told else unknown,
        unit_bytes=np.full(num, 4096.0 if dice.random() < 0.5 else np.nan),
        dispatch=dispatch,
        section_ns=np.ones((len(dispatch), len(members)), np.int64),
        call=np.zeros(len(dispatch), np.int64),
        is_first=np.ones(len(dispatch), np.bool_),
        calls_per_step=np.ones(1, np.int64),
    )


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 1.0]))
def test_in_blocks_or_at_once(seed: int, told: float) -> None:
    dice = np.random.default_rng(seed)
    group = exchanges(int(dice.integers(1, 9)), int(dice.integers(2, 6)), dice, told=told)
    at_once = exchange_of(group, 2), pairs_of([group], 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "_CELLS", 1)
        assert (exchange_of(group, 2), pairs_of([group], 2)) == at_once


def peak_bytes(size: int) -> int:
    group = exchanges(64, size, np.random.default_rng(0), told=0.0)
    tracemalloc.start()
    found = exchange_of(group, 1)
    assert pairs_of([group], 1) == ()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.amount_per_step == 0
    assert found.sent_max_over_mean is None
    return peak


def test_sizes_that_nobody_knows_take_no_memory() -> None:
    assert peak_bytes(512) <= 4 * peak_bytes(128) * 1.1
