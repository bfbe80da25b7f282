"""How fast a rank runs its kernels, and why it computes longer: a slower device, or more work.

The pace of a rank in a step is how much longer its kernels take than the same kernels usually do.
For each kernel it is the median of the ratios of its three quartiles, and for all kernels the ratio
that :data:`SLOW_DEVICE_SHARE` of the kernel time reaches. Launches with more or fewer thread blocks
than usual, such as those of experts, are not compared. Therefore ranks of different pipeline
stages, which run the same kernels in different numbers, can be compared.

A slow device slows all of its kernels. More work shows as more kernels, kernels with more thread
blocks, larger exchanges of tokens, or more tokens in the step log. If most but not all of the
kernel time is longer, without these signs, either can be the cause. If the work is known to be
equal, it is the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.escape import shorten
from distprof.join.waits import spans
from distprof.schema import ABSENT, Bools, Floats, Int64Array
from distprof.sections.computation.shapes import Sizes
from distprof.sections.context import KernelSteps, RankAnalysis
from distprof.sections.stragglers import EXPLAINS, STALL
from distprof.sections.stragglers.evidence import Cause
from distprof.sections.telemetry import RankTelemetry, TelemetryResult, WindowSensors
from distprof.terms import StragglerCause
from distprof.units import format_duration, format_ratio

SLOW_DEVICE_SHARE = 0.7
"""Share of kernel time that must be equally slower for a device to count as slow."""

EQUAL_GRIDS = 0.01
"""Relative difference in thread blocks up to which work is equal: only rounding."""

EQUAL_COUNTS = 0.005
"""Relative difference in launches, compared with the other kernels', up to which mixtures of sizes
are equal."""

WIDE = 1.1
"""Upper over lower quartile from which a kernel's launches have several sizes: launches of one size
differ only by noise, a few per cent."""

ENOUGH = 0.1
"""Share of the kernel time that must be comparable to show the pace of a device, which slows all of
its kernels."""

IN_COMMON = 0.5
"""Share of each rank's kernel time that must be in kernels that all ranks run, to compare all."""

