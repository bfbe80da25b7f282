"""JSON Schemas of what ``distprof plan`` writes, generated from the structs that are written.

The shipped copies are in ``distprof/documents/schemas``; a
test keeps them equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec

from distprof.artefacts.baseline_file import BASELINE_SCHEMA, BaselineFile
from distprof.artefacts.summary_file import SUMMARY_SCHEMA, SummaryFile
from distprof.documents.schema import DIALECT, describe, document_schema
from distprof.verbs.compare.result import COMPARISON_SCHEMA, Comparison
from distprof.verbs.gate.check import CHECK_SCHEMA, CheckResult
from distprof.verbs.history.show import ANSWER_SCHEMA, HistoryAnswer
from distprof.verbs.history.timeline import HISTORY_SCHEMA, History
from distprof.verbs.plan.configuration import LINT_SCHEMA, Lint
from distprof.verbs.plan.result import PLAN_SCHEMA, Plan
from distprof.verbs.sweep.result import SCALING_SCHEMA, ScalingReport

__all__ = [
    "plan_schema",
    "plan_schema_texts",
    "shipped_plan_schema_text",
    "shipped_verb_schema_text",
    "verb_schema_texts",
]

_PLAN_DOCUMENTS: dict[str, tuple[type[msgspec.Struct], str, str]] = {
    "plan.schema.json": (Plan, PLAN_SCHEMA, "distprof plan"),
    "plan-lint.schema.json": (Lint, LINT_SCHEMA, "distprof plan --lint"),
}


def plan_schema(file: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of one document; times are int ns, sizes int bytes.

    Args:
        file: ``plan.schema.json`` or ``plan-lint.schema.json``.
    """
    kind, schema, title = _PLAN_DOCUMENTS[file]
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
    for file in _PLAN_DOCUMENTS:
        text = msgspec.json.format(msgspec.json.encode(plan_schema(file)), indent=2).decode()
        yield file, f"{text}\n"


def shipped_plan_schema_text(file: str) -> str:
    """The schema file that comes with the package."""
    return (files("distprof.documents") / "schemas" / file).read_text(encoding="utf-8")


# JSON Schemas of what verbs write about several runs, generated from the structs that are wri ----

_DOCUMENTS: dict[str, tuple[type[msgspec.Struct], str, str]] = {
    "scaling.schema.json": (ScalingReport, SCALING_SCHEMA, "distprof scale"),
    "comparison.schema.json": (Comparison, COMPARISON_SCHEMA, "distprof compare"),
    "check.schema.json": (CheckResult, CHECK_SCHEMA, "distprof check"),
    "baseline.schema.json": (BaselineFile, BASELINE_SCHEMA, "distprof check --update-baseline"),
    "summary.schema.json": (SummaryFile, SUMMARY_SCHEMA, "distprof scale --save-summaries"),
    "history.schema.json": (History, HISTORY_SCHEMA, "distprof history show"),
    "history-answer.schema.json": (HistoryAnswer, ANSWER_SCHEMA, "distprof history query"),
}


def verb_schema_texts() -> Iterator[tuple[str, str]]:
    """Each schema: name of its file, and what the file holds."""
    for file, (kind, schema, title) in _DOCUMENTS.items():
        schema_ = document_schema(kind, schema, title)
        yield file, msgspec.json.format(msgspec.json.encode(schema_), indent=2).decode() + "\n"


def shipped_verb_schema_text(file: str) -> str:
    """The schema file that comes with the package."""
    return (files("distprof.documents") / "schemas" / file).read_text(encoding="utf-8")
