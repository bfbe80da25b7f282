"""gloo between eight CPUs, which is what it is for."""

from distprof.sections.efficiency.result import EfficiencyResult
from tests.rules.samples import Results, changed, healthy


def results() -> Results:
    return changed(healthy(), EfficiencyResult, backend="gloo", device="cpu", sheet_device="")
