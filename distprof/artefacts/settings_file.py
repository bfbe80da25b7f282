"""settings.json: how a rank's job is set up, as its own objects say, read and never changed."""

from __future__ import annotations

from typing import Annotated

import msgspec

from distprof.artefacts import SETTINGS_SCHEMA

__all__ = [
    "DdpSettings",
    "FsdpSettings",
    "LoaderSettings",
    "OptimizerSettings",
    "SettingsFile",
    "ThreadSettings",
]

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)]
_Limit = Annotated[int, msgspec.Meta(ge=0)]  # may be the largest there is, for no limit
_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]


class LoaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A ``torch.utils.data.DataLoader`` that was iterated; those with the same settings are one.

    Args:
        num_loaders: Loaders with these settings.
        dataset: Class of its dataset.
        is_iterable: Whether that is an ``IterableDataset``.
        num_workers: Worker processes; 0 loads in the training thread.
        pin_memory: As given.
        prefetch_factor: Batches that each worker keeps ready, None without workers.
        persistent_workers: As given.
        batch_size: Samples in a batch, None where the loader does not say.
        sampler: Class of the sampler; empty where there is none.
        is_plain: Whether it draws from the whole dataset by torch's own random or sequential
            sampler, so that only the dataset itself may differ between ranks.
        num_replicas: Of a ``DistributedSampler``, None for others.
        shuffle: Of a ``DistributedSampler``, None for others.
        num_epochs: Steps of the training in which its iteration began, at least; several
            iterations begun in the same step count once.
        num_orders: Different epoch numbers that its ``DistributedSampler`` had at these times,
            None for other samplers.
        first_batch: Checksum of the start of each tensor in its first batch, hexadecimal; empty
            where that is not known, or every tensor is constant.
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
        find_unused_parameters: As given.
        static_graph: As given.
        gradient_as_bucket_view: As given.
        bucket_cap_bytes: Largest bucket, None when unknown.
        comm_hook: Name of its communication hook; empty without one.
        num_parameters: Elements of its parameters.
        parameter_bytes: Size of its parameters.
        dtypes: Of its parameters.
        num_looks: Iterations of which torch's logger said what was unused.
        max_unused_bytes: Most bytes of parameters that one of them left unused on this rank; None
            before the first.
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
        num_units: Modules with parameters of their own to gather.
        group_size: Ranks that a parameter is sharded over, None when unknown.
        num_parameters: Elements of all their parameters, over all ranks.
        parameter_bytes: Size of all their parameters, over all ranks.
        reshard_after_forward: Whether parameters are freed between forward and backward, None
            when unknown.
        param_dtype: That computation takes; empty for the parameters' own.
        reduce_dtype: That gradients are reduced in; empty for the parameters' own.
        num_prefetching: Units that were told which to gather next in the forward pass.
        is_offloaded: Whether parameters live in host memory.
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
        name: Its class.
        is_sharded: Whether it is a ``ZeroRedundancyOptimizer``.
        num_parameters: Elements of the parameters that it updates, a sharded one counted whole.
        fused: As given, None for torch's choice.
        foreach: As given, None for torch's choice.
    """

    name: str
    is_sharded: bool = False
    num_parameters: _Count = 0
    fused: bool | None = None
    foreach: bool | None = None


class ThreadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Threads of the process, and the processors that it may use.

    Args:
        num_threads: Threads that torch computes an operator with.
        num_interop_threads: Operators that torch runs beside each other in TorchScript.
        omp_num_threads: The variable ``OMP_NUM_THREADS``; empty where it is not set.
        cpus: Processors that the process may run on, for example ``0-15,32``; empty when unknown.
        processor: Model of the processors, as the system names it; empty when unknown.
        num_local_ranks: Ranks on the host, None where the launcher does not say.
        cpu_busy_ratio: Share of time that ``cpus`` were busy, with whatever ran there, from the end
            of the first step to the last writing; None where Linux's ``/proc/stat`` does not say.
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
        num_steps: Steps that had ended when it was written.
        loaders: Data loaders that were iterated.
        ddp: Modules wrapped in ``DistributedDataParallel``.
        fsdp: Sharded modules.
        optimizers: Optimizers.
        threads: Threads and processors.
        allow_tf32: Whether matrix products may use TF32, None when unknown.
        cudnn_benchmark: Whether cuDNN tries algorithms, None when unknown.
        is_deterministic: Whether torch was told to use deterministic algorithms, None when unknown.
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
