"""Four micro-batches that fill more than half of each device."""

from distprof.sections.efficiency.result import EfficiencyResult
from tests.rules.samples import RANKS, Results, changed, device, healthy


def results() -> Results:
    memory = tuple(device(rank, 48.0) for rank in RANKS)
    return changed(healthy(), EfficiencyResult, memory=memory, num_micro_batches=4)
