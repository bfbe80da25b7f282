"""The flat metrics of a report: names, units, known values; nothing unknown is a number."""

import math
import re
import shutil
from pathlib import Path

import msgspec
import pytest

import distprof
from distprof.sections.metrics import METRICS, bubble_ratio, highest, metrics_of
from distprof.sections.step_log import StepLogResult
from distprof.sections.training_log import TrainingLogResult
from tests.documents.job_samples import SAMPLES, untraced
from tests.documents.samples import capture_only, healthy, straggler

GOLDEN = Path(__file__).parents[1] / "golden"
UNITS = ("_seconds", "_bytes", "_joules", "_ratio", "_per_second", "_count")
PARTS = (
    "computation_seconds",
    "exposed_transfer_seconds",
    "exposed_wait_seconds",
    "exposed_message_wait_seconds",
    "exposed_unsplit_seconds",
    "exposed_copy_seconds",
    "idle_late_launch_seconds",
    "idle_synchronising_seconds",
    "idle_input_seconds",
    "idle_after_communication_seconds",
    "idle_unknown_seconds",
)


def test_names_are_unique_and_end_in_their_unit():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", name)
        assert name.endswith(UNITS)


def test_published_names_stay():
    """Dashboards and queries of users are made of them: add names, never take one away."""
    published = (Path(__file__).parent / "metric_names.txt").read_text().split()
    assert [metric.name for metric in METRICS][: len(published)] == published


def test_known_values_in_base_units():
    found = straggler().metrics()
    assert found["analysed_step_seconds"] == pytest.approx(0.0223, rel=0.01)
    assert found["straggler_lost_seconds"] == pytest.approx(0.00691)
    assert found["clock_residual_seconds"] == pytest.approx(12.3e-6)
    assert found["overlap_ratio"] == pytest.approx(0.2)
    assert found["planned_step_seconds"] == pytest.approx(0.0147, rel=0.01)
    assert found["planned_gain_ratio"] == pytest.approx(0.26 + 0.0807, abs=0.001)
    assert found["ranks_count"] == found["recorded_ranks_count"] == 8
    assert found["analysed_steps_count"] == 10
    counts = [found[f"{word}_findings_count"] for word in ("error", "warning", "info")]
    assert counts == [1, 1, 1]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_value_is_a_finite_number_and_no_unknown_one_is_there(name):
    report = SAMPLES[name]()
    found = report.metrics()
    assert list(found) == [one.name for one in METRICS if one.name in found]
    assert all(type(value) is float and math.isfinite(value) for value in found.values())
    for metric in METRICS:
        assert (metric.read(report) is None) == (metric.name not in found)


@pytest.mark.parametrize("name", SAMPLES)
def test_parts_add_up_to_the_step_and_shares_to_one(name):
    found = SAMPLES[name]().metrics()
    if "analysed_step_seconds" in found:
        total = sum(found[part] for part in PARTS)
        assert total == pytest.approx(found["analysed_step_seconds"], rel=1e-12)
    else:
        assert not set(PARTS) & set(found)


def test_a_capture_without_steps_has_shares_but_no_time_per_step():
    found = capture_only().metrics()
    assert found["computation_ratio"] == pytest.approx(0.61)
    assert not any(name.endswith("_seconds") and "residual" not in name for name in found)


def test_a_run_without_traces_has_no_parts_and_no_zero_for_them():
    found = untraced().metrics()
    assert "computation_seconds" not in found
    assert "overlap_ratio" not in found
    assert found["recorded_ranks_count"] == 0


def test_untraced_steps_of_the_step_log_win_over_traced_ones():
    """The profiler makes traced steps longer."""
    log = StepLogResult(median_ns=20_000_000, p95_ns=21_000_000, cv=0.01, tokens_per_s=4e6)
    found = msgspec.structs.replace(healthy(), step_log=log).metrics()
    assert found["step_median_seconds"] == 0.02
    assert found["step_p95_seconds"] == 0.021
    assert found["step_variation_ratio"] == 0.01
    assert found["tokens_per_second"] == 4e6
    assert healthy().metrics()["step_median_seconds"] != 0.02


def test_a_programs_own_log_counts_where_nothing_else_shows_steps():
    log = TrainingLogResult(steady_ns=(300, 100, 200), tokens_per_s=9.0)
    alone = msgspec.structs.replace(untraced(), training_log=log, step_log=StepLogResult())
    found = alone.metrics()
    assert (found["step_median_seconds"], found["tokens_per_second"]) == (200 / 1e9, 9.0)
    assert "step_p95_seconds" not in found
    both = msgspec.structs.replace(healthy(), training_log=log).metrics()
    assert both["step_median_seconds"] == healthy().metrics()["step_median_seconds"]


def test_not_a_number_is_unknown():
    log = StepLogResult(median_ns=20_000_000, cv=math.nan)
    found = metrics_of(msgspec.structs.replace(healthy(), step_log=log))
    assert "step_variation_ratio" not in found


def test_the_highest_of_nothing_is_unknown():
    assert highest([]) is None
    assert highest([None, 0.0, 2.0, None]) == 2.0
    assert bubble_ratio(healthy()) is None


def test_a_real_run_directory(tmp_path):
    job = shutil.copytree(GOLDEN / "job" / "nccl-fsdp-2ranks-h100", tmp_path / "run")
    report = distprof.analyze(job)
    found = report.metrics()
    assert found["step_median_seconds"] == report.step_log.median_ns / 1e9
    assert found["peak_memory_bytes"] > 1e6
    assert sum(found[part] for part in PARTS) == pytest.approx(found["analysed_step_seconds"])
