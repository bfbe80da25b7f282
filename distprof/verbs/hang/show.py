"""Origin, tables and document of a hang report."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from msgspec.structs import replace

from distprof.documents.document import Document
from distprof.documents.page import Listing, Page
from distprof.escape import headed, short_ranks
from distprof.formats import RenderOptions
from distprof.sections.table import Column, TableView, counted, facts_table, present, rows_table
from distprof.units import fold_ranks, format_duration, name_ranks
from distprof.verbs.hang import HangReport, HangState, RankPosition, StuckOperation

_FEW = 8
_FEW_CADENCES = 5
_FEW_CALLS = 6
_FEW_SENTENCES = 3
"""Sentences of evidence in the short text."""


def origin(report: HangReport) -> str:
    """One line that counts the dumps, operations and groups read."""
    if not report.dumps:
        lines = counted(len(report.log_lines), "line")
        known = " · verdict inferred" if report.confidence is not None else ""
        return f"no dumps · {lines} about the end of the job{known}"
    entries = sum(position.entries for position in report.ranks)
    parts = [f"{counted(len(report.dumps), 'dump')} ({short_ranks(report.dumps)})"]
    parts.append(f"{counted(entries, 'operation')} in {counted(len(report.groups), 'group')}")
    if report.num_other_dumps:
        parts.append(f"{counted(report.num_other_dumps, 'older dump')} of these ranks left out")
    if report.missing_dumps:
        parts.append(f"no dump of {name_ranks(report.missing_dumps)}")
    if report.confidence is not None:
        parts.append(f"verdict {report.confidence.value}")
    return " · ".join(parts)


def hang_tables(report: HangReport, *, show_all: bool) -> Iterator[TableView | None]:
    """Tables of the operation, causes, groups, ranks, logs, stacks and cadence, if any."""
    is_hang = report.state is not HangState.NO_HANG
    if report.operation is not None and is_hang:
        yield facts_table("First divergent operation", _operation_facts(report.operation))
    if len(report.roots) > 1:
        roots = report.roots if show_all else report.roots[:_FEW]
        more = _others(len(report.roots) - len(roots), "cause")
        yield rows_table("Independent causes", _ROOT, roots, notes=more)
    if report.groups and is_hang:
        yield _group_table(report, show_all=show_all)
    if report.state is HangState.STUCK and report.ranks:
        yield _rank_table(report, show_all=show_all)
    blamed = set(report.culprits)
    lines = sorted(report.log_lines, key=lambda line: line.rank not in blamed)
    shown = lines if show_all else lines[:_FEW]
    yield rows_table("Logs", _LOG, shown, notes=_others(len(lines) - len(shown), "line"))
    yield _stack_table(report, show_all=show_all)
    cadence = sorted(report.cadence, key=lambda item: -item.count)
    yield rows_table(
        "Cadence",
        _CADENCE,
        cadence if show_all else cadence[:_FEW_CADENCES],
        caption="time from one launch to the next of the same operation",
    )


def _others(number: int, noun: str) -> tuple[str, ...]:
    return (f"{counted(number, f'other {noun}')}: --all.",) if number else ()


def _operation_facts(operation: StuckOperation) -> Iterator[tuple[str, str]]:
    seq = "a message" if operation.seq is None else f"number {operation.seq}"
    yield "operation", f"{operation.name or 'not in any ring'}, {seq}"
    yield "sizes", " ".join(part for part in (operation.shape, operation.dtype) if part)
    yield "group", f"{operation.description or '(no description)'}, named {operation.group}"
    yield "members", short_ranks(operation.group_ranks, 60)
    yield "launched by", short_ranks(operation.launched, 60) or "no rank seen"
    yield "missing", short_ranks(operation.missing, 60) or "–"
    yield "no dump", short_ranks(operation.unknown, 60)
    if operation.timeout_ms is not None:
        yield "timeout", format_duration(operation.timeout_ms * 1_000_000)
    yield "launched in", operation.frame


def _named(one: Any) -> str:
    """The group of an operation, or the group itself, as reports name it."""
    return one.description or one.group or "(unnamed)"


def _numbered(name: str, seq: int | None) -> str:
    return f"{name} {'' if seq is None else seq}".strip()


def _some(ranks: Collection[int]) -> str:
    return short_ranks(ranks, 20) or "–"


_ROOT = (
    Column("ranks", lambda root: _some(root.ranks)),
    Column("group", lambda root: _named(root.operation), left=True, stretch=True),
    Column("operation", lambda root: _numbered(root.operation.name, root.operation.seq), left=True),
    Column("launched by", lambda root: _some(root.operation.launched)),
    Column("dumped", lambda root: "yes" if root.has_dump else "no dump", left=True, wide_only=True),
    Column("host", lambda root: ", ".join(root.hosts) or "–", left=True, wide_only=True),
)
_GROUP = (
    Column("group", _named, left=True, stretch=True),
    Column("ranks", lambda group: short_ranks(group.ranks, 20)),
    Column("launched to", lambda group: _span(group.lowest_seq, group.highest_seq)),
    Column("behind", lambda group: _some(group.behind)),
    Column("in flight", "pending", wide_only=True),
    Column(
        "waits in",
        lambda group: _numbered(group.waits_on, group.waits_seq) or "–",
        left=True,
        wide_only=True,
    ),
)
_LOG = (
    Column("rank", "rank"),
    Column("about", "about", left=True),
    Column("line", "text", left=True, wrap=True),
)
_CADENCE = (
    Column("group", _named, left=True, stretch=True),
    Column("operation", "name", left=True),
    Column("sizes", "shape", left=True, wide_only=True),
    Column("count", "count"),
    Column("median", "period_ns"),
    Column("longest", "longest_ns"),
)


def _group_table(report: HangReport, *, show_all: bool) -> TableView | None:
    waiting = [g for g in report.groups if g.behind or g.pending or g.unknown or g.waits_on]
    shown = report.groups if show_all else waiting[:_FEW]
    return rows_table(
        "Process groups",
        _GROUP,
        shown,
        caption="latest collective launched, over members",
        notes=_others(len(report.groups) - len(shown), "group"),
        even_empty=True,
    )


def _stack_table(report: HangReport, *, show_all: bool) -> TableView | None:
    most = None if show_all else _FEW_CALLS
    return rows_table(
        "Python stacks",
        (
            Column("ranks", lambda stack: fold_ranks(stack.ranks)),
            Column("calls", lambda stack: " ← ".join(stack.calls[:most]), left=True, wrap=True),
        ),
        report.stacks if show_all else report.stacks[:_FEW],
        caption="innermost call first, rarest stack first",
    )


def _span(low: int | None, high: int | None) -> str:
    if low is None or high is None:
        return "–"
    return str(high) if low == high else f"{low}-{high}"


def _rank_table(report: HangReport, *, show_all: bool) -> TableView | None:
    """Ranks in the same position share a row, blamed ranks first."""
    same: dict[tuple[str, ...], list[RankPosition]] = {}
    for each in report.ranks:
        last = _numbered(each.last_name, each.last_seq) or "nothing"
        is_blamed = "blamed" if each.rank in report.culprits else ""  # separates them, not shown
        key = (last, each.last_group, each.host, each.call, is_blamed)
        same.setdefault(key, []).append(each)
    blamed = set(report.culprits)
    rows = sorted(same.items(), key=lambda item: (item[1][0].rank not in blamed, item[1][0].rank))
    shown = rows if show_all else rows[:_FEW]

    def position(title: str, i: int, *, stretch: bool = False, wide_only: bool = False) -> Column:
        return Column(
            title,
            lambda row: row[0][i] or "–",
            left=True,
            stretch=stretch,
            wide_only=wide_only,
            when=any(key[i] for key in same),
        )

    return rows_table(
        "Ranks",
        (
            Column("rank", lambda row: short_ranks([each.rank for each in row[1]], 20)),
            Column("waits for", lambda row: _some({rank for p in row[1] for rank in p.waits_for})),
            position("last launched", 0),
            position("of group", 1, stretch=True),
            position("host", 2, wide_only=True),
            position("in", 3, wide_only=True),
        ),
        shown,
        notes=_others(sum(len(positions) for _, positions in rows[len(shown) :]), "rank"),
        strong=(i for i, (_, found) in enumerate(shown) if found[0].rank in blamed),
    )


def _page(report: HangReport, options: RenderOptions) -> Page:
    listings = (
        Listing(title="Alternatives", sentences=report.alternatives),
        Listing(title="Next steps", sentences=report.next_steps, is_numbered=True),
    )
    headline, detail = headed(report.verdict)
    return Page(
        verdict=headline,
        detail=detail,
        origin=origin(report),
        sentences=report.why,
        listings=tuple(listing for listing in listings if listing.sentences),
        tables=present(hang_tables(report, show_all=options.show_all)),
        has_captions=False,
        remarks=report.notes,
    )


def _terminal_pages(report: HangReport, options: RenderOptions) -> Iterator[Page]:
    """The page; by default also versions that lose tables, then evidence, and last next steps."""
    page = _page(report, options)
    yield page
    if options.full or options.show_all:
        return
    more = replace(page, remarks=("Groups, ranks, logs and stacks: --full.",))
    yield from (replace(more, tables=page.tables[:number]) for number in (2, 1, 0))
    steps = tuple(listing for listing in page.listings if listing.is_numbered)
    few = replace(more, tables=(), sentences=page.sentences[:_FEW_SENTENCES])
    yield replace(few, listings=steps)
    short = tuple(
        replace(listing, sentences=listing.sentences[:_FEW_SENTENCES]) for listing in steps
    )
    yield replace(few, listings=short)
    yield replace(few, listings=short, sentences=page.sentences[:1])
    yield replace(few, listings=(), sentences=())


HANG = Document(
    kind=HangReport,
    noun="a hang",
    fix="make it again with: distprof hang DIR --format json",
    page=_page,
    terminal_pages=_terminal_pages,
)
