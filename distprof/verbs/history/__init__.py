"""Follows metrics over commits: the repeats of a commit form a point, and points show changes.

Each point is compared with the points before it: every commit is a session. A change starts a new
level, so a loss and its fix are marked once. Later commits beyond the tolerance in the same
direction can confirm a commit with too few repeats.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

import msgspec
import numpy as np

from distprof.artefacts.record import grouped, made_from
from distprof.artefacts.summary_file import Fingerprint, SummaryFile, differences
from distprof.costs.repeats import compare_pairs, pseudo_median
from distprof.verbs import Displayed
from distprof.verbs.gate import FEWEST_SESSIONS, Decision, decide, plain
from distprof.verbs.gate.baseline import METRICS, Metric
from distprof.version import __version__

State = Literal["first", "passed", "regressed", "improved", "inconclusive"]
_LEAD = 3  # number of windows that are judged before the first point shown
_UNITS = {"step_time": "ns", "memory": "B", "throughput": "/s", "energy": "J"}


def _throughput(summary: SummaryFile) -> float | None:
    """Tokens, or else samples, of all ranks per second in the median step."""
    work = summary.tokens_per_step or summary.samples_per_step
    if not work or not summary.step_ns:
        return None
    step = float(np.median(summary.step_ns))
    return 1e9 * work / step if step > 0 else None


HISTORY_METRICS = (
    *(metric for metric in METRICS if metric.name != "efficiency"),  # needs a pair of sizes
    Metric("throughput", "throughput", "higher", "ratio", 0.02, _throughput),
    Metric("mfu", "model FLOP utilisation", "higher", "ratio", 0.02, attrgetter("mfu_ratio")),
    Metric("energy", "energy per step", "lower", "ratio", 0.02, attrgetter("energy_per_step_j")),
)
"""Metrics that a history can show."""


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All runs of one commit."""

    # Commit of the code; empty if unknown: then there is one point per label, or per run.
    commit: str
    label: str  # Label of its newest run.
    created_ns: int  # When its first run ended, ns since the epoch.
    num_runs: int  # Number of repeats.
    value: float  # Median of the repeats, in the unit of the metric.
    # Lower end of the 95 % interval of their centre; None with fewer than two repeats.
    low: float | None = None
    high: float | None = None  # Upper end of the interval.
    # ``first`` if no point precedes it; otherwise as in
    # :class:`~distprof.verbs.gate.Decision`.
    state: State = "first"
    # Change from the points before it, a ratio or a difference; None for the first.
    change: float | None = None
    # Lower end of its 90 % interval; None if there are too few repeats.
    change_low: float | None = None
    change_high: float | None = None  # Upper end of that interval.
    num_before: int = 0  # Number of points that it is compared with.
    num_after: int = 0  # Number of later points that confirmed it.
    # Number of further repeats that would settle it; None if it is settled, or if no reasonable
    # number would settle it.
    needed_repeats: int | None = None
    why: str = ""  # Reason for the state, one sentence.
    # Versions and variables that differ from the previous point; only if the state is ``regressed``
    # or ``improved``.
    software: tuple[str, ...] = ()


class HistorySeries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job on one kind of hardware."""

    key: str  # 12 hexadecimal digits, the same for comparable runs.
    fingerprint: Fingerprint  # Fingerprint of its newest run.
    points: tuple[HistoryPoint, ...] = ()  # Points in order of time.
    num_earlier: int = 0  # Number of earlier points that are not shown.
    num_without: int = 0  # Number of runs that do not have the metric.


class History(Displayed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A metric over commits."""

    schema: str = "distprof.history/1"  # Schema id of this document.
    distprof_version: str  # Version of distprof that wrote it.
    source: str  # Folder or URL of the history.
    metric: str  # Name of the metric.
    label: str  # Name in reports.
    unit: str  # ``ns``, ``B``, ``/s``, ``J`` or ``ratio``.
    better: str  # Which direction is an improvement: ``lower`` or ``higher``.
    scale: str  # ``ratio`` if changes are ratios, ``difference`` if they are differences.
    tolerance: float  # Accepted loss.
    window: int  # Maximum number of points that a point is compared with.
    series: tuple[HistorySeries, ...] = ()  # Series, the one with the newest run first.
    notes: tuple[str, ...] = ()  # Notes, one sentence each.


