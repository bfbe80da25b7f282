"""The configuration of a job, from its live objects, its environment and its traces.

Ranks with the same configuration share one record and are listed in its ``ranks``. Several records
for the same object show a difference between ranks.
"""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = [
    "DdpSetup",
    "FsdpSetup",
    "HostSetup",
    "LoaderSetup",
    "OptimizerSetup",
    "RankFeed",
    "SettingsResult",
]


class LoaderSetup(Record, frozen=True, kw_only=True):
    """Data loaders that were iterated, with the same configuration on these ranks."""

    ranks: tuple[int, ...]
    dataset: str
    is_iterable: bool
    num_workers: int
    pin_memory: bool
    prefetch_factor: int | None
    persistent_workers: bool
    batch_size: int | None
    sampler: str
    is_plain: bool  # torch's own sampler over the whole dataset, the same on every rank
    num_replicas: int | None
    shuffle: bool | None
    num_epochs: int  # steps in which an iteration began, fewest of all ranks
    num_orders: int | None  # epoch numbers that the sampler was given, most of all ranks
    num_first_batches: int | None  # different first batches; None if a rank cannot identify its own


class DdpSetup(Record, frozen=True, kw_only=True):
    """Modules in ``DistributedDataParallel``, with the same configuration on these ranks."""

    ranks: tuple[int, ...]
    module: str
    group_size: int | None
    find_unused_parameters: bool
    static_graph: bool
    gradient_as_bucket_view: bool
    bucket_cap_bytes: int | None
    comm_hook: str
    num_parameters: int
    parameter_bytes: int
    dtypes: tuple[str, ...]
    num_looks: int  # iterations for which torch reported unused parameters, fewest of all ranks
    max_unused_bytes: int | None  # most of all ranks; None if a rank does not know


class FsdpSetup(Record, frozen=True, kw_only=True):
    """Sharded modules, with the same configuration on these ranks."""

    ranks: tuple[int, ...]
    api: str
    num_units: int
    group_size: int | None
    num_parameters: int
    parameter_bytes: int
    reshard_after_forward: bool | None
    param_dtype: str
    reduce_dtype: str
    num_prefetching: int
    is_offloaded: bool


class OptimizerSetup(Record, frozen=True, kw_only=True):
    """Optimizers, with the same configuration on these ranks."""

    ranks: tuple[int, ...]
    name: str
    is_sharded: bool
    num_parameters: int
    fused: bool | None
    foreach: bool | None


class HostSetup(Record, frozen=True, kw_only=True):
    """Threads and CPUs of one host."""

    host: str
    ranks: tuple[int, ...]  # that say so
    is_cpu: bool  # whether none of them has an accelerator
    num_local_ranks: int  # on the host, from the launcher or as far as known
    num_cpus: int | None  # that at least one of the ranks may use
    num_threads: int | None  # that torch computes an operator with, most of all ranks
    num_workers: int  # of the data loader with most of them, summed over the ranks
    cpu_busy_ratio: float | None  # of these CPUs while the job ran, including other processes
    omp_num_threads: str  # as set; empty if unset or different between ranks
    processor: str = ""  # model of the CPUs; empty if unknown


class RankFeed(Record, frozen=True, kw_only=True):
    """Input of one rank in the analysed steps, from its trace."""

    rank: int
    num_own_loads: int  # batches that the training thread loaded itself
    num_worker_loads: int  # batches that workers had loaded
    num_pageable: int  # copies from pageable CPU memory
    pageable_ns: int
    exposed_pageable_ns: int


class SettingsResult(Result, frozen=True, kw_only=True):
    """The configuration of a job, from its live objects and environment."""

    loaders: tuple[LoaderSetup, ...] = ()
    ddp: tuple[DdpSetup, ...] = ()
    fsdp: tuple[FsdpSetup, ...] = ()
    optimizers: tuple[OptimizerSetup, ...] = ()
    hosts: tuple[HostSetup, ...] = ()
    feed: tuple[RankFeed, ...] = ()
    num_ranks: int = 0  # that recorded their configuration
    allow_tf32: bool | None = None  # None if unknown or different between ranks
    cudnn_benchmark: bool | None = None
    is_deterministic: bool | None = None
    num_compiled: int = 0  # modules given to torch.compile, most of all ranks
    num_checkpointed: int = 0  # modules wrapped for activation checkpointing, most of all ranks
