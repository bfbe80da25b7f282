"""Rank 0 holds 70 GB, all others 48 GB."""

from distprof.sections.efficiency.result import EfficiencyResult
from tests.rules.samples import RANKS, Results, changed, device, healthy


def results() -> Results:
    memory = tuple(device(rank, 70.0 if rank == 0 else 48.0) for rank in RANKS)
    return changed(healthy(), EfficiencyResult, memory=memory)
