"""How much of the hardware a step uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.sections.computation.show import largest_loss, largest_saving
from distprof.sections.efficiency import CPU, EfficiencyResult
from distprof.sections.table import TableView, counted, facts_table
from distprof.units import format_bytes, format_duration, format_flop, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report


def efficiency_table(report: Report, *, show_all: bool) -> TableView | None:
    """FLOP, MFU and what bounds the step; None if the model is unknown."""
    result = report.efficiency
    if not result.model and result.flops_per_device is None:
        return None
    text = f"{result.model} ({result.model_source})" if result.model else ""
    if result.flop_per_token is not None:
        text += f", {format_flop(result.flop_per_token)} per token"
    facts = (
        ("model", text),
        ("step", _step_text(result)),
        (f"per {_processor(result)}", _device_text(result)),
        ("MFU", _mfu_text(result)),
        ("while computing", _computing_text(result)),
        ("roofline", _roofline_text(result)),
        ("memory", _memory_text(result)),
    )
    whose = "model needs" if result.model else "operators show"
    return facts_table(
        "Efficiency",
        facts,
        caption=f"FLOP that the {whose}, compared with the peak of the {_processor(result)}s",
        notes=(*result.unavailable, *(result.assumptions if show_all else ())),
    )


def _processor(result: EfficiencyResult) -> str:
    return "CPU" if result.device == CPU else "GPU"


def _step_text(result: EfficiencyResult) -> str:
    if result.flop_per_step is None or result.num_devices is None:
        return ""
    tokens = "" if result.tokens_per_step is None else f"{result.tokens_per_step:,} tokens, "
    return (
        f"{tokens}{format_flop(result.flop_per_step)} in"
        f" {format_duration(result.step_ns)} on"
        f" {counted(result.num_devices or 0, _processor(result))}"
    )


def _device_text(result: EfficiencyResult) -> str:
    if result.flops_per_device is None:
        return ""
    flops = f"{format_flop(result.flops_per_device)}/s"
    tokens = result.tokens_per_s_per_device
    return flops if tokens is None else f"{tokens:,.0f} tokens/s, {flops}"


def _mfu_text(result: EfficiencyResult) -> str:
    if result.mfu_ratio is None or result.peak_flops is None:
        return ""
    text = (
        f"{format_ratio(result.mfu_ratio)} of {format_flop(result.peak_flops)}/s"
        f" ({result.device}, {result.precision}, dense)"
    )
    if result.recomputation not in ("", "none"):
        text += f"; HFU {format_ratio(result.hfu_ratio)} with {result.recomputation} recomputation"
    return text


def _computing_text(result: EfficiencyResult) -> str:
    if result.computing_ratio is None:
        return ""
    return f"{format_ratio(result.computing_ratio)} of the peak, from the traced steps"


def _roofline_text(result: EfficiencyResult) -> str:
    if result.flop_per_byte is None or result.ridge_flop_per_byte is None:
        return ""
    return (
        f"{result.regime}: {result.flop_per_byte:,.0f} FLOP per byte sent, ridge"
        f" {result.ridge_flop_per_byte:,.0f}; at most {format_ratio(result.bound_ratio)} of the"
        " peak if communication overlapped perfectly"
    )


def _memory_text(result: EfficiencyResult) -> str:
    known = [
        (rank.allocated_ratio, rank)
        for rank in result.memory
        if rank.allocated_ratio is not None and rank.allocated_bytes is not None
    ]
    if not known:
        return ""
    ratio, fullest = max(known, key=lambda item: item[0])
    return (
        f"at most {format_ratio(ratio)} of {format_bytes(fullest.capacity_bytes)}, on rank"
        f" {fullest.rank}"
    )


def efficiency_sentence(report: Report) -> str:
    """MFU, what keeps it from 100 %, and what would save most of the computation.

    Empty if the MFU is unknown.
    """
    result = report.efficiency
    if result.mfu_ratio is None:
        return ""
    text = f"MFU is {format_ratio(result.mfu_ratio)}"
    if result.computing_ratio is not None:
        text += f"; while computing, {format_ratio(result.computing_ratio)} of the peak"
    return f"{text}.{largest_loss(report)}{largest_saving(report)}"
