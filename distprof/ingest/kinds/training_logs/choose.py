"""From what each grammar gathered to one training log: the way of writing that tells most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from distprof.ingest.kinds.training_logs.grammar import MAX_ROWS, Grammar, Row, TimerValues
from distprof.run.training_log import Float64Array, TrainingFacts, TrainingLog
from distprof.schema import ABSENT, Int64Array

__all__ = ["best_of", "to_log"]

_AXES = ("tp", "pp", "dp", "cp", "ep")
_LARGEST = 1 << 31


def best_of(grammars: Sequence[Grammar]) -> Grammar | None:
    """The grammar with most timed reports, ties by their order; None where none has a report."""
    told = [grammar for grammar in grammars if grammar.rows]
    if not told:
        return None
    return max(told, key=lambda g: (_has_times(g), -grammars.index(g)))


def to_log(
    chosen: Grammar, others: Sequence[Grammar], files: Sequence[str], num_lines: int
) -> TrainingLog:
    """One log of what was chosen.

    Args:
        chosen: Whose reports are taken.
        others: What else was gathered: rates and facts that the chosen one lacks.
        files: Paths as the user named them.
        num_lines: Lines of the files.
    """
    notes = [*chosen.notes, *_left_out(chosen, others)]
    rows, kept = _of_one_rank(chosen.rows, notes)
    rows = _timed_by_stamps(rows, notes)
    timers = {name: _timer(values, kept, len(rows)) for name, values in chosen.timers.items()}
    if chosen.is_full:
        notes.append(f"Only the first reports are kept, {len(rows):,} of at most {MAX_ROWS:,}.")
    iteration = _ints(row.iteration for row in rows)
    return TrainingLog(
        origin=chosen.name,
        files=tuple(files),
        iteration=iteration,
        span=_spans(rows),
        duration_ns=_ints(row.duration_ns for row in rows),
        samples_per_s=_floats([row.samples_per_s for row in rows]),
        tokens_per_s=_floats([row.tokens_per_s for row in rows]),
        tokens_per_s_per_device=_floats([row.tokens_per_s_per_device for row in rows]),
        tflops=_floats([row.tflops for row in rows]),
        loss=_floats([row.loss for row in rows]),
        printed_samples_per_s=_floats(_rates(chosen, others)),
        timers=timers,
        is_of_slowest_ranks=chosen.is_of_slowest_ranks,
        startup=dict(chosen.startup),
        facts=_facts(chosen, others),
        num_lines=num_lines,
        num_reports=len(chosen.rows) + chosen.num_timer_lines,
        num_unknown=chosen.num_unknown,
        num_restarts=int(np.sum(np.diff(iteration[iteration != ABSENT]) < 0)),
        notes=tuple(notes),
    )


def _has_times(grammar: Grammar) -> tuple[bool, bool]:
    """Times of many reports, else of any; or times of lines, from which they follow."""
    timed = sum(row.duration_ns is not None for row in grammar.rows[:1_000])
    stamped = sum(row.at_s is not None for row in grammar.rows[:1_000])
    return max(timed, stamped) >= 3, max(timed, stamped) > 0


def _left_out(chosen: Grammar, others: Sequence[Grammar]) -> list[str]:
    told = [other.name for other in others if other.rows and other is not chosen]
    if not told:
        return []
    return [f"Iterations are those of {chosen.name}; left aside: {', '.join(told)}."]


def _of_one_rank(rows: Sequence[Row], notes: list[str]) -> tuple[list[Row], Int64Array]:
    """Reports of one rank, and where each report of all went: ABSENT for those left aside."""
    ranks = {row.rank for row in rows}
    if len(ranks) < 2:
        return list(rows), np.arange(len(rows), dtype=np.int64)
    counts: dict[int | None, int] = {}
    for row in rows:
        counts[row.rank] = counts.get(row.rank, 0) + 1
    rank = max(counts, key=lambda r: (counts[r], -(r if r is not None else _LARGEST)))
    notes.append(f"Reports of {len(ranks):,} ranks: those of rank {rank} are taken.")
    mine = np.fromiter((row.rank == rank for row in rows), bool, len(rows))
    place = np.where(mine, np.cumsum(mine) - 1, ABSENT)
    return [row for row in rows if row.rank == rank], place


def _timed_by_stamps(rows: list[Row], notes: list[str]) -> list[Row]:
    """Where lines have times and reports none, times of iterations by their differences."""
    if any(row.duration_ns is not None for row in rows) or not any(r.at_s for r in rows):
        return rows
    notes.append("Times of iterations are differences of the times at which lines were written.")
    timed = rows[:1]
    for before, row in pairwise(rows):
        ns, span = None, None
        if None not in (before.at_s, row.at_s, before.iteration, row.iteration):
            seconds = row.at_s - before.at_s  # type: ignore[operator]
            span = row.iteration - before.iteration  # type: ignore[operator]
            ns = round(seconds / span * 1e9) if span > 0 and 0 < seconds < 1e7 else None
        timed.append(
            Row(
                iteration=row.iteration,
                duration_ns=ns,
                span=span if ns is not None else None,
                tokens_per_s_per_device=row.tokens_per_s_per_device,
                tflops=row.tflops,
                loss=row.loss,
            )
        )
    return timed


def _spans(rows: Sequence[Row]) -> Int64Array:
    """Iterations that each report is the mean of: as told, else by the numbers."""
    number = _ints(row.iteration for row in rows)
    steps = np.diff(number, prepend=number[:1])
    usual = int(np.median(steps[steps > 0])) if (steps > 0).any() else 1
    by_numbers = np.where((steps > 0) & (number != ABSENT), steps, usual)
    told = _ints(row.span for row in rows)
    spans: Int64Array = np.maximum(np.where(told > 0, told, by_numbers), 1)
    return spans


def _timer(values: TimerValues, kept: Int64Array, count: int) -> Int64Array:
    column = np.full(count, ABSENT, np.int64)
    place = kept[np.frombuffer(values.report, np.int64)]
    column[place[place != ABSENT]] = np.frombuffer(values.ns, np.int64)[place != ABSENT]
    return column


def _rates(chosen: Grammar, others: Sequence[Grammar]) -> list[float]:
    return next((g.rates for g in (chosen, *others) if g.rates), [])


def _facts(chosen: Grammar, others: Sequence[Grammar]) -> TrainingFacts:
    facts: dict[str, int] = {}
    for grammar in (*others, chosen):
        facts |= {name: n for name, n in grammar.facts.items() if 0 < n < _LARGEST}
    return TrainingFacts(
        world_size=facts.get("world_size"),
        mesh={axis: facts[axis] for axis in _AXES if axis in facts},
        num_micro_batches=facts.get("num_micro_batches") or _num_micro_batches(facts),
        micro_batch_size=facts.get("micro_batch_size"),
        global_batch_size=facts.get("global_batch_size"),
        sequence_length=facts.get("sequence_length"),
        virtual_stages=facts.get("virtual_stages"),
    )


def _num_micro_batches(facts: dict[str, int]) -> int | None:
    """Of one pipeline: what each replica gets of the batch, in micro-batches."""
    size, batch, dp = (facts.get(n) for n in ("micro_batch_size", "global_batch_size", "dp"))
    if size is None or batch is None or dp is None or batch % (size * dp):
        return None
    return batch // (size * dp)


def _ints(values: object) -> Int64Array:
    return np.fromiter(
        (ABSENT if value is None else value for value in values),  # type: ignore[attr-defined]
        np.int64,
    )


def _floats(values: Sequence[float | None]) -> Float64Array:
    return np.array([np.nan if value is None else value for value in values], np.float64)
