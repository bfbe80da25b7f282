"""Generated pages are committed as they are generated."""

from distprof.rules.registry import all_rules
from docs.build import REFERENCE, main, pages, stale


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
