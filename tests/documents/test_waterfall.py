"""The bars of the step on the page: each fact at the part that it is about, and once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import distprof
from distprof.documents.html.subjects import stragglers_figure, waterfall_figure
from distprof.rules.base import Finding
from distprof.sections.report import Report
from distprof.sections.shows import tables_of
from distprof.units import format_duration

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def report_of() -> Callable[[str], Report]:
    known: dict[str, Report] = {}

    def report(name: str) -> Report:
        if name not in known:
            known[name] = distprof.analyze(GOLDEN / "kineto" / name)
        return known[name]

    return report


def anchor_of(finding: Finding) -> str:
    return finding.code


def parts(report: Report) -> dict[str, str]:
    """Label of each bar to what opens under it, as HTML."""
    figure = str(waterfall_figure(report, tables_of(report, show_all=True), anchor_of))
    found = {}
    for part in figure.split("<details")[1:]:
        label = re.search(r'aria-label="([^:"]+(?:: [a-z ]+)?): [^"]*"', part)
        assert label is not None
        found[label[1]] = part
    return found


def linked(html: str) -> set[str]:
    return set(re.findall(r'href="#([A-Z]+\d+)"', html))


def test_a_finding_is_linked_from_the_idle_time_that_it_is_about(report_of) -> None:
    found = parts(report_of("dlrm-v100-8gpu"))
    assert linked(found["idle: late launches"]) == {"HST101"}
    assert linked(found["idle: synchronising calls"]) == {"HST102"}
    assert linked(found["idle: input"]) == {"INP103"}
    assert linked(found["idle: cause unknown"]) == set()


def test_what_several_parts_share_is_said_at_the_largest(report_of) -> None:
    """The steps of all idle time were under each of its causes."""
    found = parts(report_of("ddp-a100-2gpu-rank0"))
    said = [label for label, html in found.items() if "All idle time by step" in html]
    assert said == ["idle: late launches"]
    assert "The recording says no more" in found["idle: cause unknown"]
    assert "The recording says no more" not in found["computation"]


def test_a_short_list_does_not_name_its_least_again(report_of) -> None:
    html = parts(report_of("ddp-a100-2gpu-rank0"))["computation"]
    assert re.search(r"mean over ranks: step 6 [^;]*, step 4 [^;]*, step 5 [^;]*\.", html)
    assert "least in" not in html
    by_rank = parts(report_of("dlrm-v100-8gpu"))["computation"]
    assert "least in rank 0" in by_rank


def test_small_parts_have_a_time_of_their_own_size(report_of) -> None:
    """They were rounded to 0.0 ms beside a share above nothing."""
    report = report_of("ddp-a100-2gpu-rank0")
    total = report.waterfall.all
    assert total is not None
    waited = format_duration(total.idle_sync_ns / report.waterfall.num_steps)
    assert waited.endswith(" µs")
    assert waited in parts(report)["idle: synchronising calls"]


def test_a_rank_without_pattern_and_cause_has_no_confidence_to_show(report_of) -> None:
    report = report_of("dlrm-v100-8gpu")
    figure = str(stragglers_figure(report.stragglers, "step"))
    assert "No pattern and no cause found. Last in 64.3" in figure
    assert "Confidence" not in figure
