"""Groups summaries of runs by size: usable runs, their work, and weak or strong scaling."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from distprof.artefacts.summary_file import SUMMARY_SCHEMA, SummaryFile
from distprof.documents.document import Document, write_file
from distprof.verbs.sweep.result import Mode

_TOLERANCE = 0.02
"""Amounts of work per step that differ by less count as equal: batches are rounded to ranks."""
_MOST_RANKS = 10**8
_LONGEST_NS = 10**17  # three years
_LEAST_WORK, _MOST_WORK = 1e-9, 1e18  # a larger value is damaged
_FIELDS = {"tokens": "tokens_per_step", "samples": "samples_per_step"}


SUMMARY = Document(
    kind=SummaryFile,
    schema=SUMMARY_SCHEMA,
    noun="a summary",
    title="distprof scale --save-summaries",
    fix="make it again with: distprof scale --save-summaries FILE",
    indent=1,
)
"""Summary of one run; a file may hold a list of them."""


class SweepError(ValueError):
    """The runs do not form a sweep; the message says why."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of several sizes."""

    # Repeats in order of time, by ascending number of ranks.
    runs: dict[int, tuple[SummaryFile, ...]]
    # Work per step of all ranks in ``unit``, by number of ranks; follows from the mode if the runs
    # do not record it.
    work: dict[int, float]
    unit: str  # ``tokens``, ``samples`` or ``steps``.
    has_work: bool  # Whether the runs record their work.
    mode: Mode  # Weak or strong.
    how: str  # How the mode was determined, one sentence.
    left_out: tuple[str, ...]  # One sentence for each unusable run.


def gather(summaries: Iterable[SummaryFile], mode: Mode | None) -> Sweep:
    """Group runs by size; without a mode, infer it from the work per step.

    SweepError if there are fewer than two sizes, if repeats differ in work, or if the mode cannot
    be inferred.
    """
    runs, left_out = _by_size(summaries)
    if len(runs) < 2:
        found = "no run with steps and a size"
        if runs:
            ranks = next(iter(runs))
            found = f"only {'1 rank' if ranks == 1 else f'{ranks} ranks'}"
        why = f"Scaling needs runs of at least two sizes. Found: {found}."
        raise SweepError(" ".join((why, *left_out)))
    unit = _unit(runs)
    if not unit:
        if mode is None:
            raise SweepError(
                "Weak and strong scaling cannot be distinguished: the runs record neither tokens"
                " nor samples per step. Choose --weak or --strong."
            )
        work = {ranks: float(ranks) if mode == "weak" else 1.0 for ranks in runs}
        found_mode, how = mode, _chosen(mode)
    else:
        work = _work(runs, unit)
        found_mode, how = _mode(work, unit, mode)
    return Sweep(
        runs=runs,
        work=work,
        unit=unit or "steps",
        has_work=bool(unit),
        mode=found_mode,
        how=how,
        left_out=tuple(left_out),
    )


def _by_size(
    summaries: Iterable[SummaryFile],
) -> tuple[dict[int, tuple[SummaryFile, ...]], list[str]]:
    found: dict[int, list[SummaryFile]] = {}
    left_out: list[str] = []
    for number, run in enumerate(summaries, 1):
        ranks = run.fingerprint.world_size
        why = ""
        if ranks is None or not 1 <= ranks <= _MOST_RANKS:
            why = "does not record its number of ranks"
        elif not run.step_ns:
            why = "has no steady step"
        elif min(run.step_ns) <= 0:
            why = f"has a step that took {min(run.step_ns)} ns"
        elif max(run.step_ns) > _LONGEST_NS:
            why = "has a step that took more than three years"
        else:
            found.setdefault(ranks, []).append(run)
        if why:
            left_out.append(f"{run.label or run.source or f'run {number}'} {why}.")
    in_time = {n: sorted(runs, key=lambda run: run.created_ns) for n, runs in found.items()}
    return {ranks: tuple(in_time[ranks]) for ranks in sorted(in_time)}, left_out


def _unit(runs: dict[int, tuple[SummaryFile, ...]]) -> str:
    """Unit of work that every run records; empty if there is none."""
    for unit, field in _FIELDS.items():
        values = [getattr(run, field) for repeats in runs.values() for run in repeats]
        if all(value is not None and _LEAST_WORK <= value <= _MOST_WORK for value in values):
            return unit
    return ""


def _work(runs: dict[int, tuple[SummaryFile, ...]], unit: str) -> dict[int, float]:
    work = {}
    for ranks, repeats in runs.items():
        values = [float(getattr(run, _FIELDS[unit])) for run in repeats]
        work[ranks] = statistics.median(values)
        if max(values) > (1 + _TOLERANCE) * min(values):
            raise SweepError(
                f"Repeats on {ranks} ranks differ in work: {min(values):g} to {max(values):g}"
                f" {unit} per step."
            )
    return work


def _chosen(mode: Mode) -> str:
    return f"{mode.capitalize()} scaling, as requested."


def _mode(work: dict[int, float], unit: str, requested: Mode | None) -> tuple[Mode, str]:
    is_strong = _is_constant(list(work.values()))
    is_weak = _is_constant([value / ranks for ranks, value in work.items()])
    found: Mode | None = "strong" if is_strong else "weak" if is_weak else None
    if requested is not None:
        how = _chosen(requested)
        if found != requested:
            how += f" However, {unit} per step are {_listed(work)} ranks."
        return requested, how
    if found is None:
        raise SweepError(
            f"Work per step is neither constant nor proportional to the number of ranks: {unit} per"
            f" step are {_listed(work)} ranks. Choose --weak or --strong."
        )
    who = "all ranks together process" if found == "strong" else "each rank processes"
    constant = f"{who} the same number of {unit} per step at every size"
    return found, f"{found.capitalize()} scaling: {constant}."


def _is_constant(values: Sequence[float]) -> bool:
    return max(values) <= (1 + _TOLERANCE) * min(values)


def _listed(work: dict[int, float]) -> str:
    return ", ".join(f"{value:g} on {ranks}" for ranks, value in work.items())


def save_summaries(summaries: Sequence[SummaryFile], file: str) -> None:
    """Write the summaries of runs to one file."""
    data = msgspec.json.encode(summaries)
    write_file(Path(file), msgspec.json.format(data, indent=SUMMARY.indent))
