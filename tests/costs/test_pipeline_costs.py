"""Closed forms of pipeline bubbles against the numbers that the formula sheet prints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.costs.pipeline import (
    bubble_fraction,
    bubble_overhead,
)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "fraction_percent"),
    [(4, 16, 15.8), (16, 4, 78.9), (4, 4, 42.9), (8, 32, 17.9), (4, 1, 75.0)],
)
def test_fraction_of_the_formula_sheet(stages, micro_batches, fraction_percent):
    assert round(100 * bubble_fraction(stages, micro_batches), 1) == fraction_percent


@pytest.mark.parametrize(
    ("stages", "micro_batches", "overhead_percent"), [(4, 16, 18.75), (16, 4, 375.0)]
)
def test_overhead_of_the_formula_sheet(stages, micro_batches, overhead_percent):
    assert 100 * bubble_overhead(stages, micro_batches) == overhead_percent


def test_four_times_as_many_micro_batches_as_stages_keep_the_fraction_below_a_fifth():
    assert max(bubble_fraction(stages, 4 * stages) for stages in range(1, 129)) < 0.2


def test_virtual_stages_divide_the_overhead():
    assert bubble_overhead(4, 8, 3) == bubble_overhead(4, 8) / 3


def test_one_stage_has_no_bubble():
    assert bubble_fraction(1, 5) == 0.0


@given(st.integers(1, 64), st.integers(1, 256), st.integers(1, 8))
def test_fraction_and_overhead_are_the_same_idle_over_total_and_over_useful(p, m, v):
    overhead = bubble_overhead(p, m, v)
    assert bubble_fraction(p, m, v) == pytest.approx(overhead / (1 + overhead))


@pytest.mark.parametrize(
    "call",
    [
        lambda: bubble_fraction(0, 4),
        lambda: bubble_fraction(4, 0),
        lambda: bubble_overhead(4, 4, 0),
        lambda: bubble_fraction(float("nan"), 4),
    ],
)
def test_what_is_no_pipeline_is_refused(call):
    with pytest.raises(ValueError, match=r"pipeline|formula"):
        call()
