"""Which ranks are slow by their own time, alone or as a set, and how long the others wait for them.

Computation is split in two: the pace at which a rank runs the same kernels as others
(:mod:`~distprof.sections.stragglers.computing`), and its work apart from the pace. Therefore two
faults on different ranks do not hide each other, and ranks of different pipeline stages have a
common measure. Kernel counts are a third measure, which proves more work even if times are noisy.

Each measure is a matrix of comparable ranks and steps. A rank's level is the median over the steps
of its time less the median of each step.

- *Set.* With ranks in order of their levels, a gap divides a slow set from the others if it is at
  least :data:`GAP` of the set's distance from the others' median, and far wider than chance. At
  most half of the ranks are slow, so no rank is called slow because another one is fast.
- *From a step on.* Both the earlier and the later steps of a rank or set are even, and the later
  ones are higher by more than chance.
- *Noisy node.* All ranks of one node lose time, each in other steps, so that no rank alone differs
  by more than chance, but the node does.
- *Some steps.* Single cells are far above the usual, or several cells of one rank are, and together
  cost as much as slowness in all steps would. On three or more ranks the slowness rotates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.schema import Bools, Floats
from distprof.sections.context import KernelSteps, RankAnalysis
from distprof.sections.kernels.measure import MOST_NAMES
from distprof.sections.own_time import (
    COMPUTATION,
    COPYING,
    HOST,
    INPUT,
    OwnTime,
    chance_of_mean,
    over_peers,
    same_stages,
)
from distprof.sections.shares import chance_of_hits
from distprof.sections.stragglers.computing import pace_of
from distprof.terms import StragglerPattern

GAP = 0.5
"""Gap between slow and other ranks, relative to the distance of the slow ranks from the others'
median."""

CHANCE = 0.002
"""Accepted probability that identical ranks show a set."""

CHANCE_OF_ONE = 0.02
"""The same for a single rank of a set, which the gap to all others confirms."""

LEAST_FREEDOM = 12
"""Degrees of freedom from which the noise of all ranks together is known well enough."""

BEYOND_NOISE = 6.0
"""Robust standard deviations from which a difference is not due to chance."""

EVEN = 0.5
"""Steps before a change stay below this share of the change, steps after it above."""

LONG = 0.6
"""Share of the steps from which slowness counts as lasting."""

SIGMA = 1.4826
"""Standard deviation of normal values over their median absolute deviation."""

USUAL = 0.35
"""Quantile of a rank's steps that shows its usual time, even if it is slow in half of them."""

MIN_AGAIN = 2
"""Steps in which a rank must be slow if none of them is worth reporting alone."""

LEAST_OF_NODE = 0.15
"""Mean excess of each rank of a noisy node, relative to the mean of all of its ranks."""

OVER_OTHERS = 2.0
"""The same, relative to the highest of all other ranks."""

MIN_STEPS = 3

