"""Results of a healthy job, and ways to spoil them: a rule's fixture changes what it is about.

Eight ranks on two nodes, five steps of 20 ms: 16 ms computation, 8 ms communication of which 7 ms
is hidden, 0.2 ms copies, 2.8 ms idle spread over small causes. Numbers are written out by hand.
"""

from __future__ import annotations

from typing import Any

import msgspec

from distprof.sections.base import Result
from distprof.sections.capture import CaptureResult, NodeClock
from distprof.sections.collective_log import CollectiveLogResult
from distprof.sections.collectives import CollectiveClass, CollectivesResult
from distprof.sections.computation import ComputationResult
from distprof.sections.efficiency import DeviceMemory, EfficiencyResult
from distprof.sections.ending import EndingResult
from distprof.sections.gradients import GradientGroup, GradientsResult
from distprof.sections.idle import CpuPause, IdleResult, PausesResult, RankIdle, RankPauses
from distprof.sections.job import JobResult, ProbeOverhead
from distprof.sections.kernels import KernelsResult
from distprof.sections.memory import MemoryResult
from distprof.sections.moe import MoeExchange, MoeLayer, MoePlacement, MoeResult
from distprof.sections.nccl import (
    BETWEEN,
    INSIDE,
    NcclHost,
    NcclResult,
    NcclSetting,
    NcclTransport,
)
from distprof.sections.overlap import OverlapResult, RankOverlap
from distprof.sections.perturbation import PerturbationResult
from distprof.sections.pipeline import (
    PipelineGroup,
    PipelinePosition,
    PipelinePrediction,
    PipelineRank,
    PipelineResult,
)
from distprof.sections.placement import PlacedAxis, PlacedNode, PlacementResult
from distprof.sections.ras import RasResult
from distprof.sections.settings import (
    DdpSetup,
    HostSetup,
    LoaderSetup,
    RankFeed,
    SettingsResult,
)
from distprof.sections.sharding import ShardedAxis, ShardingResult
from distprof.sections.step_log import RankStepLog, StepLogResult
from distprof.sections.stragglers import (
    MessageRank,
    MessagesResult,
    RankStraggler,
    StepBlame,
    StragglersResult,
)
from distprof.sections.summaries import (
    CollectiveSummaryResult,
    InputReadinessResult,
    OperatorTableResult,
    SummarisedClass,
)
from distprof.sections.telemetry import (
    DeviceCondition,
    DeviceNvlink,
    RankTelemetry,
    TelemetryResult,
    WindowSensors,
)
from distprof.sections.time import (
    BreakdownResult,
    RankBreakdown,
    RankWaterfall,
    StepBreakdown,
    StepTimeResult,
    WaterfallResult,
)
from distprof.sections.training_log import TrainingLogResult, TrainingTimer
from distprof.sections.whatif import WhatIfResult
from distprof.terms import Confidence, StepSource, StragglerCause, StragglerPattern
from distprof.units import NS_PER_MS

RANKS = tuple(range(8))
STEPS = (10, 11, 12, 13, 14)
MS = NS_PER_MS
US = MS // 1_000

Results = dict[type[Result], Result]

OVERHEAD = ProbeOverhead(
    mode="tracing",
    ratio=0.03,
    low=0.01,
    high=0.05,
    num_pairs=8,
    step_ns=20 * MS,
    ranks=RANKS,
    method="traced steps against those around them",
)

PARTS_MS = {
    "computation_ns": 16.0,
    "exposed_transfer_ns": 0.8,
    "exposed_wait_ns": 0.2,
    "exposed_p2p_wait_ns": 0.0,
    "exposed_comm_unsplit_ns": 0.0,
    "exposed_copy_ns": 0.2,
    "idle_host_ns": 1.0,
    "idle_sync_ns": 0.2,
    "idle_pause_ns": 0.2,
    "idle_input_ns": 0.2,
    "idle_comm_wait_ns": 0.2,
    "idle_unknown_ns": 1.0,
}
"""The mean step by cause; adds up to 20 ms."""


