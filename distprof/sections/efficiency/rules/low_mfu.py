"""# low-mfu

## What it detects
The devices spend a small share of their peak on what the model needs.

## Why it costs time
Model FLOP utilisation is the one figure that holds everything together: time that devices do not
compute, slow kernels, and work beyond what the model asks for. Dense training on many GPUs reaches
40 to 55 %.

## Evidence needed
The model (run.json of a reference run, or `[model]` in `distprof.toml`), tokens and time of a step,
and a device on the hardware sheet. With traces it says where the rest goes.

## How the cost is computed
There is none of its own: whatever lowers the utilisation has a cost in its own finding, and the
distance to a target is no time that somebody could get back.

## How to fix
Look where the rest goes. Where devices wait, begin with the dearest of the other findings. Where
kernels are slow while they compute: larger matrices (micro-batch, sequence, less tensor
parallelism), low precision, fused attention, compilation.

## When it is wrong
A small model, or a mixture of many small experts, cannot fill a large device. FLOP are counted from
the shape as dense transformers have it, attention as causal: with other layers the figure is as
good as the shape. A peak is that of the data sheet; clocks under load are lower.

## Sources
Formula sheet, "Computation and communication" (MFU). A. Chowdhery et al., "PaLM", appendix B (the
definition).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.efficiency.measure import CPU
from distprof.sections.efficiency.result import EfficiencyResult
from distprof.sections.job.result import JobResult
from distprof.sections.time.result import WaterfallResult
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
    "a late host": ("idle_host_ns", "idle_sync_ns"),
    "waiting for input": ("idle_input_ns",),
    "idle of other causes": ("idle_comm_wait_ns", "idle_unknown_ns"),
}
_WORTH_NAMING_RATIO = 0.05


@rule(
    code="SCA101",
    severity=Severity.INFO,
    since="0.1.0",
    needs=(EfficiencyResult, WaterfallResult, JobResult),
    limits={"mfu_ratio": Limit(0.40, "model FLOP utilisation from which on it is good")},
    costs_time=False,
)
def check(
    efficiency: EfficiencyResult, waterfall: WaterfallResult, job: JobResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    mfu, peak = efficiency.mfu_ratio, efficiency.peak_flops
    if efficiency.device == CPU or (job.kind is None and not efficiency.model):
        return  # no peak to speak of; bare traces of a model that nobody named
    if mfu is None or peak is None:
        why = "; ".join(efficiency.unavailable) or "nothing tells how much the ranks compute"
        raise InsufficientEvidenceError(why)
    if mfu >= limits["mfu_ratio"]:
        return
    yield Draft(
        message=(
            f"MFU is {format_ratio(mfu)}: of {peak / 1e12:,.0f} TFLOP/s each device gives the model"
            f" {mfu * peak / 1e12:.3g}.{_where(efficiency, waterfall)}"
        ),
        fix=(
            "Begin with the dearest of the other findings; where kernels are slow, use larger"
            " matrices, low precision, fused attention, compilation."
        ),
        evidence=("efficiency.mfu_ratio", "waterfall.all"),
    )


def _where(efficiency: EfficiencyResult, waterfall: WaterfallResult) -> str:
    """Where the rest goes, by the traced steps; empty without traces."""
    total = waterfall.all
    if total is None or not total.span_ns:
        return ""
    text = f" Computing fills {format_ratio(total.computation_ns / total.span_ns)} of each step"
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
