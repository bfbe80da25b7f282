"""Verdict, sentences and tables of a check, ready to render."""

from __future__ import annotations

import json
from collections.abc import Iterator

from distprof.bounds import table_beside
from distprof.documents.ci import Case, Cases, Outcome
from distprof.documents.document import Document
from distprof.documents.page import Page
from distprof.formats import RenderOptions
from distprof.sections.table import Column, TableView, counted, present, rows_table
from distprof.terms import Severity
from distprof.units import format_bytes, format_duration, format_ratio, signed
from distprof.verbs import part_of
from distprof.verbs.gate import LEVEL, NOT_BY_REPEATS
from distprof.verbs.gate.baseline import find_metric
from distprof.verbs.gate.check import CheckResult, MetricCheck, fails

_TABLE = table_beside(__package__, "metrics.toml")


def check_verdict(result: CheckResult) -> str:
    """The outcome, and the metrics that decided it."""
    deciding = [check for check in result.metrics if check.is_gated]
    if not deciding:
        return "Inconclusive: the runs and the baseline have no gated metric in common."
    worst = [check for check in deciding if check.state == result.state]
    changes = "; ".join(f"{check.label} {change_text(check)}" for check in worst[:3])
    advice = f" {_advice(result, worst)}" if result.state == "inconclusive" else ""
    return f"{_TABLE['states'][result.state]}: {changes}.{advice}"


def _advice(result: CheckResult, undecided: list[MetricCheck]) -> str:
    """Advice on how to settle an inconclusive check."""
    for reason in NOT_BY_REPEATS:
        if any(check.why == reason for check in undecided):
            return reason
    if result.needed_repeats is None:
        return "No reasonable number of repeats would settle it: reduce the noise of the runs."
    return f"Run {counted(result.needed_repeats, 'more repeat')}."


def change_text(check: MetricCheck) -> str:
    """The change with its interval, for example ``+4.2 % (3.1 to 5.4), tolerance 2.00 %``."""
    points = " points" if check.scale == "difference" else " %"
    change, ends = amount(check.change, check.scale), _interval(check)
    ends = f" ({ends})" if ends else ""
    return f"{change}{points}{ends}, tolerance {100 * check.tolerance:.3g}{points}"


def amount(value: float | None, scale: str) -> str:
    """A change in percent, or in points of a share, with its sign; ``–`` for None."""
    if value is None:
        return "–"
    percent = 100 * (value - 1 if scale == "ratio" else value)
    if abs(percent) < 0.005:
        return "±0"
    size = f"{abs(percent):.3g}" if abs(percent) < 999.5 else f"{abs(percent):,.0f}"
    return f"{'+' if percent >= 0 else '−'}{size}"


def check_origin(result: CheckResult) -> str:
    """One line that describes the two sides of the comparison."""
    known = [check for check in result.metrics if check.is_gated] or list(result.metrics)
    repeats = ""
    if known:
        repeats = f"{counted(known[0].num_candidate, 'repeat')} against {known[0].num_baseline}"
    both = (result.candidate_commit, result.baseline_commit)
    commits = " against ".join(dict.fromkeys(f"commit {one[:12]}" for one in both if one))
    facts = (result.baseline, repeats, commits, result.fingerprint.device)
    return " · ".join(fact for fact in facts if fact)


def check_sentences(result: CheckResult) -> Iterator[str]:
    """Causes of a loss, assumptions, and metrics that could not be checked."""
    whole = sum(part.change_ns for part in result.parts)
    if result.state in ("regressed", "inconclusive", "acknowledged") and whole > 0:
        causes = sorted(result.parts, key=lambda part: -part.change_ns)
        named = [part for part in causes if part.change_ns > 0.1 * whole][:3]
        changes = ", ".join(f"{part_of(part.part).name} {signed(part.change_ns)}" for part in named)
        yield f"The traced step changed by {signed(whole)}: {changes}."
    for check in result.metrics:
        if check.state == "acknowledged":
            yield f"The loss of {check.label} is acknowledged: {check.reason.rstrip('.')}."
    for difference in result.unlike:
        yield f"Not like for like, but allowed: {difference}."
    yield from result.notes
    for name, why in result.not_checked.items():
        yield f"{name} was not checked: {why}."


