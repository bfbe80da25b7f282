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
_COMPUTATION = ActivityKind.COMPUTATION.name.lower()
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
    """Matrix products and convolutions run in fp32 and do not use the tensor cores of the GPU.

    ## Why it costs time
    Tensor cores multiply bf16 and fp16 (and TF32, from Ampere on) several times faster than the
    other cores multiply fp32: 8 times on a V100, 16 times with bf16 on an A100.

    ## Evidence needed
    Traces of NVIDIA GPUs that are on the hardware sheet. The names of fp32 kernels of cuBLAS,
    CUTLASS and cuDNN identify them (`sgemm`, `scudnn`).

    ## How the cost is computed
    Seven eighths of the time of these products, mean per step and rank: tensor cores are eight
    times as fast (TF32 against fp32 from Ampere on, fp16 on a V100). bf16 gains more, because
    everything else moves half the bytes, and small products gain less. The step is simulated
    without this time.

    ## How to fix
    Use `torch.autocast("cuda", torch.bfloat16)`; on V100 use `torch.float16` with a gradient
    scaler. From Ampere on, `torch.set_float32_matmul_precision("high")` enables TF32. Choose sizes
    in multiples of 8 (bf16, fp16) or 4 (TF32).

    ## When it is wrong
    Some scientific models, losses and normalisations need fp32. Small products are bound by memory
    and gain little.

    ## Sources
    Kineto's TensorBoard plugin and HTA (tensor core usage). PyTorch documentation, "Numerical
    accuracy" (TF32).
    """
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
