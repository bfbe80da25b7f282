"""The configuration of a job, from its live objects, its environment and its traces."""

from __future__ import annotations

import msgspec

from distprof.artefacts.record import Record
from distprof.artefacts.run_file import DdpSettings, FsdpSettings, OptimizerSettings
from distprof.sections.base import Result


class LoaderSetup(Record, frozen=True, kw_only=True):
    """Data loaders that were iterated, with the same configuration on these ranks."""

    ranks: tuple[int, ...]  # Ranks with this data loader.
    dataset: str  # Class of the dataset.
    is_iterable: bool  # Whether the dataset is iterable, without an index.
    num_workers: int  # Worker processes of each rank; 0: the training thread loads.
    pin_memory: bool  # Whether batches are put into pinned memory.
    prefetch_factor: int | None  # Batches that each worker loads ahead; null without workers.
    persistent_workers: bool  # Whether workers survive the end of an epoch.
    batch_size: int | None  # Samples of a batch; null if the sampler decides.
    sampler: str  # Class of the sampler.
    # Whether it is torch's own sampler over the whole dataset, the same on every rank.
    is_plain: bool
    # Ranks that a distributed sampler divides the data among; null without one.
    num_replicas: int | None
    shuffle: bool | None  # Whether it shuffles; null if unknown.
    num_epochs: int  # Steps in which an iteration over the loader began, minimum over ranks.
    # Epoch numbers that the sampler was given, maximum over ranks; null if it takes none.
    num_orders: int | None
    # Number of different first batches among ranks; null if any rank's is unknown.
    num_first_batches: int | None


class DdpSetup(DdpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Modules in ``DistributedDataParallel``, with the same configuration on these ranks.

    ``num_looks`` is the minimum over ranks, ``max_unused_bytes`` the maximum; null if any rank's is
    unknown.
    """

    ranks: tuple[int, ...]  # Ranks with this module.


class FsdpSetup(FsdpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sharded modules, with the same configuration on these ranks."""

    ranks: tuple[int, ...]  # Ranks with these modules.


class OptimizerSetup(OptimizerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Optimizers, with the same configuration on these ranks."""

    ranks: tuple[int, ...]  # Ranks with this optimizer.


class ConfinedRank(Record, frozen=True, kw_only=True):
    """A rank that may use half as many CPUs as the median rank of its host, or fewer."""

    rank: int  # Global rank.
    num_cpus: int  # CPUs that it may run on.
    usual_cpus: int  # CPUs that the median rank may run on.


class HostSetup(Record, frozen=True, kw_only=True):
    """Threads and CPUs of one host."""

    host: str  # Host name.
    ranks: tuple[int, ...]  # Ranks on it that reported.
    is_cpu: bool  # Whether none of them has a GPU.
    # Ranks on the host according to the launcher, otherwise those that reported.
    num_local_ranks: int
    num_cpus: int | None  # CPUs that at least one of the ranks may use; null if unknown.
    # Threads that torch uses for one operator, maximum over ranks; null if unknown.
    num_threads: int | None
    num_workers: int  # Workers of each rank's largest data loader, summed over ranks.
    # Share of these CPUs that was busy while the job ran, including other programs, 0 to 1; null if
    # unknown.
    cpu_busy_ratio: float | None
    omp_num_threads: str  # ``OMP_NUM_THREADS`` as set; empty if not set or different between ranks.
    processor: str = ""  # Model of the CPU; empty if unknown.
    # Ranks that may use half as many CPUs as the median rank, or fewer.
    confined: tuple[ConfinedRank, ...] = ()
    # Ranks that share their CPUs with another rank while all of these CPUs were busy. Which of them
    # waits longest for a CPU is chance.
    crowded: tuple[int, ...] = ()
    # Ranks that share a set of CPUs among at least as many ranks as it has CPUs. They compete for
    # CPUs even if nothing else runs.
    without_spare: tuple[int, ...] = ()


class RankInput(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank is fed, inside its analysed windows."""

    num_own_loads: int = 0  # Batches that the training thread loaded itself.
    num_worker_loads: int = 0  # Batches that it took from data loader workers.
    num_pageable: int = 0  # Copies from pageable CPU memory to the GPU.
    pageable_ns: int = 0  # Time in them.
    # The part of it that overlaps with neither computation nor communication.
    exposed_pageable_ns: int = 0


class RankFeed(RankInput, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Input of one rank in the analysed steps, from its trace."""

    rank: int  # Global rank.


class SettingsResult(Result, frozen=True, kw_only=True):
    """The configuration of a job, from its live objects and environment."""

    loaders: tuple[LoaderSetup, ...] = ()  # Data loaders that were iterated.
    ddp: tuple[DdpSetup, ...] = ()  # Modules in ``DistributedDataParallel``.
    fsdp: tuple[FsdpSetup, ...] = ()  # Fully sharded modules.
    optimizers: tuple[OptimizerSetup, ...] = ()  # Optimizers.
    hosts: tuple[HostSetup, ...] = ()  # Threads and CPUs of each host.
    # Input of each rank in the analysed steps, without ranks that loaded no batch and copied
    # nothing from pageable memory.
    feed: tuple[RankFeed, ...] = ()
    num_ranks: int = 0  # Ranks that reported their configuration.
    # Whether matrix multiplications may use TF32; null if unknown or different between ranks.
    allow_tf32: bool | None = None
    cudnn_benchmark: bool | None = None  # Whether cuDNN tries algorithms; null as above.
    # Whether deterministic algorithms are enforced; null as above.
    is_deterministic: bool | None = None
    num_compiled: int = 0  # Modules given to ``torch.compile``, maximum over ranks.
    num_checkpointed: int = 0  # Modules wrapped for activation checkpointing, maximum over ranks.

    @property
    def crowded(self) -> frozenset[int]:
        """Ranks that share busy CPUs, on all hosts."""
        return frozenset(rank for host in self.hosts for rank in host.crowded)

    @property
    def without_spare(self) -> frozenset[int]:
        """Ranks that share as few CPUs as they are, on all hosts."""
        return frozenset(rank for host in self.hosts for rank in host.without_spare)
