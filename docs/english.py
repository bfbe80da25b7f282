"""Finds phrases of ``docs/words.toml`` in Markdown, docstrings, comments and messages.

::

    python -m docs.english           # exit code 1, and each phrase with its place and a better one
    python -m docs.english FILE …    # check only these files

Code is not checked: fenced blocks, text between backticks, and in Python files everything except
comments and strings. ``english: ok`` in a comment on the line where a phrase begins allows it
there.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Problem", "Words", "checked_files", "main", "problems_in", "read_words"]

ROOT = Path(__file__).parent.parent
WORDS = ROOT / "docs" / "words.toml"
ALLOWED = "english: ok"
HINT = (
    f"Follow the style sheet (docs/style.md). If a phrase is right here, put "
    f"<!-- {ALLOWED} --> or # {ALLOWED} on its line; if it is right everywhere, "
    f"remove it from docs/words.toml."
)

_CODE = "\x00"  # stands for code: no phrase reaches across it
_MUCH_CODE = re.compile(f"[ {_CODE}]*{_CODE}[ {_CODE}]*")  # on a line; most of a Python file
_FENCE = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
_BACKTICKS = re.compile(r"(`+)[^`]+\1")
_LINK = re.compile(r"\]\([^)\s]*\)")
_F_STRING = ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")  # tokens from Python 3.12 on
_QUOTES = re.compile(r"^\w*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$")


@dataclass(frozen=True, kw_only=True)
class Words:
    """The word list."""

    paths: tuple[str, ...]
    """Files and folders to check, relative to the repository."""
    exclude: tuple[str, ...]
    """Files and folders below them that are not checked."""
    never: tuple[tuple[re.Pattern[str], str], ...]
    """Each phrase with its replacement."""
    any_of_them: re.Pattern[str]
    """All phrases at once: most files hold none, and one search shows it."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A phrase in a file."""

    path: Path
    line: int
    phrase: str
    better: str

    def __str__(self) -> str:
        inside = self.path.is_relative_to(ROOT)
        shown = self.path.relative_to(ROOT) if inside else self.path
        return f'{shown}:{self.line}: "{self.phrase}": better {self.better}'


def read_words(path: Path = WORDS) -> Words:
    """Read the word list; a space in a phrase matches any white space."""
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    never = tuple((_compiled(phrase), better) for phrase, better in values["never"].items())
    return Words(
        paths=tuple(values["paths"]),
        exclude=tuple(values["exclude"]),
        never=never,
        any_of_them=_compiled("|".join(values["never"])),
    )


def _compiled(phrase: str) -> re.Pattern[str]:
    """Matches the phrase as whole words, in any case and on any number of lines."""
    spaced = phrase.replace(" ", r"\s+")
    return re.compile(rf"(?<!\w)(?:{spaced})(?!\w)", re.IGNORECASE)


def checked_files(words: Words, root: Path = ROOT) -> Iterator[Path]:
    """Markdown and Python files in the paths of the list."""
    excluded = [root / name for name in words.exclude]
    for start in (root / name for name in words.paths):
        found = sorted(start.rglob("*")) if start.is_dir() else [start]
        for path in found:
            if path.suffix in (".md", ".py") and not any(path.is_relative_to(e) for e in excluded):
                yield path


def problems_in(path: Path, words: Words) -> list[Problem]:
    """The phrases of the list in a file, from top to bottom."""
    text = path.read_text(encoding="utf-8")
    prose = _prose_of_python(text) if path.suffix == ".py" else text
    for code in (_FENCE, _BACKTICKS, _LINK):
        prose = code.sub(_blank, prose)
    prose = _MUCH_CODE.sub(_CODE, prose)
    if not words.any_of_them.search(prose):
        return []
    lines = text.splitlines()
    problems = []
    for phrase, better in words.never:
        for match in phrase.finditer(prose):
            line = prose.count("\n", 0, match.start()) + 1
            if ALLOWED not in lines[line - 1]:
                found = " ".join(match[0].split())
                problems.append(Problem(path=path, line=line, phrase=found, better=better))
    return sorted(problems, key=lambda problem: problem.line)


def _blank(match: re.Match[str]) -> str:
    """A placeholder for matched code with the same number of lines."""
    return re.sub(r"[^\n]", _CODE, match[0])


def _prose_of_python(text: str) -> str:
    """Comments and strings at their original positions, with adjacent strings joined."""
    lines = [re.sub(r"\S", _CODE, line) for line in text.splitlines(keepends=True)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            _place(lines, token.start, token.string.replace("#", " "))
        elif token.type == tokenize.STRING:
            _place(lines, token.start, _QUOTES.sub(lambda m: " " * len(m[0]), token.string))
        elif tokenize.tok_name[token.type] in _F_STRING:
            is_text = tokenize.tok_name[token.type] == "FSTRING_MIDDLE"
            _place(lines, token.start, token.string if is_text else " " * len(token.string))
    return "".join(lines)


def _place(lines: list[str], start: tuple[int, int], text: str) -> None:
    """Insert the text into the lines, starting at a line (from 1) and a column (from 0)."""
    row, column = start
    for part in text.split("\n"):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + part + line[column + len(part) :]
        row, column = row + 1, 0


def main(arguments: Sequence[str] = ()) -> int:
    """Check the files; return exit code 1 if one contains a phrase of the list."""
    words = read_words()
    files: Iterable[Path] = map(Path, arguments) if arguments else checked_files(words)
    problems = [problem for path in files for problem in problems_in(path, words)]
    for problem in problems:
        print(problem)  # noqa: T201
    if problems:
        print(HINT, file=sys.stderr)  # noqa: T201
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
