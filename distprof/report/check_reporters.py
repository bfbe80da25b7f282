"""A gate's answer as text, Markdown and JSON, and for the machines of CI: JUnit and benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable
from xml.etree import ElementTree

from distprof.gate.check import CheckResult, MetricCheck, fails
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
    """A test case per metric that decides; where too few repeats pass, they are skipped."""
    deciding = [check for check in result.metrics if check.is_gated]
    suite = ElementTree.Element("testsuite", name="distprof check")
    for check in deciding:
        said = _clean(f"{check.label}: {change_text(check)}. {check.why}")
        outcome = _outcome(check, result)
        case = _case(suite, check.metric)
        if outcome == "system-out":
            ElementTree.SubElement(case, outcome).text = said
        else:
            ElementTree.SubElement(case, outcome, message=said)
    for name, why in result.not_checked.items():
        ElementTree.SubElement(_case(suite, name), "skipped", message=_clean(why))
    counts = {"failures": len(suite.findall("*/failure")), "errors": 0}
    counts |= {"tests": len(suite), "skipped": len(suite.findall("*/skipped"))}
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    for element in (suite, suites):
        element.attrib |= {name: str(count) for name, count in counts.items()}
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(
        suite, "testcase", classname="distprof.check", name=_clean(name), time="0"
    )


def _outcome(check: MetricCheck, result: CheckResult) -> str:
    if fails(check.state, inconclusive_fails=result.inconclusive_fails):
        return "failure"
    return "skipped" if check.state == "inconclusive" else "system-out"


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
    found: dict[str, object] = {"name": name, "unit": unit, "value": round(value, 6)}
    if check.low is not None and check.high is not None:
        ends = [amount(end, check.scale) for end in (check.low, check.high)]
        found["range"] = f"{ends[0]} to {ends[1]} {'%' if check.scale == 'ratio' else 'points'}"
    return {**found, "extra": f"{check.state}: {change_text(check)}"}


CHECK_REPORTERS: dict[str, Callable[[CheckResult, RenderOptions], str]] = {
    **page_reporters(_page),
    "junit": _junit,
    "benchmark": _benchmarks,
}
"""Name of a format to what writes a gate's answer in it."""
