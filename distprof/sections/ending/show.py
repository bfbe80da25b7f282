"""How a job ended, according to its output."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from distprof.escape import short_ranks
from distprof.sections.base import VerdictText
from distprof.sections.ending.words import words
from distprof.sections.nccl.show import known_network
from distprof.sections.parts import is_recorded
from distprof.sections.table import Column, TableView, counted, first_rows, rows_table
from distprof.sections.training_log.show import training_verdict

if TYPE_CHECKING:
    from distprof.sections.report import Report

_first = partial(first_rows, most=12, noun="row", note="{} with --all")


def ending_positions_table(report: Report, *, show_all: bool) -> TableView | None:
    """Where ranks stood when their watchdogs fired."""
    return rows_table(
        "Ranks at the time-out",
        (
            Column("rank", "rank"),
            Column("group", "group", form="name", left=True),
            Column("waits in", "op", form="name", left=True),
            Column("number", "seq", form="count"),
            Column("elements", "size", form="name"),
            Column("launched", "enqueued", form="count"),
            Column("completed", "completed", form="count"),
        ),
        _first(report.ending.positions, show_all=show_all),
    )


def ending_lines_table(report: Report, *, show_all: bool) -> TableView | None:
    """Lines about the end of the job."""
    return rows_table(
        "Lines about the end of the job",
        (
            Column("rank", "rank"),
            Column("about", "about", left=True),
            Column("file", "file", form="name", left=True, wide_only=True),
            Column("line", "line", form="count", wide_only=True),
            Column("text", "text", form="name", left=True, wrap=True),
        ),
        _first(report.ending.lines, show_all=show_all),
    )


def ending_stacks_table(report: Report, *, show_all: bool) -> TableView | None:
    """Processes with the same stack, the rarest first."""
    return rows_table(
        "Python stacks",
        (
            Column("ranks", lambda one: short_ranks(one.ranks, 20) or "–"),
            Column("processes", "count", form="count"),
            Column("in", lambda one: one.activity or "–", left=True),
            Column(
                "calls, innermost first",
                lambda one: " ← ".join(one.calls[:6]),
                form="name",
                left=True,
                wrap=True,
            ),
        ),
        _first(report.ending.stacks, show_all=show_all),
    )


def ending_verdict(report: Report) -> VerdictText:
    """The verdict and the evidence for it; None for other reports."""
    result = report.ending
    # Times of several iterations, or numbers of GPUs, say more than where the text ends
    least = 1 if result.cause in ("ready", "finished") else 2
    scales = bool(report.scaling_table.counts)
    has_steps = report.training_log.num_reports >= least or scales
    if result.cause == "finished" and has_steps and (trained := training_verdict(report)):
        return trained[0], (result.verdict, *trained[1])
    stands = result.cause == "complaint" or (result.stacks and not scales)
    is_known = result.state or stands or not has_steps
    if not result.verdict or is_recorded(report) or not is_known:
        return None
    steps = () if result.state else result.next_steps  # no finding says them
    if report.nccl.num_texts:  # it is on
        steps = tuple(step for step in steps if not step.endswith("how far NCCL comes."))
    known = filter(None, (*until(report), known_network(report)))
    return result.verdict, (*known, *result.why, *result.alternatives, *steps)


def until(report: Report) -> tuple[str, ...]:
    """What the iterations say of a job whose end only people report."""
    kind, text = report.ending.cause, report.ending.verdict
    is_alone = kind in ("complaint", "nan", "stopped") or words().said["title"] in text
    is_alone |= bool(report.ending.stacks) and not report.ending.state
    has_steps = report.training_log.num_reports > 1
    trained = training_verdict(report) if has_steps and is_alone else None
    return (f"{'' if kind == 'nan' else 'Until then: '}{trained[0]}",) if trained else ()


def ending_origin(report: Report) -> str:
    """The source, and how much was read."""
    result = report.ending
    if not result.num_lines or is_recorded(report):
        return ""
    ranks = counted(result.world_size, "rank") if result.world_size else ""
    facts = ("output of a job", counted(result.num_lines, "line"), ranks, "no traces")
    return " · ".join(filter(None, facts))
