"""Why a rank arrives late, if the traces hold the evidence, else ``unknown``.

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
from distprof.sections.own_time import COMPUTATION, COPYING, HOST, INPUT, OwnTime
from distprof.sections.stragglers.computing import Work, why_it_computes_longer
from distprof.sections.stragglers.result import MEMORY_CALLS, PAUSED_FOR, SequenceImbalance
from distprof.sections.stragglers.untraced import CONFIRMS, only_while_traced
from distprof.sections.telemetry.result import RankTelemetry, TelemetryResult, WindowSensors
from distprof.terms import StragglerCause
from distprof.units import format_duration, format_ratio

_Floats: TypeAlias = NDArray[np.float64]

_Figures: TypeAlias = RankTelemetry | WindowSensors

LOWER_CLOCK = 0.97
"""Clock relative to the peers' median up to which it counts as low."""

MORE_THROTTLED = 0.2
"""Share of throttled samples above the peers' median from which a GPU counts as throttled."""


def sensed_difference(
    rank: int, peers: Sequence[int], telemetry: TelemetryResult | None
) -> tuple[tuple[str, ...], str]:
    """Sentences on throttling, clock and temperature that differ from the peers', and the detail.

    Args:
        rank: The slow rank.
        peers: Ranks to compare it with, itself included.
        telemetry: Sensors of all ranks; without them the result is empty.

    Returns:
        The sentences, and ``throttled``, ``low_clocks`` or an empty string.
    """
    rows = {row.rank: row for row in telemetry.ranks} if telemetry is not None else {}
    with_sensors = [rows[peer] for peer in peers if peer != rank and peer in rows]
    if rank not in rows or not with_sensors:
        return (), ""
    own, others = _comparable(rows[rank], with_sensors)
    texts = [
        text
        for text in (_throttling(own, others), _clock(own, others), _temperature(own, others))
        if text is not None
    ]
    detail = "low_clocks" if _clock(own, others) else ""
    detail = "throttled" if _throttling(own, others) else detail
    return tuple(texts), detail


def _comparable(
    own: RankTelemetry, others: Sequence[RankTelemetry]
) -> tuple[_Figures, list[_Figures]]:
    """Figures of the analysed steps if the rank and a peer have them, else of the whole run.

    Throttling before or after the analysed steps does not explain why these were slow.
    """
    in_steps: list[_Figures] = [row.in_steps for row in others if row.in_steps is not None]
    if own.in_steps is not None and in_steps:
        return own.in_steps, in_steps
    return own, list(others)


def _median(others: Sequence[_Figures], value: Callable[[_Figures], float | None]) -> float | None:
    figures = [number for number in map(value, others) if number is not None]
    return float(np.median(figures)) if figures else None


def _throttling(own: _Figures, others: Sequence[_Figures]) -> str | None:
    usual = _median(others, lambda row: row.throttled_ratio)
    if own.throttled_ratio is None or usual is None:
        return None
    if own.throttled_ratio - usual < MORE_THROTTLED:
        return None
    reasons = ", ".join(sorted(own.throttle_reasons, key=lambda key: -own.throttle_reasons[key]))
    return (
        f"its GPU is throttled in {format_ratio(own.throttled_ratio)} of the samples "
        f"({reasons or 'reason unknown'}), compared with a median of {format_ratio(usual)} on its "
        "peers"
    )


def _clock(own: _Figures, others: Sequence[_Figures]) -> str | None:
    usual = _median(others, lambda row: row.sm_clock_mhz_median)
    if own.sm_clock_mhz_median is None or not usual:
        return None
    if own.sm_clock_mhz_median > LOWER_CLOCK * usual:
        return None
    return (
        f"its clock is {own.sm_clock_mhz_median} MHz, compared with a median of {usual:.0f} MHz on "
        "its peers"
    )


def _temperature(own: _Figures, others: Sequence[_Figures]) -> str | None:
    usual = _median(others, lambda row: row.temperature_c_max)
    if own.temperature_c_max is None or usual is None or own.temperature_c_max < usual + 8:
        return None
    return (
        f"its temperature reaches {own.temperature_c_max} °C, compared with a median of "
        f"{usual:.0f} °C on its peers"
    )


# Causes of late ranks -----------------------------------------------------------------------------

EXPLAINS = 0.5
"""Share of the lateness that a cause must explain."""


