"""The check values of the formula sheet, and what must hold between the formulas."""

import pytest

from distprof.costs.collectives import (
    bus_factor,
    collective_time,
    crossover_bytes,
    sent_bytes,
)
from distprof.terms import CollectiveKind as Kind

GB, US = 1e9, 1e-6


def test_ring_all_reduce_of_10_gb_on_8_ranks_sends_17_5_gb_and_naive_70():
    assert sent_bytes(Kind.ALL_REDUCE, 8, 10 * GB) == 17.5 * GB
    assert sent_bytes(Kind.ALL_REDUCE, 8, 10 * GB, algorithm="naive") == 70 * GB


@pytest.mark.parametrize(
    ("alpha_us", "gb_per_s", "size"),
    [(1, 450, 450_000), (1.5, 200, 300_000), (5, 12.5, 62_500), (50, 12.5, 625_000)],
)
def test_crossover_size(alpha_us, gb_per_s, size):
    assert crossover_bytes(alpha_us * US, gb_per_s * GB) == pytest.approx(size)


def test_140_gb_of_gradients_at_50_gb_per_s_take_5_6_s():
    # "about 2 N bytes": the factor for very many ranks
    time = collective_time(Kind.ALL_REDUCE, 100_000, 140 * GB, alpha_s=0, bandwidth=50 * GB)
    assert time == pytest.approx(5.6, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        (Kind.ALL_REDUCE, 1.75),
        (Kind.ALL_GATHER, 0.875),
        (Kind.REDUCE_SCATTER, 0.875),
        (Kind.ALL_TO_ALL, 0.875),
        (Kind.SCATTER, 0.875),
        (Kind.GATHER, 0.875),
        (Kind.BROADCAST, 1.0),
        (Kind.REDUCE, 1.0),
        (Kind.SEND, 1.0),
        (Kind.RECV, 1.0),
        (Kind.SEND_RECV, 1.0),
        (Kind.BARRIER, None),
        (Kind.UNKNOWN, None),
    ],
)
def test_bus_factors_of_eight_ranks(kind, factor):
    assert bus_factor(kind, 8) == factor


def test_a_group_of_one_moves_nothing():
    assert bus_factor(Kind.ALL_REDUCE, 1) == 0
    assert collective_time(Kind.ALL_GATHER, 1, GB, alpha_s=US, bandwidth=GB) == 0


@pytest.mark.parametrize(
    ("kind", "algorithm", "steps"),
    [
        (Kind.ALL_REDUCE, "ring", 14),
        (Kind.ALL_REDUCE, "recursive", 6),
        (Kind.ALL_GATHER, "ring", 7),
        (Kind.ALL_GATHER, "recursive", 3),
        (Kind.REDUCE_SCATTER, "ring", 7),
        (Kind.ALL_TO_ALL, "ring", 7),
        (Kind.BROADCAST, "ring", 3),
        (Kind.REDUCE, "ring", 3),
        (Kind.SCATTER, "ring", 3),
        (Kind.GATHER, "ring", 3),
        (Kind.SEND, "ring", 1),
    ],
)
def test_time_is_latency_steps_and_bytes_over_bandwidth(kind, algorithm, steps):
    time = collective_time(kind, 8, 8_000, alpha_s=US, bandwidth=GB, algorithm=algorithm)
    assert time == pytest.approx(steps * US + bus_factor(kind, 8) * 8_000 / GB)


def test_tree_and_naive_pay_the_whole_message_at_each_step():
    tree = collective_time(Kind.ALL_REDUCE, 8, 1_000, alpha_s=US, bandwidth=GB, algorithm="tree")
    naive = collective_time(Kind.ALL_REDUCE, 8, 1_000, alpha_s=US, bandwidth=GB, algorithm="naive")
    assert tree == pytest.approx(6 * (US + 1_000 / GB))
    assert naive == pytest.approx(14 * (US + 1_000 / GB))


@pytest.mark.parametrize("algorithm", ["tree", "naive"])
def test_algorithms_of_all_reduce_are_refused_for_others(algorithm):
    with pytest.raises(ValueError, match="all_reduce"):
        collective_time(Kind.ALL_GATHER, 8, 1, alpha_s=0, bandwidth=1, algorithm=algorithm)


def test_what_has_no_model_is_refused():
    with pytest.raises(ValueError, match="barrier"):
        collective_time(Kind.BARRIER, 8, 1, alpha_s=0, bandwidth=1)
    with pytest.raises(ValueError, match="unknown"):
        sent_bytes(Kind.UNKNOWN, 8, 1)
    with pytest.raises(ValueError, match="at least one"):
        bus_factor(Kind.ALL_REDUCE, 0)