def healthy(*, communication_ms: float = 8.0, steps: bool = True, **parts_ms: float) -> Results:
    """All results of a healthy job.

    Args:
        communication_ms: Per rank and step, hidden or not.
        steps: Whether the traces have step marks.
        **parts_ms: Other parts of the mean step (names of RankWaterfall without ``_ns``), in ms;
            the step grows or shrinks with them.
    """
    parts = {**PARTS_MS, **{f"{name}_ns": ms for name, ms in parts_ms.items()}}
    step = {name: round(ms * MS) for name, ms in parts.items()}
    comm = round(communication_ms * MS)
    results: tuple[Result, ...] = (
        _step_time(sum(step.values()), steps),
        _breakdown(step),
        _overlap(step, comm),
        _waterfall(step),
        _idle(step),
        collectives(),
        stragglers(),
        KernelsResult(categories=(), kernels=(), ranks=()),
        ComputationResult(),
        capture(),
        EndingResult(),
        JobResult(kind="run", workload="ddp", outcome="completed", overhead=(OVERHEAD,)),
        step_log(sum(step.values())),
        pauses(),
        MoeResult(layers=(moe_layer("0"), moe_layer("1"))),
        pipeline(),
        messages(),
        WhatIfResult(),
        nccl(),
        telemetry(),
        settings(),
        gradients(gradient_group()),
        placement(),
        efficiency(),
        MemoryResult(),
        ShardingResult(),
        TrainingLogResult(),
        CollectiveSummaryResult(),
        CollectiveLogResult(),
        RasResult(),
        InputReadinessResult(),
        OperatorTableResult(),
        perturbation(sum(step.values())),
    )
    return {type(result): result for result in results}


def settings(**fields: Any) -> SettingsResult:
    """DDP on 64 processors to a node, four loader workers to a rank, shuffled anew each epoch."""
    usual: dict[str, Any] = {
        "num_ranks": 8,
        "loaders": (loader(),),
        "ddp": (ddp(),),
        "hosts": (host_setup("node-1", (0, 1, 2, 3)), host_setup("node-2", (4, 5, 6, 7))),
        "feed": tuple(feed(rank) for rank in RANKS),
    }
    return SettingsResult(**{**usual, **fields})


def loader(**fields: Any) -> LoaderSetup:
    """A loader of all ranks, in its third epoch."""
    usual: dict[str, Any] = {
        "ranks": RANKS,
        "dataset": "Images",
        "is_iterable": False,
        "num_workers": 4,
        "pin_memory": True,
        "prefetch_factor": 2,
        "persistent_workers": True,
        "batch_size": 32,
        "sampler": "DistributedSampler",
        "is_plain": False,
        "num_replicas": 8,
        "shuffle": True,
        "num_epochs": 3,
        "num_orders": 3,
        "num_first_batches": 8,
    }
    return LoaderSetup(**{**usual, **fields})


def ddp(**fields: Any) -> DdpSetup:
    """A module on all ranks."""
    usual: dict[str, Any] = {
        "ranks": RANKS,
        "module": "ResNet",
        "group_size": 8,
        "find_unused_parameters": False,
        "static_graph": False,
        "gradient_as_bucket_view": True,
        "bucket_cap_bytes": 26_214_400,
        "comm_hook": "",
        "num_parameters": 25_000_000,
        "parameter_bytes": 100_000_000,
        "dtypes": ("float32",),
        "num_looks": 0,
        "max_unused_bytes": None,
    }
    return DdpSetup(**{**usual, **fields})


def host_setup(host: str, ranks: tuple[int, ...], **fields: Any) -> HostSetup:
    """A host with 64 processors and GPUs."""
    usual: dict[str, Any] = {
        "is_cpu": False,
        "num_local_ranks": len(ranks),
        "num_cpus": 64,
        "num_threads": 8,
        "num_workers": 4 * len(ranks),
        "omp_num_threads": "8",
        "cpu_busy_ratio": 0.4,
    }
    return HostSetup(host=host, ranks=ranks, **{**usual, **fields})


def feed(rank: int, **fields: Any) -> RankFeed:
    """Five batches from workers, copied from pinned memory but for a few numbers."""
    usual: dict[str, Any] = {
        "num_own_loads": 0,
        "num_worker_loads": 5,
        "num_pageable": 5,
        "pageable_ns": 10 * US,
        "exposed_pageable_ns": 5 * US,
    }
    return RankFeed(rank=rank, **{**usual, **fields})


def nccl(**fields: Any) -> NcclResult:
    """Logs of eight ranks on two nodes with a card for each GPU, all over GPUDirect RDMA."""
    usual: dict[str, Any] = {
        "num_files": 8,
        "num_processes": 8,
        "num_hosts": 2,
        "networks": ("IB",),
        "versions": (nccl_setting("version", "2.27.7+cuda13.0"),),
        "settings": (nccl_setting("NCCL_BUFFSIZE", "8388608"),),
        "transports": (transport(BETWEEN, "NET/IB", has_gdr=True), transport(INSIDE, "P2P/CUMEM")),
        "hosts": (nccl_host("node-1", (0, 1, 2, 3)), nccl_host("node-2", (4, 5, 6, 7))),
    }
    return NcclResult(**{**usual, **fields})


def transport(where: str, name: str, *, has_gdr: bool = False, num_lines: int = 64) -> Any:
    """One way in which ranks are connected."""
    return NcclTransport(
        where=where,
        transport=name,
        has_gdr=has_gdr,
        num_lines=num_lines,
        num_connections=num_lines,
        num_pairs=8,
        num_processes=8,
    )


