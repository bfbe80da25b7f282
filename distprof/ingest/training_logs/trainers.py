"""Logs of trainers that report totals and losses rather than the times of iterations.

Progress bars of programs that print no times::

     45%|████▌     | 4500/10000 [1:20:10<1:37:59, 1.07s/it]
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache
from itertools import accumulate, pairwise
from statistics import median

import msgspec
import numpy as np

from distprof.escape import plain
from distprof.ingest.training_logs.grammar import (
    MAX_COUNT,
    NOTES,
    Grammar,
    Row,
    TimerValues,
    byte_patterns,
    s_to_ns,
    to_float,
)
from distprof.units import format_duration, format_ratio

_PATTERNS = byte_patterns("trainers.toml")
_MAX_BARS = 100
_MANY_BARS = 1_000
_MAX_SPANS = 100_000
_MAX_RATES = 1_000
_MIN_STEPS = 20

_MIN_SECONDS, _FASTEST = 50, 1e-4
"""Bars show whole seconds: over this span, a mean is accurate to 2 %. No iteration is faster."""

_MIN_SPAN, _FEWEST_SECONDS = 3, 10
"""Of a bar that shows less than that: over this span, a mean is accurate to 10 %."""

_FEWEST_STEPS = 10
"""From this step on, the rate that a bar shows is no longer that of its slow first steps."""

_DIGITS, _ALIKE = 5, 1.5  # Least ratio of times to their errors, and most of two that are alike.
_FEWEST_SPANS, _CHANGED = 3, 1.25  # Spans, and ratio of the time before them from which it is told.
_FEWEST_RISING_SECONDS, _RISEN = 5, 1.3  # Of a span, and ratio of each to the one before it.
_SPANS, _FAR_RISEN = 8, 1.4  # Parts of a bar of which each takes longer, and ratio of the last.
_SEEN_LATE = 2  # If this count is the first one shown twice, the one before was seen at its end.
_SLOW_START = 2  # Ratio of the first steps to later ones from which they are a warm-up.

_LEAST_HELD, _MOST_HELD = 0.1, 1.1  # Share of a step in the bars that it holds.
_BESIDE = (b"'eval_runtime'", b"aving ", b"unning ")  # Signs of what a training does next to it.
_DIGIT, _MOST_OFF = re.compile(rb"\d"), 0.05  # Of a label; a time that is the same as another.
_AS_SLOW = 0.7  # Ratio of the time of steps to that of those before, with a checkpoint among them.
_NOTHING = Counter[str]()
_FAR_LONGER = 10
"""Ratio of a bar with a name to those without a label that it is meant instead of, or torn into."""

_OTHER_BARS = {"rich": "• ".encode(), "progress": b"| Total: ", "endless": b"it ["}
"""Programs that draw bars in another way than tqdm, and a sign of each."""


class _Bar(msgspec.Struct):
    """One bar: the start of its current span, and the reports so far."""

    step: int
    second: int
    first_step: int
    first_second: int
    last_step: int
    last_second: int
    is_of_epochs: bool = False  # Whether its label or unit says that it counts epochs.
    is_of_training: bool = False  # Whether its label says so, or it shows a loss.
    is_done: bool = False  # Whether it is seen at its end.
    before: int = 0  # Steps of earlier epochs.

    # As printed: step, whole seconds, seconds per step, and half of its last digit.
    rates: list[tuple[int, int, float, float]] = msgspec.field(default_factory=list)
    rows: list[Row] = msgspec.field(default_factory=list)
    seen: list[tuple[int, int]] = msgspec.field(default_factory=list)  # First steps and seconds.
    waits: list[float] = msgspec.field(default_factory=list)  # For input, as shares of the rates.
    loss: float | None = None  # The last one of a bar that shows such waits.

    shown: tuple[bytes, int] = b"", 0  # Label and second, as last printed.
    clean: tuple[int, int] = 0, 0  # Steps and seconds without evaluations and checkpoints.
    paused: int = 0  # Seconds of these on its clock, which the seconds above leave out.
    stood: int = 0  # All of them.
    suspect: float = 0.0  # Time per step where a pause is what is above the usual time.
    beside: Counter[str] = msgspec.field(default_factory=Counter)  # What there was until then.
    pauses: dict[tuple[str, int], int] = msgspec.field(default_factory=dict)  # By kind and step.


class BarGrammar(Grammar):
    """The longest-running bar of a training; others are downloads, maps, evaluations."""

    name: str = "a progress bar"
    signs: tuple[bytes, ...] = (b"<", *_OTHER_BARS.values())
    _num_rows: int = 0  # of all bars
    _bars: tuple[dict[tuple[bytes, int], _Bar], ...] | None = None  # with a name; without
    # Evaluations and checkpoints so far: signs of them, and their seconds as printed and by bars.
    _beside: Counter[str] = msgspec.field(default_factory=Counter)
    _shown: tuple[bytes, int] = b"", 0  # what the last one showed
    _ends: list[tuple[bytes, int]] = msgspec.field(default_factory=list)  # of whole bars
    num_steps: int = 0  # of the bar that is kept, if it is seen at its end
    _losses: list[bool] = msgspec.field(default_factory=list)  # shown; whether it is none

    def take(self, block: bytes) -> None:
        """Follow each bar."""
        block = _as_bars(block)
        self._bars = self._bars or ({}, {})
        shown = [match for at in _bars(block) if (match := _PATTERNS["bar"].match(block, at))]
        signs = (one.start() for sign in _BESIDE if shown for one in re.finditer(sign, block))
        shown += filter(None, (_PATTERNS["next_to"].match(block, at) for at in signs))
        for match in sorted(shown, key=re.Match.start):
            if match.re is _PATTERNS["next_to"]:
                printed = to_float(match["seconds"]) or 0.0
                what = {match.lastgroup or "": 1, "printed": printed}
                self._beside = self._beside + Counter(what)
                continue
            before, step, total, hours, minutes, seconds, rate, unit = match.groups(b"")
            total = total if total.isdigit() else b"%d" % MAX_COUNT
            name, is_plain, is_of_training, is_of_epochs, is_of_evaluation = _label(before)
            epoch = _PATTERNS["epoch_behind"].match(block, match.end())
            is_of_epochs |= b"epoch" in unit or 0 <= int(epoch[1] if epoch else -1) - int(step) < 2
            if _PATTERNS["shows_loss"].match(block, match.start()):
                is_plain |= not _PATTERNS["of_evaluation"].search(name)
                is_of_training, name = True, b"" if is_plain else name
                lost = bool(_PATTERNS["lost"].match(block, match.start()))
                self._losses += [lost] * (len(self._losses) < _MAX_RATES)
            least = _MIN_SPAN if is_of_training or is_of_epochs else _MIN_STEPS
            if int(total) < (1 if _PATTERNS["of_rollouts"].match(before) else least):
                continue
            second = int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds)
            phase = _PATTERNS["of_pretraining"].match(before)
            bars, key = self._bars[is_plain], (name or (phase[0] if phase else b""), int(total))
            if key not in bars and len(bars) >= _MAX_BARS:
                continue
            start = _Bar(*(int(step), second) * 3, shown=(before, second), beside=self._beside)
            bar = bars.setdefault(key, start)
            if is_of_evaluation:
                ended = second * (step == total and self._shown != (before, int(step)))
                self._beside = self._beside + Counter({"evaluation": 1, "ended": ended})
            if step == total and self._shown != (before, int(step)):
                name = before.partition(b" [")[0].strip(b": ")
                self._ends += [(name, second)] * (len(self._ends) < _MAX_RATES)
            self._shown = before, int(step)
            passed = second
            second = self._on_clock(bar, int(step), int(total), second, before)
            if int(step) == bar.last_step < int(total) and second > bar.last_second:
                if len(bar.seen) == _SEEN_LATE:
                    bars[key] = _Bar(*bar.seen[-1] * 3, seen=bar.seen, shown=bar.shown)
                    bars[key].beside = bar.beside
                continue  # what it shows next to the steps is new: the time is that of the next one
            self._follow(bar, int(step), second, int(total))
            bar.seen += [(int(step), second)] * (len(bar.seen) < _MAX_RATES)
            bar.is_of_epochs |= is_of_epochs
            bar.is_done |= step == total
            bar.is_of_training |= is_of_training
            each = to_float(rate) or 0.0
            if each and int(step) and len(bar.rates) < _MAX_RATES:
                half = 0.5 * 10 ** -len(rate.partition(b".")[2]) / each
                each = each if unit.startswith(b"s/") else 1 / each
                bar.rates.append((int(step), passed, each, half * each))
                if wait := _PATTERNS["wait"].match(block, match.start()):
                    bar.loss, waited = to_float(wait[1]), to_float(wait[2]) or 0.0
                    bar.waits.append(waited / each / (1000 if wait[3] else 1))

    def _on_clock(self, bar: _Bar, step: int, total: int, second: int, label: bytes) -> int:
        """The second on a clock that stands still during evaluations and checkpoints."""
        (was, before), steps = bar.shown, step - bar.last_step
        beside = self._beside - bar.beside if self._beside is not bar.beside else _NOTHING
        passed, bar.shown, bar.beside = second - before, (label, second), self._beside
        evaluated, found = round(max(beside["printed"], beside["ended"])), dict[str, int]()
        kind = "save" if beside["save"] > beside["evaluation"] else "evaluation"
        at, inside = bar.before + bar.last_step, 0  # seconds on its clock
        suspect, bar.suspect = bar.suspect, 0.0
        if step < bar.last_step == total or passed < -_FEWEST_RISING_SECONDS:  # again, of no rank
            bar.paused, found = 0, {"evaluation": evaluated}
            bar.before += step * (steps == 0 and second >= bar.last_second)  # _follow sees others
        elif beside and steps == 0:
            is_same = step < total or abs(passed - evaluated) <= _MOST_OFF * passed
            is_same |= label == was and _DIGIT.search(label) is not None  # an epoch's
            found = {kind: passed} if is_same else {"evaluation": evaluated}
            inside = passed * is_same
            bar.before += step * (passed >= 0 and not is_same)  # of another epoch at its end
        elif beside and steps > 0:
            each = bar.clean[1] / bar.clean[0] if bar.clean[0] else math.inf
            rest = round(max(passed - steps * each, 0))
            rest *= rest > max(_FEWEST_RISING_SECONDS, (_CHANGED - 1) * steps * each)
            found = {"evaluation": evaluated if evaluated <= passed else 0}
            rest = max(rest - found["evaluation"], 0) if beside["save"] or not evaluated else 0
            kind = "save" if beside["save"] and evaluated else kind
            found[kind] = found.get(kind, 0) + rest
            inside, bar.suspect = sum(found.values()), passed / steps * (rest > 0)
        elif steps > 0:
            of, seconds = bar.clean if bar.clean[1] < _MIN_SECONDS else (0, 0)
            bar.clean = of + steps, seconds + passed
            if passed > _AS_SLOW * steps * suspect > 0:  # it became slower there
                inside -= bar.pauses.popitem()[1]
        for kind, seconds in found.items():
            if seconds > 0 and len(bar.pauses) < _MAX_RATES:
                bar.pauses[kind, at] = bar.pauses.get((kind, at), 0) + seconds
        bar.paused, bar.stood = bar.paused + inside, bar.stood + inside
        return second - bar.paused

    def _follow(self, bar: _Bar, step: int, second: int, total: int) -> None:
        is_again = step < bar.last_step == total or step < bar.step
        if is_again or second < bar.last_second:  # again, so that what passed stays
            bar.first_step += step - bar.last_step
            bar.first_second += second - bar.last_second
            bar.before += bar.last_step
            bar.step, bar.second = step, second
        bar.last_step, bar.last_second = step, second
        span, passed = step - bar.step, second - bar.second
        if span > 0 and passed >= _MIN_SECONDS:
            if self._num_rows < _MAX_SPANS:
                self._num_rows += 1
                bar.rows.append(Row(bar.before + step, s_to_ns(passed / span), span))
            bar.step, bar.second = step, second

    def finish(self) -> None:
        """Keep the bar that ran longest; of an epoch, the bar of its iterations that did."""
        named, bars = self._bars or ({}, {})
        for key, bar in [*bars.items()]:
            same = ((len(b.seen), b.last_second) for (_, n), b in named.items() if n == key[1])
            most, last = max(same, default=(0, 0))  # of a bar that ranks tear apart
            is_torn = _FAR_LONGER * len(bar.seen) < most and bar.last_second <= last
            is_fast = bar.last_step > 10_000 * bar.last_second or _seconds(bar) < _MIN_SECONDS
            is_short = bar.is_done and bar.last_second < 2 > bar.before
            is_scan = bool(bar.rates and bar.rates[-1][2] < _FASTEST)
            is_fast &= key[1] == MAX_COUNT or is_short or is_scan
            if is_torn or (is_fast and not (bar.is_of_training or bar.is_of_epochs)):
                del bars[key]  # it reads or scans files, perhaps
        if bars:
            again = [bar for (_, total), bar in bars.items() if bar.before > total]
            if len(again) > 1 and not any(bar.is_of_training for bar in bars.values()):
                again[0].is_of_training = True  # each epoch trains, then tests
            known = [bar for bar in bars.values() if bar.is_of_training] or [*bars.values()]
            longest = max(known, key=lambda bar: (_seconds(bar) + bar.stood, bar.last_second))
            inner = [bar for bar in bars.values() if bar.rows and not bar.is_of_epochs]
            if longest.is_of_epochs and inner:
                longest = max(inner, key=lambda bar: len(bar.rows))
            self.name += " of epochs" * longest.is_of_epochs
            label, _ = other = max(named, key=lambda key: _seconds(named[key]), default=(b"", 0))
            least = _FAR_LONGER * _seconds(longest)
            if label and not longest.is_of_training and _seconds(named[other]) > least:
                longest = named[other]
                self.name = f"the progress bar “{plain(label[:-1].decode('utf-8', 'replace'))}”"
            longest, phases = self._with_rollouts(longest, [*named.values(), *bars.values()])
            passed, span = _seconds(longest), longest.last_step - longest.first_step
            # Few spans of a bar that is first seen late do not tell a slow start.
            fewest = _FEWEST_SPANS if longest.first_step >= _MIN_STEPS else 2
            spans = longest.rows if 2 * sum(row.span or 0 for row in longest.rows) > span else []
            ends = _ends(longest)
            rows = ends or (len(spans) >= fewest and spans) or _whole(longest)
            self.rows = rows or _printed(longest) or _whole(longest, 2) or _since_start(longest)
            if len(self.rows) <= _FEWEST_SPANS:
                tried = (_rising(longest, s) for s in (_FEWEST_RISING_SECONDS, passed // _SPANS))
                self.rows = next(filter(None, tried), self.rows)
            self.num_steps = longest.last_step * longest.is_done
            if not ends:
                self._add_start(longest)
            if len(bars) > 1 and not any(b.is_of_training or b.is_of_epochs for b in bars.values()):
                self.name = "the progress bar that ran longest"
                self.notes.append(NOTES["unnamed_bars"].format(len(bars)))
            self._on_clock(longest, 0, 0, -1, b"")  # an evaluation behind it
            num, at = len(longest.seen), longest.before + longest.last_step
            for (_, total), bar in bars.items() if not longest.pauses else ():
                is_test = longest.is_of_training > bar.is_of_training
                if is_test and 0 <= num - len(bar.seen) < 2 <= len(bar.seen):  # behind each epoch
                    each = (second for step, second in bar.seen if step == total)
                    longest.pauses["evaluation", at] = sum(each)
            self.pauses = {} if phases else {**longest.pauses}
            self.note_pauses()
            self.add_seconds(phases)
            if longest.waits and max(longest.waits) <= _MOST_HELD:  # else since the start
                share = median(longest.waits)
                waits = self.timers.setdefault("data_time", TimerValues())
                for index, row in enumerate(self.rows):
                    self._add_timer(waits, index, round(share * (row.duration_ns or 0)))
                self.rows[-1] = self.rows[-1]._replace(loss=longest.loss)
        if any(self._losses):
            self.notes.append(NOTES["not_finite"].format(sum(self._losses), len(self._losses)))
        self.notes.append(NOTES["bar"].format(_MIN_SECONDS))

    def _with_rollouts(self, longest: _Bar, bars: list[_Bar]) -> tuple[_Bar, dict[str, float]]:
        """The bar of which each step holds those of rollouts and others, and their seconds."""
        outer = max(bars, key=lambda bar: bar.last_second / max(bar.last_step, 1))
        num = len({step for step, _ in outer.seen if step}) or 1
        whole, seconds = outer.last_second / max(outer.last_step, 1), dict[bytes, float]()
        for name, count in Counter(name for name, _ in self._ends).items():
            each = median(second for other, second in self._ends if other == name)
            if each <= whole and not _PATTERNS["of_evaluation"].search(name):
                seconds[name] = each * round(count / num)
        is_held = _LEAST_HELD * whole < sum(seconds.values()) <= _MOST_HELD * whole
        is_held = is_held and any(map(_PATTERNS["of_rollouts"].match, seconds))
        if outer.is_of_epochs or not is_held:
            return longest, {}
        return outer, {plain(name.decode("utf-8", "replace")): s for name, s in seconds.items()}

    def _add_start(self, bar: _Bar) -> None:
        """What passed before a bar is first seen: a slow start, or else another usual time."""
        step = bar.first_step
        start = s_to_ns(bar.first_second / step) if step > 0 else None
        if not self.rows or not start:
            return
        ratio = start / (self.rows[0].duration_ns or start)
        off = (abs(each * n / second - 1) if second else 0.0 for n, second, each, _ in bar.rates)
        # That passed: not of a training that continued, nor the few first steps of one.
        is_all = next(off, 0.0) < _CHANGED - 1 and step >= _FEWEST_STEPS
        what = "epoch" if bar.is_of_epochs else "iteration"
        jumps = ((b - a, n) for (m, a), (n, b) in pairwise(bar.seen) if n == m + 1)
        took, at = max(jumps, default=(0, 0))
        usual = (bar.last_second - took) / max(bar.last_step - 1, 1)
        is_one = took > max(_FEWEST_SECONDS, _FAR_LONGER * usual) and usual * 1e9 < _CHANGED * start
        if len(self.rows) == 1 and is_all and is_one:
            self.rows = [Row(bar.last_step, s_to_ns(usual), bar.last_step - 1)]
            times = format_duration(s_to_ns(took)), took / usual, format_duration(s_to_ns(usual))
            self.notes.append(NOTES["one_far"].format(what, at, *times))
        elif ratio > _SLOW_START or (len(self.rows) > 1 and ratio < 1 / _CHANGED and is_all):
            self.rows.insert(0, Row(step, start, step))
        elif len(self.rows) == 1 and not 1 / _CHANGED < ratio < _CHANGED and is_all:
            note = NOTES["became" if ratio < 1 / _SLOW_START else "before"]
            self.notes.append(note.format(step, f"{what}s", format_duration(start), 1 / ratio))


def _as_bars(block: bytes) -> bytes:
    """A block with each bar in a line of its own, and bars of other programs as tqdm draws them."""
    if b"%|" in block:
        block = _PATTERNS["glued"].sub(rb"\n\1\2", block)
    if b"%\n" in block:
        block = _PATTERNS["notebook"].sub(rb"\1|| ", block)
    for name, sign in _OTHER_BARS.items():
        if sign in block:
            unit = b"s/it" if name == "progress" else rb"\g<unit>"
            total = b"?" if name == "endless" else rb"\g<all>"
            bar = rb"\g<label>: 0%%|| \g<step>/%b [\g<passed><0:00, \g<rate>%b] " % (total, unit)
            block = _PATTERNS[name].sub(bar, block)
    return block


@lru_cache(256)
def _label(before: bytes) -> tuple[bytes, bool, bool, bool, bool]:
    """The name of a bar, or none; whether it is plain, of a training, of epochs, a test."""
    label = before.strip() if not _PATTERNS["rank_before"].fullmatch(before) else b""
    is_of_training = bool(_PATTERNS["of_training"].search(before.rstrip()))
    is_of_training &= not _PATTERNS["of_evaluation"].search(label)
    is_work = label.endswith(b":") or _PATTERNS["of_preparation"].match(label)
    is_plain = is_of_training or label == b":" or not is_work
    if not is_of_training and _PATTERNS["metric_of_evaluation"].search(label):
        label = b"evaluation:"
    is_plain |= bool(_PATTERNS["metric"].search(label))
    is_of_epochs = bool(_PATTERNS["of_epochs"].search(label))
    is_of_evaluation = bool(_PATTERNS["of_evaluation"].search(before))
    return b"" if is_plain else label, is_plain, is_of_training, is_of_epochs, is_of_evaluation


def _bars(block: bytes) -> list[int]:
    """Where lines begin that may be bars; of very many in a block, some from its start to its end.

    Means over long spans hardly differ between all bars and some of them.
    """
    text = np.frombuffer(block, np.uint8)
    ends = 3 + np.flatnonzero(text[3:] == ord("<"))
    ends = ends[(text[ends - 3] == ord(":")) & (text[ends - 1] - ord("0") < 10)]
    breaks = np.flatnonzero(text == ord("\n"))
    begins = np.append(0, breaks + 1)[np.unique(np.searchsorted(breaks, ends))]
    if len(begins) > _MANY_BARS:
        begins = begins[np.linspace(0, len(begins) - 1, _MANY_BARS).astype(np.int64)]
    return [*map(int, begins)]


def _seconds(bar: _Bar) -> int:
    return bar.last_second - bar.first_second


def _whole(bar: _Bar, least: int = _MIN_SPAN) -> list[Row]:
    """The mean over the whole of a short bar, if seconds are fine enough for it."""
    span, passed = bar.last_step - bar.first_step, _seconds(bar)
    runs = -(-span // max(bar.last_step, 1))  # each shows whole seconds
    is_known = span >= least and passed >= _FEWEST_SECONDS * runs
    return [Row(bar.last_step, s_to_ns(passed / span), span)] if is_known else []


def _ends(bar: _Bar) -> list[Row]:
    """The mean of each epoch, of a bar that is seen only late in every one."""
    runs = [bar.seen[:1] * 2]
    for before, now in pairwise(bar.seen):
        is_same = now[0] == before[0] and now != before
        runs += [[now, now]] if is_same or now[0] < before[0] or now[1] < before[1] else []
        runs[-1][1] = now
    is_late = all(2 * a >= c > 0 and 2 * b >= d >= _FEWEST_SECONDS for (a, b), (c, d) in runs)
    seconds = [second for _, (_, second) in runs]
    runs_on = seconds == sorted(seconds)  # perhaps on one clock
    is_late &= (min(seconds) if runs_on else max(seconds)) >= _MIN_SECONDS
    is_whole = len(runs) > 1 or (bar.is_done and len({*bar.seen}) == 1)
    ends = [end for _, end in runs] if is_late and is_whole else []
    times = zip(accumulate(step for step, _ in ends), ends, strict=True)
    return [Row(number, s_to_ns(second / step), step) for number, (step, second) in times]


def _printed(bar: _Bar) -> list[Row]:
    """The rate that the bar shows, where it does not show enough of the time."""
    rates = [each for step, _, each, _ in bar.rates if step >= _FEWEST_STEPS]
    ns = s_to_ns(_between(bar) or median(rates[len(rates) // 2 :])) if rates else None
    return [Row(iteration=bar.last_step, duration_ns=ns, span=1)] if rates else []


def _between(bar: _Bar) -> float | None:
    """Seconds per step between rates that are means since a slow start; None if they are not."""
    steps, second, each, half = np.array(bar.rates).T
    late, error = steps * each - second, steps * half
    if (np.diff(steps) < 0).any() or (late < -error).any() or (late >= 1 + error).any():
        return None  # also of bars of several ranks
    steps, at = np.unique(steps, return_index=True)
    ends = [0, len(steps) // 2, -1]
    passed = np.diff((steps * each[at])[ends])
    if len(steps) < len(ends) or (passed <= _DIGITS * error.max()).any():
        return None
    slopes = passed / np.diff(steps[ends])
    is_steady = slopes.max() < _ALIKE * slopes.min()
    return float(passed.sum() / (steps[-1] - steps[0])) if is_steady else None


def _rising(bar: _Bar, least: int) -> list[Row]:
    """Short spans of a bar whose steps take longer and longer, from its start on; else none."""
    rows, step, second = [], 0, 0
    for number, now in bar.seen:
        if number > step and now - second >= max(least, _FEWEST_RISING_SECONDS):
            rows.append(Row(number, s_to_ns((now - second) / (number - step)), number - step))
            step, second = number, now
    times = [row.duration_ns or 0 for row in rows]
    is_far = len(times) > _FEWEST_RISING_SECONDS and times[-1] > _FAR_RISEN * times[0]
    is_rising = all(b >= (1 if is_far else _RISEN) * a for a, b in pairwise(times))
    return rows if is_rising and len(rows) >= _FEWEST_SPANS else []


def _since_start(bar: _Bar) -> list[Row]:
    """The mean since the start, of a bar that shows no rate, or is seen once."""
    steps, least = bar.last_step, 2 if bar.is_of_epochs else _MIN_STEPS
    return [Row(steps, s_to_ns(bar.last_second / steps), steps)] if steps >= least else []


# Lightning ----------------------------------------------------------------------------------------

_BATCH = "run_training_batch"
_NEXT = ("train_dataloader_next", "get_train_batch")

_HOOKS = ("on_train_batch_start", "on_train_batch_end", ".on_after_backward")
"""They run before, after and, the last one, within a batch."""
_PARTS = ("model_forward", "model_backward", "optimizer_step")
"""What the first versions list instead of a batch; the forward pass counts them."""

_FAR_BELOW = 0.7
"""Actions below this share of what the progress bar shows leave out most of an iteration."""

_ROUNDED = 0.98
"""Times below this share of it follow from a rate with few digits."""


def compare(grammar: Grammar, bars: BarGrammar) -> None:
    """Take the time of an iteration from the progress bar, if it is far above what is printed."""
    shown = [row.duration_ns or 0 for row in bars.rows[1:] or bars.rows]
    least = _FAR_BELOW if isinstance(grammar, LightningGrammar) else _ROUNDED
    usual = median(shown) if shown else 0.0
    for index, row in enumerate(grammar.rows):
        if (row.duration_ns or 0) < least * usual:
            grammar.rows[index] = row._replace(duration_ns=round(usual))


class LightningGrammar(Grammar):
    """Tables of Lightning's profilers: one report with the means of the whole training."""

    name: str = "Lightning's profiler"
    signs: tuple[bytes, ...] = (
        b"Mean duration (s)",
        b"Profile stats for: ",
        b"[LightningModule]",
        b"run_training_batch",
    )
    _means: dict[str, tuple[float | None, int]] = msgspec.field(default_factory=dict)

    def take(self, block: bytes) -> None:
        """Read actions: their mean times, or their total times and numbers of calls."""
        found = _PATTERNS["action"].findall(block)
        totals = (row for way in ("stats", "by_total") for row in _PATTERNS[way].findall(block))
        found += ((name, b"", *rest[::-1]) for name, *rest in totals)
        for name, mean, calls, total in found:
            each, whole, count = to_float(mean), to_float(total), int(calls.strip(b"_") or 0)
            each, count = (whole, 1) if mean == b"-" else (each, count)
            count = count or (round(whole / each) if whole and each else 0)
            each = each if mean or not whole or not count else whole / count
            self._means[name.decode("utf-8", "replace")] = (each, count)

    def finish(self) -> None:
        """A batch and its loading make an iteration."""
        means = self._means
        everything = means.pop("Total", (0.0, 1))[0] or 0.0
        steps = [each for name, each in means.items() if _PATTERNS["step"].search(name.encode())]
        longest = max(steps, key=lambda each: each[0] or 0.0, default=None)
        parts = [means.get(name, (0.0, 0)) for name in _PARTS]
        count = min(num for _, num in parts[:2])
        total = sum((mean or 0.0) * num for mean, num in parts)
        of_parts = (total / count if count else None), count
        seconds, count = means.get(_BATCH) or longest or of_parts
        if seconds is None or not count:
            return
        whole = {
            name: mean * calls / count
            for name, (mean, calls) in means.items()
            if mean is not None and calls >= count and not name.startswith("run_training")
            if not _PATTERNS["elsewhere"].search(name.encode())
        }
        seconds += sum(each for name, each in whole.items() if name.endswith(_NEXT))
        around = {name: each for name, each in whole.items() if name.endswith(_HOOKS[:-1])}
        seconds += sum(around.get(hook, 0.0) for hook in _HOOKS) or sum(around.values())
        self.add(Row(iteration=count, duration_ns=s_to_ns(seconds), span=count))
        self.add_seconds(whole)
        hooks = ((each, name) for name, each in whole.items() if name.endswith(_HOOKS))
        hook, name = max(hooks, default=(0.0, ""))
        if 3 * hook > seconds:
            took = format_duration(round(hook * 1e9))
            kind = "callback" if name.startswith("[Callback]") else "hook"
            share, name = format_ratio(hook / seconds), re.sub(r"\{.*\}|^.*\]", "", name)
            self.notes.append(NOTES["hook"].format(name, share, took, kind))
        once = ((m * num, num, n) for n, (m, num) in means.items() if m and n not in whole)
        spent, num, name = max((one for one in once if one[2][:4] != "run_"), default=(0.0, 0, ""))
        if 2 * spent > seconds * count:  # a third of all
            share = format_ratio(spent / max(spent + seconds * count, everything))
            took, name = format_duration(round(spent * 1e9)), re.sub(r"^\[\w+\]", "", name)
            self.notes.append(NOTES["outside"].format(name, share, took, num))
