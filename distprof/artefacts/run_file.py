"""run.json (what ran, where, how it ended), files of each rank's process, and requests to ranks.

``requests/ID.json`` is a request of ``distprof attach --all-nodes``. The folder ``requests/ID``
next to it receives the answers of the ranks, ``rank00003/trace.json.gz`` and similar files, laid
out as in a run directory, and one file per node in ``replies/``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from distprof.artefacts import (
    RANK_SCHEMA,
    REPLY_SCHEMA,
    REQUEST_SCHEMA,
    RUN_SCHEMA,
    SETTINGS_SCHEMA,
)

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


class RankFile(msgspec.Struct, frozen=True, kw_only=True):
    """``rank.json``: written when probes start, and again when they stop."""

    schema: str = RANK_SCHEMA  # ``distprof.rank/1``.
    rank: int  # Global rank.
    world_size: int | None = None  # World size in this process, None without a process group.
    node: int | None = None  # torchrun's group rank or SLURM's node id, None when unknown.
    host: str = ""  # Host name.
    local_rank: int | None = None  # Index on its node, None when unknown.
    device: str = ""  # Name of its accelerator, or ``cpu``.
    backend: str = ""  # Backend of the default process group; empty without one.
    pid: int  # Process id.
    mesh: dict[str, int] = {}  # Mesh axis to its size, as far as the process knows.
    coordinates: dict[str, int] = {}  # Index along each mesh axis.
    versions: dict[str, str] = {}  # As in run.json.
    started_ns: int  # ns since the epoch.
    ended_ns: int | None = None  # None until the probes have stopped cleanly.
    probes: tuple[ProbeStatus, ...] = ()  # State of each probe so far.
    overhead: tuple[Overhead, ...] = ()  # Overhead measured so far.
    notes: tuple[str, ...] = ()  # One sentence each.


class ErrorFile(msgspec.Struct, frozen=True, kw_only=True):
    """``error.json``: why a rank's Python code stopped."""

    rank: int  # Global rank.
    time_ns: int  # Time of the exception, ns since the epoch.
    kind: str  # Name of the exception's class.
    message: str  # Text of the exception.
    traceback: str  # Traceback in Python's format.
    # Whether the exception only reports that another rank disappeared or timed out.
    is_peer_loss: bool
    step: int | None = None  # Last step completed, None before the first.


class AttachFile(msgspec.Struct, frozen=True, kw_only=True):
    """``attach.json``: where ``distprof attach`` reaches a live rank."""

    rank: int  # Global rank.
    host: str  # The only host from which it can be reached.
    pid: int  # Process id on that host.
    # Start of that process, in clock ticks since the machine booted. Together with the pid, it
    # identifies the process uniquely.
    started_ticks: int = 0
    # Path of the unix socket that its worker server listens on; empty if there is none, and
    # ``reason`` says why.
    socket: str = ""
    reason: str = ""  # Why the rank cannot be reached.
    # Whether it receives requests in the run directory, through a rank of its node.
    takes_requests: bool = False


def with_ranks(run: RunFile, found: list[RankFile]) -> RunFile:
    """``run`` merged with the files of its ranks; facts that only the launcher knows are kept."""
    entries = {entry.rank: entry for entry in run.ranks}
    for file in found:
        entry = entries.get(file.rank, RankEntry(rank=file.rank))
        entries[file.rank] = msgspec.structs.replace(
            entry,
            node=file.node if file.node is not None else entry.node,
            host=file.host or entry.host,
            local_rank=file.local_rank if file.local_rank is not None else entry.local_rank,
            device=file.device or entry.device,
            pid=file.pid,
            coordinates=file.coordinates or entry.coordinates,
            probes=file.probes,
            overhead=file.overhead,
            notes=file.notes,
        )
    first = min(found, key=lambda file: file.rank, default=None)
    return msgspec.structs.replace(
        run,
        ranks=tuple(entries[rank] for rank in sorted(entries)),
        mesh=run.mesh or (first.mesh if first else {}),
        world_size=run.world_size or (first.world_size if first else None),
        versions={**(first.versions if first else {}), **run.versions},
    )


