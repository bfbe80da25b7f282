"""Gradient buckets at a quarter of what the fabric profile reaches; the rest is healthy."""

from distprof.sections.collectives.result import CollectivesResult
from tests.rules.samples import Results, collective_class, collectives, healthy


def results() -> Results:
    slow = collective_class(expected_busbw_bytes_per_s=122.4e9)
    return {**healthy(), CollectivesResult: collectives(slow)}
