"""Paths from GPUs to network cards, and which cards NCCL uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from distprof.analyzers.result import Record
from distprof.run.machine import PATHS, Machine
from distprof.run.nccl_log import NcclLog
from distprof.run.run import Run

__all__ = ["CardPath", "card_paths"]


class CardPath(Record, frozen=True, kw_only=True):
    """One GPU of a machine.

    Args:
        host: Host name; empty where the machine stands for every node.
        gpu: As the driver calls it.
        path: Shortest path to a network card, for example ``PIX``; empty where none is known.
        nearest: Cards at its end.
        num_sharing: GPUs, this one among them, that have a nearest card of it as their own nearest.
        used: Cards that NCCL uses for it by its log; empty where no log tells.
        used_path: Longest path to one of those; empty where none is known.
        rank: Global rank on it, as far as a log of NCCL tells.
    """

    host: str
    gpu: str
    path: str
    nearest: tuple[str, ...]
    num_sharing: int
    used: tuple[str, ...] = ()
    used_path: str = ""
    rank: int | None = None


def card_paths(run: Run, nodes: Mapping[str, Sequence[int]]) -> tuple[CardPath, ...]:
    """Every GPU of every machine that the user showed and that is part of the job.

    Args:
        run: Machines, and NCCL's log if there is one.
        nodes: Nodes of the job; machines that are none of them are left out, unless no node is
            known at all.
    """
    hosts = list(nodes) or [m.host for m in run.machines]
    found: list[CardPath] = []
    for machine in run.machines:
        if not machine.cards:
            continue
        if machine.host:
            if any(_is_same_host(machine.host, host) for host in hosts):
                found += _of_machine(machine, machine.host, run.nccl)
        elif len(run.machines) == 1 and len(hosts) == 1:
            found += _of_machine(machine, hosts[0], run.nccl)
        elif len(run.machines) == 1:
            found += _of_machine(machine, "", None)
    return tuple(found)


def _of_machine(machine: Machine, host: str, log: NcclLog | None) -> Iterator[CardPath]:
    used = _used_cards(machine, host, log) if log is not None else {}
    near = [machine.nearest_cards(gpu) for gpu in range(len(machine.gpus))]
    for gpu, (path, cards) in enumerate(near):
        rank, mine = used.get(gpu, (None, ()))
        yield CardPath(
            host=host,
            gpu=machine.gpus[gpu],
            path=path,
            nearest=tuple(machine.cards[card] for card in cards),
            num_sharing=sum(bool(set(cards) & set(other)) for _, other in near) if cards else 0,
            used=tuple(machine.cards[card] for card in mine),
            used_path=_longest(machine.path_to_card(gpu, card) for card in mine),
            rank=rank,
        )


def _longest(paths: Iterator[str]) -> str:
    known = [path for path in paths if path in PATHS]
    return max(known, key=PATHS.index, default="")


def _used_cards(
    machine: Machine, host: str, log: NcclLog
) -> dict[int, tuple[int | None, tuple[int, ...]]]:
    """GPU to the rank on it and the cards that its process sends or receives by.

    Empty where processes do not say which GPU is theirs: inside containers of one GPU each, every
    process calls its GPU the first.
    """
    gpu_of: dict[int, int] = {}
    for one in log.communicators:
        for member in one.members:
            is_here = 0 <= member.process < len(log.processes) and _is_same_host(
                log.processes[member.process].host, host
            )
            if is_here and member.device is not None:
                gpu_of[member.process] = member.device
    if len(set(gpu_of.values())) < len(gpu_of) or any(
        not 0 <= gpu < len(machine.gpus) for gpu in gpu_of.values()
    ):
        return {}
    names = {
        card.index: card.name.partition(":")[0]
        for card in log.cards
        if _is_same_host(card.host, host)
    }
    return {
        gpu: (log.processes[process].rank, _cards_of(process, machine, names, log))
        for process, gpu in gpu_of.items()
    }


def _cards_of(
    process: int, machine: Machine, names: Mapping[int, str], log: NcclLog
) -> tuple[int, ...]:
    used = {
        names[edge.card]
        for edge in log.edges
        if edge.process == process and edge.card is not None and edge.card in names
    }
    return tuple(card for card, name in enumerate(machine.cards) if name in used)


def _is_same_host(first: str, second: str) -> bool:
    """Whether two names are of one host, one of them perhaps with its domain."""
    return first.partition(".")[0] == second.partition(".")[0]
