"""All blocks are recomputed, and the activations are twenty times the free memory."""

from distprof.sections.efficiency.result import EfficiencyResult
from tests.rules.samples import Results, changed, efficiency, healthy


def results() -> Results:
    flop = efficiency().flop_per_step
    return changed(
        healthy(),
        EfficiencyResult,
        recomputation="full",
        computed_flop_per_step=1.3 * flop,
        hfu_ratio=1.3 * 0.45,
        recomputed_bytes=640_000_000_000,
    )
