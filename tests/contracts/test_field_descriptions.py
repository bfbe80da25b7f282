"""Every field that a report writes says what it means: unit, and what null stands for."""

import pytest

from distprof.documents.saved import REPORT

STRUCTS = {
    name: definition
    for name, definition in REPORT.json_schema()["$defs"].items()
    if "properties" in definition
}


@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_is_described(name):
    fields = STRUCTS[name]["properties"]
    assert [field for field, value in fields.items() if not value.get("description")] == []


@pytest.mark.parametrize("name", STRUCTS)
def test_every_struct_is_described(name):
    assert STRUCTS[name]["description"]
