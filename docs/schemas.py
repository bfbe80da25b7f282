"""Generates JSON Schemas (draft 2020-12) and reference pages from the structs that are written.

Times are int ns, sizes int bytes.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

import distprof
from distprof.artefacts.fabric_file import FABRIC_FILE
from distprof.artefacts.summary_file import SWEEP_FILE
from distprof.documents.document import Document

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLES = {
    "alert": "what distprof watch --alert delivers",
    "baseline": "distprof check --update-baseline",
    "check": "distprof check",
    "comparison": "distprof compare",
    "fabric": f"distprof {FABRIC_FILE}",
    "hang": "distprof hang",
    "history": "distprof history show",
    "operator": "distprof op",
    "plan": "distprof plan",
    "plan-lint": "distprof plan --lint",
    "report": "distprof report",
    "scaling": "distprof scale",
    "summary": "distprof scale --save-summaries",
    "sweep": f"distprof {SWEEP_FILE}",
    "watch": "distprof watch --once --format json",
}
"""The command that writes a document, or the file, by name of the document."""
_WITH_DEFAULTS = ("fabric", "sweep")
"""Files that several versions write and read: absent fields have defaults. Their schemas are with
those of the run directory. In all other documents, every field is always written."""
ABOUT = {
    "report": """\
# The saved report

<!-- generated: python -m docs.build --write -->

`report.json` has `"schema": "{schema}"`. Its JSON Schema (draft 2020-12) ships with the
package as `distprof/documents/schemas/report.schema.json`. Every field is always written. `null`
means unknown and is never 0. Fields ending in `_ns` are integer nanoseconds, `bytes` are bytes
(shown with decimal prefixes), and `_ratio` is 0 to 1. If the meaning of a field changes, the number
of the schema changes.
""",
    "hang": """\
# The hang report

`distprof hang --format json` writes `"schema": "{schema}"`. Its JSON Schema (draft 2020-12)
ships with the package as `distprof/documents/schemas/hang.schema.json`. Every field is always
written; `null` means unknown and is never 0. Times are integer nanoseconds since the epoch on the
clock of the rank that wrote them.
""",
}
"""The start of the reference page of a document, by name; other documents have no page."""
_PACKAGE = Path(distprof.__file__).parent


def schema_file(document: Document[Any]) -> Path:
    """The shipped schema of a document."""
    folder = "artefacts/schema" if document.name in _WITH_DEFAULTS else "documents/schemas"
    return _PACKAGE / folder / f"{document.name}.schema.json"


def schema_of(document: Document[Any]) -> dict[str, Any]:
    """JSON Schema of the struct that a document holds."""
    return json_schema(
        (document.kind,),
        schema=document.schema,
        title=TITLES[document.name],
        is_whole=document.name not in _WITH_DEFAULTS,
    )


def json_schema(
    kinds: Sequence[type[msgspec.Struct]],
    *,
    schema: str,
    title: str,
    identity: str = "",
    is_whole: bool = True,
) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a document, or of header and records of a line-wise file."""
    roots, definitions = msgspec.json.schema_components(kinds)
    structs = _structs(kinds)
    for name, definition in definitions.items():
        _describe(definition, structs.get(name))
        if is_whole:
            for value in definition.get("properties", {}).values():
                value.pop("default", None)
            if "properties" in definition:
                definition["required"] = list(definition["properties"])
    if schema:
        properties = definitions[kinds[0].__name__]["properties"]
        described = properties["schema"].get("description")
        properties["schema"] = {"const": schema}
        if described:
            properties["schema"]["description"] = described
    root = roots[0] if len(roots) == 1 else {"anyOf": list(roots)}
    return {
        "$schema": DIALECT,
        "$id": f"urn:distprof:{schema or identity}",
        "title": title,
        **root,
        "$defs": definitions,
    }


def schema_text(schema: dict[str, Any]) -> str:
    """A schema as the text of a file."""
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"


def schema_page(document: Document[Any]) -> str:
    """The reference page, Markdown: one table per struct, in the order of the document."""
    about = ABOUT[document.name].format(schema=document.schema)
    parts = schema_of(document)["$defs"].items()
    return "\n".join([about, *(section(name, part) for name, part in parts)])


def _describe(definition: dict[str, Any], struct: type[msgspec.Struct] | None) -> None:
    """Describe a struct by its docstring, and its fields by the comments next to them."""
    definition["description"] = " ".join(definition.get("description", "").split())
    fields = {} if struct is None else _descriptions(struct)
    for name, value in definition.get("properties", {}).items():
        if name in fields:
            value["description"] = fields[name]
    names = () if struct is None else struct.__struct_fields__
    for name, value in zip(names, definition.get("prefixItems", ()), strict=False):
        value |= {"title": name, "description": fields.get(name, "")}


def _structs(kinds: Sequence[type[msgspec.Struct]]) -> dict[str, type[msgspec.Struct]]:
    """The structs and those in their fields, by name."""
    found: dict[str, type[msgspec.Struct]] = {}
    pending: list[Any] = list(msgspec.inspect.multi_type_info(kinds))
    while pending:
        one = pending.pop()
        if isinstance(one, tuple):
            pending += one
        elif isinstance(one, msgspec.inspect.StructType):
            if one.cls.__name__ not in found:
                found[one.cls.__name__] = one.cls
                pending += one.fields
        elif isinstance(one, msgspec.inspect.Type | msgspec.inspect.Field):
            pending += [getattr(one, name) for name in one.__struct_fields__]
    return found


def _descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Name of each field, inherited ones included, to its description."""
    found: dict[str, str] = {}
    for kind in reversed(struct.__mro__):
        if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct:
            found |= _field_comments(kind)
    return found


@cache
def _field_comments(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Name of each field to the comment after it, or to those in the lines above it."""
    source = inspect.cleandoc(f"\n{inspect.getsource(kind)}")
    lines = source.splitlines()
    (body,) = ast.parse(source).body
    found: dict[str, str] = {}
    for field in body.body if isinstance(body, ast.ClassDef) else ():
        if not isinstance(field, ast.AnnAssign):
            continue
        _, _, behind = lines[(field.end_lineno or 1) - 1][field.end_col_offset :].partition("# ")
        first = field.lineno - 1
        while lines[first - 1].lstrip().startswith("# "):
            first -= 1
        above = [line.strip().removeprefix("# ") for line in lines[first : field.lineno - 1]]
        text = " ".join(above) or behind
        if text:
            found[ast.unparse(field.target)] = text
    return found


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
    for field, value in fields.items():
        meaning = _prose(value.get("description", "")).replace("|", "\\|")
        parts.append(f"| `{field}` | {_type(value)} | {meaning} |")
    return "\n".join([*parts, ""])


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return " or ".join(f"`{choice}`" for choice in value["enum"])
    if "anyOf" in value:
        return " or ".join(_type(option) for option in value["anyOf"])
    if "type" not in value:
        return "anything"
    if value["type"] == "array" and "prefixItems" in value:
        return f"list of {', '.join(_type(item) for item in value['prefixItems'])}"
    if value["type"] == "array":
        return f"list of {_type(value['items'])}"
    if value["type"] == "object":
        return f"object of {_type(value.get('additionalProperties', {}))}"
    return str(value["type"])


def _prose(text: str) -> str:
    """A docstring's text as Markdown."""
    return text.replace(":class:", "").replace("``", "`")
