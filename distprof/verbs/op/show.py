"""Sentences and tables of one operator, ready to render."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from distprof.documents.document import Document
from distprof.documents.page import Page
from distprof.escape import plain, shorten
from distprof.formats import RenderOptions
from distprof.sections.computation.show import reached_text
from distprof.sections.kernels.show import short_kernel_name
from distprof.sections.table import Column, TableView, counted, first_rows, present, rows_table
from distprof.units import format_bytes, format_duration, format_flop, format_ratio
from distprof.verbs.op import OperatorStory

_FEW = 8


def operator_verdict(story: OperatorStory) -> str:
    """How long it takes per step, its share of the computation, and of the GPU's limit."""
    share = story.total_ns / max(story.computation_ns, 1)
    per_step = format_duration(story.total_ns / max(story.num_steps, 1))
    name = shorten(plain(story.name), 80)
    text = f"{name} takes {per_step} per step, {format_ratio(share)} of the computation"
    known = [row for row in story.calls if row.peak_ratio is not None]
    known_ns = sum(row.total_ns for row in known)
    if not known_ns:
        return f"{text}."
    needed_ns = sum(row.total_ns * (row.peak_ratio or 0) for row in known)
    limit = "what this GPU was measured to reach" if story.is_measured else "the GPU's peak"
    bounds = " and ".join(sorted({row.bound for row in known}))
    return f"{text}, at {format_ratio(needed_ns / known_ns)} of {limit} ({bounds})."


def _tables(story: OperatorStory, *, show_all: bool) -> Iterator[TableView | None]:
    steps = max(story.num_steps, 1)

    def cut(title: str, columns: tuple[Column, ...], rows: tuple[object, ...]) -> TableView | None:
        shown = first_rows(rows, _FEW, show_all=show_all, note="and {}: --all")
        return rows_table(title, columns, shown, caption="per step")

    numbered = {id(row): number for number, row in enumerate(story.calls, 1)}
    yield cut(
        "Calls by inputs",
        (
            Column("", lambda row: str(numbered[id(row)])),
            Column("operator", "name", left=True, when=story.is_kernel),
            Column("pass", "part", left=True),
            Column("calls", lambda row: row.num_calls / steps, form="figure"),
            Column("time", lambda row: row.total_ns / steps, form="ns"),
            Column("one call", lambda row: row.total_ns / max(row.num_calls, 1), form="ns"),
            Column("reaches", reached_text),
            Column("of limit", "peak_ratio", form="ratio"),
            Column("limit", "bound", left=True, wide_only=True, when=show_all),
            Column("FLOP", lambda row: format_flop(row.flop) if row.flop else "–", when=show_all),
            Column("bytes", lambda row: format_bytes(row.bytes), when=show_all),
            Column("inputs", "inputs", left=True, stretch=True),
        ),
        story.calls,
    )
    yield cut(
        "Kernels",
        (
            Column("kernel", lambda row: short_kernel_name(row.name), left=True, stretch=True),
            Column("calls", lambda row: row.count / steps, form="figure"),
            Column("time", lambda row: row.total_ns / steps, form="ns"),
            Column("median", "median_ns"),
            Column("waves", lambda row: "–" if row.waves is None else f"{row.waves:,.2f}"),
        ),
        story.kernels,
    )
    yield cut(
        "Callers",
        (
            Column("inside", lambda row: row.path or "nothing recorded", left=True, stretch=True),
            Column("calls", lambda row: row.num_calls / steps, form="figure"),
            Column("time", lambda row: row.total_ns / steps, form="ns"),
        ),
        story.callers,
    )


def _passes(story: OperatorStory) -> str:
    sums: Counter[str] = Counter()
    for row in story.calls:
        sums[row.part] += row.total_ns
    parts = [f"{part} {format_duration(ns / max(story.num_steps, 1))}" for part, ns in sums.items()]
    return f"By pass: {', '.join(parts)}." if len(parts) > 1 else ""


def waves_sentence(story: OperatorStory) -> str:
    """The kernel that loses most because its last wave is not full; empty if that is little."""
    worst = max(story.kernels, key=lambda row: row.total_ns * row.unused_ratio, default=None)
    if worst is None or worst.total_ns * worst.unused_ratio < _WORTH_SAYING * story.total_ns:
        return ""
    name = shorten(plain(short_kernel_name(worst.name)), 60)
    unused = format_ratio(worst.unused_ratio)
    if (worst.waves or 0) < 1:
        return f"{name} has too few thread blocks: {unused} of the GPU's room for them is empty."
    return (
        f"{name} runs {worst.waves:.2f} waves of thread blocks. If all take equally long, the last "
        f"wave wastes {unused} of its time."
    )


_WORTH_SAYING = 0.1
"""Share of the operator's time that it must waste."""


def _page(story: OperatorStory, options: RenderOptions) -> Page:
    facts = (f"rank {story.rank}", counted(story.num_steps, "step"), story.device, story.source)
    return Page(
        verdict=operator_verdict(story),
        origin=" · ".join(filter(None, facts)),
        sentences=tuple(filter(None, (_passes(story), waves_sentence(story)))),
        tables=present(_tables(story, show_all=options.show_all)),
    )


OPERATOR = Document(
    kind=OperatorStory,
    noun="an operator",
    fix="make it again with: distprof op TRACE NAME --format json",
    page=_page,
)
