"""Base class of the grammars of training logs, and the log built from the best of them.

A grammar has signs to search for, and collects rows, timers and facts.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import compress
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from distprof.bounds import Patterns, byte_patterns_beside, table_beside
from distprof.ingest.output.read import prefix_rank
from distprof.run.logs import TrainingFacts, TrainingLog
from distprof.schema import ABSENT, Floats, Int64Array
from distprof.terms import AWAITED, INPUT_TIMER
from distprof.units import (
    NS_PER_S,
    capitalized,
    few_names,
    format_duration,
    format_ratio,
    name_ranks,
    verb,
)

RATES = ("samples_per_s", "tokens_per_s", "tokens_per_s_per_device", "tflops", "loss")

_MOST = {"samples_per_s": 1e10, "tokens_per_s": 1e12, "tokens_per_s_per_device": 1e9, "tflops": 2e4}
"""Rates that no job reaches: beyond, a counter of the program is wrong."""

MAX_ROWS = 500_000
MAX_TIMERS = 200
MAX_TIMER_VALUES = 4_000_000

MAX_SECONDS = 1e7  # A longer time of an iteration (four months) must be in another unit
MAX_COUNT = 1 << 53

_SOME_YEAR = 2000  # Taken for dates without a year, which may be the 29th of February
NUMBER = rb"[-+]?(?:\d{1,25}(?:\.\d{0,25})?|\.\d{1,25})(?:[eE][-+]?\d{1,4})?"
"""Unambiguous, so hostile lines cause no backtracking."""


def byte_patterns(name: str) -> Patterns[bytes]:
    """The regular expressions of a table of the readers, by name."""
    return byte_patterns_beside(__package__, name, NUMBER=NUMBER.decode())


NOTES: Mapping[str, str] = table_beside(__package__, "notes.toml")
"""What readers must know about times, by name; numbers are filled in."""

_PATTERNS = byte_patterns("trainers.toml")


class Row(NamedTuple):
    """One report on iterations."""

    iteration: int | None  # Number of the last iteration that it covers, None if unknown.
    duration_ns: int | None = None  # Duration of one iteration, None if unknown.
    # Number of iterations that it is the mean of; None if it follows from the numbers.
    span: int | None = None
    samples_per_s: float | None = None  # All ranks together.
    tokens_per_s: float | None = None  # All ranks together.
    tokens_per_s_per_device: float | None = None  # Per GPU.
    tflops: float | None = None  # Per GPU.
    loss: float | None = None  # As printed.
    rank: int | None = None  # Rank that printed the report, None if unknown.
    at_s: float | None = None  # Time of the report in seconds from any origin, None if unknown.


class TimerValues(msgspec.Struct):
    """Values of one timer."""

    # Indices of the reports that they belong to, ascending.
    report: array[int] = msgspec.field(default_factory=lambda: array("q"))
    ns: array[int] = msgspec.field(default_factory=lambda: array("q"))  # Time per iteration.


class Grammar(msgspec.Struct):
    """A format that is searched for in every block of a log. Subclasses define it."""

    name: str = ""  # Program or format of the log, for display.
    signs: tuple[bytes, ...] = ()  # Byte strings, one of which is in every block worth reading.
    rows: list[Row] = msgspec.field(default_factory=list)  # Reports, in the order of the log.
    # Name of a timer to its values.
    timers: dict[str, TimerValues] = msgspec.field(default_factory=dict)
    # Properties of the job, by the names of :class:`TrainingFacts`' fields and axes.
    facts: dict[str, int] = msgspec.field(default_factory=dict)
    num_unknown: int = 0  # Lines with a sign that could not be read.
    num_not_finite: int = 0  # Reports whose loss is NaN or infinite.
    num_timer_lines: int = 0  # Lines with timers.
    num_timer_values: int = 0  # Number of timer values kept.
    # Throughput printed apart from reports, samples per second of all ranks together.
    rates: list[float] = msgspec.field(default_factory=list)
    mfu: list[float] = msgspec.field(default_factory=list)  # FLOP utilisations, as printed, 0 to 1.
    is_full: bool = False  # Whether some reports or timer values were dropped because of a limit.
    is_of_slowest_ranks: bool = False  # Whether each timer shows the slowest rank in that timer.
    unprinted_ns: int | None = None  # Time per iteration that printed iterations do not have.
    notes: list[str] = msgspec.field(default_factory=list)  # Assumptions.
    # Seconds of evaluations and checkpoints, by kind and the iteration after which they come.
    pauses: dict[tuple[str, int], float] = msgspec.field(default_factory=dict)

    def take(self, block: bytes) -> None:
        """Read a block of whole lines that contains a sign."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called after the last block."""

    def add(self, row: Row) -> None:
        """Add a report, unless there are too many."""
        if len(self.rows) >= MAX_ROWS:
            self.is_full = True
        else:
            self.rows.append(row)

    def add_timers(self, timers: Mapping[str, int]) -> None:
        """Add timers to the last report; those before the first one are of the startup."""
        self.num_timer_lines += 1
        index = len(self.rows) - 1
        for name, ns in timers.items() if self.rows else ():
            is_over = name not in self.timers and len(self.timers) >= MAX_TIMERS
            if not (is_over or name.endswith("-setup")):  # of a run that follows another one
                self._add_timer(self.timers.setdefault(name, TimerValues()), index, ns)

    def add_seconds(self, timers: Mapping[str, float]) -> None:
        """Add timers in seconds, if there are any."""
        if timers:
            found = {name: s_to_ns(seconds) for name, seconds in timers.items()}
            self.add_timers({name: ns for name, ns in found.items() if ns is not None})

    def note_pauses(self, every: float = 0.0, waited: float = 0.0) -> None:
        """Note long evaluations and checkpoints; ``every``: iterations in an epoch, if known.

        ``waited`` is the share of evaluations that waits for input.
        """
        times = [row.duration_ns for row in self.rows if row.duration_ns]
        usual = median(times or [ns for *_, ns in _ticks(self.rows)] or [math.inf])
        found = []
        for kind in {kind for kind, _ in self.pauses}:
            at = [number for one, number in self.pauses if one == kind]
            period = (at[-1] - at[0]) / max(len(at) - 1, 1) or every or at[0]
            each = sum(self.pauses[kind, number] for number in at) / len(at)
            found += [(each / period, each, kind, len(at) == 1 and every)] if period > 0 else []
        whole = sum(one[0] for one in found) + usual / NS_PER_S
        for share, each, kind, is_once in sorted(found):
            kind += "_once" if is_once else ""
            kind += "_waits" if kind.startswith("evaluation") and waited > _MOSTLY else ""
            took = format_duration(each * NS_PER_S), format_duration(every * usual)
            noted = NOTES[kind].format(format_ratio(share / whole), format_ratio(waited), *took)
            self.notes += [noted] * (share >= LEAST_EVALUATION * whole)

    def _add_timer(self, values: TimerValues, index: int, ns: int) -> None:
        """Add a value; of several of one report, the last one counts."""
        if self.num_timer_values < MAX_TIMER_VALUES and not self.is_full:
            values.report.append(index)
            values.ns.append(ns)
            self.num_timer_values += 1
        else:
            self.is_full = True


