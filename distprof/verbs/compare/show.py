"""Verdict, sentences and tables of a comparison, ready to render."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from distprof.artefacts.record import made_from
from distprof.documents.document import Document
from distprof.documents.page import Page
from distprof.documents.saved import Report
from distprof.escape import fitting, headed, shorten
from distprof.formats import RenderOptions
from distprof.sections.table import Column, TableView, counted, first_rows, present, rows_table
from distprof.units import capitalized, format_bytes, format_duration, format_ratio, signed
from distprof.verbs import part_of
from distprof.verbs.compare import (
    ComparedRun,
    Comparison,
    FindingChange,
    FingerprintChange,
    OperatorChange,
    PartChange,
    StepChange,
)
from distprof.verbs.compare.measure import ALIKE_RATIO, Side, compare, state_of
from distprof.verbs.summaries import summarize_report

_FEW = 8
_LEAST_RATIO = 0.001  # share of the step: short tables omit smaller changes


def comparison_verdict(comparison: Comparison) -> tuple[str, str]:
    """Whether the runs are comparable, else which one is slower, by how much; then the rest."""
    headline, rest = headed(_unlike(comparison) or _change_words(comparison))
    more = _change_words(comparison) if _unlike(comparison) else ""
    return headline, " ".join(filter(None, (rest, more)))


def _unlike(comparison: Comparison) -> str:
    """Why the step times say little about the code; empty if nothing recorded speaks against it."""
    forbidding = [one for one in comparison.differences if one.forbids]
    if forbidding:
        more = f", {len(forbidding) - 1} more" if len(forbidding) > 1 else ""
        return fitting(
            f"Not like for like: {_change(forbidding[0])}{more}",
            f"Not like for like: another {forbidding[0].field}{more}",
        )
    ratio = comparison.common_kernels_ratio
    if ratio is not None and ratio < LEAST_COMMON:
        return (
            f"Perhaps not like for like: only {format_ratio(ratio)} of computation is in common "
            "kernels."
        )
    return ""


LEAST_COMMON = 0.5
"""With a smaller share of common kernels, two runs may be of different programs."""


def _change_words(comparison: Comparison) -> str:
    """Whether the second run is slower, by how much, and the main cause."""
    step = comparison.step
    if step.first_ns is None or step.second_ns is None:
        sides = ((comparison.first, step.first_ns), (comparison.second, step.second_ns))
        lacking = " and ".join(run.source for run, ns in sides if ns is None)
        return f"Step times cannot be compared: {lacking} has no steps."
    first, second = format_duration(step.first_ns), format_duration(step.second_ns)
    took = f"{second} per step instead of {first}"
    if step.trend == "alike":
        return _undecided(comparison, took)
    doubt = "" if step.trend != "unknown" else " (too few steps to rule out chance)"
    if doubt and first == second:
        return f"Both runs take {first} per step{doubt}."
    cause = _main_cause(comparison) if _is_traced(comparison) else ""
    words = f"The second run {_how_long(step)}{doubt}: {took}."
    return f"{words} {capitalized(cause)}." if cause else words


def _undecided(comparison: Comparison, took: str) -> str:
    """What a test says that finds no difference: it is no proof that there is none."""
    step = comparison.step
    change = abs(step.change_ratio or 0)
    by = f"{took} ({'+' if (step.change_ns or 0) >= 0 else '−'}{format_ratio(change)})"
    if change <= ALIKE_RATIO:
        return f"No difference found: {by}."
    apart = ""
    steps = comparison.second.num_steps
    if 2 * step.num_apart > steps:
        than = "longer" if (step.change_ns or 0) > 0 else "shorter"
        apart = (
            f" {step.num_apart} of {steps} steps of the second run are {than} than all of the "
            "first: look at the others, and compare more steps."
        )
    return f"Undecided, since chance may explain it ({_odds(step)}): {by}.{apart}"


def _how_long(step: StepChange) -> str:
    """By how much the second run is slower; as a multiple if percentages would mislead."""
    change = step.change_ratio
    if change is None:
        return "takes another time"
    if not -1 / 2 <= change <= 1:
        return f"takes {1 + change:.2g} × as long"
    return f"is {format_ratio(abs(change))} {'slower' if change > 0 else 'faster'}"


def _is_traced(comparison: Comparison) -> bool:
    """Whether the compared step times belong to the traced steps, which the parts describe."""
    return comparison.first.is_traced and comparison.second.is_traced


def _main_cause(comparison: Comparison) -> str:
    """The part that explains a third of the change or more; empty if step and parts disagree."""
    whole = sum(part.change_ns for part in comparison.parts)
    if whole * (comparison.step.change_ns or 0) <= 0:
        return ""
    named = [part for part in comparison.parts if part.part != "other"]
    most = max(named, key=lambda part: part.change_ns / whole)
    if most.change_ns / whole < 1 / 3:
        return ""
    rest = f" of {signed(whole)}"
    if abs(most.change_ns) > abs(whole):
        rest = f", other parts for {signed(whole - most.change_ns)}"
    return f"{part_of(most.part).name} accounts for {signed(most.change_ns)}{rest}"


def _traced_change(comparison: Comparison) -> str:
    """Main cause in the traced steps, if the compared steps were not traced; otherwise empty."""
    parts = comparison.parts
    if not parts or _is_traced(comparison):
        return ""
    first, second = sum(part.first_ns for part in parts), sum(part.second_ns for part in parts)
    span = f"{format_duration(first)} → {format_duration(second)}"
    cause = _main_cause(comparison)
    if cause:
        return f"In traced steps ({span}), {cause}."
    if comparison.step.trend != "alike" and (second - first) * (comparison.step.change_ns or 0) < 0:
        return (
            f"Traced steps changed in the opposite direction ({span}): they include the overhead "
            "of the profiler, so their parts do not explain the change."
        )
    return ""


def _largest(operators: Sequence[OperatorChange]) -> str:
    """The operators that explain a third of the change of the computation or more."""
    whole = sum(row.change_ns for row in operators)
    named = [row for row in operators if row.match != "rest"]
    most = max(named, key=lambda row: row.change_ns / (whole or 1), default=None)
    if most is None or not whole or most.change_ns / whole < 1 / 3:
        return ""
    return f"Of the computation's {signed(whole)}, {_operator(most)} has {signed(most.change_ns)}."


def _named(run: ComparedRun) -> str:
    ranks = counted(run.world_size, "rank") if run.world_size else ""
    commit = f"commit {run.git_commit[:12]}" if run.git_commit else ""
    facts = ", ".join(fact for fact in (ranks, run.device, commit) if fact)
    return f"{run.source} ({facts})" if facts else run.source


def comparison_sentences(comparison: Comparison) -> Iterator[str]:
    """Whether the comparison is like for like, its uncertainty, throughput and memory."""
    yield _likeness(comparison)
    told = (_traced_change(comparison), _largest(comparison.operators), _certainty(comparison))
    yield from filter(None, told)
    one, other = comparison.first, comparison.second
    rates = (one.throughput_per_s, other.throughput_per_s)
    if None not in rates and one.throughput_unit == other.throughput_unit:
        yield f"Throughput: {rates[0]:,.0f} → {rates[1]:,.0f} {one.throughput_unit}/s."
    memory = (one.peak_memory_bytes, other.peak_memory_bytes)
    if None not in memory:
        yield f"Peak memory: {format_bytes(memory[0])} → {format_bytes(memory[1])}."
    yield from comparison.unavailable


def _likeness(comparison: Comparison) -> str:
    """What of hardware, job and software was compared, and with which result."""
    forbidding = [one for one in comparison.differences if one.forbids]
    if forbidding:
        named = "; ".join(map(_change, forbidding[:4]))
        return f"Step times say little about the code while these differ: {named}."
    if not comparison.compared:
        return "Neither hardware nor program is recorded by both runs: they may be unlike."
    same, software = list(comparison.compared), ""
    if number := len(comparison.differences):
        same = [name for name in same if name not in _OF_SOFTWARE]
        software = f" {counted(number, 'difference')} in software."
    unknown = "" if "program" in comparison.compared else " The program is not recorded."
    return f"The same in both runs: {', '.join(same)}.{software}{unknown}"


_OF_SOFTWARE = ("versions", "variables")


def _certainty(comparison: Comparison) -> str:
    step, runs = comparison.step, (comparison.first, comparison.second)
    if not all(run.num_steps for run in runs):
        return ""
    traced = "traced steps" if any(run.is_traced for run in runs) else "steps without a profiler"
    if _is_traced(comparison) and comparison.parts and all(run.num_steps == 1 for run in runs):
        return "There is one mean traced step per run, so chance cannot be ruled out."
    if step.trend == "unknown":
        return f"Medians of {runs[0].num_steps} and {runs[1].num_steps} {traced}."
    intervals = ""
    if None not in (step.first_low_ns, step.second_low_ns):
        intervals = (
            "95 % intervals "
            f"{format_duration(step.first_low_ns)} to {format_duration(step.first_high_ns)} and "
            f"{format_duration(step.second_low_ns)} to {format_duration(step.second_high_ns)}, "
        )
    return (
        f"Medians of {runs[0].num_steps} and {runs[1].num_steps} {traced}, {intervals}"
        f"{_odds(step)}. With one run each, this does not cover differences between runs. "
        "distprof check repeats runs."
    )


def _odds(step: StepChange) -> str:
    """The p-value of the Mann-Whitney test."""
    if step.p_value is None:
        return "no test"
    return "p < 0.001" if step.p_value < 0.001 else f"p = {step.p_value:.2g}"


def _or(text: str) -> str:
    return text or "not set"


def _change(one: FingerprintChange) -> str:
    return f"{one.field} {_or(one.first)} → {_or(one.second)}"


def comparison_tables(comparison: Comparison, *, show_all: bool) -> Iterator[TableView | None]:
    """Tables of the parts of the step, collectives, kernels, findings and other differences."""
    largest = partial(first_rows, most=_FEW, show_all=show_all, note="and {}: --all")
    yield _parts_table(comparison.parts)
    least = -1 if show_all else _LEAST_RATIO * (comparison.step.first_ns or 0)
    yield _operators_table(comparison.operators, least, show_all=show_all)
    yield rows_table(
        "Collectives",
        (
            Column("collective", "kind", left=True),
            Column("axis", lambda row: row.axis or "–", left=True),
            Column("size", lambda row: "all" if row.bytes is None else format_bytes(row.bytes)),
            Column("first", "first_exposed_ns"),
            Column("second", "second_exposed_ns"),
            Column("change", "change_ns", form="signed"),
            Column("", "state", left=True),
            Column("busbw", "first_busbw_bytes_per_s", wide_only=True),
            Column("then", "second_busbw_bytes_per_s", wide_only=True),
        ),
        largest([row for row in comparison.collectives if abs(row.change_ns) > least]),
        caption="exposed time per rank and step",
    )
    yield rows_table(
        "Kernels",
        (
            Column("kernel", "name", left=True, stretch=True),
            Column("first", "first_ns"),
            Column("second", "second_ns"),
            Column("change", "change_ns", form="signed"),
            Column("", "state", left=True),
            Column("calls", lambda row: _calls(row.first_count), wide_only=True),
            Column("then", lambda row: _calls(row.second_count), wide_only=True),
        ),
        largest([row for row in comparison.kernels if abs(row.change_ns) > least]),
        caption="time per rank and step",
    )
    yield rows_table("Findings", _FINDINGS, comparison.findings, caption="cost per step")
    yield rows_table("Other differences", _DIFFERENCES, comparison.differences)


def _operators_table(
    rows: Sequence[OperatorChange], least: float, *, show_all: bool
) -> TableView | None:
    """The largest changes, what the others sum up to, and the change of the computation."""
    changed = [row for row in rows if abs(row.change_ns) > least]
    if not changed:
        return None
    shown = changed if show_all else changed[:_FEW]
    more = [row for row in rows if row not in shown]
    sums = [_summed(f"{len(more)} more: --all", more)] if more else []
    sums.append(_summed("computation", rows))
    return rows_table(
        "Operators",
        (
            Column("operator", _operator, left=True),
            Column("pass", "part", left=True, wide_only=True),
            Column("first", "first_ns"),
            Column("second", "second_ns"),
            Column("change", "change_ns", form="signed"),
            Column("", _operator_state, left=True),
            Column("inputs and kernels", _difference, left=True, stretch=True),
        ),
        [*shown, *sums],
        caption="computation per rank and step; the changes add up",
        strong=(len(shown) + len(sums) - 1,),
    )


def _summed(name: str, rows: Sequence[OperatorChange]) -> OperatorChange:
    sums = {
        field: sum(getattr(row, field) for row in rows)
        for field in ("first_ns", "second_ns", "change_ns", "first_calls", "second_calls")
    }
    return OperatorChange(match="rest", name=name, **sums)


def _operator(row: OperatorChange) -> str:
    names = (row.name, row.second_name)
    return " → ".join(shorten(name.replace("aten::", ""), 36) for name in names if name)


def _operator_state(row: OperatorChange) -> str:
    """Which operators it is compared with, and whether it is slower if they are the same."""
    if row.match == "same":
        return state_of(row.first_ns, row.second_ns)
    return "" if row.match == "rest" else row.match


def _difference(row: OperatorChange) -> str:
    """Its inputs, and its kernel where another one does the work."""
    inputs = dict.fromkeys(filter(None, (row.first_inputs, row.second_inputs)))
    kernels = dict.fromkeys(filter(None, (row.first_kernel, row.second_kernel)))
    texts = [" → ".join(shorten(one, 60) for one in inputs)]
    if len(kernels) > 1 and row.match != "fused":
        texts.append(" → ".join(shorten(one, 40) for one in kernels))
    return "; ".join(filter(None, texts))


def _parts_table(parts: Sequence[PartChange]) -> TableView | None:
    if not parts:
        return None
    there = [part for part in parts if part.first_ns or part.second_ns]
    first, second = sum(part.first_ns for part in parts), sum(part.second_ns for part in parts)
    whole = PartChange(part="sum", first_ns=first, second_ns=second, change_ns=second - first)
    return rows_table(
        "Where the difference is",
        (
            Column("part", lambda part: part_of(part.part).name, left=True),
            Column("first", "first_ns"),
            Column("second", "second_ns"),
            Column("change", "change_ns", form="signed"),
        ),
        [*there, whole],
        caption="mean traced step, averaged over ranks",
        strong=(len(there),),
    )


def _calls(count: float | None) -> str:
    return "–" if count is None else f"{count:,.4g}"


def _cost(ns: int | None, change: FindingChange, absent: str) -> str:
    return "" if change.state == absent else format_duration(ns)


_FINDINGS = (
    Column("rule", lambda change: f"{change.code} {change.name}", left=True),
    Column("", "state", left=True),
    Column("first", lambda change: _cost(change.first_cost_ns_per_step, change, "new")),
    Column("second", lambda change: _cost(change.second_cost_ns_per_step, change, "gone")),
)
_DIFFERENCES = (
    Column("", "field", left=True),
    Column("first", lambda one: _or(one.first), left=True, wrap=True),
    Column("second", lambda one: _or(one.second), left=True, wrap=True),
)


def compare_reports(
    first: Report, second: Report, *, names: tuple[str, str] | None = None
) -> Comparison:
    """Compare the reports of two runs, named by their sources unless ``names`` says otherwise."""
    mine, theirs = names or (first.run.source, second.run.source)
    return compare(_side(first, mine), _side(second, theirs))


def _side(report: Report, name: str) -> Side:
    return made_from(
        report,
        Side,
        summary=replace(summarize_report(report), source=name),
        num_windows=report.waterfall.num_ranks * report.waterfall.num_steps,
        problems=report.findings,
    )


def _page(comparison: Comparison, options: RenderOptions) -> Page:
    headline, detail = comparison_verdict(comparison)
    return Page(
        verdict=headline,
        detail=detail,
        origin=f"first: {_named(comparison.first)} · second: {_named(comparison.second)}",
        sentences=tuple(comparison_sentences(comparison)),
        tables=present(comparison_tables(comparison, show_all=options.show_all)),
        commands=tuple(_commands(comparison)),
    )


def _commands(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """The command that explains the first problem that only the second run has."""
    new = next((one.code for one in comparison.findings if one.state == "new"), None)
    if new is not None:
        yield f"distprof rule {shlex.quote(new)}", "what it means and how to fix it"


COMPARISON = Document(
    kind=Comparison,
    noun="a comparison",
    fix="make it again with: distprof compare FIRST SECOND --format json",
    page=_page,
)
