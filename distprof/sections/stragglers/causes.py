"""Why a rank arrives late, if the traces hold the evidence, else ``unknown``.

The rank is compared with the median of its peers in the steps in which it was late. A cause is
named only if it explains at least :data:`EXPLAINS` of the lateness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from distprof.run.run import Run
from distprof.schema import ABSENT
from distprof.sections.computation.shapes import Sizes, compare_sizes
from distprof.sections.context import RankAnalysis
from distprof.sections.own_time import COMPUTATION, COPYING, HOST, INPUT
from distprof.sections.stragglers import COLLECTIONS, EXPLAINS, MEMORY_CALLS, PAUSED_FOR, STALL
from distprof.sections.stragglers.computing import Work, sensed_difference, why_it_computes_longer
from distprof.sections.stragglers.contention import Queue, contended, late_while_traced
from distprof.sections.stragglers.evidence import Cause, Evidence, Excess, Late
from distprof.terms import StragglerCause
from distprof.units import format_duration

MOST_PEERS = 512
"""Most peers that a rank's kernels are compared with, spread evenly over all peers."""

MORE_BYTES = 1.25
"""Bytes copied relative to the peers' from which more copying is the reason for longer copying."""

USUAL_LEAD_NS = 2_000_000
"""Lead of the other ranks from which a short lead is significant."""

SHORT_LEAD = 0.1
"""Lead relative to the other ranks' up to which a CPU counts as unable to run ahead."""

COLLECTING = "garbage collection"
LOGGED_INPUT = "the step log's input phase"

_CAUSES = {
    INPUT: StragglerCause.LATE_INPUT,
    HOST: StragglerCause.LATE_HOST,
    COLLECTING: StragglerCause.LATE_HOST,
    LOGGED_INPUT: StragglerCause.LATE_INPUT,
}

_LENGTHS = "computation follows sequence lengths, on all ranks"


def find_cause(late: Late, evidence: Evidence, proven: str = "") -> Cause:
    """The cause of a rank's lateness; ``proven`` is the part of own time known to be the reason."""
    queue = Queue.of(late, evidence)
    if queue is not None and (taken := queue.explained(late.ns)):
        return taken
    return contended(_of_own_time(late, evidence, proven), queue, late, evidence)


def _of_own_time(late: Late, evidence: Evidence, proven: str) -> Cause:
    """The cause according to the parts of own time, as if no rank had to wait for a CPU."""
    own_time = evidence.own_time
    for what, field in ((COLLECTING, "gc_ns"), (LOGGED_INPUT, "input_ns")):
        values = evidence.recorded_by_step(field, range(own_time.num_steps))
        if values is None:
            continue
        logged = Excess.of(late, what, values, own_time.beyond_peers(values))
        if late.ns > 0 and logged.ns >= EXPLAINS * late.ns:
            detail = COLLECTIONS if what == COLLECTING else ""
            return Cause(_CAUSES[what], (logged.text,), detail, logged.share(late.ns))
    excesses = [
        Excess.of(late, what, values, own_time.excess[what])
        for what, values in own_time.parts.items()
    ]
    largest = max(excesses, key=lambda excess: (excess.what == proven, excess.ns))
    if late.ns <= 0 or largest.ns < EXPLAINS * late.ns:
        explained = ", ".join(f"{e.what} {format_duration(max(e.ns, 0.0))}" for e in excesses)
        text = f"of {format_duration(late.ns)} of lateness, the traces explain: {explained}"
        return Cause(StragglerCause.UNKNOWN, (text,))
    if largest.what == HOST:
        largest = _in_proportion(largest, excesses)
    if largest.what == HOST and (paused := _paused_for(late, evidence)):
        return Cause(StragglerCause.LATE_HOST, (largest.text, paused[1]), paused[0], 0.95)
    if largest.what == COPYING:
        return _of_copying(late, evidence, largest)
    if largest.what in _CAUSES:
        return Cause(_CAUSES[largest.what], (largest.text,), confidence=largest.share(late.ns))
    if evidence.sequences is not None:
        texts = (largest.text, _LENGTHS)
        return Cause(StragglerCause.MORE_WORK, texts, "sequence_length", 0.9, True)
    return _of_computing(late, evidence, largest)


def _in_proportion(host: Excess, excesses: Sequence[Excess]) -> Excess:
    """Computation instead, if the rank idles between its kernels only in proportion to it."""
    work = next((excess for excess in excesses if excess.what == COMPUTATION), host)
    if work.ns < host.ns or work.ns * host.peers_ns < host.ns * work.peers_ns:
        return host
    return work


def _of_copying(late: Late, evidence: Evidence, longer: Excess) -> Cause:
    """More copying if the rank copies more bytes than its peers, else slow copies."""
    ranks = evidence.own_time.ranks
    own, *others = (
        sum(max(one.num_bytes, 0) for one in evidence.analyses[ranks[at]].copies)
        for at in (late.position, *late.others(evidence.own_time))
    )
    usual = float(np.median(others)) if others else 0.0
    ratio, why = 0.0, "the sizes of copies are not recorded"
    if usual:
        ratio = own / usual
        why = f"it copies {ratio:.2f} times as many bytes as its peers"
    texts, share = (longer.text, why), longer.share(late.ns)
    if ratio >= MORE_BYTES:
        return Cause(StragglerCause.MORE_WORK, texts, "copies", share, True)
    return Cause(StragglerCause.SLOW_COPIES, texts, "", share)