_Rows: TypeAlias = "tuple[KernelSteps, list[int]]"
"""A rank's kernels, and the index of each common kernel among them."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """P ranks, S analysed steps."""

    # float64, shape ``(P, S)``: 1 is usual, more is slower. Never below 1, because a rank whose
    # experts get few tokens does not have a faster device.
    factor: Floats
    groups: tuple[tuple[int, ...], ...]  # Positions of ranks that can be compared with each other.


def pace_of(analyses: Mapping[int, RankAnalysis], peers: Sequence[tuple[int, ...]]) -> Pace | None:
    """The pace of each rank among all ranks if they have most kernels in common, else among peers.

    None if a rank has no kernels, or no two ranks can be compared.
    """
    steps = [analysis.kernel_steps for analysis in analyses.values()]
    known = [kernels for kernels in steps if kernels is not None and kernels.names]
    if not 2 <= len(known) == len(steps):
        return None
    if len({kernels.count.shape[1] for kernels in known}) != 1:
        return None
    common = _common(known)
    rows = {
        names: np.array([name in common for name in names])
        for names in {kernels.names for kernels in known}
    }
    totals = [(kernels.total_ns.sum(axis=1), rows[kernels.names]) for kernels in known]
    are_comparable = (
        min(float(ns[are_common].sum()) / max(float(ns.sum()), 1.0) for ns, are_common in totals)
        >= IN_COMMON
    )
    groups = (tuple(range(len(known))),) if are_comparable else tuple(dict.fromkeys(peers))
    groups = tuple(group for group in groups if len(group) > 1)
    factor = np.ones((len(known), known[0].count.shape[1]))
    for group in groups:
        factor[list(group)] = _factors([known[position] for position in group])
    return Pace(factor=factor, groups=groups) if groups else None


def _common(known: Sequence[KernelSteps]) -> Collection[str]:
    """Kernels that all ranks run."""
    return frozenset(known[0].names).intersection(*(kernels.names for kernels in known[1:]))


def _factors(known: Sequence[KernelSteps]) -> Floats:
    """Pace of ranks that can be compared, shape ``(P, S)``, from their K common kernels."""
    num_steps = known[0].count.shape[1]
    common = sorted(_common(known))
    if not common:
        return np.ones((len(known), num_steps))
    rows = {
        names: [names.index(name) for name in common]
        for names in {kernels.names for kernels in known}
    }
    pairs = [(kernels, rows[kernels.names]) for kernels in known]
    # In case half of the ranks are slow, the lower median of their quartiles is usual.
    usual_ns = _median(_over_steps(pairs, "quartile_ns", 0), 0, is_lower=True)
    usual_count = _median(_over_steps(pairs, "count", 0), 0)
    usual_blocks = _median(_over_steps(pairs, "blocks", ABSENT), 0)
    weight = _over_all(pairs)  # the same for all ranks, so more work does not weigh more
    left_out = _are_other_mixtures(pairs, usual_ns)
    reached = np.empty((len(known), num_steps))
    for steps in spans(num_steps, max(_CELLS // (len(known) * len(common)), 1)):
        quartiles, count, blocks = (
            np.stack([_known(getattr(k, name)[row, steps], absent) for k, row in pairs])
            for name, absent in (("quartile_ns", 0), ("count", 0), ("blocks", ABSENT))
        )
        ratio = _median(quartiles / usual_ns[None, :, None, :], 3)
        # With another number of launches than usual, the mean size may differ because another
        # layer is among them.
        resized = np.abs(blocks / usual_blocks[None, :, None] - 1) > EQUAL_GRIDS
        ratio[resized & (count == usual_count[None, :, None])] = np.nan
        ratio[left_out] = np.nan
        reached[:, steps] = _reached(ratio, weight)
    return np.maximum(reached, 1.0)


_CELLS = 1 << 20
"""Cells of rank, kernel and step that are processed at once."""


def _over_all(pairs: Sequence[_Rows]) -> Floats:
    """Medians of the common kernels' times over all steps of all ranks, of many kernels at once."""
    (first, row), *_ = pairs
    at_once = max(_CELLS // (len(pairs) * max(first.total_ns.shape[1], 1)), 1)
    parts = (
        np.stack([kernels.total_ns[rows[part]] for kernels, rows in pairs], axis=1)
        for part in spans(len(row), at_once)
    )
    return np.concatenate([np.median(part.reshape(len(part), -1), axis=1) for part in parts])


def _over_steps(pairs: Sequence[_Rows], name: str, absent: int) -> Floats:
    """Medians over the steps of each rank's common kernels, of many ranks at once."""
    (first, row), *_ = pairs
    at_once = max(_CELLS // max(getattr(first, name)[row].size, 1), 1)
    parts = (
        np.stack([getattr(kernels, name)[rows] for kernels, rows in pairs[part]])
        for part in spans(len(pairs), at_once)
    )
    return np.concatenate([_median(_known(part, absent), 2) for part in parts])


def _known(values: NDArray[np.signedinteger[Any]], absent: int) -> Floats:
    return np.where(values == absent, np.nan, values.astype(np.float64))


def _are_other_mixtures(pairs: Sequence[_Rows], usual: Floats) -> Bools:
    """Kernels whose launches have several sizes, in other proportions than on most ranks."""
    # Shape ``(P, K)``. One more launch can make the quartiles of such a mixture jump from one size
    # to another, for example if an output layer uses the same kernel. Ranks with more of the same
    # layers launch proportionally more of everything. Kernels of one size show how much more.
    launched = _over_steps(pairs, "count", ABSENT)
    relative = launched / np.maximum(np.median(launched, axis=0), 1)
    wide = ~(usual[:, 2] < WIDE * usual[:, 0])
    times = np.median(relative if wide.all() else relative[:, ~wide], axis=1)
    share = relative / np.maximum(times, 1e-9)[:, None]
    near = np.zeros(share.shape, dtype=np.int64)
    for kernel in np.flatnonzero(wide).tolist():
        near[:, kernel] = number_near(share[:, kernel])
    return (2 * near <= len(pairs)) & wide


def number_near(values: Floats) -> Int64Array:
    """For each value, the number of values that it differs from by at most ``EQUAL_COUNTS``.

    The difference is relative to those values, which are not negative, and each value counts
    itself. A bisection avoids memory and time quadratic in the number of ranks.
    """
    measure = np.sort(np.maximum(values, 1e-9))

    def first(is_over: Callable[[Floats], Bools]) -> Int64Array:
        """First sorted position whose relative difference, which falls, is not over a bound."""
        low = np.zeros(len(values), dtype=np.int64)
        high = np.full(len(values), len(values), dtype=np.int64)
        while (low < high).any():
            middle = np.minimum((low + high) // 2, len(values) - 1)
            over = is_over(values / measure[middle] - 1) & (low < high)
            high = np.where(over, high, np.minimum(middle, high))
            low = np.where(over, middle + 1, low)
        return low

    return first(lambda off: off >= -EQUAL_COUNTS) - first(lambda off: off > EQUAL_COUNTS)


def _median(values: Floats, axis: int, *, is_lower: bool = False) -> Floats:
    """Median of the known values, of an even number the lower one if asked; NaN without any."""
    count = (~np.isnan(values)).sum(axis=axis)
    ordered = np.sort(values, axis=axis)  # NaN last
    low = np.maximum(count - 1, 0) // 2
    high = low if is_lower else count // 2

    def at(place: Int64Array) -> Floats:
        taken = np.take_along_axis(ordered, np.expand_dims(place, axis), axis=axis)
        return taken.squeeze(axis)

    return (at(low) + at(high)) / 2


def _reached(ratio: Floats, weight: Floats) -> Floats:
    """Ratio that :data:`SLOW_DEVICE_SHARE` of the weight reaches; 1 if too few are known."""
    order = np.argsort(ratio, axis=1)  # NaN last
    ordered = np.take_along_axis(ratio, order, axis=1)
    held = np.where(np.isnan(ordered), 0.0, weight[order])
    whole = held.sum(axis=1)
    share = np.cumsum(held, axis=1) / np.maximum(whole[:, None], 1.0)
    place = (share > 1 - SLOW_DEVICE_SHARE).argmax(axis=1)[:, None]
    taken = np.take_along_axis(ordered, place, axis=1)[:, 0]
    return np.where(np.isnan(taken) | (whole < ENOUGH * weight.sum()), 1.0, taken)


EXPERTS = "experts"
"""Detail of a cause: the rank's experts get more tokens."""

STALLS = 0.8
"""Share of the excess computation that such launches must explain."""

SLOWER = 1.03
"""Kernel time relative to peers from which a device counts as slow, or its work as more."""

PARTLY = 0.5
"""Share of equally slower kernel time below which the device is not to blame."""

MORE_TOKENS = 1.15
"""Tokens exchanged relative to peers from which experts count as busier."""

GROWTH = 3
"""Highest power of a kernel's thread blocks that its time grows with: attention's grows with the
second, and some kernels round their blocks."""

LOWER_CLOCK = 0.97
"""Clock relative to the peers' median up to which it counts as low."""

MORE_THROTTLED = 0.2
"""Share of throttled samples above the peers' median from which a GPU counts as throttled."""

HOTTER_C = 8
"""Degrees above the peers' median from which a temperature is worth a sentence."""

_Figures: TypeAlias = RankTelemetry | WindowSensors
"""Sensors of the whole run, or of the analysed steps."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Measures of the rank's work, relative to its peers' median."""

    tokens: float | None = None  # Tokens in the step logs; None if they are not logged.
    exchanged: float | None = None  # Tokens or bytes in all-to-alls; None if there are none.
    sizes: Sizes | None = None  # Inputs of its operators; None if they are not recorded.


class _Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's kernels in some steps, compared with the same kernels of its peers."""

    ratio: Floats  # Mean duration over the peers' median, per shared kernel.
    weight_ns: Floats  # The peers' time, per shared kernel.
    count_ratio: float  # Kernels launched over the peers' median, weighted with their time.
    time_ratio: float  # All shared kernels' durations over the peers', at equal counts.
    # Thread blocks per launch over the peers' median, per shared kernel; NaN if they are not
    # recorded.
    grid_ratio: Floats
    # Time in kernels that most peers do not run at all, over the peers' time. Other versions of the
    # peers' kernels, launched equally often, do not count.
    extra_ratio: float = 0.0
    stall: str = ""  # What a few launches of one kernel took too long, if that explains the excess.

    @property
    def larger(self) -> Bools:
        """Kernels whose longer time can be explained by more thread blocks."""
        grown = self.grid_ratio > 1 + EQUAL_GRIDS
        return grown & (self.grid_ratio**GROWTH >= self.ratio)

    @property
    def is_larger(self) -> bool:
        """Whether larger kernels explain the excess time of all kernels."""
        excess = np.maximum(self.ratio - 1, 0) * self.weight_ns
        return bool(excess[self.larger].sum() >= EXPLAINS * excess.sum() > 0)

    def share(self, kernels: Bools) -> float:
        """Share of ``kernels`` in the peers' kernel time."""
        return float(self.weight_ns[kernels].sum() / max(self.weight_ns.sum(), 1.0))

    @property
    def slower_share(self) -> float:
        """Share of kernel time slower by at least half of the mean slowdown, or of the median."""
        if not self.weight_ns.sum():
            return 0.0
        order = np.argsort(self.ratio)
        middle = np.searchsorted(np.cumsum(self.weight_ns[order]), self.weight_ns.sum() / 2)
        usual = float(self.ratio[order][min(middle, len(order) - 1)])
        slower = min(self.time_ratio, usual) if usual >= SLOWER else self.time_ratio
        much = self.ratio >= (1 + slower) / 2
        return float(self.weight_ns[much].sum() / self.weight_ns.sum())


def why_it_computes_longer(
    rank: int, longer: float, steps: Sequence[int], analyses: Mapping[int, RankAnalysis], work: Work
) -> Cause:
    """Slow device, more work, or unknown which of the two.

    ``longer`` is its computation above its peers' in the late steps, relative to theirs. If this
    excess is small, kernels need to explain only :data:`EXPLAINS` of it.
    """
    if work.tokens is not None and work.tokens - 1 >= EXPLAINS * longer:
        why = f"it trains on {work.tokens:.3g} times as many tokens as its peers"
        return _more(why, "tokens")
    is_busy = (work.exchanged or 0.0) >= MORE_TOKENS
    if work.sizes is not None and work.sizes.larger_ratio >= EXPLAINS * longer > 0:
        # Tokens of a busy expert enlarge only the experts' operators, larger inputs all.
        if is_busy and work.sizes.larger_share < SLOW_DEVICE_SHARE:
            return _more(f"{work.sizes.larger}; {_exchanges(work)}", EXPERTS)
        return _more(work.sizes.larger, "inputs")
    compared = _compare(rank, steps, analyses)
    if compared is None:
        why = "its kernels cannot be compared with its peers'"
        return Cause(StragglerCause.UNKNOWN, (why,))
    if compared.is_larger and compared.time_ratio - 1 >= EXPLAINS * longer:
        larger = compared.larger
        blocks = np.average(compared.grid_ratio[larger], weights=compared.weight_ns[larger])
        why = f"its slower kernels have {blocks:.2f} times the thread blocks of its peers'"
        if is_busy and compared.share(larger) < SLOW_DEVICE_SHARE:
            return _more(f"{why}; {_exchanges(work)}", EXPERTS)
        return _more(why, "inputs")
    if compared.extra_ratio >= EXPLAINS * longer:
        share = format_ratio(compared.extra_ratio)
        return _more(f"kernels that its peers do not run add {share} to the kernel time")
    is_equally_slower = compared.slower_share >= SLOW_DEVICE_SHARE
    launches_more = compared.count_ratio >= min(SLOWER, 1 + EXPLAINS * longer)
    explains = compared.count_ratio - 1 >= EXPLAINS * longer
    if explains or (launches_more and not is_equally_slower):
        return _more(f"it launches {compared.count_ratio:.2f} times as many kernels as its peers")
    if compared.stall:
        why = f"{compared.stall}, with as many thread blocks as on its peers"
        return Cause(StragglerCause.SLOW_DEVICE, (why,), detail=STALL, confidence=0.8)
    if compared.time_ratio < min(SLOWER, 1 + EXPLAINS * longer):
        return _more("its kernels are as fast as its peers', so it has more work")
    return _by_kernels(compared, work)


def _more(why: str, detail: str = "") -> Cause:
    return Cause(StragglerCause.MORE_WORK, (why,), detail, 0.95, is_counted=True)


def _by_kernels(compared: _Compared, work: Work) -> Cause:
    """Judge by the share of kernel time that is equally slower, and by the known work."""
    slower_share = compared.slower_share
    text = (
        f"its kernels take {compared.time_ratio:.3g} times as long as the same kernels of its "
        f"peers, equally in {format_ratio(slower_share)} of the kernel time"
    )
    if slower_share >= SLOW_DEVICE_SHARE:
        return Cause(StragglerCause.SLOW_DEVICE, (text,), confidence=min(slower_share, 0.99))
    if (work.exchanged or 0.0) >= MORE_TOKENS:
        return _more(f"{text}; {_exchanges(work)}", EXPERTS)
    if what := _equal(compared, work):
        why = f"{text}; kernel counts and {what} are equal, so the hardware is slower"
        return Cause(StragglerCause.SLOW_DEVICE, (why,), confidence=0.8)
    if slower_share >= PARTLY:
        why = f"{text}: slower hardware or more work"
        return Cause(StragglerCause.UNKNOWN, (why,))
    why = f"{text}: larger inputs, not slower hardware"
    return Cause(StragglerCause.MORE_WORK, (why,), confidence=1 - slower_share)


def _exchanges(work: Work) -> str:
    return f"its experts exchange {work.exchanged:.2f} times the tokens of its peers"


def _equal(compared: _Compared, work: Work) -> str:
    """What shows that the rank has the same work, in as many kernels; empty if nothing does."""
    if abs(compared.count_ratio - 1) >= SLOWER - 1:
        return ""
    if work.tokens is not None:
        return "tokens" if abs(work.tokens - 1) < SLOWER - 1 else ""
    if compared.slower_share < PARTLY:
        return ""
    if work.sizes is not None and work.sizes.are_equal:
        return "inputs"
    same_blocks = np.abs(compared.grid_ratio - 1) <= EQUAL_GRIDS
    return "thread blocks" if compared.share(same_blocks) >= SLOW_DEVICE_SHARE else ""


def _compare(
    rank: int, steps: Sequence[int], analyses: Mapping[int, RankAnalysis]
) -> _Compared | None:
    own = analyses[rank].kernel_steps
    others = [a.kernel_steps for other, a in analyses.items() if other != rank]
    if own is None or not others or not len(steps):
        return None
    mine = _of_steps(own, steps)
    theirs = [_of_steps(kernels, steps) for kernels in others if kernels is not None]
    rows = []
    for name, (count, total, blocks) in mine.items():
        peers = np.array([cell[name] for cell in theirs if name in cell], dtype=np.float64)
        if 2 * len(peers) >= len(theirs) and len(peers):
            usual = float(np.median(peers[:, 1] / peers[:, 0]))
            grid = blocks / count / np.median(peers[:, 2] / peers[:, 0])
            rows.append((total / count / max(usual, 1.0), grid, count, *np.median(peers, axis=0)))
    if not rows:
        return None
    ratio, grid_ratio, count, their_count, their_total, _ = np.array(rows, dtype=np.float64).T
    whole = max(float(their_total.sum()), 1.0)
    return _Compared(
        ratio=ratio,
        weight_ns=their_total,
        count_ratio=float((count / their_count * their_total).sum() / whole),
        time_ratio=float((ratio * their_total).sum() / whole),
        grid_ratio=grid_ratio,
        extra_ratio=_extra_ns(mine, theirs) / whole,
        stall=_stall(own, steps, mine, theirs),
    )


_Cells: TypeAlias = Mapping[str, tuple[int, int, float]]
"""Count, total time and thread blocks by kernel name."""


def _extra_ns(mine: _Cells, theirs: Sequence[_Cells]) -> float:
    """Time in kernels that fewer than half of the peers run, less versions of peers' kernels."""
    alone = {name for name in mine if 2 * sum(name in cell for cell in theirs) < len(theirs)}
    count = sum(mine[name][0] for name in alone)
    replaced = [
        sum(number for name, (number, _, _) in cell.items() if name not in mine) for cell in theirs
    ]
    rest = 1 - float(np.median(replaced)) / max(count, 1)
    return sum(mine[name][1] for name in alone) * max(rest, 0.0)


def _stall(own: KernelSteps, steps: Sequence[int], mine: _Cells, theirs: Sequence[_Cells]) -> str:
    """The kernel of which a few launches took too long; empty unless they explain the excess."""
    launches = {
        name: np.array([[ns / n, blocks / n] for n, ns, blocks in peers])
        for name in mine
        if (peers := [cell[name] for cell in theirs if name in cell])
    }
    excess = {
        name: mine[name][1] - mine[name][0] * float(np.median(each[:, 0]))
        for name, each in launches.items()
    }
    more = sum(ns for ns in excess.values() if ns > 0)
    name = max(excess, key=lambda kernel: excess[kernel], default="")
    if not name or excess[name] < STALLS * more:
        return ""
    count, total, blocks = mine[name]
    usual, grid = np.median(launches[name], axis=0)
    row, chosen = own.names.index(name), [s for s in steps if s < own.count.shape[1]]
    launched = own.count[row, chosen]
    typical = float((own.quartile_ns[row, chosen, 1] * launched).sum()) / max(count, 1)
    is_same = abs(blocks / count / grid - 1) <= EQUAL_GRIDS  # False if unknown
    if not is_same or typical > (1 + EXPLAINS * (SLOWER - 1)) * usual or total < 2 * count * usual:
        return ""
    longer = format_duration(round(excess[name] / max(len(chosen), 1)))
    return f"{shorten(name, 60)} takes {longer} longer in a few launches of a late step"


def _of_steps(kernels: KernelSteps, steps: Sequence[int]) -> dict[str, tuple[int, int, float]]:
    """Count, total time and thread blocks (NaN if unknown) in these steps, by kernel name."""
    chosen = [step for step in steps if step < kernels.count.shape[1]]
    count: Int64Array = kernels.count[:, chosen].sum(axis=1)
    total: Int64Array = kernels.total_ns[:, chosen].sum(axis=1)
    cells = kernels.blocks[:, chosen].astype(np.float64)
    blocks = np.where(cells == ABSENT, np.nan, cells).sum(axis=1)
    columns = (count.tolist(), total.tolist(), blocks.tolist())
    return {
        name: (number, ns, num_blocks)
        for name, number, ns, num_blocks in zip(kernels.names, *columns, strict=True)
        if number
    }


# Sensors ------------------------------------------------------------------------------------------


def sensed_difference(
    rank: int, peers: Sequence[int], telemetry: TelemetryResult | None
) -> tuple[tuple[str, ...], str]:
    """Sentences on throttling, clock and temperature that differ from the peers', and the detail.

    The detail is ``throttled``, ``low_clocks`` or empty.
    """
    rows = {row.rank: row for row in telemetry.ranks} if telemetry is not None else {}
    others = [rows[peer] for peer in peers if peer != rank and peer in rows]
    if rank not in rows or not others:
        return (), ""
    # Throttling before or after the analysed steps does not explain why these were slow.
    own: _Figures = rows[rank].in_steps or rows[rank]
    compared: Sequence[_Figures] = [row.in_steps for row in others if row.in_steps is not None]
    if own is rows[rank] or not compared:
        own, compared = rows[rank], others

    def usual(field: str) -> float | None:
        figures = [number for row in compared if (number := getattr(row, field)) is not None]
        return float(np.median(figures)) if figures else None

    texts, details = [], []
    share, median = own.throttled_ratio, usual("throttled_ratio")
    if share is not None and median is not None and share - median >= MORE_THROTTLED:
        reasons = own.throttle_reasons
        named = ", ".join(sorted(reasons, key=lambda reason: -reasons[reason]))
        details.append("throttled")
        texts.append(
            f"its GPU is throttled in {format_ratio(share)} of the samples "
            f"({named or 'reason unknown'}), compared with a median of {format_ratio(median)} on "
            "its peers"
        )
    clock, median = own.sm_clock_mhz_median, usual("sm_clock_mhz_median")
    if clock is not None and median and clock <= LOWER_CLOCK * median:
        details.append("low_clocks")
        texts.append(
            f"its clock is {clock} MHz, compared with a median of {median:.0f} MHz on its peers"
        )
    heat, median = own.temperature_c_max, usual("temperature_c_max")
    if heat is not None and median is not None and heat >= median + HOTTER_C:
        texts.append(
            f"its temperature reaches {heat} °C, compared with a median of {median:.0f} °C on its "
            "peers"
        )
    return tuple(texts), next(iter(details), "")
