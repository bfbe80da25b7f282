"""Figures of real traces that were computed independently, reproduced to 0.1 %.

The references take the union of *kernels* per trace: their span runs from the first kernel to the
last, and their idle time is that span without computation and communication. Ours takes copies into
account: the capture begins and ends with any device activity, and a device that copies is not idle.
Both are checked here: what we report must equal the reference once the copies are put back, as
``reference idle = idle + exposed copies - (our span - the kernels' span)``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distprof.ingest.open import open_run
from distprof.ingest.rank import IngestOptions
from distprof.run.run import Run
from distprof.run.tables import intervals_of
from distprof.terms import ActivityKind
from tests.sections.measured import Measured, measure

GOLDEN = Path(__file__).parents[1] / "golden" / "kineto"
EXACT_ENOUGH = 1e-3


def opened(folder: Path) -> Run:
    return open_run(str(folder), IngestOptions(use_cache=False), executor="serial")


def from_corpus(name: str) -> Run:
    root = os.environ.get("DISTPROF_CORPUS")
    if not root:
        pytest.skip("DISTPROF_CORPUS does not name the folder of real traces")
    return opened(Path(root) / "kineto" / name)


def ms(ns: int) -> float:
    return ns / 1e6


def close(value: float, digits: float = 0.0) -> object:
    """0.1 %, or half of the last digit that the reference gives."""
    return pytest.approx(value, rel=EXACT_ENOUGH, abs=digits)


def kernel_span_ms(run: Run) -> float:
    """From the first kernel's start to the last one's end, as the references count it."""
    activity = run.ranks[0].tables.load().activity
    kernels = (activity["kind"] == ActivityKind.COMPUTATION) | (
        activity["kind"] == ActivityKind.COMMUNICATION
    )
    start, end = intervals_of(activity)
    return ms(int(end[kernels].max() - start[kernels].min()))


def kernel_idle_ms(run: Run, measured: Measured) -> float:
    """Our idle time turned into the references' definition."""
    (row,) = measured.breakdown.ranks
    beyond_kernels = ms(row.span_ns) - kernel_span_ms(run)
    return ms(row.idle_ns + row.exposed_copy_ns) - beyond_kernels


def test_ddp_on_two_a100():
    run = opened(GOLDEN / "ddp-a100-2gpu-rank0")
    measured = measure(run, window="capture")
    (row,), (overlap,) = measured.breakdown.ranks, measured.overlap.ranks
    assert kernel_span_ms(run) == close(660.55)
    assert ms(row.computation_ns) == close(115.66)
    assert ms(overlap.communication_ns) == close(46.88)
    assert ms(overlap.overlapped_ns) == close(7.32)
    assert overlap.overlap_ratio == close(0.156, 0.0005)
    assert kernel_idle_ms(run, measured) == close(505.3)
    assert ms(row.idle_ns) == close(503.05)  # 2.28 ms of what the reference calls idle are copies


def test_ddp_on_two_a100_is_bound_by_its_host():
    """SOURCES calls it a CPU-bound run: the host explains nearly all of the idle time."""
    (idle,) = measure(opened(GOLDEN / "ddp-a100-2gpu-rank0")).idle.ranks
    assert idle.host_ns / idle.idle_ns > 0.95


def test_dlrm_on_eight_v100():
    measured = measure(opened(GOLDEN / "dlrm-v100-8gpu"), window="capture")
    ranks = measured.overlap.ranks
    assert [ms(rank.communication_ns) for rank in ranks] == [
        close(value, 0.005) for value in (5.80, 11.34, 3.49, 9.77)
    ]
    assert [ms(rank.overlapped_ns) for rank in ranks] == [
        close(value, 0.0051) for value in (0.26, 0.28, 0.27, 0.32)
    ]


def test_dlrm_on_eight_v100_mostly_waits():
    """The last of the four starts the first all-to-all 7.1 ms after rank 1: waiting, not wires."""
    measured = measure(opened(GOLDEN / "dlrm-v100-8gpu"))
    waits = {row.rank: row.exposed_wait_ns for row in measured.waterfall.ranks}
    assert max(waits, key=lambda rank: waits[rank]) == 1
    assert min(waits, key=lambda rank: waits[rank]) == 2
    assert all(row.exposed_comm_unsplit_ns == 0 for row in measured.waterfall.ranks)


