"""Reports made by hand: what a reporter must be able to show, from the usual to the nasty."""

from __future__ import annotations

from collections.abc import Callable

from distprof.artefacts.record import Gap
from distprof.documents.saved import Report
from distprof.rules.base import Finding, NotChecked
from distprof.sections.capture import CaptureResult, NodeClock
from distprof.sections.collectives import CollectiveClass, CollectivesResult
from distprof.sections.idle import CpuPause, IdleResult, RankIdle
from distprof.sections.kernels import CategoryTime, KernelRow, KernelsResult, RankSpeed
from distprof.sections.overlap import AxisOverlap, OverlapResult, RankOverlap
from distprof.sections.pipeline import PictureRow, PipelineGroup
from distprof.sections.report import GroupInfo, RunInfo
from distprof.sections.stragglers import RankStraggler, StepBlame, StragglersResult
from distprof.sections.time import (
    BreakdownResult,
    RankBreakdown,
    RankWaterfall,
    StepBreakdown,
    StepTimeResult,
    WaterfallResult,
)
from distprof.sections.whatif import Repair, RepairPlan
from distprof.terms import (
    Confidence,
    Severity,
    StepSource,
    StragglerCause,
    StragglerPattern,
)

MS = 1_000_000
US = 1_000
NUM_STEPS = 10
NASTY = (
    "\x1b[31mred\x1b]8;;http://x\x07 [bold]b[/bold] |a|b| `c` <script>alert(1)</script>\n\u202e@all"
)

ALL_REDUCE_KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

PARTS = (
    "computation_ns",
    "exposed_transfer_ns",
    "exposed_wait_ns",
    "exposed_p2p_wait_ns",
    "exposed_comm_unsplit_ns",
    "exposed_copy_ns",
    "idle_host_ns",
    "idle_sync_ns",
    "idle_input_ns",
    "idle_comm_wait_ns",
    "idle_unknown_ns",
)


def waterfall_of(rank: int, **parts_ns: int) -> RankWaterfall:
    """One rank's waterfall; parts not named are 0 and the span is their sum."""
    parts = {name: parts_ns.get(name, 0) for name in PARTS}
    return RankWaterfall(rank=rank, span_ns=sum(parts.values()), **parts)


def total_of(ranks: list[RankWaterfall]) -> RankWaterfall:
    """All ranks added up."""
    return waterfall_of(-1, **{name: sum(getattr(r, name) for r in ranks) for name in PARTS})


def report_of(
    ranks: list[RankWaterfall],
    *,
    num_steps: int = NUM_STEPS,
    source: StepSource = StepSource.DEVICE,
    **sections: object,
) -> Report:
    """A whole report whose breakdown, overlap, idle and waterfall follow from ``ranks``."""
    numbers = tuple(r.rank for r in ranks)
    span = ranks[0].span_ns // num_steps if ranks else None
    known: dict[str, object] = {
        "distprof_version": "0.1.0",
        "run": run_info(numbers, num_steps=num_steps),
        "capture": capture(numbers, num_steps=num_steps),
        "step_time": StepTimeResult(
            num_steps=num_steps,
            median_ns=None if source == StepSource.CAPTURE else span,
            p95_ns=None if source == StepSource.CAPTURE or span is None else span + span // 20,
            cv=None if source == StepSource.CAPTURE else 0.024,
            source=source,
            note="Windows on the device, through launch correlation.",
        ),
        "breakdown": BreakdownResult(
            ranks=tuple(breakdown(r) for r in ranks),
            steps=tuple(step_of(r, 7, num_steps) for r in ranks),
        ),
        "overlap": overlap(ranks),
        "collectives": CollectivesResult(num_ranks=len(ranks), num_steps=num_steps, classes=()),
        "stragglers": StragglersResult(
            ranks=(),
            steps=(),
            pattern=StragglerPattern.NONE,
            lost_ns_per_step=0,
            num_judged=0,
            num_below_residual=0,
        ),
        "idle": IdleResult(ranks=tuple(idle(r) for r in ranks), pauses=()),
        "kernels": KernelsResult(categories=(), kernels=(), ranks=()),
        "waterfall": WaterfallResult(
            num_ranks=len(ranks),
            num_steps=num_steps,
            ranks=tuple(ranks),
            all=total_of(ranks) if ranks else None,
        ),
        "findings": (),
        "not_checked": (),
    }
    return Report(**{**known, **sections})  # type: ignore[arg-type]


