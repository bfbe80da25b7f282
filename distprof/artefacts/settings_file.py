"""settings.json: configuration of a rank's job, read (never changed) from its live objects."""

from __future__ import annotations

from typing import Annotated

import msgspec

from distprof.artefacts import SETTINGS_SCHEMA

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
