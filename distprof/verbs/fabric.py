"""Verdict, origin and tables of a fabric profile, ready to render."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, takewhile

from distprof.artefacts.fabric_file import (
    BOTH_WAYS,
    EITHER,
    SOCKETS,
    FabricCurve,
    FabricFile,
    FabricFit,
    FabricPoint,
)
from distprof.artefacts.record import grouped
from distprof.bounds import table_beside
from distprof.documents.document import Document
from distprof.documents.page import Page
from distprof.formats import RenderOptions
from distprof.hardware import load_sheet
from distprof.sections.table import Column, TableView, counted, present, rows_table
from distprof.units import (
    capitalized,
    format_bandwidth,
    format_bytes,
    format_flop,
    format_ratio,
    sentence,
)

_LOOSE_RATIO = 0.2
_BUMP_RATIO = 1.0
_SMALL_BYTES, _LATENCY_BYTES = 1 << 15, 1 << 18
"""Up to these sizes, a link and a collective show only their latency."""

_LARGE_BYTES, _FULL_BYTES, _MOST_ETHERNET, _MOST_CARD = 1 << 26, 1 << 29, 3.2e9, 12.5e9
"""From the first size on, Ethernet of 25 Gb/s is not faster than the third, and a card of 100 Gb/s
not than the fourth; from the second on, links are full."""

_LINK_RATES = (10, 25, 40, 56, 100, 200, 400, 800)  # Gb/s
_FULL, _LESS, _ABOVE = 0.9, 0.75, 1.03
"""Shares: of a link that is full, of a GPU's memory as the slower one, and of a card's loopback."""

_MUCH = 0.25
"""Share of the best bandwidth from which on a smaller one of a larger message is no latency."""

_ALIKE = 0.9
"""Share of another speed from which on two are alike."""

_PREFERRED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_OF_A_NODE = (*_PREFERRED[:3], "broadcast", "reduce")
"""Operations whose bus bandwidth is that of a node, not that of each rank."""


_TABLE = table_beside(__package__, "fabric.toml")
_say = partial(sentence, _TABLE)


def fabric_verdict(profile: FabricFile) -> str:
    """The most informative curve in one sentence."""
    measured = [curve for curve in profile.curves if curve.points]
    if not measured:
        return _of_device(profile) or "The profile has no measurements."
    if wrong := sum(curve.num_wrong for curve in measured):
        kinds = dict.fromkeys(_short_kind(curve) for curve in measured if curve.num_wrong)
        return _say("wrong", times=counted(wrong, "measurement"), kinds=", ".join(kinds))
    curve = min(measured, key=_rank_of)
    if profile.origin == "perftest":
        return _of_link(measured, is_both_ways=BOTH_WAYS in profile.notes)
    if profile.num_copies > 1:
        return _say("copies", tests=profile.num_copies, where=_where(curve))
    runs = [c for c in measured if c.kind == curve.kind and not c.in_place]
    text = _compared(runs) or _speed(curve, profile)
    if EITHER in profile.notes:
        text = text.replace("all_gather", "all_gather or all_to_all", 1)
    return text if text.startswith(curve.kind) else capitalized(text)


def _compared(runs: Sequence[FabricCurve]) -> str:
    """Which of several runs of a test is slower, at their largest common size; empty for one."""
    speeds = [{p.bytes: p.busbw_bytes_per_s for p in run.points} for run in runs]
    common = set.intersection(*map(set, speeds)) if len(runs) > 1 else set()
    if not common:
        return ""
    sizes = [size for size in sorted(common) if size > _LATENCY_BYTES] or [max(common)]
    if 2 * max(of[sizes[-1]] for of in speeds) < max(chain(*(of.values() for of in speeds))):
        return ""  # what they share shows the latency alone
    shares = {
        size: min(of[size] for of in speeds) / max(of[size] for of in speeds) for size in sizes
    }
    size = sizes[-1] if shares[sizes[-1]] < _ALIKE else min(sizes, key=shares.__getitem__)
    ways = [_where(run) for run in runs]
    names = [run.label or f"run {number}" for number, run in enumerate(runs, start=1)]
    names = ways if len(set(ways)) == len(ways) else names
    ordered = sorted((speed[size], name) for speed, name in zip(speeds, names, strict=True))
    (least, slow), *_, (most, fast) = ordered
    is_of_sizes = names is ways
    subject = runs[0].kind if is_of_sizes else _subject(runs[0])
    fast, slow = (f"over {fast} it", f"over {slow}") if is_of_sizes else (fast, slow)
    text = f"{subject} at {format_bytes(size)}: {fast} reaches {format_bandwidth(most)}"
    if least > _ALIKE * most:
        return f"{text}, and {slow} differs little ({format_bandwidth(least)})."
    is_known = runs[0].num_nodes and {run.num_nodes for run in runs} > {1}
    is_network = is_of_sizes and (is_known or not runs[0].num_nodes)
    why = _say("network" if is_network else "runs", probably="" if is_known else "probably ")
    return f"{text}, {slow} {format_bandwidth(least)}, {format_ratio(least / most)} of it: {why}."


def _of_device(profile: FabricFile) -> str:
    """What one device reaches alone; empty if that was not measured."""
    speeds = [f"{format_flop(rate.flops)}/s in {rate.dtype}" for rate in profile.rates]
    if profile.memory_bytes_per_s:
        speeds.append(f"{format_bandwidth(profile.memory_bytes_per_s)} in its memory")
    return f"{profile.device or 'One device'} reaches {', '.join(speeds)}." if speeds else ""


def _speed(curve: FabricCurve, profile: FabricFile) -> str:
    """The best bandwidth, and from which size on a collective comes near it."""
    best = max(curve.points, key=lambda p: p.busbw_bytes_per_s)
    largest = max(p.bytes for p in curve.points)
    if largest <= _LATENCY_BYTES:
        return _say("latency", what=_subject(curve), largest=largest)
    is_bus = curve.group_size > 0 or best.algbw_bytes_per_s != best.busbw_bytes_per_s
    reaches = _say("reaches", what=_subject(curve), best=best, bus=" bus bandwidth" * is_bus)
    is_large = curve.group_size > 1 and largest >= _LARGE_BYTES
    if (why := _why(curve, best, profile) if is_large else "").endswith("."):
        return reaches + why
    ordered = sorted(curve.points, key=lambda p: p.bytes, reverse=True)
    beyond = [*takewhile(lambda p: 2 * p.busbw_bytes_per_s < best.busbw_bytes_per_s, ordered)][::-1]
    of = "" if profile.origin == "nccl-tests" else " elsewhere"
    if (dip := _dip(curve, best)) and (dip[0].bytes < best.bytes or not beyond):
        return reaches + _say(f"dips{of}", dip=dip[0], before=dip[1])
    if beyond:
        slowest = min(p.busbw_bytes_per_s for p in beyond)
        of = " inside" * (curve.num_nodes == 1) + of
        return reaches + _say(f"falls{of}", slowest=slowest, beyond=beyond[0].bytes)
    reaches += why
    if curve.fit is not None and not _is_loose(curve.fit):
        return f"{reaches}. Below {format_bytes(curve.fit.crossover_bytes)}, it is latency-bound."
    rising = takewhile(lambda p: 2 * p.busbw_bytes_per_s < best.busbw_bytes_per_s, ordered[::-1])
    slow = max((p.bytes for p in rising), default=0)
    half = f", but less than half of that up to {format_bytes(slow)}" if slow else ""
    if best is ordered[0] and largest < _LARGE_BYTES // 4:
        grows = "it still grows there" if len(ordered) > 1 else "it is the only size"
        how = " (-e 4G)" * (profile.origin == "nccl-tests")
        half += f"; {grows}, so larger messages{how} show the full bandwidth"
    return f"{reaches}{half}."


def _why(curve: FabricCurve, best: FabricPoint, profile: FabricFile) -> str:
    """What the speed of large messages shows of links, a whole sentence if it is low; or empty."""
    signs = ("NCCL_", *(SOCKETS,) * (curve.num_nodes != 1)) if curve.num_nodes else ()
    if why := next((f". {note}" for note in profile.notes if note.startswith(signs)), ""):
        return why
    speed = best.busbw_bytes_per_s
    is_full = curve.kind in _PREFERRED[:3] and best.bytes >= _FULL_BYTES
    if curve.num_nodes == 1:
        for said, least, most, gpu, what in _TABLE["links"]:
            rate = load_sheet().gpu(gpu).scale_up_bandwidth if gpu else 1e9
            is_so = least <= speed / rate < most and (is_full or not gpu)
            if is_so and re.search(what, f"{profile.device} × {curve.group_size}"):
                return _say(said, rate=rate, share=speed / rate)
    is_of_node = curve.kind in _OF_A_NODE or curve.group_size == curve.num_nodes
    if (curve.num_nodes or 1) == 1 or not is_of_node:
        return ""
    slow = "ethernet" if speed < _MOST_ETHERNET else "between" if speed < _MOST_CARD else ""
    slow = slow or "between nodes" * is_full
    return _say(slow, rate=speed * 8 / 1e9) if slow else ""


def _dip(curve: FabricCurve, best: FabricPoint) -> tuple[FabricPoint, float] | None:
    """A size between a smaller one, whose speed follows, and the best that is much slower."""
    before = 0.0
    for each in sorted(curve.points, key=lambda p: p.bytes):
        is_slow = each.busbw_bytes_per_s < _LESS * before and each.bytes > _SMALL_BYTES
        if is_slow and before > _MUCH * best.busbw_bytes_per_s:
            return each, before
        before = max(before, each.busbw_bytes_per_s)
    return None


def _of_link(curves: Sequence[FabricCurve], *, is_both_ways: bool) -> str:
    """How much of the next usual rate of a link its speed is, and where to look if it is less."""
    largest = max(point.bytes for curve in curves for point in curve.points)
    if largest <= _SMALL_BYTES:
        return _say("message rate", largest=largest)
    of = {curve.memory: max(p.busbw_bytes_per_s for p in curve.points) for curve in curves}
    from_gpu, from_host = (of.get(memory, 0.0) * 8 / 1e9 for memory in ("GPU", "host"))
    if 0 < from_gpu < _LESS * from_host:
        return _say("memory", gpu=from_gpu, host=from_host)
    speed = max(from_gpu, from_host)
    if is_both_ways:
        return f"One link reaches {speed:.3g} Gb/s in both directions together."
    rate = next((rate for rate in _LINK_RATES if speed <= _ABOVE * rate), _LINK_RATES[-1])
    text = f"One link reaches {speed:.3g} Gb/s, {format_ratio(speed / rate)} of {rate} Gb/s"
    return text + _say("full" if speed >= _FULL * rate else "card")


def _rank_of(curve: FabricCurve) -> tuple[int, int, int]:
    place = _PREFERRED.index(curve.kind) if curve.kind in _PREFERRED else len(_PREFERRED)
    return place, -curve.group_size, -max(point.bytes for point in curve.points)


def fabric_sentences(profile: FabricFile) -> Iterator[str]:
    """Notes, one sentence each: loose fits, and the profile's own notes."""
    if profile.curves and (alone := _of_device(profile)):
        yield alone
    refused: dict[str, list[str]] = {}
    for curve in profile.curves:
        if (fit := curve.fit) is None:
            refused.setdefault(curve.refusal, []).append(_name(curve))
        elif _is_loose(fit):
            yield _say("loose", name=_name(curve), fit=fit)
    for why, names in refused.items():
        yield f"No α and β for {'; '.join(dict.fromkeys(names))}: {why}."
    yield from profile.notes


def _is_loose(fit: FabricFit) -> bool:
    """Whether the times follow no straight line, so latency and crossover say little."""
    return fit.residual_ratio > _LOOSE_RATIO or fit.worst_ratio > _BUMP_RATIO


def fabric_tables(profile: FabricFile, *, show_all: bool) -> Iterator[TableView | None]:
    """Tables of α and β, then bandwidth by size; ``show_all`` adds every point with its spread."""
    yield rows_table(
        "Matrix products",
        (
            Column("type", "dtype", left=True),
            Column("reaches", lambda rate: f"{format_flop(rate.flops)}/s"),
            Column("rows", "size"),
        ),
        profile.rates,
        caption="the fastest size of square matrices",
    )
    yield rows_table(
        "Latency and bandwidth",
        _FIT,
        [curve for curve in profile.curves if curve.fit is not None],
        caption="fitted: time = steps · α + bus factor · bytes · β",
        notes=(_say("fits"),),
    )
    if show_all or len(profile.curves) == 1:
        yield from map(_point_table, profile.curves)
        return
    groups = grouped([((curve.group_size, curve.num_nodes), curve) for curve in profile.curves])
    yield from map(_size_table, groups.values())


def _bandwidths(fit: FabricFit) -> str:
    low, high = fit.bandwidth_low_bytes_per_s / 1e9, fit.bandwidth_high_bytes_per_s / 1e9
    return f"{low:.3g} to {high:.3g}"