MIN_ROTATING = 3
"""Fewer slow ranks do not count as rotating."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest excess worth reporting."""

    lasting_ns: float  # Mean excess of a set over all steps.
    cell_ns: float  # Excess of a rank in a single step; infinite if single steps are not judged.
    # The same in each of several steps that together cost ``lasting_ns``, and in further steps of a
    # rank that is named anyway.
    again_ns: float
    tests: int = 1  # Number of matrices that are searched.


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """Slow ranks, and the steps in which they are slow."""

    pattern: StragglerPattern  # Never ``none``.
    # float64, shape ``(P, S)``: time above the other ranks; 0 outside the episode.
    excess_ns: Floats
    # Index of the step from which it lasts; None if it does not begin at a later step.
    since: int | None = None
    chance: float = 0.0  # Probability that identical ranks show it.

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions of its ranks, ascending."""
        return tuple(np.flatnonzero((self.excess_ns > 0).any(axis=1)).tolist())

    @property
    def steps(self) -> tuple[int, ...]:
        """Indices of its steps."""
        return tuple(np.flatnonzero((self.excess_ns > 0).any(axis=0)).tolist())

    @property
    def per_step_ns(self) -> float:
        """Excess of the slowest rank of each step, mean over all steps."""
        return float(self.excess_ns.max(axis=0).mean())


def find_episodes(values: Floats, group: Sequence[int], limits: Limits) -> Iterator[Episode]:
    """Episodes among the ranks of a group, from own time in ns, shape ``(P, S)``."""
    chosen, rows = values[list(group)], np.asarray(group)
    if chosen.shape[0] < 2 or chosen.shape[1] < MIN_STEPS:
        return
    slow = _slow_set(chosen, limits)
    beyond = chosen - np.median(chosen[~slow], axis=0)
    rest = ~slow

    def lasting(mine: NDArray[Any], since: int | None, chance: float) -> Episode:
        excess = np.zeros(values.shape)
        excess[rows[mine], since:] = np.maximum(beyond[mine, since:], 0)
        pattern = StragglerPattern.PERSISTENT
        return Episode(pattern=pattern, excess_ns=excess, since=since, chance=chance)

    if slow.any():
        since = _begins(beyond[slow].mean(axis=0), limits)
        shift = beyond + np.median(beyond[rest])
        yield lasting(slow, since, _chance(shift, slow, limits) if since is None else 0.0)
    for row in np.flatnonzero(rest).tolist():
        since = _begins(beyond[row], limits)
        if since is not None:
            rest[row] = False
            yield lasting(np.array([row]), since, 0.0)
    yield from _in_some_steps(values.shape, rows, beyond, rest, limits)


def find_noisy_node(
    values: Floats, nodes: Sequence[tuple[int, ...]], least_ns: float
) -> Episode | None:
    """The one node whose ranks all lose time, each in other steps, from their own time in ns."""
    found = []
    for node in map(list, nodes):
        rest = np.setdiff1d(np.arange(len(values)), node)
        if len(node) < 2 or len(rest) < 2 or values.shape[1] < MIN_STEPS:
            continue
        beyond = values - np.median(values[rest], axis=0)
        mine, others = beyond[node], beyond[rest].mean(axis=1)
        each = mine.mean(axis=1)
        # Stalls of chance length have heavy tails, so that their mean may be chance where it is not
        # chance in how many steps one of the ranks is the latest of all.
        latest = int((values[node].max(axis=0) > values[rest].max(axis=0)).sum())
        chance = len(nodes) * min(
            float(chance_of_mean(mine.reshape(1, -1))[0]),
            chance_of_hits(latest, values.shape[1], len(node) / len(values)),
        )
        is_all = each.min() >= max(LEAST_OF_NODE * each.mean(), OVER_OTHERS * others.max())
        if is_all and each.mean() >= least_ns and chance <= CHANCE:
            excess = np.zeros(values.shape)
            excess[node] = np.maximum(mine, 0)
            pattern = StragglerPattern.PERSISTENT
            found.append(Episode(pattern=pattern, excess_ns=excess, chance=chance))
    return found[0] if len(found) == 1 else None


def _slow_set(values: Floats, limits: Limits) -> Bools:
    """Mask of the ranks above a gap that is wider than chance; at most half of all."""
    number = len(values)
    apart = values - np.median(values, axis=0)
    level = np.median(apart, axis=1)
    order = np.argsort(level, kind="stable")
    ordered = level[order]
    error = SIGMA * float(np.median(abs(apart - level[:, None]))) / np.sqrt(values.shape[1])
    fast = np.arange(number - number // 2, number)  # number of ranks that are not slow, in order
    gap = ordered[fast] - ordered[fast - 1]
    above = ordered[fast] - (ordered[(fast - 1) // 2] + ordered[fast // 2]) / 2
    wide = gap >= np.maximum(GAP * above, BEYOND_NOISE * error)
    slow = np.zeros(number, dtype=np.bool_)
    for first in fast[wide & (above >= limits.lasting_ns)].tolist():
        slow[:] = False
        slow[order[first:]] = True
        if _chance(values, slow, limits) <= CHANCE:
            return slow
    return np.zeros(number, dtype=np.bool_)


def _chance(values: Floats, slow: Bools, limits: Limits) -> float:
    """Probability that equal ranks show the set."""
    # It is the smaller result of two tests: the t test of the set, which allows for different noise
    # of ranks and does not count if the steps of one of its ranks may be chance, and a test with
    # the noise of all ranks together, which is known well even after few steps.
    more = values[slow] - np.median(values[~slow], axis=0)
    number = limits.tests * len(values)
    pooled = _by_pooled_noise(values, float(more.mean(axis=1).min()))
    together = float(chance_of_mean(more.mean(axis=0)[None])[0])
    if float(chance_of_mean(more).max()) > CHANCE_OF_ONE:
        together = 1.0
    return min(1.0, number * min(pooled, together))


def _by_pooled_noise(values: Floats, level: float) -> float:
    """Probability of a rank's mean at this level, under normal noise estimated from all ranks."""
    # 1 if there are too few values to estimate the noise.
    apart = values - np.median(values, axis=0)
    rest = apart - apart.mean(axis=1, keepdims=True)
    ranks, steps = values.shape
    freedom = (ranks - 1) * (steps - 1)
    if freedom < LEAST_FREEDOM:
        return 1.0
    error = math.sqrt(float((rest**2).sum()) / freedom / steps)
    return math.erfc(level / max(error, 1e-9) / math.sqrt(2))


