"""Where the time went: the waterfall of a mean step, and each rank's breakdown.

Computation is the verdict if no loss reaches :data:`~distprof.sections.parts.MIN_LOSS_RATIO` of a
step, because nothing else is worth the reader's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from distprof.artefacts.record import grouped
from distprof.escape import fitting
from distprof.sections.computation.show import most_computation
from distprof.sections.efficiency.show import efficiency_sentence
from distprof.sections.idle.show import idle_words
from distprof.sections.parts import (
    MIN_LOSS_RATIO,
    Part,
    amount_text,
    each_window,
    is_whole_capture,
    loss_words,
    mean_span_ns,
    parts_of,
    window_word,
)
from distprof.sections.shares import has_all_members, unrecorded
from distprof.sections.stragglers.show import culprits, wait_words
from distprof.sections.table import Bar, Cell, Column, TableView, folded_ranks
from distprof.terms import MeshAxis
from distprof.units import fold_ranks, format_duration, format_parts, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

SMALL_RATIO = 0.0005

RAISED = 1.1  # Mean step over the median from which a few long steps tell more than the mean
LONG = 1.2  # A step over the median from which it counts as long

LAUNCH_BOUND = 0.15
"""Share of the step from which late launches are a verdict, as in the rule launch-bound-host."""
_BREAKDOWN_PARTS = ("computation_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")


def dominant_part(report: Report) -> Part | None:
    """Return the part of a mean step that a reader must see first; None if nothing was measured."""
    parts = parts_of(report)
    if not parts:
        return None
    losses = [part for part in parts if part.key != "computation"]
    worst = max(losses, key=lambda part: _weight(report, part))
    is_small = _weight(report, worst) < MIN_LOSS_RATIO * sum(part.ns for part in parts)
    return parts[0] if is_small else worst


def dominant_words(report: Report, dominant: Part) -> tuple[str, str]:
    """The verdict: what dominates and how much of the step it takes; then what to do."""
    if dominant.key == "computation":
        losses = [part for part in parts_of(report) if part.key != "computation"]
        worst = max(losses, key=lambda part: part.ns)
        share = f"{format_ratio(dominant.ratio)} of {each_window(report)}"
        if worst.ns <= 0:
            return f"Computation takes {share}: only faster kernels would shorten it", ""
        if worst.key.startswith("idle_") and report.capture.filtered_ranks:
            why = "The rest is unknown: rows were removed from the traces."
            return f"Computation takes {share}", why
        if worst.ns > dominant.ns:  # launching that is chance or the profiler's doing
            return f"Computation takes {share}", (
                f"Late launches take {format_ratio(worst.ratio)}, for which the profiler or chance "
                "may be the reason."
            )
        most = f"The largest other part is {worst.label} ({format_ratio(worst.ratio)})."
        said = (efficiency_sentence(report), most_computation(report), most)
        return f"Computation dominates: {share}", " ".join(filter(None, said))
    if dominant.key == "exposed_wait":
        return wait_words(report, dominant)
    if dominant.key.startswith("idle_"):
        return idle_words(report, dominant)
    subject, action = _words_on(report, dominant.key)
    share = f"{format_ratio(dominant.ratio)} of {each_window(report)}"
    who = "Moving data, or waiting for ranks without a trace, takes"
    headline = fitting(f"{subject} {share}", f"{who} {share}")
    return headline, f"{amount_text(report, dominant.ns)}: {action}."


def _weight(report: Report, part: Part) -> float:
    """Cost of a part per step. A straggler does not wait, so the mean understates its cost.

    Launching counts as far as it is neither chance nor the profiler's doing, idle time only if
    no trace was filtered.
    """
    if part.key.startswith("idle_") and report.capture.filtered_ranks:
        return 0
    if part.key == "idle_host":
        sure = report.perturbation.surely_ns(round(part.ns))
        return sure if sure >= LAUNCH_BOUND * part.ns / max(part.ratio, 1e-9) else 0
    late = culprits(report)
    if part.key == "exposed_wait" and late:
        return max(part.ns, late[0].lost_ns_per_step)
    return part.ns


def _words_on(report: Report, key: str) -> tuple[str, str]:
    """Start of the sentence on a loss, and the action that this recording supports."""
    subject, action = loss_words(key)
    if key == "exposed_transfer" and not has_all_members(report.capture):
        subject = f"Moving data, or waiting for {unrecorded(report.capture)}, takes"
        action = "record all ranks to see which"
    if key == "exposed_comm_unsplit" and len(report.run.ranks) == 1 and report.run.world_size != 1:
        action = (
            "record the other ranks too, because one rank cannot separate waiting from transfer"
        )
    axes = {record.axis for record in report.collectives.classes if record.is_message}
    if key == "exposed_p2p_wait" and axes == {MeshAxis.CP.value}:
        action = "send the next block while computing on this one, and give all ranks equal work"
    return subject, action


def waterfall_table(report: Report, *, show_all: bool) -> TableView | None:
    """Show a mean step as a sum of its parts; empty parts only with --all."""
    parts = parts_of(report)
    if not parts:
        return None
    shown = list(parts) if show_all else _worth_showing(parts)
    texts, total = format_parts([part.ns for part in shown])
    rows: list[tuple[Cell, ...]] = [
        (part.label, text, format_ratio(part.ratio), Bar(ratio=part.ratio, key=part.key))
        for part, text in zip(shown, texts, strict=True)
    ]
    rows.append(("sum", total, format_ratio(1.0), ""))
    ranks, steps = report.waterfall.num_ranks, report.waterfall.num_steps
    of_ranks = f"{ranks} ranks" if ranks > 1 else ""
    of_steps = f"{steps} steps" if steps > 1 and not is_whole_capture(report) else ""
    over = " and ".join(text for text in (of_ranks, of_steps) if text)
    return TableView(
        title="Where the capture goes" if is_whole_capture(report) else "Where a step goes",
        caption=f"mean of {over}" if over else "",
        columns=(Column("part", left=True), Column("time"), Column("share"), Column("", left=True)),
        rows=tuple(rows),
        strong=frozenset({len(rows) - 1}),
        is_main=True,
    )


def _worth_showing(parts: tuple[Part, ...]) -> list[Part]:
    """Parts with any time; those too small to matter are merged into one, to keep the sum."""
    present = [part for part in parts if part.ns > 0 or part.key == "computation"]
    small = [p for p in present if p.ratio < SMALL_RATIO and p.key != "computation"]
    if len(small) < 2:
        return present
    rest = Part(
        key="other",
        label="other",
        ns=sum(part.ns for part in small),
        ratio=sum(part.ratio for part in small),
    )
    return [*(part for part in present if part not in small), rest]


def breakdown_table(report: Report, *, show_all: bool) -> TableView | None:
    """Each rank's mean step: computation, exposed communication and copies, idle."""
    ranks = report.breakdown.ranks
    if not ranks or (len(ranks) == 1 and not show_all):
        return None  # one rank's breakdown is the waterfall above
    windows = max(report.waterfall.num_steps, 1)
    values = [
        (r.span_ns / windows, *(getattr(r, field) / windows for field in _BREAKDOWN_PARTS))
        for r in ranks
    ]
    return TableView(
        title="Breakdown by rank",
        caption=f"per {window_word(report)}; the parts add up to the span",
        columns=(
            Column("rank", left=True),
            Column("span"),
            *(
                column
                for title in ("computation", "exposed comm", "copies", "idle")
                for column in (Column(title), Column("%", wide_only=True))
            ),
        ),
        rows=folded_ranks([r.rank for r in ranks], values, _breakdown_cells, show_all=show_all),
        notes=left_out_steps(report),
    )


