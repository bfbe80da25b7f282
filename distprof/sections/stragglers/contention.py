"""Whether a rank is late because other processes take its CPU, or because it is traced.

A rank that waits for a CPU also runs slower while it runs, because it shares its core and caches.
A profiler slows ranks down unequally, on CPUs a lot, because it takes memory, caches and time from
the cores that compute. The step log has the CPU time of each training thread in all steps, with and
without a profiler.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from distprof.schema import Floats, Int64Array
from distprof.sections.idle.measure import HostPauses
from distprof.sections.own_time import COMPUTATION, HOST
from distprof.sections.stragglers import EXPLAINS
from distprof.sections.stragglers.evidence import Cause, Evidence, Excess, Late
from distprof.terms import StragglerCause
from distprof.units import format_duration

CROWDED = 0.03
"""Share of all steps that a rank and its peers wait for a CPU, from which the machine has too few.
`cpu-contention` fires from the same share."""

MOSTLY_QUEUED = 0.75
"""Share of the idle time between kernels that waiting for a CPU must take to be the reason."""

CHANCE_TO_RUN = 0.5
"""How much longer than its peers a thread that waits for CPUs may run by chance, relative to their
CPU time. Other load on its core, or on its virtual machine's host, slows it down."""

CHANCE_IN_MANY = 0.25
CHANCE_IN_ONE = 2.0
"""Sleep that waiting threads of the same rank may cause, over several late steps and in a single
one, relative to the longer of the rank's and its peers' waits for a CPU."""

CLEAR_OF_SCATTER = 3.0
"""Standard errors by which the mean sleep over the late steps must exceed 0."""

UNCERTAIN_CONFIDENCE = 0.6
"""Confidence that a rank which often waits for a CPU is slow for the same reason while it runs."""

SHARED_CACHE = 0.2
"""How much longer a thread runs because others use its core and caches, relative to its CPU
time."""

MIN_EXPECTED = 3
"""Fewest untraced steps in which the rank must be expected to be late, at its rate in traced
ones."""

CONFIRMS = 0.5
"""Share of the excess, and of the rate of late steps, that untraced steps must show."""

QUEUED = "waiting for a free CPU"
_UNCERTAIN = "other processes take its CPU, so blame is uncertain"
_ONCE = "in one step only, which other load on its core or host explains equally well"

_BY_PACE = (StragglerCause.SLOW_DEVICE, StragglerCause.MORE_WORK)
"""Causes that are inferred from the durations of a rank's kernels."""

_UNSURE = (StragglerCause.SLOW_DEVICE, StragglerCause.LATE_HOST, StragglerCause.UNKNOWN)
"""Causes that look the same as CPU contention."""


def contended(found: Cause, queue: Queue | None, late: Late, evidence: Evidence) -> Cause:
    """The cause found from own time, or contention for the CPU of the rank or its data loader."""
    taken = None
    if queue is not None:
        is_input = found.cause is StragglerCause.LATE_INPUT
        taken = _loader_waits(late, evidence) if is_input else _taken(found, queue, late.ns)
    if taken or not _may_be_chance(found, queue, is_crowded=evidence.is_crowded(late)):
        return taken or found
    return _all_wait_for_cpus(late, evidence) or found


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
    queue = Queue.of(late, evidence)
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
    queue = Queue.of(late, evidence)
    if queue is None or queue.more_work_ns is None or queue.slept_ns >= EXPLAINS * late.ns:
        return None
    if queue.runs_longer > CHANCE_TO_RUN:
        return None  # it has more work, in kernels or between them
    if queue.whole_ns < MOSTLY_QUEUED * late.mean(evidence.own_time.parts[HOST]):
        return None
    return queue.whole(_UNCERTAIN)


def _taken(found: Cause, queue: Queue, lateness_ns: float) -> Cause | None:
    """CPU contention as the cause, if it is as likely as the cause found from own time."""
    # While a thread waits for a CPU, its kernels take longer and the rank idles between them. A
    # rank with no more work than its peers has no other reason to wait longer than they do.
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
    evidence = (queue.beyond_peers.text, _UNCERTAIN)
    return Cause(StragglerCause.CPU_TAKEN, evidence, "", queue.beyond_peers.share(lateness_ns))


def _may_be_chance(found: Cause, queue: Queue | None, *, is_crowded: bool = False) -> bool:
    """Whether the cause is unknown, or only a sleep that other threads of the rank may cause."""
    # On CPUs that are all busy, a sleep in a single step proves nothing, however long it is.
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


def _loader_waits(late: Late, evidence: Evidence) -> Cause | None:
    """CPU contention as the cause, if the data loader waits for a CPU, and has no more work."""
    queue = evidence.recorded("loader_queue_ns", late.steps)
    ran = evidence.recorded("loader_cpu_ns", late.steps)
    if queue is None or ran is None:
        return None
    others = late.others(evidence.own_time)
    wait_ns, own_ns = float(queue[late.position]), float(ran[late.position])
    is_clear = own_ns > (1 + CHANCE_TO_RUN) * float(np.median(ran[others]))
    more_ns = _more_work(own_ns, ran[others], queue[others]) if is_clear else 0.0
    if max(more_ns, late.ns - wait_ns) >= EXPLAINS * late.ns:
        return None
    text = f"its data loader waits {format_duration(wait_ns)} of a late step for a free CPU"
    return Cause(StragglerCause.CPU_TAKEN, (text, _UNCERTAIN), "", UNCERTAIN_CONFIDENCE)