def _begins(series: Floats, limits: Limits) -> int | None:
    """Index of the step from which a series is higher until its end; None if there is none."""
    number = len(series)
    highest = np.maximum.accumulate(series[:-2])
    lowest = np.minimum.accumulate(series[::-1])[-2:0:-1]
    for at in (np.flatnonzero(highest < lowest) + 1).tolist():  # no other step separates them
        before, after = series[:at], series[at:]
        low, high = float(np.median(before)), float(np.median(after))
        step = high - low
        if step < EVEN * high or (number - at) * step < number * limits.lasting_ns:
            continue
        even = before.max() < low + EVEN * step and after.min() > low + EVEN * step
        spread = SIGMA * float(np.median(abs(np.concatenate((before - low, after - high)))))
        if even and step >= BEYOND_NOISE * spread:
            return at
    return None


def _in_some_steps(
    shape: tuple[int, ...], group: NDArray[Any], beyond: Floats, rest: Bools, limits: Limits
) -> Iterator[Episode]:
    apart = beyond - np.quantile(beyond, USUAL, axis=1, keepdims=True)
    about = beyond - np.median(beyond, axis=1, keepdims=True)
    noise = SIGMA * float(np.median(abs(about[rest]))) if rest.any() else 0.0
    high = (apart >= max(limits.again_ns, BEYOND_NOISE * noise)) & rest[:, None]
    high &= 2 * high.sum(axis=0) <= len(group)
    num_high = high.sum(axis=1)
    named = (high & (apart >= limits.cell_ns)).any(axis=1)
    often = np.where(high, apart, 0).sum(axis=1) >= limits.lasting_ns * beyond.shape[1]
    named |= often & (num_high >= MIN_AGAIN)
    involved = np.flatnonzero(named & (num_high < LONG * beyond.shape[1]))
    total = np.zeros(shape)
    total[group[involved]] = np.where(high, beyond, 0)[involved]
    most = total.sum(axis=1).max(initial=0.0)
    if len(involved) >= MIN_ROTATING and most < EVEN * total.sum():
        yield Episode(pattern=StragglerPattern.ROTATING, excess_ns=total)
        return
    for row in group[involved]:
        excess = np.zeros(shape)
        excess[row] = total[row]
        yield Episode(pattern=StragglerPattern.TRANSIENT, excess_ns=excess)


PACE = "pace"
WORK = "work"
COUNTS = "counts"

EQUAL_DEVICES = 0.018
"""Share of the step by which the computation of equal GPUs differs."""

LASTING = 0.015
"""Share of the step from which longer idle time than the others' is reported."""

DEVICE_CELL = 0.05
"""Share of the step that a GPU must lose in a single step: kernels of one GPU vary little."""

HOST_CELL = 0.15
"""The same for a CPU or its input: every machine has small stalls."""

