"""Numbers that rise from line to line: epochs with their times, or steps and epochs with a date.

::

    Epoch: 4 | Train Loss: 3.41 | Time: 0m 31s
    Time taken for epoch 4: 1.22 hours
    2026-01-01 12:10:20,804  INFO  ====> Epoch: 4

The time of an epoch is in the line that names it, or in one of the next lines. Of several times,
it is the longest one that recurs: the others are those of parts, such as an evaluation. Without
any, it is the one between lines that have a date and differ in their numbers alone. These number
epochs or steps; if no line does, they are those with a loss or a score.
"""

from __future__ import annotations

import re
from itertools import pairwise
from statistics import median

import msgspec

from distprof.ingest.output.read import prefix_rank
from distprof.ingest.training_logs.grammar import (
    MAX_SECONDS,
    NOTES,
    Grammar,
    Row,
    byte_patterns,
    has_lost,
    s_to_ns,
    stamp_s,
)
from distprof.ingest.training_logs.named_numbers import (
    FEWEST,
    MAX_KEPT,
    Report,
    candidates,
    is_on_line,
    number_of_step,
    of_the_usual_kind,
    per_number,
    time_in,
)
from distprof.units import format_duration

_DATED = {
    "step": "a training program",
    "epoch": "a program that dates its epochs",
    "report": "a program that dates its reports",
}
_PATTERNS = byte_patterns("counters.toml")
_NUMBER = re.compile(rb"[-+]?\d[\d.,:]*(?:[eE][-+]?\d+)?")
_MAX_SERIES, _MAX_KEY = 400, 120
_MAX_READ = 200_000  # Candidates, which take about 10 µs each
_NEAR = 10  # Candidates below the line that names an epoch, which may hold its time
_FEWEST_ALIKE = 5  # Lines that differ in their numbers alone, and number nothing
_LONG_EVALUATION = 0.25  # Share of an epoch from which it is named
_RISING = 0.9  # Share of times within epochs that are longer than the one before
_SLOPE = 0.3  # Relative difference of a time from what all epochs so far take


class CountersGrammar(Grammar):
    """Tried only where no other grammar finds a report on steps."""

    # What is counted, and what a line says around its numbers, to the reports of all such lines.
    _series: dict[tuple[str, bytes], list[Report]] = msgspec.field(default_factory=dict)
    _evaluations: list[float] = msgspec.field(default_factory=list)  # As printed.
    _num_kept: int = 0
    _num_read: int = 0
    _epoch: int | None = None  # That of the last line that names one.
    _num_since: int = 0  # Candidates since then.
    _num_epochs: int = 0  # Times that an epoch was named after another one.

    def take(self, block: bytes) -> None:
        """Read lines that name an epoch, a step or a time."""
        for text in candidates(_PATTERNS["candidate"], block):
            if self._num_kept >= MAX_KEPT or self._num_read >= _MAX_READ:
                self.is_full = True
                return
            self._num_read += 1
            self._take_line(text, text.lower())

    def _take_line(self, text: bytes, line: bytes) -> None:
        at_s, rank = stamp_s(text[:200]), prefix_rank(text[:200].decode("utf-8", "replace"))
        epoch, step = _PATTERNS["number"].search(line), number_of_step(line)
        self._num_since += 1
        if epoch is not None:
            number, self._num_since = int(epoch[epoch.lastgroup or 0]), 0
            self._num_epochs += number != self._epoch
            self._epoch = number
        elif self._num_since > _NEAR:
            self._epoch = None
        row = Row(self._epoch, rank=rank, at_s=at_s)
        found, evaluation = _time_of_epoch(line, epoch)
        self._evaluations += [evaluation] if evaluation and self._num_since <= _NEAR else []
        found = None if step and not step[0] else found  # the time of its first step
        if found and (self._epoch is not None or (found["name"] and b"epoch" in found[0])):
            (time, has_unit), at = time_in(found), found.end("name")
            timed = row._replace(span=None if epoch else self._num_epochs)
            number = self._num_read if self._epoch is None else self._epoch  # in order
            report = Report(row=timed, number=number, time=time, has_unit=has_unit)
            of = "mean" if _PATTERNS["of_all"].search(text, 0, at) else "time"
            self._keep(of, text[:at], report)
            self.num_not_finite += has_lost(text)
        if at_s is not None and step is not None:
            row = row._replace(iteration=step[0])
            self._keep("step", text[: step[1]], Report(row=row, number=step[0]))
        if at_s is not None and epoch is not None:  # of few steps, perhaps, which start again
            row = row._replace(iteration=self._epoch)
            self._keep("epoch", text[: epoch.end()], Report(row=row, number=self._epoch or 0))
        elif at_s is not None and _PATTERNS["of_training"].search(line):
            number = self._num_read  # in order
            self._keep("report", text, Report(row=row._replace(iteration=number), number=number))

    def _keep(self, of: str, before: bytes, report: Report) -> None:
        key = of, _NUMBER.sub(b"0", before.lstrip(b"*> "))[-_MAX_KEY:]
        if key in self._series or len(self._series) < _MAX_SERIES:
            self._series.setdefault(key, []).append(report)
            self._num_kept += 1

    def finish(self) -> None:
        """Use the times of epochs, or else the dates of steps or of epochs."""
        for of in ("time", "mean", *_DATED):
            every = (one for (kind, _), one in self._series.items() if kind == of)
            fewest = _FEWEST_ALIKE if of == "report" else FEWEST - (of not in _DATED)
            known = (of_the_usual_kind(one, fewest) for one in filter(_is_of_each, every))
            found = max(known, key=lambda one: sum(each.time or 1e-9 for each in one), default=[])
            if found and not self.rows:
                self.name = _DATED.get(of, "a program that times epochs")
                self._add_times(found)
        self._series.clear()

    def _add_times(self, found: list[Report]) -> None:
        times = [one.time for one in found]
        if not found[0].has_unit and found[0].row.at_s is None:
            self.notes.append(NOTES["no_unit"])
        if _is_since_start(found):  # as an epoch begins, it shows the time of the one before
            found = [a for a, b in pairwise(found) if a.time != b.time] + found[-1:]
            times = per_number(found)
        for one, time in zip(found, times, strict=True):
            self.add(one.row._replace(duration_ns=s_to_ns(time), span=None))
        evaluation, usual = median(self._evaluations or [0.0]), [*filter(None, times)]
        is_often = len(self._evaluations) >= FEWEST and bool(usual)
        if is_often and evaluation > _LONG_EVALUATION * median(usual):
            shown = format_duration(s_to_ns(evaluation))
            self.notes.append(NOTES["evaluation_of_epochs"].format(shown))


