"""Rules on sharded parameters, from time lines of a device to findings."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from distprof import analyze
from distprof.artefacts.run_file import RunFile
from distprof.documents.saved import Report
from distprof.run.run import Run
from distprof.run.topology import ProcessGroup
from distprof.terms import CollectiveKind, MeshAxis
from tests.builders import RankBuilder, make_run

US = 1_000
GATHER_US, COMPUTE_US = 100, 200
RANKS = (0, 1, 2, 3)
GROUP = ProcessGroup(
    name="1",
    description="mesh_dp_shard",
    ranks=RANKS,
    size=4,
    backend="nccl",
    axis=MeshAxis.DP_SHARD,
)
OURS = {"COM117", "COM118", "COM119", "COM120", "COM121", "COM122", "HST104"}


class Device:
    """One rank's device: a stream that computes, one that communicates."""

    def __init__(self, *, stream: int) -> None:
        self.rank = RankBuilder(0, world_size=4).member_of(GROUP)
        self.stream = stream
        self.now = 0

    def compute(self) -> int:
        """Compute with one unit; returns when that began."""
        begin = self.now
        self.rank.kernel("gemm", begin * US, (begin + COMPUTE_US) * US, launched=(begin, begin + 1))
        self.now += COMPUTE_US
        return begin

    def communicate(self, kind: CollectiveKind, size: int, begin: int) -> int:
        """Returns when that ends."""
        end = begin + GATHER_US
        self.rank.comm(
            f"ncclDevKernel_{kind.name}",
            begin * US,
            end * US,
            kind=kind,
            group="1",
            desc="mesh_dp_shard",
            ranks=RANKS,
            size=size,
            stream=self.stream,
            launched=(begin, begin + 1),
        )
        return end


def step(
    *, units: int, size: int, prefetch: bool, stream: int = 20, micro_batches: int = 1
) -> Device:
    """Forward and backward over all units; each has its gather, in backward a reduce-scatter."""
    device = Device(stream=stream)
    for _ in range(micro_batches):
        for is_backward in (False, True):
            for unit in range(units):
                if not prefetch or unit == 0:
                    device.now = device.communicate(CollectiveKind.ALL_GATHER, size, device.now)
                began = device.compute()
                if prefetch and unit + 1 < units:
                    device.communicate(CollectiveKind.ALL_GATHER, size, began + 5)
                if is_backward:
                    beside = began + GATHER_US + 10 if prefetch else device.now
                    end = device.communicate(CollectiveKind.REDUCE_SCATTER, size, beside)
                    device.now = max(device.now, end)
    device.rank.step(3, 0, device.now * US)
    return device


def run_of(device: Device, **changes: Any) -> Run:
    run = make_run([device.rank.rank()], steps=(3,), groups=[GROUP], world_size=4)
    return replace(run, **changes)


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings} & OURS


def test_parameters_gathered_in_time_are_no_finding():
    report = analyze(run_of(step(units=20, size=50_000_000, prefetch=True)))
    assert codes(report) == set()
    (axis,) = report.sharding.axes
    assert (axis.num_units, axis.gather_passes, axis.scatter_passes) == (20, 2.0, 1)
    assert axis.ahead_ratio == pytest.approx(38 / 40)


def test_parameters_gathered_late_cost_what_nothing_hides():
    report = analyze(run_of(step(units=20, size=50_000_000, prefetch=False)))
    assert codes(report) == {"COM117"}
    finding = next(finding for finding in report.findings if finding.code == "COM117")
    assert finding.cost_ns_per_step == 40 * GATHER_US * US
    assert finding.confidence == "inferred"  # one rank alone knows no waiting
    assert "Only 0 % of the parameters sharded over dp_shard (4 ranks)" in finding.message


def test_small_units_are_found_though_gathered_in_time_in_part():
    report = analyze(run_of(step(units=20, size=1_000_000, prefetch=False)))
    assert codes(report) == {"COM117", "COM118"}
    finding = next(finding for finding in report.findings if finding.code == "COM118")
    # 40 gathers of 1 MB would be 10 of 4 MB
    assert finding.cost_ns_per_step == 30 * GATHER_US * US


def test_each_micro_batch_with_its_own_traffic_is_found():
    report = analyze(run_of(step(units=5, size=50_000_000, prefetch=False, micro_batches=4)))
    assert "COM119" in codes(report)
    finding = next(finding for finding in report.findings if finding.code == "COM119")
    assert "gathers every parameter 8 times and reduces every gradient 4 times" in finding.message
    assert finding.cost_ns_per_step == (40 * 3 // 4 + 20 * 3 // 4) * GATHER_US * US


def test_collectives_among_the_kernels_are_found():
    report = analyze(run_of(step(units=20, size=50_000_000, prefetch=False, stream=7)))
    assert codes(report) == {"COM117", "COM121"}


@pytest.mark.parametrize(("value", "found"), [("1", True), ("8", False), (None, False)])
def test_one_connection_is_named_where_overlap_is_lost(value, found):
    environment = {} if value is None else {"CUDA_DEVICE_MAX_CONNECTIONS": value}
    job = RunFile(
        distprof_version="0",
        kind="capture",
        command=("train.py",),
        environment=environment,
        started_ns=0,
    )
    late = step(units=20, size=50_000_000, prefetch=False)
    assert ("HST104" in codes(analyze(run_of(late, job=job)))) == found
    hidden = step(units=20, size=50_000_000, prefetch=True)
    assert "HST104" not in codes(analyze(run_of(hidden, job=job)))


def test_settings_of_nccl_in_the_environment_are_named():
    job = RunFile(
        distprof_version="0",
        kind="capture",
        command=("train.py",),
        environment={"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO", "NCCL_P2P_DISABLE": "0"},
        started_ns=0,
    )
    report = analyze(run_of(step(units=20, size=50_000_000, prefetch=True), job=job))
    assert codes(report) == {"COM122"}
    assert report.findings[-1].message == "NCCL_ALGO=Ring (the algorithm is forced)."
