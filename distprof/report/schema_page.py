"""The reference page of ``report.json``, generated from its JSON Schema.

``python -m distprof.report.schema_page`` prints it; ``docs/reference/report-schema.md`` is a copy
that a test keeps equal.
"""

from __future__ import annotations

import sys
from typing import Any

from distprof.artefacts import REPORT_SCHEMA
from distprof.report.json_schema import report_schema

__all__ = ["report_schema_page", "section"]

_INTRODUCTION = f"""\
# The saved report

<!-- generated: python -m distprof.report.schema_page -->

`report.json` has `"schema": "{REPORT_SCHEMA}"`. Its JSON Schema (draft 2020-12) ships with the
package as `distprof/report/schema/report.schema.json`. Every field is always written; `null` means
not known and is never 0. Names ending in `_ns` are integer nanoseconds, `bytes` are bytes (decimal
prefixes when shown), `_ratio` is 0 to 1. A change of a field's meaning changes the schema's number.
"""


def report_schema_page() -> str:
    """The page, Markdown: one table per struct, in the order of the report."""
    schema = report_schema()
    sections = [section(name, definition) for name, definition in schema["$defs"].items()]
    return "\n".join([_INTRODUCTION, *sections])


def section(name: str, definition: dict[str, Any]) -> str:
    """One struct or enumeration as a section of Markdown."""
    parts = [f"## {name}", ""]
    if definition.get("description"):
        parts += [_prose(definition["description"]), ""]
    if "enum" in definition:
        parts += ["One of " + ", ".join(f"`{value}`" for value in definition["enum"]) + ".", ""]
        return "\n".join(parts)
    fields = definition.get("properties") or {
        value["title"]: value
        for value in definition["prefixItems"]  # written as a list
    }
    parts += ["| field | type | meaning |", "|---|---|---|"]
    parts += [
        f"| `{field}` | {_type(value)} | {_cell(value.get('description', ''))} |"
        for field, value in fields.items()
    ]
    return "\n".join([*parts, ""])


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return " or ".join(f"`{choice}`" for choice in value["enum"])
    if "type" not in value and "anyOf" not in value:
        return "anything"
    if "anyOf" in value:
        return " or ".join(_type(option) for option in value["anyOf"])
    if value["type"] == "array" and "prefixItems" in value:
        return f"list of {', '.join(_type(item) for item in value['prefixItems'])}"
    if value["type"] == "array":
        return f"list of {_type(value['items'])}"
    if value["type"] == "object":
        return f"object of {_type(value.get('additionalProperties', {}))}"
    return str(value["type"])


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|")


def _prose(text: str) -> str:
    """A docstring's text as Markdown."""
    return text.replace(":class:", "").replace("``", "`")


if __name__ == "__main__":
    sys.stdout.write(report_schema_page())
