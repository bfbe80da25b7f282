"""Generated pages are committed as they are generated; other pages name what exists."""

import re
import tomllib
from pathlib import Path

from distprof.rules import all_rules
from docs.build import REFERENCE, main, pages, stale

ROOT = Path(__file__).parents[2]


def test_committed_pages_equal_the_generated_ones():
    assert stale(pages()) == []


def test_every_rule_has_a_page():
    wanted = dict(pages())
    for rule in all_rules():
        assert wanted[REFERENCE.parent / rule.docs].startswith(f"# {rule.name}\n")


def test_a_page_that_differs_and_one_that_is_missing_are_stale(tmp_path):
    differing, missing, same = tmp_path / "a.md", tmp_path / "b.md", tmp_path / "c.md"
    differing.write_text("old")
    same.write_text("new")
    wanted = [(differing, "new"), (missing, "new"), (same, "new")]
    assert [path for path in stale(wanted) if path.parent == tmp_path] == [differing, missing]


def test_without_a_known_argument_it_says_how(capsys):
    assert main(["--wrong"]) == 2
    assert "usage" in capsys.readouterr().err


def test_every_fragment_of_the_changelog_has_a_kind_that_is_gathered() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = {kind["directory"] for kind in settings["type"]}
    fragments = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    assert {path.name.split(".")[-2] for path in fragments} <= kinds


def test_what_shows_a_promise_on_security_exists() -> None:
    named = re.findall(r"`(tests/[^`]+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []
