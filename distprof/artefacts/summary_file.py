"""A summary of a run: the few figures to compare between runs, sizes and commits.

A report explains a run. Baselines, histories and scaling sweeps store only its summary.
"""

from __future__ import annotations

import msgspec

SUMMARY_SCHEMA = "distprof.summary/1"


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that two comparable runs share; empty or None when unknown.

    Args:
        world_size: Ranks of the job.
        num_nodes: Nodes of the job.
        device: Name of the accelerator, or of the CPU for CPU ranks.
        backend: Backend of the process groups, for example ``nccl``.
        workload: Name of the reference workload, or the user's command.
        strategy: Readable name, for example ``FSDP (ZeRO-3)``.
        mesh: Mesh axis to its size.
        config: Configuration of the workload, flattened: ``section.option`` to its value as text.
        versions: ``driver``, ``cuda``, ``nccl``, ``torch``, ``python``, ``distprof``.
        environment: Allow-listed variables that change speed, for example ``NCCL_ALGO``.
    """

    world_size: int | None = None
    num_nodes: int | None = None
    device: str = ""
    backend: str = ""
    workload: str = ""
    strategy: str = ""
    mesh: dict[str, int] = {}
    config: dict[str, str] = {}
    versions: dict[str, str] = {}
    environment: dict[str, str] = {}


class StepParts(msgspec.Struct, frozen=True, kw_only=True):
    """Breakdown of the mean traced step of the mean rank, ns; parts add up to ``span_ns`` exactly.

    Args:
        span_ns: The step.
        computation_ns: Computation.
        exposed_transfer_ns: Exposed communication that moves data.
        exposed_wait_ns: Exposed waiting for late ranks in collectives: imbalance, stragglers.
        bubble_ns: Waiting for messages of a pipeline.
        unsplit_comm_ns: Exposed communication whose waiting and transfer cannot be separated.
        host_ns: Idle because the CPU launched late or synchronised.
        input_ns: Idle while waiting for input.
        copy_ns: Memory copies and sets.
        other_ns: Idle for other or unknown causes.
    """

    span_ns: int
    computation_ns: int
    exposed_transfer_ns: int
    exposed_wait_ns: int
    bubble_ns: int
    unsplit_comm_ns: int
    host_ns: int
    input_ns: int
    copy_ns: int
    other_ns: int


class SummaryFile(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. Ratios are 0 to 1; None means unknown, never 0.

    Args:
        schema: Schema of this document.
        distprof_version: Version of the writer.
        source: Run directory, report or file of measurements that it summarises.
        label: Readable label, for example ``ddp on 4 ranks, repeat 2``.
        git_commit: Commit of the code that ran; empty if unknown.
        created_ns: End of the run, or the time of reading if unknown; ns since the epoch.
        fingerprint: The properties that comparable runs share.
        step_ns: Durations of steady steps without a profiler, each on the median rank, in order of
            time; traced steps if there are no others (``is_traced``).
        is_traced: Whether a profiler was recording during ``step_ns``.
        tokens_per_step: Tokens of all ranks together.
        samples_per_step: Samples of all ranks together.
        parts: Breakdown of the traced step; None without traces.
        overlap_ratio: Share of communication that overlaps with computation.
        exposed_comm_ratio: Share of the step in exposed communication.
        bubble_ratio: Largest bubble fraction of its pipelines.
        imbalance_ratio: Cost of stragglers relative to the step: slowdown − 1 of the replayed run.
        expert_imbalance_ratio: Largest max/mean load of its expert layers.
        mfu_ratio: Model FLOP utilisation.
        peak_memory_bytes: Maximum over all ranks: accelerator memory, or process memory on CPUs.
        energy_per_step_j: Energy of all GPUs together.
    """

    schema: str = SUMMARY_SCHEMA
    distprof_version: str
    source: str = ""
    label: str = ""
    git_commit: str = ""
    created_ns: int
    fingerprint: Fingerprint = Fingerprint()
    step_ns: tuple[int, ...] = ()
    is_traced: bool = False
    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    parts: StepParts | None = None
    overlap_ratio: float | None = None
    exposed_comm_ratio: float | None = None
    bubble_ratio: float | None = None
    imbalance_ratio: float | None = None
    expert_imbalance_ratio: float | None = None
    mfu_ratio: float | None = None
    peak_memory_bytes: int | None = None
    energy_per_step_j: float | None = None