def nccl_host(host: str, ranks: tuple[int, ...], num_used: int = 4) -> NcclHost:
    """A host with four cards."""
    cards = tuple(f"mlx5_{index}:1" for index in range(4))
    return NcclHost(
        host=host,
        num_processes=len(ranks),
        ranks=ranks,
        cards=cards,
        used_cards=cards[:num_used],
        links=("IB",),
    )


def nccl_setting(name: str, value: str, ranks: tuple[int, ...] = RANKS) -> NcclSetting:
    """A setting of some ranks, four to a node."""
    return NcclSetting(
        name=name,
        value=value,
        num_processes=len(ranks),
        ranks=ranks,
        hosts=tuple(sorted({f"node-{rank // 4 + 1}" for rank in ranks})),
    )


def sharded_axis(**fields: Any) -> ShardedAxis:
    """Eight ranks share 17 units of 26 MB: gathered twice, reduced once, most of it ahead."""
    usual: dict[str, Any] = {
        "axis": "dp_shard",
        "group_size": 8,
        "num_nodes": 2,
        "gathers_per_step": 34.0,
        "gather_bytes_per_step": 891_289_600,
        "gather_bytes_median": 26_214_400,
        "scatters_per_step": 17.0,
        "scatter_bytes_per_step": 445_644_800,
        "gather_passes": 2.0,
        "scatter_passes": 1,
        "num_units": 17,
        "ahead_ratio": 0.9,
        "gather_exposed_ns_per_step": 400 * US,
        "gather_wait_ns_per_step": 100 * US,
        "scatter_exposed_ns_per_step": 300 * US,
        "scatter_wait_ns_per_step": 50 * US,
    }
    return ShardedAxis(**{**usual, **fields})


def efficiency(**fields: Any) -> EfficiencyResult:
    """A model of 1 B parameters under DDP at 45 % MFU, 48 of 80 GB held on every device."""
    peak, tokens, step_s = 989e12, 8_192, 0.020
    flop = 0.45 * peak * 8 * step_s
    usual: dict[str, Any] = {
        "model": "1B parameters",
        "model_source": "distprof.toml",
        "parameters": 1_000_000_000,
        "flop_per_token": flop / tokens,
        "tokens_per_step": tokens,
        "flop_per_step": flop,
        "computed_flop_per_step": flop,
        "step_ns": 20 * MS,
        "num_devices": 8,
        "tokens_per_s_per_device": tokens / 8 / step_s,
        "flops_per_device": 0.45 * peak,
        "device": "NVIDIA H100 80GB HBM3",
        "sheet_device": "H100 SXM",
        "backend": "nccl",
        "precision": "bf16",
        "peak_flops": peak,
        "mfu_ratio": 0.45,
        "hfu_ratio": 0.45,
        "computing_ratio": 0.56,
        "recomputation": "none",
        "zero_stage": 0,
        "num_micro_batches": 1,
        "is_data_parallel_only": True,
        "memory": tuple(device(rank) for rank in RANKS),
    }
    return EfficiencyResult(**{**usual, **fields})


def device(rank: int, allocated_gb: float = 48.0, **fields: Any) -> DeviceMemory:
    """80 GB, of which the allocator reserves 2 GB more than tensors hold."""
    allocated, size = round(allocated_gb * 1e9), 80_000_000_000
    usual: dict[str, Any] = {
        "capacity_bytes": size,
        "allocated_bytes": allocated,
        "reserved_bytes": allocated + 2_000_000_000,
        "allocated_ratio": allocated / size,
        "reserved_ratio": (allocated + 2_000_000_000) / size,
        "num_retries": 0,
    }
    return DeviceMemory(rank=rank, **{**usual, **fields})


def telemetry(changes: dict[int, dict[str, Any]] | None = None, **fields: Any) -> TelemetryResult:
    """Sensors of a healthy job.

    Args:
        changes: Rank to what is different in its analysed steps (names of WindowSensors) and in
            its whole run (names of RankTelemetry).
        **fields: Of the result.
    """
    ranks = tuple(_sensors(rank, (changes or {}).get(rank, {})) for rank in RANKS)
    healthy_fields = {
        "ranks": ranks,
        "nvlinks": tuple(nvlink(rank) for rank in RANKS),
        "conditions": tuple(condition(rank) for rank in RANKS),
        "energy_per_step_j": 90.0,
        "waiting_energy_per_step_j": 0.9,
        "waiting_energy_ratio": 0.01,
    }
    return TelemetryResult(**{**healthy_fields, **fields})


