"""run.json: what was run, where, how it ended, and what was watching."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from distprof.artefacts import RUN_SCHEMA

__all__ = [
    "Coverage",
    "Exit",
    "ExitFile",
    "Failure",
    "Fault",
    "Outcome",
    "Overhead",
    "ProbeStatus",
    "RankEntry",
    "RunFile",
]

Outcome = Literal["running", "completed", "failed", "interrupted"]
FailureKind = Literal[
    "exception", "killed", "exited", "hung", "stopped", "out_of_memory", "unknown"
]


class ProbeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe did on one rank.

    Args:
        name: For example ``profiler``, ``nvml``, ``step_log``.
        state: ``on`` it recorded; ``off`` not asked for; ``unavailable`` it cannot work here;
            ``yielded`` it gave way to the user's own profiler; ``failed`` it broke on the way.
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
        mode: ``always_on``: step log, counters and NVML; ``tracing``: torch.profiler recording.
        method: How it was measured, one sentence.
        ratio: Median of paired differences / median step without; 0.01 is one percent.
        low: Lower end of the 95 % confidence interval of ``ratio``.
        high: Upper end.
        num_pairs: Pairs of neighbouring blocks compared.
        step_ns: Median step without the probes, ns.
    """

    mode: Literal["always_on", "tracing"]
    method: str
    ratio: float
    low: float
    high: float
    num_pairs: int
    step_ns: int


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank's process ended.

    Args:
        code: Exit code, None if it was ended by a signal or never ended.
        signal: For example ``SIGKILL``; empty when there was none.
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
        alive_until_ns: When it was last seen alive, ns since the epoch; None when it never was.
        told_to_end_ns: When the launcher asked it to end, None if it never did.
        state: Letter of its process's state (as ``ps`` shows it) when trouble was seen; empty
            when it had ended by then.
        struck_by: Where the kernel's out-of-memory killer struck meanwhile: in its control group,
            or somewhere on the machine; empty if nowhere or unknown.
    """

    alive_until_ns: int | None = None
    told_to_end_ns: int | None = None
    state: str = ""
    struck_by: Literal["", "group", "machine"] = ""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The first cause of a failed job, by the launcher's own evidence.

    Args:
        rank: Who failed first; None when that cannot be told.
        kind: What happened to it.
        message: One sentence: what, and what the evidence is.
        step: Last step that rank completed, None when unknown.
        detected_ns: When the launcher knew, ns since the epoch.
    """

    rank: int | None
    kind: FailureKind
    message: str
    step: int | None = None
    detected_ns: int | None = None


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that was injected on purpose: the ground truth of a demonstration or a test.

    Args:
        kind: For example ``slow-rank``.
        target: Rank, stage, expert or node, as the fault's kind has it; None for all.
        amount: Factor, milliseconds or share, as the fault's kind has it.
        text: As it was asked for, for example ``slow-rank=3:1.2``.
    """

    kind: str
    target: int | None
    amount: float
    text: str


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Which ranks were traced, and why not all.

    Args:
        profiled_ranks: Ranks with the profiler on, ascending; None means all.
        text: As it was asked for, for example ``replica`` or ``0,8``.
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
        exit: How it ended, None when nobody saw it.
        probes: What each probe did.
        overhead: Measured on this rank.
        notes: What its probes noted, one sentence each.
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
        distprof_version: Who wrote it.
        kind: ``run`` a reference workload, ``capture`` a user's program, ``session`` probes used
            from a user's own code.
        command: What was typed.
        workload: Name of the reference workload; empty for others.
        config: Its whole configuration, every default spelled out: sections to options to values.
        strategy: For people, for example ``FSDP (ZeRO-3)``; empty when unknown.
        mesh: Mesh axis to its size, slowest varying first (names of
            :class:`distprof.terms.MeshAxis`).
        world_size: Ranks of the job, None when unknown.
        ranks: What is known of each, ascending.
        versions: ``python``, ``torch``, ``cuda``, ``nccl``, ``driver``.
        git_commit: Of the folder the command ran in; ends in ``+dirty`` if changed; empty if none.
        environment: Allow-listed variables only, never secrets.
        started_ns: ns since the epoch.
        ended_ns: None while it runs, or when the launcher was killed.
        outcome: How the job ended.
        failure: The first cause, when it failed.
        faults: Injected on purpose.
        coverage: Which ranks were traced.
        notes: What a reader should know, one sentence each.
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
