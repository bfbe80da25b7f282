"""Headline, tables and document of a hang report."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from distprof.documents.document import Document
from distprof.documents.page import Listing, Page
from distprof.escape import short_ranks
from distprof.formats import RenderOptions
from distprof.sections.table import Column, TableView, counted
from distprof.units import fold_ranks, format_duration, name_ranks
from distprof.verbs.hang.result import HANG_SCHEMA, HangReport, HangState, RankPosition

_FEW_GROUPS = 8

_FEW_RANKS = 8

_FEW_LINES = 8

_FEW_CADENCES = 5

_FEW_CALLS = 6

_FEW_SENTENCES = 3
"""Sentences of evidence in the short text."""

_ALL = 1_000_000


def headline(report: HangReport) -> str:
    """One line that counts the dumps, operations and groups read."""
    if not report.dumps:
        lines = counted(len(report.log_lines), "line")
        return f"no dumps · {lines} about the end of the job · verdict inferred"
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


def hang_tables(report: HangReport, *, show_all: bool) -> Iterator[TableView]:
    """Tables of the operation, causes, groups, ranks, logs, stacks and cadence, if any."""
    if report.operation is not None and report.state is not HangState.NO_HANG:
        yield _operation_table(report)
    if len(report.roots) > 1:
        yield _root_table(report, show_all=show_all)
    if report.groups and report.state is not HangState.NO_HANG:
        yield _group_table(report, show_all=show_all)
    if report.state is HangState.STUCK and report.ranks:
        yield _rank_table(report, show_all=show_all)
    if report.log_lines:
        yield _log_table(report, show_all=show_all)
    if report.stacks:
        yield _stack_table(report, show_all=show_all)
    if report.cadence:
        yield _cadence_table(report, show_all=show_all)


def _operation_table(report: HangReport) -> TableView:
    operation = report.operation
    assert operation is not None  # checked by the caller
    seq = "a message" if operation.seq is None else f"number {operation.seq}"
    inside = " ".join(part for part in (operation.shape, operation.dtype) if part)
    rows = [
        ("operation", f"{operation.name or 'not in any ring'}, {seq}"),
        ("group", f"{operation.description or '(no description)'}, named {operation.group}"),
        ("members", short_ranks(operation.group_ranks, 60)),
        ("launched by", short_ranks(operation.launched, 60) or "no rank seen"),
        ("missing", short_ranks(operation.missing, 60) or "–"),
    ]
    if inside:
        rows.insert(1, ("sizes", inside))
    if operation.unknown:
        rows.append(("no dump", short_ranks(operation.unknown, 60)))
    if operation.timeout_ms is not None:
        rows.append(("timeout", format_duration(operation.timeout_ms * 1_000_000)))
    if operation.frame:
        rows.append(("launched in", operation.frame))
    return TableView(
        title="First divergent operation",
        columns=(Column(title="", left=True), Column(title="", left=True, wrap=True)),
        rows=tuple(rows),
    )


def _root_table(report: HangReport, *, show_all: bool) -> TableView:
    """All independent causes, the earliest first."""
    chosen = report.roots if show_all else report.roots[:_FEW_RANKS]
    left_out = len(report.roots) - len(chosen)
    rows = [
        (
            short_ranks(root.ranks, 20) or "–",
            root.operation.description or root.operation.group or "(unnamed)",
            f"{root.operation.name} {'' if (seq := root.operation.seq) is None else seq}".strip(),
            short_ranks(root.operation.launched, 20) or "–",
            "yes" if root.has_dump else "no dump",
            ", ".join(root.hosts) or "–",
        )
        for root in chosen
    ]
    return TableView(
        title="Independent causes",
        columns=(
            Column(title="ranks"),
            Column(title="group", left=True, stretch=True),
            Column(title="operation", left=True),
            Column(title="launched by"),
            Column(title="dumped", left=True, wide_only=True),
            Column(title="host", left=True, wide_only=True),
        ),
        rows=tuple(rows),
        notes=(f"{counted(left_out, 'other cause')}: --all.",) if left_out else (),
    )


def _group_table(report: HangReport, *, show_all: bool) -> TableView:
    waiting = [g for g in report.groups if g.behind or g.pending or g.unknown or g.waits_on]
    chosen = report.groups if show_all else waiting[:_FEW_GROUPS]
    left_out = len(report.groups) - len(chosen)
    rows = [
        (
            group.description or group.group or "(unnamed)",
            short_ranks(group.ranks, 20),
            _span(group.lowest_seq, group.highest_seq),
            short_ranks(group.behind, 20) or "–",
            f"{group.pending:,}",
            f"{group.waits_on} {'' if group.waits_seq is None else group.waits_seq}".strip() or "–",
        )
        for group in chosen
    ]
    return TableView(
        title="Process groups",
        caption="latest collective launched, over members",
        columns=(
            Column(title="group", left=True, stretch=True),
            Column(title="ranks"),
            Column(title="launched to"),
            Column(title="behind"),
            Column(title="in flight", wide_only=True),
            Column(title="waits in", left=True, wide_only=True),
        ),
        rows=tuple(rows),
        notes=(f"{counted(left_out, 'other group')}: --all.",) if left_out else (),
    )


def _span(low: int | None, high: int | None) -> str:
    if low is None or high is None:
        return "–"
    return str(high) if low == high else f"{low}-{high}"


def _rank_table(report: HangReport, *, show_all: bool) -> TableView:
    """Ranks in the same position share a row, blamed ranks first."""
    same: dict[tuple[str, ...], list[RankPosition]] = {}
    for position in report.ranks:
        same.setdefault(_position_key(position, report), []).append(position)
    blamed = set(report.culprits)
    rows = sorted(same.items(), key=lambda item: (item[1][0].rank not in blamed, item[1][0].rank))
    chosen = rows if show_all else rows[:_FEW_RANKS]
    left_out = sum(len(positions) for _, positions in rows[len(chosen) :])
    kept = [i for i in range(4) if any(key[i] for key in same)]
    columns = (
        Column(title="last launched", left=True),
        Column(title="of group", left=True, stretch=True),
        Column(title="host", left=True, wide_only=True),
        Column(title="in", left=True, wide_only=True),
    )
    return TableView(
        title="Ranks",
        columns=(
            Column(title="rank"),
            Column(title="waits for"),
            *(columns[i] for i in kept),
        ),
        rows=tuple(
            (
                short_ranks([position.rank for position in positions], 20),
                _waited_for(positions),
                *(key[i] or "–" for i in kept),
            )
            for key, positions in chosen
        ),
        notes=(f"{counted(left_out, 'other rank')}: --all.",) if left_out else (),
        strong=frozenset(i for i, (_, found) in enumerate(chosen) if found[0].rank in blamed),
    )


def _position_key(position: RankPosition, report: HangReport) -> tuple[str, ...]:
    """Key of ranks in the same position; the last item separates blamed ranks and is not shown."""
    last = f"{position.last_name} {'' if position.last_seq is None else position.last_seq}".strip()
    is_blamed = "blamed" if position.rank in report.culprits else ""
    return last or "nothing", position.last_group, position.host, position.call, is_blamed


def _waited_for(positions: list[RankPosition]) -> str:
    return short_ranks({rank for p in positions for rank in p.waits_for}, 20) or "–"


def _log_table(report: HangReport, *, show_all: bool) -> TableView:
    blamed = set(report.culprits)
    lines = sorted(report.log_lines, key=lambda line: line.rank not in blamed)
    chosen = lines if show_all else lines[:_FEW_LINES]
    left_out = len(lines) - len(chosen)
    return TableView(
        title="Logs",
        columns=(
            Column(title="rank"),
            Column(title="about", left=True),
            Column(title="line", left=True, wrap=True),
        ),
        rows=tuple(
            ("–" if line.rank is None else str(line.rank), line.about, line.text) for line in chosen
        ),
        notes=(f"{counted(left_out, 'other line')}: --all.",) if left_out else (),
    )


def _stack_table(report: HangReport, *, show_all: bool) -> TableView:
    calls = _ALL if show_all else _FEW_CALLS
    return TableView(
        title="Python stacks",
        caption="innermost call first, rarest stack first",
        columns=(Column(title="ranks"), Column(title="calls", left=True, wrap=True)),
        rows=tuple(
            (fold_ranks(stack.ranks), " ← ".join(stack.calls[:calls]))
            for stack in report.stacks[: _ALL if show_all else _FEW_RANKS]
        ),
    )


def _cadence_table(report: HangReport, *, show_all: bool) -> TableView:
    found = sorted(report.cadence, key=lambda item: -item.count)
    chosen = found if show_all else found[:_FEW_CADENCES]
    return TableView(
        title="Cadence",
        caption="time from one launch to the next of the same operation",
        columns=(
            Column(title="group", left=True, stretch=True),
            Column(title="operation", left=True),
            Column(title="sizes", left=True, wide_only=True),
            Column(title="count"),
            Column(title="median"),
            Column(title="longest"),
        ),
        rows=tuple(
            (
                item.description or item.group or "(unnamed)",
                item.name,
                item.shape,
                f"{item.count:,}",
                format_duration(item.period_ns),
                format_duration(item.longest_ns),
            )
            for item in chosen
        ),
    )


def _page(report: HangReport, options: RenderOptions) -> Page:
    listings = (
        Listing(title="Alternatives", sentences=report.alternatives),
        Listing(title="Next steps", sentences=report.next_steps, is_numbered=True),
    )
    return Page(
        verdict=report.verdict,
        headline=headline(report),
        sentences=report.why,
        listings=tuple(listing for listing in listings if listing.sentences),
        tables=tuple(hang_tables(report, show_all=options.show_all)),
        has_captions=False,
        remarks=report.notes,
    )


def _terminal_pages(report: HangReport, options: RenderOptions) -> Iterator[Page]:
    """The page; by default also versions that lose tables, then evidence, and last next steps."""
    page = _page(report, options)
    yield page
    if not (options.full or options.show_all):
        yield from _shorter(page)


def _shorter(page: Page) -> Iterator[Page]:
    """Shorter and shorter versions of the page."""
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
    schema=HANG_SCHEMA,
    noun="a hang",
    title="distprof hang",
    fix="make it again with: distprof hang DIR --format json",
    page=_page,
    terminal_pages=_terminal_pages,
    about=f"""\
# The hang report

`distprof hang --format json` writes `"schema": "{HANG_SCHEMA}"`. Its JSON Schema (draft 2020-12)
ships with the package as `distprof/documents/schemas/hang.schema.json`. Every field is always
written; `null` means unknown and is never 0. Times are integer nanoseconds since the epoch on the
clock of the rank that wrote them.
""",
)
