"""α and β of buckets, from buckets whose times are written out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.costs.fabric import fit_buckets

MB = 1_000_000


def test_latency_and_bandwidth_are_found_again():
    """50 µs and 10 GB/s: 1 MB takes 150 µs, 25 MB 2,550 µs."""
    found = fit_buckets([MB, 25 * MB, 25 * MB, 5 * MB], [150_000, 2_550_000, 2_550_000, 550_000])
    assert found.latency_ns == pytest.approx(50_000)
    assert found.ns_per_byte == pytest.approx(0.1)


def test_one_disturbed_bucket_of_many_changes_nothing():
    sizes = [MB] * 5 + [25 * MB] * 5
    times = [150_000] * 4 + [900_000] + [2_550_000] * 4 + [9_000_000]
    assert fit_buckets(sizes, times).latency_ns == pytest.approx(50_000)


def test_buckets_of_one_size_tell_nothing():
    assert fit_buckets([25 * MB, 26 * MB], [100, 120]) is None
    assert fit_buckets([], []) is None


def test_times_that_do_not_grow_are_latency_alone():
    found = fit_buckets([MB, 10 * MB], [300, 200])
    assert (found.latency_ns, found.ns_per_byte) == (250, 0)


@given(st.floats(0, 1e6), st.floats(1e-3, 1), st.lists(st.integers(1, 50), min_size=2, unique=True))
def test_any_line_is_found_again(latency, slope, sizes):
    if max(sizes) < 2 * min(sizes):
        return
    bytes_ = [size * MB for size in sizes]
    times = [latency + slope * size for size in bytes_]
    found = fit_buckets(bytes_, times)
    assert found.latency_ns == pytest.approx(latency, rel=1e-4, abs=slope * MB * 1e-4)
    assert found.ns_per_byte == pytest.approx(slope, rel=1e-4)
