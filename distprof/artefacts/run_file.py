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
    """State of one probe on one rank."""

    name: str  # For example ``profiler``, ``nvml``, ``step_log``.
    # ``on`` it recorded; ``off`` it was not requested; ``unavailable`` it cannot work here;
    # ``yielded`` it stopped for the user's own profiler; ``failed`` it failed while recording.
    state: Literal["on", "off", "unavailable", "yielded", "failed"]
    reason: str = ""  # One sentence; empty when ``on`` without remarks.
    num_records: int = 0  # Records written.
    num_dropped: int = 0  # Records lost because the disk was full or too slow.


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Measured cost of probes, as a share of the step without them."""

    # ``always_on``: step log, counters and NVML; ``tracing``: torch.profiler recording; ``light``:
    # torch.profiler recording the GPU alone; ``after``: steps after the profiler had stopped.
    mode: Literal["always_on", "tracing", "light", "after"]
    method: str  # How it was measured, one sentence.
    ratio: float  # Median of paired differences / median step without the probes; 0.01 is 1 %.
    low: float  # Lower end of the 95 % confidence interval of ``ratio``.
    high: float  # Upper end.
    num_pairs: int  # Pairs of neighbouring blocks compared.
    step_ns: int  # Median step without the probes, ns.


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank's process ended."""

    code: int | None = None  # Exit code, None if a signal ended it or it never ended.
    signal: str = ""  # For example ``SIGKILL``; empty without a signal.
    # When the launcher saw it end, ns since the epoch; None if it did not.
    ended_ns: int | None = None
    by_launcher: bool = False  # Whether the launcher ended it after another rank had failed.


class ExitFile(Exit, frozen=True, kw_only=True):
    """``exit.json``: how a rank ended, and what only the launcher on its host could see."""

    # When it was last seen alive, ns since the epoch; None if it never was.
    alive_until_ns: int | None = None
    told_to_end_ns: int | None = None  # When the launcher asked it to end, None if it never did.
    # State letter of its process (as in ``ps``) when the failure was noticed; empty if it had ended
    # by then.
    state: str = ""
    # Where the kernel's out-of-memory killer acted in that time: ``group`` in the control group of
    # the rank, ``machine`` elsewhere; empty if it did not, or unknown.
    struck_by: Literal["", "group", "machine"] = ""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The root cause of a failed job, from the launcher's evidence."""

    rank: int | None  # The rank that failed first; None if unknown.
    kind: FailureKind  # Kind of failure.
    message: str  # The failure and its evidence, one sentence.
    step: int | None = None  # Last step that the rank completed, None when unknown.
    detected_ns: int | None = None  # When the launcher detected it, ns since the epoch.


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """An injected fault: the ground truth of a demonstration or a test."""

    kind: str  # For example ``slow-rank``.
    target: int | None  # Rank, stage, expert or node, depending on the kind; None for all.
    amount: float  # Factor, milliseconds or share, depending on the kind.
    text: str  # The fault as requested, for example ``slow-rank=3:1.2``.


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Which ranks were traced, and the request that selected them."""

    # Ranks with the profiler on, ascending; None means all.
    profiled_ranks: tuple[int, ...] | None = None
    text: str = "all"  # The selection as requested, for example ``replica`` or ``0,8``.


class RankEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One rank: where it ran and how it ended."""

    rank: int  # Global rank.
    node: int | None = None  # Index of the node (torchrun's group rank), None when unknown.
    host: str = ""  # Host name.
    local_rank: int | None = None  # Index on its node, None when unknown.
    device: str = ""  # Name of its accelerator, or ``cpu``.
    pid: int | None = None  # Process id on its host.
    # Index along each mesh axis, for example ``{"pp": 1, "dp": 0}``.
    coordinates: dict[str, int] = {}
    exit: Exit | None = None  # How it ended, None if no launcher saw it.
    probes: tuple[ProbeStatus, ...] = ()  # State of each probe.
    overhead: tuple[Overhead, ...] = ()  # Overhead measured on this rank.
    notes: tuple[str, ...] = ()  # Notes of its probes, one sentence each.


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``."""

    schema: str = RUN_SCHEMA  # ``distprof.run/1``; a reader refuses another major number.
    distprof_version: str  # Version of the writer.
    # ``run`` a reference workload, ``capture`` a user's program, ``session`` probes used from a
    # user's own code.
    kind: Literal["run", "capture", "session"]
    command: tuple[str, ...]  # The command line.
    workload: str = ""  # Name of the reference workload; empty for other programs.
    # Complete configuration including defaults: sections to options to values.
    config: dict[str, dict[str, Any]] = {}
    strategy: str = ""  # Readable name, for example ``FSDP (ZeRO-3)``; empty when unknown.
    # Mesh axis to its size, slowest varying first (names of :class:`distprof.terms.MeshAxis`).
    mesh: dict[str, int] = {}
    world_size: int | None = None  # Ranks of the job, None when unknown.
    ranks: tuple[RankEntry, ...] = ()  # Known facts about each rank, ascending.
    versions: dict[str, str] = {}  # ``python``, ``torch``, ``cuda``, ``nccl``, ``driver``.
    # Commit of the working directory; ends in ``+dirty`` if modified; empty if none.
    git_commit: str = ""
    environment: dict[str, str] = {}  # Allow-listed variables only, never secrets.
    started_ns: int  # ns since the epoch.
    ended_ns: int | None = None  # None while it runs, or if the launcher was killed.
    outcome: Outcome = "running"  # How the job ended.
    failure: Failure | None = None  # The root cause, if it failed.
    faults: tuple[Fault, ...] = ()  # Injected faults.
    coverage: Coverage = Coverage()  # Which ranks were traced.
    notes: tuple[str, ...] = ()  # Remarks for readers, one sentence each.