def _time_of_epoch(
    line: bytes, epoch: re.Match[bytes] | None
) -> tuple[re.Match[bytes] | None, float | None]:
    """The time of an epoch in a line in lower case, and that of an evaluation in s."""
    named = [(match, _kind(match)) for match in _PATTERNS["named"].finditer(line)]
    evaluation = next((time_in(match)[0] for match, kind in named if kind == "evaluation"), None)
    found = [match for match, kind in named if kind == "epoch"]
    if epoch is None and any(_PATTERNS["of_input"].search(match["name"]) for match, _ in named):
        found = []  # an iteration's
    if found and epoch and _PATTERNS["evaluated"].match(line, epoch.end()):
        return None, time_in(found[0])[0]
    if not named:
        rate = _PATTERNS["per_epoch"].search(line)
        bare = rate or (epoch and _PATTERNS["unnamed"].match(line, epoch.end()))
        alone = [*_PATTERNS["alone"].finditer(line, epoch.end())] if epoch and not bare else []
        bare = alone[0] if len(alone) == 1 else bare
        found = [bare] if bare else []
    found.sort(key=lambda m: b"epoch" not in m[0] and b"train" not in m[0])
    known = (match for match in found[:1] if 0 < (time_in(match)[0] or 0) < MAX_SECONDS)
    return next(known, None), evaluation


def _kind(match: re.Match[bytes]) -> str:
    """What a named time is that of: words that are also those of costs need a unit."""
    name, has_unit = match["name"], match["clock"] or match["unit"] or match["in"]
    if not has_unit and _PATTERNS["needs_unit"].search(name):
        return ""
    if _PATTERNS["of_evaluation"].search(name):
        return "evaluation"
    return "" if _PATTERNS["of_another"].search(name) else "epoch"


def _is_of_each(found: list[Report]) -> bool:
    """Whether times are of an epoch each, not since its start, until its end, or of several."""
    pairs = [(a.time or 0.0, b.time or 0.0) for a, b in pairwise(found) if a.number == b.number]
    rises, falls = sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)
    is_within = len(pairs) > len(found) / 2 and max(rises, falls) > _RISING * (rises + falls)
    passed = [(b.row.span or 0) - (a.row.span or 0) for a, b in pairwise(found)] or [1]
    return not is_within and median(passed) <= 1


def _is_since_start(found: list[Report]) -> bool:
    """Whether times are those of all epochs of a run so far: they grow as the number does."""
    if len({one.time for one in found}) > _NEAR and is_on_line(found):
        return True
    each = [*filter(None, per_number(found))]
    ends = [a for a, b in pairwise(found) if b.number <= a.number] + found[-1:]
    if len(found) < FEWEST or len(each) + len(ends) < _RISING * len(found):
        return False
    usual, times = median(each), [(o.number + 1, o.time or 0.0) for o in (found[0], *ends)]
    return any(
        all(abs(usual * (number - first) - time) < _SLOPE * time for number, time in times)
        for first in (0, 1)
    )