HOST_AGAIN = 0.01
"""The same in each step of a CPU that stalls repeatedly: a CPU that runs ahead of its GPU hides
most of a stall in some steps, and all of it in others."""

CPU_CELL = 0.25
"""The same for measured CPU threads, which other processes interrupt."""

LONGER_COPIES = 1.2
"""Duration of a rank's copies relative to its peers' from which it copies longer."""

PAID = 0.2
"""Share of the excess that the others must be seen to wait: a rank that is late for another reason
may hide the rest."""

LEAST_PAID = 0.01
"""Share of the step that the others must wait."""

FEWEST_PEERS = 3
"""Ranks per stage from which their CPUs are compared with each other rather than with all."""


class Slowness(msgspec.Struct, frozen=True, kw_only=True):
    """An episode, its part of own time and its cost."""

    part: str  # :data:`PACE`, :data:`WORK`, :data:`COUNTS`, copies, input or idling for the CPU.
    episode: Episode  # Who and when.
    lost_ns: float  # How long the others wait for it, mean per step.
    is_alone: bool  # Whether all peers that do the same work as its ranks are slow as well.
    is_hidden: bool  # Whether the others would wait for it if they did not wait for another rank.


def own_part(part: str) -> str:
    """The part of own time that a part of a :class:`Slowness` belongs to."""
    return COMPUTATION if part in (PACE, WORK, COUNTS) else part


def find_slowness(
    analyses: Mapping[int, RankAnalysis],
    own_time: OwnTime,
    stages: Mapping[int, tuple[int, ...]],
    step_ns: float,
    *,
    computes_unevenly: bool = False,
    nodes: Sequence[tuple[int, ...]] = (),
) -> tuple[Slowness, ...]:
    """Episodes of all parts that make the others wait, most expensive first.

    Computation that follows something else, such as sequence lengths, says nothing about the ranks.
    Nodes are positions of ranks.
    """
    shape = own_time.parts[COMPUTATION].shape
    if 0 in shape:
        return ()
    peers = same_stages(stages[rank] for rank in own_time.ranks)
    # Stages wait for each other by design, so waiting shows nothing.
    wait = _waits(analyses, shape) if len(peers) == 1 else None
    blocked = _blocked(analyses, shape) - own_time.hidden if len(peers) == 1 else None
    episodes = [
        (part, episode)
        for part, values, groups, limits in _measures(
            analyses, own_time, peers, step_ns, computes_unevenly=computes_unevenly
        )
        for group in groups
        for episode in find_episodes(values, group, limits)
    ]
    noisy = find_noisy_node(own_time.parts[HOST].astype(np.float64), nodes, LASTING * step_ns)
    if noisy is not None:  # instead of single CPUs of the node
        ranks = {*noisy.positions}
        episodes = [
            (part, one) for part, one in episodes if part != HOST or not ranks & {*one.positions}
        ]
        episodes.append((HOST, noisy))
    found = []
    for part, episode in episodes:
        lost = _paid(episode, blocked, later=1)
        if own_part(part) == COMPUTATION:
            # if waiting is hidden, transfers that follow late ones show more
            lost = max(_paid(episode, wait), lost if part == PACE else 0.0)
        if lost >= max(LEAST_PAID * step_ns, PAID * episode.per_step_ns):
            slow = {*episode.positions}
            found.append(
                Slowness(
                    part=part,
                    episode=episode,
                    lost_ns=lost,
                    is_alone=all(slow >= {*group} for group in peers if slow & {*group}),
                    is_hidden=part == HOST and _is_hidden(episode, own_time),
                )
            )
    return tuple(sorted(found, key=lambda slow: -slow.lost_ns))


_Measure = tuple[str, Floats, tuple[tuple[int, ...], ...], Limits]
"""A part, its time by rank and step, groups of ranks to compare, and what is worth reporting."""


