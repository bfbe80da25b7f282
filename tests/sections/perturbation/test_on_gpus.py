"""Recordings of an H100 and an H200 against the truth: verdict, price and silence.

The truth is the difference between two measurements without a profiler. The recorded process may
have run on a faster or slower CPU than the measured one, so a price may also agree with what the
recorded process itself loses: its own untraced steps, less the healthy step.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import distprof
from benchmarks.gpu_truth import untraced_ms
from distprof.documents.saved import Report
from distprof.rules.base import Finding

TRUTH = Path(__file__).parents[2] / "golden" / "gpu-truth"
PROGRAMS: Mapping[str, Any] = tomllib.loads((TRUTH / "truth.toml").read_text())
ACCUSING = ("HST", "INP", "STR", "COM", "MEM", "TEL")
CLOSE = 0.15


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> Any:
    @cache
    def analysed(name: str) -> Report:
        folder = tmp_path_factory.mktemp(name) / name
        shutil.copytree(TRUTH / name, folder)  # an analysis writes its report there
        return distprof.analyze(distprof.open_run(folder, use_cache=False))

    return analysed


def on_job(report: Report) -> list[Finding]:
    return [one for one in report.findings if one.code.startswith(ACCUSING)]


def price_ns(finding: Finding) -> int:
    known = (finding.remaining_ns, finding.recoverable_ns, finding.cost_ns_per_step)
    return next(value for value in known if value is not None)


@pytest.mark.parametrize("name", [name for name, one in PROGRAMS.items() if one["right"]])
def test_the_fault_is_the_first_finding_and_has_its_price(name, reports):
    report, truth = reports(name), PROGRAMS[name]
    first = on_job(report)[0]
    assert first.code in truth["right"], [one.code for one in on_job(report)]
    assert report.verdict.headline.startswith(first.headline[:40])
    measured = truth["faulty_ms"] - truth["healthy_ms"]
    of_process = untraced_ms(TRUTH / name) - truth["healthy_ms"]
    ratios = [price_ns(first) / 1e6 / saved for saved in (measured, of_process)]
    assert any(abs(ratio - 1) <= CLOSE for ratio in ratios), ratios


@pytest.mark.parametrize(
    "name", [name for name, one in PROGRAMS.items() if one["right"] == ["HST105"]]
)
def test_the_headline_has_the_share_of_stalls_that_was_measured(name, reports):
    """Where the mean of a few steps is the time of a step, it contains the stall."""
    truth, told = PROGRAMS[name], on_job(reports(name))[0].headline
    measured = 1 - truth["healthy_ms"] / truth["faulty_ms"]
    (share,) = re.findall(r"([\d.]+) %", told)
    assert float(share) / 100 == pytest.approx(measured, abs=0.1)


@pytest.mark.parametrize("name", [name for name, one in PROGRAMS.items() if not one["right"]])
def test_healthy_programs_are_accused_of_nothing(name, reports):
    report = reports(name)
    assert [one.code for one in on_job(report) if (one.cost_ns_per_step or 0) > 0] == []
    assert report.verdict.part == "computation"
    assert report.plan.repairs == ()


@pytest.mark.parametrize("name", PROGRAMS)
def test_times_are_those_of_untraced_steps(name, reports):
    report, known = reports(name), reports(name).perturbation
    assert known.untraced_ns is not None
    assert known.is_corrected or known.traced_ns == pytest.approx(known.untraced_ns, rel=0.02)
    assert known.simulated_ns is not None
    busy = report.waterfall.all.computation_ns / report.waterfall.num_steps
    if name != "h200-moe-save":  # whose window holds a stall
        assert known.simulated_ns == pytest.approx(max(known.untraced_ns, busy), rel=0.05)
    mean = report.waterfall.all.span_ns / report.waterfall.num_steps
    assert mean == pytest.approx(known.simulated_ns, rel=0.02)


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_saves_more_than_the_step_loses(name, reports):
    report = reports(name)
    total = report.waterfall.all
    step, busy = (
        value / report.waterfall.num_steps for value in (total.span_ns, total.computation_ns)
    )
    simulated = [one for one in on_job(report) if one.recoverable_ns is not None]
    is_stretched = any(one.code == "TEL107" for one in on_job(report))
    assert all(one.recoverable_ns <= step - busy + 1 for one in simulated) or is_stretched
    assert all(busy - 1 <= repair.step_ns <= step + 1 for repair in report.plan.repairs)


def test_base_is_bound_by_its_gpu(reports):
    """At least 6.7 µs per operator (launches included) explain the traced 57.6 to 73.3 ms."""
    known = reports("h100-base").perturbation
    per_operator = (known.traced_ns - known.untraced_ns) / known.num_operators
    assert per_operator >= 6_000
    assert known.num_operators == pytest.approx(5_670, rel=0.01)
    assert not any(one.code == "HST101" for one in reports("h100-base").findings)


def test_small_is_launch_bound_and_saves_at_most_what_its_gpu_leaves(reports):
    (finding,) = [one for one in reports("h100-small").findings if one.code == "HST101"]
    assert 15e6 < finding.recoverable_ns <= 23.3e6


def test_a_foreign_trace_of_base_accuses_nobody_but_asks(tmp_path):
    trace = tmp_path / "trace.json.gz"
    shutil.copyfile(TRUTH / "h100-base" / "rank00000" / "trace.json.gz", trace)
    report = distprof.analyze(distprof.open_run(trace, use_cache=False))
    first = on_job(report)[0]
    assert (first.code, first.severity, first.cost_ns_per_step) == ("HST101", "info", None)
    assert "the profiler explains 27" in first.message
    given = distprof.analyze(distprof.open_run(trace, use_cache=False), step_ns=30_500_000)
    assert on_job(given) == []
    assert given.perturbation.origin == "given"
