"""Codes of many rows without sorting them."""

import tracemalloc
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distprof.run.tables import (
    DistinctRows,
    distinct,
    encode,
    numbers_in,
    order_of_codes,
    runs_of,
)


@given(
    hnp.arrays(np.int64, st.integers(0, 40), elements=st.integers(-3, 30))
    | hnp.arrays(np.int32, st.integers(0, 40), elements=st.integers(0, 2**31 - 1))
)
def test_codes_are_those_of_sorted_distinct_values(values):
    found, code = encode(values)
    expected, inverse = np.unique(values, return_inverse=True)
    assert found.tolist() == expected.tolist()
    assert code.tolist() == inverse.tolist()


@given(
    hnp.arrays(np.int64, st.integers(0, 40), elements=st.integers(-3, 2000))
    | hnp.arrays(np.int32, st.integers(0, 40), elements=st.integers(-(2**31), 2**31 - 1))
    | hnp.arrays(np.int8, st.integers(0, 40), elements=st.integers(0, 5))
)
def test_distinct_values_are_those_of_numpy_and_of_the_same_type(values):
    found = distinct(values)
    assert found.tolist() == np.unique(values).tolist()
    assert found.dtype == values.dtype


@pytest.mark.parametrize("count", [3, 1 << 20])
def test_rows_of_one_code_keep_their_order(count):
    codes = np.array([2, 0, 1, 0, 2, 0])
    assert order_of_codes(codes, count).tolist() == [1, 3, 5, 2, 0, 4]


@given(st.lists(st.lists(st.tuples(*[st.integers(-1, 3)] * 3), max_size=9), max_size=5))
def test_distinct_rows_of_one_rank_after_another(ranks):
    rows = DistinctRows()
    for of_rank in [*ranks, *ranks[-1:]]:
        columns = [np.array([row[i] for row in of_rank], np.int64) for i in range(3)]
        first, code = rows.of(columns)
        distinct_rows = sorted(set(of_rank))
        assert [of_rank.index(row) for row in distinct_rows] == first.tolist()
        assert [distinct_rows.index(row) for row in of_rank] == code.tolist()


def test_equal_columns_are_searched_once():
    rows = DistinctRows()
    columns = [np.array([1, 0, 1]), np.array([2, 2, 2])]
    found = rows.of(columns)
    assert rows.of([column.copy() for column in columns]) is found
    assert rows.of([columns[0], np.array([2, 2, 3])]) is not found
    assert rows.of([columns[0][:2], columns[1][:2]])[1].tolist() == [1, 0]


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 2)), max_size=12))
def test_rows_are_numbered_among_equal_ones_and_runs_end_where_any_column_changes(rows):
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(2)]
    assert numbers_in(*columns).tolist() == [rows[:at].count(row) for at, row in enumerate(rows)]
    lengths = [len(list(run)) for _, run in groupby(rows)]
    begins, found = runs_of(*columns)
    assert found.tolist() == lengths
    assert begins.tolist() == [sum(lengths[:at]) for at in range(len(lengths))]


def test_few_large_values_take_little_memory():
    """Sizes of messages, in bytes: a table of all sizes up to the largest took 150 MB."""
    values = np.array([16_000_000, 4, 16_000_000, 8_000_000])
    encode(values)  # imports what it needs
    tracemalloc.start()
    try:
        found, code = encode(values)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert found.tolist() == [4, 8_000_000, 16_000_000]
    assert code.tolist() == [2, 0, 2, 1]
