"""The recipe "Add a rule" of CONTRIBUTING.md, followed with a copy of a rule elsewhere."""

import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

from distprof import rules as registry
from distprof.rules import all_rules, collect
from distprof.rules.engine import run_rules
from distprof.sections.overlap import rules as neighbours
from docs.build import rule_page
from docs.rule_examples import rule_examples
from tests.rules.fixtures import fixture, overlap

ROOT = Path(__file__).parents[2]
MODULE = f"{neighbours.__name__}_of_a_test"


@pytest.fixture
def added(monkeypatch):
    """The rule as it is found after steps 1 and 2: one function in a module of rules."""
    all_rules()  # which keeps what it finds: without the copy
    source = inspect.getsource(neighbours.low_overlap.check)
    copy = source.replace("def low_overlap", "def hardly_overlapped").replace("COM101", "COM901")
    module = ModuleType(MODULE)
    scope = {name: value for name, value in vars(neighbours).items() if not is_rule(value)}
    vars(module).update(scope, __name__=MODULE)
    exec(copy, vars(module))
    monkeypatch.setitem(sys.modules, MODULE, module)
    listed = [*registry.modules(), MODULE]
    monkeypatch.setattr(registry, "modules", lambda: listed)
    found = {rule.name: rule for rule in collect()}
    return found["hardly-overlapped"]


def is_rule(value):
    return type(value) is type(neighbours.low_overlap)


def test_one_function_in_a_module_of_rules_is_a_rule(added):
    assert (added.code, added.check.__module__) == ("COM901", MODULE)
    assert added.summary == neighbours.low_overlap.summary


@pytest.mark.parametrize("which", ["bad", "good"])
def test_a_fixture_that_is_not_there_yet_is_named(added, which):
    with pytest.raises(LookupError, match=rf"tests\.rules\.fixtures\.overlap\.{which}_hardly_over"):
        fixture(added, which)


def test_with_two_fixtures_it_is_checked_and_its_page_has_an_example(added, monkeypatch):
    for which in ("bad", "good"):
        known = getattr(overlap, f"{which}_low_overlap")
        monkeypatch.setattr(overlap, f"{which}_hardly_overlapped", known, raising=False)
    fired = run_rules(fixture(added, "bad"), rules=[added], debug=True).findings
    assert [finding.code for finding in fired] == ["COM901"]
    assert run_rules(fixture(added, "good"), rules=[added], debug=True).findings == ()
    page = rule_page(added, rule_examples([added])["COM901"])
    example = "```text\nhardly-overlapped: Only 51.3 % of transfer overlaps"
    assert f"\n## Example\n\n{example}" in page


def test_the_recipe_names_the_places_that_are_used_here():
    recipe = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = recipe.partition("## Add a rule\n")[2].partition("\n## ")[0]
    for place in (
        "distprof/sections/<subject>/rules.py",
        "a function `<rule>`",
        "`bad_<rule>()`",
        "`good_<rule>()`",
        "tests/rules/fixtures/<subject>.py",
        "tasks.py docs --write",
    ):
        assert place in steps
    assert Path(neighbours.__file__) == ROOT / "distprof/sections/overlap/rules.py"
    assert Path(overlap.__file__) == ROOT / "tests/rules/fixtures/overlap.py"