def run_info(ranks: tuple[int, ...], *, num_steps: int = NUM_STEPS, **fields: object) -> RunInfo:
    known: dict[str, object] = {
        "source": "traces/job-17",
        "world_size": len(ranks),
        "ranks": ranks,
        "num_steps": num_steps,
        "backend": "nccl",
        "device": "NVIDIA A100-SXM4-80GB",
        "strategy": None,
        "mesh": {"dp": len(ranks)},
        "nodes": {"node-a": ranks},
        "node_origin": "host names",
        "groups": (
            GroupInfo(name="0", description="default_pg", size=len(ranks), axis="dp", num_groups=1),
        ),
        "versions": {"nccl": "2.21.5"},
    }
    return RunInfo(**{**known, **fields})  # type: ignore[arg-type]


def capture(
    ranks: tuple[int, ...], *, num_steps: int = NUM_STEPS, **fields: object
) -> CaptureResult:
    known: dict[str, object] = {
        "world_size": len(ranks),
        "ranks_present": ranks,
        "ranks_missing": (),
        "matched_ratio": 1.0 if len(ranks) > 1 else None,
        "num_matched": 400 if len(ranks) > 1 else 0,
        "clocks": (
            NodeClock(name="node-a", ranks=ranks, offset_ns=0, drift_ppm=0.0, residual_ns=0),
        ),
        "num_causality_checked": 400 if len(ranks) > 1 else 0,
        "num_causality_violations": 0,
        "window_overlap_ratio": 0.98 if len(ranks) > 1 else None,
        "steps": tuple(range(7, 7 + num_steps)),
        "dropped_steps": {17: "cut by the capture"},
        "transient_steps": (),
        "num_events": 182_344,
        "num_repaired": 0,
        "num_quarantined": 0,
        "num_clamped": 0,
        "num_unlaunched": 0,
        "gaps": (),
        "notes": (),
    }
    return CaptureResult(**{**known, **fields})  # type: ignore[arg-type]


def breakdown(r: RankWaterfall) -> RankBreakdown:
    exposed = (
        r.exposed_transfer_ns
        + r.exposed_wait_ns
        + r.exposed_p2p_wait_ns
        + r.exposed_comm_unsplit_ns
    )
    return RankBreakdown(
        rank=r.rank,
        span_ns=r.span_ns,
        computation_ns=r.computation_ns,
        exposed_comm_ns=exposed,
        exposed_copy_ns=r.exposed_copy_ns,
        idle_ns=r.span_ns - r.computation_ns - exposed - r.exposed_copy_ns,
    )