def has_lost(record: bytes) -> bool:
    """Whether a report shows a loss that is NaN or infinite."""
    return (b"nan" in record or b"inf" in record) and _PATTERNS["not_finite"].search(
        record
    ) is not None


def line_around(block: bytes, at: int, most: int) -> tuple[int, int]:
    """Start and end of the line around a position; of a longer line, from there to its end."""
    start = block.rfind(b"\n", max(at - most, 0), at) + 1
    if start == 0 and at > most:
        start = at - most
    end = block.find(b"\n", at)
    return start, len(block) if end < 0 else end


def to_float(text: bytes | None) -> float | None:
    """A finite number; None for anything else."""
    if text is None:
        return None
    try:
        value = float(text.replace(b",", b""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def rank_in(line: bytes) -> int | None:
    """The rank that printed a line, as its launcher or the program writes it."""
    known = prefix_rank(line[:200].decode("utf-8", "replace"))
    found = None if known is not None else _PATTERNS["rank"].search(line, 0, 200)
    return known if found is None else int(found[1] or found[2])


def clock_s(text: bytes) -> float | None:
    """Seconds of, for example, ``1 day, 2:03:04``, ``12:30``, ``1h 2m`` and ``0m 31s``."""
    found = _PATTERNS["clock"].fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    parts = zip(found.groups(b"0"), (86_400, 3_600, 60, 1), strict=True)
    return sum(float(part) * seconds for part, seconds in parts)


def whole_number(value: float | None, limit: int = MAX_COUNT) -> int | None:
    """A count or a rank; None if it cannot be one."""
    return round(value) if value is not None and 0 <= value < limit else None


def s_to_ns(value: float | None) -> int | None:
    """Seconds as int ns; None if it cannot be the time of an iteration."""
    return None if value is None or not 0 <= value < MAX_SECONDS else round(value * NS_PER_S)


def stamp_s(text: bytes) -> float | None:
    """The last date and time in a text as seconds since 1970, ignoring time zones.

    Without a date, those since midnight of a time at its beginning.
    """
    found = next(iter(deque(_PATTERNS["stamp"].finditer(text), maxlen=1)), None)
    if found is None:
        clock = _PATTERNS["time_of_day"].match(text)
        return sum(int(clock[n]) * 60 ** (3 - n) for n in (1, 2, 3)) * 1.0 if clock else None
    whole = _moment_s(*found.group(1, 2, 3, 4, 5, 6, 8))
    return None if whole is None else whole + (float(b"0." + found[7]) if found[7] else 0.0)


@lru_cache(64)  # ranks report the same iteration within a second
def _moment_s(*parts: bytes | None) -> float | None:
    year, month, day, hour, minute, second = (int(part or _SOME_YEAR) for part in parts[:6])
    if parts[6]:
        hour = hour % 12 + 12 * (parts[6] == b"P")
    try:
        moment = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
    return (moment - datetime(1970, 1, 1)).total_seconds()


_MOSTLY = 0.5  # Share of an evaluation from which it waits for input most of the time
LEAST_EVALUATION = 0.1  # Share of the training from which evaluations are named
IMPOSSIBLE = 1.5  # Ratio of a printed time to all time since the last report: it is wrong
_TINY = 0.05  # Share of the peak below which batches or waits matter more than kernels
_FEWEST_TICKS, _FEWEST_TIMED = 2, 3  # Ticks of the clock between two lines, and pairs of them
_LONGER = 1.25  # The same where all of many times are longer
_GAP = 50  # Ratio to the usual time from which a time between dates is not that of iterations
_NEAR = 7  # Neighbours on each side that say what is usual
_EVEN = 0.03  # Relative difference of a ratio that is a whole number
_FEWEST, _APART, _LEAST_EXCESS = 3, 1.2, 0.05
"""Times of each rank, their least ratio to those of others, and share of an iteration."""

TYPED, RUN, AGAIN = "timed phases", "Run number ", "Part by part"
"""Beginning of the name of a log that someone typed, and of notes on several runs in a text."""

FILE = "“"  # Beginning of a note on the slowest of several runs, by its file


USE = "Use of the GPU: "  # Beginning of a note on the share of its peak


def use_notes(share: float, of: str) -> list[str]:
    """That share, and what it means if it is tiny."""
    tiny = "So little use means that GPUs wait or lack work: a larger batch shows which."
    return [f"{USE}{of.format(format_ratio(share))}", *[tiny] * (share < _TINY)]


# The log ------------------------------------------------------------------------------------------

AXES = ("tp", "pp", "dp", "cp", "ep")
_LARGEST = 1 << 31


def best_of(grammars: Sequence[Grammar]) -> Grammar | None:
    """The first grammar with enough timed reports, or else with any; None without any report."""
    return max((one for one in grammars if one.rows), key=_has_times, default=None)


OF_THE_JOB = ("GPU memory is short", "torch.compile compiled", "Lightning warns")
"""Beginnings of notes that hold whichever program's reports are used."""


def to_log(
    chosen: Grammar, found: Sequence[Grammar], files: Sequence[str], num_lines: int
) -> TrainingLog:
    """The log of the chosen one of the grammars."""
    others = [grammar for grammar in found if grammar is not chosen]
    of_job = [n for other in others for n in other.notes if n.startswith(OF_THE_JOB)]
    notes = [*chosen.notes, *of_job]
    if ignored := ", ".join(other.name for other in others if other.rows):
        notes.append(NOTES["ignored"].format(chosen.name, ignored))
    if chosen.mfu and (mfu := median(chosen.mfu[len(chosen.mfu) // 2 :])) < 1:
        notes += use_notes(mfu, "an MFU of {}")
    lost = chosen.num_not_finite
    if lost and (chosen.rows[-1].loss is None or 20 * lost > len(chosen.rows)):  # it stays so
        notes.append(NOTES["not_finite"].format(lost, len(chosen.rows)))
    rows, kept, whose = _of_one_rank(chosen.rows, chosen.timers, notes)
    timers = {name: _timer(values, kept, len(rows)) for name, values in chosen.timers.items()}
    known = [row.duration_ns for row in rows if row.duration_ns is not None]
    if known and not median(known):
        notes.append(NOTES["coarse"])
        rows = [row._replace(duration_ns=None) for row in rows]
    rows, timers, unprinted_ns = _compared_with_the_clock(rows, timers, notes)
    notes += [NOTES["full"].format(len(rows), MAX_ROWS)] * chosen.is_full
    iteration, printed = _ints(row.iteration for row in rows), (g.rates for g in (chosen, *others))
    rates = {name: np.array([getattr(row, name) for row in rows], float) for name in RATES}
    notes += _without_impossible(rates)
    return TrainingLog(
        origin=chosen.name,
        files=tuple(files),
        whose=whose,
        iteration=iteration,
        span=_spans(rows),
        duration_ns=_ints(row.duration_ns or None for row in rows),  # less than a digit is none
        **rates,
        printed_samples_per_s=np.array(next(filter(None, printed), []), float),
        timers=timers,
        is_of_slowest_ranks=chosen.is_of_slowest_ranks,
        unprinted_ns=chosen.unprinted_ns or unprinted_ns,
        facts=_facts(chosen, others),
        num_lines=num_lines,
        num_reports=len(chosen.rows) + chosen.num_timer_lines,
        num_unknown=chosen.num_unknown,
        num_restarts=int(np.sum(np.diff(iteration[iteration != ABSENT]) < 0)),
        notes=tuple(notes),
    )


def _without_impossible(rates: dict[str, Floats]) -> list[str]:
    """Drop rates that no job reaches; notes on the highest ones."""
    notes = []
    for name, most in _MOST.items():
        if (is_wrong := rates[name] > most).any():
            unit = name.replace("_per_s", "/s").replace("_per_device", " per GPU")
            notes.append(NOTES["impossible"].format(f"{rates[name][is_wrong].max():.3g} {unit}"))
            rates[name][is_wrong | (2 * is_wrong.sum() > len(is_wrong))] = np.nan
    return notes


def _has_times(grammar: Grammar) -> tuple[bool, bool, bool]:
    """Whether many reports, and any, have a time or a date, and most of many have timers."""
    times = zip(*((row.duration_ns, row.at_s) for row in grammar.rows[:1_000]), strict=True)
    most = max(sum(each is not None for each in some) for some in times)
    timed = max((len(values.report) for values in grammar.timers.values()), default=0)
    return most >= 3, most > 0, most >= 3 and 2 * timed > len(grammar.rows)


def _of_one_rank(
    rows: Sequence[Row], timers: Mapping[str, TimerValues], notes: list[str]
) -> tuple[list[Row], Int64Array, str]:
    """Reports of one of several ranks, their positions, ABSENT if dropped, and its name."""
    ranks = {row.rank for row in rows}
    if len(ranks) < 2 or len({row.iteration for row in rows}) == len(rows):  # as of "10: loss"
        return list(rows), np.arange(len(rows), dtype=np.int64), ""
    counts = Counter(row.rank for row in rows)
    rank = max(counts, key=lambda r: (counts[r], -(r if r is not None else _LARGEST)))
    found = [("", row.rank, row.duration_ns) for row in rows]
    for name, each in timers.items():
        found += ((name, rows[at].rank, ns) for at, ns in zip(each.report, each.ns, strict=True))
    late, slow = slow_rank(found)
    rank = next((one for one in ranks if late == f"rank {one}"), rank)
    notes += slow
    notes.append(f"{len(ranks):,} ranks printed reports: distprof uses those of rank {rank}.")
    mine = np.fromiter((row.rank == rank for row in rows), bool, len(rows))
    place = np.where(mine, np.cumsum(mine) - 1, ABSENT)
    return [row for row in rows if row.rank == rank], place, f"rank {rank}"


def slow_rank(
    found: Iterable[tuple[str, int | str | None, int | None]], fewest: int = _FEWEST
) -> tuple[str, list[str]]:
    """The rank whose time is far above that of most, and a note: names, ranks or files, and ns.

    A rank spends longer in what waits for others the less it is late, so that does not count, but
    its wait for input does.
    """
    times: dict[str, dict[str, list[int]]] = {"": {}}
    for name, rank, ns in found:
        if ns is not None and rank is not None:
            whose = rank if isinstance(rank, str) else f"rank {rank}"
            times.setdefault(name, {}).setdefault(whose, []).append(ns)
    every = sorted(median(each) for each in times[""].values()) or [math.inf]
    notes = [(False, _LEAST_EXCESS * median(every), "", "")]
    for name, of in times.items():
        usual = sorted((median(each), rank) for rank, each in of.items() if len(each) >= fewest)
        most = range((len(usual) + 1) // 2, len(usual))
        at = max(most, key=lambda k: usual[k][0] - usual[k - 1][0], default=0)
        is_input = bool(INPUT_TIMER.search(name))
        waits = not is_input and _PATTERNS["waits"].search(name.encode())
        if at and not waits and usual[at][0] > _APART * usual[at - 1][0]:
            rest, longest, late = usual[at - 1][0], usual[at][0], [rank for _, rank in usual[at:]]
            far = f"{capitalized(named(late))} {verb(late, 'take')} {format_duration(longest)}"
            what = f"for {name}" if name else "per iteration"
            others = "other" if at == 1 else f"{at:,} others at most"
            is_even = len(every) == len(usual) and every[-1] < _APART * every[0]
            end = AWAITED if is_input and is_even else "."
            note = f"{far} {what}, the {others} {format_duration(rest)}{end}"
            notes.append((is_input, longest - rest, late[-1], note))
    *_, slowest, note = max(one for one in notes if one[1] >= notes[0][1])
    return slowest, [note] * bool(note)


def named(ranks: Sequence[str]) -> str:
    """For example ``ranks 4-7`` of ``rank 4``, ``rank 5``, …; the first ones of files."""
    numbers = [rank.removeprefix("rank ") for rank in ranks]
    are_known = all(map(str.isdecimal, numbers))
    return name_ranks(map(int, numbers)) if are_known else few_names(ranks, _FEWEST)


def _ticks(rows: Sequence[Row]) -> Iterator[tuple[int, int, int]]:
    """First report, last one, and ns per iteration between the times of their lines.

    Between the two, the clock that lines show ticks often enough.
    """
    known = [row.at_s for row in rows if row.at_s is not None]
    least = _FEWEST_TICKS * (1.0 if all(at.is_integer() for at in known) else 1e-3)
    start, number, at = 0, -1, math.inf
    for end, row in enumerate(rows):
        if row.at_s is None or row.iteration is None:
            start, number, at = end, -1, math.inf
        elif row.iteration <= number or row.at_s < at:
            start, number, at = end, row.iteration, row.at_s
        elif row.at_s - at >= least or end == len(rows) - 1:
            if ns := s_to_ns((row.at_s - at) / (row.iteration - number)):
                yield start, end, ns
            start, number, at = end, row.iteration, row.at_s


def _compared_with_the_clock(
    rows: list[Row], timers: dict[str, Int64Array], notes: list[str]
) -> tuple[list[Row], dict[str, Int64Array], int | None]:
    """Durations from the times of lines, and timers, if reports have none or impossible ones.

    Also where printed ones leave out most of the time, and then that part of an iteration in ns.
    """
    ticks, printed = [*_ticks(rows)], _ints(row.duration_ns for row in rows)
    means = _means(printed, ticks)
    ratios = [tick[2] / mean for tick, mean in zip(ticks, means, strict=True) if mean > 0]
    ratio, why, unprinted = median(ratios or [0.0]), "", None
    is_known = (printed != ABSENT).any() and not 0 < ratio <= 1 / IMPOSSIBLE
    far = _LONGER if len(ratios) > _NEAR and min(ratios) > _LONGER else IMPOSSIBLE
    if not ticks or (is_known and ratio < far):
        notes += _pauses(rows, ticks, means) if len(ratios) >= _FEWEST_TIMED else []
        return rows, timers, None
    if ratio >= far:
        is_even = len(ratios) >= _FEWEST_TIMED and min(ratios) > ratio / IMPOSSIBLE
        is_multiple = is_even and abs(ratio - round(ratio)) < _EVEN * ratio
        if is_multiple or not is_even:
            notes += [NOTES["multiple"].format(round(ratio))] * int(is_multiple)
            return rows, timers, None
        why = ", because the printed ones are far shorter"
        unprinted = round(float(np.mean([tick[2] for tick in ticks]) - np.mean(means[means > 0])))
    elif ratios:
        why = ", because the printed ones are longer"
    notes.append(f"Iteration times are the differences between the times of lines{why}.")
    times = _ints(tick[2] for tick in ticks)
    usual = near(times)
    is_gap = times > _GAP * usual
    recurs = not is_gap.any() and np.count_nonzero(times > _FEWEST_TIMED * usual) > 1
    notes += _pauses(rows, ticks, usual) if recurs else []
    if is_gap.any():  # of a job that was started again, or stood
        gaps = [(ns, rows[start].iteration) for start, _, ns in compress(ticks, is_gap)]
        pauses = _pauses(rows, ticks, usual, _GAP)
        notes += pauses or [NOTES["gaps"].format(len(gaps), max(gaps)[1])]
        ticks = [*compress(ticks, ~is_gap)]
    wrong = dict.fromkeys(RATES[:4]) if ratios else {}  # they follow from printed times
    timed = [row._replace(duration_ns=None, span=None, **wrong) for row in rows]
    for start, end, ns in ticks:
        span = (rows[end].iteration or 0) - (rows[start].iteration or 0)
        timed[end] = timed[end]._replace(duration_ns=ns, span=span)
    ends = [end for _, end, _ in ticks]
    longest = max((int(column.max()) for column in timers.values()), default=0)
    is_longer = bool(ratios) and longest > IMPOSSIBLE * max(ns for *_, ns in ticks)
    if is_longer and max(ratios) > 2 * min(ratios):  # of single ones, perhaps
        return timed, {}, unprinted
    for name, column in timers.items():  # parts of a whole that is printed as longer are so, too
        means = _means(column, ticks)
        timers[name] = np.full_like(column, ABSENT)
        timers[name][ends] = np.where(means == ABSENT, means, means * (ratio if is_longer else 1))
    return timed, timers, unprinted


def _pauses(
    rows: Sequence[Row],
    ticks: Sequence[tuple[int, int, int]],
    usual: Int64Array | Floats,
    ratio: int = 3,
) -> list[str]:
    """A note on time between reports that is far longer than that of their iterations."""
    start, end, ns = (np.array(column) for column in zip(*ticks, strict=True))
    number = _ints(row.iteration for row in rows)
    spans = number[end] - number[start]
    excess = (ns - usual) * spans.astype(float)
    # Of a report over many iterations, a pause is a smaller part.
    far = (ns > ratio * usual) & (usual > 0)
    least = float(np.median(excess[far])) / 2 if far.any() else math.inf
    digit = _FEWEST_TICKS * NS_PER_S * all(float(rows[i].at_s or 0).is_integer() for i in start)
    is_longer = (far | ((excess > least) & (ns > _APART * usual))) & (excess > digit)
    is_longer &= spans < _GAP * np.median(spans)  # else some reports between are left out
    is_longer &= (ns < _GAP * usual) | (number[start] != number[0])  # else it starts again
    share = excess[is_longer].sum() / (ns * spans.astype(float)).sum()
    if share < LEAST_EVALUATION or is_longer.mean() > 0.5:
        return []
    at = int(np.lexsort((excess, is_longer))[-1])
    most, after = format_duration(round(excess[at])), int(number[start[at]])
    return [NOTES["pauses"].format(format_ratio(share), int(is_longer.sum()), most, after)]


def near(ns: Int64Array) -> Floats:
    """The usual time around each report: the median of it and its neighbours."""
    rows = np.lib.stride_tricks.sliding_window_view(
        np.pad(ns, _NEAR, mode="reflect"), 2 * _NEAR + 1
    )
    return np.asarray(np.median(rows, axis=1))


def _means(column: Int64Array, ticks: Sequence[tuple[int, int, int]]) -> Int64Array:
    """Mean of the known values of the reports after the first one to the last one of each."""
    parts = (column[start + 1 : end + 1] for start, end, _ in ticks)
    known = (part[part != ABSENT] for part in parts)
    return _ints(round(float(part.mean())) if len(part) else None for part in known)


def _spans(rows: Sequence[Row]) -> Int64Array:
    """Iterations that each report is the mean of: as printed, else from iteration numbers."""
    number = _ints(row.iteration for row in rows)
    steps = np.diff(number, prepend=number[:1]) * (np.roll(number, 1) != ABSENT)
    usual = int(np.median(steps[steps > 0])) if (steps > 0).any() else 1
    is_span = (steps > 0) & (steps < _GAP * usual)  # else some reports between are left out
    by_numbers = np.where(is_span & (number != ABSENT), steps, usual)
    printed = _ints(row.span for row in rows)
    return np.maximum(np.where(printed > 0, printed, by_numbers), 1)


def _timer(values: TimerValues, kept: Int64Array, count: int) -> Int64Array:
    column = np.full(count, ABSENT, np.int64)
    place = kept[np.frombuffer(values.report, np.int64)]
    column[place[place != ABSENT]] = np.frombuffer(values.ns, np.int64)[place != ABSENT]
    return column


def _facts(chosen: Grammar, others: Sequence[Grammar]) -> TrainingFacts:
    facts: dict[str, int] = {}
    for grammar in (*others, chosen):
        facts |= {name: n for name, n in grammar.facts.items() if 0 < n < _LARGEST}
    mesh = {axis: facts[axis] for axis in AXES if axis in facts}
    fields = TrainingFacts.__struct_fields__
    known: dict[str, Any] = {name: n for name, n in facts.items() if name in fields}
    return TrainingFacts(mesh=mesh, **{"num_micro_batches": _num_micro_batches(facts)} | known)


def _num_micro_batches(facts: dict[str, int]) -> int | None:
    """Micro-batches per pipeline: each data-parallel replica's share of the global batch."""
    size, batch, dp = (facts.get(n) for n in ("micro_batch_size", "global_batch_size", "dp"))
    if size is None or batch is None or dp is None or batch % (size * dp):
        return None
    return batch // (size * dp)


def _ints(values: Iterable[int | None]) -> Int64Array:
    return np.fromiter((ABSENT if value is None else value for value in values), np.int64)