def _sensors(rank: int, changes: dict[str, Any]) -> RankTelemetry:
    in_steps = {
        "num_samples": 10,
        "is_bracketed": False,
        "sm_clock_mhz_median": 1755,
        "sm_clock_mhz_min": 1740,
        "throttled_ratio": 0.0,
        "throttle_reasons": {},
        "power_w_mean": 560.0,
        "temperature_c_max": 62,
        "gpu_utilization_ratio": 0.99,
        "energy_j": 56.0,
    }
    whole = {
        "sm_clock_mhz_median": 1755,
        "sm_clock_mhz_min": 345,
        "throttled_ratio": 0.0,
        "throttle_reasons": {},
        "power_w_mean": 500.0,
        "power_w_max": 700.0,
        "temperature_c_max": 62,
        "gpu_utilization_ratio": 0.9,
        "memory_utilization_ratio": 0.5,
        "memory_used_bytes": 60 << 30,
        "pcie_tx_bytes_per_s": None,
        "pcie_rx_bytes_per_s": None,
        "nvlink_tx_bytes_per_s": None,
        "nvlink_rx_bytes_per_s": None,
        "ecc_uncorrected": 0,
        "xid": (),
        "uuid": f"GPU-{rank}",
        "num_processes": 1,
    }
    window = WindowSensors(**{**in_steps, **{k: v for k, v in changes.items() if k in in_steps}})
    known = {k: v for k, v in changes.items() if k in whole}
    return RankTelemetry(rank=rank, num_samples=100, **{**whole, **known}, in_steps=window)


def nvlink(rank: int, num_active: int = 18) -> DeviceNvlink:
    """NVLink of a rank's H100, 26.562 GB/s a link."""
    return DeviceNvlink(
        device=f"GPU {rank % 4} of node-{1 + rank // 4}",
        name="NVIDIA H100 80GB HBM3",
        rank=rank,
        num_links=18,
        num_active=num_active,
        bytes_per_s=num_active * 26.562e9,
        inactive=tuple(range(num_active, 18)),
        expected_bytes_per_s=450e9,
    )


def condition(rank: int, **fields: Any) -> DeviceCondition:
    """What nvidia-smi -q says of a rank's H100 that works."""
    usual = {
        "device": f"GPU {rank % 4} of node-{1 + rank // 4}",
        "name": "NVIDIA H100 80GB HBM3",
        "rank": rank,
        "driver": "590.48.01",
        "cuda": "13.1",
        "is_in_use": True,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "ecc_uncorrected": 0,
        "is_repair_pending": False,
        "has_repair_failed": False,
        "recovery": "",
    }
    return DeviceCondition(**{**usual, **fields})


def changed(results: Results, kind: type[Result], **fields: Any) -> Results:
    """The same results, one of them with other fields."""
    return {**results, kind: msgspec.structs.replace(results[kind], **fields)}


def _step_time(step_ns: int, steps: bool) -> StepTimeResult:
    if not steps:
        return StepTimeResult(
            num_steps=0, median_ns=None, p95_ns=None, cv=None, source=StepSource.CAPTURE, note=""
        )
    return StepTimeResult(
        num_steps=len(STEPS),
        median_ns=step_ns,
        p95_ns=step_ns,
        cv=0.01,
        source=StepSource.PROFILER_STEP,
        note="",
    )


def _exposed(step: dict[str, int]) -> int:
    return sum(
        ns for name, ns in step.items() if name.startswith("exposed_") and "copy" not in name
    )


def _idle_ns(step: dict[str, int]) -> int:
    return sum(ns for name, ns in step.items() if name.startswith("idle_"))


def _breakdown(step: dict[str, int]) -> BreakdownResult:
    split = {
        "span_ns": sum(step.values()),
        "computation_ns": step["computation_ns"],
        "exposed_comm_ns": _exposed(step),
        "exposed_copy_ns": step["exposed_copy_ns"],
        "idle_ns": _idle_ns(step),
    }
    total = {name: ns * len(STEPS) for name, ns in split.items()}
    return BreakdownResult(
        ranks=tuple(RankBreakdown(rank=rank, **total) for rank in RANKS),
        steps=tuple(StepBreakdown(rank=r, step=s, **split) for r in RANKS for s in STEPS),
    )


def _overlap(step: dict[str, int], comm_ns: int) -> OverlapResult:
    exposed = _exposed(step)
    hidden = comm_ns - exposed
    rank = {
        "computation_ns": step["computation_ns"] * len(STEPS),
        "communication_ns": comm_ns * len(STEPS),
        "overlapped_ns": hidden * len(STEPS),
        "exposed_comm_ns": exposed * len(STEPS),
        "overlap_ratio": hidden / comm_ns,
    }
    return OverlapResult(ranks=tuple(RankOverlap(rank=r, **rank) for r in RANKS), axes=())