MOST_PEERS = 512
"""Most peers that a rank's kernels are compared with, spread evenly over all peers."""


class Cause(msgspec.Struct, frozen=True):
    """A cause, sentences of evidence, a detail of the cause if known, and its confidence."""

    cause: StragglerCause
    evidence: tuple[str, ...] = ()
    detail: str = ""
    confidence: float = 0.0
    is_counted: bool = False
    """Whether counts prove more work, and not only kernel durations."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements that may show why a rank is late."""

    analyses: Mapping[int, RankAnalysis]  # Analyses of all ranks.
    mean_step: float  # Their mean step, ns.
    own_time: OwnTime  # Own time of all ranks.
    pauses: Mapping[int, HostPauses]  # Probe records of each rank's training thread.
    telemetry: TelemetryResult | None = None  # GPU sensors, which may show why a GPU is slow.
    # Computation that differs with sequence lengths, if it does.
    sequences: SequenceImbalance | None = None
    exchanged: Mapping[int, float] = {}  # Amount that the all-to-alls of each rank carry.
    # Ranks that share CPUs with another rank while all of these CPUs are busy.
    crowded: Collection[int] = ()

    @property
    def is_cpu(self) -> bool:
        """Whether no GPU computes."""
        return all(analysis.is_cpu for analysis in self.analyses.values())

    def is_crowded(self, late: Late) -> bool:
        """Whether a rank shares busy CPUs with another rank."""
        return self.own_time.ranks[late.position] in self.crowded

    def recorded(self, field: str, steps: Sequence[int]) -> _Floats | None:
        """Mean time of each rank in these steps, ns; None unless all ranks recorded it."""
        times = self.recorded_by_step(field, steps)
        return None if times is None else _mean(times)

    def recorded_by_step(self, field: str, steps: Sequence[int]) -> Int64Array | None:
        """The same for each step, shape (ranks, steps)."""
        records = [getattr(self.pauses.get(rank), field, None) for rank in self.own_time.ranks]
        present = [times for times in records if times is not None]
        if len(present) < len(records) or not len(steps):
            return None
        return self.by_step(present)[:, list(steps)]

    def by_step(self, records: Sequence[Mapping[int, int]]) -> Int64Array:
        """Times of all ranks per analysed step, shape (ranks, steps); 0 where none is recorded."""
        analyses = [self.analyses[rank] for rank in self.own_time.ranks]
        longest = max(len(analysis.steps) for analysis in analyses)
        table = np.zeros((len(records), longest), dtype=np.int64)
        for row, times, analysis in zip(table, records, analyses, strict=True):
            row[: len(analysis.steps)] = [times.get(step.step, 0) for step in analysis.steps]
        return table


class Late(msgspec.Struct, frozen=True):
    """A rank and the steps in which it was late."""

    position: int  # Position of the rank in ``own_time``.
    steps: Sequence[int]  # Indices of these steps.
    ns: float  # Its mean lateness, or cost to the others, in one of these steps.

    def mean(self, part: Int64Array) -> float:
        """Mean of the rank over its late steps, from a table of ranks and steps."""
        return float(part[self.position, list(self.steps)].mean())

    def others(self, own_time: OwnTime) -> list[int]:
        """Positions of the other ranks among its peers."""
        return [peer for peer in own_time.peers[self.position] if peer != self.position]


class _Excess(msgspec.Struct, frozen=True):
    """Time per late step that a rank spends on something, above the median of its peers."""

    what: str
    ns: float
    peers_ns: float


def find_cause(late: Late, evidence: Evidence, proven: str = "") -> Cause:
    """The cause of a rank's lateness.

    Args:
        late: The rank and its late steps.
        evidence: Measurements of all ranks.
        proven: Part of own time that is known to be the reason; empty to search for it.
    """
    queue = _Queue.of(late, evidence)
    if queue is not None and (taken := queue.explained(late.ns)):
        return taken
    found = _without_queue(late, evidence, proven)
    taken = _taken_by_others(found, queue, late, evidence) if queue is not None else None
    if taken or not _may_be_chance(found, queue, is_crowded=evidence.is_crowded(late)):
        return taken or found
    return _all_wait_for_cpus(late, evidence) or found


CROWDED = 0.03
"""Share of all steps that a rank and its peers wait for a CPU, from which the machine has too few.
`cpu-contention` fires from the same share."""


