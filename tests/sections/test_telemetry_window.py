"""Sensors inside the analysed steps, the energy of a step, and what waiting draws: by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.ingest.sensors.collect import Collector
from distprof.intervals import Intervals
from distprof.run.logs import Identity
from distprof.sections.step_log import StepLogResult
from distprof.sections.stragglers.computing import sensed_difference
from distprof.sections.telemetry import TelemetryResult
from distprof.sections.telemetry.measure import measure_device, sensors_in, with_energy
from distprof.sections.time import RankWaterfall, WaterfallResult

S = 10**9
DAY = 1_700_000_000 * S  # times of today, which floats would round


def samples(rows, period_ns=S):
    """TELEMETRY from rows of values; ``reasons`` among them is text."""
    collector = Collector("x")
    for i, row in enumerate(rows):
        values = {name: value for name, value in row.items() if name != "reasons"}
        when = (DAY + i * period_ns, "epoch")
        collector.sample(Identity(index=0), when, values, row.get("reasons", ""))
    (series,) = collector.result().series
    return series.table


def windows(*spans_s):
    pairs = [(DAY + round(a * S), DAY + round(b * S)) for a, b in spans_s]
    return Intervals.of(*pairs)


def test_only_samples_of_the_analysed_steps_count():
    rows = [{"sm_clock_mhz": 1_200, "reasons": "hw_thermal_slowdown"}] * 5
    rows += [{"sm_clock_mhz": 1_980, "reasons": "none"}] * 5
    found = sensors_in(samples(rows), windows((4.5, 6), (6, 7.5)))
    assert (found.num_samples, found.is_bracketed) == (3, False)
    assert (found.sm_clock_mhz_median, found.throttled_ratio) == (1_980, 0.0)
    whole = measure_device(0, samples(rows), windows((4.5, 7.5)))
    assert whole.throttled_ratio == 0.5
    assert whole.in_steps.throttled_ratio == 0.0


def test_steps_between_two_samples_get_both():
    rows = [{"temperature_c": 50}, {"temperature_c": 60}]
    found = sensors_in(samples(rows), windows((0.4, 0.5)))
    assert (found.num_samples, found.is_bracketed, found.temperature_c_max) == (2, True, 60)


@pytest.mark.parametrize("span", [(-3, -2), (5, 6)])
def test_samples_of_another_time_say_nothing(span):
    assert sensors_in(samples([{"power_w": 1.0}] * 3), windows(span)) is None


def test_samples_minutes_apart_say_nothing_of_what_is_between():
    assert sensors_in(samples([{"power_w": 1.0}] * 2, 600 * S), windows((100, 101))) is None


def test_energy_is_that_of_the_counter_where_there_is_one():
    rows = [{"energy_j": 1_000.0 + 300 * i, "power_w": 1.0} for i in range(5)]
    found = sensors_in(samples(rows), windows((0.5, 1.5), (2.5, 3.0)))
    assert found.energy_j == pytest.approx(450.0)
    assert found.power_w_mean == pytest.approx(300.0)


def test_a_counter_that_was_reset_is_not_believed():
    rows = [{"energy_j": value, "power_w": 200.0} for value in (900.0, 1_000.0, 5.0, 105.0)]
    assert sensors_in(samples(rows), windows((0.5, 2.5))).energy_j == pytest.approx(400.0)


def test_without_a_counter_power_is_summed_over_time():
    rows = [{"power_w": value} for value in (100.0, 200.0, 200.0)]
    # 0.5 to 1: mean of 150 and 200 W; 1 to 2: 200 W
    found = sensors_in(samples(rows), windows((0.5, 2.0)))
    assert found.energy_j == pytest.approx(0.5 * 175 + 200)


def test_energy_is_not_known_where_samples_do_not_reach():
    found = sensors_in(samples([{"power_w": 100.0}] * 3), windows((1.0, 2.5)))
    assert found.energy_j is None
    assert found.power_w_mean == 100.0


@given(
    st.lists(st.floats(0, 1_000), min_size=6, max_size=12),
    st.lists(st.floats(0.1, 4.9), min_size=3, max_size=3, unique=True).map(sorted),
)
def test_energies_of_parts_add_up(power, cuts):
    table = samples([{"power_w": value} for value in power])
    a, b, c = (round(cut, 6) for cut in cuts)
    whole = sensors_in(table, windows((a, c)))
    parts = sensors_in(table, windows((a, b), (b, c)))
    if whole is not None:
        assert parts.energy_j == pytest.approx(whole.energy_j, abs=1e-6)


def rank_row(rank, span_s, wait_s=0.0, p2p_s=0.0):
    names = [name for name in RankWaterfall.__struct_fields__ if name != "rank"]
    values = dict.fromkeys(names, 0)
    values |= {"span_ns": round(span_s * S), "exposed_wait_ns": round(wait_s * S)}
    values |= {"exposed_p2p_wait_ns": round(p2p_s * S)}
    return RankWaterfall(rank=rank, **values)


def waterfall(*rows, num_steps=2):
    return WaterfallResult(num_ranks=len(rows), num_steps=num_steps, ranks=rows, all=None)


def sensed(*watts, span=(1, 5)):
    rows = [
        measure_device(rank, samples([{"power_w": w}] * 8), windows(span))
        for rank, w in enumerate(watts)
    ]
    return TelemetryResult(ranks=tuple(rows))


def test_energy_of_a_step_per_token_and_of_waiting():
    times = waterfall(rank_row(0, 4, wait_s=1), rank_row(1, 4, p2p_s=0.5))
    result = with_energy(sensed(100.0, 300.0), times, StepLogResult(tokens_per_step=1_000), 2)
    assert result.energy_per_step_j == pytest.approx(800.0)  # 4 s of 400 W in two steps
    assert result.energy_per_token_j == pytest.approx(0.8)
    assert result.waiting_energy_per_step_j == pytest.approx((100 * 1 + 300 * 0.5) / 2)
    assert result.waiting_energy_ratio == pytest.approx(250 / 1_600)


def test_of_ranks_without_sensors_the_step_has_no_energy_but_waiting_a_share():
    result = with_energy(sensed(100.0), waterfall(rank_row(0, 4, wait_s=1)), StepLogResult(), 2)
    assert result.energy_per_step_j is None
    assert result.waiting_energy_ratio == pytest.approx(0.25)
    assert "rank 1" in result.unavailable[-1]


def test_ranks_that_were_not_traced_count_in_the_energy_of_a_step():
    result = with_energy(sensed(100.0, 300.0), waterfall(rank_row(0, 4)), StepLogResult(), 2)
    assert result.energy_per_step_j == pytest.approx(800.0)
    assert result.energy_per_token_j is None


def test_without_power_it_is_said():
    row = measure_device(0, samples([{"temperature_c": 50}] * 8), windows((1, 5)))
    result = with_energy(TelemetryResult(ranks=(row,)), waterfall(rank_row(0, 4)), StepLogResult())
    assert result.energy_per_step_j is None
    assert "power" in result.unavailable[-1]


def test_a_straggler_is_explained_by_its_steps_and_not_by_what_was_before():
    slow = [{"reasons": "hw_thermal_slowdown", "power_w": 1.0}]
    fast = [{"reasons": "none", "power_w": 1.0}]

    def found(rows):
        others = [measure_device(r, samples(fast * 10), windows((5, 8))) for r in (1, 2)]
        own = measure_device(0, samples(rows), windows((5, 8)))
        return sensed_difference(0, (0, 1, 2), TelemetryResult(ranks=(own, *others)))

    assert found(slow * 4 + fast * 6) == ((), "")
    assert found(fast * 4 + slow * 6)[1] == "throttled"


def test_steps_without_samples_leave_the_whole_run():
    row = measure_device(0, samples([{"power_w": 1.0}] * 2), Intervals(*np.empty((2, 0), np.int64)))
    assert row.in_steps is None