def test_tensor_parallel_inference_on_b200():
    """74 communication kernels, 73 of which are not named nccl."""
    run = opened(GOLDEN / "tp8-b200-rank0")
    measured = measure(run)
    (overlap,) = measured.overlap.ranks
    counts = {row.kind: row.count for row in measured.kernels.categories}
    assert counts["communication"] == 74
    assert ms(overlap.communication_ns) == close(2.14, 0.005)
    assert overlap.overlapped_ns == 0
    assert kernel_span_ms(run) == close(83.4, 0.05)
    assert kernel_idle_ms(run, measured) == close(72.6, 0.05)


@pytest.mark.parametrize("name", ["mi210-gpu-only", "mi250-1gpu"])
def test_runs_without_communication_have_no_overlap_ratio(name):
    source = GOLDEN / name
    for path in sorted(source.glob("*.json.gz")):
        (overlap,) = measure(opened(path)).overlap.ranks
        assert (overlap.communication_ns, overlap.overlap_ratio) == (0, None)


@pytest.mark.parametrize("window", ["steps", "capture"])
@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*/*.json.gz")), ids=lambda p: p.parent.name)
def test_every_real_trace_adds_up(path, window):
    measured = measure(opened(path), window=window)
    is_lost = path.parent.name == "edge-metadata"  # GPUs of which only the host was recorded
    assert bool(measured.breakdown.steps) is not is_lost
    for row in measured.breakdown.steps:
        parts = (row.computation_ns, row.exposed_comm_ns, row.exposed_copy_ns, row.idle_ns)
        assert sum(parts) == row.span_ns
        assert min(parts) >= 0
    for fall in measured.waterfall.ranks:
        parts = [getattr(fall, name) for name in fall.__struct_fields__[2:]]
        assert sum(parts) == fall.span_ns
        assert min(parts) >= 0


# The larger traces --------------------------------------------------------------------------------


@pytest.mark.corpus
def test_torchrec_on_sixteen_a100():
    run = from_corpus("torchrec-a100-16gpu-rank0")
    measured = measure(run, window="capture")
    (overlap,) = measured.overlap.ranks
    assert ms(overlap.communication_ns) == close(187.87)
    assert overlap.overlap_ratio == close(0.0136, 0.00005)
    assert kernel_span_ms(run) == close(1227.18)
    assert kernel_idle_ms(run, measured) == close(830.9)


@pytest.mark.corpus
def test_dlrm_on_eight_a100():
    (overlap,) = measure(from_corpus("dlrm-a100-8gpu-rank3"), window="capture").overlap.ranks
    assert ms(overlap.communication_ns) == close(163.54)
    assert ms(overlap.overlapped_ns) == close(75.61)
    assert overlap.overlap_ratio == close(0.462, 0.0005)


@pytest.mark.corpus
def test_ddp_of_world_size_one_has_no_communication():
    (overlap,) = measure(from_corpus("ddp-v100-world1")).overlap.ranks
    assert (overlap.communication_ns, overlap.overlap_ratio) == (0, None)


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("workers", "step_ms", "idle_ms", "computation_ms"),
    [(0, 213.8, 656.9, 635.2), (4, 181.0, 436.6, 649.6)],
)
def test_resnet_with_and_without_loader_processes(workers, step_ms, idle_ms, computation_ms):
    run = from_corpus(f"resnet50-dataloader-legacy/num_workers_{workers}.worker0.pt.trace.json.gz")
    capture, steps = measure(run, window="capture"), measure(run)
    spans = [row.span_ns for row in steps.breakdown.steps]
    assert ms(sum(spans) / len(spans)) == close(step_ms, 0.05)
    assert ms(capture.breakdown.ranks[0].computation_ns) == close(computation_ms, 0.05)
    (row,) = capture.breakdown.ranks
    assert ms(row.idle_ns + row.exposed_copy_ns) == close(idle_ms, 0.05)


@pytest.mark.corpus
def test_loader_processes_take_the_input_stall_away():
    """The same training before and after the fix: input explains the difference in idle time."""
    name = "resnet50-dataloader-legacy/num_workers_{}.worker0.pt.trace.json.gz"
    before, after = (measure(from_corpus(name.format(n))).idle.ranks[0] for n in (0, 4))
    assert before.input_ns / before.idle_ns > 0.4
    assert after.input_ns / after.idle_ns < 0.02
    assert before.input_ns - after.input_ns > 0.9 * (before.idle_ns - after.idle_ns)