def _size_table(curves: Sequence[FabricCurve]) -> TableView:
    """One row per size, one column per collective."""
    by_size = [
        {p.bytes: format_bandwidth(p.busbw_bytes_per_s).removesuffix(" GB/s") for p in curve.points}
        for curve in curves
    ]
    sizes = sorted({size for texts in by_size for size in texts})
    return TableView(
        title=f"Bus bandwidth over {_where(curves[0])}",
        caption="GB/s, by size of the full buffer",
        columns=(Column("size"), *(Column(_short(curve)) for curve in curves)),
        rows=tuple(
            (format_bytes(size), *(texts.get(size, "–") for texts in by_size)) for size in sizes
        ),
        notes=("--all adds times and spread.",),
    )


def _point_table(curve: FabricCurve) -> TableView | None:
    return rows_table(
        _name(curve),
        (
            Column("size", "bytes"),
            Column("time", "time_ns"),
            Column("quickest", "low_ns", wide_only=True),
            Column("slowest", "high_ns", wide_only=True),
            Column("algbw", "algbw_bytes_per_s"),
            Column("busbw", "busbw_bytes_per_s"),
            Column("off the fit", partial(_off, curve)),
        ),
        curve.points,
        caption="median of rounds" if any(p.low_ns for p in curve.points) else "",
        even_empty=True,
    )


