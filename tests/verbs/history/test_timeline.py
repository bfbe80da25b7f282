"""A metric over commits: points, and where it changed."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.verbs.gate.baseline import find_metric
from distprof.verbs.history import (
    HISTORY_METRICS,
    by_series,
    series_of,
    trace_metric,
    unit_of,
)
from tests.verbs.history.samples import START_NS, commits, summary

CALM = [100_000_000, 100_300_000, 99_800_000, 100_100_000, 99_900_000, 100_200_000]


def _repeats(value, count=3):
    """Repeats of about 100 ms times ``value``, a third of a percent apart."""
    return [value * CALM[i % len(CALM)] for i in range(count)]


def _points(values, metric="step_time", **options):
    """Points of one series; ``values`` holds the repeats of each commit."""
    history = trace_metric(
        by_series(commits(values)),
        find_metric(metric, HISTORY_METRICS),
        source="here",
        **options,
    )
    (series,) = history.series
    return series.points


def _changes(points):
    return {i: p.state for i, p in enumerate(points) if p.state in ("regressed", "improved")}


def test_repeats_of_a_commit_are_one_point():
    (point,) = _points([[100, 104, 102]])
    assert (point.commit, point.num_runs, point.value) == ("c0", 3, 102)
    assert point.low < 102 < point.high
    assert point.state == "first"
    assert point.change is None


def test_one_run_has_no_interval():
    (point,) = _points([[100]])
    assert (point.low, point.high) == (None, None)


def test_a_commit_that_is_run_again_later_stays_one_point():
    runs = [summary(1, day=0, commit="a"), summary(2, day=1, commit="b")]
    runs += [summary(3, day=2, commit="a")]
    history = trace_metric(by_series(runs), find_metric("step_time", HISTORY_METRICS), source="")
    assert [(p.commit, p.num_runs) for p in history.series[0].points] == [("a", 2), ("b", 1)]


def test_runs_of_no_commit_are_one_point_per_label_or_each_one():
    runs = [summary(i + 1, number=i, commit="", label=label) for i, label in enumerate("xx")]
    runs += [summary(9, number=7, commit=""), summary(9, number=8, commit="")]
    history = trace_metric(by_series(runs), find_metric("step_time", HISTORY_METRICS), source="")
    assert [p.num_runs for p in history.series[0].points] == [2, 1, 1]


def test_a_loss_is_marked_once_where_it_came_and_so_is_its_repair():
    levels = [1.0] * 6 + [1.08] * 6 + [1.0] * 6
    points = _points([_repeats(level) for level in levels])
    assert _changes(points) == {6: "regressed", 12: "improved"}
    assert points[6].change == pytest.approx(1.08, rel=0.01)
    assert points[6].num_after == 0
    assert points[12].change == pytest.approx(1 / 1.08, rel=0.01)


def test_what_single_runs_cannot_tell_those_after_them_confirm():
    single = [CALM[i % 6] for i in range(8)] + [1.06 * CALM[i % 6] for i in range(4)]
    points = _points([[value] for value in single])
    assert _changes(points) == {8: "regressed"}
    assert points[8].num_after == 2  # 1 / C(11, 3): less likely by chance than one in a hundred


def test_the_newest_single_run_is_left_open_and_says_what_would_tell():
    single = [CALM[i % 6] for i in range(8)] + [1.06 * CALM[0]]
    newest = _points([[value] for value in single])[-1]
    assert newest.state == "inconclusive"
    assert newest.needed_repeats >= 1


def test_a_single_slow_run_is_no_regression():
    single = [CALM[i % 6] for i in range(8)] + [1.3 * CALM[0]] + [CALM[i % 6] for i in range(6)]
    assert _changes(_points([[value] for value in single])) == {}


def test_sessions_that_differ_by_themselves_are_no_change():
    random = np.random.default_rng(5)
    values = [
        [1e8 * level * np.exp(0.003 * random.standard_normal()) for _ in range(3)]
        for level in np.exp(0.04 * random.standard_normal(16))
    ]
    assert _changes(_points(values)) == {}


def test_chance_makes_few_changes():
    random = np.random.default_rng(7)
    marked = 0
    for _ in range(10):
        noise = np.exp(0.01 * random.standard_normal((30, 1)))
        marked += len(_changes(_points((1e8 * noise).tolist())))
    assert marked <= 3  # of 300


def test_the_newest_points_are_the_same_whether_older_ones_are_shown():
    levels = [1.0] * 20 + [1.08] * 12
    values = [_repeats(level) for level in levels]
    everything, newest = _points(values), _points(values, last=5, window=4)
    assert len(newest) == 5
    assert newest == _points(values, window=4)[-5:]
    assert len(everything) == 32


def test_a_rate_that_falls_has_regressed():
    runs = commits([_repeats(1.0)] * 6 + [_repeats(1.08)], tokens_per_step=1_000.0)
    history = trace_metric(by_series(runs), find_metric("throughput", HISTORY_METRICS), source="")
    points = history.series[0].points
    assert points[0].value == pytest.approx(10_000, rel=0.01)
    assert _changes(points) == {6: "regressed"}
    assert history.unit == "/s"


def test_a_share_changes_by_a_difference_even_from_nothing():
    shares = [0.0, 0.001, 0.002]
    runs = [
        summary(
            1, day=day, number=i, commit=f"c{day}", bubble_ratio=share + (0.1 if day > 5 else 0)
        )
        for day in range(7)
        for i, share in enumerate(shares)
    ]
    history = trace_metric(by_series(runs), find_metric("bubble", HISTORY_METRICS), source="")
    points = history.series[0].points
    assert _changes(points) == {6: "regressed"}
    assert points[6].change == pytest.approx(0.1)


def test_software_that_came_with_a_change_is_named():
    runs = commits([_repeats(1.0)] * 6)
    newer = msgspec.structs.replace(runs[0].fingerprint, versions={"torch": "2.10"})
    runs += [
        summary(int(1.1 * value), day=6, number=i, commit="c6", fingerprint=newer)
        for i, value in enumerate(CALM[:3])
    ]
    history = trace_metric(by_series(runs), find_metric("step_time", HISTORY_METRICS), source="")
    assert history.series[0].points[-1].software == ("version of torch: 2.9 → 2.10",)


def test_runs_without_the_metric_are_counted():
    runs = [summary(1), summary(2, number=1, mfu_ratio=0.4), summary(3, number=2, mfu_ratio=-1.0)]
    history = trace_metric(by_series(runs), find_metric("mfu", HISTORY_METRICS), source="")
    (series,) = history.series
    assert [point.num_runs for point in series.points] == [1]
    assert series.num_without == 2


def test_other_hardware_or_another_job_is_another_series_and_newer_software_is_not():
    print_ = summary().fingerprint
    same = msgspec.structs.replace(
        print_, versions={"torch": "9"}, config={**print_.config, "probes.nvml": "on"}
    )
    assert series_of(same) == series_of(print_)
    for other in ({"device": "B200"}, {"world_size": 4}, {"config": {"model.hidden": "8"}}):
        assert series_of(msgspec.structs.replace(print_, **other)) != series_of(print_)


def test_the_series_with_the_newest_run_comes_first():
    other = msgspec.structs.replace(summary().fingerprint, device="B200")
    runs = [summary(1, day=3), summary(1, day=5, fingerprint=other), summary(1, day=1)]
    (first, _), (_, second) = by_series(runs).items()
    assert first == series_of(other)
    assert [run.created_ns - START_NS for run in second] == sorted(
        run.created_ns - START_NS for run in second
    )


@pytest.mark.parametrize("options", [{"window": 0}, {"last": 0}])
def test_nothing_cannot_be_asked_for(options):
    with pytest.raises(ValueError, match="at least 1"):
        _points([[1]], **options)


def test_every_metric_has_a_name_of_its_own_and_a_unit():
    names = [metric.name for metric in HISTORY_METRICS]
    assert len(set(names)) == len(names)
    assert {unit_of(metric) for metric in HISTORY_METRICS} == {"ns", "B", "/s", "J", "ratio"}


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(
        st.lists(st.integers(1, 2**52), min_size=1, max_size=3), min_size=1, max_size=12
    ),
    last=st.integers(1, 20),
)
def test_whatever_was_measured_every_commit_is_a_point_within_its_repeats(values, last):
    points = _points(values, last=last, window=3)
    shown = values[-last:]
    assert [point.num_runs for point in points] == [len(repeats) for repeats in shown]
    for point, repeats in zip(points, shown, strict=True):
        assert min(repeats) <= point.value <= max(repeats)
        assert point.low is None or point.low <= point.high
        assert (point.change is None) == (point.num_before == 0)
    if len(shown) == len(values):
        assert points[0].state == "first"
