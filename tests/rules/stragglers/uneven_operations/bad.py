"""The last of four stages computes far longer than the others: its simulated step says so."""

from distprof.sections.whatif.result import Scenario, StageSlowdown, WhatIfResult
from tests.rules.samples import MS, Results, healthy

STAGES = tuple(
    StageSlowdown(
        stage=stage,
        ranks=(2 * stage, 2 * stage + 1),
        slowdown=1.2 if stage == 3 else 0.99,
        compute_ns=(12 if stage == 3 else 8) * MS,
    )
    for stage in range(4)
)


def whatif(*, slowdown: float = 1.2, stage_gain_ms: int = 3, gain_ms: int = 0) -> WhatIfResult:
    """A logged job whose ideal step takes 16 ms.

    Args:
        slowdown: Simulated over ideal step.
        stage_gain_ms: What equal stages recover.
        gain_ms: What even micro-batches recover.
    """
    step = round(16 * MS * slowdown)
    gains = {"stage-imbalance": stage_gain_ms * MS, "micro-batch-imbalance": gain_ms * MS}
    return WhatIfResult(
        source="operations",
        num_operations=1_000,
        num_steps=5,
        step_ns=step,
        replayed_ns=step,
        model_error_ratio=0.0,
        ideal_ns=16 * MS,
        slowdown=slowdown,
        without=tuple(
            Scenario(what=what, title=what, step_ns=step - gain, recoverable_ns=gain)
            for what, gain in gains.items()
        ),
        m_w=0.03,
        m_s=1.1,
        stages=STAGES,
    )


def results() -> Results:
    return {**healthy(), WhatIfResult: whatif()}
