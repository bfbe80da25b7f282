"""Files that compare runs: summaries (a few figures of each), baselines, and the state of a sweep.

A report explains a run. Baselines, histories and scaling sweeps store only its summary. A baseline
is small JSON, to be reviewed and kept in git.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SUMMARY_SCHEMA = "distprof.summary/1"


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that two comparable runs share; empty or None when unknown."""

    world_size: int | None = None  # Ranks of the job.
    num_nodes: int | None = None  # Nodes of the job.
    device: str = ""  # Name of the accelerator, or of the CPU for CPU ranks.
    backend: str = ""  # Backend of the process groups, for example ``nccl``.
    workload: str = ""  # Name of the reference workload, or the user's command.
    strategy: str = ""  # Readable name, for example ``FSDP (ZeRO-3)``.
    mesh: dict[str, int] = {}  # Mesh axis to its size.
    # Configuration of the workload, flattened: ``section.option`` to its value as text.
    config: dict[str, str] = {}
    # ``driver``, ``cuda``, ``nccl``, ``torch``, ``python``, ``distprof``.
    versions: dict[str, str] = {}
    # Allow-listed variables that change speed, for example ``NCCL_ALGO``.
    environment: dict[str, str] = {}


class StepParts(msgspec.Struct, frozen=True, kw_only=True):
    """Breakdown of the mean traced step of the mean rank, ns; parts add up to ``span_ns``."""

    span_ns: int  # The step.
    computation_ns: int  # Computation.
    exposed_transfer_ns: int  # Exposed communication that moves data.
    exposed_wait_ns: int  # Exposed waiting for late ranks in collectives: imbalance, stragglers.
    bubble_ns: int  # Waiting for messages of a pipeline.
    unsplit_comm_ns: int  # Exposed communication whose waiting and transfer cannot be separated.
    host_ns: int  # Idle because the CPU launched late or synchronised.
    input_ns: int  # Idle while waiting for input.
    copy_ns: int  # Memory copies and sets.
    other_ns: int  # Idle for other or unknown causes.


class SummaryFile(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. Ratios are 0 to 1; None means unknown, never 0."""

    schema: str = SUMMARY_SCHEMA  # Schema of this document.
    distprof_version: str  # Version of the writer.
    source: str = ""  # Run directory, report or file of measurements that it summarises.
    label: str = ""  # Readable label, for example ``ddp on 4 ranks, repeat 2``.
    git_commit: str = ""  # Commit of the code that ran; empty if unknown.
    created_ns: int  # End of the run, or the time of reading if unknown; ns since the epoch.
    fingerprint: Fingerprint = Fingerprint()  # The properties that comparable runs share.
    # Durations of steady steps without a profiler, each on the median rank, in order of time;
    # traced steps if there are no others (``is_traced``).
    step_ns: tuple[int, ...] = ()
    is_traced: bool = False  # Whether a profiler was recording during ``step_ns``.
    tokens_per_step: float | None = None  # Tokens of all ranks together.
    samples_per_step: float | None = None  # Samples of all ranks together.
    parts: StepParts | None = None  # Breakdown of the traced step; None without traces.
    overlap_ratio: float | None = None  # Share of communication that overlaps with computation.
    exposed_comm_ratio: float | None = None  # Share of the step in exposed communication.
    bubble_ratio: float | None = None  # Largest bubble fraction of its pipelines.
    # Cost of stragglers relative to the step: slowdown − 1 of the replayed run.
    imbalance_ratio: float | None = None
    expert_imbalance_ratio: float | None = None  # Largest max/mean load of its expert layers.
    mfu_ratio: float | None = None  # Model FLOP utilisation.
    # Maximum over all ranks: accelerator memory, or process memory on CPUs.
    peak_memory_bytes: int | None = None
    energy_per_step_j: float | None = None  # Energy of all GPUs together.


BASELINE_SCHEMA = "distprof.baseline/1"


class BaselineSession(msgspec.Struct, frozen=True, kw_only=True):
    """Repeats that were measured one after the other and accepted together."""

    git_commit: str = ""  # Commit of the code that ran; empty if unknown.
    created_ns: int  # Time of creation, ns since the epoch.
    # Metric to one value per repeat (of ``step_time`` the median step, ns), in order of time. A
    # repeat without the metric is left out of its list.
    values: dict[str, tuple[float, ...]]
    # Breakdown of the traced step, mean of the repeats; None without traces. It explains later
    # losses.
    parts: StepParts | None = None


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """A loss that the team has accepted: the check shows it but does not fail."""

    metric: str  # Name of the metric.
    up_to: float  # Accepted loss in terms of the metric: a ratio (0.08 for 8 %) or a difference.
    reason: str  # Reason, for readers of the file.
    until_ns: int | None = None  # End of validity, ns since the epoch; None for no end.
    git_commit: str = ""  # The commit that introduced it; empty if unknown.


class BaselineFile(msgspec.Struct, frozen=True, kw_only=True):
    """The reference that ``distprof check`` compares runs with."""

    schema: str = BASELINE_SCHEMA  # ``distprof.baseline/1``.
    distprof_version: str  # Version of the writer.
    fingerprint: Fingerprint  # The properties that comparable runs must share with it.
    # Ranks of the smaller size, the reference of the efficiency; None without a smaller size.
    small_world_size: int | None = None
    window: int = 8  # Number of sessions to keep; new sessions replace the oldest.
    sessions: tuple[BaselineSession, ...]  # Accepted sessions, oldest first.
    acknowledged: tuple[Acknowledged, ...] = ()  # Accepted losses.


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
