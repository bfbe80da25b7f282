"""Reports of programs that no table lists: a step's number, and times or rates with their names.

::

    step 250 | loss: 3.251 | lr: 6e-4 | dt: 345.67ms | tok/sec: 1516.52
    [Epoch 1] Step 20/1000, Loss: 2.31, step_time=0.412s, data_time=0.020s
    2026-01-01 12:00:00,123 INFO iteration 40: train loss 2.81

A time needs a unit, in its name or after the number. Without any, it is one of seconds or of
milliseconds that agrees with the times at which the lines were written; else seconds, which is
noted. Where nothing but the lines' own times says how long steps take, these do.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from statistics import median
from typing import Any

import msgspec

from distprof.ingest.training_logs.grammar import (
    MAX_COUNT,
    NOTES,
    TYPED,
    Grammar,
    Row,
    byte_patterns,
    clock_s,
    has_lost,
    line_around,
    rank_in,
    s_to_ns,
    slow_rank,
    stamp_s,
    to_float,
)
from distprof.units import seconds_in

FEWEST = 3
"""Reports in ascending order that make a log of a training program."""

_PATTERNS = byte_patterns("named_numbers.toml")
_PHASES = _PATTERNS["phase"].groupindex.keys() - {"in", "exact", "value", "unit"}
"""Groups of the phases of an iteration by the names that people give them."""

_COUNTED = (("time", "all"), ("of", "unit"), ("behind", "before"))
"""Groups for a time, its unit and the number of its steps, behind and before it."""

_INSIDE = ("reduction of gradients", "communication")  # of the backward pass, perhaps
_STEADY, _FALLING, _OFF, _OFF_LINE = 1.2, 0.98, 0.13, 0.03
_LEAST_SECONDS = 10  # Of which a whole second is no large part
_LONG_S, _MANY = 10.0, 10  # A longer time, of as many steps or more, is that of all of them
_LEAST_WHOLE = 0.95  # Share of its parts; the name of less is not that of the whole.
_LEAST_LISTED, _MOST_LISTED = 50, 102  # Percent of an iteration in a list, as far as digits go
_LEAST_COMPLETE = 0.3  # Share of typed iterations that name all phases
_FIRST_DATE, _LAST_DATE = 1.3e9, 2.5e9  # Seconds since 1970: no time takes so long.
_MAX_LINE = 2_000
MAX_KEPT = 50_000


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One line: times in seconds, or without a unit in what the program counts in.

    ``is_bare`` says that the name of the time says nothing of steps.
    """

    row: Row  # Its duration is not known yet.
    number: int
    time: float | None = None
    has_unit: bool = False
    is_bare: bool = False
    is_of_evaluation: bool = False
    counted: str = ""  # What the number counts instead of steps.
    phases: dict[str, float] = {}
    rate: float | None = None


_WORK = {"", "computation", "forward", "backward", "optimizer", "generation", "sampling"}


def _phases(text: bytes) -> Iterator[tuple[str, float, bool]]:
    """Phases with their times, as :func:`time_in` reads them."""
    for match in _PATTERNS["phase"].finditer(text):
        time, has_unit = time_in(match)
        if time is not None and (has_unit or match["exact"] is not None):
            name = next(name for name in _PHASES if match[name]).replace("_", " ")
            yield name.removeprefix("iteration"), time, has_unit


def _listed(text: bytes) -> list[tuple[str, float, bool]]:
    """Parts of an iteration, and their sum, if a list tells their times and shares of it."""
    told: dict[str, tuple[float, float]] = {}
    for one in islice(_PATTERNS["listed"].finditer(text), MAX_KEPT):
        name, share, (time, _) = one["name"].decode(), float(one["share"]), time_in(one)
        if time and share:
            told[name] = time, share
    whole = sum(share for _, share in told.values())
    if len(told) < FEWEST or not _LEAST_LISTED < whole <= _MOST_LISTED:
        return []
    longest, share = max(told.values())
    parts = [(name, time, True) for name, (time, _) in told.items()]
    return [*parts, ("", 100 * longest / share, True)]


