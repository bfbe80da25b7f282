"""A gate's answer as text, Markdown and JSON, and for the machines of CI: JUnit and benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable
from xml.etree import ElementTree

from distprof.gate.check import CheckResult, MetricCheck
from distprof.gate.metrics import find_metric
from distprof.report.check_view import (
    amount,
    change_text,
    check_headline,
    check_sentences,
    check_tables,
    check_verdict,
)
from distprof.report.escape import plain
from distprof.report.page import Page, page_reporters
from distprof.report.registry import RenderOptions

__all__ = ["CHECK_REPORTERS"]


def _page(result: CheckResult, options: RenderOptions) -> Page:
    return Page(
        verdict=check_verdict(result),
        headline=check_headline(result),
        sentences=tuple(check_sentences(result)),
        tables=tuple(check_tables(result, show_all=options.show_all)),
    )


def _junit(result: CheckResult, _: RenderOptions) -> str:
    """A test case per metric: a loss fails, too few repeats and metrics only shown are skipped."""
    suite = ElementTree.Element(
        "testsuite",
        name="distprof check",
        tests=str(len(result.metrics) + len(result.not_checked)),
        failures=str(sum(_fails(check) for check in result.metrics)),
        errors="0",
        skipped=str(sum(_is_skipped(check) for check in result.metrics) + len(result.not_checked)),
    )
    for check in result.metrics:
        case = ElementTree.SubElement(
            suite, "testcase", classname="distprof.check", name=check.metric
        )
        said = f"{check.label}: {change_text(check)}. {check.why}"
        if _fails(check):
            ElementTree.SubElement(case, "failure", message=_clean(said)).text = _clean(said)
        elif _is_skipped(check):
            ElementTree.SubElement(case, "skipped", message=_clean(said))
        else:
            ElementTree.SubElement(case, "system-out").text = _clean(said)
    for name, why in result.not_checked.items():
        case = ElementTree.SubElement(suite, "testcase", classname="distprof.check", name=name)
        ElementTree.SubElement(case, "skipped", message=_clean(why))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _fails(check: MetricCheck) -> bool:
    return check.is_gated and check.state == "regressed"


def _is_skipped(check: MetricCheck) -> bool:
    return not _fails(check) and (not check.is_gated or check.state == "inconclusive")


def _clean(text: str) -> str:
    """Without characters that XML cannot hold."""
    return plain(text)


def _benchmarks(result: CheckResult, _: RenderOptions) -> str:
    """What github-action-benchmark reads as ``customSmallerIsBetter``.

    Shares of which more is better are given as what is missing of 1.
    """
    return json.dumps([_benchmark(check) for check in result.metrics], indent=1) + "\n"


def _benchmark(check: MetricCheck) -> dict[str, object]:
    metric = find_metric(check.metric)
    value, name = check.candidate, check.label
    if metric is not None and metric.better == "higher":
        value, name = 1 - value, f"lack of {check.label}"
    if check.unit == "ns":
        value, unit = value / 1e6, "ms"
    elif check.unit == "B":
        value, unit = value / 1e6, "MB"
    else:
        value, unit = 100 * value, "%"
    low, high = amount(check.low, check.scale), amount(check.high, check.scale)
    return {
        "name": name,
        "unit": unit,
        "value": round(value, 6),
        "extra": f"{check.state}: {change_text(check)}; interval {low} to {high}",
    }


CHECK_REPORTERS: dict[str, Callable[[CheckResult, RenderOptions], str]] = {
    **page_reporters(_page),
    "junit": _junit,
    "benchmark": _benchmarks,
}
"""Name of a format to what writes a gate's answer in it."""
