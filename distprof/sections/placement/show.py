"""Process groups by node, and paths from GPUs to network cards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from distprof.artefacts.fabric_file import GpuCopies
from distprof.sections.base import VerdictText
from distprof.sections.placement import ACROSS_SOCKETS, CardPath, PlacedMachine, PlacementResult
from distprof.sections.table import Column, TableView, counted, first_rows, rows_table
from distprof.units import few_names, format_bandwidth, verb

if TYPE_CHECKING:
    from distprof.sections.report import Report

MAX_ROWS = 16

_ORDERS = {
    "blocked": "ranks numbered node by node",
    "cyclic": "ranks assigned to nodes round-robin",
    "irregular": "ranks numbered irregularly",
}

_ORIGINS = {
    "run.json": "the run directory",
    "host_name": "host names",
    "launcher": "the launcher's variables",
    "device_count": "GPU numbers",
}


def groups_on_nodes_table(report: Report, *, show_all: bool) -> TableView | None:
    """Each mesh axis and the number of nodes and domains that its groups span."""
    result = report.placement
    if len(result.nodes) < 2 and not show_all:
        return None
    is_timed = any(axis.sent_bytes_per_step is not None for axis in result.axes)
    order = f", {_ORDERS.get(result.order, result.order)}" if result.order else ""
    return rows_table(
        "Groups on nodes",
        (
            Column("axis", "axis", left=True),
            Column("ranks", "size"),
            Column("groups", "num_groups"),
            Column("nodes each", lambda axis: _range(axis.least_nodes, axis.num_nodes)),
            Column("domains each", lambda axis: _range(axis.least_domains, axis.num_domains)),
            Column(
                "on a node",
                lambda axis: _range(axis.least_on_node, axis.most_on_node),
                wide_only=True,
            ),
            Column("links", "tier", left=True),
            Column("sent", "sent_bytes_per_step", when=is_timed),
            Column("exposed", "exposed_transfer_ns_per_step", when=is_timed),
        ),
        result.axes if show_all else result.axes[:MAX_ROWS],
        caption=f"{counted(len(result.nodes), 'node')}{order}",
        notes=(*_notes(result, is_timed=is_timed), *result.unavailable),
    )


def _notes(result: PlacementResult, *, is_timed: bool) -> Iterator[str]:
    origin = _ORIGINS.get(result.origin, result.origin)
    domains = "" if result.domain_origin in ("", "nodes") else f"; domains: {result.domain_origin}"
    yield f"Nodes are known from {origin}{domains}."
    if is_timed:
        yield "Sent and exposed: mean per rank and step; axes may be exposed at the same time."


def nodes_table(report: Report, *, show_all: bool) -> TableView | None:
    """Nodes, their ranks and domains; only with --all."""
    nodes = report.placement.nodes
    if not show_all or len(nodes) < 2:
        return None
    return rows_table(
        "Nodes",
        (
            Column("node", "node", left=True),
            Column("ranks", "ranks", left=True),
            Column("scale-up domain", lambda node: ", ".join(node.domains), left=True),
        ),
        nodes,
    )


def card_paths_table(report: Report, *, show_all: bool) -> TableView | None:
    """GPUs of the machines that the user provided, and their nearest network cards."""
    cards = report.placement.cards
    return rows_table(
        "Network cards by GPU",
        (
            Column("host", "host", form="name", left=True),
            Column("GPU", "gpu", left=True),
            Column("nearest cards", lambda c: ", ".join(c.nearest) or "–", left=True, wrap=True),
            Column("path", "path", form="name", left=True),
            Column("sharing GPUs", "num_sharing", form="id"),
            Column("used by NCCL", _used_text, left=True, when=any(card.used for card in cards)),
        ),
        first_rows(cards, MAX_ROWS, show_all=show_all, noun="GPU", note="{} with --all."),
        caption="from nvidia-smi topo -m",
    )


def _used_text(card: CardPath) -> str:
    if not card.used:
        return "–"
    path = f" ({card.used_path})" if card.used_path else ""
    return f"{', '.join(card.used)}{path}"


def _range(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


# The first lines of a report on machines without ranks or steps -------------------------------

_MOST_NAMED = 4

_NARROW = 9e9  # Bytes per second: a link of PCIe 3.0 x16 copies at 11 GB/s or more.
_SAME, _UNEVEN = 0.1, 0.3
"""Copies are as fast, and a pair is slower than others, within and from these shares on."""


def machine_verdict(report: Report) -> VerdictText:
    """How the GPUs of each machine are connected; None for other reports."""
    machines = report.placement.machines
    if report.run.ranks:
        return None
    copies, cards = report.placement.copies, report.placement.cards
    shown = (_sentence(machine, cards) for machine in machines[:_MOST_NAMED])
    if said := [*filter(None, (_copies(copies), _narrow(copies), *_host_copies(copies)))]:
        return said[0], (*said[1:], *shown)
    if not machines:
        return None
    gpus = sum(machine.num_gpus for machine in machines)
    ways = {_joined(machine) for machine in machines}
    alike = "connected alike" if len(ways) == 1 else "connected differently"
    line = f"{counted(len(machines), 'machine')}, {counted(gpus, 'GPU')}, {alike}."
    compared = "p2pBandwidthLatencyTest and all_reduce_perf on each say which way is faster."
    if len(machines) == 1:
        tested = filter(None, (report.nccl.tested,))
        return next(shown), (*tested, *_next_step(machines[0]))
    more = len(machines) - _MOST_NAMED
    rest = (f"{more:,} more machines.",) if more > 0 else ()
    return line, (*shown, *rest, *(compared,) * (len(ways) > 1))


def _copies(measured: Sequence[GpuCopies]) -> str:
    """How fast GPUs copy to each other, and whether the direct way is the faster one."""
    between = [one for one in measured if not one.host]
    if not between:
        return ""
    alike = [one for one in between if one.is_both_ways == between[0].is_both_ways]
    speed = {one.is_direct: format_bandwidth(one.bytes_per_s) for one in alike}
    of = {one.is_direct: one.bytes_per_s for one in alike}
    what = "median" + (", both directions together" if alike[0].is_both_ways else "")
    if len(alike) > len(of):  # both matrices are of copies without access
        why = "nvidia-smi topo -p2p r says why (ACS or the IOMMU, a virtual machine, GeForce)"
        how = f"copies go through host memory ({speed[max(speed)]})"
        return f"GPUs cannot access each other: {how}. {why}."
    if True not in of:
        lacks = "no copy with P2P was measured"
        return f"Through host memory, a GPU copies to another at {speed[False]} ({what}); {lacks}."
    if of[True] < (1 - _SAME) * of.get(False, 0.0):
        slow = f"With P2P, GPUs copy more slowly ({speed[True]}) than without ({speed[False]})"
        look = "check PCIe ACS and the IOMMU, and measure the job with NCCL_P2P_DISABLE=1"
        text = f"{slow}: {look}."
    elif of[True] < (1 + _SAME) * of.get(False, 0.0):
        both = f"a GPU copies to another at {speed[True]} with it and {speed[False]} without"
        why = "copies go through host memory or the same PCIe links"
        text = f"P2P makes no difference: {both}, so {why}."
    else:
        other = f"; through host memory at {speed[False]}" if False in of else ""
        text = f"With P2P, a GPU copies to another at {speed[True]} ({what}){other}."
    direct = next(one for one in alike if one.is_direct)
    if direct.slowest_bytes_per_s < (1 - _UNEVEN) * direct.bytes_per_s:
        slowest = format_bandwidth(direct.slowest_bytes_per_s)
        text += " The slowest pair is GPU {} and GPU {} ({}).".format(*direct.slowest, slowest)
    return text


def _narrow(measured: Sequence[GpuCopies]) -> str:
    """Where to look if copies between GPUs are slower than a usual PCIe link."""
    speeds = [o.bytes_per_s / (1 + o.is_both_ways) for o in measured if not o.host]
    if max(speeds, default=_NARROW) >= _NARROW or not any(o.is_direct for o in measured):
        return ""
    return "Such slow PCIe links are narrow or old: compare LnkSta with LnkCap in lspci -vv."


def _host_copies(measured: Sequence[GpuCopies]) -> tuple[str, ...]:
    """How fast host and GPUs copy, and the GPU that is slower than the others."""
    known = [one for one in measured if one.host]
    if not known:
        return ()
    worst = min(known, key=lambda one: one.slowest_bytes_per_s / one.bytes_per_s)
    least, usual = map(format_bandwidth, (worst.slowest_bytes_per_s, worst.bytes_per_s))
    if worst.slowest_bytes_per_s >= (1 - _UNEVEN) * worst.bytes_per_s:
        ways = (f"{one.host} host memory at {format_bandwidth(one.bytes_per_s)}" for one in known)
        return (f"GPUs copy {', '.join(ways)}.",)
    slow = f"GPU {worst.slowest[0]} copies {worst.host} host memory at only {least}"
    look = "Compare its PCIe link (LnkSta with LnkCap in lspci -vv) and NUMA node with the others'."
    return (f"{slow}: the others reach {usual} (median).", look)


def _sentence(machine: PlacedMachine, paths: Sequence[CardPath]) -> str:
    name = f"{machine.host}: " if machine.host else ""
    cards = counted(len(machine.cards), "network card") if machine.cards else ""
    joined = f", {_joined(machine)}" if machine.num_gpus > 1 else ""
    of = {one.gpu: one.path for one in paths if one.host == machine.host and one.path}
    far = [gpu for gpu, path in of.items() if path == ACROSS_SOCKETS]
    if 0 < len(far) < len(of):
        cards += f", none of them near {', '.join(far)}"
    cut = f" of {machine.num_gpus + machine.num_cut}, the others cut off" if machine.num_cut else ""
    return f"{name}{counted(machine.num_gpus, 'GPU')}{cut}{joined}{cards and f'; {cards}'}."


def _next_step(machine: PlacedMachine) -> tuple[str, ...]:
    """What to do, given how a machine's GPUs are connected."""
    if machine.num_gpus == 1:
        return ()
    if len(machine.islands) == 1:
        shown = "NCCL_DEBUG=INFO shows whether NCCL uses it, all_reduce_perf how"
        return (f"NVLink is there: {shown}.",)
    if _without_links(machine):
        shown = "nvidia-smi nvlink -s, Xid errors in dmesg, the fabric manager's log"
        return (f"Keep jobs off that host until its links are back: see {shown}.",)
    bound = "Collectives of more GPUs than an island run at the speed of PCIe"
    if len(machine.islands) == machine.num_gpus:
        bound = "The slowest PCIe path bounds collectives: measure it with p2pBandwidthLatencyTest"
    return (f"{bound}. Keep tensor parallelism where the links are fast, and reduce less often.",)


def _without_links(machine: PlacedMachine) -> list[str]:
    """GPUs without NVLink, if most of the machine's have it."""
    alone = [f"GPU {island[0]}" for island in machine.islands if len(island) == 1]
    return alone if 3 * len(alone) < machine.num_gpus else []


_FARTHEST = {"SYS": "across CPU sockets", "NODE": "across host bridges", "PHB": "through the CPU"}


def _joined(machine: PlacedMachine) -> str:
    if len(machine.islands) == 1:
        some = ", some only through others" if machine.farthest_path else ""
        return f"all connected by NVLink{some}"
    if alone := _without_links(machine):
        lacks = f"{few_names(alone, 3)} {verb(alone, 'lack')} NVLink"
        return f"{lacks}, which connects the other {machine.num_gpus - len(alone)}"
    farthest = _FARTHEST.get(machine.farthest_path, "")
    far = f", the farthest pair {farthest} ({machine.farthest_path})" if farthest else ""
    if len(machine.islands) == machine.num_gpus:
        return f"connected by PCIe, without NVLink{far}"
    return f"in {len(machine.islands)} NVLink islands connected by PCIe{far}"
