"""Reads and writes baselines, adds sessions to them, and acknowledges losses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from distprof.artefacts.summary_file import (
    Acknowledged,
    BaselineFile,
    BaselineSession,
    Fingerprint,
    StepParts,
    SummaryFile,
    unlike,
)
from distprof.bounds import table_beside
from distprof.documents.document import Document
from distprof.errors import InputError
from distprof.sections.table import counted
from distprof.verbs.gate import Better, Scale
from distprof.version import __version__


class Metric(msgspec.Struct, frozen=True):
    """One metric of a run."""

    name: str  # Name in configuration, baselines and JSON.
    label: str  # Name in reports.
    better: Better  # Which direction is an improvement.
    scale: Scale  # ``ratio`` for times and sizes; ``difference`` for shares, which may be near 0.
    tolerance: float  # Loss that is accepted by default.
    # Returns its value in a summary, or None if unknown.
    read: Callable[[SummaryFile], float | None]
    # Whether it is gated by default. The parts of a step explain its time, but each is noisier than
    # the whole, and gating all of them would raise more false alarms.
    decides: bool = False

    def can_be(self, value: float) -> bool:
        """Whether a value is possible: finite and above 0, or a share of 0."""
        return math.isfinite(value) and (value > 0 or (self.scale == "difference" and value == 0))


def _step_time(summary: SummaryFile) -> float | None:
    return statistics.median(summary.step_ns) if summary.step_ns else None


def _metric(of: str, **declared: Any) -> Metric:
    """A metric of the table, read from the field of a summary that it names."""
    read = {"": lambda _: None, "step_ns": _step_time}.get(of) or attrgetter(of)
    return Metric(**declared, read=read)


METRICS = tuple(_metric(**row) for row in table_beside(__package__, "metrics.toml")["metric"])
"""Every metric, in the order of display."""


def find_metric(name: str, metrics: Sequence[Metric] = METRICS) -> Metric | None:
    """The metric with this name; None if there is none."""
    return next((metric for metric in metrics if metric.name == name), None)


def values_of(summary: SummaryFile) -> dict[str, float]:
    """Values by metric, without unknown and impossible values."""
    found = ((metric, metric.read(summary)) for metric in METRICS)
    return {m.name: float(v) for m, v in found if v is not None and m.can_be(v)}


def efficiency_ratio(small: SummaryFile, large: SummaryFile) -> float | None:
    """Work per rank and time of the large run, divided by that of the small run.

    Work is measured in tokens, or else in samples. If neither is known, every rank is assumed to
    have the same work in both runs (weak scaling). None if a step time or a size is unknown or
    impossible.
    """
    fields = ("tokens_per_step", "samples_per_step")
    field = next((f for f in fields if getattr(small, f) and getattr(large, f)), "")
    before, after = (_rank_rate(run, field) for run in (small, large))
    ratio = after / before if before and after else 0.0
    return ratio if 0 < ratio < math.inf else None


def _rank_rate(summary: SummaryFile, field: str) -> float | None:
    """Work per rank and ns; the work of a rank is 1 if it is unknown."""
    step, ranks = _step_time(summary), summary.fingerprint.world_size
    if not step or step <= 0 or not ranks:
        return None
    work = float(getattr(summary, field)) / ranks if field else 1.0
    return work / step


MOST_REPEATS = 100
"""Maximum number of repeats per session, which keeps the file small enough to review."""
MOST_SESSIONS = 100
"""Maximum number of sessions per baseline, for the same reason and for a fast bootstrap."""
_DIGITS = 9  # significant digits; more would only make a review longer


BASELINE = Document(
    kind=BaselineFile,
    noun="a baseline",
    file="a baseline as distprof check --update-baseline writes it",
    fix="write it again with distprof check … --update-baseline, or restore it from version"
    " control",
    fix_missing="create one from good runs: distprof check RUN --baseline FILE --update-baseline",
    order="sorted",
    max_bytes=4 << 20,
)


def read_baseline(path: str) -> BaselineFile:
    """Read a baseline; InputError if it is missing, truncated, or holds impossible values."""
    baseline = BASELINE.load(path)
    wrong = _impossible_value(baseline)
    if wrong:
        raise InputError(path, expected=BASELINE.file, found=wrong, fix=BASELINE.fix)
    return baseline


def _impossible_value(baseline: BaselineFile) -> str:
    """An impossible value in the baseline; empty if there is none."""
    if not baseline.sessions:
        return "no session"
    if not 1 <= baseline.window <= MOST_SESSIONS:
        return f"a window of {baseline.window} sessions"
    if len(baseline.sessions) > MOST_SESSIONS:
        return f"{len(baseline.sessions)} sessions, more than {MOST_SESSIONS}"
    for session in baseline.sessions:
        for name, values in session.values.items():
            if len(values) > MOST_REPEATS:
                return f"{len(values)} repeats of {name[:60]} in one session"
            metric = find_metric(name)
            least = 0.0 if metric is None or metric.scale == "difference" else math.ulp(0.0)
            if any(not math.isfinite(value) or value < least for value in values):
                return f"an impossible value of {name[:60]}"
    for each in baseline.acknowledged:
        if not 0 <= each.up_to < 1:
            return f"an acknowledged loss of {each.up_to} of {each.metric[:60]}"
    return ""


def session_of(
    repeats: Sequence[SummaryFile], small: Sequence[SummaryFile] = ()
) -> BaselineSession:
    """One session of repeats; ValueError if they differ. ``small``: repeats on fewer ranks."""
    if not 1 <= len(repeats) <= MOST_REPEATS:
        raise ValueError(f"{len(repeats)} repeats: a session has 1 to {MOST_REPEATS}")
    for repeat in repeats[1:]:
        wrong = unlike(repeats[0].fingerprint, repeat.fingerprint, is_gate=True)
        if wrong:
            differences = "; ".join(difference.sentence for difference in wrong)
            raise ValueError(f"the runs are not repeats of the same run: {differences}")
    ordered = sorted(repeats, key=lambda repeat: repeat.created_ns)
    each = [values_of(repeat) for repeat in ordered]
    pairs = zip(sorted(small, key=lambda repeat: repeat.created_ns), ordered, strict=False)
    for values, pair in zip(each, pairs, strict=False):
        efficiency = efficiency_ratio(*pair)
        if efficiency is not None:
            values["efficiency"] = efficiency
    names = dict.fromkeys(name for values in each for name in values)
    return BaselineSession(
        git_commit=ordered[-1].git_commit,
        created_ns=ordered[-1].created_ns,
        values={
            name: tuple(float(f"{v[name]:.{_DIGITS}g}") for v in each if name in v)
            for name in names
        },
        parts=mean_parts(ordered),
    )


def mean_parts(repeats: Sequence[SummaryFile]) -> StepParts | None:
    """The mean traced step of repeats, whose parts add up exactly; None without traces."""
    traced = [repeat.parts for repeat in repeats if repeat.parts is not None]
    if not traced:
        return None
    mean = {
        name: sum(getattr(parts, name) for parts in traced) // len(traced)
        for name in StepParts.__struct_fields__
        if name != "other_ns"
    }
    span = mean.pop("span_ns")
    return StepParts(span_ns=span, other_ns=span - sum(mean.values()), **mean)


def make_baseline(
    repeats: Sequence[SummaryFile], small: Sequence[SummaryFile] = (), *, window: int = 8
) -> BaselineFile:
    """A first baseline; ValueError as :func:`session_of`, and for an invalid window."""
    if not 1 <= window <= MOST_SESSIONS:
        raise ValueError(f"a window of {window} sessions: choose 1 to {MOST_SESSIONS}")
    session = session_of(repeats, small)
    return BaselineFile(
        distprof_version=__version__,
        fingerprint=repeats[-1].fingerprint,
        small_world_size=_world_size(small),
        window=window,
        sessions=(session,),
    )


def accept_runs(
    file: str, repeats: Sequence[SummaryFile], small: Sequence[SummaryFile] = (), *, window: int
) -> str:
    """Write repeats to a baseline, as a new session or a new file; return what it holds now."""
    if not Path(file).exists():
        BASELINE.save(make_baseline(repeats, small, window=window), file)
        return f"a new baseline of {counted(len(repeats), 'repeat')}"
    old = read_baseline(file)
    new = accepted(old, repeats, small, window=window)
    BASELINE.save(new, file)
    wrong = unlike_baseline(old, repeats, small)
    restart = f" (started again because {wrong[0]})" if wrong else ""
    return f"{len(new.sessions)} of {new.window} sessions{restart}"


def accepted(
    baseline: BaselineFile,
    repeats: Sequence[SummaryFile],
    small: Sequence[SummaryFile] = (),
    *,
    window: int | None = None,
) -> BaselineFile:
    """The baseline with one more session; a different job or machine starts a new one."""
    new = make_baseline(repeats, small, window=window or baseline.window)
    kept = () if unlike_baseline(baseline, repeats, small) else baseline.sessions
    return msgspec.structs.replace(
        new,
        small_world_size=new.small_world_size or (baseline.small_world_size if kept else None),
        sessions=(*kept, *new.sessions)[-new.window :],
        acknowledged=tuple(
            each
            for each in baseline.acknowledged
            if each.until_ns is None or each.until_ns > new.sessions[0].created_ns
        ),
    )


def unlike_baseline(
    baseline: BaselineFile, repeats: Sequence[SummaryFile], small: Sequence[SummaryFile] = ()
) -> tuple[str, ...]:
    """Differences that forbid comparing repeats with a baseline, each as a clause."""
    return unlike_job(baseline, repeats[-1].fingerprint, _world_size(small))


def unlike_job(baseline: BaselineFile, job: Fingerprint, after: int | None) -> tuple[str, ...]:
    """As :func:`unlike_baseline`, for a finished or planned job; ``after``: its smaller size."""
    clauses = [each.sentence for each in unlike(baseline.fingerprint, job, is_gate=True)]
    before = baseline.small_world_size
    if before is not None and after is not None and before != after:
        clauses.append(f"the smaller size is {before} in one and {after} in the other")
    return tuple(clauses)


def _world_size(small: Sequence[SummaryFile]) -> int | None:
    return small[-1].fingerprint.world_size if small else None


def acknowledge(baseline: BaselineFile, loss: Acknowledged) -> BaselineFile:
    """The baseline with an accepted loss, which replaces an earlier one of the same metric."""
    if find_metric(loss.metric) is None:
        names = ", ".join(metric.name for metric in METRICS)
        raise ValueError(f"no metric {loss.metric!r}: choose from {names}")
    if not 0 <= loss.up_to < 1:
        raise ValueError(f"an acknowledged loss of {loss.up_to}: choose at least 0 and below 1")
    if not loss.reason.strip():
        raise ValueError("an acknowledged loss needs a reason")
    others = [each for each in baseline.acknowledged if each.metric != loss.metric]
    return msgspec.structs.replace(baseline, acknowledged=(*others, loss))


def acknowledgement(baseline: BaselineFile, metric: str, now_ns: int) -> Acknowledged | None:
    """The currently acknowledged loss of a metric: a loss up to ``up_to`` does not fail."""
    losses = (each for each in baseline.acknowledged if each.metric == metric)
    return next((each for each in losses if each.until_ns is None or now_ns < each.until_ns), None)


def baseline_values(baseline: BaselineFile, metric: str) -> tuple[list[float], list[int]]:
    """Values of all sessions, and the number of the session of each value, for ``decide``."""
    found = [session.values.get(metric, ()) for session in baseline.sessions]
    return [*chain(*found)], [number for number, values in enumerate(found) for _ in values]
