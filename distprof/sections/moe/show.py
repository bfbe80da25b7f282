"""Mixtures of experts: load by layer, placement on ranks, and exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distprof.sections.base import VerdictText
from distprof.sections.moe import MoeExchange, MoeLayer, MoePlacement
from distprof.sections.parts import is_recorded
from distprof.sections.table import Column, TableView, counted, first_rows, ranks_table, rows_table
from distprof.units import format_bytes, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

MAX_LAYERS_SHOWN = 8
MAX_MATRIX = 8
MAX_MATRIX_OF_ALL = 16


def moe_table(report: Report, *, show_all: bool) -> TableView | None:
    """Expert load by layer, most uneven first."""
    moe = report.moe
    ordered = sorted(moe.layers, key=lambda layer: -layer.max_over_mean)
    shown, more = first_rows(
        ordered, MAX_LAYERS_SHOWN, show_all=show_all, noun="layer", note="and {}"
    )
    drift = {row.layer: row.distance for row in moe.drift}
    parts = any(layer.part for layer in ordered)
    dropped = any(layer.dropped_ratio for layer in ordered) or not parts
    timed = any(layer.lost_ns_per_step is not None for layer in ordered)
    return rows_table(
        "Experts",
        (
            Column("data", "part", left=True, when=parts),
            Column("layer", "layer", left=True, stretch=True),
            Column("experts", "num_experts"),
            Column("load", "max_over_mean"),
            Column("busiest", "busiest_expert"),
            Column("least", "min_over_mean", wide_only=True),
            Column("variation", "cv"),
            Column("entropy", "entropy"),
            Column("dead", "dead_ratio"),
            Column("dropped", "dropped_ratio", when=dropped),
            Column(
                "drift",
                lambda layer: drift.get(layer.layer),
                form="ratio",
                wide_only=True,
                when=bool(drift),
            ),
            Column("lost", "lost_ns_per_step", when=timed),
        ),
        shown,
        caption=f"{'' if parts else 'mean per step; '}load: busiest expert over the mean",
        notes=(*more, *moe.unavailable),
    )


def placement_table(report: Report, *, show_all: bool) -> TableView | None:
    """Load of ranks that share experts, now and with another placement of experts."""
    moe = report.moe
    rows = moe.placement if show_all else moe.typical_placement
    ordered = sorted(rows, key=lambda row: (-(row.lost_ns_per_step or 0), -row.max_over_mean))
    shown, more = first_rows(
        ordered, MAX_LAYERS_SHOWN, show_all=show_all, noun="layer", note="and {}"
    )
    timed = any(row.expert_ns_per_step is not None for row in ordered)
    origins = " and ".join(dict.fromkeys(row.origin for row in ordered))
    return rows_table(
        "Ranks that share experts",
        (
            Column("data", "part", left=True, when=any(row.part for row in ordered)),
            Column("layer", "layer", left=True, stretch=True),
            Column("ranks", "num_ranks"),
            Column("load", "max_over_mean"),
            Column("worst", "worst_max_over_mean", wide_only=True),
            Column("expert load", "expert_max_over_mean", wide_only=True),
            Column("replaced", _load_if_replaced, form="times"),
            Column("expert time", "expert_ns_per_step", when=timed),
            Column("lost", "lost_ns_per_step", when=timed),
            Column("if replaced", "replaced_ns_per_step", wide_only=True, when=timed),
        ),
        shown,
        caption=f"load: busiest rank over the mean, by {origins}",
        notes=(*more, *(() if moe.layers else moe.unavailable)),
    )


def expert_ranks_table(report: Report, *, show_all: bool) -> TableView | None:
    """Tokens, expert time and traffic of each rank."""
    return ranks_table(
        "Experts by rank",
        (
            Column("tokens", "tokens_per_step"),
            Column("load", "load_ratio", form="times"),
            Column("expert time", "expert_ns_per_step"),
            Column("waits", "combine_wait_ns_per_step"),
            Column("sent", "sent_bytes_per_step"),
            Column("received", "received_bytes_per_step"),
        ),
        report.moe.ranks,
        show_all=show_all,
        caption="mean per step; waits: for returning tokens",
    )


def exchanges_table(report: Report, *, show_all: bool) -> TableView | None:
    """All-to-alls by group of ranks."""
    return rows_table(
        "Expert exchanges",
        (
            Column("ranks", "ranks", left=True, stretch=True),
            Column("all-to-alls", lambda row: f"{row.num_per_step:g}"),
            Column("moved", _moved_text),
            Column("sent", "sent_max_over_mean"),
            Column("most by", "busiest_sender", wide_only=True),
            Column("received", "received_max_over_mean"),
            Column("most by", "busiest_receiver"),
            Column("transfer", "transfer_ns_per_step"),
        ),
        first_rows(
            report.moe.exchanges, MAX_LAYERS_SHOWN, show_all=show_all, noun="group", note="and {}"
        ),
        caption="per step; sent, received: busiest rank over the mean in dispatch",
    )


def pairs_table(report: Report, *, show_all: bool) -> TableView | None:
    """Bytes that each rank sends to the experts of each other rank, as a matrix for few ranks."""
    pairs = [pair for pair in report.moe.pairs if pair.dispatched_per_step]
    ranks = sorted({pair.sender for pair in pairs} | {pair.receiver for pair in pairs})
    if not 2 < len(ranks) <= (MAX_MATRIX_OF_ALL if show_all else MAX_MATRIX):
        return None
    amount = {(pair.sender, pair.receiver): pair.dispatched_per_step for pair in pairs}
    amounts = [pair.dispatched_per_step for pair in pairs if pair.sender != pair.receiver]
    mean = sum(amounts) / len(amounts) if amounts else 0.0
    if not mean:
        return None
    return TableView(
        title="Dispatch by pair of ranks",
        caption="100: mean between two different ranks per step; ·: to itself",
        columns=(Column("from, to", left=True), *(Column(str(rank)) for rank in ranks)),
        rows=tuple(
            (str(sender), *(_pair_cell(amount, sender, receiver, mean) for receiver in ranks))
            for sender in ranks
        ),
    )


def _pair_cell(amount: dict[tuple[int, int], int], sender: int, receiver: int, mean: float) -> str:
    share = f"{100 * amount.get((sender, receiver), 0) / mean:,.0f}"
    return f"{share} ·" if sender == receiver else share


def _load_if_replaced(row: MoePlacement) -> float | str | None:
    replaced = row.replaced_max_over_mean
    return "no better" if replaced is not None and replaced >= row.max_over_mean else replaced


def _moved_text(row: MoeExchange) -> str:
    if not row.sent_max_over_mean:
        return "–"
    amount = row.amount_per_step
    return format_bytes(amount) if row.unit == "bytes" else f"{amount:,} {row.unit}"


# The first lines of a report on counts of tokens per expert, without times -----------------------

MIN_LOAD = 1.2  # Ratio of the busiest rank's load to the mean from which ranks count as uneven


def experts_verdict(report: Report) -> VerdictText:
    """The verdict and its reasons; None for other reports."""
    moe = report.moe
    if not _has_only_counts(report):
        return None
    busiest = max(moe.layers, key=lambda layer: layer.max_over_mean)
    why = (
        f"The busiest expert of all is {busiest.busiest_expert} in layer {busiest.layer}"
        f"{_of(busiest.part)}: {busiest.max_over_mean:.2f} times the mean, "
        f"{format_ratio(busiest.busiest_share_ratio)} of the tokens of {busiest.num_experts} "
        "experts.",
        _dead(moe.layers),
    )
    line = ranks_line(moe.placement) if moe.placement else _experts_line(busiest)
    return line, tuple(sentence for sentence in why if sentence)


def _has_only_counts(report: Report) -> bool:
    return bool(report.moe.layers) and not is_recorded(report)


def experts_origin(report: Report) -> str:
    """Numbers of experts, layers and parts of the data that were counted."""
    if not _has_only_counts(report):
        return ""
    layers = report.moe.layers
    parts = {layer.part for layer in layers}
    facts = [
        counted(max(layer.num_experts for layer in layers), "expert"),
        counted(len({layer.layer for layer in layers}), "layer"),
        f"{counted(len(parts), 'part')} of the data" if any(parts) else "",
        "no timings",
    ]
    return " · ".join(fact for fact in facts if fact)


def _gain(placed: MoePlacement) -> float:
    """Reduction of the busiest rank's load by another placement."""
    return placed.max_over_mean - (placed.replaced_max_over_mean or 1.0)