def _all_wait_for_cpus(late: Late, evidence: Evidence) -> Cause | None:
    """CPU contention as the cause, if no other cause is known and every rank has to wait for a CPU.

    Backend threads and loader workers wait like the training thread, and no record shows how long.
    """
    others = late.others(evidence.own_time)
    if not others or not evidence.is_cpu:
        return None
    queue = evidence.recorded("run_queue_ns", range(evidence.own_time.num_steps))
    if queue is None:
        return None
    wait_ns = min(float(queue[late.position]), float(np.median(queue[others])))
    if wait_ns >= CROWDED * evidence.mean_step:
        text = f"it and its peers wait at least {format_duration(wait_ns)} per step for a free CPU"
    elif evidence.is_crowded(late):
        text = "it shares CPUs with another rank, and all of these CPUs are busy"
    else:
        return None
    return Cause(StragglerCause.CPU_TAKEN, (text, _UNCERTAIN), "", UNCERTAIN_CONFIDENCE)


def cpu_taken(late: Late, evidence: Evidence) -> Cause | None:
    """CPU contention as the cause of slow kernels, if it explains the lateness.

    The test is that of :func:`find_cause`. A rank that often waits for a CPU shares its core and
    caches while it runs, so its kernels take a little longer.
    """
    queue = _Queue.of(late, evidence)
    if queue is None:
        return None
    computes_ns = late.mean(evidence.own_time.parts[COMPUTATION])
    by_chance = min(CHANCE_TO_RUN * computes_ns, queue.whole_ns)
    if queue.more_work_ns is None or late.ns >= by_chance:
        return queue.explained(late.ns)
    return queue.whole()


def idles_for_a_cpu(late: Late, evidence: Evidence) -> Cause | None:
    """CPU contention as the cause, if a lone stage idles between kernels because its thread waits.

    A stage with different layers runs longer than other stages, so neither its CPU time nor its
    share of the waiting can be compared with theirs.
    """
    queue = _Queue.of(late, evidence)
    if queue is None or queue.more_work_ns is None or queue.slept_ns >= EXPLAINS * late.ns:
        return None
    if queue.runs_longer > CHANCE_TO_RUN:
        return None  # it has more work, in kernels or between them
    if queue.whole_ns < MOSTLY_QUEUED * late.mean(evidence.own_time.parts[HOST]):
        return None
    return queue.whole(_UNCERTAIN)


MOSTLY_QUEUED = 0.75
"""Share of the idle time between kernels that waiting for a CPU must take to be the reason."""


def _without_queue(late: Late, evidence: Evidence, proven: str) -> Cause:
    """The cause according to the parts of own time, as if no rank had to wait for a CPU."""
    own_time = evidence.own_time
    for what, values in _logged(evidence).items():
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
        return Cause(StragglerCause.UNKNOWN, (_unexplained(excesses, late.ns),))
    if largest.what == HOST:
        largest = _in_proportion(largest, excesses)
    text = _text(largest)
    paused = _paused_for(late, evidence) if largest.what == HOST else None
    if paused is not None:
        return Cause(StragglerCause.LATE_HOST, (text, paused[1]), paused[0], 0.95)
    if largest.what == COPYING:
        more, why = _copied(late, evidence)
        cause = StragglerCause.MORE_WORK if more else StragglerCause.SLOW_COPIES
        return Cause(cause, (text, why), "copies" if more else "", _share(largest, late.ns), more)
    if largest.what in _CAUSES:
        return Cause(_CAUSES[largest.what], (text,), confidence=_share(largest, late.ns))
    if evidence.sequences is not None:
        return Cause(StragglerCause.MORE_WORK, (text, _LENGTHS), "sequence_length", 0.9, True)
    return _of_computing(late, evidence, largest)


MORE_BYTES = 1.25
"""Bytes copied relative to the peers' from which more copying is the reason for longer copying."""


def _copied(late: Late, evidence: Evidence) -> tuple[bool, str]:
    """Whether the rank copies more bytes than its peers, and a sentence on it."""
    ranks = evidence.own_time.ranks
    sizes = [
        sum(max(one.num_bytes, 0) for one in evidence.analyses[ranks[at]].copies)
        for at in (late.position, *late.others(evidence.own_time))
    ]
    usual = float(np.median(sizes[1:])) if sizes[1:] else 0.0
    if not usual:
        return False, "the sizes of copies are not recorded"
    ratio = sizes[0] / usual
    return ratio >= MORE_BYTES, f"it copies {ratio:.2f} times as many bytes as its peers"


