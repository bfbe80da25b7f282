"""Every training step according to the step log: time, throughput, phases and loss.

A trace holds a few steps. The log holds all of them, including those without a profiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from distprof.artefacts.records import CollectivesRecord
from distprof.artefacts.run_file import RunFile
from distprof.run.records import RankRecords, untraced_steps
from distprof.schema import Bools, Int64Array
from distprof.sections.context import ProbeRecords
from distprof.sections.matched import segment_median
from distprof.sections.step_log import LateInLog, LateOnGpu, RankStepLog, StepLogResult
from distprof.sections.step_log.stalls import (
    find_late_gpus,
    find_late_ranks,
    find_periodic_stalls,
    find_waits,
    groups_of,
)
from distprof.units import NS_PER_S

MAX_STEPS_COMPARED = 20_000
"""Number of last steps per rank that are joined across ranks, to bound the data per rank."""

SELDOM = 0.1
"""Share of steps at whose end the GPU is a step behind, below which its CPU does not run ahead."""

MAX_STEPS_KEPT = 512  # Most durations of single steps in a report


class StepLog(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's row, and its last steps to be joined with those of other ranks."""

    row: RankStepLog  # The rank's figures.
    step: Int64Array  # int64 step numbers, ascending.
    duration_ns: Int64Array  # int64.
    is_plain: Bools  # bool.
    is_traced: Bools  # bool.
    cpu_ns: Int64Array  # int64, time that the training thread ran on a CPU; negative if unknown.
    # Durations of collectives on the GPU in the last steps.
    gpu_collectives: tuple[CollectivesRecord, ...] = ()


def measure_step_log(records: RankRecords) -> StepLog | None:
    """Figures of one rank's log; None if it has no steps."""
    log = records.step_log
    if len(log) == 0:
        return None
    duration = log["end_ns"] - log["start_ns"]
    traced = log["is_traced"]
    # mask of the steps that show the training's speed: neither traced nor next to a traced step
    plain = ~traced
    plain[1:] &= ~traced[:-1]
    plain[:-1] &= ~traced[1:]
    if plain[1:].any():
        plain[0] = False
    untraced = untraced_steps(log)
    usual = duration[plain & untraced]
    behind = log["gpu_behind"][untraced]
    behind = behind[behind >= 0]
    kept = slice(max(0, len(log) - MAX_STEPS_COMPARED), None)
    losses = log["loss"][np.isfinite(log["loss"])]
    phases = _phase_times(records, plain)
    row = RankStepLog(
        rank=records.rank,
        first_step=int(log["step"].min()),
        last_step=int(log["step"].max()),
        num_steps=len(log),
        num_plain=int(plain.sum()),
        median_ns=_percentile(usual),
        p95_ns=_percentile(usual, 95),
        cv=_cv(usual),
        gpu_behind_ratio=float(behind.mean()) if len(behind) else None,
        traced_median_ns=_percentile(duration[traced]),
        tokens_per_s=_rate(log["tokens"], duration, plain),
        samples_per_s=_rate(log["samples"], duration, plain),
        input_ratio=_input_ratio(phases, int(duration[plain].sum())),
        phases={name: int(np.median(ns)) for name, ns in phases.items()},
        first_loss=float(losses[0]) if len(losses) else None,
        last_loss=float(losses[-1]) if len(losses) else None,
        tokens_per_step=_median_count(log["tokens"][plain]),
        num_micro_batches=_median_count(log["num_micro_batches"][plain]),
        samples_per_step=_median_count(log["samples"][plain]),
    )
    return StepLog(
        row=row,
        step=log["step"][kept],
        duration_ns=duration[kept],
        is_plain=plain[kept],
        is_traced=traced[kept],
        cpu_ns=np.minimum(log["cpu_ns"], duration)[kept],
        gpu_collectives=records.gpu_collectives,
    )


def analyze_step_log(records: ProbeRecords) -> StepLogResult:
    """Combine all ranks; ``unavailable`` also lists damaged records."""
    logs = tuple(records.of(StepLog).values())
    why = (*records.notes, *records.why("step_log", logs))
    return combine_step_logs(logs, why, job=records.job)


def combine_step_logs(
    logs: Sequence[StepLog], unavailable: Sequence[str] = (), *, job: RunFile | None = None
) -> StepLogResult:
    """Combine the step logs of all ranks."""
    rows = tuple(log.row for log in logs)
    if not rows:
        return StepLogResult(unavailable=tuple(unavailable))
    plain, traced = _durations(logs, "is_plain"), _durations(logs, "is_traced")
    on_gpus = job is not None and any(entry.device not in ("", "cpu") for entry in job.ranks)
    shared, has_gpus = _shared_durations(logs), on_gpus and _may_run_ahead(rows)
    names = dict.fromkeys(name for row in rows for name in row.phases)
    return StepLogResult(
        num_steps=max(row.last_step for row in rows) - min(row.first_step for row in rows) + 1,
        last_step=min(row.last_step for row in rows),
        median_ns=_percentile(plain),
        p95_ns=_percentile(plain, 95),
        cv=_cv(plain),
        traced_median_ns=_percentile(traced),
        tokens_per_s=_total([row.tokens_per_s for row in rows]),
        samples_per_s=_total([row.samples_per_s for row in rows]),
        input_ratio=_mean([row.input_ratio for row in rows]),
        phases={
            name: int(np.median([row.phases[name] for row in rows if name in row.phases]))
            for name in names
        },
        first_loss=_mean([row.first_loss for row in rows]),
        last_loss=_mean([row.last_loss for row in rows]),
        ranks=rows,
        plain_ns=tuple(plain[-MAX_STEPS_KEPT:].tolist()),
        tokens_per_step=_all_ranks([row.tokens_per_step for row in rows]),
        samples_per_step=_all_ranks([row.samples_per_step for row in rows]),
        stalls=find_periodic_stalls(*shared, has_gpus=has_gpus),
        wait_period=find_waits(*shared) if has_gpus else None,
        late=() if job is None else _late(logs, job),
        late_on_gpus=() if job is None else _late_on_gpus(logs, shared, job),
        unavailable=tuple(unavailable),
    )


