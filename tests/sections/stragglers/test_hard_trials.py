"""Sets of slow ranks, faults of some steps, two at once, and causes that look like others.

The benchmark ``cause_accuracy`` judges by many more; these seeds are of no other use.
"""

import pytest

from tests.simulator.hard_trials import HARD_FAULTS, WORKLOADS, hard_trial_of, sane
from tests.simulator.trials import judge

CASES = [
    (build, workload, 5000 + number)
    for number, (build, workloads) in enumerate(HARD_FAULTS.items())
    for workload in workloads
]


@pytest.mark.parametrize(
    ("build", "workload", "seed"), CASES, ids=lambda value: getattr(value, "__name__", None)
)
def test_the_ranks_and_the_cause_are_named_and_nobody_else(build, workload, seed):
    outcome = judge(hard_trial_of(build, workload, seed))
    assert outcome.causes_right, outcome.accusations


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("seed", [5000, 5001])
def test_nobody_is_accused_in_a_healthy_job(workload, seed):
    assert judge(hard_trial_of(sane, workload, seed)).accusations == []
