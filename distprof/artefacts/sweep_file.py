"""``sweep.json``: a series of runs of one workload, by size and repeat, and how far it has come."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["SWEEP_FILE", "SWEEP_SCHEMA", "SweepFile", "SweepRun"]

SWEEP_FILE = "sweep.json"
SWEEP_SCHEMA = "distprof.sweep/1"


class SweepRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the series.

    Args:
        ranks: Its ranks.
        repeat: From 0.
        folder: Its run directory, within that of the sweep.
        arguments: Of the program ``distprof``, without the folder.
        state: ``waiting`` it was not started, or not to its end; ``done``; ``failed``.
        exit_code: Of the last attempt; None before it.
        took_s: Seconds of the attempt that is done, starting and analysing included; None where
            that is not known.
    """

    ranks: int
    repeat: int
    folder: str
    arguments: tuple[str, ...]
    state: Literal["waiting", "done", "failed"] = "waiting"
    exit_code: int | None = None
    took_s: float | None = None


class SweepFile(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep: what was asked for, and each run in the order in which they are made.

    Args:
        schema: ``distprof.sweep/1``; a reader refuses another major number.
        distprof_version: Who wrote it.
        workload: Name of the reference workload; empty for a user's own program.
        scaling: What was asked for; of a user's own program what the user says that it does, or
            ``as_given``.
        device: ``gpus`` or ``ranks``: what the sizes count.
        runs: In order: sizes take turns, there and back, so that what drifts meets all alike.
        started_ns: ns since the epoch.
        num_cpus: Processors of the machine that it may use; None where not known.
    """

    schema: str = SWEEP_SCHEMA
    distprof_version: str
    workload: str = ""
    scaling: Literal["weak", "strong", "as_given"] = "as_given"
    device: Literal["gpus", "ranks"] = "ranks"
    runs: tuple[SweepRun, ...] = ()
    started_ns: int
    num_cpus: int | None = None
