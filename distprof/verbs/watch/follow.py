"""Follows a run directory until the job has ended: reads, evaluates and reports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distprof.artefacts import RUN_FILE
from distprof.bounds import expanded
from distprof.errors import InputError
from distprof.ingest.job.growing import GrowingRun
from distprof.join.gpu_waits import excess_of_peers
from distprof.schema import Floats
from distprof.units import NS_PER_S, capitalized, name_ranks
from distprof.verbs.watch import column_medians
from distprof.verbs.watch.show import (
    ENDED,
    Alert,
    LateRank,
    LostRank,
    ProbeCost,
    ThrottledRank,
    WatchReport,
    says,
)
from distprof.verbs.watch.state import JobWatch, OwnTimes
from distprof.version import __version__

MOST_RANKS = 8
LEAST_ABOVE = 12
"""Minimum number of steps above the limit in the window for a line in the table."""
LEAST_WIDTH = 0.05
"""Minimum distance between the bounds of lateness for a remark, as a share of the step."""
FAR_LESS = 0.2
LEAST_INPUT = 0.01
LONGER = 1.2


def report_on(job: JobWatch, *, now_s: float, now_ns: int) -> WatchReport:
    """Report on a job; ``now_s`` is on the clock of the updates, ``now_ns`` since the epoch."""
    steps = list(job.table.done)
    typical_ns = job.typical_ns(steps)
    step_ns = round(typical_ns) if np.isfinite(typical_ns) else None
    silent_s, run = job.silent_s(now_s), job.run
    input_ratio, input_rank = _input(job, steps, typical_ns)
    own = job.own_times(steps)
    own_ratio = _median(own.own_ns / own.step_ns)
    source: Literal["cpu", "collectives"] = "collectives" if job.waits.ranks else "cpu"
    values = job.table.of("gpu_behind", steps)
    known = values[np.isfinite(values)]
    uses = [rank.memory for rank in job.ranks.values() if rank.memory is not None]
    return WatchReport(
        distprof_version=__version__,
        source=job.source,
        time_ns=now_ns,
        state="stalled" if job.is_stalled(now_s) else job.state,
        world_size=run.world_size if run is not None else None,
        num_ranks=len(job.ranks),
        step=job.step,
        silent_ns=None if silent_s is None else round(silent_s * NS_PER_S),
        step_ns=step_ns,
        usual_step_ns=None if job.speed.usual_ns is None else round(job.speed.usual_ns),
        tokens_per_s=_tokens_per_s(job, steps, step_ns),
        own_ratio=None if own_ratio is None else min(own_ratio, 1.0),
        input_ratio=input_ratio,
        input_rank=input_rank,
        gpu_behind_ratio=float(known.mean()) if known.size else None,
        late=_late(job, steps, own),
        lost=tuple(
            LostRank(rank=rank, evidence=evidence, last_step=job.ranks[rank].last_step)
            for rank, evidence in job.losses(now_s).items()
        ),
        throttled=_throttled(job),
        memory=max(uses, key=lambda use: (use.used_bytes, -use.rank), default=None),
        alerts=job.alarms.raised(),
        unknown=tuple(_unknown(job, steps, own)),
        notes=job.notes,
        own_known_from=None if own_ratio is None else source,
        probe_cost=_probe_cost(job),
    )


def _probe_cost(job: JobWatch) -> ProbeCost | None:
    costs = [rank.probe_cost for rank in job.ranks.values() if rank.probe_cost is not None]
    if not costs:
        return None
    middle = {name: median(getattr(c, name) for c in costs) for name in ("ratio", "low", "high")}
    return ProbeCost(num_ranks=len(costs), **middle)


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else None


def _tokens_per_s(job: JobWatch, steps: list[int], step_ns: int | None) -> float | None:
    tokens = job.table.of("tokens", steps)
    if step_ns is None or not np.isfinite(tokens).any():
        return None
    per_step = np.nansum(tokens, axis=1)
    return float(np.median(per_step)) * NS_PER_S / step_ns


def _input(job: JobWatch, steps: list[int], typical_ns: float) -> tuple[float | None, int | None]:
    """Median share of the step that ranks wait for input, and the rank that waits longest."""
    shares = job.table.of("input_ns", steps)
    shares = shares / (typical_ns if job.has_gpus else job.table.of("step_ns", steps))
    if not np.isfinite(shares).any():
        return None, None
    of_ranks = column_medians(shares)
    worst = int(np.nanargmax(of_ranks))
    least = max(LEAST_INPUT, LONGER * float(np.nanmedian(of_ranks)))
    rank = job.table.ranks[worst] if of_ranks[worst] >= least else None
    return min(float(np.nanmedian(shares)), 1.0), rank


def _late(job: JobWatch, steps: list[int], own: OwnTimes) -> tuple[LateRank, ...]:
    counts, is_slow = job.slow.state.counts, job.slow.state.is_on
    worth = np.flatnonzero((counts >= LEAST_ABOVE) | is_slow)
    if not worth.size or not len(own.own_ns):
        return ()
    groups = job.groups()
    order = worth[np.lexsort((worth, -counts[worth], ~is_slow[worth]))][:MOST_RANKS]
    late, most, ratios = map(column_medians, (own.late_ns, own.late_most_ns, own.excess))
    is_exact = not job.waits.ranks
    return tuple(
        LateRank(
            rank=job.table.ranks[column],
            own_ns=round(_median(own.own_ns[:, column]) or 0),
            late_ns=round(float(late[column])),
            late_ratio=float(ratios[column]),
            num_above=int(counts[column]),
            is_slow=bool(is_slow[column]),
            cause=_cause(job, steps, int(column), groups, float(late[column])),
            late_most_ns=None if is_exact else round(float(most[column])),
        )
        for column in order
        if late[column] > 0
    )


def _cause(
    job: JobWatch, steps: list[int], column: int, groups: NDArray[np.int64], late_ns: float
) -> Literal["no_cpu", "input", "more_work", "device"]:
    """The cause of lateness: the part of own time that exceeds that of the peers most."""
    excess = {}
    for name in ("queue_ns", "asleep_ns", "cpu_ns"):
        values = job.table.of(name, steps)
        peers = np.array([excess_of_peers(row, groups)[1] for row in values])
        excess[name] = float(column_medians((values - peers)[:, [column]])[0]) if steps else np.nan
    if job.waits.ranks:
        del excess["cpu_ns"]  # a CPU that runs ahead of its GPU may do more work without a delay
        excess = {name: ns for name, ns in excess.items() if ns >= late_ns / 2}
    worst = max(excess, key=lambda name: (np.isfinite(excess[name]), excess[name]), default="")
    return {"queue_ns": "no_cpu", "asleep_ns": "input", "cpu_ns": "more_work", "": "device"}[worst]  # type: ignore[return-value]


def _throttled(job: JobWatch) -> tuple[ThrottledRank, ...]:
    found = filter(None, (rank.throttled() for rank in job.ranks.values()))
    return tuple(sorted(found, key=lambda each: (-each.throttled_ratio, each.rank))[:MOST_RANKS])


def _unknown(job: JobWatch, steps: list[int], own: OwnTimes) -> Iterator[str]:
    if not steps:
        return
    on_gpu = [number for number, rank in job.ranks.items() if rank.device not in ("", "cpu")]
    if on_gpu:
        yield from _unknown_on_gpus(job, on_gpu, own)
    elif not np.isfinite(own.own_ns).any():
        yield says("no CPU time")
    size = (job.run and job.run.world_size) or 0
    if size > len(job.ranks):
        yield f"{size - len(job.ranks):,} of {size:,} ranks have not recorded anything yet."


def _unknown_on_gpus(job: JobWatch, on_gpu: list[int], own: OwnTimes) -> Iterator[str]:
    untimed = [number for number in on_gpu if number not in job.waits.ranks]
    if untimed:
        reasons = (job.ranks[number].why_untimed for number in untimed)
        reason = next(filter(None, reasons), "the durations of their collectives are not recorded")
        yield f"Own time of {name_ranks(untimed)} is unknown: {reason.rstrip('.')}."
    if not len(own.own_ns):
        return
    known = {job.table.ranks[column] for column in np.nonzero(np.isfinite(own.own_ns))[1]}
    unknown = sorted(job.waits.ranks - known)
    if unknown:
        yield says("incomplete collectives", who=name_ranks(unknown))
    if known:
        yield from _uncertain(job, own)


def _uncertain(job: JobWatch, own: OwnTimes) -> Iterator[str]:
    """A remark on the accuracy of lateness, if its two bounds are far apart."""
    widths = (own.late_most_ns - own.late_ns) / own.step_ns
    width = float(np.nanmedian(widths)) if np.isfinite(widths).any() else 0.0
    if width < LEAST_WIDTH:
        return
    text = says("wide bounds", width=min(width, 1.0))
    if job.slow.state.is_on.any():
        yield f"{text}."
        return
    waited = column_medians(1 - own.own_ns / own.step_ns)
    least = int(np.nanargmin(waited))
    others = np.delete(waited, least)
    if np.isfinite(others).any() and waited[least] < FAR_LESS * float(np.nanmedian(others)):
        text += f". {capitalized(name_ranks([job.table.ranks[least]]))} waits least for others"
        text += ": if any rank is slow, it is probably this one"
    yield f"{text}."


LONGEST_START_S = 3.0
"""A job writes run.json before its ranks start: a folder without one after this time is another."""
_FIX = "name the folder that distprof run or distprof capture printed when the job started"


def run_directory(source: str | os.PathLike[str]) -> Path:
    """The run directory that the user named."""
    text = os.fspath(source)
    path = Path(expanded(text))
    if "://" in text:
        found = "an address"
    elif path.name == RUN_FILE and path.is_file():
        return path.parent
    elif path.is_dir():
        return path
    else:
        found = "a file" if path.exists() else "no folder with this name"
    raise InputError(
        text,
        expected="the run directory of a job, on a file system of this machine",
        found=found,
        fix=_FIX,
    )


def follow(
    source: str | os.PathLike[str],
    levels: Mapping[str, float],
    *,
    period_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[WatchReport, list[Alert]]]:
    """Watch a job until it ends: a report at each look, and the alerts that began or ended."""
    path = run_directory(source)
    live, job = GrowingRun(path), JobWatch(os.fspath(source), levels)
    is_run, waited_s = False, 0.0
    while True:
        began_s = time.monotonic()
        is_run = is_run or (path / RUN_FILE).exists() or any(path.glob("rank[0-9]*"))
        if not is_run and waited_s >= LONGEST_START_S:
            raise InputError(
                os.fspath(source),
                expected=f"the run directory of a job, which holds {RUN_FILE}",
                found=f"a folder without {RUN_FILE} and without folders of ranks",
                fix=f"{_FIX}; to read logs, run distprof hang",
            )
        alerts = job.take(live.look(), now_s=began_s, now_ns=time.time_ns())
        report = report_on(job, now_s=began_s, now_ns=time.time_ns())
        yield report, alerts
        if report.state in ENDED:
            return
        pause_s = max(period_s - (time.monotonic() - began_s), 0.05)
        pause_s = pause_s if is_run else min(pause_s, max(LONGEST_START_S - waited_s, 0.05))
        sleep(pause_s)
        waited_s += pause_s