_PAUSES = {"memory": MEMORY_CALLS, "collection": "gc"}


def _paused_for(late: Late, evidence: Evidence) -> tuple[str, str] | None:
    """Detail and sentence, if the trace says what the rank's CPU does while its GPU idles."""
    ranks = evidence.own_time.ranks
    own = _pauses(evidence.analyses[ranks[late.position]])
    peers = [_pauses(evidence.analyses[ranks[at]]) for at in late.others(evidence.own_time)]
    more = {
        what: ns - (float(np.median([o.get(what, (0,))[0] for o in peers])) if peers else 0.0)
        for what, (ns, _) in own.items()
    }
    what = max(more, key=lambda one: more[one], default="")
    whole_ns = late.ns * len(late.steps)
    if not what or more[what] < EXPLAINS * whole_ns:
        return None
    names = " and ".join(own[what][1])
    per_step = format_duration(more[what] / len(late.steps))
    return what, f"its GPU idles {per_step} longer in a late step while its CPU is in {names}"


def _pauses(analysis: RankAnalysis) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Idle time of the GPU by what the CPU does, and the names of calls and ranges.

    Calls that wait for the GPU, and input, have causes of their own.
    """
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    for pause in analysis.cpu_pauses:
        is_range = pause.kind == "range"
        what = f"{PAUSED_FOR}{pause.name}" if is_range else _PAUSES.get(pause.kind, "")
        if what:
            ns, names = found.get(what, (0, ()))
            found[what] = (ns + pause.idle_ns, (*names, pause.name))
    return found


def _of_computing(late: Late, evidence: Evidence, longer: _Excess) -> Cause:
    """Why the rank computes longer than its peers."""
    ranks = evidence.own_time.ranks
    rank, peers = ranks[late.position], [ranks[at] for at in evidence.own_time.peers[late.position]]
    work = Work(
        tokens=_token_ratio(rank, peers, late.steps, evidence.analyses, evidence.pauses),
        exchanged=_over_median(rank, peers, evidence.exchanged),
    )
    sample = peers[:: -(-len(peers) // MOST_PEERS)]
    among = {other: evidence.analyses[other] for other in (*sample, rank)}
    ratio = longer.ns / max(longer.peers_ns, 1.0)
    found = why_it_computes_longer(rank, ratio, late.steps, among, work)
    if evidence.is_cpu and not found.is_counted:
        traced = _only_while_traced(late, evidence, longer.ns)
        if traced is not None:
            return msgspec.structs.replace(traced, evidence=(_text(longer), *traced.evidence))
    sensed: tuple[str, ...] = ()
    detail = found.detail
    if found.cause is StragglerCause.SLOW_DEVICE:
        sensed, known = sensed_difference(rank, peers, evidence.telemetry)
        detail = known or detail
    texts = (_text(longer), found.why, *sensed)
    return Cause(found.cause, texts, detail, found.confidence, found.is_counted)


def only_traced(late: Late, evidence: Evidence) -> Cause | None:
    """Tracing as the cause, if a lone stage runs its kernels slower only while it is traced.

    Stages hold different layers, so the usual ratio of its CPU time to its peers' is taken from the
    traced steps, without its lateness.
    """
    ran = evidence.recorded("cpu_ns", late.steps) if evidence.is_cpu else None
    others = late.others(evidence.own_time)
    if ran is None or not others:
        return None
    usual = (float(ran[late.position]) - late.ns) / max(float(np.median(ran[others])), 1.0)
    return _only_while_traced(late, evidence, late.ns, usual)


def _only_while_traced(
    late: Late, evidence: Evidence, longer_ns: float, usual: float = 1.0
) -> Cause | None:
    """Tracing as the cause, if the rank's thread runs no longer than usual in untraced steps.

    A single late step is too few to decide. CPU times of untraced steps are evidence only if those
    of the late steps show the excess: a rank whose kernels sleep is late without using a CPU.
    """
    ran = evidence.recorded("cpu_ns", late.steps)
    others = late.others(evidence.own_time)
    if ran is None or not others or len(late.steps) < 2:
        return None
    usual_ns = float(np.median(ran[others]))
    if ran[late.position] - usual * usual_ns < CONFIRMS * longer_ns:
        return None
    rank = evidence.own_time.ranks[late.position]
    numbers = [step.step for step in evidence.analyses[rank].steps]
    num_steps = only_while_traced(
        [numbers[step] for step in late.steps if step < len(numbers)],
        numbers,
        longer_ns / max(usual_ns, 1.0),
        evidence.pauses[rank],
        [evidence.pauses[evidence.own_time.ranks[other]] for other in others],
        usual,
    )
    if num_steps is None:
        return None
    text = (
        f"in {num_steps:,} steps without a profiler its training thread runs no longer than usual"
    )
    return Cause(StragglerCause.TRACING, (text,), "", UNCERTAIN_CONFIDENCE)


QUEUED = "waiting for a free CPU"
_UNCERTAIN = "other processes take its CPU, so blame is uncertain"

_ONCE = "in one step only, which other load on its core or host explains equally well"

_BY_PACE = (StragglerCause.SLOW_DEVICE, StragglerCause.MORE_WORK)
"""Causes that are inferred from the durations of a rank's kernels."""