MAX_REQUEST_BYTES = 2**20
"""A request that names 100,000 ranks is smaller."""
MAX_REPLY_BYTES = 2**20


class RequestFile(msgspec.Struct, frozen=True, kw_only=True):
    """``requests/ID.json``: one request to the ranks of a running job."""

    schema: str = REQUEST_SCHEMA  # ``distprof.request/1``.
    id: str  # Name of the file without ``.json``, and of the folder for the answers.
    # The requested data: a trace, the Python stacks, or a Flight Recorder dump.
    kind: Literal["profile", "stacks", "flight"]
    seconds: float = 0.0  # Duration of the trace; 0 for other kinds.
    ranks: tuple[int, ...] | None = None  # The requested ranks, None for all.
    asked_ns: int  # Time of the request, ns since the epoch.
    start_ns: int  # When all ranks begin, ns since the epoch.
    deadline_ns: int  # When the requester stops waiting for answers, ns since the epoch.
    host: str = ""  # Host of the requesting process.
    pid: int = 0  # Process id of the requesting process.


class RankReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one rank, as its node reports it."""

    rank: int  # Global rank.
    # ``accepted``: it will answer; ``done``: its answer is in its folder; ``failed``: it has no
    # answer, and ``reason`` says why.
    state: Literal["accepted", "done", "failed"]
    reason: str = ""  # Why there is no answer.
    letter: str = ""  # State of its process (as in ``ps``); empty if the process is gone.
    # When the rank received the request, ns since the epoch by the clock of its node; None if it
    # did not.
    began_ns: int | None = None
    num_bytes: int = 0  # Size of its answer.


class ReplyFile(msgspec.Struct, frozen=True, kw_only=True):
    """``requests/ID/replies/HOST-TOKEN.json``: the reply of one node to a request."""

    schema: str = REPLY_SCHEMA  # ``distprof.reply/1``.
    id: str  # Id of the request.
    host: str  # Host name of the node.
    refusal: str = ""  # Why the node refuses the request; empty if it accepts.
    is_final: bool = False  # Whether the reply is complete.
    ranks: tuple[RankReply, ...] = ()  # The requested ranks on the node.


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)]
_Limit = Annotated[int, msgspec.Meta(ge=0)]  # may be the largest integer, for no limit
_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]


class LoaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A ``torch.utils.data.DataLoader`` that was iterated; those with equal settings are merged."""

    num_loaders: _Count = 1  # Loaders with these settings.
    dataset: str = ""  # Class of its dataset.
    is_iterable: bool = False  # Whether the dataset is an ``IterableDataset``.
    num_workers: _Count  # Worker processes; 0 loads in the training thread.
    pin_memory: bool = False  # Argument of the loader.
    # Batches that each worker keeps ready, None without workers.
    prefetch_factor: _Count | None = None
    persistent_workers: bool = False  # Argument of the loader.
    batch_size: _Count | None = None  # Samples in a batch, None if the loader does not define it.
    sampler: str = ""  # Class of the sampler; empty if there is none.
    # Whether it samples the whole dataset with torch's random or sequential sampler, so that ranks
    # can differ only if their datasets do.
    is_plain: bool = False
    # Replicas of a ``DistributedSampler``, None for other samplers.
    num_replicas: _Count | None = None
    shuffle: bool | None = None  # Argument of a ``DistributedSampler``, None for other samplers.
    # Training steps in which an iteration over it began. Iterations that began in the same step
    # count once, so it is a lower bound.
    num_epochs: _Count = 0
    # Distinct epoch numbers that its ``DistributedSampler`` had when these iterations began, None
    # for other samplers.
    num_orders: _Count | None = None
    # Checksum of the start of each tensor in its first batch, hexadecimal; empty if unknown, or if
    # every tensor is constant.
    first_batch: str = ""


class DdpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A ``DistributedDataParallel`` module."""

    module: str = ""  # Class of the module inside.
    group_size: _Count | None = None  # Ranks of its process group, None when unknown.
    find_unused_parameters: bool = False  # Argument of the wrapper.
    static_graph: bool = False  # Argument of the wrapper.
    gradient_as_bucket_view: bool = False  # Argument of the wrapper.
    bucket_cap_bytes: _Limit | None = None  # Largest bucket, None when unknown.
    comm_hook: str = ""  # Name of its communication hook; empty without one.
    num_parameters: _Count = 0  # Elements of its parameters.
    parameter_bytes: _Count = 0  # Size of its parameters.
    dtypes: tuple[str, ...] = ()  # Types of its parameters.
    num_looks: _Count = 0  # Iterations for which torch's logger reported unused parameters.
    # Largest size of unused parameters in one of these iterations on this rank; None before the
    # first one.
    max_unused_bytes: _Count | None = None


class FsdpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Modules sharded by ``fully_shard`` or ``FullyShardedDataParallel`` with the same settings."""

    api: str  # ``fully_shard`` or ``FullyShardedDataParallel``.
    num_units: _Count = 1  # Modules that gather their own parameters.
    group_size: _Count | None = None  # Ranks that a parameter is sharded over, None when unknown.
    num_parameters: _Count = 0  # Elements of all their parameters, over all ranks.
    parameter_bytes: _Count = 0  # Size of all their parameters, over all ranks.
    # Whether parameters are freed between forward and backward, None when unknown.
    reshard_after_forward: bool | None = None
    param_dtype: str = ""  # Type of computation; empty if it is the type of the parameters.
    reduce_dtype: str = ""  # Type of gradient reduction; empty if it is the type of the parameters.
    # Units with an explicit list of modules to prefetch in the forward pass.
    num_prefetching: _Count = 0
    is_offloaded: bool = False  # Whether parameters are in CPU memory.


class OptimizerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer of ``torch.optim``."""

    name: str  # Class of the optimizer.
    is_sharded: bool = False  # Whether it is a ``ZeroRedundancyOptimizer``.
    # Elements of the parameters that it updates; sharded ones count in full.
    num_parameters: _Count = 0
    fused: bool | None = None  # Argument of the optimizer, None for torch's choice.
    foreach: bool | None = None  # Argument of the optimizer, None for torch's choice.


class ThreadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Threads of the process, and the CPUs that it may use."""

    num_threads: _Count | None = None  # Threads that torch uses inside an operator.
    # Operators that torch runs in parallel in TorchScript.
    num_interop_threads: _Count | None = None
    omp_num_threads: str = ""  # The variable ``OMP_NUM_THREADS``; empty if it is not set.
    cpus: str = ""  # CPUs that the process may run on, for example ``0-15,32``; empty when unknown.
    processor: str = ""  # CPU model reported by the system; empty when unknown.
    # Ranks on the host, None if the launcher does not report it.
    num_local_ranks: _Count | None = None
    # Share of time in which ``cpus`` were busy with any process, from the end of the first step to
    # the last write of this file; None without ``/proc/stat`` (Linux).
    cpu_busy_ratio: _Ratio | None = None


class SettingsFile(msgspec.Struct, frozen=True, kw_only=True):
    """``settings.json``: written after the first step, and again when probes stop."""

    schema: str = SETTINGS_SCHEMA  # ``distprof.settings/1``.
    rank: _Count  # Global rank.
    num_steps: _Count = 0  # Steps completed when it was written.
    loaders: tuple[LoaderSettings, ...] = ()  # Data loaders that were iterated.
    ddp: tuple[DdpSettings, ...] = ()  # Modules wrapped in ``DistributedDataParallel``.
    fsdp: tuple[FsdpSettings, ...] = ()  # Sharded modules.
    optimizers: tuple[OptimizerSettings, ...] = ()  # Optimizers.
    threads: ThreadSettings = ThreadSettings()  # Threads and CPUs.
    allow_tf32: bool | None = None  # Whether matrix products may use TF32, None when unknown.
    cudnn_benchmark: bool | None = None  # Whether cuDNN benchmarks algorithms, None when unknown.
    # Whether torch must use deterministic algorithms, None when unknown.
    is_deterministic: bool | None = None
    num_compiled: _Count = 0  # Modules given to ``torch.compile``.
    num_checkpointed: _Count = 0  # Modules wrapped for activation checkpointing.
    notes: tuple[str, ...] = ()  # What could not be read, one sentence each.
