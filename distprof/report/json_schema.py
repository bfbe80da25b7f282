"""JSON Schema of ``report.json``, generated from the structs that are written.

``python -m distprof.report.json_schema`` prints it; the shipped copy is
``distprof/report/schema/report.schema.json``, and a test keeps the two equal.
"""

from __future__ import annotations

import inspect
import sys
from importlib.resources import files
from typing import Any

import msgspec

from distprof.artefacts import REPORT_SCHEMA
from distprof.report.model import Report

__all__ = [
    "DIALECT",
    "describe",
    "document_schema",
    "report_schema",
    "report_schema_text",
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
    return (files("distprof.report") / "schema" / SCHEMA_FILE).read_text(encoding="utf-8")


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
