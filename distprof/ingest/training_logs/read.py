"""Read a training log with the grammar that fits it best.

Each format has a grammar (:mod:`.grammar`), which reads only blocks of the file that contain one of
its signs, so other lines cost next to nothing. The grammar that finds the most is used.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, groupby, pairwise
from math import ceil, floor
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict, replace

from distprof.errors import InputError
from distprof.escape import shorten
from distprof.hardware import load_sheet
from distprof.ingest.files import DAMAGE, Blocks, beginning, opened, read_some, readings, refusing
from distprof.ingest.training_logs.counters import CountersGrammar
from distprof.ingest.training_logs.grammar import (
    AGAIN,
    FILE,
    NOTES,
    RATES,
    RUN,
    TYPED,
    USE,
    Grammar,
    best_of,
    byte_patterns,
    named,
    slow_rank,
    to_log,
    use_notes,
)
from distprof.ingest.training_logs.named_numbers import NamedNumbersGrammar, PhasesGrammar, as_named
from distprof.ingest.training_logs.reports import Reports, wordings
from distprof.ingest.training_logs.tables import ColumnsGrammar, is_series, read_series
from distprof.ingest.training_logs.trainers import BarGrammar, LightningGrammar, compare
from distprof.ingest.wrapped import unwrapped
from distprof.run.logs import TrainingLog
from distprof.schema import ABSENT
from distprof.units import few_names, format_duration, name_ranks, verb

_JSON = (".json", ".json.gz")
_SMALL, _SMALL_LOG, _MANY_REPORTS = 1 << 16, 1 << 20, 1_000
_MAX_NAME = 24  # So that a headline has room for it
_PARTS = (TYPED, "DeepSpeed's FLOPS", "a program that dates its reports")  # Below own headings
_TOGETHER = ("Megatron-LM", "DeepSpeed")
"""The first reports iterations, and its fork prints the timers of the second between them."""

_PATTERNS = byte_patterns("runs.toml")  # A log that is pasted below what someone says of it
_ALIKE, _LIKELY = 1.5, 3
"""Ratio up to which phases, or the lines between, are of a bar, whose mean has slow first ones."""

_APART, _NAMED_APART, _ASKED_APART, _SHOWN_APART = 1.2, 1.1, 1.5, 1.02
"""Ratio from which two runs differ, those that a text names, a first one asked about, and means."""

_OF = dict(zip(RATES, ("sample", "token", "token on each GPU"), strict=False))
"""Columns of rates, and what a time is that of if batches differ."""

_ROUND = 10  # Steps that someone chose are a multiple of that.
_COMPARED, _MOST_NAMED = 512, 6  # Last reports of each of several logs, and logs that are named
_FEWEST, _MOST_STARTS = 3, 7
"""Fewest reports of each run, and most starts: of more, an epoch numbers its iterations anew."""


class Candidates:
    """All grammars, each of which reads what it knows; the first one wins a tie."""

    def __init__(self) -> None:
        self._reports = Reports()
        self._own = (LightningGrammar(), BarGrammar())
        self.all: tuple[Grammar, ...] = (*self._reports.grammars.values(), *self._own)

    def take(self, block: bytes) -> None:
        """Read a block of whole lines."""
        self._reports.take(block)
        for grammar in self._own:
            if any(sign in block for sign in grammar.signs):
                grammar.take(block)

    def after(self, blocks: Iterable[bytes]) -> tuple[Grammar, ...]:
        """The grammars after the last of all blocks."""
        for block in blocks:
            self.take(block)
        for grammar in self.all:
            grammar.finish()
        for grammar in (self._own[0], self._reports.grammars["Hugging Face Trainer"]):
            compare(grammar, self._own[1])
        evaluations = [note for note in self._own[1].notes if note.startswith("Evaluation takes")]
        self._reports.grammars["ms-swift"].notes += evaluations
        megatron, deepspeed = (self._reports.grammars[name] for name in _TOGETHER)
        if len(megatron.rows) == len(deepspeed.rows) and not megatron.timers:
            megatron.timers = deepspeed.timers
        return self.all


def holds_iterations(start: bytes, *, is_text: bool, least: int = 1) -> bool:
    """Whether a file reports iterations, judged by its beginning, which is uncompressed.

    Unless it is a table, it must be the output of a program and hold ``least`` reports.
    """
    if ColumnsGrammar().fits(start):
        return True
    if not is_text:
        return as_named(start) != start and bool(_of_unknown([start]).rows)
    text = unwrapped(start.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    text = _PATTERNS["elsewhere"].sub(b"", text) if len(text) < _SMALL else text
    if any(len(grammar.rows) >= least for grammar in Candidates().after([text])):
        return True
    return len(_of_unknown([text[:_SMALL_LOG]]).rows) >= least


def read_training_log(source: str) -> TrainingLog:
    """Read the log of a training program; InputError if it is unreadable or has no iteration."""
    for keeps_labels in readings(source)[:-1]:
        with suppress(InputError):
            log = _read(source, keeps_labels=keeps_labels)
            if (log.duration_ns != ABSENT).any():
                return log
    return _read(source, keeps_labels=True)


def _read(source: str, *, keeps_labels: bool) -> TrainingLog:
    if source.lower().endswith(_JSON) and is_series(beginning(source, _SMALL)):
        return to_log(read_series(source), (), (source,), 0)
    found: tuple[Grammar, ...]
    try:
        with opened(source, keeps_labels=keeps_labels, keeps_ranks=keeps_labels) as stream:
            blocks = Blocks(stream)
            first, _ = read_some(stream, _SMALL)
            if len(first) < _SMALL and (slowest := _slowest_run(source, first)):
                return slowest
            stream.seek(0)
            table = ColumnsGrammar()
            if table.fits(first):
                found = (table,)
                table.read(blocks)
            else:
                found = Candidates().after(blocks)
                if best_of(found) is None:
                    stream.seek(0)
                    blocks = Blocks(stream)
                    found = (*found, _of_unknown(blocks))
    except DAMAGE as error:
        return _refuse(source, " ".join(f"{type(error).__name__}: {error}".split())[:200])
    chosen = _with_phases(best_of(found), first)
    if chosen is None:
        return _refuse(source, blocks.damage or f"{blocks.num_lines:,} lines without an iteration")
    if blocks.damage:
        chosen.notes.append(f"{source} was read only up to the damage: {blocks.damage}.")
    return _slowest_start(_with_words(to_log(chosen, found, (source,), blocks.num_lines), first))


def _with_words(log: TrainingLog, start: bytes) -> TrainingLog:
    """What follows from the words around reports: a GPU, whose peak is known, or a standstill."""
    notes, rates = [], log.tflops[np.isfinite(log.tflops)]
    named = {*map(bytes.lower, _PATTERNS["gpu"].findall(start))}
    named |= {b"bf16"} if b"v100" in named and _PATTERNS["bf16"].search(start) else set()
    if len(named) == 1 and len(rates) and not any(note.startswith(USE) for note in log.notes):
        gpu = load_sheet().gpu(named.pop().decode())
        share = float(np.median(rates)) * 1e12 / gpu.bf16_flops
        peak = f"{'fp16' if 'V100' in gpu.title else 'bf16'} peak ({gpu.title})"
        notes += use_notes(share, f"{{}} of the {peak}") if share < 1 else []
    number = log.iteration[log.iteration != ABSENT]
    if len(number) and len(start) < _SMALL and _PATTERNS["stands_still"].match(start):
        notes.append(NOTES["stands_still"].format(number[-1]))
    first, usual = int(log.duration_ns[0]), log.median_step_ns or 0
    asked = _PATTERNS["asked"].match(start) if first > _ASKED_APART * usual > 0 else None
    if asked and asked[1].decode().lower() == log.unit and number[:1].tolist() in ([0], [1]):
        notes.append(NOTES["first"].format(log.unit, format_duration(first), first / usual))
    return replace(log, notes=(*log.notes, *notes))


def _with_phases(chosen: Grammar | None, start: bytes) -> Grammar | None:
    """What is typed or printed between bars or steps, instead of those: phases, or iterations."""
    kinds = (BarGrammar, NamedNumbersGrammar)
    if not isinstance(chosen, kinds) or chosen.timers or len(start) == _SMALL:
        return chosen
    shown = [row.duration_ns for row in chosen.rows if row.duration_ns]
    wholes = [row.duration_ns * (row.span or 1) for row in chosen.rows if row.duration_ns]
    for other, ratio in ((PhasesGrammar(), _ALIKE), (NamedNumbersGrammar(), _LIKELY)):
        other.take(_PATTERNS["line_of_a_bar"].sub(b"", start))
        other.finish()
        times = [row.duration_ns for row in other.rows if row.duration_ns]
        is_better = isinstance(other, PhasesGrammar) or len(times) > len(shown) + 1
        if shown and times and is_better and 1 / ratio < median(times) / shown[-1] < ratio:
            return other
        if shown and len(times) >= _FEWEST and 1 / _ALIKE < median(times) / median(wholes) < _ALIKE:
            return other  # each of its steps holds a whole bar
    return chosen


class _Run(NamedTuple):
    """A run that is pasted below its name."""

    name: str
    log: TrainingLog
    num_steps: int  # of its bar, if that is seen at its end, else 0


def _runs(source: str, text: bytes, part: str = "block") -> Iterator[_Run]:
    title = ""  # The first one since the last run: that of a part of it comes below.
    for block in _PATTERNS[part].finditer(text):
        *_, named, held = (one for one in block.groups() if one is not None)
        found = Candidates().after([held])
        chosen = best_of(found) or _of_unknown([held])
        log = to_log(chosen, found, (source,), text.count(b"\n")) if chosen.rows else None
        said = named.decode("utf-8", "replace").replace("`", "")
        own = re.split(r"[.?!] ", said)[-1].strip("#*>-:： \r")
        own = (_parent(text[: block.start()]) if said[:1].isspace() else "") or own
        title = title if title and isinstance(chosen, PhasesGrammar) else own
        if log is not None and any(_times([log])[1]):
            num_steps = chosen.num_steps if isinstance(chosen, BarGrammar) else 0
            yield _Run(title, log, num_steps)
            title = ""


def _parent(before: bytes) -> str:
    """The item of a list that an indented line below it belongs to; empty without one."""
    lines = reversed(before.decode("utf-8", "replace").split("\n"))
    return next((line for line in lines if line[:1].strip(" \t`")), "").strip("#*>-:： \r")


def _slowest_run(source: str, start: bytes) -> TrainingLog | None:
    """The slowest of several runs in a text; None unless their times differ."""
    runs: list[_Run] = []
    for part in ("block", "section", "prose"):
        if len({run.name for run in runs}) < max(len(runs), 2):  # or the next ones are runs
            found = [*_runs(source, start, part)]
            goes_on = (
                min(len(a.iteration), len(b.iteration)) < 2  # a bar or a profile of one run
                if a.origin != b.origin
                else a.iteration[-1] < b.iteration[0]
                for a, b in pairwise(run.log for run in found)
            )
            runs = runs if part == "prose" and any(goes_on) else found or runs
    runs = [run for run in runs if not run.log.origin.startswith(_PARTS)] or runs
    names = [run.name for run in runs]
    does, units = "times", [f"{run.log.unit}s" for run in runs]
    what, times = _times([run.log for run in runs])
    steps = [run.num_steps for run in runs]
    if min(steps, default=0) and max(steps) >= _APART * min(steps):
        what, times = "pass", [time * n for time, n in zip(times, steps, strict=True)]
        if not _are_shares(steps):
            does, units = "has", [f"{n:,} steps" for n in steps]
    origins = {run.log.origin for run in runs}
    if len(origins) > 1 and origins <= {row.program for row in wordings()}:
        does, units = "holds", [f"a log of {run.log.origin}" for run in runs]
    if at := next((at for at, unit in enumerate(units) if unit != units[0]), 0):
        note = NOTES["apart"].format(RUN, does, units[0], at + 1, units[at])
        return replace(runs[0].log, notes=(note, *runs[0].log.notes))
    last = [int(run.log.iteration[-1]) for run in runs]
    if len(runs) == 2 and what == "iteration" and 0 <= min(last) <= _FEWEST < max(last) - _ROUND:
        at = last.index(max(last))
        note = NOTES["start_only"].format(RUN, at + 1, format_duration(times[at]), 2 - at)
        return replace(runs[at].log, notes=(note, *runs[at].log.notes))
    are_many = any(run.log.num_restarts and run.log.unit == "epoch" for run in runs)
    if len(runs) < 2 or len({*names}) < len(runs) or not all(times) or are_many:
        return None  # or the program prints the names
    pairs = _pairs(names) or [(times.index(max(times)), times.index(min(times)))]
    pairs = [pair if times[pair[0]] > times[pair[1]] else pair[::-1] for pair in pairs]
    pairs.sort(key=lambda pair: times[pair[1]] / times[pair[0]])
    if times[pairs[0][0]] < _NAMED_APART * times[pairs[0][1]]:
        note = NOTES["alike"].format(RUN, *map(format_duration, times))
        log = replace(runs[-1].log, origin="several timed runs", timers={}, notes=(note,))
        return log if all(run.log.origin == TYPED for run in runs) else None
    names = [shorten(name, _MAX_NAME).replace(", ", ",\N{NO-BREAK SPACE}") for name in names]
    each = [*zip(count(1), names, map(format_duration, times), strict=False)]
    note = " ".join(
        NOTES["run"].format(RUN, *each[a], what, times[a] / times[b], *each[b]) for a, b in pairs
    )
    slowest = runs[pairs[0][0]].log
    return replace(slowest, notes=(note, *slowest.notes))


def _are_shares(steps: Sequence[int]) -> bool:
    """Whether all could be passes over the same data, with other batches or numbers of ranks."""
    most = max(steps)
    shares = {n: most / round(most / n) for n in steps}
    return most % _ROUND > 0 and all(floor(one) <= n <= ceil(one) for n, one in shares.items())


def _pairs(names: Sequence[str]) -> list[tuple[int, int]]:
    """Runs in a row whose names differ in one word, if there are several such pairs."""
    words = [name.split() for name in names]
    pairs = [(i, i + 1) for i in range(0, len(names) - 1, 2)]
    differ = [sum(a != b for a, b in zip(words[i], words[j], strict=False)) for i, j in pairs]
    return pairs if len(pairs) > 1 and {*differ} == {1} else []


def _times(logs: Sequence[TrainingLog]) -> tuple[str, list[int]]:
    """Time of an iteration or epoch, in ns; of a sample or token if the batches of logs differ."""
    times = [log.median_step_ns or 0 for log in logs]
    of = max(_OF, key=lambda of: any((getattr(log, of) > 0).any() for log in logs))
    printed = [getattr(log, of) for log in logs]
    rates = [float(np.median(each[each > 0])) for each in printed if (each > 0).any()]
    batches = [time * rate for time, rate in zip(times, rates, strict=False)]
    is_alike = max(batches, default=0) < _APART * min(batches, default=0)
    if len(rates) < len(logs) or (all(times) and is_alike):
        return next((log.unit for log in logs), "iteration"), times
    return _OF[of], [round(1e9 / rate) for rate in rates]


def _slowest_start(log: TrainingLog) -> TrainingLog:
    """One part of a log whose numbers start again, if iteration times of parts differ.

    That is the slowest one of few. Of many runs, whose settings differ, too, it is the last one.
    """
    are_whole = any("mean over the whole training" in note for note in log.notes)
    known = np.flatnonzero((log.iteration != ABSENT) | are_whole)
    starts = known[1:][(np.diff(log.iteration[known]) < 0) | are_whole].tolist()
    if not starts or not (log.unit == "epoch" or len(starts) <= _MOST_STARTS):
        return log
    parts = [_part(log, a, b) for a, b in pairwise([0, *starts, len(log.iteration)])]
    timed = [one for one in parts if min(len(one.iteration), 1 + len(one.steady_ns)) >= _FEWEST]
    if len(timed) <= (len(log.iteration) <= _ROUND):  # or of what someone pasted
        timed = [one for one in parts if len(one.steady_ns)]
    what, times = _times(timed)
    least = min(times, default=0)
    if not least or max(times) < (_SHOWN_APART if are_whole else _APART) * least:
        return log
    if len(timed) == len(parts) <= _MOST_STARTS + 1:
        each = ", then ".join(text for text, _ in groupby(map(format_duration, times)))
        note = NOTES["again"].format(AGAIN, what, each, max(times) / least)
        return replace(timed[times.index(max(times))], notes=(note, *log.notes))
    if log.unit != "epoch":
        return log
    fast, slow = (format_duration(f(times[:-1])) for f in (min, max))
    note = NOTES["many_runs"].format(len(parts), log.unit, fast, slow)
    of_all = ("Pauses between", "The log does not say what passed")
    kept = (one for one in log.notes if not one.startswith(of_all))
    return replace(timed[-1], notes=(note, *kept))


def _part(log: TrainingLog, start: int, end: int | None = None) -> TrainingLog:
    """The log with some of its reports; the others may be forgotten."""
    columns = {k: v[start:end].copy() for k, v in asdict(log).items() if isinstance(v, np.ndarray)}
    timers = {name: column[start:end].copy() for name, column in log.timers.items()}
    return replace(log, **columns, timers=timers)


def _of_unknown(blocks: Iterable[bytes]) -> Grammar:
    """What a log holds whose program is unknown: reports, phases of an iteration, or epochs."""
    numbers, phases, counters = NamedNumbersGrammar(), PhasesGrammar(), CountersGrammar()
    for i, block in enumerate(map(as_named, blocks)):
        numbers.take(block)
        if numbers.num_found < _MANY_REPORTS:  # else these are not read for nothing
            counters.take(block)
        if not i:
            phases.take(block[:_SMALL])
    for grammar in (numbers, phases, counters):
        grammar.finish()
        if grammar.rows:
            return grammar
    return numbers


def read_several(paths: Sequence[str], ranks: Sequence[int | None]) -> tuple[TrainingLog, str]:
    """One of several logs, with what all of them say, and the speeds of runs as lines of text.

    ``ranks`` are those in their names. InputError if none can be read.
    """
    root = os.path.commonpath([Path(path).parent for path in paths])
    names = [os.path.relpath(path, root) for path in paths]
    are_ranks, known = None not in ranks, {rank for rank in ranks if rank is not None}
    are_all = are_ranks and len(known) == len(paths)  # else those of each host
    is_certain = are_all and all("rank" in name.lower() for name in names)
    names = [f"rank {rank}" for rank in ranks] if are_all else names
    logs: dict[str, TrainingLog] = {}
    for path, name in zip(paths, names, strict=True):
        with suppress(InputError):
            logs[name] = _part(read_training_log(path), -_COMPARED)
    logs = logs or {paths[0]: read_training_log(paths[0])}
    if is_certain or _are_of_one_job([*logs.values()], are_ranks=are_ranks):
        logs = logs if are_all else {f"file {name}": logs[name] for name in logs}
        whose, notes, speeds = *_of_ranks(logs), ""
        silent = {*range(max(known, default=0))} - known if are_all else ()
        if 0 < len(silent) < len(known):
            notes.append(NOTES["missing"].format(name_ranks(silent)))
    else:
        whose, notes, speeds = _of_runs(logs)
    log = read_training_log(logs[whose].files[0])
    files = dict.fromkeys((*log.files, *(one.files[0] for one in logs.values())))
    return replace(log, files=(*files,), whose=whose, notes=(*notes, *log.notes)), speeds


def _of_ranks(logs: Mapping[str, TrainingLog]) -> tuple[str, list[str]]:
    """The slowest rank, or the one with most reports, and notes on it and on silent ones."""
    times = (
        (name, whose, ns)
        for whose, log in logs.items()
        for name, column in {"": log.duration_ns, **log.timers}.items()
        for ns in column[log.is_steady & (column != ABSENT)].tolist()
    )
    slow, notes = slow_rank(times)
    longest = max(logs, key=lambda whose: logs[whose].num_reports)
    lasts = {whose: int(log.iteration[-1]) for whose, log in logs.items()}
    (end, num), *_ = Counter(lasts.values()).most_common(1)
    behind = {whose: end - last for whose, last in lasts.items() if last != end}
    by = sorted({*behind.values()})
    is_cut = len(behind) > 1 and by[-1] <= np.median(np.diff(logs[longest].iteration))  # by a copy
    is_cut |= len({one.num_restarts for one in logs.values()}) > 1  # their numbers start again
    if by and by[0] > 0 and len(behind) <= num and not is_cut:
        early, spans = named([*behind]), " to ".join(f"{n:,}" for n in {by[0]: 0, by[-1]: 0})
        ends, unit = verb(behind, "end"), logs[longest].unit
        notes.append(NOTES["ends"].format(early, ends, spans, unit, num, "s" * (num > 1)))
        notes.append(NOTES["silent"].format(early))
    return slow or longest, notes


def _are_of_one_job(logs: Sequence[TrainingLog], *, are_ranks: bool) -> bool:
    """Whether the programs that printed logs wait for each other, or have the same losses."""
    times = [log.median_step_ns or 0 for log in logs]
    if len({log.origin for log in logs}) > 1 or max(times) > _NAMED_APART * min(times):
        return False
    losses = [dict(zip(log.iteration.tolist(), log.loss.tolist(), strict=True)) for log in logs]
    common = set.intersection(*map(set, losses))
    rows = np.array([[each[number] for number in common] for each in losses])
    known = rows[:, np.isfinite(rows).all(axis=0)]
    are_same = known.size > 0 and bool(np.allclose(known, known[0], rtol=1e-4))
    return bool(common) and (are_ranks or are_same)


def _of_runs(logs: Mapping[str, TrainingLog]) -> tuple[str, list[str], str]:
    """The slowest of several runs, a note on them, and their speeds by the number of GPUs."""
    what, times = _times([*logs.values()])
    order = sorted(zip(times, logs, strict=True), reverse=True)
    (longest, slow), (shortest, fast) = order[0], order[-1]
    least, most = (format_duration(ns or None) for ns in (shortest, longest))
    each = few_names([f"{name} {format_duration(ns or None)}" for ns, name in order], _MOST_NAMED)
    notes = [NOTES["runs"].format(least, most, what, each)]
    if not shortest or len({log.origin for log in logs.values()}) > 1:
        return slow, notes, FILE
    if longest > _NAMED_APART * shortest:
        ratio = f"{longest / shortest:.2f} times as long as “{fast}”"
        notes = [f"{FILE}{slow}” takes {most} per {what}, {ratio}.", *notes][: len(logs) - 1]
    lines = (_speed(name, logs[name], ns, what) for name, ns in zip(logs, times, strict=True))
    return slow, notes, "\n".join(lines)


def _speed(name: str, log: TrainingLog, ns: int, what: str) -> str:
    """For example ``8gpu log: 412 samples/s``; a time if the log does not give the batch."""
    rates = log.tokens_per_s_per_device[np.isfinite(log.tokens_per_s_per_device)]
    speed = f"{ns / 1e9:.6g} s per {what}"
    if len(rates):
        speed = f"{np.median(rates):.6g} tokens/s per GPU"
    elif what in ("sample", "token") or np.isfinite(log.samples_per_s).any():
        speed = f"{1e9 / ns:.6g} samples/s"
    elif log.tokens_per_step:
        speed = f"{log.tokens_per_step * 1e9 / ns:.6g} tokens/s"
    return f"{f'{log.world_size} GPUs' if log.world_size else re.sub('[_.]', ' ', name)}: {speed}"


_refuse = refusing(
    expected="a log in which a training program reports its iterations",
    fix="see docs/how-to/read-training-logs.md for the supported programs",
)