def _measures(
    analyses: Mapping[int, RankAnalysis],
    own_time: OwnTime,
    peers: tuple[tuple[int, ...], ...],
    step_ns: float,
    *,
    computes_unevenly: bool,
) -> Iterator[_Measure]:
    is_cpu = any(analysis.is_cpu for analysis in analyses.values())
    all_ranks = (tuple(range(len(own_time.ranks))),)
    parts = {part: times.astype(np.float64) for part, times in own_time.parts.items()}
    device = _limits(step_ns, EQUAL_DEVICES, CPU_CELL if is_cpu else DEVICE_CELL)
    host = _limits(step_ns, LASTING, CPU_CELL if is_cpu else HOST_CELL)
    if not is_cpu:
        host = replace(host, again_ns=HOST_AGAIN * step_ns)
    if not computes_unevenly:
        work = parts[COMPUTATION]
        if (pace := pace_of(analyses, peers)) is not None:
            work = work / pace.factor
            # The usual computation at each rank's pace, so that paces can be compared as times.
            yield PACE, pace.factor * float(np.median(work)), pace.groups, device
        yield WORK, work, peers, device
        if (counted := work_by_counts(analyses, peers)) is not None:
            yield COUNTS, counted, peers, device
    # Chance, and what else runs, decide how much of equal copies overlaps with something, so only
    # longer copies count.
    copies = np.array([sum(one.duration_ns for one in analyses[r].copies) for r in own_time.ranks])
    usual = np.array([np.median(copies[list(group)]) for group in own_time.peers])
    longer = (copies >= LONGER_COPIES * np.maximum(usual, 1))[:, None]
    excess = np.maximum(own_time.excess[COPYING], 0)
    yield COPYING, np.where(longer, parts[COPYING], parts[COPYING] - excess), peers, host
    yield INPUT, parts[INPUT], all_ranks, host
    # A pair does not show which rank is usual, and idling for the CPU depends little on the stage.
    few = min(len(group) for group in peers) < FEWEST_PEERS
    yield HOST, parts[HOST], all_ranks if few else peers, host


def _limits(step_ns: float, lasting: float, cell: float) -> Limits:
    return Limits(
        lasting_ns=lasting * step_ns, cell_ns=cell * step_ns, again_ns=cell * step_ns, tests=5
    )


def _waits(analyses: Mapping[int, RankAnalysis], shape: tuple[int, ...]) -> Floats:
    """Exposed waiting of each rank in each step."""
    waits = np.zeros(shape)
    for row, analysis in zip(waits, analyses.values(), strict=True):
        inside = analysis.collective_step >= 0
        ns = np.maximum(analysis.exposed.wait_ns[inside], 0)
        steps = analysis.collective_step[inside]
        row += np.bincount(steps, weights=ns, minlength=len(row))[: len(row)]
    return waits


def _blocked(analyses: Mapping[int, RankAnalysis], shape: tuple[int, ...]) -> Floats:
    """Exposed communication of each rank in each step."""
    # A rank that idles early in a step delays collectives that overlap with the others' computation
    # at first. In the end they pay with exposed transfers of later collectives, not with waiting.
    blocked = np.zeros(shape)
    for row, analysis in zip(blocked, analyses.values(), strict=True):
        row[: len(analysis.steps)] = [step.exposed_comm_ns for step in analysis.steps]
    return blocked


def _paid(episode: Episode, wait: Floats | None, later: int = 0) -> float:
    """How much longer the others wait than the slow ranks, at most the excess of the slow ranks."""
    excess = episode.excess_ns
    most = excess.max(axis=0)
    if wait is None:
        return float(most.mean())
    paid = np.zeros(len(most))
    for step in np.flatnonzero(most > 0).tolist():
        slow = excess[:, step] > 0
        if not slow.all():
            seen = wait[:, step : step + 1 + later]
            longer = np.median(seen[~slow], axis=0) - np.median(seen[slow], axis=0)
            paid[step] = longer.max()
    return float(np.clip(paid, 0, most).mean())


def _is_hidden(episode: Episode, own_time: OwnTime) -> bool:
    """Whether most of the time that its ranks idle longer than the others is hidden."""
    hidden = own_time.hidden[list(episode.positions)]
    excess = episode.excess_ns[list(episode.positions)]
    return float(hidden[excess > 0].sum()) > float(excess[excess > 0].sum()) / 2


