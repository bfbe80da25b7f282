"""Texts keep to the style sheet: no phrase of the word list, and the list does what it says."""

import re

import pytest

from docs.english import ROOT, checked_files, main, problems_in, read_words

WORDS = read_words()
SHEET = (ROOT / "docs" / "style.md").read_text("utf-8")


def examples() -> list[tuple[str, str]]:
    """Rows of the style sheet's table of phrases that are never right."""
    section = SHEET.split("## Never")[1].split("## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    return [row for row in rows if row != ("not", "but")]


def found_in(text: str, tmp_path, name: str = "page.md") -> list[tuple[int, str]]:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return [(problem.line, problem.phrase) for problem in problems_in(path, WORDS)]


def test_no_text_holds_a_phrase_of_the_list():
    found = [str(problem) for path in checked_files(WORDS) for problem in problems_in(path, WORDS)]
    assert found == []


def test_each_path_of_the_list_is_checked():
    files = list(checked_files(WORDS))
    for name in WORDS.paths:
        assert any(path.is_relative_to(ROOT / name) for path in files), name


@pytest.mark.parametrize(("wrong", "right"), examples())
def test_the_style_sheet_shows_what_is_found(wrong, right, tmp_path):
    assert found_in(wrong, tmp_path)
    assert found_in(right, tmp_path) == []


@pytest.mark.parametrize("phrase", [p for p, _ in WORDS.never], ids=lambda p: p.pattern)
def test_each_phrase_has_an_example_in_the_style_sheet(phrase):
    assert any(phrase.search(wrong) for wrong, _ in examples())


def test_a_phrase_is_found_with_its_line_also_across_a_line_break(tmp_path):
    assert found_in("# Page\n\nThe sensors, at\nhand or not.\n", tmp_path) == [(3, "at hand")]


def test_code_in_markdown_is_left_out(tmp_path):
    text = "```sh\nnobody\n```\n\n`nobody` and [a page](nobody.md)\n"
    assert found_in(text, tmp_path) == []


def test_comments_docstrings_and_texts_of_python_are_read_and_names_are_not(tmp_path):
    text = (
        '"""Blames nobody."""\n'
        "nobody = 1  # or somebody\n"
        'TEXT = (\n    "as many as are at "\n    f"hand {TEXT}"\n)\n'
        'NAMES = ["at", "hand"]\n'
    )
    assert found_in(text, tmp_path, "module.py")[:3] == [
        (1, "nobody"),
        (2, "somebody"),
        (4, "at hand"),
    ]


def test_a_comment_on_the_line_allows_a_phrase(tmp_path):
    assert found_in("Blames nobody. <!-- english: ok -->\n", tmp_path) == []
    assert found_in("# blames nobody; english: ok\n", tmp_path, "module.py") == []


def test_the_command_says_where_what_and_how_to_allow_it(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("One line.\nBlames nobody.\n", "utf-8")
    assert main([str(page)]) == 1
    printed = capsys.readouterr()
    assert printed.out == f'{page}:2: "nobody": better {advice("nobody")}\n'
    assert "english: ok" in printed.err
    page.write_text("Blames no rank.\n", "utf-8")
    assert main([str(page)]) == 0


def advice(phrase: str) -> str:
    return next(better for pattern, better in WORDS.never if pattern.fullmatch(phrase))
