"""Exactly at the limit."""

from distprof.sections.efficiency.result import EfficiencyResult
from tests.rules.samples import Results, changed, healthy


def results() -> Results:
    return changed(healthy(), EfficiencyResult, mfu_ratio=0.40)
