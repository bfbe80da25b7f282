"""Shifts between the operations of two ranks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distprof.join import shifts
from distprof.join.instances import NO_STEP
from distprof.join.shifts import Operations, compatible, middle_of_overlap

kinds = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2)), min_size=1, max_size=40)

steps = st.lists(st.integers(-1, 3), min_size=1, max_size=8)


def operations(rows):
    token, step = np.array(rows, dtype=np.int64).T
    ends = np.arange(len(rows), dtype=np.int64) * 1_000
    return Operations(token=token, step=step, end_ns=ends, is_timed=np.ones(len(rows), np.bool_))


@given(kinds, kinds, st.integers(1, 4), st.integers(2, 60))
def test_pairs_of_all_shifts_are_those_of_each_alone(first, second, at_once, samples):
    a, b = operations(first), operations(second)
    tried = list(range(1 - len(a), len(b)))
    before = shifts._AT_ONCE, shifts.SAMPLES
    shifts._AT_ONCE, shifts.SAMPLES = at_once, samples
    try:
        count, num_tried = shifts._compatible_pairs(a, b, np.array(tried))
        alone = []
        for shift in tried:
            i = middle_of_overlap(a, b, shift)
            alone.append((int(compatible(a, b, i, i + shift).sum()), len(i)))
    finally:
        shifts._AT_ONCE, shifts.SAMPLES = before
    assert list(zip(count.tolist(), num_tried.tolist(), strict=True)) == alone


@given(st.lists(st.integers(-(2**60), 2**60), min_size=1, max_size=30))
def test_the_median_is_numpys(values):
    whole = np.array(values, dtype=np.int64)
    assert shifts.median(whole) == float(np.median(whole))
    assert shifts.median(whole.astype(np.float64)) == float(np.median(whole.astype(np.float64)))


@given(kinds, kinds, st.integers(1, 40))
def test_shifts_that_are_tried_overlap_by_as_much_as_is_needed(first, second, needed):
    a, b = operations(first), operations(second)
    needed = min(needed, len(a), len(b))
    by_step = shifts._shifts_of_steps(a, b)
    tried = shifts._shifts(a, b, needed, shifts.Expectation(), by_step)
    overlaps = [min(len(a), len(b) - shift) - max(0, -shift) for shift in tried]
    assert min(overlaps) >= needed
    assert tried == sorted(set(tried))
    assert set(range(needed - len(a), len(b) - needed + 1)) <= {*tried}  # all are within the margin


@given(
    st.lists(st.integers(-1, 3), min_size=1, max_size=8),
    st.lists(st.integers(-1, 3), min_size=1, max_size=8),
)
def test_steps_of_equal_numbers_begin_together(first, second):
    a, b = (
        operations([(0, NO_STEP if number < 0 else number) for number in one])
        for one in (first, second)
    )
    common = sorted({*first} & {*second} - {-1})
    assert {second.index(n) - first.index(n) for n in common} == {
        *shifts._shifts_of_steps(a, b).tolist()
    }