class PhasesGrammar(Grammar):
    """Phases of an iteration and their times, as people type them; tried last of all."""

    name: str = TYPED
    _found: list[tuple[str, float, bool]] = msgspec.field(default_factory=list)
    _loss: float | None = None  # The first one, which says that this is a training.

    def take(self, block: bytes) -> None:
        """Read phases with their times, or a table with a column for each phase."""
        if len(_PATTERNS["of_rank_0"].findall(block)) > FEWEST:
            block = _PATTERNS["of_other_ranks"].sub(b"", block)
        if column := _PATTERNS["unit_of_column"].search(block):
            block = _PATTERNS["first_value"].sub(rb"\1 " + column["unit"], block)
        if _PATTERNS["of_device"].search(block):
            block = _PATTERNS["of_host"].sub(rb"\1", block)
        text = block.decode("utf-8", "replace")
        loss = _PATTERNS["loss"].search(block.lower())
        self._loss = to_float(loss["value"]) if loss else self._loss
        self.name += " of epochs" * bool(_PATTERNS["of_epochs"].search(block))
        if _PATTERNS["compared"].search(block):  # times of several ways
            return
        texts = [text]
        if head := _PATTERNS["columns"].search(block):
            names, below = head[1].decode().split(), block[head.end() :].decode("utf-8", "replace")
            rows = (line.split()[-len(names) :] for line in below.splitlines())
            named = (zip(names, row, strict=False) for row in rows)
            table = "\n".join(" ".join(f"{name}: {value}" for name, value in row) for row in named)
            texts.insert(0, table)
        lower = (one.lower().encode() for one in texts)
        found = ([*(_listed(one) or islice(_phases(one), MAX_KEPT))] for one in lower)
        self._found += max(found, key=lambda some: len({name for name, *_ in some}))

    def finish(self) -> None:
        """Each phase that is named again begins the next iteration."""
        iterations: list[dict[str, float]] = [{}]
        for name, time, _ in self._found:
            if name in iterations[-1]:
                iterations.append({})
            iterations[-1][name] = time
        most = max(map(len, iterations))
        complete = [one for one in iterations if len(one) == most]
        is_torn = len(complete) < _LEAST_COMPLETE * len(iterations)  # they are not of one iteration
        units = {(name == "", has_unit) for name, _, has_unit in self._found}
        is_mixed = len(units) > len(dict(units))  # the whole alone may name its unit
        if most < 2 or is_torn or is_mixed or not _WORK & iterations[0].keys():
            return
        if not any(has_unit for *_, has_unit in self._found):
            self.notes.append(NOTES["no_unit"])
        is_known = True
        for phases in complete:
            whole = phases.pop("", 0.0)
            parts = sum(phases.values())
            is_known &= whole >= _LEAST_WHOLE * max(phases.values())  # of which one holds another
            seconds = whole if is_known else max(parts, whole)
            self.add(Row(None, duration_ns=s_to_ns(seconds), loss=self._loss))
            self.add_seconds(phases)
        if not is_known:
            self.notes.append(NOTES["known_phases"])
        self._found.clear()


class NamedNumbersGrammar(Grammar):
    """Tried only where no other grammar finds a report."""

    name: str = "a training program"
    _found: list[Report] = msgspec.field(default_factory=list)

    @property
    def num_found(self) -> int:
        """Lines until now that look like reports."""
        return len(self._found)

    def take(self, block: bytes) -> None:
        """Read lines that name a step."""
        if len(self._found) >= MAX_KEPT:
            self.is_full = True
            return
        for line in candidates(_PATTERNS["candidate"], block):
            report = _read(line)
            if report is not None:
                self._found.append(report)
                self.mfu += (float(share) / 100 for share in _PATTERNS["mfu"].findall(line))
                self.num_not_finite += has_lost(line)

    def finish(self) -> None:
        """Decide on units, and whether these are the reports of a training program."""
        found = [one for one in self._found if not one.is_of_evaluation] or self._found
        found = of_the_usual_kind([one for one in found if not one.counted] or found)
        if len(found) < 2:
            return
        factor = self._factor(found)
        span = round(median(b.number - a.number for a, b in pairwise(found)))
        is_whole = span > 1 and found[0].is_of_evaluation and found[0].is_bare
        usual = median([one.time for one in found if one.time is not None] or [0.0]) * factor
        is_of_each = not (_left(found) or _is_since_start(found))
        if is_of_each:
            of = ((one.row.rank, {"": one.time, **one.phases}.items()) for one in self._found)
            times = ((n, rank, s_to_ns(t)) for rank, each in of for n, t in each)
            self.notes += slow_rank(times)[1]
        is_of_step = found[0].is_bare and is_of_each and not is_whole
        stamped = _by_stamps(found)
        if span > 1 and is_of_step and stamped is not None:
            factor /= span if usual * _STEADY > span * stamped else 1
        elif span > 1 and is_of_step:
            is_of_all = usual >= _LONG_S and span >= _MANY
            factor /= span if is_of_all else 1
            every = f" ({span})" if usual >= 1 and span >= _MANY else ""
            self.notes.append(NOTES["one_or_all"].format(every, "all" if is_of_all else "one"))
        last, counted = found[0].number, "evaluation" if is_whole else found[0].counted
        self.name += f" of {counted}s" * bool(counted)
        for one, duration in zip(found, _durations(found, factor), strict=True):
            since = None if duration is None or is_of_each else max(one.number - last, 0) or None
            last = last if duration is None and one.number > last else one.number
            self.add(one.row._replace(duration_ns=s_to_ns(duration), span=since))
            self.add_seconds({name: time * factor for name, time in one.phases.items()})
        self._found.clear()

    def _factor(self, found: list[Report]) -> float:
        """Seconds in the unit of times that name none."""
        times = [one.time for one in found if one.time is not None]
        if not times or any(one.has_unit for one in found) or 1e9 < times[0] < 2e9:
            return 1.0  # the last are Unix times
        stamped = _by_stamps(found)
        if stamped is None:
            self.notes.append(NOTES["no_unit"])
            return 1.0
        if _is_since_start(found):
            times = [each for each in per_number(found) if each]
        usual = max(median(times), 1e-12)
        return min((1.0, 1e-3, 1e-6), key=lambda unit: abs(math.log(usual * unit / stamped)))