def _waterfall(step: dict[str, int]) -> WaterfallResult:
    total = {name: ns * len(STEPS) for name, ns in step.items()}
    span = sum(total.values())
    every = {name: ns * len(RANKS) for name, ns in total.items()}
    return WaterfallResult(
        num_ranks=len(RANKS),
        num_steps=len(STEPS),
        ranks=tuple(RankWaterfall(rank=rank, span_ns=span, **total) for rank in RANKS),
        all=RankWaterfall(rank=-1, span_ns=span * len(RANKS), **every),
    )


def _idle(step: dict[str, int]) -> IdleResult:
    times = {
        name.removeprefix("idle_"): ns * len(STEPS)
        for name, ns in step.items()
        if name.startswith("idle_")
    }
    ranks = tuple(
        RankIdle(
            rank=rank,
            idle_ns=_idle_ns(step) * len(STEPS),
            num_kernels=5_000,
            median_kernel_ns=12 * US,
            late_launch_ratio=0.05,
            **times,
        )
        for rank in RANKS
    )
    pauses = (
        cpu_pause("sync", "cudaStreamSynchronize", step["idle_sync_ns"], cpu_ns_per_step=4 * MS),
        cpu_pause("range", "log_metrics", step["idle_pause_ns"]),
    )
    return IdleResult(ranks=ranks, pauses=pauses)


def cpu_pause(kind: str, name: str, idle_ns: int, **fields: Any) -> CpuPause:
    """Two pauses of each rank's CPU per step, for as long as they left its GPU idle."""
    usual: dict[str, Any] = {
        "caller": "",
        "ranks": RANKS,
        "count_per_step": 2.0,
        "cpu_ns_per_step": idle_ns,
        "idle_ns_per_step": idle_ns,
    }
    return CpuPause(kind=kind, name=name, **{**usual, **fields})


def perturbation(step_ns: int, **fields: Any) -> PerturbationResult:
    """The profiler made steps 3 % longer, and its cost was taken out of the recording."""
    usual: dict[str, Any] = {
        "is_corrected": True,
        "origin": "step log",
        "untraced_ns": step_ns,
        "untraced_low_ns": round(0.998 * step_ns),
        "untraced_high_ns": round(1.002 * step_ns),
        "best_ns": round(0.99 * step_ns),
        "num_untraced": 60,
        "traced_ns": round(1.03 * step_ns),
        "simulated_ns": step_ns,
        "operator_ns": 3 * US,
        "call_ns": 9 * US,
        "num_operators": 5_000,
        "num_launches": 1_000,
        "is_paced_by_gpu": False,
    }
    return PerturbationResult(**{**usual, **fields})


def collective_class(**fields: Any) -> CollectiveClass:
    """Gradient buckets of 26 MB, five per step, well hidden, hardly any waiting."""
    usual: dict[str, Any] = {
        "kind": "all_reduce",
        "group": "default_pg",
        "group_size": 8,
        "axis": "world",
        "bytes": 26_214_400,
        "count": 25,
        "num_matched": 25,
        "duration_ns_median": 1_600 * US,
        "transfer_ns_median": 1_500 * US,
        "wait_ns_median": 100 * US,
        "wait_ns_per_step": 500 * US,
        "transfer_ns_per_step": 7_500 * US,
        "exposed_ns_per_step": MS,
        "exposed_wait_ns_per_step": 200 * US,
        "algbw_bytes_per_s": 17.5e9,
        "busbw_bytes_per_s": 30.6e9,
        "expected_busbw_bytes_per_s": None,
    }
    return CollectiveClass(**{**usual, **fields})


def collectives(*classes: CollectiveClass) -> CollectivesResult:
    """The class table; gradient buckets only unless said."""
    return CollectivesResult(
        num_ranks=len(RANKS), num_steps=len(STEPS), classes=classes or (collective_class(),)
    )


def gradients(*groups: GradientGroup, **fields: Any) -> GradientsResult:
    """What is reduced along each axis; no search for unused parameters unless said."""
    return GradientsResult(groups=groups, **fields)


def gradient_group(**fields: Any) -> GradientGroup:
    """Gradients in bf16 over two nodes, in five even buckets, from a tenth of backward on."""
    usual: dict[str, Any] = {
        "axis": "world",
        "ranks": RANKS,
        "group_size": 8,
        "num_nodes": 2,
        "dtypes": ("bfloat16",),
        "num_updates": 5.0,
        "micro_batches": 1.0,
        "times_reduced": 1.0,
        "num_buckets": 5,
        "bytes": 131_072_000,
        "bytes_per_step": 131_072_000.0,
        "last_bucket_ratio": 0.2,
        "is_split": True,
        "exposed_ns_per_step": 800 * US,
        "redundant_ns_per_step": 0,
        "last_bucket_ns_per_step": 800 * US,
        "backward_ns": 10 * MS,
        "before_first_ns": MS,
        "transfer_ns": 7 * MS,
    }
    return GradientGroup(**{**usual, **fields})


