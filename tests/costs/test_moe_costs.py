"""Load, capacity and placement of experts: known answers by hand, then properties."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from distprof.costs.moe import (
    Placement,
    aux_loss,
    contiguous_placement,
    dead_ratio,
    distribution_distance,
    load_imbalance,
    load_variation,
    lost_to_imbalance,
    normalised_entropy,
    place_experts,
)

OLMOE = Path(__file__).parents[1] / "golden/moe/olmoe-1b-7b/expert_counts_top8.json"
SIZES = st.sampled_from([(4, 2), (8, 4), (12, 3), (16, 16), (6, 1), (64, 8)])


# Measures ----------------------------------------------------------------------------------------


def test_the_check_values_of_the_formula_sheet():
    tokens = [8, 4, 4, 0]
    assert load_imbalance(tokens) == 2.0
    assert load_variation(tokens) == pytest.approx(math.sqrt(8) / 4)
    assert normalised_entropy(tokens) == pytest.approx(1.5 * math.log(2) / math.log(4))
    assert dead_ratio(tokens) == 0.25


def test_even_experts_are_even_by_every_measure():
    tokens = np.full((2, 8), 7)
    assert load_imbalance(tokens).tolist() == [1.0, 1.0]
    assert load_variation(tokens).tolist() == [0.0, 0.0]
    assert normalised_entropy(tokens) == pytest.approx([1.0, 1.0])
    assert dead_ratio(tokens).tolist() == [0.0, 0.0]


def test_all_tokens_on_one_expert():
    tokens = [0, 0, 12, 0]
    assert load_imbalance(tokens) == 4.0
    assert normalised_entropy(tokens) == 0.0
    assert dead_ratio(tokens) == 0.75


def test_no_token_is_no_load_rather_than_an_even_one():
    for measure in (load_imbalance, load_variation, normalised_entropy):
        assert np.isnan(measure([0, 0])).all()
    assert np.isnan(distribution_distance([0, 0], [1, 1]))


def test_an_expert_alone_is_even():
    assert normalised_entropy([5]) == load_imbalance([5]) == 1.0


def test_without_experts_nothing_can_be_said():
    with pytest.raises(ValueError, match="at least one expert"):
        load_imbalance([])


def test_the_load_balancing_loss_is_one_if_uniform_and_k_if_all_picks_count():
    even = np.full(8, 1 / 8)
    assert aux_loss(even, even) == pytest.approx(1.0)
    assert aux_loss(2 * even, even) == pytest.approx(2.0)
    assert aux_loss([1, 0], [1, 0]) == 2.0


def test_distance_of_loads():
    assert distribution_distance([1, 1], [4, 4]) == 0.0
    assert distribution_distance([1, 0], [0, 9]) == 1.0
    assert distribution_distance([3, 1], [1, 1]) == 0.25


def test_time_lost_is_that_of_the_slowest_less_the_mean():
    assert lost_to_imbalance([[4.0, 2.0], [3.0, 3.0]]).tolist() == [1.0, 0.0]


# Placement ---------------------------------------------------------------------------------------


def test_busy_experts_are_parted_from_each_other():
    """6 and 5 lie together; greedy: 6 to rank 0, 5 to rank 1, 2 to rank 1, 1 to rank 0."""
    load = np.array([[6, 5, 2, 1]])
    assert contiguous_placement(1, 4, 2).rank_loads(load).tolist() == [[11.0, 3.0]]
    placed = place_experts(load, 2)
    assert placed.rank_of_expert.tolist() == [[0, 1, 1, 0]]
    assert placed.rank_loads(load).tolist() == [[7.0, 7.0]]


def test_loads_of_many_calls_are_placed_alike():
    placed = Placement(num_ranks=2, expert=np.array([[0, 3, 1, 2]]))
    calls = np.array([[[1, 2, 3, 4]], [[4, 0, 0, 0]]])
    assert placed.rank_loads(calls).tolist() == [[[5.0, 5.0]], [[4.0, 0.0]]]


@pytest.mark.parametrize(
    ("domain", "layer", "experts", "ranks"), [("github", 1, 6.16, 2.14), ("c4", 1, 2.66, 1.09)]
)
def test_measured_routing_of_a_real_model(domain, layer, experts, ranks):
    load = np.array(json.loads(OLMOE.read_bytes())["domains"][domain])
    assert round(float(load_imbalance(load)[layer]), 2) == experts
    usual = contiguous_placement(len(load), load.shape[1], 8)
    assert round(float(load_imbalance(usual.rank_loads(load))[layer]), 2) == ranks
    anew = load_imbalance(place_experts(load, 8).rank_loads(load))
    assert anew[layer] < 1.03


@pytest.mark.parametrize(("experts", "ranks"), [(8, 3), (0, 2), (4, 0)])
def test_experts_that_cannot_be_shared_out_evenly_are_refused(experts, ranks):
    with pytest.raises(ValueError, match=r"divided evenly|at least one expert"):
        place_experts(np.ones((1, experts)), ranks)


@st.composite
def loads(draw):
    experts, ranks = draw(SIZES)
    layers = draw(st.integers(1, 3))
    tokens = draw(arrays.arrays(np.int64, (layers, experts), elements=st.integers(0, 10_000)))
    return tokens, ranks


@given(loads())
def test_every_expert_is_placed_once_and_ranks_have_as_many_slots(case):
    tokens, ranks = case
    placed = place_experts(tokens, ranks)
    for layer in placed.expert:
        assert sorted(layer.tolist()) == list(range(tokens.shape[1]))
    for row in placed.rank_of_expert:
        assert np.bincount(row, minlength=ranks).tolist() == [tokens.shape[1] // ranks] * ranks


@given(loads())
def test_no_placement_is_worse_than_contiguous_blocks(case):
    tokens, ranks = case
    usual = contiguous_placement(*tokens.shape, ranks).rank_loads(tokens)
    anew = place_experts(tokens, ranks).rank_loads(tokens)
    assert (anew.max(axis=1) <= usual.max(axis=1)).all()
    assert anew.sum(axis=1) == pytest.approx(tokens.sum(axis=1))


@given(loads())
def test_measures_stay_within_their_bounds(case):
    tokens = case[0] + 1
    number = tokens.shape[1]
    assert (load_imbalance(tokens) >= 1 - 1e-12).all()
    assert (load_imbalance(tokens) <= number).all()
    assert (normalised_entropy(tokens) <= 1 + 1e-9).all()
    assert (normalised_entropy(tokens) >= 0).all()
    assert (lost_to_imbalance(tokens) >= 0).all()
