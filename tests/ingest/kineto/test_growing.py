"""Columns that grow: the rows of their parts, whatever the parts are."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from distprof.ingest.kineto import parsed
from distprof.ingest.kineto.parsed import GrowingColumns
from distprof.run.tables import ACTIVITY


@pytest.fixture(params=[True, False], ids=["remapped", "copied"], autouse=True, scope="module")
def systems(request):
    """Where maps can grow in place, and where they cannot."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parsed, "_CAN_REMAP", request.param and parsed._CAN_REMAP)
        yield


def part(first: int, count: int) -> dict[str, np.ndarray]:
    numbers = np.arange(first, first + count)
    return {
        column.name: (numbers + place).astype(parsed._dtype(column))
        for place, column in enumerate(ACTIVITY)
    }


def grown(sizes: list[int]) -> dict[str, np.ndarray]:
    columns, first = GrowingColumns(ACTIVITY), 0
    for size in sizes:
        columns.append(part(first, size))
        first += size
    return columns.columns()


def assert_whole(columns: dict[str, np.ndarray], count: int) -> None:
    for name, expected in part(0, count).items():
        assert columns[name].dtype == expected.dtype
        assert (columns[name] == expected).all()
        assert len(columns[name]) == count


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 8))
def test_the_rows_of_all_parts_in_order(sizes, at_once):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parsed, "_ROWS_AT_ONCE", at_once)
        assert_whole(grown(sizes), sum(sizes))


@pytest.mark.parametrize("size", [0, 1, parsed._ROWS_AT_ONCE - 1, 9 * parsed._ROWS_AT_ONCE + 1])
def test_short_and_long_columns(size):
    assert_whole(grown([size]), size)


def test_the_columns_outlive_what_made_them_and_may_be_written_to():
    columns = grown([parsed._ROWS_AT_ONCE, 7])
    columns["start_ns"] += 1
    assert columns["start_ns"][-1] == parsed._ROWS_AT_ONCE + 7
    assert columns["end_ns"][-1] == parsed._ROWS_AT_ONCE + 7  # its neighbour is as it was