def _may_run_ahead(rows: Sequence[RankStepLog]) -> bool:
    """Whether CPUs may be more than a step ahead of their GPUs, as far as anything shows it."""
    known = [row.gpu_behind_ratio for row in rows if row.gpu_behind_ratio is not None]
    return not known or max(known) >= SELDOM


def _late(logs: Sequence[StepLog], job: RunFile) -> tuple[LateInLog, ...]:
    """CPU ranks that compute longer than their peers."""
    ranks = [log.row.rank for log in logs]
    groups = groups_of(ranks, job)
    if not groups:  # on GPUs
        return ()
    known = [log.is_plain & (log.cpu_ns >= 0) for log in logs]
    return find_late_ranks(
        ranks,
        [log.step[kept] for log, kept in zip(logs, known, strict=True)],
        [log.cpu_ns[kept] for log, kept in zip(logs, known, strict=True)],
        groups,
    )


def _late_on_gpus(
    logs: Sequence[StepLog], shared: tuple[Int64Array, Int64Array], job: RunFile
) -> tuple[LateOnGpu, ...]:
    records = {log.row.rank: log.gpu_collectives for log in logs if log.gpu_collectives}
    if not records:
        return ()
    step, duration = (column.tolist() for column in shared)
    return find_late_gpus(records, dict(zip(step, duration, strict=True)), job)


def _percentile(values: Int64Array, percent: int = 50) -> int | None:
    return int(np.percentile(values, percent)) if len(values) else None


def _median_count(values: Int64Array) -> int | None:
    return _percentile(values[values >= 0])


def _all_ranks(counts: Sequence[int | None]) -> int | None:
    """The sum; None unless every rank has a count."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _shared_durations(logs: Sequence[StepLog]) -> tuple[Int64Array, Int64Array]:
    """Steps that are plain on every rank, and the duration of each on its fastest rank."""
    first = logs[0].step
    if all(np.array_equal(log.step, first) for log in logs) and np.all(np.diff(first) > 0):
        plain = np.logical_and.reduce([log.is_plain for log in logs])
        shortest = np.minimum.reduce([log.duration_ns for log in logs])
        return first[plain], shortest[plain]
    step = np.concatenate([log.step for log in logs])
    distinct, index, count = np.unique(step, return_inverse=True, return_counts=True)
    plain = np.ones(len(distinct), dtype=np.bool_)
    np.logical_and.at(plain, index, np.concatenate([log.is_plain for log in logs]))
    shortest = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(shortest, index, np.concatenate([log.duration_ns for log in logs]))
    kept = plain & (count == len(logs))
    return distinct[kept], shortest[kept]


def _cv(values: Int64Array) -> float | None:
    if len(values) < 2 or values.mean() <= 0:
        return None
    return float(values.std() / values.mean())


def _rate(counts: Int64Array, duration: Int64Array, plain: Bools) -> float | None:
    known = plain & (counts >= 0)
    time = int(duration[known].sum())
    return float(counts[known].sum()) * NS_PER_S / time if time else None


def _phase_times(records: RankRecords, plain: Bools) -> dict[str, Int64Array]:
    """For each phase, its time in each plain step that has it."""
    table, steps = records.phases, records.step_log["step"][plain]
    rows = table.take(np.isin(table["step"], steps))
    names = rows.coded("name")
    found = {}
    for code, name in enumerate(names.values):
        mine = names.codes == code
        if mine.any():
            distinct, index = np.unique(rows["step"][mine], return_inverse=True)
            found[name] = np.zeros(len(distinct), dtype=np.int64)
            np.add.at(found[name], index, (rows["end_ns"] - rows["start_ns"])[mine])
    return found


def _input_ratio(phases: Mapping[str, Int64Array], span: int) -> float | None:
    """Share of time in the phase ``input``; unknown (None) if the log has no phases at all."""
    if not phases or not span:
        return None
    spent = phases.get("input")
    return min(1.0, float(spent.sum()) / span) if spent is not None else 0.0


def _durations(logs: Sequence[StepLog], which: str) -> Int64Array:
    """Durations on the median rank of the steps that every rank marks as ``which``."""
    step = np.concatenate([log.step for log in logs])
    marked = np.concatenate([getattr(log, which) for log in logs])
    duration = np.concatenate([log.duration_ns for log in logs])
    distinct, index = np.unique(step, return_inverse=True)
    bounds = np.concatenate(([0], np.cumsum(np.bincount(index, minlength=len(distinct)))))
    median = segment_median(duration[np.argsort(index, kind="stable")], bounds)
    everywhere = np.ones(len(distinct), dtype=np.bool_)
    np.logical_and.at(everywhere, index, marked)
    return median[everywhere]


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