def straggler(rank: int, **fields: Any) -> RankStraggler:
    """A rank that costs next to nothing."""
    usual: dict[str, Any] = {
        "lost_ns_per_step": 25 * US,
        "share_of_step_ratio": 0.00125,
        "late_ratio": 0.125,
        "pattern": StragglerPattern.NONE,
        "cause": StragglerCause.UNKNOWN,
        "confidence": 0.0,
    }
    return RankStraggler(rank=rank, **{**usual, **fields})


def stragglers(*late: RankStraggler) -> StragglersResult:
    """Everybody is last now and then; ``late`` ranks replace their healthy selves."""
    by_rank = {rank: straggler(rank) for rank in RANKS} | {record.rank: record for record in late}
    ranks = sorted(by_rank.values(), key=lambda record: -record.lost_ns_per_step)
    return StragglersResult(
        ranks=tuple(ranks),
        steps=tuple(
            StepBlame(
                step=step,
                lost_ns=sum(record.lost_ns_per_step for record in ranks),
                rank=ranks[0].rank,
                rank_lost_ns=ranks[0].lost_ns_per_step,
            )
            for step in STEPS
        ),
        pattern=late[0].pattern if late else StragglerPattern.NONE,
        lost_ns_per_step=sum(record.lost_ns_per_step for record in ranks),
        num_judged=25,
        num_below_residual=2,
    )


def step_log(step_ns: int = 20 * MS, input_ns: dict[int, int] | None = None) -> StepLogResult:
    """A hundred steps, of which 0.2 ms are input; on some ranks another time."""
    waits = dict.fromkeys(RANKS, 200 * US) | (input_ns or {})
    return StepLogResult(
        num_steps=100,
        last_step=99,
        median_ns=step_ns,
        ranks=tuple(
            RankStepLog(
                rank=rank,
                first_step=0,
                last_step=99,
                num_steps=100,
                num_plain=90,
                median_ns=step_ns,
                p95_ns=step_ns,
                cv=0.01,
                traced_median_ns=step_ns,
                tokens_per_s=None,
                samples_per_s=None,
                input_ratio=waits[rank] / step_ns,
                phases={"input": waits[rank]},
                first_loss=None,
                last_loss=None,
            )
            for rank in RANKS
        ),
    )


def pauses(
    gc_ns: dict[int, int] | None = None,
    queue_ns: dict[int, int] | None = None,
    cpu_ns: dict[int, int] | None = None,
    loader_queue_ns: dict[int, int] | None = None,
) -> PausesResult:
    """Collections of 20 µs in a step, and 5 µs without a CPU; on some ranks another time.

    Loaders never lack a CPU, or for as long as given.

    Time on a CPU is 10 ms, or what is given, and not known where nothing is.
    """
    ran = {} if cpu_ns is None else dict.fromkeys(RANKS, 10 * MS) | cpu_ns
    times = dict.fromkeys(RANKS, 20 * US) | (gc_ns or {})
    queued = dict.fromkeys(RANKS, 5 * US) | (queue_ns or {})
    return PausesResult(
        ranks=tuple(
            RankPauses(
                rank=rank,
                step_ns=20 * MS,
                gc_ns_per_step=times[rank],
                num_gc=20,
                longest_gc_ns=6 * times[rank],
                input_ns_per_step=0,
                num_input=0,
                longest_input_ns=None,
                run_queue_ns_per_step=queued[rank],
                cpu_ns_per_step=ran.get(rank),
                input_queue_ns_per_step=(loader_queue_ns or {}).get(rank),
            )
            for rank in RANKS
        )
    )


def moe_layer(name: str, **fields: Any) -> MoeLayer:
    """Eight experts with much the same load."""
    usual: dict[str, Any] = {
        "num_experts": 8,
        "top_k": 2,
        "num_steps": 100,
        "tokens_per_step": 4_096.0,
        "max_over_mean": 1.2,
        "cv": 0.1,
        "entropy": 0.99,
        "dead_ratio": 0.0,
        "dropped_ratio": 0.0,
        "busiest_expert": 3,
        "busiest_share_ratio": 0.14,
    }
    return MoeLayer(layer=name, **{**usual, **fields})


