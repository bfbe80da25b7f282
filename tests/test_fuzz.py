"""A share of the fuzzer's inputs, and that the fuzzer itself sees what it looks for."""

from __future__ import annotations

import sys
import time
from itertools import count
from pathlib import Path

import pytest

from benchmarks import fuzz
from benchmarks.fuzzing.oracle import Answer, problem_of
from benchmarks.fuzzing.run import answer_of, files_of, input_of
from benchmarks.fuzzing.seeds import all_seeds
from distprof.ingest.kinds import known_sources
from docs.documents import ALL_DOCUMENTS
from tests.drawn import drawn

FEW = 1_700
EACH = 1_000
LIMITS = fuzz.Limits(seconds=10.0)


def said(numbers: range) -> list[str]:
    return [
        f"{found.tried.number}: {found.problem}"
        for found in fuzz.failures(numbers, LIMITS)
        if found is not None
    ]


def test_a_few_inputs_of_each_seed_end_in_a_result_or_a_sentence() -> None:
    """To look at one that fails: python -m benchmarks.fuzz --replay NUMBER."""
    assert len(all_seeds()) <= FEW
    assert said(range(FEW)) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", drawn(range(20), always=0))
def test_twenty_thousand_inputs_end_in_a_result_or_a_sentence(part: int) -> None:
    assert said(range(EACH * part, EACH * (part + 1))) == []


def test_every_kind_of_source_and_every_document_has_seeds() -> None:
    names = {seed.name for seed in all_seeds()}
    for source in known_sources():
        assert any(name.startswith(f"{source.origin}: ") for name in names), source.origin
    assert {document.name for document in ALL_DOCUMENTS} <= names


def test_an_input_is_the_same_whenever_it_is_drawn() -> None:
    for number in range(0, 400, 7):
        assert input_of(number) == input_of(number)
        assert files_of(input_of(number)) == files_of(input_of(number))


def test_inputs_are_chosen_by_seed_or_command() -> None:
    numbers = range(5, 20_000)
    chosen = fuzz.chosen(numbers, "^history: history compact")
    assert chosen
    assert {input_of(number).words[:2] for number in chosen} == {("history", "compact")}
    assert fuzz.chosen(numbers, "") == numbers


def test_mutations_change_nearly_every_input() -> None:
    tried = [input_of(number) for number in range(300)]
    same = [each for each in tried if files_of(each) == all_seeds()[each.seed].files]
    assert len(same) < 30


def answer(*words: str, code: int = 0, out: str = "{}", err: str = "", **more: float) -> Answer:
    return Answer(words=words or ("analyze",), code=code, out=out, err=err, **more)  # type: ignore[arg-type]


PAGE = "<html><style>a</style><p class='x'><a href='#top'>b</a></p><script>c</script></html>"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer(), ""),
        (answer(code=3, out="", err="Error: x"), ""),
        (answer(code=3, out="", err=""), "refused without a sentence"),
        (answer(code=4), "exit code 4"),
        (answer(err="Error: unexpected error in distprof (x)."), "internal error"),
        (answer(out="a was skipped: TypeError: no"), "internal error"),
        (answer(out="<title>A process failed: no entry (KeyError: 'x')</title>"), ""),
        (answer("hang", out="Rank 0 failed first: a\nb (KeyError: 'x').\n\nFindings"), ""),
        (answer(out="\x1b]0;t\x07"), "control character in output"),
        (answer(out="a\x9bb"), "control character in output"),
        (answer(err="a\u202eb"), "control character in stderr"),
        (answer("hang", "--format", "json", out='{"a": NaN}'), "invalid JSON"),
        (answer("analyze", "--format", "json", out="{"), "invalid JSON"),
        (answer("check", "--format", "junit", out="<a>&x;</a>"), "invalid XML"),
        (answer("analyze", "--format", "md", out="a <script>"), "markup in Markdown"),
        (answer("analyze", "--format", "md", out="a `<script>`"), ""),
        (answer("html", out="<p>a<img src=x></p>"), "markup in HTML"),
        (answer("html", out='<table><tr><td class="left">a</td></tr></table>'), ""),
        (answer("html", out='<p onclick="x">a</p>'), "markup in HTML"),
        (answer("analyze", "--format", "html", out=PAGE), ""),
        (answer("analyze", "--format", "html", out=f"{PAGE}<img src=x>"), "markup in a page"),
        (answer("analyze", "--format", "html", out=f"{PAGE}<p onclick=x>"), "markup in a page"),
        (answer("analyze", "--format", "html", out=f"{PAGE}<script>"), "markup in a page"),
        (answer("analyze", "--format", "html", out=f"{PAGE}<a href='file:x'>"), "markup in a page"),
        (answer(seconds=11.0, num_bytes=5_000_000), "too slow"),
        (answer(seconds=6.0, num_bytes=100_000), "too slow"),
        (answer(seconds=6.0, num_bytes=3_000_000), ""),
        (answer(peak_bytes=500 * 2**20), "too much memory"),
    ],
)
def test_what_may_never_be_is_seen(given: Answer, expected: str) -> None:
    assert problem_of(given, 10.0).startswith(expected)
    assert bool(problem_of(given, 10.0)) == bool(expected)


BUG = b"acme_ring_sum"


def _planted(monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    """A command line with a bug: it fails on a configuration with a certain name."""

    def main(words: list[str]) -> int:
        file = Path("distprof.toml")
        if file.is_file() and BUG in file.read_bytes():
            if action == "sleep":
                time.sleep(60)
            raise KeyError(action)
        sys.stderr.write("Error: refused")
        return 3

    monkeypatch.setattr("benchmarks.fuzzing.run._called", main)


def _first_of(name: str) -> int:
    """The first input made of a seed; which one it is depends on how many seeds there are."""
    return next(number for number, seed in enumerate(all_seeds()) if seed.name == name)


def _first_with_the_bug() -> int:
    """The first configuration whose mutations leave the name in it."""
    numbers = count(_first_of("configuration"), len(all_seeds()))
    return next(n for n in numbers if any(BUG in data for data in files_of(input_of(n)).values()))


def test_an_input_that_hangs_or_kills_the_process_is_a_failure_of_that_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GIVEN an input that ends its process WHEN others follow THEN they are tried all the same."""
    first = _first_with_the_bug()
    for action in ("sleep", "raise"):
        _planted(monkeypatch, action)
        limits = fuzz.Limits(seconds=0.5)
        found = list(fuzz.failures(range(first, first + 3), limits))
        assert [each is not None for each in found] == [True, False, False]


def test_a_failure_is_made_as_small_as_what_causes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _planted(monkeypatch, "raise")
    first = _first_with_the_bug()
    (found,) = fuzz.failures(range(first, first + 1), LIMITS)
    assert found is not None
    place = fuzz.keep(found, tmp_path, LIMITS)
    assert (place / "input" / "distprof.toml").read_bytes() == BUG
    assert f"--replay {first}" in (place / "failure.txt").read_text()


def test_an_unchanged_seed_is_answered_without_a_failure(tmp_path: Path) -> None:
    tried = input_of(_first_of("trace"))
    sound = type(tried)(number=0, seed=tried.seed, words=("analyze", "trace.json"), changes=())
    found = answer_of(sound, tmp_path / "input")
    assert (found.code, problem_of(found, 60.0)) == (0, "")