_UNSURE = (StragglerCause.SLOW_DEVICE, StragglerCause.LATE_HOST, StragglerCause.UNKNOWN)
"""Causes that look the same as CPU contention."""


def _taken_by_others(found: Cause, queue: _Queue, late: Late, evidence: Evidence) -> Cause | None:
    """CPU contention as the cause, on the CPU of the rank or of its data loader."""
    if found.cause is not StragglerCause.LATE_INPUT:
        return _taken(found, queue, late.ns)
    loader = _Loader.of(late, evidence)
    return None if loader is None else loader.explained(late.ns)


def _taken(found: Cause, queue: _Queue, lateness_ns: float) -> Cause | None:
    """CPU contention as the cause, if it is as likely as the cause found from own time.

    While a thread waits for a CPU, its kernels take longer and the rank idles between them. A rank
    with no more work than its peers has no other reason to wait longer than they do.
    """
    if lateness_ns <= 0 or found.detail:
        return None  # records prove the cause: collections, tokens, sensors
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
        return Cause(StragglerCause.CPU_TAKEN, (*found.evidence, _ONCE), "", UNCERTAIN_CONFIDENCE)
    if not may_be or taken_ns <= EXPLAINS * lateness_ns:
        return None
    evidence = (_text(queue.beyond_peers), _UNCERTAIN)
    return Cause(StragglerCause.CPU_TAKEN, evidence, "", _share(queue.beyond_peers, lateness_ns))


def _may_be_chance(found: Cause, queue: _Queue | None, *, is_crowded: bool = False) -> bool:
    """Whether the cause is unknown, or only a sleep that other threads of the rank may cause.

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
        return not found.is_counted  # its kernels take longer, but its thread runs no longer
    return found.cause is StragglerCause.LATE_HOST and not queue.proven_sleep_ns


CHANCE_TO_RUN = 0.5
"""How much longer than its peers a thread that waits for CPUs may run by chance, relative to their
CPU time. Other load on its core, or on its virtual machine's host, slows it down."""

CHANCE_IN_MANY = 0.25
CHANCE_IN_ONE = 2.0
"""Sleep that waiting threads of the same rank may cause, over several late steps and in a single
one, relative to the longer of the rank's and its peers' waits for a CPU."""

CLEAR_OF_SCATTER = 3.0
"""Standard errors by which the mean sleep over the late steps must exceed 0."""


class _Loader(msgspec.Struct, frozen=True):
    """What a rank's data loader does in a late step while training waits for it."""

    queue_ns: float  # Time that it waits for a CPU.
    more_work_ns: float  # Time that its CPU time above its peers' takes, with waits for a CPU.

    def explained(self, lateness_ns: float) -> Cause | None:
        """CPU contention as the cause, if waiting, not more work, explains half of the lateness."""
        if max(self.more_work_ns, lateness_ns - self.queue_ns) >= EXPLAINS * lateness_ns:
            return None
        wait = format_duration(self.queue_ns)
        text = f"its data loader waits {wait} of a late step for a free CPU"
        return Cause(StragglerCause.CPU_TAKEN, (text, _UNCERTAIN), "", UNCERTAIN_CONFIDENCE)

    @staticmethod
    def of(late: Late, evidence: Evidence) -> _Loader | None:
        """Times of the rank's loader in its late steps; None unless all ranks recorded theirs."""
        queue = evidence.recorded("loader_queue_ns", late.steps)
        ran = evidence.recorded("loader_cpu_ns", late.steps)
        if queue is None or ran is None:
            return None
        others = late.others(evidence.own_time)
        own = float(ran[late.position])
        is_clear = own > (1 + CHANCE_TO_RUN) * float(np.median(ran[others]))
        more = _more_work(own, ran[others], queue[others]) if is_clear else 0.0
        return _Loader(float(queue[late.position]), more)


