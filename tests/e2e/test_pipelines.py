"""Real pipelines of sleeping stages: the bubble that is measured, and what it is made of.

Stages sleep so long that two cores are enough for four ranks; what their last one computes beside
(output layer and loss) is work, and depends on how busy the machine is. So the measured bubble is
held against the replay of the order with the times that stages really took, and of the steps the
median one counts: something else on the machine may stall one of them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

import distprof
from distprof.sections.pipeline import PipelineGroup
from tests.e2e.jobs import Job, RunOnce

pytestmark = pytest.mark.distributed

PARTS = ("warm_up_drain_ns", "imbalance_ns", "variation_ns", "exposed_p2p_ns", "host_ns")
WITHIN = 0.03
SMALL = (
    *("--hidden", "64", "--heads", "4", "--kv-heads", "4", "--ffn", "128"),
    *("--vocabulary", "64", "--sequence", "32", "--batch", "8"),
)

# Stages per rank, and the bubble that the order has with equal stages and free messages.
CASES = {"1f1b": (1, 3 / 11), "zbv": (2, 3 / 51)}


@pytest.fixture(params=list(CASES))
def schedule(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def job(schedule: str, run_once: RunOnce) -> Job:
    per_rank, _ = CASES[schedule]
    found = run_once(
        *("pp", "--ranks", "4", "--schedule", schedule, "--layers", str(4 * per_rank)),
        *("--compute", "sleep", "--forward-ms", "100", "--backward-ms", "200"),
        *("--micro-batches", "8", "--steps", "5", "--no-measure-overhead", *SMALL),
    )
    assert found.exit_code == 0, found.stderr
    return found


@pytest.fixture
def group(job: Job) -> dict[str, Any]:
    (found,) = job.report["pipeline"]["groups"]
    return dict(found)


@pytest.fixture
def steps(job: Job) -> list[PipelineGroup]:
    """The pipeline in each step by itself."""
    return steps_of(job.dir)


@cache
def steps_of(folder: Path) -> list[PipelineGroup]:
    run = distprof.open_run(folder, executor="serial")
    alone = [replace(run, window=replace(run.window, steps=(step,))) for step in run.window.steps]
    return [distprof.analyze(step, executor="serial").pipeline.groups[0] for step in alone]


def test_the_schedule_its_stages_and_micro_batches_are_recognised(
    schedule: str, group: dict[str, Any]
) -> None:
    per_rank, ideal = CASES[schedule]
    assert (group["schedule"], group["ranks"]) == (schedule, [0, 1, 2, 3])
    assert (group["stages"], group["virtual_stages"]) == (4 * per_rank, per_rank)
    assert (group["num_micro_batches"], group["confidence"]) == (8, "measured")
    assert group["ideal_bubble_fraction"] == pytest.approx(ideal, abs=0.01)


def test_the_bubble_is_that_of_the_stages_replayed_but_for_messages_and_host(
    schedule: str, group: dict[str, Any], steps: list[PipelineGroup]
) -> None:
    _, ideal = CASES[schedule]
    assert sum(group[part] for part in PARTS) == group["idle_ns"]
    assert len(steps) >= 3
    replayed = [sum(getattr(step, part) for part in PARTS[:3]) / step.span_ns for step in steps]
    beyond = [(step.exposed_p2p_ns + step.host_ns) / step.span_ns for step in steps]
    more = [step.bubble_fraction - r for step, r in zip(steps, replayed, strict=True)]
    assert min(beyond) >= 0
    assert median(more) == pytest.approx(median(beyond), abs=0.001)
    # How long a message waits depends on the machine; what the stages leave idle does not.
    assert median(replayed) == pytest.approx(ideal, abs=WITHIN)


def test_the_present_configuration_is_predicted(
    group: dict[str, Any], steps: list[PipelineGroup]
) -> None:
    assert median(abs(step.prediction_error_ratio) for step in steps) < 0.05
    assert any(row["saved_ns"] > 0 for row in group["predictions"])
