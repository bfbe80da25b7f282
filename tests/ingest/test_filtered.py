"""A trace that lost rows after recording: the GPU may have been busy when it seems idle."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof.documents.saved import REPORT
from distprof.formats import RenderOptions
from distprof.ingest.kineto.reader import read_trace
from distprof.sections.shows import judge

GOLDEN = Path(__file__).parents[1] / "golden"
WHOLE = GOLDEN / "kineto" / "ddp-a100-2gpu-rank0" / "nccl_data.json.gz"


def filtered(folder: Path, keep: Callable[[dict[str, Any]], bool]) -> Path:
    """The golden trace with the complete events that ``keep`` selects."""
    trace = json.loads(gzip.decompress(WHOLE.read_bytes()))
    events = trace["traceEvents"]
    trace["traceEvents"] = [event for event in events if event.get("ph") != "X" or keep(event)]
    path = folder / "rank0.json"
    path.write_text(json.dumps(trace))
    return path


def long_or_communicating(event: dict[str, Any]) -> bool:
    """Operators of communication and kernels of at least 60 µs, as a publisher may choose."""
    if event["cat"] == "cpu_op":
        return bool(event["name"].startswith(("record_param_comms", "c10d", "nccl")))
    return event["cat"] != "kernel" or "nccl" in event["name"] or event["dur"] >= 60


def without_operators(event: dict[str, Any]) -> bool:
    """Only what the GPU and the runtime did: the kernels' numbers tell of the operators."""
    return event["cat"] != "cpu_op" and (event["cat"] != "kernel" or long_or_communicating(event))


@pytest.mark.parametrize("keep", [long_or_communicating, without_operators])
def test_idle_time_of_a_filtered_trace_is_not_judged(tmp_path, keep):
    report = distprof.analyze(distprof.open_run(filtered(tmp_path, keep)))
    assert report.capture.filtered_ranks == (0,)
    codes = {finding.code for finding in report.findings}
    assert not {code for code in codes if code.startswith("HST")}
    assert "COM101" not in codes
    assert "CAP101" in codes
    verdict = judge(report)
    assert "idle" not in verdict.headline.lower()
    assert not verdict.part.startswith("idle")
    assert not report.plan.repairs
    shown = " ".join(REPORT.reporter("text")(report, RenderOptions(width=80)).split())
    assert "1 trace filtered" in shown
    assert "idle time cannot be judged" in shown


def test_a_trace_without_a_gap_in_its_numbers_is_whole(tmp_path):
    report = distprof.analyze(distprof.open_run(filtered(tmp_path, lambda _: True)))
    assert report.capture.filtered_ranks == ()
    assert report.findings[0].code == "HST101"


def test_numbers_of_launches_do_not_show_that_operators_are_missing(tmp_path):
    def numbered_by_launch(event: dict[str, Any]) -> bool:
        if "External id" in event.get("args", {}):
            event["args"]["External id"] = event["args"].get("correlation", 0)
        return event["cat"] != "cpu_op"

    report = distprof.analyze(distprof.open_run(filtered(tmp_path, numbered_by_launch)))
    assert report.capture.filtered_ranks == ()


TRACES = sorted(path for path in GOLDEN.rglob("*.json.gz") if "trace" in path.name or path == WHOLE)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: str(path.relative_to(GOLDEN)))
def test_traces_as_profilers_wrote_them_are_whole(path):
    assert not read_trace(path).quality.is_filtered


def test_long_traces_of_gpus_have_a_row_for_every_number():
    assert read_trace(WHOLE).quality.operator_ratio == pytest.approx(1.0, abs=0.1)