def candidates(pattern: re.Pattern[bytes], block: bytes) -> Iterator[bytes]:
    """Lines that hold a pattern, but for very long ones."""
    end = -1
    for match in pattern.finditer(block):
        if match.start() >= end:
            start, end = line_around(block, match.start(), _MAX_LINE)
            if end - start < _MAX_LINE:
                yield block[start:end]


def as_named(block: bytes) -> bytes:
    """A block with the rows of a table and their times, and what lines break, as named numbers."""
    block = _PATTERNS["below"].sub(b", ", block)
    head = _PATTERNS["head"].search(block)
    if head is None:
        return block
    between = next((each for each in (b"|", b",") if each in bytes(head[0])), None)
    names, lines = _cells(head[0].replace(b" (", b"("), between), []
    for line in block[head.end() :].split(b"\n"):
        row = _cells(line, between)
        is_row = len(row) == len(names) and row[0].isdigit()
        lines.append(b" | ".join(map(b": ".join, zip(names, row, strict=True))) if is_row else line)
    return block[: head.end()] + b"\n".join(lines)


def _cells(line: bytes, between: bytes | None) -> list[bytes]:
    """Cells between bars, commas or blanks."""
    cells = line.strip().strip(b"|").split(between)
    return [cell.strip() for cell in cells]


def number_of_step(line: bytes) -> tuple[int, int, str] | None:
    """Number of the step that a line in lower case names, where it begins, and what else it is."""
    step, place = _PATTERNS["step"].search(line), _PATTERNS["place"].search(line)
    if step is None or (place and _PATTERNS["of_samples"].search(line, step.start())):
        step = place
    if step is None or step.lastindex is None:
        return None
    counted = (step.groupdict().get("counted") or b"").decode()
    number, at = int(step[step.lastindex].replace(b",", b"")), step.start(step.lastindex)
    is_another = counted and (b"epoch" in line or _PATTERNS["evaluated"].search(line, 0, at))
    return None if number >= MAX_COUNT or is_another else (number, at, counted)


def _read(text: bytes) -> Report | None:
    line = text.lower().partition(b"<--")[0]  # before someone's remark
    step = number_of_step(line)
    if step is None:
        return None
    has_time = _PATTERNS["has_time"].search(line)
    has_rate = b"/" in line or b"per" in line or b"ps" in line
    per_step = _PATTERNS["per_step"].search(line) if has_rate else None
    named = per_step or (_PATTERNS["time"].search(line) if has_time else None)
    unnamed = () if named else tuple(islice(_PATTERNS["unnamed"].finditer(line), 2))
    if has_time and named is None and not unnamed:
        named = _PATTERNS["clock"].search(line)
    rates: dict[str, Any] = _rates(line) if has_rate else {}
    named = unnamed[0] if len(unnamed) == 1 and "rate" not in rates else named
    time, has_unit = time_in(named)
    if counted := _PATTERNS["counted"].search(line):
        time, has_unit, per_step = _time_of_each(counted), True, counted
    has_phases = _PATTERNS["has_phases"].search(line)
    phases = {name: time for name, time, _ in _phases(line) if name} if has_phases else {}
    loss = _PATTERNS["loss"].search(line) if b"loss" in line or b"objf" in line else None
    stamp = stamp_s(text[:200])
    if time is None and not rates and (stamp is None or not (loss or phases)):
        return None
    of_loss = to_float(loss["value"]) if loss else None
    return Report(
        rate=rates.pop("rate", None),
        row=Row(step[0], loss=of_loss, rank=rank_in(text), at_s=stamp)._replace(**rates),
        number=step[0],
        counted=step[2],
        time=time,
        has_unit=has_unit,
        is_bare=not (per_step or unnamed)
        and named is not None
        and _PATTERNS["bare"].fullmatch(named["name"]) is not None,
        is_of_evaluation=_PATTERNS["evaluated"].search(line, 0, step[1]) is not None,
        phases=phases,
    )


