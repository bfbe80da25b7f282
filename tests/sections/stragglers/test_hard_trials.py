"""Sets of slow ranks, faults of some steps, two at once, and causes that look like others.

The benchmark ``cause_accuracy`` judges by many more; these seeds are of no other use.
"""

import pytest

from tests.drawn import drawn
from tests.simulator.hard_trials import (
    BLAMELESS,
    HARD_FAULTS,
    WORKLOADS,
    hard_trial_of,
    hot_rank_of_short_messages,
    missing_culprit,
    noisy_hot_rank,
    offloads,
    one_missing,
)
from tests.simulator.trials import judge

CASES = [
    (build, workload, 5000 + number)
    for number, (build, workloads) in enumerate(HARD_FAULTS.items())
    for workload in workloads
]
TURNS = [(build, ours[turn % len(ours)]) for turn, (build, ours) in enumerate(HARD_FAULTS.items())]
"""Each fault on one of the workloads that it strikes, in turn, so that each workload has some."""
assert {workload for _, workload in TURNS} == set(WORKLOADS)


@pytest.mark.parametrize(
    ("build", "workload", "seed"),
    [pytest.param(*case, marks=[pytest.mark.nightly] * (case[:2] not in TURNS)) for case in CASES],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_ranks_and_the_cause_are_named_and_nobody_else(build, workload, seed):
    outcome = judge(hard_trial_of(build, workload, seed))
    assert outcome.causes_right, outcome.accusations
    assert outcome.overstated == []


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("build", BLAMELESS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("seed", drawn([5000, 5001], always=1))
def test_nobody_is_accused_in_a_healthy_job_or_for_a_rank_that_was_not_recorded(
    build, workload, seed
):
    outcome = judge(hard_trial_of(build, workload, seed))
    assert outcome.accusations == []
    assert outcome.overstated == []


@pytest.mark.parametrize("workload", ["hsdp", "tp_dp", "moe"])
def test_lateness_that_enters_through_an_unrecorded_rank_is_said_first_to_be_that_rank_s(workload):
    outcome = judge(hard_trial_of(missing_culprit, workload, 5004))
    (absent,) = set(range(outcome.trial.job.world_size)) - set(outcome.trial.job.present)
    first = outcome.findings[0]
    assert first.code == "STR114"
    assert first.ranks == (absent,)
    assert f"for rank {absent}, which was not recorded" in first.message
    assert first.cost_ns_per_step > 0.02 * outcome.step_ns


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_rank_that_was_not_recorded_is_not_suspected_in_a_healthy_job(workload):
    outcome = judge(hard_trial_of(one_missing, workload, 5004))
    assert "STR114" not in {found.code for found in outcome.findings}


@pytest.mark.parametrize("seed", drawn([5000, 5001, 5002, 5003], always=2))
def test_without_copies_no_collective_waits_for_them(seed):
    outcome = judge(hard_trial_of(offloads, "fsdp", seed))
    (found,) = [found for found in outcome.findings if found.code == "MEM101"]
    assert found.recoverable_ns == pytest.approx(outcome.true_ns[0], rel=0.25)


@pytest.mark.parametrize("seed", drawn([5000, 5001, 5002, 5003], always=2))
def test_even_routing_shortens_no_exchange_that_lasts_as_long_with_fewer_tokens(seed):
    (error,) = judge(hard_trial_of(hot_rank_of_short_messages, "moe", seed)).cost_errors
    assert abs(error) < 0.1


def test_even_routing_moves_work_and_removes_no_noise():
    (error,) = judge(hard_trial_of(noisy_hot_rank, "moe", 5000)).cost_errors
    assert abs(error) < 0.1
