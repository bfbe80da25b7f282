"""Computation against communication: ratios, ridges, bounds, MFU.

Source of every formula here: formula sheet, "Computation and communication". FLOP, bytes, seconds.
"""

from __future__ import annotations

from typing import Literal

Regime = Literal[
    "severely communication-bound", "communication-bound", "near the ridge", "compute-bound"
]


def data_parallel_intensity(
    num_parameters: float, num_tokens: float, *, bytes_per_parameter: float = 2
) -> float:
    """FLOP per byte of DDP: 6N · tokens / (2N · bytes).

    Args:
        num_parameters: N.
        num_tokens: Tokens of one rank per step.
        bytes_per_parameter: Bytes of a gradient.
    """
    return 6 * num_parameters * num_tokens / (2 * num_parameters * bytes_per_parameter)


def ridge(peak_flops: float, bandwidth: float) -> float:
    """FLOP per byte at which computation and communication take the same time."""
    return peak_flops / bandwidth


def bound_with_overlap(intensity: float, ridge_intensity: float) -> float:
    """The highest efficiency with perfect overlap: min(1, CCR / CCR*)."""
    return min(1.0, intensity / ridge_intensity)


def bound_without_overlap(intensity: float, ridge_intensity: float) -> float:
    """The highest efficiency without overlap: 1 / (1 + CCR* / CCR)."""
    return intensity / (intensity + ridge_intensity)


def regime(intensity: float, ridge_intensity: float) -> Regime:
    """The regime of a step by CCR / CCR*, with boundaries at 0.2, 0.8 and 1.2."""
    position = intensity / ridge_intensity
    if position < 0.2:
        return "severely communication-bound"
    if position < 0.8:
        return "communication-bound"
    return "near the ridge" if position <= 1.2 else "compute-bound"


def critical_batch(batch: float, intensity: float, ridge_intensity: float) -> float:
    """The batch at which a step reaches the ridge: batch · CCR* / CCR."""
    return batch * ridge_intensity / intensity


def flop_utilisation(
    flop_per_step: float, step_s: float, num_gpus: int, peak_flops: float
) -> float:
    """MFU from the model's FLOP, or HFU from all computed FLOP; the peak is dense.

    Raises:
        ValueError: If time, number of GPUs or peak is not positive.
    """
    available = step_s * num_gpus * peak_flops
    if available <= 0:
        raise ValueError(f"{num_gpus} GPUs of {peak_flops:g} FLOP/s for {step_s} s")
    return flop_per_step / available
