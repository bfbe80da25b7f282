"""The overhead's estimate and its interval, on steps whose truth is known."""

from __future__ import annotations

import math
import random
from itertools import combinations
from statistics import NormalDist

import pytest
from distprof_probes.options import ProbeOptions
from distprof_probes.overhead import OverheadMeter, paired_interval, shift_interval
from distprof_probes.plan import Plan, make_plan

from distprof.artefacts.run_file import Overhead

STEP_NS = 200_000_000
TRIALS = 400


def test_six_differences_give_an_interval_from_the_smallest_to_the_largest() -> None:
    # Two-sided 1 - 2/2^6 = 0.969; dropping one more on each side would leave 0.78.
    assert paired_interval([3, 1, 2, 6, 5, 4]) == (1, 6)
    assert paired_interval([3, 1, 2, 5, 4]) is None  # 1 - 2/2^5 = 0.9375


def test_the_interval_of_a_median_is_the_tabled_one() -> None:
    # Conover, table A3: for n = 20 the 6th smallest and the 6th largest.
    assert paired_interval([float(i) for i in range(1, 21)]) == (6, 15)


@pytest.mark.parametrize(("m", "n"), [(1, 5), (2, 3), (4, 5), (4, 8)])
def test_the_rank_sum_interval_agrees_with_counting_all_orders(m: int, n: int) -> None:
    first, second = [2.0**i for i in range(m)], [1000 * 3.0**i for i in range(n)]
    below = 0  # how many of the smallest differences may be left out on each side
    statistics = [
        sum(a > b for a in chosen for b in range(m + n) if b not in chosen)
        for chosen in combinations(range(m + n), m)
    ]
    limit = 0.025 * len(statistics)
    while sum(u <= below for u in statistics) <= limit:
        below += 1
    differences = sorted(a - b for a in first for b in second)

    expected = (differences[below - 1], differences[-below]) if below else None
    assert shift_interval(first, second) == expected


def run_of(
    plan: Plan, *, always_on: float, tracing: float, seed: int, noise: float = 0.02
) -> OverheadMeter:
    """Steps of a job that drifts and has heavy-tailed, one-sided noise, as shared machines do."""
    meter, draw = OverheadMeter(plan), random.Random(seed)
    for step in range(60):
        duration = STEP_NS * (1 + 0.0005 * step)
        duration *= 1 + noise * draw.lognormvariate(0, 1)
        if step not in plan.paused:
            duration += STEP_NS * always_on
        if step in plan.traced:
            duration += STEP_NS * tracing
        meter.record(step, round(duration))
    return meter


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(ProbeOptions(overhead_rounds=8))


@pytest.mark.parametrize("truth", [0.0, 0.01, 0.2])
def test_the_always_on_interval_holds_the_truth_as_often_as_it_says(
    plan: Plan, truth: float
) -> None:
    answers = [
        run_of(plan, always_on=truth, tracing=0, seed=seed).always_on() for seed in range(TRIALS)
    ]
    found = [answer for answer in answers if isinstance(answer, Overhead)]
    held = sum(a.low * a.step_ns <= truth * STEP_NS <= a.high * a.step_ns for a in found)

    # 95 % of 400 with binomial noise of 1.1 %: below 91.5 % in one of a thousand.
    assert len(found) > 0.98 * TRIALS
    assert held / len(found) > 0.915
    middle = sum(a.ratio * a.step_ns for a in found) / len(found) / STEP_NS
    assert middle == pytest.approx(truth, abs=0.004)


def test_the_tracing_interval_holds_the_truth_as_often_as_it_says(plan: Plan) -> None:
    truth, held, num_answers = 0.1, 0, 0
    for seed in range(TRIALS):
        answer = run_of(plan, always_on=0, tracing=truth, seed=seed).tracing(list(plan.traced))
        if isinstance(answer, Overhead):
            num_answers += 1
            held += answer.low * answer.step_ns <= truth * STEP_NS <= answer.high * answer.step_ns

    assert num_answers > 0.95 * TRIALS
    assert held / num_answers > 0.915