class _Commit(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one commit that have the metric, oldest first, and their values."""

    runs: tuple[SummaryFile, ...]
    values: tuple[float, ...]


def unit_of(metric: Metric) -> str:
    """Unit of a metric: ``ns``, ``B``, ``/s``, ``J`` or ``ratio``."""
    return _UNITS.get(metric.name, "ratio")


def series_of(print_: Fingerprint) -> str:
    """A key that is the same for equal hardware, job and configuration; software may differ."""
    known = msgspec.to_builtins(print_)
    kept = {name: value for name, value in known.items() if name not in ("versions", "environment")}
    kept["config"] = {
        name: value for name, value in known["config"].items() if not name.startswith("probes.")
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def by_series(summaries: Sequence[SummaryFile]) -> dict[str, list[SummaryFile]]:
    """Runs of each series, oldest first; the series with the newest run first."""
    ordered = sorted(summaries, key=lambda one: one.created_ns)
    found = grouped([(series_of(summary.fingerprint), summary) for summary in ordered])
    return dict(sorted(found.items(), key=lambda item: -item[1][-1].created_ns))


def trace_metric(
    series: Mapping[str, Sequence[SummaryFile]],
    metric: Metric,
    *,
    source: str,
    tolerance: float | None = None,
    window: int = 8,
    last: int | None = None,
    notes: Sequence[str] = (),
) -> History:
    """Follow a metric over the commits of each series; ``last`` limits the points shown."""
    if window < 1 or (last is not None and last < 1):
        raise ValueError("a window and a number of points must be at least 1")
    accepted = metric.tolerance if tolerance is None else tolerance
    judge = _Judge(metric=metric, tolerance=accepted, window=window)
    return made_from(
        metric,
        History,
        distprof_version=__version__,
        source=source,
        metric=metric.name,
        unit=unit_of(metric),
        tolerance=accepted,
        window=window,
        series=tuple(judge.series(key, runs, last) for key, runs in series.items()),
        notes=tuple(notes),
    )


class _Judge(msgspec.Struct, frozen=True, kw_only=True):
    """Judges the commits of a series by one metric."""

    metric: Metric
    tolerance: float  # Accepted loss.
    window: int  # Maximum number of commits that a commit is compared with.

    def series(self, key: str, runs: Sequence[SummaryFile], last: int | None) -> HistorySeries:
        commits = self._commits(runs)
        first = max(len(commits) - last, 0) if last is not None else 0
        begin = max(first - _LEAD * self.window, 0)
        judged = [*self._judged(commits[begin:], num_unshown=first - begin)]
        return HistorySeries(
            key=key,
            fingerprint=runs[-1].fingerprint,
            points=tuple(
                self._point(commits[i], commits[i - 1] if i else None, *judged[i - begin])
                for i in range(first, len(commits))
            ),
            num_earlier=first,
            num_without=len(runs) - sum(len(commit.values) for commit in commits),
        )

    def _commits(self, runs: Sequence[SummaryFile]) -> list[_Commit]:
        """Runs by commit, in order of each commit's first run."""
        found: dict[object, list[tuple[SummaryFile, float]]] = {}
        for number, run in enumerate(runs):
            value = self.metric.read(run)
            if value is not None and self.metric.can_be(float(value)):
                key = run.git_commit or (run.label and ("label", run.label)) or number
                found.setdefault(key, []).append((run, float(value)))
        return [
            _Commit(runs=tuple(run for run, _ in each), values=tuple(value for _, value in each))
            for each in found.values()
        ]

    def _judged(self, commits: Sequence[_Commit], *, num_unshown: int) -> Iterator[_Judged]:
        """Decision for each commit; None for the first, and if unshown ones do not change."""
        start, noise = 0, None
        for i in range(len(commits)):
            before = commits[max(start, i - self.window) : i]
            if not before or (i < num_unshown and self._is_near(before, commits[i])):
                yield None, 0, 0
                continue
            decision, num_after = self._decision(before, commits[i : i + self.window], noise)
            yield decision, len(before), num_after
            if decision.state in _CHANGED:
                if len(before) >= FEWEST_SESSIONS:  # relative if changes are ratios
                    noise = float(np.std(self._additive(map(self._centre, before)), ddof=1))
                start = i  # a new level, with the noise of the previous one

    def _is_near(self, before: Sequence[_Commit], this: _Commit) -> bool:
        """Whether a commit is within the tolerance for any choice of centre: it is no change."""
        centre = pseudo_median(self._additive(this.values))
        pooled = [value for commit in before for value in commit.values]
        middles = (pooled, [self._centre(commit) for commit in before])
        changes = [abs(float(centre - pseudo_median(self._additive(each)))) for each in middles]
        return max(changes) < self._limit

    def _decision(
        self, before: Sequence[_Commit], these: Sequence[_Commit], noise: float | None
    ) -> tuple[Decision, int]:
        """Decision for the first of ``these``, and the number of later ones that confirm it."""
        alone = self._by_repeats(before, these[0], noise)
        direction = self._direction(alone)
        if alone.state == "inconclusive" and direction:
            for count in range(2, len(these) + 1):
                later = self._by_repeats(before, these[count - 1], noise)
                if self._direction(later) != direction:
                    break
                # By commits: each centre is one value, which includes the noise of sessions
                centres = [[self._centre(one) for one in each] for each in (before, these[:count])]
                together = self._decide(centres[0], centres[1], session_noise=0.0)
                if together.state in _CHANGED:
                    return together, count - 1
        return alone, 0

    def _by_repeats(
        self, before: Sequence[_Commit], this: _Commit, noise: float | None
    ) -> Decision:
        """Earlier commits are sessions, and this commit is another one."""
        values = [value for commit in before for value in commit.values]
        sessions = [number for number, commit in enumerate(before) for _ in commit.values]
        return self._decide(values, this.values, sessions=sessions, session_noise=noise)

    def _decide(self, before: Sequence[float], these: Sequence[float], **known: Any) -> Decision:
        return decide(
            before,
            these,
            tolerance=self.tolerance,
            better=self.metric.better,
            scale=self.metric.scale,
            can_repeat_baseline=False,
            **known,
        )

    def _direction(self, decision: Decision) -> int:
        """1 if the estimate is worse by more than the tolerance, −1 if better, otherwise 0."""
        (change,) = self._additive([decision.change])
        worse = change if self.metric.better == "lower" else -change
        return (worse > self._limit) - (worse < -self._limit)

    @property
    def _limit(self) -> float:
        """The tolerance on the additive scale."""
        return math.log1p(self.tolerance) if self.metric.scale == "ratio" else self.tolerance

    def _centre(self, commit: _Commit) -> float:
        return plain(float(pseudo_median(self._additive(commit.values))), self.metric.scale)

    def _additive(self, values: Iterable[float]) -> list[float]:
        return [math.log(value) if self.metric.scale == "ratio" else value for value in values]

    def _point(
        self,
        commit: _Commit,
        earlier: _Commit | None,
        found: Decision | None,
        num_before: int,
        num_after: int,
    ) -> HistoryPoint:
        low, high = self._interval(commit.values)
        point = HistoryPoint(
            commit=commit.runs[0].git_commit,
            label=commit.runs[-1].label,
            created_ns=commit.runs[0].created_ns,
            num_runs=len(commit.values),
            value=float(np.median(commit.values)),
            low=low,
            high=high,
        )
        if found is None:
            return point
        software: tuple[str, ...] = ()
        if found.state in _CHANGED and earlier:
            before, now = earlier.runs[-1].fingerprint, commit.runs[0].fingerprint
            software = tuple(
                f"{one.field}: {one.first or 'not set'} → {one.second or 'not set'}"
                for one in differences(before, now)
                if one.group == "software"
            )
        return msgspec.structs.replace(
            point,
            state=found.state,
            change=found.change,
            change_low=found.low,
            change_high=found.high,
            num_before=num_before,
            num_after=num_after,
            needed_repeats=found.needed_repeats,
            why=found.why,
            software=software,
        )

    def _interval(self, values: Sequence[float]) -> tuple[float | None, float | None]:
        """95 % interval of the centre of repeats; None with fewer than two."""
        if len(values) < 2:
            return None, None
        data = np.asarray(self._additive(values))
        around = compare_pairs(np.zeros(len(data)), data)
        return plain(around.low, self.metric.scale), plain(around.high, self.metric.scale)


_CHANGED = ("regressed", "improved")
_Judged = tuple[Decision | None, int, int]
"""Decision, number of commits before, and number of later commits that confirm it."""
