"""Two ranks retry in steady steps, which costs 0.6 ms of each."""

from distprof.sections.efficiency.result import EfficiencyResult
from tests.rules.samples import MS, RANKS, Results, changed, device, healthy


def results() -> Results:
    memory = tuple(
        device(rank, num_retries=7 if rank < 2 else 0, retry_ns_per_step=6 * MS // 10)
        for rank in RANKS
    )
    return changed(healthy(), EfficiencyResult, memory=memory)