def ranks_line(placements: Sequence[MoePlacement]) -> str:
    """Sentence on the layer that another placement helps most, or on the most uneven layer."""
    placed = max(placements, key=_gain)
    if placed.max_over_mean < MIN_LOAD:
        placed = max(placements, key=lambda row: row.max_over_mean)
    where = f"layer {placed.layer}{_of(placed.part)}"
    if placed.max_over_mean < MIN_LOAD:
        return (
            f"Ranks that share experts are balanced: the busiest of {placed.num_ranks} gets at "
            f"most {placed.max_over_mean:.2f} times the mean, in {where}."
        )
    replaced = placed.replaced_max_over_mean
    line = (
        f"In {where} the busiest of {placed.num_ranks} ranks gets {placed.max_over_mean:.2f} times "
        "the mean"
    )
    if replaced is None:
        return f"{line}."
    return f"{line}. With experts placed by load it would get {replaced:.2f} times the mean."


def _experts_line(busiest: MoeLayer) -> str:
    return (
        f"The busiest expert gets {busiest.max_over_mean:.2f} times the mean, in layer "
        f"{busiest.layer}{_of(busiest.part)}."
    )


def _dead(layers: tuple[MoeLayer, ...]) -> str:
    dead = [layer for layer in layers if layer.dead_ratio > 0]
    if not dead:
        return ""
    return f"{len(dead)} of {len(layers)} layers have experts that get almost no tokens."


def _of(part: str) -> str:
    return f" ({part})" if part else ""
