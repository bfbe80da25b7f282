"""Every field that a report writes says what it means: unit, and what null stands for."""

import ast
from pathlib import Path

import pytest

import distprof
from distprof.documents.saved import REPORT
from docs.schemas import schema_of

PUBLIC = {"Config", "Finding", "Report", "Run"}
"""Classes whose docstrings users read with ``help()``."""

STRUCTS = {
    name: definition
    for name, definition in schema_of(REPORT)["$defs"].items()
    if "properties" in definition
}


@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_is_described(name):
    fields = STRUCTS[name]["properties"]
    assert [field for field, value in fields.items() if not value.get("description")] == []


@pytest.mark.parametrize("name", STRUCTS)
def test_every_struct_is_described(name):
    assert STRUCTS[name]["description"]


def test_a_field_is_described_next_to_it_and_not_in_the_docstring():
    twice = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in Path(distprof.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and node.name not in PUBLIC
        for fields in [{ast.unparse(f.target) for f in node.body if isinstance(f, ast.AnnAssign)}]
        for _, _, described in [(ast.get_docstring(node) or "").partition("Args:\n")]
        if fields
        and any(line.strip().partition(":")[0] in fields for line in described.splitlines())
    ]
    assert twice == []