def left_out_steps(report: Report) -> tuple[str, ...]:
    """A note on the steps that the report of a large run leaves out, and how to keep them."""
    whole, missing = len(report.breakdown.ranks), report.breakdown.num_ranks_left_out
    if not missing:
        return ()
    return (
        f"the report has single steps of only {whole - missing} of {whole} ranks: --every-step "
        "keeps those of all ranks",
    )


def _breakdown_cells(values: Sequence[float | None]) -> tuple[Cell, ...]:
    span, *parts = values
    cells: list[Cell] = [format_duration(span)]
    for part in parts:
        cells.append(format_duration(part))
        cells.append(format_ratio(part / span) if part is not None and span else "–")
    return tuple(cells)


def long_steps(report: Report) -> str:
    """The usual step, where a few long ones raise the mean that all shares refer to."""
    usual, mean = report.step_time.median_ns, mean_span_ns(report)
    if not usual or not mean or mean < RAISED * usual:
        return ""
    spans = grouped([(row.step, row.span_ns) for row in report.breakdown.steps])
    long = {step: ns for step, of in spans.items() if (ns := median(of)) >= LONG * usual}
    if not long:
        return ""
    numbers, longest = fold_ranks(long).replace(",", ", "), format_duration(max(long.values()))
    which = f"steps {numbers} take up to" if len(long) > 1 else f"step {numbers} takes"
    return (
        f"Usually a step takes {format_duration(usual)}; {which} {longest} and raise"
        f"{'' if len(long) > 1 else 's'} the mean to {format_duration(mean)}."
    )
