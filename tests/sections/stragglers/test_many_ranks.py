"""What is linear in ranks and steps gives what its definition, which is not, gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distprof.sections.own_time import OwnTime, over_peers
from distprof.sections.stragglers import computing, slowness
from distprof.sections.stragglers.workload import _beyond_mean

SEEDS = st.integers(0, 2**32 - 1)
_Floats = NDArray[np.float64]


def own_time(seed: int) -> OwnTime:
    """Of ranks whose groups share one tuple each, some of them with one of their own."""
    dice = np.random.default_rng(seed)
    stage = dice.integers(0, 3, int(dice.integers(2, 12)))
    groups = {s: tuple(np.flatnonzero(stage == s).tolist()) for s in set(stage.tolist())}
    peers = [groups[s] for s in stage.tolist()]
    if dice.random() < 0.5:
        peers[0] = (0, *(p for p in range(1, len(peers)) if dice.random() < 0.5))
    shape = (len(peers), int(dice.integers(1, 6)))
    return OwnTime(
        ranks=tuple(range(len(peers))),
        parts={"some": dice.integers(0, 50, shape)},
        peers=tuple(peers),
        hidden=np.zeros(shape, np.int64),
    )


@given(SEEDS)
def test_a_value_is_compared_with_its_own_peers(seed: int) -> None:
    own = own_time(seed)
    values = own.parts["some"]
    found, means = own.beyond_peers(values), _beyond_mean(values.astype(float), own)
    for row, group in enumerate(own.peers):
        expected = over_peers(values[list(group)])[group.index(row)]
        assert (found[row] == expected).all()
        assert (means[row] == values[row] - values[list(group)].mean(axis=0)).all()


@given(SEEDS)
def test_only_the_asked_of_slow_ranks_are_compared_anew(seed: int) -> None:
    own = own_time(seed)
    slow = [p for p in own.ranks if p % 2]
    whole, some = own.without(slow), own.without(slow, slow[:1])
    for position in own.ranks:
        source = whole if position in slow[:1] else own
        assert some.peers[position] == source.peers[position]


def begins_by_definition(series: _Floats, limits: slowness.Limits) -> int | None:
    number = len(series)
    for at in range(1, number - 1):
        before, after = series[:at], series[at:]
        low, high = float(np.median(before)), float(np.median(after))
        step = high - low
        if step < slowness.EVEN * high or (number - at) * step < number * limits.lasting_ns:
            continue
        level = low + slowness.EVEN * step
        spread = float(np.median(abs(np.concatenate((before - low, after - high)))))
        even = before.max() < level < after.min()
        if even and step >= slowness.BEYOND_NOISE * slowness.SIGMA * spread:
            return at
    return None


@settings(max_examples=300)
@given(SEEDS)
def test_where_slowness_begins(seed: int) -> None:
    dice = np.random.default_rng(seed)
    number = int(dice.integers(3, 14))
    series = dice.normal(0, dice.choice([0.0, 1.0, 20.0]), number)
    series[int(dice.integers(0, number)) :] += dice.choice([0.0, 10.0, 100.0])
    limits = slowness.Limits(lasting_ns=float(dice.choice([1.0, 30.0])), cell_ns=1, again_ns=1)
    assert slowness._begins(series, limits) == begins_by_definition(series, limits)


def slow_set_by_definition(values: _Floats, limits: slowness.Limits) -> NDArray[np.bool_]:
    number = len(values)
    apart = values - np.median(values, axis=0)
    level = np.median(apart, axis=1)
    order = np.argsort(level, kind="stable")
    ordered = level[order]
    noise = float(np.median(abs(apart - level[:, None])))
    error = slowness.SIGMA * noise / np.sqrt(values.shape[1])
    for size in range(number // 2, 0, -1):
        fast = ordered[: number - size]
        gap = ordered[number - size] - fast[-1]
        above = ordered[number - size] - float(np.median(fast))
        least = max(slowness.GAP * above, slowness.BEYOND_NOISE * error)
        if above < limits.lasting_ns or gap < least:
            continue
        slow = np.zeros(number, dtype=np.bool_)
        slow[order[number - size :]] = True
        if slowness._chance(values, slow, limits) <= slowness.CHANCE:
            return slow
    return np.zeros(number, dtype=np.bool_)


@settings(max_examples=300)
@given(SEEDS)
def test_which_ranks_are_slow(seed: int) -> None:
    dice = np.random.default_rng(seed)
    shape = (int(dice.integers(2, 14)), int(dice.integers(3, 8)))
    values = dice.normal(1_000, dice.choice([0.1, 1.0, 10.0]), shape)
    values[: int(dice.integers(0, shape[0]))] += dice.choice([0.0, 20.0, 300.0])
    limits = slowness.Limits(lasting_ns=15.0, cell_ns=50, again_ns=50)
    expected = slow_set_by_definition(values, limits)
    assert (slowness._slow_set(values, limits) == expected).all()


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([0.0, 1e-12, 0.995, 0.99502, 1.0, 1.005, 1.0050251, 2.0]), min_size=1)
)
def test_how_many_are_near(numbers: list[float]) -> None:
    values = np.array(numbers)
    off = values[:, None] / np.maximum(values, 1e-9)[None] - 1
    expected = (abs(off) <= computing.EQUAL_COUNTS).sum(axis=1)
    assert computing.number_near(values).tolist() == expected.tolist()


@given(SEEDS)
def test_how_many_of_any_are_near(seed: int) -> None:
    dice = np.random.default_rng(seed)
    values = dice.choice([1.0, 7.3]) + dice.integers(0, 9, int(dice.integers(1, 30))) / 1_000
    off = values[:, None] / np.maximum(values, 1e-9)[None] - 1
    expected = (abs(off) <= computing.EQUAL_COUNTS).sum(axis=1)
    assert computing.number_near(values).tolist() == expected.tolist()
