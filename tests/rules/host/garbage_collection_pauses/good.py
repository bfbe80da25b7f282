"""Rank 1 collects garbage for 0.1 ms of each step of 20 ms: half a percent."""

from distprof.sections.idle.result import PausesResult
from tests.rules.samples import US, Results, healthy, pauses


def results() -> Results:
    return {**healthy(), PausesResult: pauses({1: 100 * US})}
