"""Mixtures of experts: load by layer, the ranks that share experts, and what they exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from distprof.sections.moe.result import MoeLayer, MoePair, MoePlacement, MoeResult
from distprof.sections.parts import is_of_experts_alone
from distprof.sections.table import Cell, TableColumn, TableView, counted, folded_ranks
from distprof.units import fold_ranks, format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = [
    "exchanges_table",
    "expert_ranks_table",
    "experts_verdict",
    "moe_table",
    "pairs_table",
    "placement_table",
]

MAX_LAYERS_SHOWN = 8

MAX_MATRIX = 8

MAX_MATRIX_OF_ALL = 16

TYPICAL_RANKS = 8
"""Of counts without ranks, the number of ranks nearest to this one is shown first."""


def moe_table(report: Report, *, show_all: bool) -> TableView | None:
    """Load of experts by layer, the most uneven first."""
    moe = report.moe
    if not moe.layers:
        return None
    ordered = sorted(moe.layers, key=lambda layer: -layer.max_over_mean)
    shown = ordered if show_all else ordered[:MAX_LAYERS_SHOWN]
    columns = _layer_columns(moe)
    when = "" if any(layer.part for layer in ordered) else "mean per step; "
    return TableView(
        title="Experts",
        caption=f"{when}load: of the busiest expert over the mean",
        columns=tuple(column for column, _ in columns),
        rows=tuple(tuple(cell(layer) for _, cell in columns) for layer in shown),
        notes=(*_left_out(len(ordered) - len(shown), "layer"), *moe.unavailable),
    )


_Column = tuple[TableColumn, Callable[[MoeLayer], Cell]]


def _layer_columns(moe: MoeResult) -> list[_Column]:
    """The columns that have something to say, with how each gets its cell."""
    drift = {row.layer: row.distance for row in moe.drift}
    columns: list[_Column] = []
    if any(layer.part for layer in moe.layers):
        columns.append((TableColumn(title="data", left=True), lambda layer: layer.part))
    columns += [
        (TableColumn(title="layer", left=True, stretch=True), lambda layer: layer.layer),
        (TableColumn(title="experts"), lambda layer: f"{layer.num_experts:,}"),
        (TableColumn(title="load"), lambda layer: _times(layer.max_over_mean)),
        (TableColumn(title="busiest"), lambda layer: str(layer.busiest_expert)),
        (
            TableColumn(title="least", wide_only=True),
            lambda layer: _times(layer.min_over_mean),
        ),
        (TableColumn(title="varies by"), lambda layer: format_ratio(layer.cv)),
        (TableColumn(title="entropy"), lambda layer: format_ratio(layer.entropy)),
        (TableColumn(title="dead"), lambda layer: format_ratio(layer.dead_ratio)),
    ]
    if any(layer.dropped_ratio for layer in moe.layers) or not any(la.part for la in moe.layers):
        columns.append(
            (TableColumn(title="dropped"), lambda layer: format_ratio(layer.dropped_ratio))
        )
    if drift:
        columns.append(
            (
                TableColumn(title="drift", wide_only=True),
                lambda layer: format_ratio(drift.get(layer.layer)),
            )
        )
    if any(layer.lost_ns_per_step is not None for layer in moe.layers):
        columns.append(
            (TableColumn(title="lost"), lambda layer: format_duration(layer.lost_ns_per_step))
        )
    return columns


def placement_table(report: Report, *, show_all: bool) -> TableView | None:
    """Ranks that share experts against each other, as they are and with experts placed anew."""
    moe = report.moe
    rows = moe.placement if show_all else _of_typical_size(moe.placement)
    ordered = sorted(rows, key=lambda row: (-(row.lost_ns_per_step or 0), -row.max_over_mean))
    if not ordered:
        return None
    shown = ordered if show_all else ordered[:MAX_LAYERS_SHOWN]
    has_time = any(row.expert_ns_per_step is not None for row in ordered)
    parts = any(row.part for row in ordered)
    columns = [
        *([TableColumn(title="data", left=True)] if parts else []),
        TableColumn(title="layer", left=True, stretch=True),
        TableColumn(title="ranks"),
        TableColumn(title="load"),
        TableColumn(title="worst", wide_only=True),
        TableColumn(title="of experts", wide_only=True),
        TableColumn(title="placed anew"),
    ]
    if has_time:
        columns += [
            TableColumn(title="expert time"),
            TableColumn(title="lost"),
            TableColumn(title="anew", wide_only=True),
        ]
    origins = " and ".join(dict.fromkeys(row.origin for row in ordered))
    return TableView(
        title="Ranks that share experts",
        caption=f"load: of the busiest rank over the mean, by {origins}",
        columns=tuple(columns),
        rows=tuple(_placement_cells(row, parts=parts, has_time=has_time) for row in shown),
        notes=(
            *_left_out(len(ordered) - len(shown), "layer"),
            *(() if moe.layers else moe.unavailable),
        ),
    )


def expert_ranks_table(report: Report, *, show_all: bool) -> TableView | None:
    """Tokens, expert time and traffic of each rank."""
    ranks = report.moe.ranks
    if not ranks:
        return None
    values: list[tuple[float | None, ...]] = [
        (
            r.tokens_per_step,
            r.load_ratio,
            r.expert_ns_per_step,
            r.combine_wait_ns_per_step,
            r.sent_bytes_per_step,
            r.received_bytes_per_step,
        )
        for r in ranks
    ]
    return TableView(
        title="Experts by rank",
        caption="mean per step; waits: for tokens to come back",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="tokens"),
            TableColumn(title="load"),
            TableColumn(title="expert time"),
            TableColumn(title="waits"),
            TableColumn(title="sent"),
            TableColumn(title="received"),
        ),
        rows=folded_ranks([r.rank for r in ranks], values, _rank_cells, show_all=show_all),
    )


def exchanges_table(report: Report, *, show_all: bool) -> TableView | None:
    """All-to-alls by group of ranks."""
    rows = report.moe.exchanges
    if not rows:
        return None
    shown = rows if show_all else rows[:MAX_LAYERS_SHOWN]
    return TableView(
        title="Exchanges of experts",
        caption="per step; sent, received: the busiest rank over the mean, dispatch",
        columns=(
            TableColumn(title="ranks", left=True, stretch=True),
            TableColumn(title="all-to-alls"),
            TableColumn(title="moved"),
            TableColumn(title="sent"),
            TableColumn(title="most by", wide_only=True),
            TableColumn(title="received"),
            TableColumn(title="most by"),
            TableColumn(title="transfer"),
        ),
        rows=tuple(
            (
                fold_ranks(row.ranks),
                f"{row.num_per_step:g}",
                _amount(row.amount_per_step, row.unit) if row.sent_max_over_mean else "–",
                _times(row.sent_max_over_mean),
                _maybe(row.busiest_sender),
                _times(row.received_max_over_mean),
                _maybe(row.busiest_receiver),
                format_duration(row.transfer_ns_per_step),
            )
            for row in shown
        ),
        notes=_left_out(len(rows) - len(shown), "group"),
    )


def pairs_table(report: Report, *, show_all: bool) -> TableView | None:
    """Who sends whom how much to its experts, as a matrix, for few ranks."""
    pairs = [pair for pair in report.moe.pairs if pair.dispatched_per_step]
    ranks = sorted({pair.sender for pair in pairs} | {pair.receiver for pair in pairs})
    if not 2 < len(ranks) <= (MAX_MATRIX_OF_ALL if show_all else MAX_MATRIX):
        return None
    amount = {(pair.sender, pair.receiver): pair.dispatched_per_step for pair in pairs}
    mean = _mean_amount(pairs)
    if not mean:
        return None
    return TableView(
        title="Dispatch by pair of ranks",
        caption="100: the mean of what different ranks send each other in a step; ·: itself",
        columns=(
            TableColumn(title="from, to", left=True),
            *(TableColumn(title=str(rank)) for rank in ranks),
        ),
        rows=tuple(
            (
                str(sender),
                *(_pair_cell(amount, sender, receiver, mean) for receiver in ranks),
            )
            for sender in ranks
        ),
    )


def _pair_cell(amount: dict[tuple[int, int], int], sender: int, receiver: int, mean: float) -> str:
    share = f"{100 * amount.get((sender, receiver), 0) / mean:,.0f}"
    return f"{share} ·" if sender == receiver else share


def _mean_amount(pairs: Sequence[MoePair]) -> float:
    apart = [pair.dispatched_per_step for pair in pairs if pair.sender != pair.receiver]
    return sum(apart) / len(apart) if apart else 0.0


def _of_typical_size(rows: Sequence[MoePlacement]) -> list[MoePlacement]:
    """Rows of one number of ranks for each part and layer, where several were tried."""
    best: dict[tuple[str, str], MoePlacement] = {}
    for row in rows:
        known = best.setdefault((row.part, row.layer), row)
        if abs(row.num_ranks - TYPICAL_RANKS) < abs(known.num_ranks - TYPICAL_RANKS):
            best[row.part, row.layer] = row
    return list(best.values())


def _placement_cells(row: MoePlacement, *, parts: bool, has_time: bool) -> tuple[Cell, ...]:
    cells = [
        *([row.part] if parts else []),
        row.layer,
        f"{row.num_ranks:,}",
        _times(row.max_over_mean),
        _times(row.worst_max_over_mean),
        _times(row.expert_max_over_mean),
        _placed_anew(row),
    ]
    if has_time:
        cells += [
            format_duration(row.expert_ns_per_step),
            format_duration(row.lost_ns_per_step),
            format_duration(row.replaced_ns_per_step),
        ]
    return tuple(cells)


def _placed_anew(row: MoePlacement) -> str:
    anew = row.replaced_max_over_mean
    return "no better" if anew is not None and anew >= row.max_over_mean else _times(anew)


def _rank_cells(values: Sequence[float | None]) -> tuple[Cell, ...]:
    tokens, load, expert, wait, sent, received = values
    return (
        "–" if tokens is None else f"{tokens:,.0f}",
        _times(load),
        format_duration(expert),
        format_duration(wait),
        format_bytes(sent),
        format_bytes(received),
    )


def _amount(amount: int, unit: str) -> str:
    return format_bytes(amount) if unit == "bytes" else f"{amount:,} {unit}"


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f} ×"


def _maybe(rank: int | None) -> str:
    return "–" if rank is None else str(rank)


def _left_out(number: int, noun: str) -> tuple[str, ...]:
    return (f"and {counted(number, f'more {noun}')}",) if number else ()


# The first lines of a report on counts of tokens per expert, in which nothing was timed ----------

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
