"""Of the peak 31 % goes into the model."""

from distprof.sections.efficiency.result import EfficiencyResult
from tests.rules.samples import Results, changed, healthy


def results() -> Results:
    return changed(healthy(), EfficiencyResult, mfu_ratio=0.31, hfu_ratio=0.31)
