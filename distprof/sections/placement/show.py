"""Where groups of ranks lie, and how GPUs reach network cards, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from distprof.sections.placement.nodes import CardPath
from distprof.sections.placement.result import (
    PlacedAxis,
    PlacedMachine,
    PlacedNode,
    PlacementResult,
)
from distprof.sections.table import TableColumn, TableView, counted
from distprof.units import fold_ranks, format_bytes, format_duration

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["card_paths_table", "groups_on_nodes_table", "machine_verdict", "nodes_table"]

MAX_ROWS = 16

_T = TypeVar("_T")

_ORDERS = {
    "blocked": "ranks numbered node by node",
    "cyclic": "ranks dealt out to the nodes in turn",
    "irregular": "ranks numbered irregularly",
}

_ORIGINS = {
    "run.json": "the run directory",
    "host_name": "host names",
    "launcher": "the launcher's variables",
    "device_count": "numbers of devices",
}


def groups_on_nodes_table(report: Report, *, show_all: bool) -> TableView | None:
    """Each axis of the mesh and how many nodes and domains its groups span."""
    result = report.placement
    if not result.axes or (len(result.nodes) < 2 and not show_all):
        return None
    is_timed = any(axis.sent_bytes_per_step is not None for axis in result.axes)
    timed = (TableColumn(title="sent"), TableColumn(title="exposed")) if is_timed else ()
    order = f", {_ORDERS[result.order]}" if result.order else ""
    return TableView(
        title="Groups on nodes",
        caption=f"{counted(len(result.nodes), 'node')}{order}",
        columns=(
            TableColumn(title="axis", left=True),
            TableColumn(title="ranks"),
            TableColumn(title="groups"),
            TableColumn(title="nodes each"),
            TableColumn(title="domains each"),
            TableColumn(title="on a node", wide_only=True),
            TableColumn(title="links", left=True),
            *timed,
        ),
        rows=tuple(
            _axis_row(axis, is_timed=is_timed) for axis in _some(result.axes, show_all=show_all)
        ),
        notes=(*_notes(result, is_timed=is_timed), *result.unavailable),
    )


def _notes(result: PlacementResult, *, is_timed: bool) -> Iterator[str]:
    origin = _ORIGINS.get(result.origin, result.origin)
    domains = "" if result.domain_origin in ("", "nodes") else f"; domains: {result.domain_origin}"
    yield f"Nodes are known by {origin}{domains}."
    if is_timed:
        yield "Sent, and exposed transfer: mean per rank and step; axes may be exposed at once."


def _axis_row(axis: PlacedAxis, *, is_timed: bool) -> tuple[str, ...]:
    traffic = (
        format_bytes(axis.sent_bytes_per_step),
        format_duration(axis.exposed_transfer_ns_per_step),
    )
    return (
        axis.axis,
        f"{axis.size:,}",
        f"{axis.num_groups:,}",
        _range(axis.least_nodes, axis.num_nodes),
        _range(axis.least_domains, axis.num_domains),
        _range(axis.least_on_node, axis.most_on_node),
        axis.tier,
        *(traffic if is_timed else ()),
    )


def nodes_table(report: Report, *, show_all: bool) -> TableView | None:
    """Nodes, their ranks and domains; on demand only."""
    nodes = report.placement.nodes
    if not show_all or len(nodes) < 2:
        return None
    return TableView(
        title="Nodes",
        columns=(
            TableColumn(title="node", left=True),
            TableColumn(title="ranks", left=True),
            TableColumn(title="scale-up domain", left=True),
        ),
        rows=tuple(_node_row(node) for node in nodes),
    )


def _node_row(node: PlacedNode) -> tuple[str, ...]:
    return node.node, fold_ranks(node.ranks), ", ".join(node.domains)


def card_paths_table(report: Report, *, show_all: bool) -> TableView | None:
    """GPUs of machines that the user showed, and their nearest network cards."""
    cards = report.placement.cards
    if not cards:
        return None
    is_used = any(card.used for card in cards)
    used = (TableColumn(title="used by NCCL", left=True),) if is_used else ()
    left = 0 if show_all else len(cards) - MAX_ROWS
    return TableView(
        title="Network cards by GPU",
        caption="by nvidia-smi topo -m",
        columns=(
            TableColumn(title="host", left=True),
            TableColumn(title="GPU", left=True),
            TableColumn(title="nearest cards", left=True, wrap=True),
            TableColumn(title="path", left=True),
            TableColumn(title="GPUs that share them"),
            *used,
        ),
        rows=tuple(_card_row(card, is_used) for card in _some(cards, show_all=show_all)),
        notes=(f"{counted(left, 'more GPU')} with --all.",) if left > 0 else (),
    )


def _card_row(card: CardPath, is_used: bool) -> tuple[str, ...]:
    path = f" ({card.used_path})" if card.used_path else ""
    used = (f"{', '.join(card.used)}{path}" if card.used else "–",) if is_used else ()
    return (
        card.host or "–",
        card.gpu,
        ", ".join(card.nearest) or "–",
        card.path or "–",
        f"{card.num_sharing}",
        *used,
    )


def _range(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _some(rows: Sequence[_T], *, show_all: bool) -> Sequence[_T]:
    return rows if show_all else rows[:MAX_ROWS]


# The first lines of a report on machines alone: no ranks, no steps -------------------------------

_MOST_NAMED = 4


def machine_verdict(report: Report) -> tuple[str, tuple[str, ...]] | None:
    """What joins the devices of each machine; None for a report on anything else."""
    machines = report.placement.machines
    if not machines or report.run.ranks:
        return None
    gpus = sum(machine.num_gpus for machine in machines)
    line = f"{_counted(len(machines), 'machine')}, {_counted(gpus, 'GPU')}: no ranks, no steps."
    more = len(machines) - _MOST_NAMED
    rest = (f"{more:,} more machines.",) if more > 0 else ()
    return line, (*(_sentence(machine) for machine in machines[:_MOST_NAMED]), *rest)


def _sentence(machine: PlacedMachine) -> str:
    name = f"{machine.host}: " if machine.host else ""
    cards = _counted(len(machine.cards), "network card")
    return f"{name}{_counted(machine.num_gpus, 'GPU')}, {_joined(machine)}; {cards}."


def _joined(machine: PlacedMachine) -> str:
    if machine.num_gpus < 2:
        return "alone"
    if len(machine.islands) == 1:
        return "all joined by NVLink"
    if len(machine.islands) == machine.num_gpus:
        return "joined by PCIe, not by NVLink"
    return f"joined by NVLink in {len(machine.islands)} parts, else by PCIe"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
