"""JSON Schema of ``report.json``, generated from the structs that are written.

``python -m distprof.documents.schema`` prints it; the shipped copy is
``distprof/documents/schemas/report.schema.json``, and a test keeps the two equal.
"""

from __future__ import annotations

import inspect
import sys
from importlib.resources import files
from typing import Any

import msgspec

from distprof.artefacts import REPORT_SCHEMA
from distprof.sections.report import Report

__all__ = [
    "DIALECT",
    "describe",
    "document_schema",
    "report_schema",
    "report_schema_page",
    "report_schema_text",
    "section",
    "shipped_schema_text",
]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

SCHEMA_FILE = "report.schema.json"


def report_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a saved report; times are int ns, sizes int bytes."""
    return document_schema(Report, REPORT_SCHEMA, "distprof report")


def document_schema(kind: type[msgspec.Struct], schema: str, title: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a document that is one struct with a field ``schema``.

    Args:
        kind: What is written.
        schema: What its ``schema`` says.
        title: For people.
    """
    (root,), definitions = msgspec.json.schema_components([kind])
    definitions[kind.__name__]["properties"]["schema"] = {"const": schema}
    for definition in definitions.values():
        _tidy(definition)
    return {
        "$schema": DIALECT,
        "$id": f"urn:distprof:{schema}",
        "title": title,
        **root,
        "$defs": definitions,
    }


def report_schema_text() -> str:
    """The schema as the shipped file holds it."""
    return msgspec.json.format(msgspec.json.encode(report_schema()), indent=2).decode() + "\n"


def shipped_schema_text() -> str:
    """The schema file that comes with the package."""
    return (files("distprof.documents") / "schemas" / SCHEMA_FILE).read_text(encoding="utf-8")


def describe(definition: dict[str, Any]) -> None:
    """Take the descriptions of a struct and its fields from its docstring."""
    summary, fields = _docstring_parts(definition.get("description", ""))
    definition["description"] = summary
    for name, value in definition.get("properties", {}).items():
        if name in fields:
            value["description"] = fields[name]
    for (name, text), value in zip(fields.items(), definition.get("prefixItems", ()), strict=False):
        value |= {"title": name, "description": text}


def _tidy(definition: dict[str, Any]) -> None:
    """Make a definition say what a reader needs: fields described, all written ones required."""
    describe(definition)
    for value in definition.get("properties", {}).values():
        value.pop("default", None)
    if "properties" in definition:
        definition["required"] = list(definition["properties"])


def _docstring_parts(docstring: str) -> tuple[str, dict[str, str]]:
    """The text before ``Args:``, and each argument's description on one line."""
    summary, _, arguments = inspect.cleandoc(docstring).partition("Args:\n")
    fields: dict[str, str] = {}
    name = ""
    for line in arguments.splitlines():
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if indent <= 4 and ": " in text:
            name, _, text = text.partition(": ")
            fields[name] = text
        elif text and name:
            fields[name] += f" {text}"
    return " ".join(summary.split()), fields


if __name__ == "__main__":
    sys.stdout.write(report_schema_text())


# The reference page of ``report.json``, generated from its JSON Schema ---------------------------

_INTRODUCTION = f"""\
# The saved report

<!-- generated: python -m distprof.documents.schema -->

`report.json` has `"schema": "{REPORT_SCHEMA}"`. Its JSON Schema (draft 2020-12) ships with the
package as `distprof/documents/schemas/report.schema.json`. Every field is always written; `null`
means not known and is never 0. Names ending in `_ns` are integer nanoseconds, `bytes` are bytes
(decimal prefixes when shown), `_ratio` is 0 to 1. A change of a
field's meaning changes the schema's number.
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