def time_in(found: re.Match[bytes] | None) -> tuple[float | None, bool]:
    """A time in seconds, or in an unknown unit, and whether the unit is known."""
    groups = found.groupdict() if found else {}
    if clock := groups.get("clock"):
        return clock_s(clock), True
    value = to_float(groups.get("value"))
    if value is None or value < 0:
        return None, False
    named = _PATTERNS["unit_in_name"].search(groups.get("name") or b"")
    unit = groups.get("unit") or groups.get("in") or (named and named[1])
    time = value * seconds_in(unit.decode()) if unit else value
    return (None, False) if _FIRST_DATE < time < _LAST_DATE else (time, unit is not None)


def _time_of_each(counted: re.Match[bytes]) -> float | None:
    """Seconds of each of several steps that a line times together."""
    value, unit, count = (next(filter(None, counted.group(*names))) for names in _COUNTED)
    whole = to_float(value)
    return None if whole is None else whole * seconds_in(unit.decode()) / int(count)


def _rates(line: bytes) -> dict[str, float]:
    found: dict[str, float] = {}
    for order in ("rate_behind_its_name", "rate_in_a_list", "rate_before_its_name"):
        for match in _PATTERNS[order].finditer(line):
            value = to_float(match["value"].rstrip(b".,").replace(b"k", b"e3"))
            if value is None or value <= 0:
                continue
            what = match["what"] or match["short"]
            if what.startswith((b"tok", b"tps", b"wps")):
                name = "tokens_per_s_per_device" if match["each"] else "tokens_per_s"
            elif match["each"]:
                continue
            elif what.startswith((b"it", b"step", b"batch", b"update")):
                name = "rate"
            else:
                name = "samples_per_s"
            found.setdefault(name, value)
    return found


def of_the_usual_kind(found: list[Report], fewest: int = FEWEST) -> list[Report]:
    """Reports of the rank that prints most, if their numbers mostly ascend.

    A step that several ranks report without a prefix counts once.
    """
    ranks = Counter(one.row.rank for one in found).most_common(1)
    is_of_one = len({one.number for one in found}) == len(found)  # whatever ranks it names
    mine = [one for one in found if is_of_one or one.row.rank == ranks[0][0]]
    num = len({one.number for one in mine})
    mine = [one for one in mine if one.time is not None or one.rate is not None] or mine
    mine = mine[:1] + [one for before, one in pairwise(mine) if one.number != before.number]
    are_two = num == 2 and all(one.time and one.has_unit for one in mine)
    if num < fewest and not (are_two or (num > 1 and len(mine) >= 2 * FEWEST)):
        return []
    pairs = [*pairwise(mine)]
    rises = sum(b.number > a.number for a, b in pairs)
    starts = sum(b.number == mine[0].number for _, b in pairs)
    return mine if rises + min(starts, rises / 2) >= 0.8 * len(pairs) else []


def per_number(found: list[Report]) -> list[float | None]:
    """Time of each step or epoch, from times since the start; None where the number falls.

    Whole seconds or minutes are too coarse for it, unless many of them passed: None until then.
    """
    result: list[float | None] = [None]
    times = [one.time or 0.0 for one in found]
    is_minutes = not any(time % 60 for time in times) and any(a == b for a, b in pairwise(times))
    digit = 60 if is_minutes else not any(time % 1 for time in times)
    least, before = _LEAST_SECONDS * digit, found[0]
    for one in found[1:]:
        span, since = one.number - before.number, (one.time or 0.0) - (before.time or 0.0)
        is_new = span > 0 and since >= least
        result.append(since / span if is_new else None)
        if is_new or span <= 0 or since < 0:
            before = one
    return result