def _off(curve: FabricCurve, p: FabricPoint) -> str:
    """Deviation from the fit, for example ``+7 %``; negative if the time is shorter."""
    if (fit := curve.fit) is None:
        return "–"
    start = fit.num_steps * fit.alpha_ns
    ratio = p.time_ns / (start * (1 + p.bytes / max(fit.crossover_bytes, 1))) - 1
    return f"{'+' if ratio >= 0 else '−'}{abs(100 * ratio):.0f} %"


def _short_kind(curve: FabricCurve) -> str:
    return "bandwidth" if curve.kind == "unknown" else curve.kind


def _short(curve: FabricCurve) -> str:
    run = _short_kind(curve) + (f" ({curve.label})" if curve.label else "")
    return f"{run}, in place" if curve.in_place else run


def _subject(curve: FabricCurve) -> str:
    """What a curve measures, for example “all_reduce over 8 ranks”."""
    of = "this test" if curve.kind == "unknown" else curve.kind
    return f"{of} over {_where(curve)}" if curve.group_size else of


def _name(curve: FabricCurve) -> str:
    return f"{_short(curve)}, {_where(curve)}"


def _where(curve: FabricCurve) -> str:
    ranks = counted(curve.group_size, "rank") if curve.group_size else "unknown ranks"
    known = {None: "", 1: " in one node"}
    return ranks + known.get(curve.num_nodes, f" across {curve.num_nodes} nodes")


_FIT = (
    Column("collective", _short, left=True),
    Column("over", _where, left=True, wide_only=True),
    Column("α per step", "fit.alpha_ns"),
    Column("95 %", lambda one: _say("latencies", fit=one.fit), left=True, wide_only=True),
    Column("1/β", "fit.bandwidth_bytes_per_s"),
    Column("95 %", lambda curve: _bandwidths(curve.fit), left=True, wide_only=True),
    Column("crossover", "fit.crossover_bytes"),
    Column("residual", "fit.residual_ratio"),
    Column("steps", "fit.num_steps", form="id"),
)


def _page(profile: FabricFile, options: RenderOptions) -> Page:
    ranks = counted(profile.world_size, "rank") if profile.world_size is not None else ""
    hosts = counted(len(set(profile.hosts)), "host") if profile.hosts else ""
    parts = (profile.origin, profile.device, profile.backend, ranks, hosts, profile.source)
    return Page(
        verdict=fabric_verdict(profile),
        origin=" · ".join(part for part in parts if part),
        sentences=tuple(fabric_sentences(profile)),
        tables=present(fabric_tables(profile, show_all=options.show_all)),
    )


FABRIC = Document(
    kind=FabricFile,
    noun="a fabric",
    fix="make it again with: distprof bench -o FILE",
    page=_page,
)
