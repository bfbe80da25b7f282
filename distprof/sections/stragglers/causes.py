"""Why a rank arrives late, where the evidence is in the traces; ``unknown`` where it is not.

The rank is compared with the median of its peers in the steps in which it was late. A cause is
named only if it explains at least :data:`EXPLAINS` of the lateness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.schema import Int64Array
from distprof.sections.context import RankAnalysis
from distprof.sections.idle.measure import HostPauses
from distprof.sections.own_time import COMPUTATION, HOST, INPUT, OwnTime
from distprof.sections.stragglers.computing import Work, why_it_computes_longer
from distprof.sections.stragglers.result import SequenceImbalance
from distprof.sections.stragglers.untraced import only_while_traced
from distprof.sections.telemetry.result import RankTelemetry, TelemetryResult, WindowSensors
from distprof.terms import StragglerCause
from distprof.units import format_duration, format_ratio

__all__ = [
    "EXPLAINS",
    "Cause",
    "Evidence",
    "Late",
    "cpu_taken",
    "find_cause",
    "idles_for_a_cpu",
    "only_traced",
    "sensed_difference",
]

_Floats: TypeAlias = NDArray[np.float64]

_Figures: TypeAlias = RankTelemetry | WindowSensors

LOWER_CLOCK = 0.97
"""Clock relative to the peers' median from which it counts as low."""

MORE_THROTTLED = 0.2
"""Share of samples beyond the peers' median in which something slows the device down."""


def sensed_difference(
    rank: int, peers: Sequence[int], telemetry: TelemetryResult | None
) -> tuple[tuple[str, ...], str]:
    """Sentences on throttling, clocks and heat, and the word for the first that differs.

    Args:
        rank: The slow rank.
        peers: Ranks it is compared with, itself among them.
        telemetry: Of all ranks; nothing is said without it.

    Returns:
        Evidence, and ``throttled``, ``low_clocks`` or nothing.
    """
    rows = {row.rank: row for row in telemetry.ranks} if telemetry is not None else {}
    with_sensors = [rows[peer] for peer in peers if peer != rank and peer in rows]
    if rank not in rows or not with_sensors:
        return (), ""
    own, others = _comparable(rows[rank], with_sensors)
    found = [
        text
        for text in (_throttling(own, others), _clock(own, others), _heat(own, others))
        if text is not None
    ]
    detail = "low_clocks" if _clock(own, others) else ""
    detail = "throttled" if _throttling(own, others) else detail
    return tuple(found), detail


def _comparable(
    own: RankTelemetry, others: Sequence[RankTelemetry]
) -> tuple[_Figures, list[_Figures]]:
    """Figures of the analysed steps, where the rank and a peer have them; else of the whole run.

    A device that was throttled before or after says nothing of why these steps were slow.
    """
    in_steps: list[_Figures] = [row.in_steps for row in others if row.in_steps is not None]
    if own.in_steps is not None and in_steps:
        return own.in_steps, in_steps
    return own, list(others)


def _median(others: Sequence[_Figures], value: Callable[[_Figures], float | None]) -> float | None:
    known = [number for number in map(value, others) if number is not None]
    return float(np.median(known)) if known else None


def _throttling(own: _Figures, others: Sequence[_Figures]) -> str | None:
    usual = _median(others, lambda row: row.throttled_ratio)
    if own.throttled_ratio is None or usual is None:
        return None
    if own.throttled_ratio - usual < MORE_THROTTLED:
        return None
    reasons = ", ".join(sorted(own.throttle_reasons, key=lambda key: -own.throttle_reasons[key]))
    return (
        f"its device is throttled in {format_ratio(own.throttled_ratio)} of the samples "
        f"({reasons or 'no reason told'}), its peers' median is {format_ratio(usual)}"
    )


def _clock(own: _Figures, others: Sequence[_Figures]) -> str | None:
    usual = _median(others, lambda row: row.sm_clock_mhz_median)
    if own.sm_clock_mhz_median is None or not usual:
        return None
    if own.sm_clock_mhz_median > LOWER_CLOCK * usual:
        return None
    return f"its clock is {own.sm_clock_mhz_median} MHz, its peers' median is {usual:.0f} MHz"


def _heat(own: _Figures, others: Sequence[_Figures]) -> str | None:
    usual = _median(others, lambda row: row.temperature_c_max)
    if own.temperature_c_max is None or usual is None or own.temperature_c_max < usual + 8:
        return None
    return f"it gets {own.temperature_c_max} °C hot, its peers' median is {usual:.0f} °C"