class _Queue(msgspec.Struct, frozen=True):
    """How much longer than its peers a rank waits in the run queue for a CPU, in a late step.

    On a busy machine, a rank that computes more also waits more, in proportion. Such waiting is not
    what makes it late.
    """

    # Wait above what its peers would wait if they ran as long as it does.
    beyond_its_share: _Excess
    beyond_peers: _Excess  # Wait above its peers'.
    whole_ns: float  # Its whole wait.
    # Time that its CPU time above its peers' takes, with waits for a CPU. None if the CPU time is
    # unknown or a GPU computes.
    more_work_ns: float | None = None
    runs_longer: float = 0.0  # CPU time above its peers', relative to theirs.
    # Own time, above its peers', in which it neither runs nor waits for a CPU.
    slept_ns: float = 0.0
    # All own time above its peers'. The cost to the others can be higher: each waits for the last
    # rank, and on a busy machine chance adds to that.
    excess_ns: float = 0.0
    is_lasting: bool = False  # Whether at least half of all steps are late, so chance evens out.
    is_once: bool = False  # Whether the rank is late in one step of several.
    # Lower bound of ``slept_ns``, from its scatter over the late steps; for a single late step, the
    # sleep itself.
    surely_slept_ns: float = math.inf

    @property
    def proven_sleep_ns(self) -> float:
        """``slept_ns`` if it is more than chance, else 0.

        The thread also sleeps while another thread of its rank waits for a CPU. No record shows
        such a sleep, which can last as long as the waits of this thread or its peers, or longer. It
        evens out over many steps, and varies more between steps than a sleep that the rank itself
        causes.
        """
        chance = CHANCE_IN_ONE if self.is_once else CHANCE_IN_MANY
        waits_ns = max(self.whole_ns, self.beyond_peers.peers_ns)
        is_clear = self.slept_ns >= chance * waits_ns and self.surely_slept_ns > 0
        return self.slept_ns if is_clear else 0.0

    def explained(self, lateness_ns: float) -> Cause | None:
        """CPU contention as the cause, if waiting, not sleep, explains half of the lateness."""
        queued = self.beyond_its_share
        if self.slept_ns >= EXPLAINS * lateness_ns or not queued.ns >= EXPLAINS * lateness_ns > 0:
            return None
        return Cause(StragglerCause.CPU_TAKEN, (_text(queued),), "", _share(queued, lateness_ns))

    def whole(self, *more: str) -> Cause:
        """CPU contention as the cause, with the whole wait as evidence."""
        text = f"it waits {format_duration(self.whole_ns)} of a late step for a free CPU"
        return Cause(StragglerCause.CPU_TAKEN, (text, *more), "", UNCERTAIN_CONFIDENCE)

    @staticmethod
    def of(late: Late, evidence: Evidence) -> _Queue | None:
        """Waits of the rank in its late steps; None unless all ranks recorded theirs."""
        position, others = late.position, late.others(evidence.own_time)
        queued = evidence.recorded_by_step("run_queue_ns", late.steps)
        if queued is None or not others:
            return None
        queue = _mean(queued)
        on_cpu = evidence.recorded_by_step("cpu_ns", late.steps)
        own_by_step = _own(evidence.own_time, late.steps)
        ran = _mean(own_by_step if on_cpu is None else on_cpu)
        usual = float(np.median(queue[others]))
        rate = float(np.median(queue[others] / np.maximum(ran[others], 1)))
        share = rate * float(ran[position])
        excesses = (
            _Excess(QUEUED, float(queue[position]) - share, share),
            _Excess(QUEUED, float(queue[position]) - usual, usual),
        )
        if on_cpu is None or not evidence.is_cpu:
            return _Queue(*excesses, float(queue[position]))
        own = _mean(own_by_step)
        slept = own_by_step - on_cpu - queued
        num_steps = evidence.own_time.num_steps
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


