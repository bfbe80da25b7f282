"""``sweep.json``: a series of runs of one workload, by size and repeat, and its progress."""

from __future__ import annotations

from typing import Literal

import msgspec

SWEEP_FILE = "sweep.json"
SWEEP_SCHEMA = "distprof.sweep/1"


class SweepRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the series."""

    ranks: int  # Number of ranks.
    repeat: int  # Repeat, from 0.
    folder: str  # Its run directory inside the folder of the sweep.
    arguments: tuple[str, ...]  # Arguments of ``distprof``, without the folder.
    # ``waiting`` not started, or not finished; ``done``; ``failed``.
    state: Literal["waiting", "done", "failed"] = "waiting"
    exit_code: int | None = None  # Exit code of the last attempt; None before the first.
    # Seconds of the completed attempt, including start and analysis; None when unknown.
    took_s: float | None = None


class SweepFile(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep: the request, and the runs in order of execution."""

    schema: str = SWEEP_SCHEMA  # ``distprof.sweep/1``; a reader refuses another major number.
    distprof_version: str  # Version of the writer.
    workload: str = ""  # Name of the reference workload; empty for a user's own program.
    # Requested scaling. For a user's own program, the mode that the user states, or ``as_given``.
    scaling: Literal["weak", "strong", "as_given"] = "as_given"
    device: Literal["gpus", "ranks"] = "ranks"  # ``gpus`` or ``ranks``: the unit of the sizes.
    # Runs in order. Sizes alternate, up and down, so that drift affects them equally.
    runs: tuple[SweepRun, ...] = ()
    started_ns: int  # ns since the epoch.
    num_cpus: int | None = None  # CPUs that the sweep may use; None when unknown.
