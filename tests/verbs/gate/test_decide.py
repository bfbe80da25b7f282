"""Decisions by hand, and how often they are right."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.verbs.gate import ALPHA, decide
from tests.drawn import drawn
from tests.verbs.gate.noise import Noise, asv_rule, paired_gate, single_point, stored_gate

CALM = np.array([100.0, 100.4, 99.7, 100.1, 99.9, 100.2, 99.8, 100.3, 99.6, 100.0])


def in_turns(factor, **kwargs):
    options = {"tolerance": 0.02, "is_paired": True, **kwargs}
    return decide(CALM, factor * CALM[::-1], **options)


@pytest.mark.parametrize(
    ("factor", "state"),
    [(1.05, "regressed"), (1.0, "passed"), (1.01, "passed"), (0.9, "improved"), (0.99, "passed")],
)
def test_states(factor, state):
    decision = in_turns(factor)
    assert decision.state == state
    assert decision.low <= decision.change <= decision.high
    assert decision.change == pytest.approx(factor, rel=0.01)
    assert decision.needed_repeats is None


def test_for_a_rate_less_is_worse():
    assert in_turns(0.9, better="higher").state == "regressed"
    assert in_turns(1.1, better="higher").state == "improved"
    assert in_turns(0.985, better="higher").state == "passed"


def test_shares_are_compared_by_difference_and_may_be_zero():
    small = [0.0, 0.001, 0.0, 0.002, 0.001]
    more = [0.051, 0.052, 0.05, 0.051, 0.053]
    options = {"tolerance": 0.02, "scale": "difference", "session_noise": 0.0}
    decision = decide(small, more, **options)
    assert decision.state == "regressed"
    assert decision.change == pytest.approx(0.05, abs=0.003)
    assert decide(small, small, **options).state == "passed"


def test_a_change_at_the_tolerance_is_inconclusive_and_no_number_of_repeats_is_promised():
    random = np.random.default_rng(0)
    base = 100 * np.exp(random.normal(0, 0.05, 10))
    decision = decide(base, 1.02 * base[::-1], tolerance=0.02, is_paired=True)
    assert decision.state == "inconclusive"
    assert decision.needed_repeats is None


def test_too_few_repeats_say_how_many_more_it_takes():
    one = decide([100.0], [150.0], tolerance=0.02, is_paired=True)
    assert (one.state, one.low, one.high) == ("inconclusive", None, None)
    assert one.needed_repeats == 6  # pairs to 7: 1/128 is the first level below 0.01
    three = decide([100.0, 101, 99], [150.0, 151, 149], tolerance=0.02, session_noise=0.0)
    assert three.state == "inconclusive"
    assert three.needed_repeats == 2
    five = decide([100.0, 101, 99, 100.5, 99.5], [150.0, 151, 149, 152, 148],
                  tolerance=0.02, session_noise=0.0)  # fmt: skip
    assert five.state == "regressed"


def test_promised_repeats_decide_more_often_than_not():
    decided = promised = 0
    for seed in range(60):
        before, after = Noise(own=0.5).pairs(80, 0.05, np.random.default_rng(seed))
        first = decide(before[:10], after[:10], tolerance=0.01, is_paired=True)
        more = first.needed_repeats
        if more is None or more > 70:
            continue
        promised += 1
        count = 10 + more
        again = decide(before[:count], after[:count], tolerance=0.01, is_paired=True)
        decided += again.state != "inconclusive"
    assert promised >= 20
    assert decided / promised > 0.5


def test_a_stored_session_cannot_be_blamed_on_a_change_unless_sessions_are_known():
    slower = 1.05 * CALM[::-1]
    alone = decide(CALM, slower, tolerance=0.02)
    assert alone.state == "inconclusive"
    assert "two sessions" in alone.why
    assert alone.assumes == ""
    known = decide(CALM, slower, tolerance=0.02, session_noise=0.0)
    assert (known.state, known.assumes) == ("regressed", "")
    shaky = decide(CALM, slower, tolerance=0.02, session_noise=0.03)
    assert shaky.state == "inconclusive"


@pytest.mark.parametrize(("factor", "state"), [(2.0, "regressed"), (0.5, "improved")])
def test_what_is_far_beyond_any_session_needs_no_second_one(factor, state):
    found = decide(CALM, factor * CALM, tolerance=0.02)
    assert found.state == state
    assert "15 %" in found.assumes
    assert decide(CALM, CALM, tolerance=0.02).assumes.startswith("there was no drift")


def test_against_a_single_repeat_no_number_of_repeats_is_promised():
    found = decide([100.0], 1.3 * CALM, tolerance=0.02, can_repeat_baseline=False)
    assert (found.state, found.needed_repeats) == ("inconclusive", None)
    assert "single repeat" in found.why


def test_sessions_that_differ_widen_the_interval_and_alike_ones_do_not():
    labels = np.repeat([0, 1, 2, 3], 5).tolist()
    alike = np.tile(CALM[:5], 4)
    unlike = alike * np.repeat([0.95, 1.0, 1.03, 1.05], 5)
    slower = 1.05 * CALM
    assert decide(alike, slower, tolerance=0.02, sessions=labels).state == "regressed"
    assert decide(unlike, slower, tolerance=0.02, sessions=labels).state == "inconclusive"
    assert decide(unlike, 1.3 * CALM, tolerance=0.02, sessions=labels).state == "regressed"


def test_what_sessions_hide_is_not_promised_to_more_repeats():
    labels = np.repeat([0, 1, 2, 3], 5).tolist()
    unlike = np.tile(CALM[:5], 4) * np.repeat([0.95, 1.0, 1.03, 1.05], 5)
    found = decide(unlike, 1.05 * CALM, tolerance=0.02, sessions=labels)
    assert (found.state, found.needed_repeats) == ("inconclusive", None)
    assert "accept more sessions" in found.why
    few = decide(unlike, 1.05 * CALM[:1], tolerance=0.02, sessions=labels)
    assert few.needed_repeats >= 1


def test_few_repeats_at_the_tolerance_do_not_say_never():
    base = [100.0, 103.0, 98.0]
    found = decide(base, [102.0, 105.06, 99.96], tolerance=0.02, is_paired=True)
    assert found.state == "inconclusive"
    assert found.needed_repeats >= 4  # to seven pairs


def test_steps_of_a_repeat_count_by_their_median():
    steps = [[value, value, 10 * value] for value in CALM]
    assert decide(steps, CALM, tolerance=0.02, is_paired=True) == decide(
        CALM, CALM, tolerance=0.02, is_paired=True
    )


@pytest.mark.parametrize(
    ("baseline", "candidate", "options", "why"),
    [
        ([], [1.0], {}, "no repeats"),
        ([[]], [1.0], {}, "without values"),
        ([1.0, float("nan")], [1.0], {}, "not finite"),
        ([1.0, 0.0], [1.0], {}, "not positive"),
        ([1.0], [1.0], {"tolerance": -0.1}, "tolerance"),
        ([1.0], [1.0], {"tolerance": 1.0}, "tolerance"),
        ([1.0], [1.0, 2.0], {"is_paired": True}, "do not form pairs"),
        ([1.0], [1.0], {"sessions": [1, 2]}, "2 sessions for 1"),
        ([1.0], [1.0], {"session_noise": -1.0}, "session noise"),
        ([1.0], [1.0], {"is_paired": True, "session_noise": 0.1}, "measured alternately"),
    ],
)
def test_nonsense_is_wrong_use(baseline, candidate, options, why):
    with pytest.raises(ValueError, match=why):
        decide(baseline, candidate, **{"tolerance": 0.02, **options})


def shares(gate, trials):
    said = [gate(seed) for seed in range(trials)]
    return {state: said.count(state) / trials for state in set(said)}


@pytest.mark.parametrize("trials", drawn((60, 200), always=1))
def test_five_percent_noise_false_alarms_and_losses_caught(trials):
    noise = Noise(own=0.05)
    healthy = shares(lambda seed: paired_gate(noise, 0.0, seed).state, trials)
    assert healthy.get("regressed", 0) <= 0.01
    slower = shares(lambda seed: paired_gate(noise, 0.05, seed).state, trials)
    assert slower["regressed"] > 0.95
    assert slower.get("passed", 0) == 0


@pytest.mark.parametrize("trials", drawn((50, 150), always=1))
def test_fifteen_percent_noise_is_inconclusive_rather_than_wrong(trials):
    noise = Noise(noise=0.15, own=0.5)
    healthy = shares(lambda seed: paired_gate(noise, 0.0, seed).state, trials)
    assert healthy.get("regressed", 0) <= 0.02
    slower = shares(lambda seed: paired_gate(noise, 0.05, seed).state, trials)
    assert slower.get("passed", 0) + slower.get("improved", 0) <= 0.05


@pytest.mark.parametrize("trials", drawn((240, 400), always=1))
def test_false_alarms_stay_below_the_level_however_wild_independent_runs_are(trials):
    noise = Noise(noise=0.4, own=1.0)
    healthy = shares(lambda seed: paired_gate(noise, 0.0, seed).state, trials)
    assert healthy.get("regressed", 0) <= ALPHA + 0.01


@pytest.mark.parametrize("sessions", drawn((1, 4), always=1))
def test_stored_sessions_under_drift_cry_no_wolf(sessions):
    healthy = shares(lambda seed: stored_gate(Noise(), 0.0, seed, sessions=sessions).state, 100)
    assert healthy.get("regressed", 0) <= 0.015


def test_other_rules_on_the_same_runs_miss_losses_or_cry_wolf():
    noise = Noise(own=0.05)
    one_run = [single_point(noise, 0.0, seed) for seed in range(300)]
    assert np.mean(one_run) > 0.05
    assert np.mean([asv_rule(noise, 0.05, seed) for seed in range(200)]) < 0.2


@settings(max_examples=100, deadline=None)
@given(
    before=st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=12),
    after=st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=12),
    tolerance=st.floats(0, 0.99),
    better=st.sampled_from(["lower", "higher"]),
    data=st.data(),
)
def test_any_positive_values_give_a_decision_that_hangs_together(
    before, after, tolerance, better, data
):
    keys = st.lists(st.integers(0, 4), min_size=len(before), max_size=len(before))
    decision = decide(
        before, after, tolerance=tolerance, better=better, sessions=data.draw(st.none() | keys)
    )
    assert (decision.low is None) == (min(len(before), len(after)) < 2)
    if decision.low is not None:
        assert decision.low <= decision.change * (1 + 1e-9)
        assert decision.high >= decision.change * (1 - 1e-9)
    assert 0 < decision.p <= 1
    assert decision.needed_repeats is None or decision.needed_repeats >= 1
    assert decision.state == "inconclusive" or decision.needed_repeats is None
