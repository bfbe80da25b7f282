"""Reports of training programs as data: one row of ``reports.toml`` per wording.

The signs of all rows are found in one pass over a block (:class:`~.output.expressions.Signs`), so a
further program costs nothing where it printed nothing.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from distprof.bounds import table_beside
from distprof.ingest.output.expressions import Signs
from distprof.ingest.training_logs.grammar import (
    IMPOSSIBLE,
    MAX_COUNT,
    NOTES,
    NUMBER,
    RATES,
    Grammar,
    Row,
    TimerValues,
    byte_patterns,
    clock_s,
    has_lost,
    line_around,
    near,
    rank_in,
    s_to_ns,
    slow_rank,
    stamp_s,
    to_float,
    whole_number,
)
from distprof.units import NS_PER_S, format_duration

_MULTIPLES = {b"k": 1e3, b"K": 1e3, b"M": 1e6, b"B": 1e9, b"s": 1.0, b"ms": 1e-3, b"us": 1e-6}
_SUFFIX = re.compile(rb" ?([kKMB]|[mu]?s)(?<=s)?(?:ec(?:ond)?s?)?$")
_MAX_LINE, _MAX_START = 8_000, 200
_FEWEST_PARTS, _MAX_RATES = 3, 100_000
_MOST_ERROR, _SAME = 0.05, 0.001  # of a mean that follows from others, and of a printed one
_MANY, _FAR = 4, 1.5  # Ratio of a time that holds something else than iterations
_ALIKE, _LONG_WAIT = 0.7, 0.1  # Ratio of a wait to what causes it, and share of an iteration
_LEAST_OF_SECONDS = 10_000  # ms, of which a whole second is no large part
_LEAST_OF_HOURS = 7_200.0  # ms between elapsed hours, whose four decimals are right to 5 % of it
_ELAPSED = (("elapsed_h", 3.6e6), ("elapsed_s", 1e3), ("elapsed_ms", 1.0))
_SAMPLES, _TIME = b"consumed samples: ", b"elapsed time per iteration (ms):"
_GLUED = b"} {'loss':"  # Reports whose ends of lines a page took away.
_PATTERNS = byte_patterns("trainers.toml")

_HALF = 0.5e-3  # of the last digit of a rate
_WHOLE, _PRINTED = 1, 2  # worth of reports that are made of timers, and of those that are printed


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
    beside: dict[str, str] = msgspec.field(default_factory=dict)  # Timers outside of the field `s`.
    # The same for timers that are sums since the last report.
    sums: dict[str, str] = msgspec.field(default_factory=dict)
    # The same for means since the start of the epoch, by the names of a field and of timers: means
    # between two reports follow from them, where iterations are left out.
    means: dict[str, str] = msgspec.field(default_factory=dict)
    less: int = 0  # Lines before the sign that may belong to the record.
    more: int = 0  # Lines after it.
    is_loose: bool = False  # Whether those lines need not begin with a blank.
    # Iterations that the report is the mean of; None: by numbers, or all from the field `first` on.
    span: int | None = None
    stamped: bool = False  # Whether durations follow from the times at which lines were written.
    # Properties of the job: name to a regular expression with one group. Such a line is no report.
    # With a `note`, they are counts, and it is made if their sum is large for the reports so far.
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    is_total: bool = False  # Whether such counts are those since the start.
    # Regular expression for the name of a timer and its ms, searched for in the line's group
    # `phases` or else in the record. Such a line adds timers to the report before it.
    phases: str = ""
    renamed: dict[str, str] = msgspec.field(default_factory=dict)  # Parts of names of timers.
    # Timers that add up to an iteration: they are a report if the program prints no better one.
    whole: tuple[str, ...] = ()
    worth: int = 2  # Of several kinds of reports of a program, those that are worth most are used.
    breaks: bool = False  # Whether the time until the next report is not that of its iterations.
    is_of_slowest: bool = False  # Whether each timer shows the slowest rank in that timer.
    pause: str = ""  # What it times instead of iterations: evaluation, save or hooks.
    note: str = ""  # What a reader must know about the times.
    note_of_whole: str = ""  # The same if `whole` makes the reports.


@cache
def wordings() -> tuple[Wording, ...]:
    """All rows of the table; the first program wins a tie."""
    return msgspec.convert(table_beside(__package__, "reports.toml")["report"], tuple[Wording, ...])


@cache
def _signs() -> Signs[Wording]:
    return Signs(wordings())


@cache
def _compiled(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.replace("NUMBER", NUMBER.decode()).encode())


class _Means(NamedTuple):
    """Means since the start of an epoch, as a report prints them."""

    row: int  # index of the report
    rank: int | None  # that printed it
    num: float  # iterations
    seconds: dict[str, float]  # time of an iteration, named ``s``, and of its timers


_Timed = tuple[str, int | None, int]  # Name of a timer, its rank if known, and its ns.


class ReportGrammar(Grammar):
    """The reports of one program."""

    _means: list[_Means] = msgspec.field(default_factory=list)

    _of_ranks: list[_Timed] = msgspec.field(default_factory=list)
    _waits: list[float] = msgspec.field(default_factory=list)  # ms, for slower ranks
    _before: tuple[float, float] | None = None  # number and elapsed time of the last report
    _samples: float = 0.0  # samples at the last report that names them
    _worth: int = 0  # that of the reports
    _paused_s: float = 0.0  # evaluations so far
    _steps: float = 0.0  # of all trainings with evaluations
    # Seconds of each kind of pause before the report of an index; 0 if they are not printed.
    _beside: dict[tuple[str, int], float] = msgspec.field(default_factory=dict)
    _waited: float = 0.0  # Share of the last evaluation that waited for input
    _stood_s: float = 0.0  # all that the times of lines leave out
    _of: float = 0.0  # iterations in an epoch
    _whole_s: float = 0.0  # of the last report
    _last_epoch: float | None = None  # in the report of a whole training, until the next one
    _early: Mapping[str, int] = msgspec.field(default_factory=dict)  # of a report that is cut off
    # Whether the only report so far is a rate, which says less than timers; None without reports.
    _is_rate_alone: bool | None = None

    def take_record(self, wording: Wording, record: bytes, line: re.Match[bytes]) -> None:
        """Add what a record holds: a report, timers or properties of the job."""
        if wording.facts:
            facts = {name: int(n) for name, n in _values(wording.facts, record).items()}
            if wording.note:
                before = {name: self.facts.get(name, 0) for name in facts}
                is_new = any(0 < before[name] < n for name, n in facts.items())
                if not wording.is_total:
                    is_new, facts = True, {name: n + before[name] for name, n in facts.items()}
                is_often = is_new and sum(facts.values()) > max(_MANY, len(self.rows) / 10)
                self.notes += [wording.note] if is_often and wording.note not in self.notes else []
            self.facts |= facts
        elif wording.pause and wording.worth < max(self._worth, 1):
            self._take_pause(wording, record, line)
        elif wording.breaks:
            self._before = None
        elif wording.phases:
            found = sorted(_phases(wording, record, line), key=lambda one: one[2])
            self._take_phases(wording, {name: ns for name, _, ns in found}, rank_in(record))
            if wording.is_of_slowest and self.rows and len(self._of_ranks) < _MAX_RATES:
                self._of_ranks += (one for one in found if one[1] is not None)
                self._waits.append(_waited(record, (self.rows[-1].duration_ns or 0) / 1e6))
        else:
            self._take_report(wording, record, line)

    def _is_better(self, wording: Wording) -> bool:
        """Whether reports of a wording are used; lesser ones before it are dropped."""
        if wording.worth > self._worth:
            self._start_again()
            self._worth = wording.worth
        return wording.worth == self._worth

    def _start_again(self) -> None:
        self._worth = 0
        if self.rows:
            self.num_timer_lines = 0
            for kept in (self.rows, self.timers, self.notes, self._means, self._beside):
                kept.clear()

    def _take_phases(self, wording: Wording, timers: Mapping[str, int], rank: int | None) -> None:
        """Add timers to the last report, or make a report of them."""
        note = wording.note
        if "forward-compute" in timers and not self._early:
            self._early = timers
        if not wording.whole and self._worth == _WHOLE:
            return  # part of a line that is cut off
        if wording.whole and self._is_rate_alone:
            self._is_rate_alone = False
            self._start_again()
        if wording.whole and self._worth < _PRINTED:
            # A paste may end within the last line, behind its two passes.
            least = wording.whole if wording.worth else wording.whole[:2]
            if not timers.keys() >= set(least) or not self._is_better(wording):
                return
            whole = sum(timers.get(name, 0) for name in wording.whole)
            self.add(Row(None, duration_ns=whole, rank=rank))
            note = wording.note_of_whole or note
        self.add_timers(timers)
        self.is_of_slowest_ranks |= wording.is_of_slowest and bool(self.rows)
        if note and note not in self.notes and self.rows:
            self.notes.append(note)

    def finish(self) -> None:
        """A few parts of iterations need not be typical; a rate without a time is of a batch."""
        if self._means:
            self._separate()
        whole = [("", 0, row.duration_ns) for row in self.rows]
        self.notes += slow_rank([*whole, *self._of_ranks], fewest=1)[1] if self._of_ranks else []
        known = [row.duration_ns / 1e6 for row in self.rows if row.duration_ns]
        if self._waits and known and (wait := median(self._waits)) > _LONG_WAIT * median(known):
            self.notes.append(NOTES["slower_ones"].format(format_duration(1e6 * wait)))
        if self._early and self.rows and not self.timers:  # Megatron-LM prints them behind
            self.add_timers(self._early)
        if self._worth < _WHOLE and 0 < len(self.rows) < _FEWEST_PARTS:
            self.notes.append(NOTES["few_parts"])
        self._set_apart()
        batch = self.facts.get("global_batch_size")
        if self.rates and batch and not self.rows:
            for rate in self.rates:
                self.add(Row(iteration=None, duration_ns=s_to_ns(batch / rate), samples_per_s=rate))
            self.notes.append(NOTES["of_a_batch"])

    def _take_pause(self, wording: Wording, record: bytes, line: re.Match[bytes]) -> None:
        """Keep an evaluation or a checkpoint: its time, or that of all if each of its batches."""
        values = _all_values(wording, record, line)
        if values.get("iteration") != 0.0 and len(self._beside) < _MAX_RATES:
            seconds = values.get("whole_s", 0.0) or values.get("s", 0.0) * values.get("of", 0.0)
            self._beside[wording.pause, len(self.rows)] = seconds
            waited = sum(_values(wording.timers, record).values())
            self._waited = waited / values["s"] if waited and values.get("s") else self._waited

    def _set_apart(self) -> None:
        """Take evaluations and checkpoints from the iterations that hold them, and note them."""
        behind = {at for _, at in self._beside}
        plain = [at for at, row in enumerate(self.rows) if row.duration_ns and at not in behind]
        usual = near(np.array([self.rows[at].duration_ns for at in plain] or [0]))
        for (kind, at), printed in self._beside.items() if self.rows else ():
            row, seconds = self.rows[min(at, len(self.rows) - 1)], printed
            before = self.rows[max(at - 1, 0)].iteration or 0
            ns, span = row.duration_ns or 0, row.span or max((row.iteration or 0) - before, 1)
            each = float(usual[min(bisect_left(plain, at), len(usual) - 1)])
            excess = (ns - each) * span / NS_PER_S * (at < len(self.rows))
            if printed < 2 * excess and ns > _FAR * each and (printed or len(behind) > 1):
                seconds = printed or excess  # it is in that report
                less = max(ns - seconds / span * NS_PER_S, each)
                self.rows[at] = row._replace(duration_ns=round(less))
            number = (self.rows[max(at - 1, 0)] if printed else row).iteration
            if seconds and number is not None and (kind != "hooks" or not self.pauses):
                self.pauses[kind, number] = seconds
        first, last = (self.rows[at].iteration or 0 if self.rows else 0 for at in (0, -1))
        self.note_pauses(self._of and max(self._of, last - first), self._waited)

    def _separate(self) -> None:
        """Use means between reports instead of single iterations, if others are between."""
        ordered = sorted(self._means, key=lambda one: -1 if one.rank is None else one.rank)
        ranks = [(one, other) for one, other in pairwise(ordered) if one.rank == other.rank]
        is_each = ranks and median(other.num - one.num for one, other in ranks) == 1
        means = [s_to_ns(one.seconds["s"]) for one in self._means]
        are_single = [self.rows[one.row].duration_ns for one in self._means] != means
        if self._are_of_reports(ordered):
            for one, other in ranks:
                row, span = self.rows[other.row], max(round(other.num - one.num), 1)
                each_ns = (row.duration_ns or 0) // span
                self.rows[other.row] = row._replace(duration_ns=each_ns, span=span)
            self.notes.append(NOTES["one_or_all"].format("", "all"))
            return
        if is_each and are_single:
            return
        from_one = [one._replace(num=one.num - 1) for one in self._means]
        parts = _between(self._means) or (_between(from_one) if from_one[0].num else [])
        for before, one in pairwise(() if are_single else parts):
            start, end = (self.rows[each.row].at_s or math.inf for each in (before, one))
            if one.num * one.seconds["s"] > IMPOSSIBLE * (1 + end - start) > IMPOSSIBLE:
                parts = []  # a resumed training, whose means begin with it
        if len(parts) < 2:  # the digits do not suffice, or these are means of something else
            parts = self._means[-1:] if parts else self._means
            self.notes.append(NOTES["since_start"])
        elif are_single:
            self._find_stalls(parts[1:])
        for one in self._means:
            self.rows[one.row] = self.rows[one.row]._replace(duration_ns=None)
        self.timers |= {name: TimerValues() for name in parts[0].seconds if name != "s"}
        for one in parts:
            ns = {name: s_to_ns(max(each, 0.0)) or 0 for name, each in one.seconds.items()}
            whole = self.rows[one.row]._replace(duration_ns=ns.pop("s"), span=whole_number(one.num))
            self.rows[one.row] = whole
            for name, each in ns.items():
                self._add_timer(self.timers.setdefault(name, TimerValues()), one.row, each)

    def _are_of_reports(self, means: Sequence[_Means]) -> bool:
        """Whether means are those of the times in reports, not of all iterations between them."""
        told = [(self.rows[one.row].duration_ns or 0) / NS_PER_S for one in means[:_FEWEST_PARTS]]
        off = abs(sum(told) - len(told) * means[len(told) - 1].seconds["s"])
        return off < _SAME * sum(told) and told[-1] > (1 + _MOST_ERROR) * told[0]

    def _find_stalls(self, parts: Sequence[_Means]) -> None:
        """Time per iteration that neither printed single ones nor waits for input explain."""
        single = sorted(self.rows[one.row].duration_ns or 0 for one in self._means)
        known = (one.num * (one.seconds["s"] - one.seconds.get("data", 0.0)) for one in parts)
        mean = sum(known) / sum(one.num for one in parts) * NS_PER_S
        if len(single) > _FEWEST_PARTS and max(single[-2], 2 * median(single)) < mean:
            self.unprinted_ns = round(mean - median(single))

    def _take_report(self, wording: Wording, record: bytes, line: re.Match[bytes]) -> None:
        values = _all_values(wording, record, line)
        if "pause_s" in values:
            if values.get("epoch", -1.0) != self._last_epoch:  # during a training, not after it
                self._paused_s, self._last_epoch = self._paused_s + values["pause_s"], None
            return
        steps = values.get("whole_s", 0.0) * values.get("per_s", 0.0)
        if round(steps) and abs(steps - round(steps)) <= _HALF * values["whole_s"] < 0.5:
            values["per_s"] = round(steps) / values["whole_s"]  # more digits than are printed
        if 0 < self._paused_s < values.get("whole_s", 0.0) and "per_s" in values:
            values["per_s"] /= 1 - self._paused_s / values["whole_s"]
            self._steps += steps
            self.pauses["evaluation", round(self._steps)], self._paused_s = self._paused_s, 0.0
        last = self.rows[-1] if self.rows else None
        if values.get("rate", 0.0) > 0 and len(self.rates) < _MAX_RATES:
            self.rates.append(values["rate"])
        mfu = values.get("mfu_percent", 0.0) / 100 or values.get("mfu", 0.0)
        if mfu > 0 and len(self.mfu) < _MAX_RATES:
            self.mfu.append(mfu)
        beside = _values(wording.beside, record)
        values |= {"s": values["s"] + sum(beside.values())} if beside else {}
        was = self._before[1] if self._before else 0.0
        is_restart = values.get("elapsed_s", was) * 1e3 < was  # its clock starts again
        number, ns, span = self._timed(wording, values)
        self._of = values.get("of", 0.0)
        start = line[0][: 0 if is_restart else _MAX_LINE if wording.stamped else _MAX_START]
        of_bar = values.get("elapsed_s") if "s" in values else None
        stamp = stamp_s(start) or of_bar  # not of a restart: what passed before it is no pause
        is_timed = ns is not None or (wording.stamped and stamp is not None)
        if not is_timed and not any(name in values for name in RATES[:3]):
            self.num_unknown += not values.keys() & {"elapsed_ms", "elapsed_s", "elapsed_h", "rate"}
            return
        if ns is None and 0 < self._worth < _PRINTED:  # the rest of a report that is made of timers
            rate = values.get("samples_per_s")
            self.rows[-1] = self.rows[-1]._replace(iteration=number, samples_per_s=rate)
            return
        if not self._is_better(wording):
            return
        rank = whole_number(values.get("rank", rank_in(record)))
        is_again = last and number is not None and (last.iteration, last.rank) == (number, rank)
        if last and "whole_s" in values and ns:  # all ranks print it
            is_again = abs(self._whole_s - values["whole_s"]) < _HALF * values["whole_s"]
        if self.rows and is_again:
            return  # a progress bar repeats its last report
        if wording.note and wording.note not in self.notes:
            self.notes.append(wording.note)
        self._is_rate_alone = ns is None and self._is_rate_alone is None
        self._whole_s, self._last_epoch = values.get("whole_s", 0.0), values.get("epoch")
        stood = sum(s for (_, at), s in [*self._beside.items()][-3:] if at == len(self.rows))
        if stamp is not None and last and last.at_s is not None:
            gap = stamp - self._stood_s - last.at_s
            self._stood_s += min(stood, gap) if stood <= IMPOSSIBLE * gap else 0.0
        if stamp is not None:
            stamp -= self._stood_s
        self.add(Row._make((number, ns, span, *map(values.get, RATES), rank, stamp)))
        self.num_not_finite += has_lost(record)
        if "s" in (means := _values(wording.means, record)):
            count = values.get("iteration", 0.0) + 1  # as most programs count from 0
            self._means.append(_Means(len(self.rows) - 1, rank, count, means))
        found = _values(wording.timers, record) | beside
        if last and last.iteration is not None and number is not None:
            span = max(number - last.iteration, 1)
            found |= {name: value / span for name, value in _values(wording.sums, record).items()}
            if stamp and last.at_s and (work := values.get("work_per_s")):
                waits = 1 - values.get("samples_per_s", work) / work
                found["data"] = max(waits * (stamp - last.at_s) / span, 0.0)
        self.add_seconds(found)

    def _timed(
        self, wording: Wording, values: dict[str, float]
    ) -> tuple[int | None, int | None, int | None]:
        """Number, duration and span of a report; adds the samples per second to its values."""
        number, span, rate = values.get("iteration"), wording.span, values.get("per_s", 0.0)
        epoch = values["nth"] - 1 if "nth" in values else values.get("epoch")
        if number is not None and epoch is not None and "of" in values:
            number += epoch * values["of"]  # since the start of the training
        ns = s_to_ns(1 / rate if rate > 0 else values.get("s"))
        ns = s_to_ns(values["ms"] / 1e3) if "ms" in values else ns
        if number and "whole_s" in values and not rate:
            ns, span = s_to_ns(values["whole_s"] / number), whole_number(number)
        if ns and number is not None and "first" in values:
            span = whole_number(number - values["first"] + 1)
            ns //= max(span or 1, 1)
        samples, batch = values.get("samples"), values.get("batch")
        if batch is not None and 1 <= batch < MAX_COUNT:
            self.facts["global_batch_size"] = int(batch)
        if "tokens" in values and values.get("tokens_per_s", 0.0) > 0:
            ns = ns or s_to_ns(values["tokens"] / values["tokens_per_s"])
        if samples is not None:
            batch = self.facts.get("global_batch_size")
            number = samples / batch if batch else None
        if "since_s" in values:
            values["elapsed_ms"] = (self._before or (0.0, 0.0))[1] + values["since_s"] * 1e3
        is_of_wall = "elapsed_s" in values
        is_whole = is_of_wall and values["elapsed_s"].is_integer()
        least = _LEAST_OF_HOURS if "elapsed_h" in values else _LEAST_OF_SECONDS * is_whole
        elapsed = next((values[name] * ms for name, ms in _ELAPSED if name in values), None)
        if elapsed is not None and number is not None:
            since, of = self._since(number, elapsed, is_of_wall=is_of_wall, least=least)
            if not ns or (since and ns > IMPOSSIBLE * since):
                if ns and len(self.rows) == 1:
                    self._start_again()  # the first report is as wrong
                ns, span = since, of
                values.pop("tokens_per_s", None)
        elif samples is not None and elapsed is None:  # of the whole job, or since the last report
            is_whole, self._samples = samples > self._samples, samples
            number, span = (number, None) if is_whole else (None, whole_number(number))
        if ns and batch and batch >= 1:
            values.setdefault("samples_per_s", batch / (ns / 1e9))
        return whole_number(number), ns, span

    def _since(
        self, number: float, elapsed: float, *, is_of_wall: bool, least: float
    ) -> tuple[int | None, int | None]:
        """Duration and span since the last report of an elapsed time in ms."""
        before = self._before
        is_again = before is not None and number == before[0] and not is_of_wall  # a validation
        if is_again or (before is not None and 0 <= elapsed - before[1] < least):
            return None, None
        self._before = (number, elapsed)
        if before is None or number <= before[0] or elapsed < before[1]:
            return None, None
        span = number - before[0]
        ns = s_to_ns((elapsed - before[1]) / span / 1e3) if span >= 1 else None
        return ns, whole_number(span)


class Reports:
    """The grammars of all programs of the table."""

    def __init__(self) -> None:
        programs = dict.fromkeys(row.program for row in wordings())
        self.grammars = {name: ReportGrammar(name=name) for name in programs}

    def take(self, block: bytes) -> None:
        """Read a block of whole lines."""
        if block.count(_SAMPLES) > block.count(_TIME):
            block = _PATTERNS["wrapped"].sub(_joined, block)
        block = block.replace(_GLUED, _GLUED.replace(b" ", b"\n"))
        for start, end, wording in _lines(block):
            grammar = self.grammars[wording.program]
            line = None if grammar.is_full else _compiled(wording.line).match(block, start, end)
            if line is not None:
                grammar.take_record(wording, _record(block, start, end, wording), line)


def _joined(wrapped: re.Match[bytes]) -> bytes:
    """One line, which a terminal broke within words, or a page between them."""
    parts = wrapped[0].split(b"\n")
    return b"".join(parts) if _TIME in b"".join(parts) else b" ".join(parts)


def _between(means: Sequence[_Means]) -> list[_Means]:
    """Means between reports, of many enough iterations for the digits; empty if there are none.

    Programs that start again with a new epoch, or that print means of a window, have none.
    """
    values = [each for one in means for each in one.seconds.values()]
    digits = (d for d in range(7) if all(abs(v - round(v, d)) < 1e-9 for v in values))
    half = 0.5 * 10 ** -next(digits, 7)
    parts: list[_Means] = []
    starts: dict[int | None, _Means] = {}
    for one in means:
        start = starts.get(one.rank, one._replace(num=0.0))
        if one.num <= start.num:
            start = starts[one.rank] = one._replace(num=0.0)
        if one.row and one.num < _FEWEST_PARTS:
            continue  # the means of the reports that follow hold the first of an epoch
        span, error = one.num - start.num, half * (one.num + start.num)
        was = start.seconds
        sums = {k: one.num * v - start.num * was[k] for k, v in one.seconds.items() if k in was}
        if min(sums.values()) < -error:
            return []
        if error <= _MOST_ERROR * sums["s"]:
            seconds = {name: value / span for name, value in sums.items()}
            parts.append(_Means(one.row, one.rank, span, seconds))
            starts[one.rank] = one
    return parts


def _phases(wording: Wording, record: bytes, line: re.Match[bytes]) -> list[_Timed]:
    """Each timer in a record with its rank, if the record names ranks below it, and its ns."""
    regex, name = _compiled(wording.phases), ""
    text = line["phases"] if "phases" in line.re.groupindex else record
    found = []
    for one in regex.finditer(text):
        label, *values = one.groups()
        name = label.decode("ascii", "replace") if label else name
        for old, new in wording.renamed.items():
            name = name.replace(old, new)
        told, rank = next(filter(None, values[::-1]), None), one.groupdict().get("rank")
        ms = to_float(told)
        if (ns := s_to_ns(_value(told) if ms is None else ms / 1e3)) is not None:
            found.append((name, int(rank) if rank else None, ns))
    return found


def _waited(record: bytes, whole: float) -> float:
    """The longest wait in ms for ranks that compute as much longer; 0 if the two differ.

    Without the least time, the last rank takes at most what its compute leaves of an iteration.
    """
    compute = apart = waited = 0.0
    for name, least, most in _PATTERNS["across"].findall(record):
        if name.endswith(b"compute"):
            compute, apart = compute + float(most), apart + float(most) - float(least or "-inf")
        else:
            left = float(least) if least else max(whole - compute, 0.0)
            waited = max(waited, float(most) - left)
    is_alike = math.isinf(apart) or min(apart, waited) > _ALIKE * max(apart, waited)
    return min(apart, waited) * is_alike


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


def _record(block: bytes, start: int, end: int, wording: Wording) -> bytes:
    """A line with the indented lines around it, and the line before those."""
    for _ in range(wording.less):
        before = block.rfind(b"\n", max(start - _MAX_LINE, 0), max(start - 1, 0)) + 1
        is_part = wording.is_loose or _PATTERNS["indented"].match(block, start)
        if start <= 0 or not is_part or _compiled(wording.line).match(block, before, start):
            break  # at the record before it, at the latest
        start = before
    for _ in range(wording.more):
        following = block.find(b"\n", end + 1, end + _MAX_LINE)
        if following < 0 or not (wording.is_loose or _PATTERNS["indented"].match(block, end + 1)):
            break
        end = following
    return block[start:end]


def _values(patterns: Mapping[str, str], record: bytes) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, pattern in patterns.items():
        match = _compiled(pattern).search(record)
        value = _value(next((text for text in match.groups() if text), None)) if match else None
        if value or (value is not None and name not in RATES[:4]):
            found[name] = value
    return found


def _all_values(wording: Wording, record: bytes, line: re.Match[bytes]) -> dict[str, float]:
    """The fields of a record, and the groups of its line."""
    named = ((name, _value(text)) for name, text in line.groupdict().items())
    return _values(wording.fields, record) | {k: v for k, v in named if v is not None}


def _value(text: bytes | None) -> float | None:
    """A number with thousands separators, as ``1.23K``, or in s as ``9.1 ms`` or ``1:02:03``."""
    if not text:
        return None
    if (known := to_float(text)) is not None or (known := clock_s(text)) is not None:
        return known
    suffix = _SUFFIX.search(text)
    number = to_float(text[: suffix.start()]) if suffix else None
    return None if number is None or suffix is None else number * _MULTIPLES[suffix[1]]
