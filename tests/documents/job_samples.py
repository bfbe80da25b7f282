"""Reports of run directories, made by hand; and all samples together."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from distprof.artefacts.record import Gap
from distprof.artefacts.run_file import Fault
from distprof.documents.saved import Report
from distprof.sections.idle import PausesResult, RankPauses
from distprof.sections.job import (
    JobError,
    JobExit,
    JobFailure,
    JobResult,
    ProbeOverhead,
    ProbeState,
)
from distprof.sections.memory import MemoryResult, RankMemory
from distprof.sections.moe import MoeLayer, MoeResult
from distprof.sections.step_log import RankStepLog, StepLogResult
from distprof.sections.telemetry import RankTelemetry, TelemetryResult
from distprof.terms import StepSource
from tests.documents import samples
from tests.documents.samples import MS, NASTY, capture, report_of, run_info, waterfall_of

GB = 1_000_000_000

OVERHEAD = (
    ProbeOverhead(
        mode="always_on",
        ratio=0.003,
        low=-0.002,
        high=0.008,
        num_pairs=8,
        step_ns=46 * MS,
        ranks=(0, 1),
        method="alternating blocks",
    ),
    ProbeOverhead(
        mode="tracing",
        ratio=0.041,
        low=0.02,
        high=0.063,
        num_pairs=8,
        step_ns=46 * MS,
        ranks=(0, 1),
        method="traced steps against those around them",
    ),
)

PROBES = (
    ProbeState(name="profiler", state="on", reason="", ranks=(0, 1), num_records=4, num_dropped=0),
    ProbeState(
        name="nvml",
        state="unavailable",
        reason="no NVML library: there is no NVIDIA driver here",
        ranks=(0, 1),
        num_records=0,
        num_dropped=0,
    ),
    ProbeState(
        name="memory",
        state="on",
        reason="the disk was full",
        ranks=(1,),
        num_records=20,
        num_dropped=7,
    ),
)

JOB = JobResult(
    kind="run",
    command=("distprof", "run", "moe", "--ranks", "2"),
    workload="moe",
    strategy="MoE (EP)",
    outcome="completed",
    duration_ns=12_300 * MS,
    exits=(JobExit(ranks=(0, 1), code=0, signal="", by_launcher=False),),
    faults=(Fault(kind="routing-skew", target=0, amount=4.0, text="routing-skew=0:4"),),
    coverage="all",
    probes=PROBES,
    overhead=OVERHEAD,
)


def rank_log(rank: int, **fields: object) -> RankStepLog:
    known: dict[str, object] = {
        "rank": rank,
        "first_step": 0,
        "last_step": 29,
        "num_steps": 30,
        "num_plain": 22,
        "median_ns": 46 * MS,
        "p95_ns": 51 * MS,
        "cv": 0.043,
        "traced_median_ns": 48 * MS,
        "tokens_per_s": 11_130.0,
        "samples_per_s": 87.0,
        "input_ratio": 0.004,
        "phases": {"input": MS // 5, "forward": 14 * MS, "backward": 26 * MS, "optimizer": 5 * MS},
        "first_loss": 7.41,
        "last_loss": 6.02,
    }
    return RankStepLog(**{**known, **fields})  # type: ignore[arg-type]


def step_log(**fields: object) -> StepLogResult:
    ranks = (rank_log(0), rank_log(1))
    known: dict[str, object] = {
        "num_steps": 30,
        "last_step": 29,
        "median_ns": 46 * MS,
        "p95_ns": 51 * MS,
        "cv": 0.043,
        "traced_median_ns": 48 * MS,
        "tokens_per_s": 22_260.0,
        "samples_per_s": 174.0,
        "input_ratio": 0.004,
        "phases": ranks[0].phases,
        "first_loss": 7.41,
        "last_loss": 6.02,
        "ranks": ranks,
    }
    return StepLogResult(**{**known, **fields})  # type: ignore[arg-type]


def layer(name: str, **fields: object) -> MoeLayer:
    known: dict[str, object] = {
        "layer": name,
        "num_experts": 8,
        "top_k": 2,
        "num_steps": 30,
        "tokens_per_step": 1024.0,
        "max_over_mean": 1.12,
        "cv": 0.09,
        "entropy": 0.997,
        "dead_ratio": 0.0,
        "dropped_ratio": 0.0,
        "busiest_expert": 3,
        "busiest_share_ratio": 0.14,
    }
    return MoeLayer(**{**known, **fields})  # type: ignore[arg-type]


def reference_run() -> Report:
    """A reference run of experts with a fault injected: everything that probes record."""
    ranks = [
        waterfall_of(
            rank,
            computation_ns=320 * MS,
            exposed_transfer_ns=40 * MS,
            exposed_wait_ns=70 * MS,
            idle_unknown_ns=30 * MS,
        )
        for rank in range(2)
    ]
    memory = tuple(
        RankMemory(
            rank=rank,
            num_samples=30,
            peak_allocated_bytes=61 * GB,
            reserved_bytes=70 * GB,
            num_retries=0,
            peak_rss_bytes=4 * GB,
            rss_growth_bytes_per_step=1_200,
        )
        for rank in range(2)
    )
    return report_of(
        ranks,
        run=run_info(
            (0, 1), backend="gloo", device="cpu", strategy="MoE (EP)", mesh={"ep": 2},
            node_origin="run.json",
        ),
        job=JOB,
        step_log=step_log(),
        moe=MoeResult(
            layers=(
                layer("blocks.0.feed_forward"),
                layer(
                    "blocks.1.feed_forward", max_over_mean=3.95, cv=1.2, entropy=0.71,
                    dead_ratio=0.125, busiest_expert=0,
                ),
            )
        ),
        memory=MemoryResult(ranks=memory),
        telemetry=TelemetryResult(ranks=(sensors(0), sensors(1, throttled_ratio=0.4,
            throttle_reasons={"sw_power_cap": 0.4}, xid=(79,)))),
        pauses=PausesResult(
            ranks=(
                RankPauses(
                    rank=0, step_ns=20 * MS, gc_ns_per_step=900_000, num_gc=12,
                    longest_gc_ns=21 * MS, input_ns_per_step=0, num_input=0, longest_input_ns=None,
                ),
            )
        ),
    )  # fmt: skip


def sensors(rank: int, **fields: object) -> RankTelemetry:
    known: dict[str, object] = {
        "rank": rank,
        "num_samples": 300,
        "sm_clock_mhz_median": 1_980,
        "sm_clock_mhz_min": 1_410,
        "throttled_ratio": 0.0,
        "throttle_reasons": {},
        "power_w_mean": 610.0,
        "power_w_max": 702.0,
        "temperature_c_max": 71,
        "gpu_utilization_ratio": 0.97,
        "memory_utilization_ratio": None,
        "memory_used_bytes": 72 * GB,
        "pcie_tx_bytes_per_s": None,
        "pcie_rx_bytes_per_s": None,
        "nvlink_tx_bytes_per_s": None,
        "nvlink_rx_bytes_per_s": None,
        "ecc_uncorrected": 0,
        "xid": (),
    }
    return RankTelemetry(**{**known, **fields})  # type: ignore[arg-type]


def failed_job() -> Report:
    """A rank was killed; the steps before it are analysed all the same."""
    base = reference_run()
    job = msgspec.structs.replace(
        JOB,
        outcome="failed",
        faults=(),
        failure=JobFailure(
            rank=1,
            kind="killed",
            message="rank 1 was killed (SIGKILL) after step 14",
            step=14,
            after_ns=4_000 * MS,
        ),
        exits=(
            JobExit(ranks=(0,), code=1, signal="", by_launcher=False),
            JobExit(ranks=(1,), code=None, signal="SIGKILL", by_launcher=False),
        ),
        errors=(
            JobError(
                rank=0,
                kind="RuntimeError",
                message="Connection closed by peer",
                step=14,
                is_peer_loss=True,
            ),
        ),
        overhead=(),
    )
    log = step_log(last_step=14, num_steps=16)
    return msgspec.structs.replace(base, job=job, step_log=log, moe=MoeResult())


def untraced() -> Report:
    """Always-on mode: no trace, only what the step log and counters tell."""
    empty = report_of(
        [],
        num_steps=0,
        source=StepSource.CAPTURE,
        run=run_info((), num_steps=0, world_size=2, backend="", device="cpu", mesh={"ep": 2},
                     strategy="MoE (EP)"),
        capture=capture(
            (),
            steps=(),
            dropped_steps={},
            clocks=(),
            num_events=0,
            world_size=2,
            ranks_missing=(0, 1),
            gaps=(
                Gap(
                    what="no-traces",
                    message="No rank was traced (ranks 0-1: always-on mode).",
                    ranks=(),
                ),
            ),
        ),
    )  # fmt: skip
    job = msgspec.structs.replace(JOB, faults=(), overhead=OVERHEAD[:1])
    log = step_log(input_ratio=0.23, traced_median_ns=None)
    return msgspec.structs.replace(empty, job=job, step_log=log)


def hostile_job() -> Report:
    """Every free text of a run directory is an attack."""
    base = failed_job()
    job = msgspec.structs.replace(
        base.job,
        command=(NASTY,),
        workload=NASTY,
        strategy=NASTY,
        failure=JobFailure(rank=1, kind=NASTY, message=NASTY, step=None, after_ns=None),
        errors=(JobError(rank=0, kind=NASTY, message=NASTY, step=None, is_peer_loss=False),),
        exits=(JobExit(ranks=(0,), code=None, signal=NASTY, by_launcher=True),),
        faults=(Fault(kind=NASTY, target=None, amount=0.0, text=NASTY),),
        probes=(
            ProbeState(
                name=NASTY, state="failed", reason=NASTY, ranks=(0,), num_records=0, num_dropped=1
            ),
        ),
        git_commit=NASTY,
        notes=(NASTY,),
    )
    return msgspec.structs.replace(
        base,
        run=run_info((0, 1), strategy=NASTY, mesh={NASTY: 2, "tp": 2}),
        job=job,
        step_log=step_log(phases={NASTY: MS}, unavailable=(NASTY,)),
        moe=MoeResult(layers=(layer(NASTY),)),
        telemetry=TelemetryResult(ranks=(sensors(0, throttle_reasons={NASTY: 1.0}),)),
    )


SAMPLES: dict[str, Callable[[], Report]] = {
    **samples.SAMPLES,
    "reference-run": reference_run,
    "failed-job": failed_job,
    "untraced": untraced,
    "hostile-job": hostile_job,
}
