"""Damage is named in the default output, or changes nothing: a job whose truth is known, damaged.

Rank 2 of four runs its kernels half as long again. Whoever reads a damaged copy of the recording
learns the same, or learns in the evidence line what is wrong with it.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import distprof
from benchmarks.damage import Outcome, case_of, outcome_of
from benchmarks.fuzzing.damages import Event
from distprof.documents.saved import REPORT, Report
from distprof.formats import RenderOptions
from distprof.rules.base import Finding
from distprof.terms import Confidence, StragglerCause
from tests.drawn import drawn
from tests.simulator.job import SlowDevice
from tests.simulator.shapes import Shape, data_parallel
from tests.simulator.trials import with_fault

GOLDEN = Path(__file__).parent / "golden"
SLOW = 2
Trace = dict[str, Any]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Trace]:
    dice = random.Random("a job to be damaged")
    job = data_parallel(Shape(num_nodes=1, per_node=4), dice, num_steps=8)
    job = with_fault(job, SlowDevice(rank=SLOW, factor=1.5)).job
    paths = job.run().write_kineto(tmp_path_factory.mktemp("job"), with_seq=False)
    return dict(enumerate(json.loads(gzip.decompress(path.read_bytes())) for path in paths))


@pytest.fixture
def report(traces: dict[int, Trace], tmp_path: Path) -> Callable[..., Report]:
    def made(changed: Mapping[int, Trace] | None = None) -> Report:
        for rank, trace in {**traces, **(changed or {})}.items():
            data = json.dumps(trace).encode()
            (tmp_path / f"rank{rank}.json.gz").write_bytes(gzip.compress(data, 1))
        return distprof.analyze(distprof.open_run(tmp_path, use_cache=False), executor="serial")

    return made


def events(trace: Trace, *cats: str) -> list[Event]:
    return [event for event in trace["traceEvents"] if event.get("cat") in cats]


def shown(report: Report) -> str:
    return " ".join(REPORT.reporter("text")(report, RenderOptions(full=False)).split())


def facts(report: Report) -> list[str]:
    return [gap.fact for gap in report.capture.gaps if gap.fact]


def about(report: Report, rank: int) -> list[Finding]:
    return [found for found in report.findings if found.ranks == (rank,)]


def test_a_sound_job_names_no_damage(report):
    found = report()
    assert facts(found) == []
    (slow,) = about(found, SLOW)
    assert "runs the same kernels slower" in slow.message
    assert slow.confidence is Confidence.MEASURED


def test_launches_without_kernels_are_counted_and_hide_the_cause(report, traces):
    trace = copy.deepcopy(traces[SLOW])
    kernels = [e for e in events(trace, "kernel") if not e["name"].startswith("nccl")]
    lost = {id(event) for event in kernels[len(kernels) // 4 : len(kernels) // 2]}
    trace["traceEvents"] = [e for e in trace["traceEvents"] if id(e) not in lost]
    found = report({SLOW: trace})
    launches = sum("LaunchKernel" in e["name"] for e in events(trace, "cuda_runtime"))
    (fact,) = facts(found)
    assert fact == f"{len(lost)} of {launches} launches of rank {SLOW} without a kernel"
    assert fact in shown(found)
    named = about(found, SLOW)
    assert len(named) == 1  # once, and not for two contradictory causes
    assert "do not show why" in named[0].message
    assert named[0].confidence is Confidence.INFERRED
    (slow,) = (one for one in found.stragglers.ranks if one.rank == SLOW)
    assert slow.cause is StragglerCause.UNKNOWN
    assert slow.confidence < 0.75


def test_kernels_without_launches_are_counted_between_others(report, traces):
    trace = copy.deepcopy(traces[SLOW])
    calls = events(trace, "cuda_runtime")
    lost = {id(event) for event in calls[len(calls) // 4 : len(calls) // 2]}
    trace["traceEvents"] = [e for e in trace["traceEvents"] if id(e) not in lost]
    (fact,) = facts(report({SLOW: trace}))
    assert f"kernels of rank {SLOW} without a launch" in fact


def test_kernels_of_before_the_capture_have_no_launch_and_are_no_damage(report, traces):
    changed = {}
    for rank, trace in traces.items():
        trace = copy.deepcopy(trace)
        calls = {id(event) for event in events(trace, "cuda_runtime")[:5]}
        trace["traceEvents"] = [e for e in trace["traceEvents"] if id(e) not in calls]
        changed[rank] = trace
    assert facts(report(changed)) == []


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_rank_whose_durations_are_in_another_unit_is_unreadable(report, traces, factor):
    trace = copy.deepcopy(traces[1])
    for event in events(trace, "kernel"):
        event["dur"] *= factor
    found = report({1: trace})
    assert any("rank 1" in fact for fact in facts(found))
    assert 1 not in found.capture.ranks_present
    assert SLOW in {rank for f in found.findings[:1] for rank in f.ranks}


def test_a_jump_of_the_clock_is_taken_out_and_named(report, traces):
    sound = report()
    trace = copy.deepcopy(traces[1])
    times = sorted(event["ts"] for event in events(trace, "kernel"))
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event["ts"] >= times[len(times) // 2]:
            event["ts"] += 50_000
    found = report({1: trace})
    assert facts(found) == ["clock of rank 1 jumps forward by 50.0 ms"]
    assert outcome_of(found).differences(outcome_of(sound)) == []
    assert found.capture.matched_ratio == sound.capture.matched_ratio
    assert found.step_time.median_ns == pytest.approx(sound.step_time.median_ns, rel=1e-4)


def test_a_clock_that_jumps_back_loses_its_rank(report, traces):
    trace = copy.deepcopy(traces[1])
    times = sorted(event["ts"] for event in events(trace, "kernel"))
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event["ts"] >= times[len(times) // 2]:
            event["ts"] -= 20_000
    found = report({1: trace})
    assert facts(found) == ["clock of rank 1 jumps back"]
    assert 1 not in found.capture.ranks_present
    assert "1 file is damaged (rank 1)" in shown(found)
    assert "clock of rank 1 jumps back" in shown(found)
    assert "was not recorded" not in shown(found)


def test_two_ranks_are_never_equal(report, traces):
    trace = copy.deepcopy(traces[0])
    trace["distributedInfo"] = traces[SLOW]["distributedInfo"]
    found = report({SLOW: trace})
    assert facts(found) == [f"rank {SLOW} repeats rank 0"]
    assert found.capture.ranks_present == (0, 1, 3)


def test_a_kernel_that_outlasts_those_after_it_is_ended_where_they_begin(report, traces):
    sound = report()
    trace = copy.deepcopy(traces[1])
    kernels = events(trace, "kernel")
    kernels[len(kernels) // 2]["dur"] = 3.6e9
    kernels[-1]["dur"] = 3.6e9
    found = report({1: trace})
    assert facts(found) == ["2 impossible durations on rank 1"]
    assert outcome_of(found).differences(outcome_of(sound)) == []


def test_events_that_are_there_twice_count_once(report, traces):
    sound = report()
    trace = copy.deepcopy(traces[1])
    trace["traceEvents"] += copy.deepcopy(events(trace, "kernel"))
    found = report({1: trace})
    assert any("GPU activities of rank 1 there twice" in fact for fact in facts(found))
    assert outcome_of(found).differences(outcome_of(sound)) == []


def test_negative_durations_are_counted_in_the_evidence_line(report, traces):
    trace = copy.deepcopy(traces[1])
    for event in events(trace, "kernel")[10:18]:
        event["dur"] = -5
    assert any(
        fact.startswith("8 impossible durations on rank 1") for fact in facts(report({1: trace}))
    )


def test_step_marks_that_overlap_are_counted(report, traces):
    trace = copy.deepcopy(traces[1])
    marks = [e for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")]
    marks[2]["dur"] *= 1.5
    assert facts(report({1: trace})) == ["1 step marks of rank 1 overlap"]


def test_a_rank_without_gpu_rows_or_with_a_shorter_recording_is_named(report, traces):
    trace = copy.deepcopy(traces[1])
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") != "kernel"]
    assert "rank 1 without GPU rows" in facts(report({1: trace}))
    trace = copy.deepcopy(traces[1])
    times = [e["ts"] for e in trace["traceEvents"] if e.get("ph") == "X"]
    end = min(times) + 0.6 * (max(times) - min(times))
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("ts", 0) <= end]
    assert any(fact.startswith("rank 1 lacks ") for fact in facts(report({1: trace})))


def test_a_rank_whose_file_is_unreadable_was_not_left_unrecorded(report, traces):
    found = report({1: {**traces[1], "traceEvents": []}})
    assert facts(found) == ["rank 1 unreadable"]
    assert "not recorded" not in shown(found)


@pytest.mark.parametrize(
    "folder",
    [
        "kineto/dlrm-v100-8gpu",
        "kineto/ddp-a100-2gpu-rank0",
        "kineto/mi250-1gpu",
        "kineto/mi210-gpu-only",
        "kineto/tp8-b200-rank0",
        "kineto/gloo-ddp-2ranks",
        "job/nccl-fsdp-2ranks-h100",
        *(f"gpu-truth/{path.name}" for path in sorted((GOLDEN / "gpu-truth").iterdir())),
    ],
)
def test_real_recordings_break_no_invariant(folder: str) -> None:
    path = GOLDEN / folder
    if path.is_dir():
        run = distprof.open_run(path, use_cache=False)
        assert [gap.fact for gap in run.gaps if gap.fact] == []


@pytest.mark.parametrize("part", drawn(range(40), always=0))
def test_drawn_damage_is_named_or_changes_nothing(part: int) -> None:
    """To look at one that fails: python -m benchmarks.damage --first NUMBER --cases 1 --show."""
    cases = [case_of(number) for number in range(48 * part, 48 * part + 48)]
    assert [case for case in cases if case.is_silent] == []


def test_a_difference_in_blame_or_of_two_points_is_seen() -> None:
    one = Outcome(frozenset({((2,), "slow_device")}), {"idle": 0.1, "computation": 0.9}, "", ())
    other = Outcome(frozenset(), {"idle": 0.13, "computation": 0.87}, "", ())
    assert len(one.differences(other)) == 2
    assert one.differences(one) == []


def test_a_sound_recording_whose_ids_do_not_follow_time_is_not_called_damaged() -> None:
    """Stages that wait at the ends of each step, and launches numbered by micro-batch."""
    run = distprof.open_run(GOLDEN / "pipeline" / "balanced-1f1b", use_cache=False)
    assert [gap.fact for gap in run.gaps if gap.fact] == []
