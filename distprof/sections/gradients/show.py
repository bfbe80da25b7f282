"""Gradients of data parallelism: how often and how late they are reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.sections.gradients import GradientGroup
from distprof.sections.parts import window_word
from distprof.sections.table import Column, TableView, rows_table
from distprof.units import format_bytes

if TYPE_CHECKING:
    from distprof.sections.report import Report


def gradients_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """One row per axis along which DistributedDataParallel reduces gradients."""
    groups = report.gradients.groups
    return rows_table(
        "Gradients",
        (
            Column("axis", "axis", left=True, stretch=True),
            Column("gradients", lambda g: " ".join((format_bytes(g.bytes), *g.dtypes)).strip()),
            Column("micro-batches", lambda g: f"{g.micro_batches:.3g}"),
            Column("reduced", lambda g: g.times_reduced and f"{g.times_reduced:.3g} ×"),
            Column("buckets", "num_buckets", form="id"),
            Column("exposed", "exposed_ns_per_step"),
            Column("transfer", "transfer_ns", wide_only=True),
            Column("backward", "backward_ns"),
            Column("first ready", _first_ready, form="ratio"),
        ),
        groups,
        caption=f"DDP; reduced: times per update; exposed: mean per {window_word(report)}",
        notes=_notes(groups),
    )


def _first_ready(group: GradientGroup) -> float | None:
    """Share of backward that has passed when the first bucket is ready."""
    if group.before_first_ns is None or not group.backward_ns:
        return None
    return group.before_first_ns / group.backward_ns


def _notes(groups: tuple[GradientGroup, ...]) -> tuple[str, ...]:
    if all(group.is_split for group in groups):
        return ()
    return ("exposed includes waiting for late ranks: not all members were recorded and matched",)
