"""Generates everything derived from the code: reference pages, schemas, llms.txt, README's demo.

::

    python -m docs.build --check    # exit code 1 and the names of pages that differ
    python -m docs.build --write    # update them
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from distprof.bounds import Bound
from distprof.config import CONFIG_FILE, ConfigFile
from distprof.rules import all_rules
from distprof.rules.base import EXAMPLES_FILE, Rule
from distprof.run.records import RECORD_TABLES
from distprof.run.tables import TABLES
from distprof.schema import ABSENT, Column, TableSchema
from distprof.sections.metrics import METRICS, Metric
from docs.bounds import all_bounds
from docs.clock_picture import clock_picture
from docs.command_line import command_line_page
from docs.contents import DOCS
from docs.demo import with_demo
from docs.documents import ALL_DOCUMENTS
from docs.grafana import dashboard_text
from docs.llms import llms_text
from docs.rule_examples import examples_text, rule_examples
from docs.run_directory import run_directory_page, schema_files
from docs.schemas import ABOUT, DIALECT, schema_file, schema_of, schema_page, schema_text

__all__ = [
    "columns_page",
    "limits_page",
    "main",
    "metrics_page",
    "pages",
    "rule_page",
    "rules_index",
    "stale",
]

ROOT = DOCS.parent
REFERENCE = DOCS / "reference"
FORMULAS = DOCS / "concepts" / "formulas.md"


def pages() -> Iterator[tuple[Path, str]]:
    """Every generated file: its path and its text."""
    made = dict(_pages_of_code())
    yield from made.items()

    def read(page: str) -> str:
        path = (DOCS / page).resolve()
        return made[path] if path in made else path.read_text(encoding="utf-8")

    yield DOCS / "llms.txt", llms_text(read)
    readme = ROOT / "README.md"
    yield readme, with_demo(readme.read_text(encoding="utf-8"))


def _pages_of_code() -> Iterator[tuple[Path, str]]:
    rules = all_rules()
    examples = rule_examples(rules)
    yield EXAMPLES_FILE, examples_text(examples)
    yield REFERENCE / "rules" / "README.md", rules_index(rules)
    for rule in rules:
        yield REFERENCE / "rules" / f"{rule.name}.md", rule_page(rule, examples[rule.code])
    yield REFERENCE / "columns.md", columns_page((*TABLES, *RECORD_TABLES))
    yield REFERENCE / "command-line.md", command_line_page()
    yield REFERENCE / "limits.md", limits_page(all_bounds())
    yield REFERENCE / "metrics.md", metrics_page(METRICS)
    for document in ALL_DOCUMENTS:
        yield schema_file(document), schema_text(schema_of(document))
        if document.name in ABOUT:
            yield REFERENCE / f"{document.name}-schema.md", schema_page(document)
    yield ROOT / "distprof" / "documents" / "schemas" / "config.schema.json", config_schema_text()
    yield from schema_files()
    yield REFERENCE / "run-directory.md", run_directory_page()
    yield DOCS / "how-to" / "one-clock.svg", clock_picture()
    yield DOCS / "how-to" / "grafana-dashboard.json", dashboard_text()


_METRICS = """\
# Metrics

<!-- generated: python -m docs.build --write -->

`report.metrics()` returns these numbers by name. A name ends in its unit, and its meaning never
changes. What is unknown is left out and is never 0.

| name | meaning |
|---|---|
"""


def metrics_page(metrics: Sequence[Metric]) -> str:
    """The page of the numbers for training loggers."""
    return _METRICS + "".join(f"| `{one.name}` | {one.meaning} |\n" for one in metrics)


_LIMITS = """\
# Limits

What distprof reads at most, for each kind of file. A file that is too large is refused with an
error that names the file and the limit, or it is read up to the limit, and the report says so. An
entry of the cache beyond its limit is made again from the trace.

- Sizes count unpacked bytes where a file may be gzipped. A trace that unpacks to more than 100
  times its size, or a log to more than 250 times, is read only up to that point. So is an archive
  that holds next to nothing.
- A file is read up to the size that it had when it was opened, even if it grows.
- Pipes, devices and sockets are refused. Where a file is read only once, such as `--config` or
  `fabric`, a pipe that another program writes to is accepted: `distprof fabric <(ssh host cat
  nccl.log)`. distprof waits a minute for the next byte.
- Seconds are CPU time for a million bytes of the most expensive content. Real files take a tenth
  or less.

