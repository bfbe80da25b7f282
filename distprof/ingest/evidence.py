"""Logs and tables that go with a recording: what NCCL wrote, what sensors and machines said.

Each kind of companion says whether a path is of its kind, reads it, and joins it to the run. The
recording stays what it was; a companion only adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distprof.errors import InputError
from distprof.ingest.kinds.collective_summary import (
    fits_collective_summary,
    read_collective_summary,
)
from distprof.ingest.kinds.input_readiness import fits_input_readiness, read_input_readiness
from distprof.ingest.kinds.machine import fits_machine, read_machine
from distprof.ingest.kinds.nccl_log import fits_nccl_log, read_nccl_log
from distprof.ingest.kinds.sensors.join import with_device_log
from distprof.ingest.kinds.sensors.read import fits_device_log, read_device_log
from distprof.ingest.kinds.training_log import fits_training_log, read_training_log
from distprof.run.machine import Machines
from distprof.run.nccl_log import NcclLog
from distprof.run.run import Gap, Run
from distprof.run.training_log import TrainingLog

__all__ = ["Companion", "with_evidence"]


@dataclass(frozen=True, slots=True)
class Companion:
    """One kind of file that goes with a recording.

    Args:
        name: What it is, for people: ``a log of NCCL``.
        fits: Whether a path or URL is of this kind; never raises for what is not.
        read: Reads it; raises InputError where it is damaged.
        join: The run with what was read.
    """

    name: str
    fits: Callable[[str], bool]
    read: Callable[[str], Any]
    join: Callable[[Run, Any], Run]


def with_evidence(run: Run, sources: Sequence[str]) -> Run:
    """The run joined with what the user named beside it.

    Args:
        run: The recording.
        sources: Paths or URLs, each of any kind in :data:`COMPANIONS`.

    Raises:
        InputError: If a source is of no known kind, or cannot be read.
    """
    kinds = {source: _kinds_of(source) for source in sources}
    for kind in COMPANIONS:  # whatever the user's order: a later kind may use an earlier one
        for source in sources:
            if kind in kinds[source]:
                run = kind.join(run, kind.read(source))
    return run


def _kinds_of(source: str) -> list[Companion]:
    """What a source is: a terminal may hold NCCL's lines and the program's own."""
    found = [kind for kind in COMPANIONS if kind.fits(source)]
    if not found:
        raise InputError(
            source,
            expected=" or ".join(kind.name for kind in COMPANIONS),
            found="none of these",
            fix="name a file of one of these kinds after --with",
        )
    return found


def _with_nccl(run: Run, log: NcclLog) -> Run:
    """What the user names replaces what the run directory holds."""
    gaps = tuple(Gap(what="damaged", message=note) for note in log.notes)
    return replace(run, nccl=log, gaps=(*run.gaps, *gaps))


def _with_machines(run: Run, found: Machines) -> Run:
    """Of a host that two files show, the later one counts."""
    gaps = tuple(Gap(what="damaged", message=note) for note in found.notes)
    again = {machine.host for machine in found.machines} - {""}
    kept = tuple(machine for machine in run.machines if machine.host not in again)
    return replace(run, machines=(*kept, *found.machines), gaps=(*run.gaps, *gaps))


def _with_training_log(run: Run, log: TrainingLog) -> Run:
    """The last that is named counts."""
    return replace(run, training_log=log)


COMPANIONS: tuple[Companion, ...] = (
    Companion("a log of NCCL", fits_nccl_log, read_nccl_log, _with_nccl),
    Companion("sensors or errors of devices", fits_device_log, read_device_log, with_device_log),
    Companion("output of nvidia-smi topo -m", fits_machine, read_machine, _with_machines),
    Companion("a training program's log", fits_training_log, read_training_log, _with_training_log),
    Companion(
        "a table of collectives by rank",
        fits_collective_summary,
        read_collective_summary,
        lambda run, table: replace(run, collective_summary=table),
    ),
    Companion(
        "readiness of input by rank",
        fits_input_readiness,
        read_input_readiness,
        lambda run, columns: replace(run, input_readiness=columns),
    ),
)
"""In the order in which they are joined: NCCL's log tells sensors which device a rank had."""
