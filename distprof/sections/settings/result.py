"""The configuration of a job, from its live objects, its environment and its traces.

Ranks with the same configuration share one record and are listed in its ``ranks``. Several records
for the same object show a difference between ranks.
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class LoaderSetup(Record, frozen=True, kw_only=True):
    """Data loaders that were iterated, with the same configuration on these ranks.

    Args:
        ranks: Ranks with this data loader.
        dataset: Class of the dataset.
        is_iterable: Whether the dataset is iterable, without an index.
        num_workers: Worker processes of each rank; 0: the training thread loads.
        pin_memory: Whether batches are put into pinned memory.
        prefetch_factor: Batches that each worker loads ahead; null without workers.
        persistent_workers: Whether workers survive the end of an epoch.
        batch_size: Samples of a batch; null if the sampler decides.
        sampler: Class of the sampler.
        is_plain: Whether it is torch's own sampler over the whole dataset, the same on every rank.
        num_replicas: Ranks that a distributed sampler divides the data among; null without one.
        shuffle: Whether it shuffles; null if unknown.
        num_epochs: Steps in which an iteration over the loader began, minimum over ranks.
        num_orders: Epoch numbers that the sampler was given, maximum over ranks; null if it takes
            none.
        num_first_batches: Number of different first batches among ranks; null if any rank's is
            unknown.
    """

    ranks: tuple[int, ...]
    dataset: str
    is_iterable: bool
    num_workers: int
    pin_memory: bool
    prefetch_factor: int | None
    persistent_workers: bool
    batch_size: int | None
    sampler: str
    is_plain: bool
    num_replicas: int | None
    shuffle: bool | None
    num_epochs: int
    num_orders: int | None
    num_first_batches: int | None


class DdpSetup(Record, frozen=True, kw_only=True):
    """Modules in ``DistributedDataParallel``, with the same configuration on these ranks.

    Args:
        ranks: Ranks with this module.
        module: Class of the wrapped module.
        group_size: Ranks that average gradients; null if unknown.
        find_unused_parameters: Whether DDP looks for unused parameters in every iteration.
        static_graph: Whether the graph is declared static.
        gradient_as_bucket_view: Whether gradients are views of the buckets.
        bucket_cap_bytes: Size limit of a bucket in bytes; null if unknown.
        comm_hook: Communication hook; empty without one.
        num_parameters: Parameters that are trained.
        parameter_bytes: Their size in bytes.
        dtypes: Their dtypes.
        num_looks: Iterations for which torch reported unused parameters, minimum over ranks.
        max_unused_bytes: Size of unused parameters in bytes, maximum over ranks; null if any rank's
            is unknown.
    """

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
    num_looks: int
    max_unused_bytes: int | None


class FsdpSetup(Record, frozen=True, kw_only=True):
    """Sharded modules, with the same configuration on these ranks.

    Args:
        ranks: Ranks with these modules.
        api: ``fully_shard`` or ``FullyShardedDataParallel``.
        num_units: Sharded units.
        group_size: Ranks that share a unit; null if unknown.
        num_parameters: Parameters, before sharding.
        parameter_bytes: Their size in bytes.
        reshard_after_forward: Whether parameters are freed after forward; null if units differ.
        param_dtype: Dtype of gathered parameters; empty for their own.
        reduce_dtype: Dtype of reduced gradients; empty for their own.
        num_prefetching: Units with explicit prefetching.
        is_offloaded: Whether parameters are kept on the CPU.
    """

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
    """Optimizers, with the same configuration on these ranks.

    Args:
        ranks: Ranks with this optimizer.
        name: Class.
        is_sharded: Whether its state is divided among ranks.
        num_parameters: Parameters that it updates.
        fused: Whether the fused implementation is on; null if not set.
        foreach: Whether the multi-tensor implementation is on; null if not set.
    """

    ranks: tuple[int, ...]
    name: str
    is_sharded: bool
    num_parameters: int
    fused: bool | None
    foreach: bool | None


class ConfinedRank(Record, frozen=True, kw_only=True):
    """A rank that may use half as many CPUs as the median rank of its host, or fewer.

    Args:
        rank: Global rank.
        num_cpus: CPUs that it may run on.
        usual_cpus: CPUs that the median rank may run on.
    """

    rank: int
    num_cpus: int
    usual_cpus: int


class HostSetup(Record, frozen=True, kw_only=True):
    """Threads and CPUs of one host.

    Args:
        host: Host name.
        ranks: Ranks on it that reported.
        is_cpu: Whether none of them has a GPU.
        num_local_ranks: Ranks on the host according to the launcher, otherwise those that reported.
        num_cpus: CPUs that at least one of the ranks may use; null if unknown.
        num_threads: Threads that torch uses for one operator, maximum over ranks; null if unknown.
        num_workers: Workers of each rank's largest data loader, summed over ranks.
        cpu_busy_ratio: Share of these CPUs that was busy while the job ran, including other
            programs, 0 to 1; null if unknown.
        omp_num_threads: ``OMP_NUM_THREADS`` as set; empty if not set or different between ranks.
        processor: Model of the CPU; empty if unknown.
        confined: Ranks that may use half as many CPUs as the median rank, or fewer.
        crowded: Ranks that share their CPUs with another rank while all of these CPUs were busy.
            Which of them waits longest for a CPU is chance.
        without_spare: Ranks that share a set of CPUs among at least as many ranks as it has CPUs.
            They compete for CPUs even if nothing else runs.
    """

    host: str
    ranks: tuple[int, ...]
    is_cpu: bool
    num_local_ranks: int
    num_cpus: int | None
    num_threads: int | None
    num_workers: int
    cpu_busy_ratio: float | None
    omp_num_threads: str
    processor: str = ""
    confined: tuple[ConfinedRank, ...] = ()
    crowded: tuple[int, ...] = ()
    without_spare: tuple[int, ...] = ()


class RankFeed(Record, frozen=True, kw_only=True):
    """Input of one rank in the analysed steps, from its trace.

    Args:
        rank: Global rank.
        num_own_loads: Batches that the training thread loaded itself.
        num_worker_loads: Batches that workers had loaded.
        num_pageable: Copies from pageable CPU memory.
        pageable_ns: Duration of these copies.
        exposed_pageable_ns: Part of it that overlaps with neither computation nor communication.
    """

    rank: int
    num_own_loads: int
    num_worker_loads: int
    num_pageable: int
    pageable_ns: int
    exposed_pageable_ns: int


class SettingsResult(Result, frozen=True, kw_only=True):
    """The configuration of a job, from its live objects and environment.

    Args:
        loaders: Data loaders that were iterated.
        ddp: Modules in ``DistributedDataParallel``.
        fsdp: Fully sharded modules.
        optimizers: Optimizers.
        hosts: Threads and CPUs of each host.
        feed: Input of each rank in the analysed steps, without ranks that loaded no batch and
            copied nothing from pageable memory.
        num_ranks: Ranks that reported their configuration.
        allow_tf32: Whether matrix multiplications may use TF32; null if unknown or different
            between ranks.
        cudnn_benchmark: Whether cuDNN tries algorithms; null as above.
        is_deterministic: Whether deterministic algorithms are enforced; null as above.
        num_compiled: Modules given to ``torch.compile``, maximum over ranks.
        num_checkpointed: Modules wrapped for activation checkpointing, maximum over ranks.
    """

    loaders: tuple[LoaderSetup, ...] = ()
    ddp: tuple[DdpSetup, ...] = ()
    fsdp: tuple[FsdpSetup, ...] = ()
    optimizers: tuple[OptimizerSetup, ...] = ()
    hosts: tuple[HostSetup, ...] = ()
    feed: tuple[RankFeed, ...] = ()
    num_ranks: int = 0
    allow_tf32: bool | None = None
    cudnn_benchmark: bool | None = None
    is_deterministic: bool | None = None
    num_compiled: int = 0
    num_checkpointed: int = 0

    @property
    def crowded(self) -> frozenset[int]:
        """Ranks that share busy CPUs, on all hosts."""
        return frozenset(rank for host in self.hosts for rank in host.crowded)

    @property
    def without_spare(self) -> frozenset[int]:
        """Ranks that share as few CPUs as they are, on all hosts."""
        return frozenset(rank for host in self.hosts for rank in host.without_spare)
