"""Faults of every kind in jobs of every parallelism: named, priced, and nobody else accused.

The benchmark ``cause_accuracy`` judges by many more; these seeds are of no other use.
"""

import pytest

from tests.drawn import drawn
from tests.simulator.trials import FAULTS, healthy, judge, trial_of

SEEDS = (5000, 5001)


@pytest.mark.parametrize("seed", drawn(SEEDS, always=1))
@pytest.mark.parametrize("build", FAULTS, ids=lambda build: build.__name__)
def test_the_fault_is_named_and_nobody_else(build, seed):
    outcome = judge(trial_of(build, seed))
    assert outcome.is_right, outcome.accusations
    assert all(abs(error) < 0.2 for error in outcome.cost_errors)
    assert outcome.overstated == []


@pytest.mark.parametrize("seed", drawn(range(5000, 5006), always=3))
def test_nobody_is_accused_in_a_healthy_job(seed):
    outcome = judge(trial_of(healthy, seed))
    assert outcome.accusations == []
    assert outcome.overstated == []
