"""Robust estimates: a middle, a line, values on a graph."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.join import clocks
from distprof.join.clocks import components_of, fit_line, location, pooled_scale, solve_graph


def test_one_far_value_in_five_hardly_moves_the_middle():
    center, _ = location(np.array([10.0, 11.0, 9.0, 10.0, 1e9]))
    assert center == pytest.approx(10, abs=1)


def test_the_spread_of_equal_values_is_a_nanosecond():
    """Times are whole nanoseconds: nothing is known better."""
    assert location(np.array([5.0, 5.0, 5.0])) == (5.0, 1.0)


def test_a_line_is_found_despite_far_values():
    x = np.arange(100) * 1_000_000
    y = 7_000 + x // 50_000
    y[::10] += 5_000_000
    line = fit_line(x, y)
    assert line.slope == pytest.approx(2e-5, rel=0.01)


@pytest.mark.parametrize("x", [[0, 1, 2], [5] * 20])
def test_a_line_through_too_little_has_no_leverage(x):
    assert fit_line(np.array(x), np.array(x)).leverage == 0


def test_few_values_that_agree_by_chance_do_not_set_the_spread():
    scales, counts = np.array([1.0, 3_000.0, 3_100.0]), np.array([2, 500, 400])
    assert pooled_scale(scales, counts) == 3_000.0


def test_values_add_up_along_a_path():
    edges = np.array([[0, 1], [1, 2]])
    value, error = solve_graph(3, edges, np.array([5.0, 7.0]), np.array([1.0, 1.0]))
    assert value.tolist() == [0.0, 5.0, 12.0]
    assert error == pytest.approx([0, 1, 2**0.5])


def test_the_more_certain_of_two_ways_counts_more():
    """Directly 10 ± 1, around 16 ± 2: weights 1 and 1/4."""
    edges = np.array([[0, 2], [0, 1], [1, 2]])
    errors = np.array([1.0, 2**0.5, 2**0.5])
    value, _ = solve_graph(3, edges, np.array([10.0, 8.0, 8.0]), errors)
    assert value[2] == pytest.approx((10 * 1 + 16 / 4) / 1.25)


def test_an_edge_that_contradicts_all_others_is_weighed_down():
    edges = np.array([[a, b] for a in range(6) for b in range(a + 1, 6)])
    truth = np.array([0.0, 3, -4, 10, 7, -2])
    difference = truth[edges[:, 1]] - truth[edges[:, 0]]
    difference[3] += 1_000
    value, _ = solve_graph(6, edges, difference, np.ones(len(edges)))
    assert value == pytest.approx(truth, abs=5)


def test_components_are_named_after_their_lowest_node():
    edges = np.array([[5, 3], [3, 1], [2, 4]])
    assert components_of(7, edges).tolist() == [0, 1, 2, 1, 2, 1, 6]
    assert components_of(3, np.empty((0, 2), np.int64)).tolist() == [0, 1, 2]


def test_a_long_chain_is_one_component():
    chain = np.stack((np.arange(999), np.arange(1, 1000)), axis=1)
    assert components_of(1000, chain[::-1]).max() == 0


def dense(count: int, edges: np.ndarray, weight: np.ndarray, difference: np.ndarray):
    """Values and variances by the full matrix."""
    normal, right = np.zeros((count, count)), np.zeros(count)
    for (a, b), w, d in zip(edges.tolist(), weight, difference, strict=True):
        normal[a, a] += w
        normal[b, b] += w
        normal[a, b] -= w
        normal[b, a] -= w
        right[b] += w * d
        right[a] -= w * d
    inverse = np.linalg.inv(normal[1:, 1:])
    return np.append(0, inverse @ right[1:]), np.append(0, np.diag(inverse))


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2, 16]))
def test_elimination_gives_what_the_full_matrix_gives(seed: int, few: int) -> None:
    """Of a tree with some more edges, one between two nodes at most."""
    dice = np.random.default_rng(seed)
    count = int(dice.integers(2, 30))
    tree = {(int(dice.integers(0, node)), node) for node in range(1, count)}
    more = {tuple(sorted(dice.choice(count, 2, replace=False).tolist())) for _ in range(seed % 40)}
    edges = np.array(sorted(tree | more))
    weight, difference = dice.uniform(1e-3, 1, len(edges)), dice.normal(0, 1e6, len(edges))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "_FEW", few)
        equations = clocks._Equations(count, edges, weight, difference)
        value, variance = dense(count, edges, weight, difference)
        assert equations.solution() == pytest.approx(value, rel=1e-7, abs=1e-3)
        assert equations.variance() == pytest.approx(variance, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("size", [8, 64])
def test_clocks_of_a_mesh_leave_no_full_matrix(size: int) -> None:
    """Ranks with a clock each, in groups of eight, in groups across them, and in the world."""
    ranks = np.arange(8 * size)
    leaders = (ranks // 8 * 8, ranks % 8, np.zeros_like(ranks))
    edges = {
        (int(a), int(b)) for leader in leaders for a, b in zip(leader, ranks, strict=True) if a < b
    }
    pairs = np.array(sorted(edges))
    equations = clocks._Equations(len(ranks), pairs, np.ones(len(pairs)), np.zeros(len(pairs)))
    assert equations._core == []
    assert sum(len(row) for row in equations._rows) <= 8 * len(ranks)
