"""Sets of slow ranks, faults of some steps, two at once, and causes that look like others.

The benchmark ``cause_accuracy`` judges by many more; these seeds are of no other use.
"""

import pytest

from tests.drawn import drawn
from tests.simulator.hard_trials import HARD_FAULTS, WORKLOADS, hard_trial_of, sane
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


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("seed", drawn([5000, 5001], always=1))
def test_nobody_is_accused_in_a_healthy_job(workload, seed):
    assert judge(hard_trial_of(sane, workload, seed)).accusations == []
