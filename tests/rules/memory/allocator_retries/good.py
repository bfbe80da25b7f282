"""Retries while the allocator saw its sizes for the first time: none in steady steps."""

from distprof.sections.efficiency.result import EfficiencyResult
from tests.rules.samples import RANKS, Results, changed, device, healthy


def results() -> Results:
    memory = tuple(device(rank, num_retries=0) for rank in RANKS)
    return changed(healthy(), EfficiencyResult, memory=memory)