def placement(*axes: PlacedAxis, ranks_per_node: int = 4, **fields: Any) -> PlacementResult:
    """Two nodes of four GPUs, ranks numbered node by node; the world is the only group."""
    per_node = ranks_per_node
    nodes = tuple(
        PlacedNode(
            node=f"node-{n + 1}",
            ranks=tuple(range(n * per_node, (n + 1) * per_node)),
            domains=(f"node-{n + 1}",),
        )
        for n in range(2)
    )
    world = placed_axis(
        axis="world",
        size=2 * per_node,
        most_on_node=per_node,
        least_on_node=per_node,
        stride=1,
        could_fit=False,
    )
    usual: dict[str, Any] = {
        "origin": "run.json",
        "domain_origin": "H100 SXM: a node is a domain",
        "domain_size": per_node,
        "num_domains": 2,
        "scale_up_bandwidth": 450e9,
        "order": "blocked",
        "is_whole": True,
        "nodes": nodes,
        "axes": axes or (world,),
    }
    return PlacementResult(**{**usual, **fields})


def placed_axis(**fields: Any) -> PlacedAxis:
    """Two pairs of ranks two apart that span both nodes; all of their transfer is exposed."""
    usual: dict[str, Any] = {
        "axis": "tp",
        "size": 4,
        "num_groups": 2,
        "num_nodes": 2,
        "least_nodes": 2,
        "num_domains": 2,
        "least_domains": 2,
        "most_on_node": 2,
        "least_on_node": 2,
        "stride": 2,
        "nodes_if_blocked": 2,
        "could_fit": False,
        "tier": "between domains",
        "sent_bytes_per_step": 400_000_000.0,
        "exposed_transfer_ns_per_step": 4 * MS,
        "exchange_ns_per_step": 0,
        "ranks": RANKS,
    }
    return PlacedAxis(**{**usual, **fields})


def inside(axis: str, size: int, **fields: Any) -> PlacedAxis:
    """Groups of neighbouring ranks inside nodes; little is exposed."""
    usual: dict[str, Any] = {
        "num_groups": 8 // size,
        "num_nodes": 1,
        "least_nodes": 1,
        "num_domains": 1,
        "least_domains": 1,
        "most_on_node": size,
        "least_on_node": size,
        "stride": 1,
        "nodes_if_blocked": 1,
        "could_fit": True,
        "tier": "inside a node",
        "sent_bytes_per_step": 50_000_000.0,
        "exposed_transfer_ns_per_step": 100 * US,
    }
    return placed_axis(axis=axis, size=size, **{**usual, **fields})


def moe_placement(name: str, **fields: Any) -> MoePlacement:
    """Four ranks that share eight experts, with much the same load."""
    usual: dict[str, Any] = {
        "num_ranks": 4,
        "origin": "all-to-all sizes",
        "num_calls": 5,
        "tokens_per_call": 8_192.0,
        "max_over_mean": 1.1,
        "worst_max_over_mean": 1.15,
        "expert_max_over_mean": 1.2,
        "replaced_max_over_mean": 1.05,
    }
    return MoePlacement(layer=name, **{**usual, **fields})


def moe_exchange(**fields: Any) -> MoeExchange:
    """All-to-alls of ranks 0 to 3 that move as much to and from each."""
    usual: dict[str, Any] = {
        "ranks": RANKS[:4],
        "num_per_step": 8.0,
        "num_sections_per_step": 4.0,
        "unit": "bytes",
        "amount_per_step": 50_000_000,
        "sent_max_over_mean": 1.0,
        "received_max_over_mean": 1.1,
        "busiest_sender": 0,
        "busiest_receiver": 2,
        "transfer_ns_per_step": 2 * MS,
    }
    return MoeExchange(**{**usual, **fields})


def position(stage: int, **fields: Any) -> PipelinePosition:
    """Stage 0 on ranks 0 to 3 or stage 1 on ranks 4 to 7; each works 1 ms on a micro-batch."""
    usual: dict[str, Any] = {
        "stages": (stage,),
        "ranks": RANKS[4 * stage : 4 * stage + 4],
        "num_micro_batches": 16.0,
        "work_ns_per_step": 16 * MS,
        "work_ns_per_micro_batch": MS,
        "excess_ratio": 0.0,
        "chance": 1.0,
    }
    return PipelinePosition(**{**usual, **fields})