# Why a rank arrives late, where the evidence is in the traces; ``unknown`` where it is not -------

EXPLAINS = 0.5
"""Part of the lateness that a cause must explain."""


MOST_PEERS = 512
"""Peers whose kernels a rank's are compared with, evenly spread over them."""


class Cause(msgspec.Struct, frozen=True):
    """A cause, what of it where that is known, the sentences it rests on, and how sure it is."""

    cause: StragglerCause
    evidence: tuple[str, ...] = ()
    detail: str = ""
    confidence: float = 0.0
    is_counted: bool = False
    """Whether counts show more work, and not only how long kernels take."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What may show why a rank is late.

    Args:
        analyses: Of all ranks.
        mean_step: Their mean step, ns.
        own_time: Of all ranks.
        pauses: What probes recorded of each rank's training thread.
        telemetry: Sensors of the devices, for why one is slow.
        sequences: Where computation differs by sequence lengths.
        exchanged: By rank, what its all-to-alls carry.
        crowded: Ranks that share CPUs, all of them busy, with another rank.
    """

    analyses: Mapping[int, RankAnalysis]
    mean_step: float
    own_time: OwnTime
    pauses: Mapping[int, HostPauses]
    telemetry: TelemetryResult | None = None
    sequences: SequenceImbalance | None = None
    exchanged: Mapping[int, float] = {}
    crowded: Collection[int] = ()

    @property
    def is_cpu(self) -> bool:
        """Whether no GPU computes."""
        return all(analysis.is_cpu for analysis in self.analyses.values())

    def recorded(self, field: str, steps: Sequence[int]) -> _Floats | None:
        """Mean time of each rank in these steps, ns; None where one of them did not record it."""
        times = self.recorded_by_step(field, steps)
        return None if times is None else _mean(times)

    def recorded_by_step(self, field: str, steps: Sequence[int]) -> Int64Array | None:
        """The same of each step, shape (ranks, steps)."""
        told = [getattr(self.pauses.get(rank), field, None) for rank in self.own_time.ranks]
        known = [times for times in told if times is not None]
        if len(known) < len(told) or not len(steps):
            return None
        return self.by_step(known)[:, list(steps)]

    def by_step(self, told: Sequence[Mapping[int, int]]) -> Int64Array:
        """Times of all ranks per analysed step, shape (ranks, steps); 0 where nothing is told."""
        analyses = [self.analyses[rank] for rank in self.own_time.ranks]
        longest = max(len(analysis.steps) for analysis in analyses)
        table = np.zeros((len(told), longest), dtype=np.int64)
        for row, times, analysis in zip(table, told, analyses, strict=True):
            row[: len(analysis.steps)] = [times.get(step.step, 0) for step in analysis.steps]
        return table


class Late(msgspec.Struct, frozen=True):
    """A rank in the steps in which it was late.

    Args:
        position: Of the rank in ``own_time``.
        steps: Their indices.
        ns: What it cost in such a step.
    """

    position: int
    steps: Sequence[int]
    ns: float

    def mean(self, part: Int64Array) -> float:
        """Of a table of ranks and steps: the rank's mean in these steps."""
        return float(part[self.position, list(self.steps)].mean())

    def others(self, own_time: OwnTime) -> list[int]:
        """Positions of its peers."""
        return [peer for peer in own_time.peers[self.position] if peer != self.position]


class _Excess(msgspec.Struct, frozen=True):
    """Time per late step that a rank spends beyond the median of its peers."""

    what: str
    ns: float
    peers_ns: float


def find_cause(late: Late, known: Evidence, proven: str = "") -> Cause:
    """The cause of a rank's lateness.

    Args:
        late: The rank.
        known: Of all ranks.
        proven: Part of own time that is known to be the reason; empty to look for it.
    """
    queue = _Queue.of(late, known)
    if queue is not None and (taken := queue.explained(late.ns)):
        return taken
    found = _without_queue(late, known, proven)
    taken = _taken_by_others(found, queue, late, known) if queue is not None else None
    is_crowded = known.own_time.ranks[late.position] in known.crowded
    if taken or not _may_be_chance(found, queue, is_crowded=is_crowded):
        return taken or found
    return _lost_in_a_crowd(late, known) or found


