"""run.json: what ran, where, how it ended, and which probes recorded it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from distprof.artefacts import RUN_SCHEMA

Outcome = Literal["running", "completed", "failed", "interrupted"]
FailureKind = Literal[
    "exception", "killed", "exited", "hung", "stopped", "out_of_memory", "unknown"
]


class ProbeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of one probe on one rank.

    Args:
        name: For example ``profiler``, ``nvml``, ``step_log``.
        state: ``on`` it recorded; ``off`` it was not requested; ``unavailable`` it cannot work
            here; ``yielded`` it stopped for the user's own profiler; ``failed`` it failed while
            recording.
        reason: One sentence; empty when ``on`` without remarks.
        num_records: Records written.
        num_dropped: Records lost because the disk was full or too slow.
    """

    name: str
    state: Literal["on", "off", "unavailable", "yielded", "failed"]
    reason: str = ""
    num_records: int = 0
    num_dropped: int = 0


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Measured cost of probes, as a share of the step without them.

    Args:
        mode: ``always_on``: step log, counters and NVML; ``tracing``: torch.profiler recording;
            ``light``: torch.profiler recording the GPU alone; ``after``: steps after the profiler
            had stopped.
        method: How it was measured, one sentence.
        ratio: Median of paired differences / median step without the probes; 0.01 is 1 %.
        low: Lower end of the 95 % confidence interval of ``ratio``.
        high: Upper end.
        num_pairs: Pairs of neighbouring blocks compared.
        step_ns: Median step without the probes, ns.
    """

    mode: Literal["always_on", "tracing", "light", "after"]
    method: str
    ratio: float
    low: float
    high: float
    num_pairs: int
    step_ns: int


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank's process ended.

    Args:
        code: Exit code, None if a signal ended it or it never ended.
        signal: For example ``SIGKILL``; empty without a signal.
        ended_ns: When the launcher saw it end, ns since the epoch; None if it did not.
        by_launcher: Whether the launcher ended it after another rank had failed.
    """

    code: int | None = None
    signal: str = ""
    ended_ns: int | None = None
    by_launcher: bool = False


class ExitFile(Exit, frozen=True, kw_only=True):
    """``exit.json``: how a rank ended, and what only the launcher on its host could see.

    Args:
        code: As in run.json.
        signal: As in run.json.
        ended_ns: As in run.json.
        by_launcher: As in run.json.
        alive_until_ns: When it was last seen alive, ns since the epoch; None if it never was.
        told_to_end_ns: When the launcher asked it to end, None if it never did.
        state: State letter of its process (as in ``ps``) when the failure was noticed; empty if it
            had ended by then.
        struck_by: Where the kernel's out-of-memory killer acted in that time: ``group`` in the
            control group of the rank, ``machine`` elsewhere; empty if it did not, or unknown.
    """

    alive_until_ns: int | None = None
    told_to_end_ns: int | None = None
    state: str = ""
    struck_by: Literal["", "group", "machine"] = ""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The root cause of a failed job, from the launcher's evidence.

    Args:
        rank: The rank that failed first; None if unknown.
        kind: Kind of failure.
        message: The failure and its evidence, one sentence.
        step: Last step that the rank completed, None when unknown.
        detected_ns: When the launcher detected it, ns since the epoch.
    """

    rank: int | None
    kind: FailureKind
    message: str
    step: int | None = None
    detected_ns: int | None = None


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """An injected fault: the ground truth of a demonstration or a test.

    Args:
        kind: For example ``slow-rank``.
        target: Rank, stage, expert or node, depending on the kind; None for all.
        amount: Factor, milliseconds or share, depending on the kind.
        text: The fault as requested, for example ``slow-rank=3:1.2``.
    """

    kind: str
    target: int | None
    amount: float
    text: str


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Which ranks were traced, and the request that selected them.

    Args:
        profiled_ranks: Ranks with the profiler on, ascending; None means all.
        text: The selection as requested, for example ``replica`` or ``0,8``.
    """

    profiled_ranks: tuple[int, ...] | None = None
    text: str = "all"


class RankEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One rank: where it ran and how it ended.

    Args:
        rank: Global rank.
        node: Index of the node (torchrun's group rank), None when unknown.
        host: Host name.
        local_rank: Index on its node, None when unknown.
        device: Name of its accelerator, or ``cpu``.
        pid: Process id on its host.
        coordinates: Index along each mesh axis, for example ``{"pp": 1, "dp": 0}``.
        exit: How it ended, None if no launcher saw it.
        probes: State of each probe.
        overhead: Overhead measured on this rank.
        notes: Notes of its probes, one sentence each.
    """

    rank: int
    node: int | None = None
    host: str = ""
    local_rank: int | None = None
    device: str = ""
    pid: int | None = None
    coordinates: dict[str, int] = {}
    exit: Exit | None = None
    probes: tuple[ProbeStatus, ...] = ()
    overhead: tuple[Overhead, ...] = ()
    notes: tuple[str, ...] = ()


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``.

    Args:
        schema: ``distprof.run/1``; a reader refuses another major number.
        distprof_version: Version of the writer.
        kind: ``run`` a reference workload, ``capture`` a user's program, ``session`` probes used
            from a user's own code.
        command: The command line.
        workload: Name of the reference workload; empty for other programs.
        config: Complete configuration including defaults: sections to options to values.
        strategy: Readable name, for example ``FSDP (ZeRO-3)``; empty when unknown.
        mesh: Mesh axis to its size, slowest varying first (names of
            :class:`distprof.terms.MeshAxis`).
        world_size: Ranks of the job, None when unknown.
        ranks: Known facts about each rank, ascending.
        versions: ``python``, ``torch``, ``cuda``, ``nccl``, ``driver``.
        git_commit: Commit of the working directory; ends in ``+dirty`` if modified; empty if none.
        environment: Allow-listed variables only, never secrets.
        started_ns: ns since the epoch.
        ended_ns: None while it runs, or if the launcher was killed.
        outcome: How the job ended.
        failure: The root cause, if it failed.
        faults: Injected faults.
        coverage: Which ranks were traced.
        notes: Remarks for readers, one sentence each.
    """

    schema: str = RUN_SCHEMA
    distprof_version: str
    kind: Literal["run", "capture", "session"]
    command: tuple[str, ...]
    workload: str = ""
    config: dict[str, dict[str, Any]] = {}
    strategy: str = ""
    mesh: dict[str, int] = {}
    world_size: int | None = None
    ranks: tuple[RankEntry, ...] = ()
    versions: dict[str, str] = {}
    git_commit: str = ""
    environment: dict[str, str] = {}
    started_ns: int
    ended_ns: int | None = None
    outcome: Outcome = "running"
    failure: Failure | None = None
    faults: tuple[Fault, ...] = ()
    coverage: Coverage = Coverage()
    notes: tuple[str, ...] = ()