def pipeline_rank(rank: int) -> PipelineRank:
    """Works 16 ms of 20 ms."""
    return PipelineRank(
        rank=rank,
        stages=(rank // 4,),
        work_ns_per_step=16 * MS,
        wait_ns_per_step=2 * MS,
        other_ns_per_step=2 * MS,
    )


def messages(late_ns: dict[int, int] | None = None, chance: float = 1e-5) -> MessagesResult:
    """All wait 2 ms of 20 ms for messages; those of ``late_ns`` idle longer than their peers."""
    late = dict.fromkeys(RANKS, 0) | (late_ns or {})
    return MessagesResult(
        ranks=tuple(
            MessageRank(
                rank=rank,
                wait_ns_per_step=2 * MS,
                idle_ns_per_step=MS + late[rank],
                late_ns_per_step=late[rank],
                chance=chance if late[rank] else 1.0,
            )
            for rank in RANKS
        ),
        step_ns=20 * MS,
    )


def pipeline_group(
    *,
    warm_up_drain: int = 1,
    imbalance: int = 0,
    variation: int = 0,
    messages: int = 0,
    host: int = 0,
) -> PipelineGroup:
    """Eight ranks, 100 ms, of which 1 ms is warm-up and drain; parts of the idle in ms."""
    idle = warm_up_drain + imbalance + variation + messages + host
    return PipelineGroup(
        schedule="1f1b",
        ranks=RANKS,
        replicas=(RANKS,),
        stages=8,
        virtual_stages=1,
        num_micro_batches=16,
        source="distprof marks",
        confidence=Confidence.MEASURED,
        num_steps=4,
        step_ns=110 * MS,
        span_ns=100 * MS,
        work_ns=(100 - idle) * MS,
        idle_ns=idle * MS,
        bubble_fraction=idle / 100,
        predictions=(
            PipelinePrediction(
                what="M = 64 instead of 16",
                change="micro-batches",
                schedule="1f1b",
                num_micro_batches=64,
                virtual_stages=1,
                bubble_fraction=0.1,
                step_ns=90 * MS,
                saved_ns=20 * MS,
            ),
        ),
        warm_up_drain_ns=warm_up_drain * MS,
        imbalance_ns=imbalance * MS,
        variation_ns=variation * MS,
        exposed_p2p_ns=messages * MS,
        host_ns=host * MS,
    )


def pipeline(**fields: Any) -> PipelineResult:
    """Two even stages."""
    usual: dict[str, Any] = {
        "positions": (position(0), position(1)),
        "ranks": tuple(pipeline_rank(rank) for rank in RANKS),
        "max_over_mean": 1.0,
        "lost_ns_per_step": 0,
        "step_ns": 20 * MS,
    }
    return PipelineResult(**{**usual, **fields})


def capture(**fields: Any) -> CaptureResult:
    """A complete recording."""
    clocks = tuple(
        NodeClock(name=f"node{n}", ranks=RANKS[4 * n : 4 * n + 4], offset_ns=0, drift_ppm=0.0,
                  residual_ns=4_000)
        for n in range(2)
    )  # fmt: skip
    usual: dict[str, Any] = {
        "world_size": 8,
        "ranks_present": RANKS,
        "ranks_missing": (),
        "matched_ratio": 1.0,
        "num_matched": 200,
        "clocks": clocks,
        "num_causality_checked": 25,
        "num_causality_violations": 0,
        "window_overlap_ratio": 0.98,
        "steps": STEPS,
        "dropped_steps": {},
        "transient_steps": (),
        "num_events": 80_000,
        "num_repaired": 0,
        "num_quarantined": 0,
        "num_clamped": 0,
        "num_unlaunched": 0,
        "gaps": (),
        "notes": (),
    }
    return CaptureResult(**{**usual, **fields})


def training_log(**fields: Any) -> TrainingLogResult:
    """The log of a pipeline of four stages whose iterations take 2 s."""
    given: dict[str, Any] = {
        "origin": "Megatron-LM",
        "num_reports": 20,
        "num_steady": 19,
        "mean_ns": 2_000 * MS,
        "median_ns": 2_000 * MS,
        "mesh": {"tp": 1, "pp": 4, "dp": 1},
        "world_size": 4,
        "num_micro_batches": 32,
        "timer_stage": "last",
        "compute_ratio": 0.9,
        "ideal_bubble_ratio": 3 / 35,
    }
    return TrainingLogResult(**given | fields)


def by_log(timer: str, mean_ms: int) -> Results:
    """No traces, but a log with a timer of so many milliseconds of each iteration of 2 s."""
    printed = TrainingTimer(
        name=timer,
        num_reports=19,
        mean_ns=mean_ms * MS,
        median_ns=mean_ms * MS,
        ratio=mean_ms / 2_000,
    )
    alone = changed(healthy(), StragglersResult, ranks=())
    mesh = {"tp": 1, "pp": 1, "dp": 4}
    log = training_log(timers=(printed,), last_loss=2.3, compute_ratio=0.7, mesh=mesh)
    return {**alone, TrainingLogResult: log}


def collective_summary(**fields: Any) -> CollectiveSummaryResult:
    """Durations of reduce-scatters of eight ranks; rank 3 comes last."""
    one = SummarisedClass(
        group="0",
        kind="reduce_scatter",
        dtype="Float",
        num_bytes=1_000_000_000,
        num_ranks=8,
        group_size=8,
        num_calls=100,
        mean_ns=40 * MS,
        shortest_ns=10 * MS,
        wait_ns=30 * MS,
        last_rank=3,
        first_rank=0,
        is_compared=True,
    )
    return CollectiveSummaryResult(**{"classes": (one,), "late_rank": 3} | fields)
