"""Ordinary noise: all ranks are last equally often, by little."""

from distprof.sections.stragglers.result import StragglersResult
from tests.rules.samples import Results, healthy, stragglers


def results() -> Results:
    return {**healthy(), StragglersResult: stragglers()}
