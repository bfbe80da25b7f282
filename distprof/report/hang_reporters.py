"""A hang report as text, Markdown and JSON, and the JSON Schema of the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import msgspec

from distprof.analyzers.hang.result import HANG_SCHEMA, HangReport
from distprof.errors import SchemaError
from distprof.report.registry import RenderOptions

__all__ = [
    "HANG_SCHEMA_FILE",
    "hang_reporters",
    "hang_schema",
    "hang_schema_page",
    "hang_schema_text",
    "load_hang_report",
    "shipped_hang_schema_text",
]

HANG_SCHEMA_FILE = "hang.schema.json"


def hang_reporters() -> dict[str, Callable[[HangReport, RenderOptions], str]]:
    """Name of a format to what writes it."""
    return {"text": _text, "json": _json, "md": _markdown}


def _text(report: HangReport, options: RenderOptions) -> str:
    from distprof.report.text import printed

    return printed(_text_blocks(report, options), options)


def _text_blocks(report: HangReport, options: RenderOptions) -> Iterator[Any]:
    from rich.text import Text

    from distprof.report.escape import plain, wrapped
    from distprof.report.hang_view import hang_tables, headline
    from distprof.report.text import sentence, table_blocks

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
    from distprof.report.markdown import joined

    return joined(_markdown_blocks(report, options), show_all=options.show_all)


def _markdown_blocks(report: HangReport, options: RenderOptions) -> Iterator[str]:
    from distprof.report.hang_view import hang_tables, headline
    from distprof.report.markdown import sentence, table

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
    from distprof.report.json_schema import DIALECT, describe

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
    from distprof.report.schema_page import section

    head = f"""\
# The hang report

`distprof hang --format json` writes `"schema": "{HANG_SCHEMA}"`. Its JSON Schema (draft 2020-12)
ships with the package as `distprof/report/schema/{HANG_SCHEMA_FILE}`. Every field is always
written; `null` means not known and is never 0. Times are integer nanoseconds since the epoch on the
clock of the rank that wrote them.
"""
    parts = (section(name, part) for name, part in hang_schema()["$defs"].items())
    return "\n".join([head, *parts])


def shipped_hang_schema_text() -> str:
    """The schema file that comes with the package."""
    return (files("distprof.report") / "schema" / HANG_SCHEMA_FILE).read_text(encoding="utf-8")
