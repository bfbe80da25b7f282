"""Rank 1 collects garbage for 2 ms of each step of 20 ms, mean over all steps."""

from distprof.sections.idle.result import PausesResult
from tests.rules.samples import MS, Results, healthy, pauses


def results() -> Results:
    return {**healthy(), PausesResult: pauses({1: 2 * MS})}
