"""Rules about efficiency."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.efficiency import CPU, EfficiencyResult
from distprof.sections.job import JobResult
from distprof.sections.time import WaterfallResult
from distprof.terms import Severity
from distprof.units import format_ratio

_PARTS = {
    "exposed communication": (
        "exposed_transfer_ns",
        "exposed_wait_ns",
        "exposed_comm_unsplit_ns",
        "exposed_p2p_wait_ns",
    ),
    "copies": ("exposed_copy_ns",),
    "waiting for the CPU": ("idle_host_ns", "idle_sync_ns", "idle_pause_ns"),
    "waiting for input": ("idle_input_ns",),
    "idle time with other causes": ("idle_comm_wait_ns", "idle_unknown_ns"),
}
_WORTH_NAMING_RATIO = 0.05


@rule(
    "SCA101",
    Severity.INFO,
    costs_time=False,
    mfu_ratio=Limit(0.40, "lowest acceptable model FLOP utilisation"),
)
def low_mfu(
    efficiency: EfficiencyResult, waterfall: WaterfallResult, job: JobResult, limits: Limits
) -> Iterator[Draft]:
    """The GPUs spend a small share of their peak on the FLOP that the model needs."""
    mfu, peak = efficiency.mfu_ratio, efficiency.peak_flops
    if efficiency.device == CPU or (job.kind is None and not efficiency.model):
        return  # a CPU has no meaningful peak; bare traces of an unnamed model
    if mfu is None or peak is None:
        why = "; ".join(efficiency.unavailable) or "the amount of computation is unknown"
        raise InsufficientEvidenceError(why)
    if mfu >= limits["mfu_ratio"]:
        return
    yield Draft(
        headline=f"MFU is {format_ratio(mfu)}: the model uses little of the GPUs' peak",
        message=(
            f"Each GPU spends {mfu * peak / 1e12:.3g} of its {peak / 1e12:,.0f} TFLOP/s on the"
            f" model.{_where(efficiency, waterfall)}"
        ),
        evidence=("efficiency.mfu_ratio", "waterfall.all"),
    )


def _where(efficiency: EfficiencyResult, waterfall: WaterfallResult) -> str:
    """Where the rest of the time goes, according to the traces; empty without traces."""
    total = waterfall.all
    if total is None or not total.span_ns:
        return ""
    text = f" Computation fills {format_ratio(total.computation_ns / total.span_ns)} of each step"
    if efficiency.computing_ratio is not None:
        text += f", at {format_ratio(efficiency.computing_ratio)} of the peak"
    shares = {
        name: sum(getattr(total, field) for field in fields) / total.span_ns
        for name, fields in _PARTS.items()
    }
    name = max(shares, key=lambda part: shares[part])
    if shares[name] < _WORTH_NAMING_RATIO:
        return f"{text}."
    return f"{text}; {name} takes {format_ratio(shares[name])}."