UNCERTAIN_CONFIDENCE = 0.6
"""Confidence that a rank which often waits for a CPU is slow for the same reason while it runs."""

SHARED_CACHE = 0.2
"""How much longer a thread runs because others use its core and caches, relative to its CPU
time."""


def _more_work(ran_ns: float, others_ns: _Floats, queue_ns: _Floats) -> float:
    """Time that a rank's CPU time above its peers' takes, with the usual waits for a CPU, ns."""
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
    """Mean of each rank over the steps."""
    result: _Floats = by_step.mean(axis=1)
    return result


def _sleeps_longer(slept: Int64Array, position: int, others: Sequence[int]) -> float:
    """How much longer than the median of its peers a rank sleeps in a step, ns."""
    # The recorded waits include those after communication, so a sleep may come out negative.
    means = np.maximum(_mean(slept), 0)
    return max(0.0, float(means[position] - np.median(means[others])))


def _surely_longer(slept: Int64Array, position: int, others: Sequence[int]) -> float:
    """Lower bound of how much longer than its peers a rank sleeps in a step, ns.

    For a single step, the difference itself.
    """
    longer = slept[position] - np.median(slept[others], axis=0)
    if len(longer) < 2:
        return float(longer.mean())
    error = longer.std(ddof=1) / math.sqrt(len(longer))
    return float(longer.mean() - CLEAR_OF_SCATTER * error)


def _share(excess: _Excess, lateness_ns: float) -> float:
    """Explained share of the lateness, as a confidence."""
    return min(0.99, max(excess.ns, 0.0) / max(lateness_ns, 1.0))


def _over_median(rank: int, peers: Sequence[int], amounts: Mapping[int, float]) -> float | None:
    """The rank's amount over the median of its peers; None if its own or all others are unknown."""
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
    """The rank's tokens over the median peer's in the late steps; None unless all are logged."""
    numbers = [
        analyses[rank].steps[step].step for step in steps if step < len(analyses[rank].steps)
    ]
    logged = {peer: pauses[peer].tokens if peer in pauses else None for peer in peers}
    if not numbers or len(peers) < 2 or any(tokens is None for tokens in logged.values()):
        return None
    total = {
        peer: sum((tokens or {}).get(number, 0) for number in numbers)
        for peer, tokens in logged.items()
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


def _logged(evidence: Evidence) -> dict[str, Int64Array]:
    """Logged times of each rank per analysed step, by cause; only those that all ranks logged."""
    tables = {}
    for what, field in ((COLLECTING, "gc_ns"), (LOGGED_INPUT, "input_ns")):
        records = [
            getattr(evidence.pauses.get(rank), field, None) for rank in evidence.own_time.ranks
        ]
        present = [times for times in records if times is not None]
        if len(present) == len(records):
            tables[what] = evidence.by_step(present)
    return tables


def _text(excess: _Excess) -> str:
    return (
        f"{excess.what} takes {format_duration(excess.ns + excess.peers_ns)} in a late step, "
        f"compared with a median of {format_duration(excess.peers_ns)} on its peers"
    )


def _excess(late: Late, what: str, values: Int64Array, excess: _Floats) -> _Excess:
    if len(late.steps) == 0 or len(values) < 2:
        return _Excess(what, 0.0, 0.0)
    steps = list(late.steps)
    own, more = values[late.position, steps], excess[late.position, steps]
    return _Excess(what, float(more.mean()), float((own - more).mean()))


def _in_proportion(host: _Excess, excesses: Sequence[_Excess]) -> _Excess:
    """Computation instead, if the rank idles between its kernels only in proportion to it."""
    work = next((excess for excess in excesses if excess.what == COMPUTATION), host)
    if work.ns < host.ns or work.ns * host.peers_ns < host.ns * work.peers_ns:
        return host
    return work


def _unexplained(excesses: Sequence[_Excess], lateness_ns: float) -> str:
    explained = ", ".join(f"{e.what} {format_duration(max(e.ns, 0.0))}" for e in excesses)
    return f"of {format_duration(lateness_ns)} of lateness, the traces explain: {explained}"
