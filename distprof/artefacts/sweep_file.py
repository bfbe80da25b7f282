"""``sweep.json``: a series of runs of one workload, by size and repeat, and its progress."""

from __future__ import annotations

from typing import Literal

import msgspec

SWEEP_FILE = "sweep.json"
SWEEP_SCHEMA = "distprof.sweep/1"


class SweepRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the series.

    Args:
        ranks: Number of ranks.
        repeat: Repeat, from 0.
        folder: Its run directory inside the folder of the sweep.
        arguments: Arguments of ``distprof``, without the folder.
        state: ``waiting`` not started, or not finished; ``done``; ``failed``.
        exit_code: Exit code of the last attempt; None before the first.
        took_s: Seconds of the completed attempt, including start and analysis; None when unknown.
    """

    ranks: int
    repeat: int
    folder: str
    arguments: tuple[str, ...]
    state: Literal["waiting", "done", "failed"] = "waiting"
    exit_code: int | None = None
    took_s: float | None = None


class SweepFile(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep: the request, and the runs in order of execution.

    Args:
        schema: ``distprof.sweep/1``; a reader refuses another major number.
        distprof_version: Version of the writer.
        workload: Name of the reference workload; empty for a user's own program.
        scaling: Requested scaling. For a user's own program, the mode that the user states, or
            ``as_given``.
        device: ``gpus`` or ``ranks``: the unit of the sizes.
        runs: Runs in order. Sizes alternate, up and down, so that drift affects them equally.
        started_ns: ns since the epoch.
        num_cpus: CPUs that the sweep may use; None when unknown.
    """

    schema: str = SWEEP_SCHEMA
    distprof_version: str
    workload: str = ""
    scaling: Literal["weak", "strong", "as_given"] = "as_given"
    device: Literal["gpus", "ranks"] = "ranks"
    runs: tuple[SweepRun, ...] = ()
    started_ns: int
    num_cpus: int | None = None