_PAUSES = {"memory": MEMORY_CALLS, "collection": COLLECTIONS}


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
    """Idle time of the GPU by what the CPU does, and the names of calls and ranges."""
    # Calls that wait for the GPU, and input, have causes of their own.
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    for pause in analysis.cpu_pauses:
        is_range = pause.kind == "range"
        what = f"{PAUSED_FOR}{pause.name}" if is_range else _PAUSES.get(pause.kind, "")
        if what:
            ns, names = found.get(what, (0, ()))
            found[what] = (ns + pause.idle_ns, (*names, pause.name))
    return found


def _of_computing(late: Late, evidence: Evidence, longer: Excess) -> Cause:
    """Why the rank computes longer than its peers."""
    ranks = evidence.own_time.ranks
    rank, peers = ranks[late.position], [ranks[at] for at in evidence.own_time.peers[late.position]]
    work = Work(
        tokens=_over_median(rank, peers, _tokens(rank, peers, late, evidence)),
        exchanged=_over_median(rank, peers, evidence.exchanged),
        sizes=_sizes(rank, peers, late, evidence),
    )
    sample = peers[:: -(-len(peers) // MOST_PEERS)]
    among = {other: evidence.analyses[other] for other in (*sample, rank)}
    ratio = longer.ns / max(longer.peers_ns, 1.0)
    found = why_it_computes_longer(rank, ratio, late.steps, among, work)
    if evidence.is_cpu and not found.is_counted:
        traced = late_while_traced(late, evidence, longer.ns)
        if traced is not None:
            return msgspec.structs.replace(traced, evidence=(longer.text, *traced.evidence))
    sensed: tuple[str, ...] = ()
    detail = found.detail
    if found.cause is StragglerCause.SLOW_DEVICE:
        sensed, known = sensed_difference(rank, peers, evidence.telemetry)
        detail = known or detail
        slower = work.sizes.slower if work.sizes is not None and detail != STALL else ""
        sensed = (*((slower,) if slower else ()), *sensed)
    texts = (longer.text, *found.evidence, *sensed)
    return msgspec.structs.replace(found, evidence=texts, detail=detail)


def _sizes(rank: int, peers: Sequence[int], late: Late, evidence: Evidence) -> Sizes | None:
    """Inputs of the rank's operators; None unless they are known, and it is late in most steps.

    Operators are summed up over all steps, which says little of a few.
    """
    own, num_steps = evidence.analyses[rank], evidence.own_time.num_steps
    if own.computation is None or 2 * len(late.steps) < num_steps:
        return None
    others = (evidence.analyses[peer] for peer in peers if peer != rank)
    known = [one.computation for one in others if len(one.steps) == len(own.steps)]
    return compare_sizes(own.computation, [one for one in known if one is not None])


def _over_median(rank: int, peers: Sequence[int], amounts: Mapping[int, float]) -> float | None:
    """The rank's amount over the median of its peers; None if its own or all others are unknown."""
    others = [amounts[peer] for peer in peers if peer != rank and peer in amounts]
    if rank not in amounts or not others:
        return None
    usual = float(np.median(others))
    return amounts[rank] / usual if usual > 0 else None


def _tokens(rank: int, peers: Sequence[int], late: Late, evidence: Evidence) -> Mapping[int, float]:
    """Tokens of each peer in the late steps; empty unless all are logged."""
    steps, pauses = evidence.analyses[rank].steps, evidence.pauses
    numbers = [steps[step].step for step in late.steps if step < len(steps)]
    logged = {peer: pauses[peer].tokens if peer in pauses else None for peer in peers}
    known = {peer: tokens for peer, tokens in logged.items() if tokens is not None}
    if not numbers or len(known) < len(peers):
        return {}
    return {peer: sum(of.get(number, 0) for number in numbers) for peer, of in known.items()}


# CPUs that cannot run ahead -----------------------------------------------------------------------


def launch_leads(run: Run) -> dict[int, float]:
    """Median time between the launch of a collective and its start by rank, ns.

    Ranks without recorded launches are left out.
    """
    leads = {}
    for rank in run.ranks:
        enqueue = rank.collectives["enqueue_ns"]
        known = enqueue != ABSENT
        if known.any():
            leads[rank.rank] = float(np.median((rank.collectives["start_ns"] - enqueue)[known]))
    return leads


def cannot_run_ahead(rank: int, leads: Mapping[int, float]) -> Cause | None:
    """A late CPU as the cause, if a rank's collectives start almost when they are launched.

    A CPU that launches in time is milliseconds ahead: collectives wait in a queue until the GPU
    gets to them. A GPU whose CPU cannot run ahead need not idle for this to cost time: it waits for
    the transfer, which began late.
    """
    others = [lead for other, lead in leads.items() if other != rank]
    if rank not in leads or not others:
        return None
    usual = float(np.median(others))
    if usual < USUAL_LEAD_NS or leads[rank] > SHORT_LEAD * usual:
        return None
    text = (
        f"its CPU launches collectives {format_duration(leads[rank])} before they start, "
        f"compared with a median of {format_duration(usual)} on the other ranks"
    )
    return Cause(StragglerCause.LATE_HOST, (text,), confidence=0.8)
