"""The same buckets on a network that can do no better; small ones are slow and do not matter."""

from distprof.sections.collectives.result import CollectivesResult
from tests.rules.samples import Results, collective_class, collectives, healthy


def results() -> Results:
    large = collective_class(expected_busbw_bytes_per_s=38e9)
    small = collective_class(bytes=4_096, expected_busbw_bytes_per_s=90e9)
    return {**healthy(), CollectivesResult: collectives(large, small)}
