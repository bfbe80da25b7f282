"""The first lines of a report on machines alone: no ranks, no steps."""

from __future__ import annotations

from distprof.analyzers.placement import PlacedMachine
from distprof.report.model import Report

__all__ = ["machine_verdict"]

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