def work_by_counts(
    analyses: Mapping[int, RankAnalysis], peers: Sequence[tuple[int, ...]]
) -> Floats | None:
    """Time that each rank's kernels would take at the usual duration of each, ns, shape ``(P, S)``.

    None if the kernels of a rank are unknown. Ranks whose software chose another version of a
    kernel launch it equally often, so they have the same work. On CPUs one operator has many sizes,
    and the usual duration is that of the peers' launches. Launches above the peers' count there
    with the time that they add in the median step.
    """
    are_operators = all(analysis.is_cpu for analysis in analyses.values())
    known = [analysis.kernel_steps for analysis in analyses.values()]
    steps = [kernels for kernels in known if kernels is not None and kernels.names]
    if len(steps) != len(known) or len({kernels.count.shape[1] for kernels in steps}) != 1:
        return None
    result = np.zeros((len(steps), steps[0].count.shape[1]))
    for group in dict.fromkeys(peers):
        of_group = [steps[position] for position in group]
        usual = _usual_ns(of_group)
        result[list(group)] = [
            np.array([usual.get(name, 0.0) for name in kernels.names]) @ kernels.count
            for kernels in of_group
        ]
        if are_operators and len(group) > 1:
            result[list(group)] += _of_other_sizes(of_group, usual)
    return result


CLEARLY = 10.0
"""Time of a kernel, over the shortest that another rank lists, from which that rank would list it
if it ran it."""


def _usual_ns(ranks: Sequence[KernelSteps]) -> dict[str, float]:
    """Mean duration on the median rank, by kernel, of kernels that can be counted."""
    # Kernels that some ranks do not run get the mean duration of all of these, because they may be
    # versions of one kernel. Only the longest kernels of a rank are kept, so a kernel that a rank
    # seems not to run may have been cut off. It counts only if it is far longer than that.
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for kernels in ranks:
        total, count = kernels.total_ns.sum(axis=1).tolist(), kernels.count.sum(axis=1).tolist()
        for name, ns, number in zip(kernels.names, total, count, strict=True):
            found[name].append((ns, number))
    usual = {
        name: float(np.median([ns / max(number, 1) for ns, number in sums]))
        for name, sums in found.items()
        if len(sums) == len(ranks)
    }
    cut_off = [int(k.total_ns.sum(axis=1).min()) for k in ranks if len(k.names) >= MOST_NAMES]
    least = CLEARLY * max(cut_off, default=0)
    lone = {
        name: sums
        for name, sums in found.items()
        if name not in usual and max(ns for ns, _ in sums) >= least
    }
    sums = [one for several in lone.values() for one in several]
    of_lone = sum(ns for ns, _ in sums) / max(sum(number for _, number in sums), 1)
    return dict.fromkeys(lone, of_lone) | usual


MORE_LAUNCHES = 0.1
"""Launches above the peers', relative to theirs, from which a kernel is judged by its additional
launches: the time of the others differs by chance, which must not be charged to a few more."""

SMALLEST = 0.1
"""Shortest time of an additional launch, relative to a usual one: times are noisy, but the launch
is certain."""


def _of_other_sizes(ranks: Sequence[KernelSteps], usual: Mapping[str, float]) -> Floats:
    """Time that launches above the peers' take more or less than usual, shape ``(P, S)``, ns."""
    # Only for kernels that a rank launches more often than its peers in every step.
    result = np.zeros((len(ranks), ranks[0].count.shape[1]))
    for name in frozenset(ranks[0].names).intersection(*(kernels.names for kernels in ranks[1:])):
        rows = [kernels.names.index(name) for kernels in ranks]
        count = np.stack([k.count[row] for k, row in zip(ranks, rows, strict=True)])
        more = over_peers(count)
        lasting = (more > MORE_LAUNCHES * (count - more)).all(axis=1) & (count > more).all(axis=1)
        if not lasting.any():
            continue
        total = np.stack([k.total_ns[row] for k, row in zip(ranks, rows, strict=True)])
        each = np.median(over_peers(total)[lasting] / more[lasting], axis=1)
        other = np.maximum(each, SMALLEST * usual[name]) - usual[name]
        result[lasting] += more[lasting] * other[:, None]
    return result
