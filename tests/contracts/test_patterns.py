"""Regular expressions in tables beside the code: compiled when first used, so tried here."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from distprof.bounds import Patterns

ROOT = Path(__file__).parents[2]
READ = re.compile(r'(?:(?:patterns|texts)_beside\(\s*__package__, |byte_patterns\()"(\S+\.toml)"')
MODULES = {
    path: found
    for path in sorted((ROOT / "distprof").rglob("*.py"))
    if (found := READ.findall(path.read_text("utf-8")))
}
"""Those with such tables, and their names."""


def test_there_are_such_tables():
    assert len(MODULES) >= 4


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_each_expression_of_a_table_compiles(module):
    name = ".".join(module.relative_to(ROOT).with_suffix("").parts)
    found = [one for one in vars(import_module(name)).values() if isinstance(one, Patterns)]
    for patterns, file in zip(found, MODULES[module], strict=True):
        table = tomllib.loads((module.parent / file).read_text("utf-8"))
        assert {*patterns.texts()} == {*table["patterns"]}
        for name, text in patterns.texts().items():
            assert patterns[name].pattern == text


def test_an_expression_is_compiled_once_and_only_if_used():
    read = []
    patterns = Patterns(lambda: read.append(1) or {"a": "x+", "broken": "("})
    assert not read
    assert patterns["a"] is patterns["a"]
    assert len(read) == 1
