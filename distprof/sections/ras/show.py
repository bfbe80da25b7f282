"""Output of NCCL's RAS: communicators, and ranks in trouble."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.sections.base import VerdictText
from distprof.sections.parts import is_recorded
from distprof.sections.table import Column, TableView, counted, first_rows, rows_table

if TYPE_CHECKING:
    from distprof.sections.report import Report

MAX_ROWS = 16


def ras_communicators_table(report: Report, *, show_all: bool) -> TableView | None:
    """Communicators by size and status."""
    return rows_table(
        "Communicators according to NCCL",
        (
            Column("communicators", "num_communicators"),
            Column("ranks", "num_ranks", form="count"),
            Column("nodes", "num_nodes"),
            Column("status", "status", left=True),
            Column("errors", lambda one: ", ".join(one.errors) or "–", left=True),
        ),
        first_rows(report.ras.communicators, MAX_ROWS, show_all=show_all, noun="row"),
    )


def troubled_table(report: Report, *, show_all: bool) -> TableView | None:
    """Ranks in trouble, worst first."""
    troubled = report.ras.troubled
    return rows_table(
        "Ranks in trouble",
        (
            Column("rank", "rank"),
            Column("trouble", "kind", left=True),
            Column("what", "text", form="name", left=True, wrap=True),
            Column("where", "place", form="name", left=True),
            Column("communicator", "communicator", form="name", left=True, wide_only=True),
        ),
        first_rows(troubled, MAX_ROWS, show_all=show_all, noun="row"),
    )


# The first lines of a report on ncclras alone ----------------------------------------------------


def ras_verdict(report: Report) -> VerdictText:
    """The verdict and the numbers behind it; None for other reports."""
    result = report.ras
    if not result.communicators or is_recorded(report):
        return None
    number = sum(one.num_communicators for one in result.communicators)
    line = f"NCCL reports {counted(number, 'communicator')}"
    if not result.troubled and not result.num_behind:
        errors = dict.fromkeys(error for one in result.communicators for error in one.errors)
        unnamed = f", with {' and '.join(errors)}, and the text does not show of which ranks."
        alike = "; every rank answers, without an error, and launches are equal."
        return line + (unnamed if errors else alike), ()
    return f"{line}, with trouble on {counted(len(result.troubled), 'rank')}.", ()


def ras_origin(report: Report) -> str:
    """The source, and the size of the job."""
    result = report.ras
    if not result.communicators or is_recorded(report):
        return ""
    facts = ["ncclras"]
    if result.num_processes is not None:
        facts.append(counted(result.num_processes, "process"))
    if result.num_nodes is not None:
        facts.append(counted(result.num_nodes, "node"))
    if result.version:
        facts.append(f"NCCL {result.version}")
    return " · ".join([*facts, "no traces"])
