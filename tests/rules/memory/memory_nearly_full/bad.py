"""Tensors fill 95 % of every device."""

from distprof.sections.efficiency.result import EfficiencyResult
from tests.rules.samples import RANKS, Results, changed, device, healthy


def results() -> Results:
    memory = tuple(device(rank, 76.0) for rank in RANKS)
    return changed(healthy(), EfficiencyResult, memory=memory)