| reads | MB | rows or values | names or ranks | nesting | beyond | CPU s per MB |
|---|---|---|---|---|---|---|
"""


def limits_page(bounds: Sequence[Bound]) -> str:
    """The page of the limits of every reader."""
    rows = (
        f"| {bound.reads.replace('|', ' ')} | {bound.num_bytes / 1e6:,.0f} | {_count(bound.rows)} "
        f"| {_count(bound.names)} | {_count(bound.depth)} | {bound.beyond} "
        f"| {bound.seconds_per_mb:g} |\n"
        for bound in bounds
    )
    return _LIMITS + "".join(rows)


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def config_schema_text() -> str:
    """JSON Schema of ``distprof.toml``, with which editors complete and check the file."""
    (root,), definitions = msgspec.json.schema_components([ConfigFile])
    for definition in definitions.values():
        definition["description"] = " ".join(definition["description"].split())
        definition["properties"] = {
            name: _toml_value(value) for name, value in definition["properties"].items()
        }
    schema = {
        "$schema": DIALECT,
        "$id": "urn:distprof:distprof.config/1",
        "title": CONFIG_FILE,
        **root,
        "$defs": definitions,
    }
    return schema_text(schema)


def _toml_value(value: dict[str, Any]) -> dict[str, Any]:
    """A key's schema for TOML, which has no null; an absent table has no value."""
    given = [each for each in value.get("anyOf", ()) if each != {"type": "null"}]
    said = given[0] if len(given) == 1 else value
    return {key: part for key, part in said.items() if key != "default" or not _is_table(part)}


def _is_table(value: object) -> bool:
    return isinstance(value, dict | list)


def rule_page(rule: Rule, example: Sequence[str]) -> str:
    """The rule's page, with links to the cited sections of the formula sheet.

    Args:
        rule: The rule.
        example: Its messages about its bad fixture.
    """
    page, heading, sources = rule.page_with(example).partition("\n## Sources\n")
    if "Formula sheet" in sources:
        for title in re.findall(r"^## (.+)$", FORMULAS.read_text(encoding="utf-8"), re.MULTILINE):
            link = f"../../concepts/formulas.md#{title.lower().replace(' ', '-')}"
            sources = sources.replace(f'"{title}"', f'["{title}"]({link})')
    return page + heading + sources


def rules_index(rules: Sequence[Rule]) -> str:
    """The list of all rules."""
    head = (
        "# Rules\n\n"
        "What `distprof analyze` looks for. Each finding names its rule; `distprof rule CODE` "
        "shows the same page in a terminal. Change limits in `distprof.toml`.\n\n"
        "| code | name | severity | detects |\n|---|---|---|---|\n"
    )
    rows = (
        f"| {rule.code} | [{rule.name}]({rule.name}.md) | {rule.severity.value} "
        f"| {rule.summary} |\n"
        for rule in rules
    )
    return head + "".join(rows)


def columns_page(tables: Sequence[TableSchema]) -> str:
    """The page of all tables of a rank and their columns."""
    head = (
        "# Tables and columns\n\n"
        "Each rank has one set of tables; those from step_log on hold records of probes in "
        "addition to the trace. Times are integers in nanoseconds on the rank's own clock. "
        f"A missing integer is {ABSENT} inside distprof and `NA` in pandas, and a missing string "
        "is empty. Neither ever means 0.\n"
    )
    return head + "".join(_table_section(table) for table in tables)


def _table_section(table: TableSchema) -> str:
    rows = "".join(_column_row(column) for column in table)
    head = "| column | dtype | unit | may be empty | meaning |\n|---|---|---|---|---|\n"
    return f"\n## {table.name}\n\n{table.doc}\n\n{head}{rows}"


def _column_row(column: Column) -> str:
    nullable = "yes" if column.nullable else ""
    return f"| `{column.name}` | {column.dtype} | {column.unit} | {nullable} | {column.doc} |\n"


def stale(wanted: Iterable[tuple[Path, str]]) -> list[Path]:
    """Pages that are missing or differ, and pages of rules that no longer exist."""
    expected = dict(wanted)
    known = set((REFERENCE / "rules").glob("*.md")) - set(expected)
    differing = [
        path
        for path, text in expected.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    return sorted([*differing, *known])


def write(wanted: Iterable[tuple[Path, str]]) -> None:
    """Write all pages and remove those of rules that no longer exist."""
    expected = dict(wanted)
    for path in stale(expected.items()):
        if path in expected:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(expected[path], encoding="utf-8")
        else:
            path.unlink()


def main(arguments: Sequence[str]) -> int:
    """Check or write the pages; return the exit code."""
    if list(arguments) == ["--write"]:
        write(pages())
        return 0
    if list(arguments) != ["--check"]:
        sys.stderr.write("usage: python -m docs.build --check | --write\n")
        return 2
    old = stale(pages())
    for path in old:
        sys.stderr.write(f"{path.relative_to(ROOT)} is out of date\n")
    if old:
        sys.stderr.write("to update generated pages: python3 tasks.py docs --write\n")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
