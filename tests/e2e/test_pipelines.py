"""Real pipelines of sleeping stages: the bubble that is measured, and what it is made of.

Stages sleep so long that two cores are enough for four ranks; what their last one computes beside
(output layer and loss) is work, and depends on how busy the machine is. So the measured bubble is
held against the replay of the order with the times that stages really took.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.jobs import RunOnce

pytestmark = pytest.mark.distributed

PARTS = ("warm_up_drain_ns", "imbalance_ns", "variation_ns", "exposed_p2p_ns", "host_ns")
WITHIN = 0.03

# Stages per rank, and the bubble that the order has with equal stages and free messages.
CASES = {"1f1b": (1, 3 / 11), "zbv": (2, 3 / 51)}


@pytest.fixture(params=list(CASES))
def schedule(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def group(schedule: str, run_once: RunOnce) -> dict[str, Any]:
    per_rank, _ = CASES[schedule]
    job = run_once(
        *("pp", "--ranks", "4", "--schedule", schedule, "--layers", str(4 * per_rank)),
        *("--compute", "sleep", "--forward-ms", "100", "--backward-ms", "200"),
        *("--micro-batches", "8", "--vocabulary", "64", "--steps", "5", "--no-measure-overhead"),
    )
    assert job.exit_code == 0, job.stderr
    (found,) = job.report["pipeline"]["groups"]
    return dict(found)


def test_the_schedule_its_stages_and_micro_batches_are_recognised(
    schedule: str, group: dict[str, Any]
) -> None:
    per_rank, ideal = CASES[schedule]
    assert (group["schedule"], group["ranks"]) == (schedule, [0, 1, 2, 3])
    assert (group["stages"], group["virtual_stages"]) == (4 * per_rank, per_rank)
    assert (group["num_micro_batches"], group["confidence"]) == (8, "measured")
    assert group["ideal_bubble_fraction"] == pytest.approx(ideal, abs=0.01)


def test_the_bubble_is_that_of_the_stages_replayed_but_for_messages_and_host(
    group: dict[str, Any],
) -> None:
    assert sum(group[part] for part in PARTS) == group["idle_ns"]
    replayed = sum(group[part] for part in PARTS[:3]) / group["span_ns"]
    beyond = (group["exposed_p2p_ns"] + group["host_ns"]) / group["span_ns"]
    assert group["bubble_fraction"] == pytest.approx(replayed, abs=WITHIN)
    assert 0 <= beyond <= WITHIN


def test_the_present_configuration_is_predicted(group: dict[str, Any]) -> None:
    assert abs(group["prediction_error_ratio"]) < 0.05
    assert any(row["saved_ns"] > 0 for row in group["predictions"])
