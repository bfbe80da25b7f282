"""Numbers become text in one place: three digits, one unit, unknown is a dash."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.units import (
    fold_ranks,
    format_bandwidth,
    format_bytes,
    format_duration,
    format_parts,
    format_ratio,
    name_ranks,
    parse_duration,
)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "–"),
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (999_499, "999 µs"),
        (999_500, "1.00 ms"),
        (999_999_999, "1.00 s"),
        (12_345_678, "12.3 ms"),
        (-1_203_441, "-1.20 ms"),
        (2_500_000_000, "2.50 s"),
    ],
)
def test_durations(ns: int | None, text: str) -> None:
    assert format_duration(ns) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, "–"), (0.0, "0 %"), (0.00001, "< 0.01 %"), (0.156, "15.6 %"), (1.0, "100 %")],
)
def test_ratios_that_are_not_zero_are_not_shown_as_zero(ratio: float | None, text: str) -> None:
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "–"), (0.0, "0.00 GB/s"), (3e5, "< 0.01 GB/s"), (187.4e9, "187 GB/s")],
)
def test_bandwidths_keep_their_unit(rate: float | None, text: str) -> None:
    assert format_bandwidth(rate) == text


def test_bytes_have_decimal_prefixes() -> None:
    assert format_bytes(999_960) == "1.00 MB"
    assert format_bytes(1 << 24) == "16.8 MB"
    assert format_bytes(12) == "12 B"
    assert format_bytes(None) == "–"


def test_ranks_in_a_sentence_are_one_or_several() -> None:
    assert name_ranks([3, 3]) == "rank 3"
    assert name_ranks([0, 1, 8]) == "ranks 0-1,8"


def test_ranks_are_folded() -> None:
    assert fold_ranks([8, 0, 1, 2, 3, 3]) == "0-3,8"
    assert fold_ranks([]) == ""


def test_parts_have_the_unit_of_their_sum() -> None:
    assert format_parts([1_234_567, 7_654_321, 333_333, 0]) == (
        ["1.23 ms", "7.66 ms", "0.33 ms", "0.00 ms"],
        "9.22 ms",
    )
    assert format_parts([]) == ([], "0 ns")


@given(st.lists(st.floats(0, 1e15), max_size=12))
def test_shown_parts_add_up_to_the_shown_sum(parts: list[float]) -> None:
    texts, total = format_parts(parts)
    digits = [int(re.sub(r"\D", "", text)) for text in texts]
    assert sum(digits) == int(re.sub(r"\D", "", total))
    assert {text.split()[1] for text in texts} <= {total.split()[1]}


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("30.5ms", 30_500_000),
        ("30.5 ms", 30_500_000),
        ("1.2s", 1_200_000_000),
        ("850us", 850_000),
        ("850µs", 850_000),
        ("7ns", 7),
        ("0ms", None),
        ("30.5", None),
        ("-3ms", None),
        ("1e3ms", None),
        ("TIME", None),
        ("9999999999999s", None),
    ],
)
def test_times_as_users_write_them(text: str, ns: int | None) -> None:
    assert parse_duration(text) == ns


@given(st.integers(1, 10**15))
def test_a_time_in_nanoseconds_is_read_exactly(ns: int) -> None:
    assert parse_duration(f"{ns}ns") == (ns if ns < 10**12 else None)
