"""The first lines of a report on counts of tokens per expert, in which nothing was timed."""

from __future__ import annotations

from distprof.analyzers.moe.result import MoeLayer, MoePlacement
from distprof.report.model import Report
from distprof.report.parts import is_of_experts_alone
from distprof.units import format_ratio

__all__ = ["experts_verdict"]

MIN_LOAD = 1.2
"""Load of the busiest rank over the mean from which ranks count as uneven."""


def experts_verdict(report: Report) -> tuple[str, tuple[str, ...]] | None:
    """The verdict and the numbers behind it; None for a report on anything else."""
    moe = report.moe
    if not is_of_experts_alone(report):
        return None
    busiest = max(moe.layers, key=lambda layer: layer.max_over_mean)
    why = (_busiest(busiest), _dead(moe.layers))
    placed = max(moe.placement, key=_gain, default=None)
    line = _experts_line(busiest) if placed is None else _ranks_line(placed)
    return line, tuple(sentence for sentence in why if sentence)


def _gain(placed: MoePlacement) -> float:
    """What another placement takes off the busiest rank: an expert too busy for any stays."""
    return placed.max_over_mean - (placed.replaced_max_over_mean or 1.0)


def _ranks_line(placed: MoePlacement) -> str:
    where = f"layer {placed.layer}{_of(placed.part)}"
    if placed.max_over_mean < MIN_LOAD:
        return (
            f"Ranks that share experts are even: the busiest of {placed.num_ranks} gets "
            f"{placed.max_over_mean:.2f} times the mean at most, in {where}."
        )
    anew = placed.replaced_max_over_mean
    line = (
        f"In {where} the busiest of {placed.num_ranks} ranks gets {placed.max_over_mean:.2f} times "
        "the mean"
    )
    if anew is None:
        return f"{line}."
    return f"{line}; with experts placed by their loads it would get {anew:.2f} times the mean."


def _experts_line(busiest: MoeLayer) -> str:
    return (
        f"The busiest expert gets {busiest.max_over_mean:.2f} times the mean, in layer "
        f"{busiest.layer}{_of(busiest.part)}."
    )


def _busiest(busiest: MoeLayer) -> str:
    return (
        f"The busiest expert of all is {busiest.busiest_expert} in layer {busiest.layer}"
        f"{_of(busiest.part)}: {busiest.max_over_mean:.2f} times the mean, "
        f"{format_ratio(busiest.busiest_share_ratio)} of the tokens of {busiest.num_experts} "
        "experts."
    )


def _dead(layers: tuple[MoeLayer, ...]) -> str:
    dead = [layer for layer in layers if layer.dead_ratio > 0]
    if not dead:
        return ""
    return f"{len(dead)} of {len(layers)} layers have experts that hardly any token goes to."


def _of(part: str) -> str:
    return f" ({part})" if part else ""
