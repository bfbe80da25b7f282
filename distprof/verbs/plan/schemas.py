"""JSON Schemas of what ``distprof plan`` writes, generated from the structs that are written.

The shipped copies are ``distprof/documents/schemas/plan.schema.json`` and ``plan-lint.schema.json``; a
test keeps them equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec

from distprof.documents.schema import DIALECT, describe
from distprof.verbs.plan.configuration import LINT_SCHEMA, Lint
from distprof.verbs.plan.result import PLAN_SCHEMA, Plan

__all__ = ["plan_schema", "plan_schema_texts", "shipped_plan_schema_text"]

_DOCUMENTS: dict[str, tuple[type[msgspec.Struct], str, str]] = {
    "plan.schema.json": (Plan, PLAN_SCHEMA, "distprof plan"),
    "plan-lint.schema.json": (Lint, LINT_SCHEMA, "distprof plan --lint"),
}


def plan_schema(file: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of one document; times are int ns, sizes int bytes.

    Args:
        file: ``plan.schema.json`` or ``plan-lint.schema.json``.
    """
    kind, schema, title = _DOCUMENTS[file]
    (root,), definitions = msgspec.json.schema_components([kind])
    for definition in definitions.values():
        describe(definition)
        for value in definition.get("properties", {}).values():
            value.pop("default", None)
        if "properties" in definition:
            definition["required"] = list(definition["properties"])
    definitions[kind.__name__]["properties"]["schema"] = {"const": schema}
    return {
        "$schema": DIALECT,
        "$id": f"urn:distprof:{schema}",
        "title": title,
        **root,
        "$defs": definitions,
    }


def plan_schema_texts() -> Iterator[tuple[str, str]]:
    """Each schema: name of its file, and what the file holds."""
    for file in _DOCUMENTS:
        text = msgspec.json.format(msgspec.json.encode(plan_schema(file)), indent=2).decode()
        yield file, f"{text}\n"


def shipped_plan_schema_text(file: str) -> str:
    """The schema file that comes with the package."""
    return (files("distprof.documents") / "schemas" / file).read_text(encoding="utf-8")
