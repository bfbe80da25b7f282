"""Files that compare runs: summaries (a few figures of each), baselines, and the state of a sweep.

A report explains a run. Baselines, histories and scaling sweeps store only its summary. A baseline
is small JSON, to be reviewed and kept in git. Here is also decided whether two runs are comparable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


_OF_SIZE = ("world size", "nodes", "mesh", "config training.batch")
_WEIGHTY = tuple(f"version of {name}" for name in ("driver", "cuda", "nccl", "torch"))
_SELF = "distprof"  # its version does not affect training
_PROBES = "probes."
_VARYING = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_NODEID",
    "SLURM_LOCALID",
    "TORCHELASTIC_RESTART_COUNT",
    "NCCL_DEBUG",
)
"""Variables that differ from run to run, or that affect only the output of a run."""


_MAX_TEXT = 2_000
"""Characters kept and compared of each option."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One property that differs between two runs."""

    field: str  # Name of the property, for example ``device`` or ``config training.steps``.
    # ``hardware`` (devices, world size, nodes, backend), ``job`` (workload and its layout) or
    # ``software`` (versions, variables).
    group: str
    first: str  # Value in the first run; empty if unknown or not set.
    second: str  # Value in the second run; empty if unknown or not set.

    @property
    def sentence(self) -> str:
        """The difference as a sentence, without full stop."""
        first, second = self.first or "not set", self.second or "not set"
        return f"{self.field} is {first} in one and {second} in the other"


def differences(first: Fingerprint, second: Fingerprint) -> tuple[Difference, ...]:
    """All properties known for both runs that differ, hardware first.

    A property that one of the runs does not record does not count as a difference. An option or
    variable that only one of them sets does.
    """
    return tuple(_differences(first, second))


def _differences(first: Fingerprint, second: Fingerprint) -> Iterator[Difference]:
    for name, field, group in _SINGLE:
        mine, theirs = getattr(first, field), getattr(second, field)
        if mine not in (None, "") and theirs not in (None, "") and mine != theirs:
            yield Difference(field=name, group=group, first=str(mine), second=str(theirs))
    if first.mesh and second.mesh:
        yield from _entries("mesh", "job", first.mesh, second.mesh)
    configs = [_without(each.config, _PROBES) for each in (first, second)]
    if all(configs):
        yield from _entries("config", "job", *configs)
    known = (first.versions.keys() & second.versions.keys()) - {_SELF}
    versions = [{name: each.versions[name] for name in known} for each in (first, second)]
    yield from _entries("version of", "software", *versions)
    if first.versions and second.versions:  # both are run directories: a missing variable is unset
        set_here, set_there = (_without(each.environment, _VARYING) for each in (first, second))
        yield from _entries("variable", "software", set_here, set_there)


def _without(values: Mapping[str, str], starts: str | tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in values.items() if not name.startswith(starts)}


_SINGLE = (
    ("device", "device", "hardware"),
    ("world size", "world_size", "hardware"),
    ("nodes", "num_nodes", "hardware"),
    ("backend", "backend", "hardware"),
    ("workload", "workload", "job"),
    ("strategy", "strategy", "job"),
)
"""Properties of one value: their names, fields and groups."""


def compared(first: Fingerprint, second: Fingerprint) -> tuple[str, ...]:
    """Names of the properties that both runs record."""
    return tuple(
        name
        for name, field in _COMPARED.items()
        if getattr(first, field) not in (None, "", {}) and getattr(second, field)
    )


_COMPARED = {
    "device": "device",
    "world size": "world_size",
    "nodes": "num_nodes",
    "backend": "backend",
    "program": "workload",
    "mesh": "mesh",
    "configuration": "config",
    "versions": "versions",
    "variables": "environment",
}
"""Names of properties for users, and their fields."""


def flat_config(config: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Flatten sections and options to a mapping to text, as in :attr:`Fingerprint.config`."""
    return {
        f"{section}.{option}": str(value)[:_MAX_TEXT]
        for section, options in config.items()
        for option, value in options.items()
    }


def unlike(
    first: Fingerprint,
    second: Fingerprint,
    *,
    sizes_may_differ: bool = False,
    is_gate: bool = False,
) -> tuple[Difference, ...]:
    """The differences that make the step times of two runs incomparable.

    Hardware and job must be the same. Software may differ, as comparisons of two runs are often
    about software. A gate on a team's own code is stricter: it must not attribute a driver update
    to a change of the code, so versions of driver, CUDA, NCCL and torch, and variables, must be the
    same. In a scaling sweep, the number of ranks and nodes, the mesh, and the batch per rank may
    differ.
    """
    free = _OF_SIZE if sizes_may_differ else ()
    return tuple(
        difference
        for difference in differences(first, second)
        if not difference.field.startswith(free)
        and (
            difference.group != "software"
            or (is_gate and difference.field in _WEIGHTY)
            or (is_gate and difference.field.startswith("variable "))
        )
    )


def _entries(
    field: str, group: str, first: Mapping[str, object], second: Mapping[str, object]
) -> Iterator[Difference]:
    for name in sorted({*first, *second}):
        mine, theirs = str(first.get(name, "")), str(second.get(name, ""))
        if mine != theirs:
            yield Difference(field=f"{field} {name}", group=group, first=mine, second=theirs)
