from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.ingest.kineto.events import (
    INVALID_NS,
    micros_to_ns,
    needs_text,
    text_to_ns,
    texts_to_ns,
)

THOUSANDTHS = st.integers(0, 2**43 * 1000 - 1)


@given(st.lists(THOUSANDTHS, max_size=20))
def test_doubles_of_relative_times_give_exact_nanoseconds(times):
    micros = [float(f"{ns // 1000}.{ns % 1000:03}") for ns in times]

    assert micros_to_ns(np.array(micros, np.float64)).tolist() == times


def test_times_that_plain_rounding_gets_wrong_are_right():
    times = np.arange(4458676522690000, 4458676522700000)
    micros = np.array([float(f"{ns // 1000}.{ns % 1000:03}") for ns in times.tolist()])

    assert (np.rint(micros * 1000).astype(np.int64) != times).any()
    assert (micros_to_ns(micros) == times).all()


@given(st.lists(st.integers(0, 4 * 10**18 - 1), max_size=20), st.integers(1, 3))
def test_texts_give_exact_nanoseconds_however_many_digits_are_written(times, digits):
    texts = [f"{ns // 1000}.{ns % 1000:03}".encode() for ns in times]
    short = [text[: len(text) - 3 + digits] for text in texts]

    assert texts_to_ns(texts).tolist() == times
    assert texts_to_ns(short).tolist() == [int(Decimal(t.decode()) * 1000) for t in short]


@pytest.mark.parametrize(
    ("text", "ns"),
    [("1", 1000), ("-1.5", -1500), ("1.7e3", 1_700_000), ("0.0005", 0), ("0.0015", 2)],
)
def test_unusual_number_texts_are_read(text, ns):
    assert text_to_ns(text) == ns
    assert texts_to_ns([text.encode()]).tolist() == [ns]


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "1e40", "1 2"])
def test_texts_that_are_no_time_are_invalid(text):
    assert text_to_ns(text) == INVALID_NS


def test_doubles_that_are_no_time_are_invalid():
    absurd = np.array([1e300, -1e300, np.nan, np.inf, 1.0])

    assert micros_to_ns(absurd).tolist() == [INVALID_NS] * 4 + [1000]


def test_only_large_times_need_their_text():
    assert not needs_text(np.array([4458676522690.655]))
    assert needs_text(np.array([0.5, 1711964646123456.0]))
    assert not needs_text(np.empty(0))
