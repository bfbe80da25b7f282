"""Tensors fill 89 % of every device."""

from distprof.sections.efficiency.result import EfficiencyResult
from tests.rules.samples import RANKS, Results, changed, device, healthy


def results() -> Results:
    memory = tuple(device(rank, 71.2) for rank in RANKS)
    return changed(healthy(), EfficiencyResult, memory=memory)
