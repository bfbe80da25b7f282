"""JSON Schemas and their reference pages, generated from the structs that are written."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(
    kinds: Sequence[type[msgspec.Struct]],
    *,
    schema: str,
    title: str,
    identity: str = "",
    is_whole: bool = True,
) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a document, or of a line in a line-wise file.

    Args:
        kinds: The struct that is written; for a line-wise file, those of the header and the record.
        schema: Value of the field ``schema`` of the first struct; empty if it has none.
        title: Human-readable title.
        identity: Identity of the schema if ``schema`` is empty.
        is_whole: Whether every field is always written; else fields with a default may be absent.
    """
    roots, definitions = msgspec.json.schema_components(kinds)
    inherited = _inherited_descriptions()
    for name, definition in definitions.items():
        _describe(definition, inherited.get(name, {}))
        if is_whole:
            _require_all(definition)
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


def schema_page(about: str, schema: dict[str, Any]) -> str:
    """A reference page in Markdown: one table per struct."""
    return "\n".join([about, *(section(name, part) for name, part in schema["$defs"].items())])


def _describe(definition: dict[str, Any], inherited: Mapping[str, str]) -> None:
    """Describe a struct and its fields with its docstring and those of its bases."""
    summary, fields = _docstring_parts(definition.get("description", ""))
    definition["description"] = summary
    for name, value in definition.get("properties", {}).items():
        if name in fields or name in inherited:
            value["description"] = fields.get(name) or inherited[name]
    for (name, text), value in zip(fields.items(), definition.get("prefixItems", ()), strict=False):
        value |= {"title": name, "description": text}


def _inherited_descriptions() -> dict[str, dict[str, str]]:
    """Name of a struct to the descriptions of its inherited fields."""
    found: dict[str, dict[str, str]] = {}
    pending = list(msgspec.Struct.__subclasses__())
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        for base in kind.__mro__[1:]:
            if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
                found.setdefault(kind.__name__, {}).update(_docstring_parts(base.__doc__ or "")[1])
    return found


def _require_all(definition: dict[str, Any]) -> None:
    """Mark every field of a definition as required."""
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