def check_tables(result: CheckResult) -> Iterator[TableView | None]:
    """Tables of gated metrics, informational metrics, and the traced step by part."""
    yield rows_table(
        "Gated metrics",
        (
            *_FIGURES,
            Column("tolerance", lambda check: f"{100 * check.tolerance:.3g} {_unit(check)}"),
            Column("p", lambda check: f"{check.p:.2g}", wide_only=True),
            Column("", "state", left=True),
        ),
        [check for check in result.metrics if check.is_gated],
        caption="medians of repeats; the change is a Hodges-Lehmann estimate",
    )
    yield rows_table(
        "Informational",
        (*_FIGURES, Column("", lambda check: _TABLE["notable"].get(check.state, ""), left=True)),
        [check for check in result.metrics if not check.is_gated],
        caption="the change is a Hodges-Lehmann estimate; --metrics gates them",
    )
    if any(part.change_ns for part in result.parts):
        yield rows_table(
            "Where the difference is",
            _PARTS,
            [part for part in result.parts if part.baseline_ns or part.candidate_ns],
            caption="mean traced step",
            even_empty=True,
        )


def _unit(check: MetricCheck) -> str:
    return "%" if check.scale == "ratio" else "pt"


def _interval(check: MetricCheck) -> str:
    """The interval if it is narrow enough to be meaningful: few repeats make it wide."""
    low, high = check.low, check.high
    if low is None or high is None:
        return ""
    is_narrow = high <= 4 * low if check.scale == "ratio" else high - low <= 1
    return f"{amount(low, check.scale)} to {amount(high, check.scale)}" if is_narrow else ""


def metric_text(value: float, unit: str) -> str:
    """A value with its unit."""
    known = {"ns": format_duration, "B": format_bytes, "ratio": format_ratio}
    if unit in known:
        return known[unit](value)
    number = f"{value:,.0f}" if 1e3 <= value < 1e6 else f"{value:,.3g}"
    return f"{number}{unit}" if unit == "/s" else f"{number} {unit}"


_FIGURES = (
    Column("metric", "metric", left=True),
    Column("baseline", lambda check: metric_text(check.baseline, check.unit)),
    Column("now", lambda check: metric_text(check.candidate, check.unit)),
    Column("change", lambda check: f"{amount(check.change, check.scale)} {_unit(check)}"),
    Column(f"{LEVEL} % interval", _interval, left=True),
)
_PARTS = (
    Column("part", lambda part: part_of(part.part).name, left=True),
    Column("baseline", "baseline_ns"),
    Column("now", "candidate_ns"),
    Column("change", "change_ns", form="signed"),
)


# A check as text, Markdown and JSON, and for CI services ------------------------------------------


def _page(result: CheckResult, _: RenderOptions) -> Page:
    return Page(
        verdict=check_verdict(result),
        origin=check_origin(result),
        sentences=tuple(check_sentences(result)),
        tables=present(check_tables(result)),
    )


def _cases(result: CheckResult, _: RenderOptions) -> Cases:
    """One case per gated metric; inconclusive metrics that do not fail are skipped."""
    deciding = [check for check in result.metrics if check.is_gated]
    left = result.not_checked.items()
    return Cases(
        command="distprof check",
        version=result.distprof_version,
        source=result.baseline,
        verdict=check_verdict(result),
        cases=(
            *(_case(check, result) for check in deciding),
            *(Case(code=name, message=why, outcome="skipped") for name, why in left),
        ),
    )


def _case(check: MetricCheck, result: CheckResult) -> Case:
    outcome: Outcome = "skipped" if check.state == "inconclusive" else "passed"
    if fails(check.state, inconclusive_fails=result.inconclusive_fails):
        outcome = "failed"
    severity = {"failed": Severity.ERROR, "skipped": Severity.WARNING, "passed": None}[outcome]
    return Case(
        code=check.metric,
        message=f"{check.label}: {change_text(check)}. {check.why}",
        severity=Severity.INFO if check.state == "acknowledged" else severity,
        outcome=outcome,
    )


def _benchmarks(result: CheckResult, _: RenderOptions) -> str:
    """The format ``customSmallerIsBetter`` of github-action-benchmark."""
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


CHECK = Document(
    kind=CheckResult,
    noun="a check",
    fix="make it again with: distprof check … --format json",
    page=_page,
    cases=_cases,
    formats={"benchmark": _benchmarks},
)