def test_the_drift_of_a_job_is_not_taken_for_overhead() -> None:
    plan = make_plan(ProbeOptions(mode="always-on", overhead_rounds=6))
    meter = OverheadMeter(plan)
    for step in range(60):
        meter.record(step, STEP_NS + step * 1_000_000)  # half a percent slower each step
    answer = meter.always_on()

    assert isinstance(answer, Overhead)
    assert answer.ratio == 0
    assert answer.low < 0 < answer.high


def test_a_block_counts_with_all_its_steps() -> None:
    plan = make_plan(ProbeOptions(mode="always-on", overhead_rounds=4, overhead_block=3))
    meter = OverheadMeter(plan)
    for step in range(60):
        meter.record(step, STEP_NS if step in plan.paused else STEP_NS + 2_000_000)
    answer = meter.always_on()

    assert isinstance(answer, Overhead)
    assert answer.ratio == pytest.approx(0.01)
    assert (answer.step_ns, answer.num_pairs) == (STEP_NS, 8)


def test_the_figure_of_always_on_probes_is_final_as_soon_as_it_is_complete() -> None:
    plan = make_plan(ProbeOptions(mode="always-on", overhead_rounds=4))
    meter = OverheadMeter(plan)
    complete = []
    for step in range(60):
        meter.record(step, STEP_NS + 100_000 * (step % 7))
        if meter.completes_always_on(step):
            complete.append(meter.always_on())

    assert complete == [meter.always_on()]
    assert isinstance(complete[0], Overhead)


def test_what_is_not_measured_is_never_complete() -> None:
    meter = OverheadMeter(make_plan(ProbeOptions(mode="off")))
    assert not any(meter.completes_always_on(step) for step in range(300))


def test_too_few_pairs_give_a_reason_instead_of_a_figure(plan: Plan) -> None:
    meter = OverheadMeter(plan)
    for step in range(12):
        meter.record(step, STEP_NS)

    assert meter.always_on() == "overhead was not measured: 4 pairs of blocks, 6 needed"
    assert "0 traced steps" in str(meter.tracing(list(plan.traced)))


def test_steps_that_vary_wildly_give_no_figure(plan: Plan) -> None:
    answer = run_of(plan, always_on=0.01, tracing=0, seed=1, noise=3.0).always_on()

    assert isinstance(answer, str)
    assert "vary too much" in answer


def test_a_large_overhead_is_stated_although_its_interval_is_wide(plan: Plan) -> None:
    answer = run_of(plan, always_on=0, tracing=2.0, seed=3, noise=0.2).tracing(list(plan.traced))

    assert isinstance(answer, Overhead)
    assert answer.low > 0.5
    assert math.isfinite(answer.high)


def test_figures_are_kept_for_the_steps_that_matter_only() -> None:
    plan = make_plan(ProbeOptions(overhead_rounds=1))
    meter = OverheadMeter(plan)
    for step in range(10_000):
        meter.record(step, STEP_NS)

    assert len(meter._durations) < 60


def test_the_normal_noise_of_a_quiet_machine_shows_one_percent() -> None:
    """With noise of 1 % of the step, 32 pairs tell 1 % from nothing."""
    plan, draw = make_plan(ProbeOptions(mode="always-on")), NormalDist(0, 0.01 * STEP_NS)
    noise = draw.samples(200, seed=5)
    meter = OverheadMeter(plan)
    for step, extra in enumerate(noise):
        cost = 0 if step in plan.paused else 0.01 * STEP_NS
        meter.record(step, round(STEP_NS + cost + extra))
    answer = meter.always_on()

    assert isinstance(answer, Overhead)
    assert 0 < answer.low < 0.01 < answer.high < 0.02
