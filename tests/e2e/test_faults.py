"""The report of a real run names each injected fault, and no other rank.

Blocks sleep, so that ranks need not share cores. Faults take a third of the step or more: on a
machine that does other things too, smaller ones may drown (benchmarks/fault_accuracy.py counts
them).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.accusations import (
    Fault,
    accusations,
    is_named,
    is_rightly_explained,
    others_accused,
)
from tests.e2e.jobs import RunOnce

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.alone]

SMALL = (
    *("--hidden", "64", "--heads", "4", "--kv-heads", "4", "--ffn", "128"),
    *("--vocabulary", "256", "--sequence", "32", "--batch", "2"),
)
SLEEP = (
    *("--compute", "sleep", "--forward-ms", "10", "--backward-ms", "20"),
    *("--steps", "18", "--profile-steps", "10"),
)
PIPELINE = ("--micro-batches", "4")


def struck(kind: str, rank: int, amount: float) -> Fault:
    return Fault(kind=kind, target=rank, amount=amount, ranks=(rank,))


# Each kind of fault once in every run; this one strikes another workload too.
PIPELINE_SLEEPS = ("pp", struck("sleep-rank", 0, 120), PIPELINE)
FAULTS = [
    ("ddp", struck("slow-rank", 1, 1.5), ()),
    ("ddp", struck("slow-host", 0, 15), ()),
    ("ddp", struck("late-input", 1, 50), ()),
    ("ddp", struck("gc-pause", 0, 150), ()),
    ("ddp", struck("sleep-rank", 1, 50), ()),
    ("pp", struck("stage-skew", 1, 1.5), PIPELINE),
    PIPELINE_SLEEPS,
    ("moe", Fault(kind="routing-skew", target=5, amount=3), ()),
]


def report_of(run_once: RunOnce, workload: str, *options: str) -> dict[str, Any]:
    job = run_once(workload, "--ranks", "2", *SMALL, *SLEEP, *options)
    assert job.exit_code == 0, job.stderr
    return job.report


@pytest.mark.parametrize(
    ("workload", "fault", "options"),
    [
        pytest.param(*each, marks=pytest.mark.nightly) if each is PIPELINE_SLEEPS else each
        for each in FAULTS
    ],
    ids=[f"{workload}-{fault.kind}" for workload, fault, _ in FAULTS],
)
def test_the_fault_is_named_with_its_cause_and_cost(
    run_once: RunOnce, workload: str, fault: Fault, options: tuple[str, ...]
) -> None:
    report = report_of(run_once, workload, *options, "--fault", fault.option)
    said = [finding["message"] for finding in accusations(report)]
    assert is_named(report, fault), said
    assert is_rightly_explained(report, fault), said
    assert not others_accused(report, fault), said
    assert all(finding["cost_ns_per_step"] for finding in accusations(report))
    if fault.kind in ("late-input", "sleep-rank"):  # each step waits for this rank so many ms
        cost = max(finding["cost_ns_per_step"] for finding in accusations(report))
        assert cost == pytest.approx(fault.amount * 1e6, rel=0.4)


def test_what_was_ordered_stands_in_the_report_as_ground_truth(run_once: RunOnce) -> None:
    workload, fault, options = FAULTS[0]
    report = report_of(run_once, workload, *options, "--fault", fault.option)
    (told,) = report["job"]["faults"]
    assert (told["kind"], told["target"], told["amount"]) == (fault.kind, 1, 1.5)


def test_nobody_lastingly_is_to_blame_in_a_healthy_job(run_once: RunOnce) -> None:
    """What else the machine does stalls a rank once, or lengthens all its steps a little.

    Both are there, and no fault of ours; a tenth of the step is.
    """
    report = report_of(run_once, "ddp")
    dear = 0.1 * report["step_time"]["median_ns"]
    lasting = [f for f in accusations(report) if f["code"] != "STR102"]
    assert [f["message"] for f in lasting if (f["cost_ns_per_step"] or dear) >= dear] == []