class Queue(msgspec.Struct, frozen=True):
    """How much longer than its peers a rank waits in the run queue for a CPU, in a late step.

    On a busy machine, a rank that computes more also waits more, in proportion.
    """

    # Wait above what its peers would wait if they ran as long as it does.
    beyond_its_share: Excess
    beyond_peers: Excess  # Wait above its peers'.
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
        return Cause(StragglerCause.CPU_TAKEN, (queued.text,), "", queued.share(lateness_ns))

    def whole(self, *more: str) -> Cause:
        """CPU contention as the cause, with the whole wait as evidence."""
        text = f"it waits {format_duration(self.whole_ns)} of a late step for a free CPU"
        return Cause(StragglerCause.CPU_TAKEN, (text, *more), "", UNCERTAIN_CONFIDENCE)

    @staticmethod
    def of(late: Late, evidence: Evidence) -> Queue | None:
        """Waits of the rank in its late steps; None unless all ranks recorded theirs."""
        position, own_time = late.position, evidence.own_time
        others = late.others(own_time)
        queued = evidence.recorded_by_step("run_queue_ns", late.steps)
        if queued is None or not others:
            return None
        on_cpu = evidence.recorded_by_step("cpu_ns", late.steps)
        parts = [part[:, list(late.steps)] for part in own_time.parts.values()]
        own_by_step: Int64Array = np.sum(parts, axis=0)
        queue, own = queued.mean(axis=1), own_by_step.mean(axis=1)
        ran = own if on_cpu is None else on_cpu.mean(axis=1)
        whole = float(queue[position])
        usual = float(np.median(queue[others]))
        share = float(np.median(queue[others] / np.maximum(ran[others], 1))) * float(ran[position])
        excesses = (Excess(QUEUED, whole - share, share), Excess(QUEUED, whole - usual, usual))
        if on_cpu is None or not evidence.is_cpu:
            return Queue(*excesses, whole)
        slept = own_by_step - on_cpu - queued
        # The recorded waits include those after communication, so a sleep may come out negative.
        sleeps = np.maximum(slept.mean(axis=1), 0)
        return Queue(
            *excesses,
            whole,
            _more_work(float(ran[position]), ran[others], queue[others]),
            float(ran[position] / max(float(np.median(ran[others])), 1.0)) - 1,
            max(0.0, float(sleeps[position] - np.median(sleeps[others]))),
            max(0.0, float(own[position] - np.median(own[others]))),
            is_lasting=2 * len(late.steps) >= own_time.num_steps,
            is_once=len(late.steps) == 1 < own_time.num_steps,
            surely_slept_ns=_surely_longer(slept, position, others),
        )


def _more_work(ran_ns: float, others_ns: Floats, queue_ns: Floats) -> float:
    """Time that a rank's CPU time above its peers' takes, with the usual waits for a CPU, ns."""
    usual = float(np.median(others_ns))
    more = ran_ns - usual
    stretch = 1 + float(np.median(queue_ns / np.maximum(others_ns, 1)))
    return more * stretch if more > SHARED_CACHE * usual else 0.0


def _surely_longer(slept: Int64Array, position: int, others: Sequence[int]) -> float:
    """Lower bound of how much longer than its peers a rank sleeps in a step, ns."""
    # For a single step, the difference itself.
    longer = slept[position] - np.median(slept[others], axis=0)
    if len(longer) < 2:
        return float(longer.mean())
    error = longer.std(ddof=1) / math.sqrt(len(longer))
    return float(longer.mean() - CLEAR_OF_SCATTER * error)


# Tracing ------------------------------------------------------------------------------------------


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
    return late_while_traced(late, evidence, late.ns, usual)


def late_while_traced(
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


def only_while_traced(
    late: Sequence[int],
    traced: Sequence[int],
    longer: float,
    own: HostPauses,
    others: Collection[HostPauses],
    usual: float = 1.0,
) -> int | None:
    """Number of untraced steps if the rank's training thread runs no longer than usual in them.

    None if it does, or if there are too few untraced steps to show it. ``late`` are the numbers of
    the traced steps in which it computes longer, by ``longer`` of its peers' CPU time; ``usual`` is
    its expected CPU time over theirs.
    """
    before = sum(step < late[0] for step in traced)
    late_ratio = len(late) / max(len(traced) - before, 1)
    # All untraced steps count, unless the rank seems to have become slow while it was traced.
    since = 0 if before * late_ratio <= 2 else late[0]
    own_ns, *others_ns = times = [pauses.cpu_ns or {} for pauses in (own, *others)]
    steps = own.untraced.intersection(*(pauses.untraced for pauses in others), *times)
    ratios = [
        own_ns[step] / max(float(np.median([of_rank[step] for of_rank in others_ns])), 1.0)
        for step in steps
        if step >= since
    ]
    if late_ratio * len(ratios) < MIN_EXPECTED:
        return None
    limit = usual + CONFIRMS * longer
    slower = sum(ratio >= limit for ratio in ratios)
    by_chance = sum(ratio <= usual**2 / limit for ratio in ratios)
    return None if slower - by_chance >= CONFIRMS * late_ratio * len(ratios) else len(ratios)
