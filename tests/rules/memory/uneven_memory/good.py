"""The first pipeline stage holds 70 GB and the last 40 GB: each as much as its peers."""

from distprof.sections.efficiency.result import EfficiencyResult
from tests.rules.samples import RANKS, Results, changed, device, healthy


def results() -> Results:
    memory = tuple(device(rank, 70.0 - 30.0 * (rank // 4), stage=rank // 4) for rank in RANKS)
    return changed(healthy(), EfficiencyResult, memory=memory, is_data_parallel_only=False)
