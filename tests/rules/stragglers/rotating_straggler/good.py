"""Ordinary noise: all ranks are last equally often, by little."""

from distprof.analyzers.stragglers.analysis import StragglersResult
from tests.rules.samples import Results, healthy, stragglers


def results() -> Results:
    return {**healthy(), StragglersResult: stragglers()}