def _durations(found: list[Report], factor: float) -> list[float | None]:
    """Seconds per step: as printed, from the time since the start, or from a rate of steps."""
    if mean := _left(found):
        is_late = [2 * one.number >= found[-1].number for one in found]
        return [mean * factor if late else None for late in is_late]
    if _is_since_start(found):
        return [each and each * factor for each in per_number(found)]
    return [
        one.time * factor
        if one.time is not None
        else 1 / one.rate
        if one.rate
        else sum(time for name, time in one.phases.items() if name not in _INSIDE) * factor
        if one.phases.keys() >= {"forward", "backward"}
        else None
        for one in found
    ]


def _is_since_start(found: list[Report]) -> bool:
    """Whether times are those since the start of a run, by their name or as the numbers grow."""
    times, late = [one.time for one in found if one.time is not None], found[len(found) // 2 :]
    work = [(one.time or 0.0) * (one.row.tokens_per_s or 0.0) for one in found]  # of a step
    ties = sum(a == b and a % 1 > 0 for a, b in pairwise(times))  # a clock does not stand still
    if not 2 * ties < len(times) == len(found) > FEWEST or 0 < max(work) < _STEADY * min(work):
        return False
    spans = [(b.number - a.number, (b.time or 0.0) - (a.time or 0.0)) for a, b in pairwise(late)]
    each = [time / steps for steps, time in spans if steps > 0] or [0.0]
    is_all = times == sorted(times)
    grows = times[-1] > _STEADY * times[0] or (is_all and len({*times}) > _MANY)  # an excerpt
    is_even = len(each) > 1 and max(each) < _STEADY * min(each) and grows
    slope = (times[-1] - (late[0].time or 0.0)) / max(found[-1].number - late[0].number, 1)
    is_far = max(times) > 2 * max(min(times), 1e-9)
    is_all &= times[-1] / _STEADY < slope * found[-1].number < times[-1] * _STEADY
    falls = [b.number < a.number for a, b in pairwise(found)]
    pairs = [*zip(pairwise(times), falls, strict=True)]
    rises = [b >= a or 2 * b < a for (a, b), fall in pairs if not fall]  # or it starts again
    as_numbers = all((b < a) == fall for (a, b), fall in pairs)
    as_numbers |= sum(rises) >= max(_MANY, _FALLING * len(rises))  # it runs on in the next epoch
    is_all |= len({*times}) > _MANY and is_on_line(found)
    return is_all or (found[0].is_bare and (is_even or (as_numbers and is_far)))


def is_on_line(found: list[Report]) -> bool:
    """Whether times rise so evenly with the numbers that they are those since some start."""
    (first, least), (last, most) = ((one.number, one.time or 0.0) for one in (found[0], found[-1]))
    slope = (most - least) / max(last - first, 1)
    off = (abs(least + slope * (one.number - first) - (one.time or 0.0)) for one in found)
    digit = min((b - a for a, b in pairwise(sorted({one.time or 0.0 for one in found}))), default=0)
    return most > 2 * least and max(off) < max(_OFF_LINE * (most - least), 1.1 * digit)


def _left(found: list[Report]) -> float | None:
    """Time per step, if times are those that remain: they fall on a line, whatever their name.

    Those of the first half of the steps are guesses, and do not count.
    """
    known = [one.time for one in found if one.time is not None]
    falls = sum(b <= a for a, b in pairwise(known)) >= _FALLING * (len(known) - 1)
    if len(known) != len(found) or len(known) <= _MANY or not falls:
        return None
    late = [(one.number, one.time or 0.0) for one in found if 2 * one.number >= found[-1].number]
    (first, most), (last, least) = late[0], late[-1]
    slope, is_half = (most - least) / max(last - first, 1), 2 * least <= most
    most_off = (most - least) * (0.5 if is_half else _OFF)  # of few whole minutes, perhaps
    off = max(abs(most - slope * (n - first) - time) for n, time in late)
    is_line = off <= most_off and (is_half or len(known) > 2 * _MANY)
    return slope if is_line and slope > 0 else None


def _by_stamps(found: list[Report]) -> float | None:
    """Seconds per step by the times of the lines; None if they have none."""
    spans = [
        (b.row.at_s - a.row.at_s) / (b.number - a.number)
        for a, b in pairwise(found)
        if a.row.at_s and b.row.at_s and b.number > a.number and b.row.at_s > a.row.at_s
    ]
    return median(spans) if spans else None