CROWDED = 0.03
"""Share of all steps for which a rank and its peers wait for a CPU: there is none for them all. As
much makes `cpu-contention` say so."""


def _lost_in_a_crowd(late: Late, known: Evidence) -> Cause | None:
    """Others took its CPU, where nothing else is known and every rank has to wait for one.

    Threads of the backend and workers of loaders wait as the training thread does, and nothing
    records how long.
    """
    others = late.others(known.own_time)
    if not others or not known.is_cpu:
        return None
    queue = known.recorded("run_queue_ns", range(known.own_time.num_steps))
    if queue is None:
        return None
    least = min(float(queue[late.position]), float(np.median(queue[others])))
    if least >= CROWDED * known.mean_step:
        text = f"it and its peers wait {format_duration(least)} of each step or more for a free CPU"
    elif known.own_time.ranks[late.position] in known.crowded:
        text = "it shares CPUs with another rank, and all of them are busy"
    else:
        return None
    return Cause(StragglerCause.CPU_TAKEN, (text, _UNCERTAIN), "", ALIKE_SHARED)


def cpu_taken(late: Late, known: Evidence) -> Cause | None:
    """That others take the CPU of a rank whose kernels are slow, where it explains its lateness.

    As :func:`find_cause` finds it. A rank that often waits for a CPU shares its core and caches
    while it has one, so that its kernels take a little longer.
    """
    queue = _Queue.of(late, known)
    if queue is None:
        return None
    computes_ns = late.mean(known.own_time.parts[COMPUTATION])
    by_chance = min(CHANCE_TO_RUN * computes_ns, queue.whole_ns)
    if queue.more_work_ns is None or late.ns >= by_chance:
        return queue.explained(late.ns)
    return queue.whole()


def idles_for_a_cpu(late: Late, known: Evidence) -> Cause | None:
    """That a lone stage idles between kernels because its thread waits for a CPU.

    As :func:`find_cause` finds it. A stage runs longer than others where it has other layers, so
    that neither its time on a CPU nor its share of the waiting can be compared with theirs.
    """
    queue = _Queue.of(late, known)
    if queue is None or queue.more_work_ns is None or queue.slept_ns >= EXPLAINS * late.ns:
        return None
    if queue.runs_longer > CHANCE_TO_RUN:
        return None  # it has more to do, on kernels or between them
    if queue.whole_ns < MOSTLY_QUEUED * late.mean(known.own_time.parts[HOST]):
        return None
    return queue.whole(_UNCERTAIN)


MOSTLY_QUEUED = 0.75
"""Share of the time between kernels for which a thread waits for a CPU, so that this is why."""


def _without_queue(late: Late, known: Evidence, proven: str) -> Cause:
    """The cause by the parts of own time, as if no rank had to wait for a CPU."""
    own_time = known.own_time
    for what, values in _logged(known).items():
        logged = _excess(late, what, values, own_time.beyond_peers(values))
        if late.ns > 0 and logged.ns >= EXPLAINS * late.ns:
            detail = "gc" if what == COLLECTING else ""
            return Cause(_CAUSES[what], (_text(logged),), detail, _share(logged, late.ns))
    excesses = [
        _excess(late, what, values, own_time.excess[what])
        for what, values in own_time.parts.items()
    ]
    largest = max(excesses, key=lambda excess: (excess.what == proven, excess.ns))
    if late.ns <= 0 or largest.ns < EXPLAINS * late.ns:
        return Cause(StragglerCause.UNKNOWN, (_nothing(excesses, late.ns),))
    if largest.what == HOST:
        largest = _in_proportion(largest, excesses)
    text = _text(largest)
    if largest.what in _CAUSES:
        return Cause(_CAUSES[largest.what], (text,), confidence=_share(largest, late.ns))
    if known.sequences is not None:
        return Cause(StragglerCause.MORE_WORK, (text, _LENGTHS), "sequence_length", 0.9, True)
    return _of_computing(late, known, largest)


