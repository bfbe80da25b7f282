"""Texts that repeat one piece: no expression may try each place of a long run as a start."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from distprof.ingest.kinds import fitting_kind
from distprof.ingest.output.expressions import expressions
from distprof.ingest.training_logs.grammar import NUMBER
from distprof.ingest.training_logs.reports import wordings

PIECES = (
    *' \t0aA-"[()|:,.=_/\n<%#*+',
    *("a ", "0 ", "0,", "0.", "a:", "a=", "a.", "a/", ", ", "0: ", "\n ", "0\n", "[0] ", "rank 0 "),
    *("0%|", "1/9 [00:01<", "x\n", "a_", "0-", "a(0) "),
)
RECORD = 16_000
"""Characters of a record, at most."""

SLOW_S = 1.0
"""Far more than any expression takes, and far less than one that is quadratic."""


def _repeated(piece: str, size: int) -> str:
    return (piece * (size // len(piece) + 1))[:size]


def _cpu_s(run: object, *given: object) -> float:
    start = time.process_time()
    run(*given)  # type: ignore[operator]
    return time.process_time() - start


@pytest.mark.parametrize("is_one_line", [True, False], ids=["a line", "lines"])
@pytest.mark.parametrize("begin", ["", "step 1 loss: 2 time: 0.3 s "], ids=["bare", "a step"])
def test_files_of_one_piece_are_recognised_in_linear_time(tmp_path, begin, is_one_line):
    fitting_kind(str(tmp_path))  # imports
    slow = {}
    for number, piece in enumerate(PIECES):
        text = _repeated(piece, 30_000)
        if not is_one_line:
            text = f"{begin}{text[:1_900]}\n" * 15
        path = tmp_path / f"{number}.log"
        path.write_text(f"{begin}{text}\n", "utf-8")
        if (taken := _cpu_s(fitting_kind, str(path))) > SLOW_S:
            slow[piece] = taken
    assert not slow


def _attacks(words: tuple[str, ...]) -> Iterator[str]:
    """A piece again and again, after words of the wording or not, and these words themselves."""
    for begin in ("", *words):
        yield from (begin + _repeated(piece, RECORD - len(begin)) for piece in PIECES[:30])
    yield from (_repeated(word + after, RECORD) for word in words for after in ("", " ", "\n"))


@pytest.mark.parametrize("part", range(8))
def test_rows_of_a_jobs_output_take_linear_time(part):
    slow = {
        (row.name, text[:40]): taken
        for row in expressions()[part::8]
        for text in _attacks((row.signs[0], row.example))
        if (taken := _cpu_s(row.search, text)) > SLOW_S
    }
    assert not slow


@pytest.mark.parametrize("row", wordings(), ids=lambda row: f"{row.program}: {row.signs[0]}")
def test_reports_of_iterations_take_linear_time(row):
    patterns = {**row.fields, **row.timers, **row.sums, **row.means, **row.facts}
    own = [re.compile(p.replace("NUMBER", NUMBER.decode()).encode()) for p in patterns.values()]
    line = re.compile(row.line.replace("NUMBER", NUMBER.decode()).encode())
    slow = {
        (one.pattern, text[:40]): taken
        for text in _attacks((row.signs[0], row.example))
        for one in (line, *own)
        if (taken := _cpu_s(one.match if one is line else one.search, text.encode())) > SLOW_S / 4
    }
    assert not slow
