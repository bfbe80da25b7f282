"""How much of the hardware a step uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.sections.efficiency.result import CPU, EfficiencyResult
from distprof.sections.shows import table, why
from distprof.sections.table import TableView, counted, facts_table
from distprof.units import format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["efficiency_table"]


@table(place=350)
def efficiency_table(report: Report, *, show_all: bool) -> TableView | None:
    """FLOP, MFU and what bounds the step; None if the model is unknown."""
    found = report.efficiency
    if not found.model:
        return None
    facts = (
        ("model", _model_text(found)),
        ("step", _step_text(found)),
        (f"per {_processor(found)}", _device_text(found)),
        ("MFU", _mfu_text(found)),
        ("while computing", _computing_text(found)),
        ("roofline", _roofline_text(found)),
        ("memory", _memory_text(found)),
    )
    return facts_table(
        "Efficiency",
        facts,
        caption=f"what the model needs, compared with the peak of the {_processor(found)}s",
        notes=(*found.unavailable, *(found.assumptions if show_all else ())),
    )


def _processor(found: EfficiencyResult) -> str:
    """CPU or GPU: what the ranks compute on."""
    return "CPU" if found.device == CPU else "GPU"


def _model_text(found: EfficiencyResult) -> str:
    text = f"{found.model} ({found.model_source})"
    if found.flop_per_token is not None:
        text += f", {_flop(found.flop_per_token)} per token"
    return text


def _step_text(found: EfficiencyResult) -> str:
    if found.flop_per_step is None or found.tokens_per_step is None or found.num_devices is None:
        return ""
    return (
        f"{found.tokens_per_step:,} tokens, {_flop(found.flop_per_step)} in"
        f" {format_duration(found.step_ns)} on {counted(found.num_devices or 0, _processor(found))}"
    )


def _device_text(found: EfficiencyResult) -> str:
    if found.flops_per_device is None or found.tokens_per_s_per_device is None:
        return ""
    return f"{found.tokens_per_s_per_device:,.0f} tokens/s, {_flop(found.flops_per_device)}/s"


def _mfu_text(found: EfficiencyResult) -> str:
    if found.mfu_ratio is None or found.peak_flops is None:
        return ""
    text = (
        f"{format_ratio(found.mfu_ratio)} of {_flop(found.peak_flops)}/s"
        f" ({found.device}, {found.precision}, dense)"
    )
    if found.recomputation not in ("", "none"):
        text += f"; HFU {format_ratio(found.hfu_ratio)} with {found.recomputation} recomputation"
    return text


def _computing_text(found: EfficiencyResult) -> str:
    if found.computing_ratio is None:
        return ""
    return f"{format_ratio(found.computing_ratio)} of the peak, from the traced steps"


def _roofline_text(found: EfficiencyResult) -> str:
    if found.flop_per_byte is None or found.ridge_flop_per_byte is None:
        return ""
    return (
        f"{found.regime}: {found.flop_per_byte:,.0f} FLOP per byte sent, ridge"
        f" {found.ridge_flop_per_byte:,.0f}; at most {format_ratio(found.bound_ratio)} of the peak"
        " if communication overlapped perfectly"
    )


def _memory_text(found: EfficiencyResult) -> str:
    known = [
        (rank.allocated_ratio, rank)
        for rank in found.memory
        if rank.allocated_ratio is not None and rank.allocated_bytes is not None
    ]
    if not known:
        return ""
    ratio, fullest = max(known, key=lambda item: item[0])
    return (
        f"at most {format_ratio(ratio)} of {format_bytes(fullest.capacity_bytes)}, on rank"
        f" {fullest.rank}"
    )


def _flop(count: float) -> str:
    """For example ``312 TFLOP``."""
    for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.3g} {prefix}FLOP"
    return f"{count:.3g} FLOP"


@why(place=50)
def efficiency_sentence(report: Report) -> str:
    """MFU, and the share of the peak while computing; empty if the MFU is unknown."""
    found = report.efficiency
    if found.mfu_ratio is None:
        return ""
    text = f"MFU is {format_ratio(found.mfu_ratio)}"
    if found.computing_ratio is None:
        return f"{text}."
    return f"{text}; while computing, {format_ratio(found.computing_ratio)} of the peak."
