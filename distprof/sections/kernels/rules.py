"""Rules about kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.computation import FP32_KERNELS, ComputationResult, Saves
from distprof.sections.efficiency import EfficiencyResult
from distprof.sections.kernels import KernelsResult
from distprof.terms import ActivityKind, Confidence, Severity
from distprof.units import format_ratio

_FP32 = re.compile(FP32_KERNELS)
_COMPUTATION = ActivityKind.COMPUTATION.label
_LONGEST_NAME = 60


@rule(
    "HST107",
    Severity.INFO,
    single_precision_ratio=Limit(0.2, "share of kernel time that fp32 products may take"),
)
def tensor_cores_unused(
    efficiency: EfficiencyResult,
    kernels: KernelsResult,
    computation: ComputationResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Matrix products and convolutions run in fp32 and do not use the tensor cores of the GPU."""
    total = sum(c.total_ns for c in kernels.categories if c.kind == _COMPUTATION)
    slow = [k for k in kernels.kernels if k.kind == _COMPUTATION and _FP32.search(k.name)]
    share = sum(kernel.total_ns for kernel in slow) / total if total else 0.0
    if not slow or share < limits["single_precision_ratio"]:
        return
    if not efficiency.sheet_device:
        raise InsufficientEvidenceError(
            "products run in fp32, but the hardware sheet does not list this GPU and its tensor "
            "cores"
        )
    longest = max(slow, key=lambda kernel: kernel.total_ns)
    yield Draft(
        headline=f"Matrix products in fp32 take {format_ratio(share)} of computation",
        message=(
            f"They do not use the tensor cores of the {efficiency.sheet_device}; the longest is"
            f" {longest.name[:_LONGEST_NAME]}."
        ),
        cost_ns_per_step=computation.saved_ns_per_step(Saves.TENSOR_CORES) or None,
        confidence=Confidence.MODELLED,
        evidence=("kernels.kernels", "efficiency.device", "computation.savings"),
        without=Saves.TENSOR_CORES,
    )