def step_of(r: RankWaterfall, step: int, num_steps: int) -> StepBreakdown:
    whole = breakdown(r)
    parts = {
        name: getattr(whole, name) // num_steps
        for name in ("computation_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
    }
    return StepBreakdown(rank=r.rank, step=step, span_ns=sum(parts.values()), **parts)


def overlap(ranks: list[RankWaterfall]) -> OverlapResult:
    """A quarter as much communication again is hidden as is exposed."""
    rows = []
    for r in ranks:
        exposed = breakdown(r).exposed_comm_ns
        hidden = exposed // 4
        rows.append(
            RankOverlap(
                rank=r.rank,
                computation_ns=r.computation_ns,
                communication_ns=exposed + hidden,
                overlapped_ns=hidden,
                exposed_comm_ns=exposed,
                overlap_ratio=hidden / (exposed + hidden) if exposed else None,
            )
        )
    total = sum(row.communication_ns for row in rows)
    hidden = sum(row.overlapped_ns for row in rows)
    axes = (
        AxisOverlap(
            axis="dp",
            ranks=tuple(r.rank for r in ranks),
            communication_ns=total,
            overlapped_ns=hidden,
            exposed_comm_ns=total - hidden,
            overlap_ratio=hidden / total if total else None,
        ),
    )
    return OverlapResult(ranks=tuple(rows), axes=axes if total else ())


def idle(r: RankWaterfall) -> RankIdle:
    causes = {
        "input_ns": r.idle_input_ns,
        "sync_ns": r.idle_sync_ns,
        "host_ns": r.idle_host_ns,
        "comm_wait_ns": r.idle_comm_wait_ns,
        "unknown_ns": r.idle_unknown_ns,
    }
    return RankIdle(
        rank=r.rank,
        idle_ns=sum(causes.values()),
        num_kernels=3_200,
        median_kernel_ns=14 * US,
        late_launch_ratio=0.031,
        **causes,
    )


def all_reduce(**fields: object) -> CollectiveClass:
    known: dict[str, object] = {
        "kind": "all_reduce",
        "group": "default_pg",
        "group_size": 8,
        "axis": "dp",
        "bytes": 26_214_400,
        "count": 240,
        "num_matched": 240,
        "duration_ns_median": 980 * US,
        "transfer_ns_median": 310 * US,
        "wait_ns_median": 640 * US,
        "wait_ns_per_step": 6_900 * US,
        "transfer_ns_per_step": 1_200 * US,
        "exposed_ns_per_step": 7_010 * US,
        "exposed_wait_ns_per_step": 6_200 * US,
        "algbw_bytes_per_s": 84.6e9,
        "busbw_bytes_per_s": 148.0e9,
        "expected_busbw_bytes_per_s": None,
    }
    return CollectiveClass(**{**known, **fields})  # type: ignore[arg-type]


def finding(code: str = "STR101", **fields: object) -> Finding:
    known: dict[str, object] = {
        "code": code,
        "name": "persistent-straggler",
        "severity": Severity.ERROR,
        "confidence": Confidence.MEASURED,
        "headline": "Rank 2 holds the others up: 31.0 % of each step",
        "message": "They wait 6.91 ms of every step for it. It runs the same kernels slower.",
        "ranks": (2,),
        "steps": (),
        "cost_ns_per_step": 6_910 * US,
        "evidence": ("stragglers.ranks",),
        "fix": "Compare rank 2 with its peers: clocks and temperature, then its share of the work.",
        "docs": "reference/rules/persistent-straggler.md",
    }
    return Finding(**{**known, **fields})  # type: ignore[arg-type]


def stragglers_of(lost_ns: dict[int, int]) -> StragglersResult:
    """Persistent stragglers by what they cost per step."""
    return StragglersResult(
        ranks=tuple(
            RankStraggler(
                rank=rank,
                lost_ns_per_step=lost,
                share_of_step_ratio=0.1,
                late_ratio=None,
                pattern=StragglerPattern.PERSISTENT,
                cause=StragglerCause.UNKNOWN,
                confidence=0.5,
            )
            for rank, lost in lost_ns.items()
        ),
        steps=(),
        pattern=StragglerPattern.PERSISTENT if lost_ns else StragglerPattern.NONE,
        lost_ns_per_step=sum(lost_ns.values()),
        num_judged=100,
        num_below_residual=0,
    )


def kernels(name: str = ALL_REDUCE_KERNEL) -> KernelsResult:
    gemm = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn>"
    return KernelsResult(
        categories=(
            CategoryTime(kind="computation", count=24_000, total_ns=900 * MS),
            CategoryTime(kind="communication", count=1_920, total_ns=600 * MS),
            CategoryTime(kind="copy", count=800, total_ns=12 * MS),
        ),
        kernels=(
            KernelRow(
                name=name,
                kind="communication",
                count=1_920,
                total_ns=600 * MS,
                median_ns=310 * US,
                slowest_rank=None,
                spread=None,
            ),
            KernelRow(
                name=gemm,
                kind="computation",
                count=9_600,
                total_ns=520 * MS,
                median_ns=54 * US,
                slowest_rank=2,
                spread=1.31,
            ),
        ),
        ranks=tuple(
            RankSpeed(
                rank=rank,
                relative_time=1.31 if rank == 2 else 1.0,
                relative_work=1.0,
                num_shared_kernels=41,
            )
            for rank in range(8)
        ),
    )


def healthy() -> Report:
    """Eight ranks, almost all computation, no finding."""
    ranks = [
        waterfall_of(
            rank,
            computation_ns=205 * MS + rank * 11 * US,
            exposed_transfer_ns=8 * MS - rank * 11 * US,
            exposed_wait_ns=2 * MS,
            idle_host_ns=7 * MS,
            idle_unknown_ns=1_000 * US,
        )
        for rank in range(8)
    ]
    return report_of(ranks)


def straggler() -> Report:
    """Eight ranks on two nodes that wait for rank 2, whose device is slow."""
    ranks = [
        waterfall_of(
            rank,
            computation_ns=116 * MS + (62 * MS if rank == 2 else 0),
            exposed_transfer_ns=20 * MS,
            exposed_wait_ns=0 if rank == 2 else 69_100 * US,
            exposed_copy_ns=1_500 * US,
            idle_host_ns=12_400 * US + (7_100 * US if rank == 2 else 0),
            idle_sync_ns=3 * MS,
            idle_unknown_ns=1 * MS,
        )
        for rank in range(8)
    ]
    clocks = (
        NodeClock(name="node-a", ranks=(0, 1, 2, 3), offset_ns=0, drift_ppm=0.0, residual_ns=3_100),
        NodeClock(
            name="node-b",
            ranks=(4, 5, 6, 7),
            offset_ns=-1_203_441,
            drift_ppm=4.2,
            residual_ns=12_300,
        ),
    )
    blame = [
        RankStraggler(
            rank=2,
            lost_ns_per_step=6_910 * US,
            share_of_step_ratio=0.3099,
            late_ratio=0.93,
            pattern=StragglerPattern.PERSISTENT,
            cause=StragglerCause.SLOW_DEVICE,
            confidence=0.97,
            evidence=("its computation kernels take 1.31 × as long as the same kernels elsewhere",),
        ),
        RankStraggler(
            rank=5,
            lost_ns_per_step=140 * US,
            share_of_step_ratio=0.006,
            late_ratio=0.04,
            pattern=StragglerPattern.NONE,
            cause=StragglerCause.UNKNOWN,
            confidence=0.2,
        ),
    ]
    extra = [
        finding(
            "COM102",
            name="arrival-skew-bound-collectives",
            severity=Severity.WARNING,
            headline="Waiting for late ranks takes 27.8 % of each step",
            message="It is 87.0 % of exposed communication.",
            cost_ns_per_step=6_200 * US,
            fix="Make ranks arrive together first; more bandwidth or overlap would not help.",
        ),
        finding(
            "HST101",
            name="launch-bound-host",
            severity=Severity.INFO,
            confidence=Confidence.INFERRED,
            headline="Launch-bound: the GPU waits 5.56 % of each step for kernel launches",
            message="It runs dry before 3.1 % of kernels.",
            cost_ns_per_step=1_240 * US,
            fix="Capture the step in CUDA graphs or compile it.",
        ),
    ]
    return report_of(
        ranks,
        run=run_info(tuple(range(8)), nodes={"node-a": (0, 1, 2, 3), "node-b": (4, 5, 6, 7)}),
        capture=capture(tuple(range(8)), clocks=clocks),
        stragglers=StragglersResult(
            ranks=tuple(blame),
            steps=(StepBlame(step=7, lost_ns=7_050 * US, rank=2, rank_lost_ns=6_910 * US),),
            pattern=StragglerPattern.PERSISTENT,
            lost_ns_per_step=7_050 * US,
            num_judged=240,
            num_below_residual=11,
        ),
        collectives=CollectivesResult(
            num_ranks=8,
            num_steps=NUM_STEPS,
            classes=(
                all_reduce(),
                all_reduce(
                    kind="all_gather",
                    bytes=4096,
                    count=20,
                    exposed_ns_per_step=180 * US,
                    transfer_ns_median=21 * US,
                    wait_ns_median=44 * US,
                    busbw_bytes_per_s=0.17e9,
                ),
            ),
        ),
        kernels=kernels(),
        idle=IdleResult(
            ranks=tuple(idle(r) for r in ranks),
            pauses=(
                CpuPause(
                    kind="sync",
                    caller="",
                    name="cudaStreamSynchronize",
                    ranks=tuple(range(8)),
                    count_per_step=2.0,
                    cpu_ns_per_step=900 * US,
                    idle_ns_per_step=300 * US,
                ),
            ),
        ),
        plan=RepairPlan(
            step_ns=22_300 * US,
            repairs=(
                Repair(
                    what="rank 2",
                    title="rank 2 kept up with its peers",
                    done="rank 2 fixed",
                    ranks=(2,),
                    alone_ns=5_800 * US,
                    gain_ns=5_800 * US,
                    step_ns=16_500 * US,
                ),
                Repair(
                    what="overlap",
                    title="non-blocking collectives overlapped with compute that now runs alone",
                    done="communication overlapped",
                    ranks=(),
                    alone_ns=1_700 * US,
                    gain_ns=1_800 * US,
                    step_ns=14_700 * US,
                ),
            ),
        ),
        findings=(finding(repair=1), *extra),
        not_checked=(
            NotChecked(
                code="TEL101", name="clocks-throttled", why="no device telemetry was recorded"
            ),
            NotChecked(
                code="TEL102", name="device-too-hot", why="no device telemetry was recorded"
            ),
        ),
    )


def single_rank() -> Report:
    """One rank of eight: waiting and transfer cannot be told apart."""
    rank = waterfall_of(
        0,
        computation_ns=120 * MS,
        exposed_comm_unsplit_ns=80 * MS,
        exposed_copy_ns=1 * MS,
        idle_host_ns=22 * MS,
    )
    return report_of(
        [rank],
        run=run_info((0,), world_size=8),
        capture=capture(
            (0,),
            world_size=8,
            ranks_missing=tuple(range(1, 8)),
            gaps=(
                Gap(
                    what="missing-ranks",
                    message="7 of 8 ranks have no trace here: nothing across ranks is measured",
                    ranks=tuple(range(1, 8)),
                ),
            ),
        ),
        collectives=CollectivesResult(
            num_ranks=1,
            num_steps=NUM_STEPS,
            classes=(
                all_reduce(
                    num_matched=0,
                    transfer_ns_median=None,
                    wait_ns_median=None,
                    wait_ns_per_step=None,
                    transfer_ns_per_step=None,
                    exposed_wait_ns_per_step=None,
                    algbw_bytes_per_s=None,
                    busbw_bytes_per_s=None,
                ),
            ),
            unavailable=("Transfer and waiting need the traces of other ranks.",),
        ),
        not_checked=(
            NotChecked(
                code="STR101", name="persistent-straggler", why="one rank alone has no peers"
            ),
        ),
    )


def capture_only() -> Report:
    """Four ranks without step marks, from a profiler that ran without a schedule."""
    ranks = [
        waterfall_of(
            rank, computation_ns=610 * MS, exposed_transfer_ns=310 * MS, idle_unknown_ns=80 * MS
        )
        for rank in range(4)
    ]
    return report_of(
        ranks,
        num_steps=1,
        source=StepSource.CAPTURE,
        capture=capture((0, 1, 2, 3), steps=(), dropped_steps={}),
        not_checked=(
            NotChecked(code="INP101", name="input-bound", why="no step marks in the traces"),
        ),
    )


def cpu_only() -> Report:
    """Two ranks on gloo: the host threads are the device."""
    ranks = [
        waterfall_of(
            rank,
            computation_ns=90 * MS,
            exposed_transfer_ns=9 * MS,
            exposed_wait_ns=30 * MS,
            idle_input_ns=100 * MS,
        )
        for rank in range(2)
    ]
    return report_of(
        ranks, run=run_info((0, 1), backend="gloo", device="cpu", versions={"torch": "2.13.0"})
    )


def many_ranks() -> Report:
    """Sixty-four ranks, of which rank 37 computes longer and everybody waits."""
    ranks = [
        waterfall_of(
            rank,
            computation_ns=150 * MS + rank * 7 * US + (60 * MS if rank == 37 else 0),
            exposed_wait_ns=60 * MS - rank * 7 * US - (58 * MS if rank == 37 else 0),
            exposed_transfer_ns=30 * MS,
            idle_host_ns=10 * MS - (2 * MS if rank == 37 else 0),
        )
        for rank in range(64)
    ]
    blame = RankStraggler(
        rank=37,
        lost_ns_per_step=5_980 * US,
        share_of_step_ratio=0.239,
        late_ratio=0.88,
        pattern=StragglerPattern.PERSISTENT,
        cause=StragglerCause.MORE_WORK,
        confidence=0.9,
    )
    return report_of(
        ranks,
        stragglers=StragglersResult(
            ranks=(blame,),
            steps=(),
            pattern=StragglerPattern.PERSISTENT,
            lost_ns_per_step=6_100 * US,
            num_judged=240,
            num_below_residual=0,
        ),
        findings=(
            finding(
                headline="Rank 37 holds the others up: 23.9 % of each step",
                message="They wait 5.98 ms of every step for it. It has more to compute.",
                ranks=(37,),
                cost_ns_per_step=5_980 * US,
            ),
            *(
                finding(
                    f"COM10{i}",
                    name=f"finding-{i}",
                    headline=f"Finding {i} takes {9 - i}00 µs",
                    cost_ns_per_step=(9 - i) * 100 * US,
                )
                for i in range(7)
            ),
        ),
    )


def empty() -> Report:
    """Nothing at all could be measured."""
    return report_of(
        [],
        num_steps=0,
        source=StepSource.CAPTURE,
        run=run_info((0,), num_steps=0, world_size=None, backend="", device="", mesh={}, nodes={}),
        capture=capture((0,), steps=(), dropped_steps={}, clocks=(), num_events=0, world_size=None),
        waterfall=WaterfallResult(
            num_ranks=0,
            num_steps=0,
            ranks=(),
            all=None,
            unavailable=("The trace holds no device activity.",),
        ),
    )


def nasty() -> Report:
    """Every free text is an attack on the terminal, on Markdown or on the reader."""
    base = straggler()
    row = base.kernels.kernels[0]
    hostile = finding(
        headline=NASTY,
        message=NASTY,
        fix=NASTY,
        name="hostile-name",
        docs="reference/rules/hostile-name.md",
        docs_url="javascript:alert(1)//https://x",
    )
    names = KernelsResult(
        categories=base.kernels.categories,
        kernels=(
            KernelRow(
                name=NASTY,
                kind=row.kind,
                count=row.count,
                total_ns=row.total_ns,
                median_ns=row.median_ns,
                slowest_rank=3,
                spread=1.01,
            ),
        ),
        ranks=(),
    )
    return report_of(
        list(base.waterfall.ranks),
        run=run_info(tuple(range(8)), source=NASTY, device=NASTY, nodes={NASTY: (0,)}),
        capture=capture(
            tuple(range(8)),
            gaps=(Gap(what="damaged", message=NASTY, ranks=(0,)),),
            notes=(NASTY,),
        ),
        collectives=CollectivesResult(
            num_ranks=8, num_steps=NUM_STEPS, classes=(all_reduce(group=NASTY, axis=None),)
        ),
        kernels=names,
        findings=(hostile,),
        not_checked=(NotChecked(code="TEL101", name="x", why=NASTY),),
    )


SAMPLES: dict[str, Callable[[], Report]] = {
    "healthy": healthy,
    "straggler": straggler,
    "single-rank": single_rank,
    "capture-only": capture_only,
    "cpu-only": cpu_only,
    "many-ranks": many_ranks,
    "empty": empty,
    "nasty": nasty,
}


def pipeline() -> PipelineGroup:
    """Two stages, one after the other."""
    rows = [
        PictureRow(rank=0, stage=0, kind="forward", micro_batch=0, start_ns=0, end_ns=40),
        PictureRow(rank=1, stage=1, kind="forward", micro_batch=0, start_ns=50, end_ns=100),
        PictureRow(rank=1, stage=1, kind="backward", micro_batch=0, start_ns=100, end_ns=200),
    ]
    return PipelineGroup(
        schedule="1f1b",
        ranks=(0, 1),
        stages=2,
        virtual_stages=1,
        num_micro_batches=1,
        source="marks",
        confidence=Confidence.MEASURED,
        picture=tuple(rows),
    )
