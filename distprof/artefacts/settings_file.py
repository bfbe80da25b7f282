"""settings.json: configuration of a rank's job, read (never changed) from its live objects."""

from __future__ import annotations

from typing import Annotated

import msgspec

from distprof.artefacts import SETTINGS_SCHEMA

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)]
_Limit = Annotated[int, msgspec.Meta(ge=0)]  # may be the largest integer, for no limit
_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]


class LoaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A ``torch.utils.data.DataLoader`` that was iterated; loaders with equal settings are merged.

    Args:
        num_loaders: Loaders with these settings.
        dataset: Class of its dataset.
        is_iterable: Whether the dataset is an ``IterableDataset``.
        num_workers: Worker processes; 0 loads in the training thread.
        pin_memory: Argument of the loader.
        prefetch_factor: Batches that each worker keeps ready, None without workers.
        persistent_workers: Argument of the loader.
        batch_size: Samples in a batch, None if the loader does not define it.
        sampler: Class of the sampler; empty if there is none.
        is_plain: Whether it samples the whole dataset with torch's random or sequential sampler, so
            that ranks can differ only if their datasets do.
        num_replicas: Replicas of a ``DistributedSampler``, None for other samplers.
        shuffle: Argument of a ``DistributedSampler``, None for other samplers.
        num_epochs: Training steps in which an iteration over it began. Iterations that began in
            the same step count once, so it is a lower bound.
        num_orders: Distinct epoch numbers that its ``DistributedSampler`` had when these iterations
            began, None for other samplers.
        first_batch: Checksum of the start of each tensor in its first batch, hexadecimal; empty
            if unknown, or if every tensor is constant.
    """

    num_loaders: _Count = 1
    dataset: str = ""
    is_iterable: bool = False
    num_workers: _Count
    pin_memory: bool = False
    prefetch_factor: _Count | None = None
    persistent_workers: bool = False
    batch_size: _Count | None = None
    sampler: str = ""
    is_plain: bool = False
    num_replicas: _Count | None = None
    shuffle: bool | None = None
    num_epochs: _Count = 0
    num_orders: _Count | None = None
    first_batch: str = ""


class DdpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A ``DistributedDataParallel`` module.

    Args:
        module: Class of the module inside.
        group_size: Ranks of its process group, None when unknown.
        find_unused_parameters: Argument of the wrapper.
        static_graph: Argument of the wrapper.
        gradient_as_bucket_view: Argument of the wrapper.
        bucket_cap_bytes: Largest bucket, None when unknown.
        comm_hook: Name of its communication hook; empty without one.
        num_parameters: Elements of its parameters.
        parameter_bytes: Size of its parameters.
        dtypes: Types of its parameters.
        num_looks: Iterations for which torch's logger reported unused parameters.
        max_unused_bytes: Largest size of unused parameters in one of these iterations on this rank;
            None before the first one.
    """

    module: str = ""
    group_size: _Count | None = None
    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    bucket_cap_bytes: _Limit | None = None
    comm_hook: str = ""
    num_parameters: _Count = 0
    parameter_bytes: _Count = 0
    dtypes: tuple[str, ...] = ()
    num_looks: _Count = 0
    max_unused_bytes: _Count | None = None


class FsdpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Modules sharded by ``fully_shard`` or ``FullyShardedDataParallel`` with the same settings.

    Args:
        api: ``fully_shard`` or ``FullyShardedDataParallel``.
        num_units: Modules that gather their own parameters.
        group_size: Ranks that a parameter is sharded over, None when unknown.
        num_parameters: Elements of all their parameters, over all ranks.
        parameter_bytes: Size of all their parameters, over all ranks.
        reshard_after_forward: Whether parameters are freed between forward and backward, None
            when unknown.
        param_dtype: Type of computation; empty if it is the type of the parameters.
        reduce_dtype: Type of gradient reduction; empty if it is the type of the parameters.
        num_prefetching: Units with an explicit list of modules to prefetch in the forward pass.
        is_offloaded: Whether parameters are in CPU memory.
    """

    api: str
    num_units: _Count = 1
    group_size: _Count | None = None
    num_parameters: _Count = 0
    parameter_bytes: _Count = 0
    reshard_after_forward: bool | None = None
    param_dtype: str = ""
    reduce_dtype: str = ""
    num_prefetching: _Count = 0
    is_offloaded: bool = False


class OptimizerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer of ``torch.optim``.

    Args:
        name: Class of the optimizer.
        is_sharded: Whether it is a ``ZeroRedundancyOptimizer``.
        num_parameters: Elements of the parameters that it updates; sharded ones count in full.
        fused: Argument of the optimizer, None for torch's choice.
        foreach: Argument of the optimizer, None for torch's choice.
    """

    name: str
    is_sharded: bool = False
    num_parameters: _Count = 0
    fused: bool | None = None
    foreach: bool | None = None


class ThreadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Threads of the process, and the CPUs that it may use.

    Args:
        num_threads: Threads that torch uses inside an operator.
        num_interop_threads: Operators that torch runs in parallel in TorchScript.
        omp_num_threads: The variable ``OMP_NUM_THREADS``; empty if it is not set.
        cpus: CPUs that the process may run on, for example ``0-15,32``; empty when unknown.
        processor: CPU model reported by the system; empty when unknown.
        num_local_ranks: Ranks on the host, None if the launcher does not report it.
        cpu_busy_ratio: Share of time in which ``cpus`` were busy with any process, from the end of
            the first step to the last write of this file; None without ``/proc/stat`` (Linux).
    """

    num_threads: _Count | None = None
    num_interop_threads: _Count | None = None
    omp_num_threads: str = ""
    cpus: str = ""
    processor: str = ""
    num_local_ranks: _Count | None = None
    cpu_busy_ratio: _Ratio | None = None


class SettingsFile(msgspec.Struct, frozen=True, kw_only=True):
    """``settings.json``: written after the first step, and again when probes stop.

    Args:
        schema: ``distprof.settings/1``.
        rank: Global rank.
        num_steps: Steps completed when it was written.
        loaders: Data loaders that were iterated.
        ddp: Modules wrapped in ``DistributedDataParallel``.
        fsdp: Sharded modules.
        optimizers: Optimizers.
        threads: Threads and CPUs.
        allow_tf32: Whether matrix products may use TF32, None when unknown.
        cudnn_benchmark: Whether cuDNN benchmarks algorithms, None when unknown.
        is_deterministic: Whether torch must use deterministic algorithms, None when unknown.
        num_compiled: Modules given to ``torch.compile``.
        num_checkpointed: Modules wrapped for activation checkpointing.
        notes: What could not be read, one sentence each.
    """

    schema: str = SETTINGS_SCHEMA
    rank: _Count
    num_steps: _Count = 0
    loaders: tuple[LoaderSettings, ...] = ()
    ddp: tuple[DdpSettings, ...] = ()
    fsdp: tuple[FsdpSettings, ...] = ()
    optimizers: tuple[OptimizerSettings, ...] = ()
    threads: ThreadSettings = ThreadSettings()
    allow_tf32: bool | None = None
    cudnn_benchmark: bool | None = None
    is_deterministic: bool | None = None
    num_compiled: _Count = 0
    num_checkpointed: _Count = 0
    notes: tuple[str, ...] = ()