def _of_computing(late: Late, known: Evidence, longer: _Excess) -> Cause:
    """Why it computes longer than its peers."""
    ranks = known.own_time.ranks
    rank, peers = ranks[late.position], [ranks[at] for at in known.own_time.peers[late.position]]
    work = Work(
        tokens=_token_ratio(rank, peers, late.steps, known.analyses, known.pauses),
        exchanged=_over_median(rank, peers, known.exchanged),
    )
    some = peers[:: -(-len(peers) // MOST_PEERS)]
    among = {other: known.analyses[other] for other in (*some, rank)}
    ratio = longer.ns / max(longer.peers_ns, 1.0)
    found = why_it_computes_longer(rank, ratio, late.steps, among, work)
    if known.is_cpu and not found.is_counted:
        traced = _only_while_traced(late, known, longer.ns)
        if traced is not None:
            return msgspec.structs.replace(traced, evidence=(_text(longer), *traced.evidence))
    sensed: tuple[str, ...] = ()
    detail = found.detail
    if found.cause is StragglerCause.SLOW_DEVICE:
        sensed, detail = sensed_difference(rank, peers, known.telemetry)
    evidence = (_text(longer), found.why, *sensed)
    return Cause(found.cause, evidence, detail, found.confidence, found.is_counted)


def only_traced(late: Late, known: Evidence) -> Cause | None:
    """That a lone stage runs its kernels slower only while it is traced.

    Stages hold different layers, so that its CPU time is compared with what it is beyond the peers'
    less its lateness.
    """
    ran = known.recorded("cpu_ns", late.steps) if known.is_cpu else None
    others = late.others(known.own_time)
    if ran is None or not others:
        return None
    usual = (float(ran[late.position]) - late.ns) / max(float(np.median(ran[others])), 1.0)
    return _only_while_traced(late, known, late.ns, usual)


def _only_while_traced(
    late: Late, known: Evidence, longer_ns: float, usual: float = 1.0
) -> Cause | None:
    """That its thread runs as long as usual where no profiler records; None where it does not.

    One late step of several proves nothing either way.
    """
    ran = known.recorded("cpu_ns", late.steps)
    others = late.others(known.own_time)
    if ran is None or not others or len(late.steps) < 2:
        return None
    rank = known.own_time.ranks[late.position]
    numbers = [step.step for step in known.analyses[rank].steps]
    num_steps = only_while_traced(
        [numbers[step] for step in late.steps if step < len(numbers)],
        numbers,
        longer_ns / max(float(np.median(ran[others])), 1.0),
        known.pauses[rank],
        [known.pauses[known.own_time.ranks[other]] for other in others],
        usual,
    )
    if num_steps is None:
        return None
    text = (
        f"in {num_steps:,} steps without a profiler its training thread runs no longer than usual"
    )
    return Cause(StragglerCause.TRACING, (text,), "", ALIKE_SHARED)


QUEUED = "waiting for a free CPU"
_UNCERTAIN = "other processes take its CPU, so blame is uncertain"

_ONCE = "in one step only, which whatever shares its core or host explains as well"

_BY_PACE = (StragglerCause.SLOW_DEVICE, StragglerCause.MORE_WORK)
"""Causes that are inferred from how long a rank's kernels take."""

_UNSURE = (StragglerCause.SLOW_DEVICE, StragglerCause.LATE_HOST, StragglerCause.UNKNOWN)
"""Causes that look the same on a rank whose CPU others take."""


def _taken_by_others(found: Cause, queue: _Queue, late: Late, known: Evidence) -> Cause | None:
    """Others took the CPU of the rank, or of those who load its batches."""
    if found.cause is not StragglerCause.LATE_INPUT:
        return _taken(found, queue, late.ns)
    loader = _Loader.of(late, known)
    return None if loader is None else loader.explained(late.ns)


def _taken(found: Cause, queue: _Queue, lateness_ns: float) -> Cause | None:
    """Others took its CPU, where that is as likely as the cause that was found.

    Kernels get longer, and a rank idles between them, while their thread waits for a CPU. A rank
    with no more work than its peers has no reason of its own to wait longer than they do.
    """
    if lateness_ns <= 0 or found.detail:
        return None  # the rest is proven by what was recorded: collections, tokens, sensors
    if queue.more_work_ns is not None:
        slept = queue.proven_sleep_ns if found.cause is StragglerCause.LATE_HOST else 0.0
        is_work_clear = found.is_counted or queue.runs_longer > CHANCE_TO_RUN
        proven_ns = slept + (queue.more_work_ns if is_work_clear else 0.0)
        due_ns = min(lateness_ns, queue.excess_ns) if queue.is_lasting else lateness_ns
        may_be = proven_ns < EXPLAINS * due_ns or found.cause is StragglerCause.UNKNOWN
        taken_ns = queue.whole_ns
    else:
        may_be = found.cause in _UNSURE
        taken_ns = queue.beyond_peers.ns
    if queue.is_once and found.cause in _BY_PACE and not found.is_counted:
        return Cause(StragglerCause.CPU_TAKEN, (*found.evidence, _ONCE), "", ALIKE_SHARED)
    if not may_be or taken_ns <= EXPLAINS * lateness_ns:
        return None
    evidence = (_text(queue.beyond_peers), _UNCERTAIN)
    return Cause(StragglerCause.CPU_TAKEN, evidence, "", _share(queue.beyond_peers, lateness_ns))


def _may_be_chance(found: Cause, queue: _Queue | None, *, is_crowded: bool = False) -> bool:
    """Whether the cause is unknown, or may be a sleep while another thread of the rank waits.

    On CPUs that are all busy, a sleep in a single step proves nothing, however long it is.
    """
    if found.cause is StragglerCause.UNKNOWN:
        return True
    if found.detail or queue is None or queue.more_work_ns is None:
        return False
    if is_crowded and queue.is_once and found.cause is StragglerCause.LATE_HOST:
        return True
    if queue.more_work_ns or not queue.slept_ns:
        return False
    if found.cause is StragglerCause.MORE_WORK:
        return not found.is_counted  # its kernels take longer, but its thread does not run longer
    return found.cause is StragglerCause.LATE_HOST and not queue.proven_sleep_ns


CHANCE_TO_RUN = 0.5
"""Relative to its peers' time on a CPU, what a thread may run longer by chance where it also waits:
what runs next to it, on the same core and the same host of virtual machines, takes its pace."""

CHANCE_IN_MANY = 0.25
CHANCE_IN_ONE = 2.0
"""Relative to what a thread or its peers wait for a CPU, what it may sleep because others wait."""

CLEAR_OF_SCATTER = 3.0
"""Standard errors of the mean that a sleep must have over the late steps."""


class _Loader(msgspec.Struct, frozen=True):
    """What those who load a rank's batches do while training waits for them, in a late step.

    Args:
        queue_ns: They wait for a CPU.
        more_work_ns: What running on a CPU longer than its peers' takes on such a machine.
    """

    queue_ns: float
    more_work_ns: float

    def explained(self, lateness_ns: float) -> Cause | None:
        """That others take their CPU, where that is half of it and longer loading is not."""
        if max(self.more_work_ns, lateness_ns - self.queue_ns) >= EXPLAINS * lateness_ns:
            return None
        text = f"its data loader waits {format_duration(self.queue_ns)} of it for a free CPU"
        return Cause(StragglerCause.CPU_TAKEN, (text, _UNCERTAIN), "", ALIKE_SHARED)

    @staticmethod
    def of(late: Late, known: Evidence) -> _Loader | None:
        """Of a rank in some steps; None where not all ranks say how long they waited."""
        queue = known.recorded("loader_queue_ns", late.steps)
        ran = known.recorded("loader_cpu_ns", late.steps)
        if queue is None or ran is None:
            return None
        others = late.others(known.own_time)
        own = float(ran[late.position])
        is_clear = own > (1 + CHANCE_TO_RUN) * float(np.median(ran[others]))
        more = _more_work(own, ran[others], queue[others]) if is_clear else 0.0
        return _Loader(float(queue[late.position]), more)


class _Queue(msgspec.Struct, frozen=True):
    """How much longer than its peers a rank is ready to run, but has no CPU, in a late step.

    On a busy machine a rank that computes more also waits more, in proportion: that is not what
    makes it late.

    Args:
        beyond_its_share: Beyond what its peers would wait if they ran as long as it.
        beyond_peers: Beyond what its peers wait.
        whole_ns: All that it waits.
        more_work_ns: What running on a CPU longer than its peers do takes on such a machine. None
            where the time on a CPU is not known, or a GPU computes.
        runs_longer: Time on a CPU beyond its peers', relative to theirs.
        slept_ns: Own time, beyond its peers', in which it neither runs nor waits for a CPU.
        excess_ns: All own time beyond its peers'. What it costs them can be more: each waits for
            whichever of them is last, and chance adds to that on a busy machine.
        is_lasting: Whether the late steps are at least half of all, so that chance evens out.
        is_once: Whether the rank is late in one step of several.
        surely_slept_ns: What is left of ``slept_ns`` by how it scatters over the late steps; all of
            it if there is one.
    """

    beyond_its_share: _Excess
    beyond_peers: _Excess
    whole_ns: float
    more_work_ns: float | None = None
    runs_longer: float = 0.0
    slept_ns: float = 0.0
    excess_ns: float = 0.0
    is_lasting: bool = False
    is_once: bool = False
    surely_slept_ns: float = math.inf

    @property
    def proven_sleep_ns(self) -> float:
        """``slept_ns`` where it is more than chance.

        The thread also sleeps while another one of its rank waits for a CPU. Nothing records that;
        it can take as long as this thread or its peers wait, or longer. It evens out over many
        steps, and differs from step to step more than a sleep of the rank's own.
        """
        chance = CHANCE_IN_ONE if self.is_once else CHANCE_IN_MANY
        waits_ns = max(self.whole_ns, self.beyond_peers.peers_ns)
        is_clear = self.slept_ns >= chance * waits_ns and self.surely_slept_ns > 0
        return self.slept_ns if is_clear else 0.0

    def explained(self, lateness_ns: float) -> Cause | None:
        """That others take its CPU, where it waits for it, and does not sleep, half of that."""
        queued = self.beyond_its_share
        if self.slept_ns >= EXPLAINS * lateness_ns or not queued.ns >= EXPLAINS * lateness_ns > 0:
            return None
        return Cause(StragglerCause.CPU_TAKEN, (_text(queued),), "", _share(queued, lateness_ns))

    def whole(self, *more: str) -> Cause:
        """That others take its CPU, by all that it waits."""
        text = f"it waits {format_duration(self.whole_ns)} of such a step for a free CPU"
        return Cause(StragglerCause.CPU_TAKEN, (text, *more), "", ALIKE_SHARED)

    @staticmethod
    def of(late: Late, known: Evidence) -> _Queue | None:
        """Of a rank in some steps; None where not all ranks say how long they waited."""
        position, others = late.position, late.others(known.own_time)
        queued = known.recorded_by_step("run_queue_ns", late.steps)
        if queued is None or not others:
            return None
        queue = _mean(queued)
        on_cpu = known.recorded_by_step("cpu_ns", late.steps)
        own_by_step = _own(known.own_time, late.steps)
        ran = _mean(own_by_step if on_cpu is None else on_cpu)
        usual = float(np.median(queue[others]))
        rate = float(np.median(queue[others] / np.maximum(ran[others], 1)))
        share = rate * float(ran[position])
        excesses = (
            _Excess(QUEUED, float(queue[position]) - share, share),
            _Excess(QUEUED, float(queue[position]) - usual, usual),
        )
        if on_cpu is None or not known.is_cpu:
            return _Queue(*excesses, float(queue[position]))
        own = _mean(own_by_step)
        slept = own_by_step - on_cpu - queued
        num_steps = known.own_time.num_steps
        return _Queue(
            *excesses,
            float(queue[position]),
            _more_work(float(ran[position]), ran[others], queue[others]),
            float(ran[position] / max(float(np.median(ran[others])), 1.0)) - 1,
            _sleeps_longer(slept, position, others),
            max(0.0, float(own[position] - np.median(own[others]))),
            is_lasting=2 * len(late.steps) >= num_steps,
            is_once=len(late.steps) == 1 < num_steps,
            surely_slept_ns=_surely_longer(slept, position, others),
        )


ALIKE_SHARED = 0.6
"""Confidence that a rank which often waits for a CPU is slow for the same reason while it runs."""

SHARED_CACHE = 0.2
"""Relative to a thread's CPU time, what it runs longer because others use its core and caches."""


def _more_work(ran_ns: float, others_ns: _Floats, queue_ns: _Floats) -> float:
    """What it takes a rank to run longer than its peers, where each must wait for a CPU, ns."""
    usual = float(np.median(others_ns))
    more = ran_ns - usual
    stretch = 1 + float(np.median(queue_ns / np.maximum(others_ns, 1)))
    return more * stretch if more > SHARED_CACHE * usual else 0.0


def _own(own_time: OwnTime, steps: Sequence[int]) -> Int64Array:
    """Own time of each rank in these steps, ns, shape (ranks, steps)."""
    parts = [part[:, list(steps)] for part in own_time.parts.values()]
    result: Int64Array = np.sum(parts, axis=0)
    return result


def _mean(by_step: Int64Array) -> _Floats:
    """Of each rank."""
    result: _Floats = by_step.mean(axis=1)
    return result


def _sleeps_longer(slept: Int64Array, position: int, others: Sequence[int]) -> float:
    """How much longer than its peers a rank sleeps in a step, ns, by what all ranks sleep."""
    # A thread also waits for a CPU when it returns from communication: that is too much here.
    means = np.maximum(_mean(slept), 0)
    return max(0.0, float(means[position] - np.median(means[others])))


def _surely_longer(slept: Int64Array, position: int, others: Sequence[int]) -> float:
    """How much longer than its peers a rank sleeps in a step at least, ns; of one step, its own."""
    longer = slept[position] - np.median(slept[others], axis=0)
    if len(longer) < 2:
        return float(longer.mean())
    error = longer.std(ddof=1) / math.sqrt(len(longer))
    return float(longer.mean() - CLEAR_OF_SCATTER * error)


def _share(excess: _Excess, lateness_ns: float) -> float:
    """How much of the lateness is explained, as a confidence."""
    return min(0.99, max(excess.ns, 0.0) / max(lateness_ns, 1.0))


def _over_median(rank: int, peers: Sequence[int], amounts: Mapping[int, float]) -> float | None:
    """The rank's amount over the median of its peers; None where it is not known of all."""
    others = [amounts[peer] for peer in peers if peer != rank and peer in amounts]
    if rank not in amounts or not others:
        return None
    usual = float(np.median(others))
    return amounts[rank] / usual if usual > 0 else None


def _token_ratio(
    rank: int,
    peers: Sequence[int],
    steps: Sequence[int],
    analyses: Mapping[int, RankAnalysis],
    pauses: Mapping[int, HostPauses],
) -> float | None:
    """The rank's tokens over the median peer's in the late steps; None where logs do not tell."""
    numbers = [
        analyses[rank].steps[step].step for step in steps if step < len(analyses[rank].steps)
    ]
    told = {peer: pauses[peer].tokens if peer in pauses else None for peer in peers}
    if not numbers or len(peers) < 2 or any(tokens is None for tokens in told.values()):
        return None
    total = {
        peer: sum((tokens or {}).get(number, 0) for number in numbers)
        for peer, tokens in told.items()
    }
    usual = float(np.median([count for peer, count in total.items() if peer != rank]))
    return total[rank] / usual if usual > 0 else None


_LENGTHS = "computation follows sequence lengths, on all ranks"


COLLECTING = "garbage collection"

LOGGED_INPUT = "the step log's input phase"

_CAUSES = {
    INPUT: StragglerCause.LATE_INPUT,
    HOST: StragglerCause.LATE_HOST,
    COLLECTING: StragglerCause.LATE_HOST,
    LOGGED_INPUT: StragglerCause.LATE_INPUT,
}


def _logged(known: Evidence) -> dict[str, Int64Array]:
    """Time of each rank per analysed step by what its probes saw; nothing unless all have it."""
    found = {}
    for what, field in ((COLLECTING, "gc_ns"), (LOGGED_INPUT, "input_ns")):
        told = [getattr(known.pauses.get(rank), field, None) for rank in known.own_time.ranks]
        times = [of_rank for of_rank in told if of_rank is not None]
        if len(times) == len(told):
            found[what] = known.by_step(times)
    return found


def _text(excess: _Excess) -> str:
    return (
        f"{excess.what} takes {format_duration(excess.ns + excess.peers_ns)} in a late step, "
        f"its peers' median is {format_duration(excess.peers_ns)}"
    )


def _excess(late: Late, what: str, values: Int64Array, excess: _Floats) -> _Excess:
    if len(late.steps) == 0 or len(values) < 2:
        return _Excess(what, 0.0, 0.0)
    steps = list(late.steps)
    own, more = values[late.position, steps], excess[late.position, steps]
    return _Excess(what, float(more.mean()), float((own - more).mean()))


def _in_proportion(host: _Excess, excesses: Sequence[_Excess]) -> _Excess:
    """Computation, where a rank idles between its kernels no more than in proportion to it."""
    work = next((excess for excess in excesses if excess.what == COMPUTATION), host)
    if work.ns < host.ns or work.ns * host.peers_ns < host.ns * work.peers_ns:
        return host
    return work


def _nothing(excesses: Sequence[_Excess], lateness_ns: float) -> str:
    found = ", ".join(f"{e.what} {format_duration(max(e.ns, 0.0))}" for e in excesses)
    return f"of {format_duration(lateness_ns)} lateness the traces explain: {found}"
