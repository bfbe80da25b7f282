"""Eight GPUs, and gloo between them."""

from distprof.sections.efficiency.result import EfficiencyResult
from tests.rules.samples import Results, changed, healthy


def results() -> Results:
    return changed(healthy(), EfficiencyResult, backend="gloo")
