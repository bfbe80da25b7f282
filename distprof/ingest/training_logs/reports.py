"""Reports of training programs as data: one row of ``reports.toml`` per wording.

The signs of all rows are found in one pass over a block (:class:`~.output.expressions.Signs`), so a
further program costs nothing where it printed nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

import msgspec

from distprof.ingest.output.expressions import Signs
from distprof.ingest.output.read import prefix_rank
from distprof.ingest.training_logs.grammar import (
    MAX_COUNT,
    NUMBER,
    Grammar,
    Row,
    line_around,
    ms_to_ns,
    s_to_ns,
    stamp_s,
    to_float,
)

_ESCAPES = re.compile(rb"\x1b\[[0-9;]{0,20}m")
_MULTIPLES = {b"K": 1e3, b"M": 1e6, b"B": 1e9}
_MAX_LINE = 8_000
_RATES = ("samples_per_s", "tokens_per_s", "tokens_per_s_per_device", "tflops", "loss")


class Wording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table."""

    program: str  # Program that prints it; several rows may name the same one.
    signs: tuple[str, ...]  # Literals, of which each line holds one.
    line: str  # Regular expression for the start of the line, with named groups.
    example: str  # A record of this wording.
    values: dict[str, float]  # What the example holds, by name.
    # Name to a regular expression with one group, anywhere in the record.
    fields: dict[str, str] = msgspec.field(default_factory=dict)
    timers: dict[str, str] = msgspec.field(default_factory=dict)  # The same for timers, in seconds.
    less: int = 0  # Lines before the sign that may belong to the record.
    more: int = 0  # Lines after it.
    # Iterations that the report is the mean of; None if that follows from the numbers.
    span: int | None = None
    stamped: bool = False  # Whether durations follow from the times at which lines were written.
    note: str = ""  # What a reader must know about the times.


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    report: tuple[Wording, ...]


@cache
def wordings() -> tuple[Wording, ...]:
    """All rows of the table; the first program wins a tie."""
    text = resources.files(__package__).joinpath("reports.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Table).report


@cache
def _signs() -> Signs[Wording]:
    return Signs(wordings())


@cache
def _compiled(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.replace("NUMBER", NUMBER.decode()).encode())


class ReportGrammar(Grammar):
    """The reports of one program."""

    program: str = ""
    _before: tuple[int, float] | None = None  # number and elapsed time of the last report

    @property
    def name(self) -> str:
        """Program that printed the log."""
        return self.program

    @property
    def signs(self) -> tuple[bytes, ...]:
        """None of its own: :class:`Reports` looks for those of all programs at once."""
        return ()

    def take_record(self, wording: Wording, record: bytes, line: re.Match[bytes]) -> None:
        """Add the report in a record."""
        values = _values(wording.fields, record) | {
            name: value
            for name, text in line.groupdict().items()
            if (value := _value(text)) is not None
        }
        timers = _values(wording.timers, record)
        number = _number(values)
        ns, span = _duration(values), wording.span
        elapsed = values.get("elapsed_ms")
        if elapsed is not None and number is not None:
            ns, span = self._since(number, elapsed)
        stamp = stamp_s(line[0][:_MAX_LINE]) if wording.stamped else None
        batch = values.get("batch")
        if batch is not None and 1 <= batch < MAX_COUNT:
            self.facts["global_batch_size"] = int(batch)
            if ns and "samples_per_s" not in values:
                values["samples_per_s"] = batch * 1e9 / ns
        if ns is None and stamp is None and not any(name in values for name in _RATES[:3]):
            self.num_unknown += elapsed is None
            return
        rank = prefix_rank(record[:200].decode("utf-8", "replace"))
        last = self.rows[-1] if self.rows else None
        if last and number is not None and (last.iteration, last.rank) == (number, rank):
            return  # a progress bar repeats its last report
        if wording.note and wording.note not in self.notes:
            self.notes.append(wording.note)
        self.add(
            Row(
                iteration=number,
                duration_ns=ns,
                span=span,
                rank=rank,
                at_s=stamp,
                **{name: values.get(name) for name in _RATES},
            )
        )
        found = {name: s_to_ns(value) for name, value in timers.items()}
        if found:
            self.add_timers({name: ns for name, ns in found.items() if ns is not None})

    def _since(self, number: int, elapsed: float) -> tuple[int | None, int | None]:
        """Duration and span since the last report of an elapsed time in ms."""
        before = self._before
        if before is not None and number == before[0]:
            return None, None  # a validation after that iteration, outside of the time
        self._before = (number, elapsed)
        if before is None or number < before[0] or elapsed < before[1]:
            return None, None
        span = number - before[0]
        return ms_to_ns((elapsed - before[1]) / span), span


class Reports:
    """The grammars of all programs of the table."""

    def __init__(self) -> None:
        programs = dict.fromkeys(row.program for row in wordings())
        self.grammars = {name: ReportGrammar(program=name) for name in programs}

    def take(self, block: bytes) -> None:
        """Read a block of whole lines."""
        if b"\x1b" in block:
            block = _ESCAPES.sub(b"", block)
        for start, end, wording in _lines(block):
            grammar = self.grammars[wording.program]
            line = None if grammar.is_full else _compiled(wording.line).match(block, start, end)
            if line is not None:
                record = block[_first(block, start, wording.less) : _last(block, end, wording.more)]
                grammar.take_record(wording, record, line)


def _lines(block: bytes) -> Iterator[tuple[int, int, Wording]]:
    """Start and end of each line with a sign, once for each wording."""
    seen: dict[str, int] = {}
    for at, wording in _signs().find(block):
        if at < seen.get(wording.line, -1):
            continue
        start, end = line_around(block, at, _MAX_LINE)
        seen[wording.line] = end
        if at - start < _MAX_LINE:
            yield start, min(end, start + _MAX_LINE), wording


def _first(block: bytes, start: int, count: int) -> int:
    """Start of the record: the line before the indented lines before this one."""
    while count and start > 0 and block[start : start + 1] in b" \t":
        start = block.rfind(b"\n", max(start - _MAX_LINE, 0), start - 1) + 1
        count -= 1
    return start


def _last(block: bytes, end: int, count: int) -> int:
    """End of the last indented line after this one."""
    while count and block[end + 1 : end + 2] in (b" ", b"\t"):
        following = block.find(b"\n", end + 1, end + _MAX_LINE)
        if following < 0:
            break
        end = following
        count -= 1
    return end


def _values(patterns: Mapping[str, str], record: bytes) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, pattern in patterns.items():
        match = _compiled(pattern).search(record)
        value = _value(next((text for text in match.groups() if text), None)) if match else None
        if value is not None:
            found[name] = value
    return found


def _value(text: bytes | None) -> float | None:
    """A number with thousands separators, or abbreviated as in ``1.23K``."""
    if not text:
        return None
    value, factor = text, 1.0
    if text[-1:] in _MULTIPLES:
        value, factor = text[:-1], _MULTIPLES[text[-1:]]
    number = to_float(value)
    return None if number is None else number * factor


def _number(values: Mapping[str, float]) -> int | None:
    """The iteration since the start of the training."""
    number, epoch, of = (values.get(name) for name in ("iteration", "epoch", "of"))
    if number is None:
        return None
    if epoch is not None and of is not None:
        number += epoch * of
    return int(number) if 0 <= number < MAX_COUNT else None


def _duration(values: Mapping[str, float]) -> int | None:
    if "ms" in values:
        return ms_to_ns(values["ms"])
    rate = values.get("per_s")
    return s_to_ns(values.get("s") if not rate or rate < 0 else 1 / rate)
