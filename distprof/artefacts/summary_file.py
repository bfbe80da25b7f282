"""A summary of a run: the few figures that are compared between runs, sizes and commits.

A report says why; a summary is what a baseline, a history and a scaling sweep keep of it.
"""

from __future__ import annotations

import msgspec

__all__ = ["SUMMARY_SCHEMA", "Fingerprint", "StepParts", "SummaryFile"]

SUMMARY_SCHEMA = "distprof.summary/1"


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What must be alike for two runs to be compared; empty or None where not known.

    Args:
        world_size: Ranks of the job.
        num_nodes: Nodes that they are on.
        device: Name of the accelerator, or the processor's for CPU ranks.
        backend: Of the process groups, for example ``nccl``.
        workload: Name of the reference workload, or the user's command.
        strategy: For people, for example ``FSDP (ZeRO-3)``.
        mesh: Mesh axis to its size.
        config: Of the workload, flattened: ``section.option`` to its value as text.
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
    """Where the mean traced step of the mean rank went, ns; they add up to ``span_ns`` exactly.

    Args:
        span_ns: The step.
        computation_ns: Computation.
        exposed_transfer_ns: Communication that moves data and hides behind nothing.
        exposed_wait_ns: Waiting for the last member of a collective: imbalance, stragglers.
        bubble_ns: Waiting for messages of a pipeline.
        unsplit_comm_ns: Exposed communication of which nothing tells waiting from transfer.
        host_ns: Idle, because the host launched late or synchronised.
        input_ns: Idle, waiting for input.
        copy_ns: Copies and sets of memory.
        other_ns: Idle of another cause or of none that is known.
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
    """One run in figures. Ratios 0 to 1; None where not known, never 0.

    Args:
        schema: Of this document.
        distprof_version: Who wrote it.
        source: Run directory, report or file of measurements that it is of.
        label: For people, for example ``ddp on 4 ranks, repeat 2``.
        git_commit: Of the code that ran; empty where unknown.
        created_ns: When the run ended, or was read where that is unknown; ns since the epoch.
        fingerprint: What must be alike.
        step_ns: Steady steps that no profiler disturbed, each as long as on the median rank, in
            order of time; traced steps where there are no others (``is_traced``).
        is_traced: Whether a profiler was recording during ``step_ns``.
        tokens_per_step: All ranks together.
        samples_per_step: All ranks together.
        parts: Where the traced step went; None without traces.
        overlap_ratio: Communication hidden by computation, of all communication.
        exposed_comm_ratio: Exposed communication of the step.
        bubble_ratio: Largest bubble fraction of its pipelines.
        imbalance_ratio: What stragglers cost of the step: slowdown − 1 of the replayed run.
        expert_imbalance_ratio: Largest max/mean load of its layers of experts.
        mfu_ratio: Model FLOP utilisation.
        peak_memory_bytes: Highest of all ranks: of the accelerator, of the process on CPUs.
        energy_per_step_j: All devices together.
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
