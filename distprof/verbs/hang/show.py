"""A hang report's tables and headline, before somebody draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import msgspec

from distprof.errors import SchemaError
from distprof.escape import short_ranks
from distprof.formats import RenderOptions
from distprof.sections.table import TableColumn, TableView, counted
from distprof.units import fold_ranks, format_duration, name_ranks
from distprof.verbs.hang.result import HANG_SCHEMA, HangReport, HangState, RankPosition

__all__ = [
    "HANG_SCHEMA_FILE",
    "hang_reporters",
    "hang_schema",
    "hang_schema_page",
    "hang_schema_text",
    "hang_tables",
    "headline",
    "load_hang_report",
    "shipped_hang_schema_text",
]

_FEW_GROUPS = 8

_FEW_RANKS = 8

_FEW_LINES = 8

_FEW_CADENCES = 5

_FEW_CALLS = 6

_ALL = 1_000_000


def headline(report: HangReport) -> str:
    """What was read, in half a sentence."""
    entries = sum(position.entries for position in report.ranks)
    parts = [f"{counted(len(report.dumps), 'dump')} ({short_ranks(report.dumps)})"]
    parts.append(f"{counted(entries, 'operation')} in {counted(len(report.groups), 'group')}")
    if report.missing_dumps:
        parts.append(f"no dump of {name_ranks(report.missing_dumps)}")
    if report.confidence is not None:
        parts.append(f"verdict {report.confidence.value}")
    return " · ".join(parts)


def hang_tables(report: HangReport, *, show_all: bool) -> Iterator[TableView]:
    """Operation, groups, ranks, logs, stacks and cadence, those that there are."""
    if report.operation is not None and report.state is not HangState.NO_HANG:
        yield _operation_table(report)
    if report.groups and report.state is not HangState.NO_HANG:
        yield _group_table(report, show_all=show_all)
    if report.state is HangState.STUCK:
        yield _rank_table(report, show_all=show_all)
    if report.log_lines:
        yield _log_table(report, show_all=show_all)
    if report.stacks:
        yield _stack_table(report, show_all=show_all)
    if report.cadence:
        yield _cadence_table(report, show_all=show_all)


def _operation_table(report: HangReport) -> TableView:
    operation = report.operation
    assert operation is not None  # asked for before
    seq = "a message" if operation.seq is None else f"number {operation.seq}"
    inside = " ".join(part for part in (operation.shape, operation.dtype) if part)
    rows = [
        ("operation", f"{operation.name or 'not in any ring'}, {seq}"),
        ("group", f"{operation.description or '(no description)'}, named {operation.group}"),
        ("members", short_ranks(operation.group_ranks, 60)),
        ("launched by", short_ranks(operation.launched, 60) or "nobody seen"),
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
        columns=(TableColumn(title="", left=True), TableColumn(title="", left=True, wrap=True)),
        rows=tuple(rows),
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
            TableColumn(title="group", left=True, stretch=True),
            TableColumn(title="ranks"),
            TableColumn(title="launched to"),
            TableColumn(title="behind"),
            TableColumn(title="under way", wide_only=True),
            TableColumn(title="waits in", left=True, wide_only=True),
        ),
        rows=tuple(rows),
        notes=(f"{counted(left_out, 'other group')}: see --all.",) if left_out else (),
    )


def _span(low: int | None, high: int | None) -> str:
    if low is None or high is None:
        return "–"
    return str(high) if low == high else f"{low}-{high}"


def _rank_table(report: HangReport, *, show_all: bool) -> TableView:
    """Ranks that stand alike in one row: those blamed first."""
    alike: dict[tuple[str, ...], list[RankPosition]] = {}
    for position in report.ranks:
        alike.setdefault(_standing(position, report), []).append(position)
    blamed = set(report.culprits)
    rows = sorted(alike.items(), key=lambda item: (item[1][0].rank not in blamed, item[1][0].rank))
    chosen = rows if show_all else rows[:_FEW_RANKS]
    left_out = sum(len(positions) for _, positions in rows[len(chosen) :])
    kept = [i for i in range(4) if any(key[i] for key in alike)]
    columns = (
        TableColumn(title="last launched", left=True),
        TableColumn(title="of group", left=True, stretch=True),
        TableColumn(title="host", left=True, wide_only=True),
        TableColumn(title="in", left=True, wide_only=True),
    )
    return TableView(
        title="Ranks",
        columns=(
            TableColumn(title="rank"),
            TableColumn(title="waits for"),
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
        notes=(f"{counted(left_out, 'other rank')}: see --all.",) if left_out else (),
        strong=frozenset(i for i, (_, found) in enumerate(chosen) if found[0].rank in blamed),
    )


def _standing(position: RankPosition, report: HangReport) -> tuple[str, ...]:
    """What makes ranks alike; the last tells those blamed from others and is not shown."""
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
            TableColumn(title="rank"),
            TableColumn(title="about", left=True),
            TableColumn(title="line", left=True, wrap=True),
        ),
        rows=tuple(
            ("–" if line.rank is None else str(line.rank), line.about, line.text) for line in chosen
        ),
        notes=(f"{counted(left_out, 'other line')}: see --all.",) if left_out else (),
    )


def _stack_table(report: HangReport, *, show_all: bool) -> TableView:
    calls = _ALL if show_all else _FEW_CALLS
    return TableView(
        title="Python stacks",
        caption="innermost call first, the rarest stack first",
        columns=(TableColumn(title="ranks"), TableColumn(title="calls", left=True, wrap=True)),
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
        caption="time from one launch to the next equal one",
        columns=(
            TableColumn(title="group", left=True, stretch=True),
            TableColumn(title="operation", left=True),
            TableColumn(title="sizes", left=True, wide_only=True),
            TableColumn(title="count"),
            TableColumn(title="median"),
            TableColumn(title="longest"),
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


# A hang report as text, Markdown and JSON, and the JSON Schema of the last -----------------------

HANG_SCHEMA_FILE = "hang.schema.json"


def hang_reporters() -> dict[str, Callable[[HangReport, RenderOptions], str]]:
    """Name of a format to what writes it."""
    return {"text": _text, "json": _json, "md": _markdown}


def _text(report: HangReport, options: RenderOptions) -> str:
    from distprof.documents.text import printed

    return printed(_text_blocks(report, options), options)


def _text_blocks(report: HangReport, options: RenderOptions) -> Iterator[Any]:
    from rich.text import Text

    from distprof.documents.text import sentence, table_blocks
    from distprof.escape import plain, wrapped
    from distprof.verbs.hang.show import hang_tables, headline

    yield Text(wrapped(plain(report.verdict), options.width), style="bold")
    yield Text()
    yield sentence(headline(report), options.width, style="dim")
    for why in report.why:
        yield sentence(why, options.width)
    for title, sentences in _sections(report):
        yield Text()
        yield Text(title, style="bold")
        for number, text in enumerate(sentences, 1):
            mark = f"{number}. " if title == "Next" else "· "
            yield sentence(f"{mark}{text}", options.width)
    for view in hang_tables(report, show_all=options.show_all):
        yield Text()
        yield from table_blocks(view, options.width)
    for note in report.notes:
        yield sentence(f"· {note}", options.width, style="dim")


def _sections(report: HangReport) -> Iterator[tuple[str, tuple[str, ...]]]:
    for title, sentences in (("Or else", report.alternatives), ("Next", report.next_steps)):
        if sentences:
            yield title, sentences


def _markdown(report: HangReport, options: RenderOptions) -> str:
    from distprof.documents.markdown import joined

    return joined(_markdown_blocks(report, options), show_all=options.show_all)


def _markdown_blocks(report: HangReport, options: RenderOptions) -> Iterator[str]:
    from distprof.documents.markdown import sentence, table
    from distprof.verbs.hang.show import hang_tables, headline

    yield f"### {sentence(report.verdict)}"
    yield sentence(headline(report))
    if report.why:
        yield "\n".join(f"- {sentence(text)}" for text in report.why)
    for title, sentences in _sections(report):
        lines = "\n".join(f"- {sentence(text)}" for text in sentences)
        yield f"**{title}**\n\n{lines}"
    for view in hang_tables(report, show_all=options.show_all):
        notes = "".join(f"\n\n{sentence(note)}" for note in view.notes)
        yield f"**{sentence(view.title)}**\n\n{table(view)}{notes}"
    if report.notes:
        yield "\n".join(f"- {sentence(note)}" for note in report.notes)


def _json(report: HangReport, options: RenderOptions) -> str:  # noqa: ARG001 - a reporter's signature
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def load_hang_report(data: bytes, source: str) -> HangReport:
    """Read back what was written as JSON.

    Args:
        data: The file.
        source: What to call it in messages.

    Raises:
        SchemaError: If it is no hang report of this version.
    """
    try:
        report = msgspec.json.decode(data, type=HangReport)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _other_schema(source, str(error)) from error
    if report.schema != HANG_SCHEMA:
        raise _other_schema(source, f'"schema": "{report.schema[:60]}"')
    return report


def _other_schema(source: str, found: str) -> SchemaError:
    return SchemaError(source, expected=f'"schema": "{HANG_SCHEMA}"', found=found[:200])


def hang_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a hang report."""
    from distprof.documents.schema import DIALECT, describe

    (root,), definitions = msgspec.json.schema_components([HangReport])
    for definition in definitions.values():
        describe(definition)
        for value in definition.get("properties", {}).values():
            value.pop("default", None)
        if "properties" in definition:
            definition["required"] = list(definition["properties"])
    definitions["HangReport"]["properties"]["schema"] = {"const": HANG_SCHEMA}
    return {
        "$schema": DIALECT,
        "$id": f"urn:distprof:{HANG_SCHEMA}",
        "title": "distprof hang",
        **root,
        "$defs": definitions,
    }


def hang_schema_text() -> str:
    """The schema as the shipped file holds it."""
    return msgspec.json.format(msgspec.json.encode(hang_schema()), indent=2).decode() + "\n"


def hang_schema_page() -> str:
    """The reference page, Markdown: one table per struct."""
    from distprof.documents.schema import section

    head = f"""\
# The hang report

`distprof hang --format json` writes `"schema": "{HANG_SCHEMA}"`. Its JSON Schema (draft 2020-12)
ships with the package as `distprof/documents/schemas/{HANG_SCHEMA_FILE}`. Every field is always
written; `null` means not known and is never 0. Times are integer nanoseconds since the epoch on the
clock of the rank that wrote them.
"""
    parts = (section(name, part) for name, part in hang_schema()["$defs"].items())
    return "\n".join([head, *parts])


def shipped_hang_schema_text() -> str:
    """The schema file that comes with the package."""
    return (files("distprof.documents") / "schemas" / HANG_SCHEMA_FILE).read_text(encoding="utf-8")
