"""A trace without device rows is one of a CPU only where nothing points to another device."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof.documents.saved import REPORT
from distprof.formats import RenderOptions

GOLDEN = Path(__file__).parents[1] / "golden" / "kineto"
STEP_US = 1000


def event(category: str, name: str, start: float, length: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, "ts": start,
            "dur": length, "args": {}}  # fmt: skip


def host_steps(*, with_gloo: bool = False) -> list[dict[str, Any]]:
    """Three steps of operators on the host."""
    events = []
    for step in range(3):
        start = 1_000_000 + step * STEP_US
        events += [
            event("user_annotation", f"ProfilerStep#{step}", start, STEP_US - 10),
            event("cpu_op", "aten::mm", start + 10, 400),
            event("cpu_op", "aten::relu", start + 420, 100),
        ]
        if with_gloo:
            events.append(event("user_annotation", "gloo:all_reduce", start + 500, 300, tid=2))
    return events


def written(folder: Path, events: list[dict[str, Any]], **top: Any) -> Path:
    path = folder / "rank-0.pt.trace.json"
    told = {"distributedInfo": {"rank": 0, "world_size": 1}, "schemaVersion": 1, **top}
    path.write_text(json.dumps({**told, "traceEvents": events}))
    return path


def analyzed(path: Path) -> Any:
    return distprof.analyze(distprof.open_run(path))


def drawn(report: Any) -> str:
    return " ".join(REPORT.reporter("text")(report, RenderOptions(width=100, full=True)).split())


def assert_nothing_invented(report: Any) -> None:
    assert report.run.device != "cpu"
    assert not report.breakdown.ranks
    assert not report.waterfall.ranks
    assert not report.kernels.kernels
    assert drawn(report).startswith("No device activity was recorded")


def test_operators_of_a_host_without_any_other_sign_are_work(tmp_path):
    report = analyzed(written(tmp_path, host_steps(), deviceProperties=[]))
    assert report.run.device == "cpu"
    assert report.breakdown.ranks


def test_gloo_alone_is_a_cpu_even_next_to_gpus(tmp_path):
    events = host_steps(with_gloo=True)
    report = analyzed(written(tmp_path, events, deviceProperties=[{"id": 0, "name": "H100"}]))
    assert report.run.device == "cpu"


def test_a_listed_device_without_rows_is_no_cpu(tmp_path):
    report = analyzed(written(tmp_path, host_steps(), deviceProperties=[{"id": 0, "name": "H100"}]))
    assert_nothing_invented(report)
    assert "the trace lists 1 × H100" in drawn(report)


@pytest.mark.parametrize("category", ["cuda_runtime", "hip_runtime", "mtia_runtime", "xpu_driver"])
def test_calls_of_a_runtime_without_rows_are_no_cpu(tmp_path, category):
    """Gloo next to them changes nothing: a job on GPUs may have a group on the host as well."""
    events = [*host_steps(with_gloo=True), event(category, "launch", 1_000_100, 5)]
    assert_nothing_invented(analyzed(written(tmp_path, events)))


def test_an_unknown_accelerator_is_named_counted_and_timed(tmp_path):
    events = host_steps()
    events += [event("mtia_ccp_events", f"op {i}", 1_000_000 + 100 * i, 50) for i in range(20)]
    events += [event("hpu_op", "gemm", 1_000_000, 300)]
    report = analyzed(written(tmp_path, events))
    assert_nothing_invented(report)
    assert report.capture.gaps[0].what == "no-device-activity"
    text = drawn(report)
    assert "mtia_ccp_events (20 events, 1.00 ms)" in text
    assert "hpu_op (1 event, 300 µs)" in text


def test_a_file_that_ends_before_its_kernels_is_no_cpu(tmp_path):
    path = written(tmp_path, host_steps(), deviceProperties=[{"id": 0, "name": "H100"}])
    path.write_text(path.read_text()[:-60])
    report = analyzed(path)
    assert_nothing_invented(report)
    assert "missing part of the file" in drawn(report)


def test_collectives_of_nccl_without_kernels_are_no_cpu(tmp_path):
    events = [*host_steps(), event("user_annotation", "nccl:all_reduce", 1_000_500, 20)]
    assert_nothing_invented(analyzed(written(tmp_path, events)))


@pytest.mark.parametrize("name", ["distributed_info_not_found", "rank_not_found"])
def test_real_traces_of_gpus_whose_kernels_were_not_recorded(name):
    assert_nothing_invented(analyzed(GOLDEN / "edge-metadata" / f"{name}.json.gz"))


def test_the_real_traces_of_gloo_are_of_a_cpu():
    report = analyzed(GOLDEN / "gloo-ddp-2ranks")
    assert report.run.device == "cpu"
    assert len(report.breakdown.ranks) == 2


def test_one_rank_that_lost_its_device_leaves_the_others_measured(tmp_path):
    """GIVEN four real ranks of which one lost its kernels THEN the other three are measured."""
    for path in sorted((GOLDEN / "dlrm-v100-8gpu").glob("worker*.json.gz")):
        content = json.loads(gzip.decompress(path.read_bytes()))
        if path.name.startswith("worker2"):
            kept = [e for e in content["traceEvents"] if e.get("cat") not in
                    ("kernel", "gpu_memcpy", "gpu_memset")]  # fmt: skip
            content["traceEvents"] = kept
        (tmp_path / path.name.removesuffix(".gz")).write_text(json.dumps(content))
    report = analyzed(tmp_path)
    assert sorted(rank.rank for rank in report.breakdown.ranks) == [0, 1, 3]
    gap = report.capture.gaps[0]
    assert (gap.what, gap.ranks) == ("no-device-activity", (2,))
