"""Why a rank arrives late, where the evidence is in the traces; ``unknown`` where it is not.

The rank is compared with the median of its peers in the steps in which it was late. A cause is
named only if it explains at least :data:`EXPLAINS` of the lateness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.schema import Int64Array
from distprof.sections.context import RankAnalysis
from distprof.sections.idle.measure import HostPauses
from distprof.sections.own_time import COMPUTATION, HOST, INPUT, OwnTime, mean_step_of
from distprof.sections.stragglers.computing import Work, why_it_computes_longer
from distprof.sections.stragglers.result import SequenceImbalance
from distprof.sections.telemetry.result import RankTelemetry, TelemetryResult, WindowSensors
from distprof.terms import StragglerCause
from distprof.units import format_duration, format_ratio

__all__ = ["EXPLAINS", "Cause", "cpu_taken", "find_cause", "sensed_difference"]

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


class _Excess(msgspec.Struct, frozen=True):
    """Time per late step that a rank spends beyond the median of its peers."""

    what: str
    ns: float
    peers_ns: float


def find_cause(
    rank: int,
    steps: Sequence[int],
    lateness_ns: float,
    analyses: Mapping[int, RankAnalysis],
    own_time: OwnTime,
    pauses: Mapping[int, HostPauses] | None = None,
    proven: str = "",
    telemetry: TelemetryResult | None = None,
    sequences: SequenceImbalance | None = None,
    exchanged: Mapping[int, float] | None = None,
) -> Cause:
    """The cause of a rank's lateness.

    Args:
        rank: The late rank.
        steps: Indices of the steps in which it was late.
        lateness_ns: What it cost in such a step.
        analyses: Of all ranks.
        own_time: Of all ranks.
        pauses: What probes recorded of each rank's training thread.
        proven: Part of own time that is known to be the reason; empty to look for it.
        telemetry: Sensors of the devices, for why one is slow.
        sequences: Where computation differs by sequence lengths.
        exchanged: By rank, what its all-to-alls carry.
    """
    position = own_time.ranks.index(rank)
    queue = _Queue.of(position, steps, analyses, own_time, pauses or {})
    if queue is not None and (taken := queue.explained(lateness_ns)):
        return taken
    found = _without_queue(
        position,
        steps,
        lateness_ns,
        analyses,
        own_time,
        pauses,
        proven,
        telemetry,
        sequences,
        exchanged,
    )
    taken = _taken(found, queue, lateness_ns) if queue is not None else None
    if taken or not _may_be_chance(found, queue):
        return taken or found
    return _lost_in_a_crowd(position, analyses, own_time, pauses or {}) or found


CROWDED = 0.03
"""Share of all steps for which a rank and its peers wait for a CPU: there is none for them all. As
much makes `cpu-contention` say so."""


def _lost_in_a_crowd(
    position: int,
    analyses: Mapping[int, RankAnalysis],
    own_time: OwnTime,
    pauses: Mapping[int, HostPauses],
) -> Cause | None:
    """Others took its CPU, where nothing else is known and every rank has to wait for one.

    Threads of the backend and workers of loaders wait as the training thread does, and nothing
    records how long.
    """
    if not all(analysis.is_cpu for analysis in analyses.values()):
        return None
    queue = _recorded("run_queue_ns", range(own_time.num_steps), analyses, own_time, pauses)
    others = [peer for peer in own_time.peers[position] if peer != position]
    if queue is None or not others:
        return None
    least = min(float(queue[position]), float(np.median(queue[others])))
    if least < CROWDED * mean_step_of(analyses):
        return None
    text = f"it and its peers wait {format_duration(least)} of each step or more for a free CPU"
    return Cause(StragglerCause.CPU_TAKEN, (text, _UNCERTAIN), "", ALIKE_SHARED)


def cpu_taken(
    rank: int,
    steps: Sequence[int],
    lateness_ns: float,
    analyses: Mapping[int, RankAnalysis],
    own_time: OwnTime,
    pauses: Mapping[int, HostPauses],
) -> Cause | None:
    """That others take the CPU of a rank whose kernels are slow, where it explains its lateness.

    As :func:`find_cause` finds it. A rank that often waits for a CPU shares its core and caches
    while it has one, so that its kernels take a little longer.
    """
    position = own_time.ranks.index(rank)
    queue = _Queue.of(position, steps, analyses, own_time, pauses)
    if queue is None:
        return None
    computes_ns = float(own_time.parts[COMPUTATION][position, list(steps)].mean())
    by_chance = min(CHANCE_TO_RUN * computes_ns, queue.whole_ns)
    if queue.more_work_ns is None or lateness_ns >= by_chance:
        return queue.explained(lateness_ns)
    return queue.whole()


def idles_for_a_cpu(
    rank: int,
    steps: Sequence[int],
    lateness_ns: float,
    analyses: Mapping[int, RankAnalysis],
    own_time: OwnTime,
    pauses: Mapping[int, HostPauses],
) -> Cause | None:
    """That a lone stage idles between kernels because its thread waits for a CPU.

    As :func:`find_cause` finds it. A stage runs longer than others where it has other layers, so
    that neither its time on a CPU nor its share of the waiting can be compared with theirs.
    """
    position = own_time.ranks.index(rank)
    queue = _Queue.of(position, steps, analyses, own_time, pauses)
    if queue is None or queue.more_work_ns is None or queue.slept_ns >= EXPLAINS * lateness_ns:
        return None
    idles_ns = float(own_time.parts[HOST][position, list(steps)].mean())
    if queue.whole_ns < MOSTLY_QUEUED * idles_ns:
        return None
    return queue.whole(_UNCERTAIN)


MOSTLY_QUEUED = 0.75
"""Share of the time between kernels for which a thread waits for a CPU, so that this is why."""


def _without_queue(
    position: int,
    steps: Sequence[int],
    lateness_ns: float,
    analyses: Mapping[int, RankAnalysis],
    own_time: OwnTime,
    pauses: Mapping[int, HostPauses] | None,
    proven: str,
    telemetry: TelemetryResult | None,
    sequences: SequenceImbalance | None,
    exchanged: Mapping[int, float] | None,
) -> Cause:
    """The cause by the parts of own time, as if no rank had to wait for a CPU."""
    rank = own_time.ranks[position]
    for what, values in _logged(own_time.ranks, analyses, pauses or {}).items():
        logged = _excess(position, steps, what, values, own_time.beyond_peers(values))
        if lateness_ns > 0 and logged.ns >= EXPLAINS * lateness_ns:
            detail = "gc" if what == COLLECTING else ""
            return Cause(_CAUSES[what], (_text(logged),), detail, _share(logged, lateness_ns))
    excesses = [
        _excess(position, steps, what, values, own_time.excess[what])
        for what, values in own_time.parts.items()
    ]
    largest = max(excesses, key=lambda excess: (excess.what == proven, excess.ns))
    if lateness_ns <= 0 or largest.ns < EXPLAINS * lateness_ns:
        return Cause(StragglerCause.UNKNOWN, (_nothing(excesses, lateness_ns),))
    if largest.what == HOST:
        largest = _in_proportion(largest, excesses)
    text = _text(largest)
    if largest.what in _CAUSES:
        return Cause(_CAUSES[largest.what], (text,), confidence=_share(largest, lateness_ns))
    if sequences is not None:
        return Cause(StragglerCause.MORE_WORK, (text, _LENGTHS), "sequence_length", 0.9)
    peers = [own_time.ranks[other] for other in own_time.peers[position]]
    work = Work(
        tokens=_token_ratio(rank, peers, steps, analyses, pauses or {}),
        exchanged=_over_median(rank, peers, exchanged or {}),
    )
    longer = largest.ns / max(largest.peers_ns, 1.0)
    some = peers[:: -(-len(peers) // MOST_PEERS)]
    among = {other: analyses[other] for other in (*some, rank)}
    found = why_it_computes_longer(rank, longer, steps, among, work)
    sensed: tuple[str, ...] = ()
    detail = found.detail
    if found.cause is StragglerCause.SLOW_DEVICE:
        sensed, detail = sensed_difference(rank, peers, telemetry)
    return Cause(found.cause, (text, found.why, *sensed), detail, found.confidence)


QUEUED = "waiting for a free CPU"
_UNCERTAIN = "other processes take its CPU, so blame is uncertain"

_UNSURE = (StragglerCause.SLOW_DEVICE, StragglerCause.LATE_HOST, StragglerCause.UNKNOWN)
"""Causes that look the same on a rank whose CPU others take."""


def _taken(found: Cause, queue: _Queue, lateness_ns: float) -> Cause | None:
    """Others took its CPU, where that is as likely as the cause that was found.

    Kernels get longer, and a rank idles between them, while their thread waits for a CPU. A rank
    with no more work than its peers has no reason of its own to wait longer than they do.
    """
    if lateness_ns <= 0 or found.detail:
        return None  # the rest is proven by what was recorded: collections, tokens, sensors
    if found.cause is StragglerCause.LATE_INPUT:
        return queue.loader.explained(lateness_ns) if queue.loader is not None else None
    if queue.more_work_ns is not None:
        slept = queue.proven_sleep_ns if found.cause is StragglerCause.LATE_HOST else 0.0
        is_work_clear = _is_counted(found) or queue.runs_longer > CHANCE_TO_RUN
        proven_ns = slept + (queue.more_work_ns if is_work_clear else 0.0)
        due_ns = min(lateness_ns, queue.excess_ns) if queue.is_lasting else lateness_ns
        may_be = proven_ns < EXPLAINS * due_ns or found.cause is StragglerCause.UNKNOWN
        taken_ns = queue.whole_ns
    else:
        may_be = found.cause in _UNSURE
        taken_ns = queue.beyond_peers.ns
    if not may_be or taken_ns <= EXPLAINS * lateness_ns:
        return None
    evidence = (_text(queue.beyond_peers), _UNCERTAIN)
    return Cause(StragglerCause.CPU_TAKEN, evidence, "", _share(queue.beyond_peers, lateness_ns))


def _may_be_chance(found: Cause, queue: _Queue | None) -> bool:
    """Whether nothing is known, or a sleep that other threads may cause."""
    if found.cause is StragglerCause.UNKNOWN:
        return True
    if found.cause is not StragglerCause.LATE_HOST or found.detail or queue is None:
        return False
    is_known = queue.more_work_ns is not None and queue.slept_ns > 0
    return is_known and not queue.more_work_ns and not queue.proven_sleep_ns


CHANCE_TO_RUN = 0.5
"""Relative to its peers' time on a CPU, what a thread may run longer by chance where it also waits:
what runs next to it, on the same core and the same host of virtual machines, takes its pace."""

_COUNTED = 0.9


def _is_counted(found: Cause) -> bool:
    """Whether counts show that it does more, and not only how long its kernels take."""
    return found.cause is StragglerCause.MORE_WORK and found.confidence >= _COUNTED


CHANCE_IN_MANY = 0.25
CHANCE_IN_ONE = 2.0
"""Relative to what a thread or its peers wait for a CPU, what it may sleep because others wait."""


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
    def of(
        position: int,
        others: list[int],
        steps: Sequence[int],
        analyses: Mapping[int, RankAnalysis],
        own_time: OwnTime,
        pauses: Mapping[int, HostPauses],
    ) -> _Loader | None:
        """Of a rank in some steps; None where not all ranks say how long they waited."""
        queue = _recorded("loader_queue_ns", steps, analyses, own_time, pauses)
        ran = _recorded("loader_cpu_ns", steps, analyses, own_time, pauses)
        if queue is None or ran is None:
            return None
        more = _more_work(float(ran[position]), ran[others], queue[others])
        return _Loader(float(queue[position]), more)


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
        loader: What those who load its batches do; None where it is not known.
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
    loader: _Loader | None = None

    @property
    def proven_sleep_ns(self) -> float:
        """``slept_ns`` where it is more than chance.

        The thread also sleeps while another one of its rank waits for a CPU. Nothing records that;
        it can take as long as this thread or its peers wait, or longer, and evens out over many
        steps.
        """
        chance = CHANCE_IN_ONE if self.is_once else CHANCE_IN_MANY
        waits_ns = max(self.whole_ns, self.beyond_peers.peers_ns)
        return self.slept_ns if self.slept_ns >= chance * waits_ns else 0.0

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
    def of(
        position: int,
        steps: Sequence[int],
        analyses: Mapping[int, RankAnalysis],
        own_time: OwnTime,
        pauses: Mapping[int, HostPauses],
    ) -> _Queue | None:
        """Of a rank in some steps; None where not all ranks say how long they waited.

        Args:
            position: Of the rank in ``own_time``.
            steps: Indices of the steps in which it was late.
            analyses: Of all ranks.
            own_time: Of all ranks.
            pauses: What probes recorded of each rank's training thread.
        """
        queue = _recorded("run_queue_ns", steps, analyses, own_time, pauses)
        others = [peer for peer in own_time.peers[position] if peer != position]
        if queue is None or not others:
            return None
        ran = _recorded("cpu_ns", steps, analyses, own_time, pauses)
        own = _own(own_time, steps)
        asked = own if ran is None else ran
        loader = _Loader.of(position, others, steps, analyses, own_time, pauses)
        usual = float(np.median(queue[others]))
        rate = float(np.median(queue[others] / np.maximum(asked[others], 1)))
        share = rate * float(asked[position])
        excesses = (
            _Excess(QUEUED, float(queue[position]) - share, share),
            _Excess(QUEUED, float(queue[position]) - usual, usual),
        )
        if ran is None or not all(analysis.is_cpu for analysis in analyses.values()):
            return _Queue(*excesses, float(queue[position]), loader=loader)
        # A thread also waits for a CPU when it returns from communication: that is too much here.
        slept = np.maximum(own - ran - queue, 0)
        return _Queue(
            *excesses,
            float(queue[position]),
            _more_work(float(ran[position]), ran[others], queue[others]),
            float(ran[position] / max(float(np.median(ran[others])), 1.0)) - 1,
            max(0.0, float(slept[position] - np.median(slept[others]))),
            max(0.0, float(own[position] - np.median(own[others]))),
            is_lasting=2 * len(steps) >= own_time.num_steps,
            is_once=len(steps) == 1 < own_time.num_steps,
            loader=loader,
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


def _recorded(
    field: str,
    steps: Sequence[int],
    analyses: Mapping[int, RankAnalysis],
    own_time: OwnTime,
    pauses: Mapping[int, HostPauses],
) -> _Floats | None:
    """Mean time of each rank in these steps, ns; None where one of them did not record it."""
    told = [getattr(pauses.get(rank), field, None) for rank in own_time.ranks]
    known = [times for times in told if times is not None]
    if len(known) < len(told) or not len(steps):
        return None
    table = _by_step(known, [analyses[rank] for rank in own_time.ranks])
    result: _Floats = table[:, list(steps)].mean(axis=1)
    return result


def _own(own_time: OwnTime, steps: Sequence[int]) -> _Floats:
    """Mean own time of each rank in these steps, ns."""
    parts = [part[:, list(steps)].mean(axis=1) for part in own_time.parts.values()]
    result: _Floats = np.sum(parts, axis=0)
    return result


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


def _logged(
    ranks: Sequence[int],
    analyses: Mapping[int, RankAnalysis],
    pauses: Mapping[int, HostPauses],
) -> dict[str, Int64Array]:
    """Time of each rank per analysed step by what its probes saw; nothing unless all have it."""
    found = {}
    for what, field in ((COLLECTING, "gc_ns"), (LOGGED_INPUT, "input_ns")):
        told = [getattr(pauses.get(rank), field, None) for rank in ranks]
        known = [times for times in told if times is not None]
        if len(known) == len(ranks):
            found[what] = _by_step(known, [analyses[rank] for rank in ranks])
    return found


def _by_step(told: Sequence[Mapping[int, int]], analyses: Sequence[RankAnalysis]) -> Int64Array:
    longest = max(len(analysis.steps) for analysis in analyses)
    table = np.zeros((len(told), longest), dtype=np.int64)
    for row, times, analysis in zip(table, told, analyses, strict=True):
        row[: len(analysis.steps)] = [times.get(step.step, 0) for step in analysis.steps]
    return table


def _text(excess: _Excess) -> str:
    return (
        f"{excess.what} takes {format_duration(excess.ns + excess.peers_ns)} in a late step, "
        f"its peers' median is {format_duration(excess.peers_ns)}"
    )


def _excess(
    position: int,
    steps: Sequence[int],
    what: str,
    values: Int64Array,
    excess: NDArray[np.float64],
) -> _Excess:
    if len(steps) == 0 or len(values) < 2:
        return _Excess(what, 0.0, 0.0)
    chosen = list(steps)
    own, more = values[position, chosen], excess[position, chosen]
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
