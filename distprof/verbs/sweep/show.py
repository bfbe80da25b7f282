"""Verdict, sentences and tables of a sweep, ready to render."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from distprof.costs.scaling import LAW_NAMES
from distprof.documents.document import Document
from distprof.documents.page import Page, Priced
from distprof.formats import RenderOptions
from distprof.sections.table import Bar, Column, Drawing, TableView, counted, present, rows_table
from distprof.units import format_duration, format_ratio, signed
from distprof.verbs import PARTS
from distprof.verbs.sweep import (
    CAUSES,
    ScalingLaw,
    ScalingLoss,
    ScalingPrediction,
    ScalingReport,
    ScalingResult,
    ScalingSize,
    says,
)

LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}
"""Short names of the laws."""
_PARAMETERS = {"serial": "s", "sigma": "σ", "kappa": "κ"}

_GLYPHS = {part.cause: part.glyph for part in PARTS.values()}

_MOST_SIZES = 6
WIDEST = 4.0  # maximum ratio of the ends of an interval: two repeats give wider ones
_VAGUE = 0.3  # maximum width of an interval of efficiency that still predicts anything
_NEAR = 0.02  # maximum deviation from the largest size, beyond noise, for an extrapolation
_UNSTEADY = 1.25  # ratio of repeats above which the machine is probably busy
_LEAST_SHARE = 0.0005  # share of the step: smaller causes are shown together


def scaling_verdict(scaling: ScalingResult) -> str:
    """Efficiency at the largest size, and the main cause of the loss."""
    if not scaling.sizes:
        return "Not a sweep: " + (" ".join(scaling.unavailable) or "there are no runs.")
    largest = scaling.sizes[-1]
    ends = _efficiency_interval(largest)
    efficiency = f"{format_ratio(largest.efficiency)}{f' ({ends} %)' if ends else ''}"
    ranks = counted(largest.num_ranks, "rank")
    found = {"ranks": ranks, "efficiency": efficiency, "scaling": scaling, "size": largest}
    verdict = says("verdict", **found)
    main = max(largest.losses, key=lambda loss: loss.lost_ns, default=None)
    if main is None or largest.lost_ns <= 0 or 3 * main.lost_ns < largest.lost_ns:
        return f"{verdict}."
    if main.lost_ns > largest.lost_ns:
        lost = f"{signed(main.lost_ns)}, while other parts shrank"
    else:
        lost = f"{signed(main.lost_ns)} of the {signed(largest.lost_ns)} lost"
    return f"{verdict}. Main cause: {main.cause}, {lost}."


def scaling_sentences(scaling: ScalingResult) -> Iterator[str]:
    """The kind of scaling, the extrapolation, and missing data."""
    if not scaling.sizes:
        return
    yield scaling.how
    yield from _unsteady(scaling.sizes)
    yield from _beyond(scaling)
    yield from scaling.unavailable


def _unsteady(sizes: Sequence[ScalingSize]) -> Iterator[str]:
    """A warning about the size whose repeats differ most, if they differ much."""
    spread = [
        (max(size.run_step_ns) / least, size.num_ranks, least, max(size.run_step_ns))
        for size in sizes
        if len(size.run_step_ns) > 1 and (least := min(size.run_step_ns)) > 0
    ]
    ratio, ranks, least, most = max(spread, key=itemgetter(0), default=(0.0, 0, 0, 0))
    if ratio > _UNSTEADY:
        yield says("unsteady", ranks=counted(ranks, "rank"), least=least, most=most)


def _beyond(scaling: ScalingResult) -> Iterator[str]:
    """Extrapolation of the best-fitting law, or why there is none."""
    largest = scaling.sizes[-1]
    following = [law for law in scaling.laws if follows(law, largest)]
    if following:
        best = min(following, key=lambda law: law.residual_ratio)
        yield from _extrapolation(best, largest.num_ranks)
    elif scaling.laws:
        fitted = " and ".join(
            f"{format_ratio(at.efficiency)} by {LAW_NAMES.get(law.law, law.law)}"
            for law in scaling.laws
            if (at := _at(law, largest.num_ranks))
        )
        ranks = counted(largest.num_ranks, "rank")
        yield says("no law", ranks=ranks, size=largest, fitted=fitted)


def follows(law: ScalingLaw, largest: ScalingSize) -> bool:
    """Whether a law is close enough to the largest measured size to extrapolate."""
    at = _at(law, largest.num_ranks)
    if at is None or law.notes:
        return False
    low, high = largest.efficiency_low, largest.efficiency_high
    noise = 0.0 if low is None or high is None else (high - low) / 2
    return abs(at.efficiency - largest.efficiency) <= noise + _NEAR * largest.efficiency


def _at(law: ScalingLaw, num_ranks: int) -> ScalingPrediction | None:
    return next((one for one in law.predictions if one.num_ranks == num_ranks), None)


def _extrapolation(law: ScalingLaw, largest: int) -> Iterator[str]:
    """Predictions of the law, as far as the measurements determine them."""
    beyond = [one for one in law.predictions if one.is_extrapolated]
    certain = [one for one in beyond if one.high - max(one.low, 0) < _VAGUE]
    if beyond and not certain:
        ranks, ends = counted(largest, "rank"), _ends(beyond[0])
        yield says("vague", ranks=ranks, first=beyond[0], ends=ends)
        return
    if certain:
        values = "; ".join(f"{one.num_ranks:,} ranks {_interval(one)}" for one in certain)
        name = LAW_NAMES.get(law.law, law.law)
        yield says("continues", law=name, values=values)
    if law.peak_ranks is None:
        return
    peak = max(round(law.peak_ranks), 1)
    low = max(round(law.peak_low or 1), 1)
    upto = f"{low:,} to {law.peak_high:,.0f}" if law.peak_high is not None else f"{low:,} or more"
    where = "" if peak <= largest else ", beyond the measured sizes"
    yield f"By that law, the job is fastest on {counted(peak, 'rank')} ({upto}){where}."


def _interval(one: ScalingPrediction) -> str:
    return f"{format_ratio(one.efficiency)} ({_ends(one)})"


def _ends(one: ScalingPrediction) -> str:
    low, high = format_ratio(max(one.low, 0)), format_ratio(one.high)
    return f"{low.removesuffix(' %')} to {high}"


def scaling_tables(scaling: ScalingResult, *, show_all: bool) -> Iterator[TableView | None]:
    """Tables of sizes, losses (drawn and in numbers) and laws."""
    if not scaling.sizes:
        return
    yield _sizes_table(scaling)
    lossy = [size for size in scaling.sizes if size.losses]
    if lossy:
        yield _drawn_table(lossy)
        yield _losses_table(lossy, show_all=show_all)
    yield rows_table(
        "Laws",
        _LAW,
        scaling.laws,
        caption="fitted to all runs; off by: median deviation of the runs",
        notes=dict.fromkeys(note for law in scaling.laws for note in law.notes),
    )
    yield _extrapolation_table([law for law in scaling.laws if follows(law, scaling.sizes[-1])])


def _sizes_table(scaling: ScalingResult) -> TableView | None:
    return rows_table(
        "Efficiency",
        (
            Column("ranks", "num_ranks"),
            Column("runs", "num_repeats", form="id", wide_only=True),
            Column("step", "step_ns"),
            Column("95 %", _step_interval, left=True, wide_only=True),
            Column(f"{scaling.unit}/s", _throughput),
            Column("speed-up", lambda size: f"{size.speedup:.2f} of {size.ideal_speedup:g}"),
            Column("efficiency", "efficiency", form="ratio"),
            Column("95 %", _efficiency_interval, left=True),
            Column("", lambda size: Bar(ratio=size.efficiency, key="computation"), left=True),
        ),
        scaling.sizes,
        caption=f"{scaling.mode} scaling, over {scaling.baseline_ranks}; 95 % intervals",
        notes=_size_notes(scaling.sizes),
    )


def _throughput(size: ScalingSize) -> str:
    rate = size.throughput_per_s
    return f"{rate:,.0f}" if rate >= 1_000 else f"{rate:.4g}"


def _size_notes(sizes: Sequence[ScalingSize]) -> Iterator[str]:
    if any(size.is_traced for size in sizes):
        yield "Steps were measured under a profiler, which makes them longer."
    if any(size.efficiency_low is not None and not _efficiency_interval(size) for size in sizes):
        yield says("wide intervals")


def _step_interval(size: ScalingSize) -> str:
    low, high = size.step_low_ns, size.step_high_ns
    is_known = low is not None and high is not None and high <= WIDEST * low
    return f"{format_duration(low)} to {format_duration(high)}" if is_known else ""


def _efficiency_interval(size: ScalingSize) -> str:
    low, high = size.efficiency_low, size.efficiency_high
    if low is None or high is None or high > WIDEST * low:
        return ""
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _drawn_table(sizes: Sequence[ScalingSize]) -> TableView | None:
    """One line per size: efficiency and the losses by cause, as shares of the step."""
    used = {loss.cause for size in sizes for loss in size.losses if loss.ratio > 0.005}
    legend = "  ".join(f"{glyph} {cause}" for cause, glyph in _GLYPHS.items() if cause in used)
    return rows_table(
        "Where efficiency is lost",
        (Column("ranks", "num_ranks"), Column("", _drawing, left=True)),
        sizes,
        caption="one line per step: # at full efficiency, then the losses",
        notes=(legend,) if legend else (),
    )


def _drawing(size: ScalingSize) -> Drawing:
    shares = [("#", min(size.efficiency, 1.0))]
    shares += [(_GLYPHS.get(loss.cause, "?"), max(loss.ratio, 0.0)) for loss in size.losses]
    whole = sum(share for _, share in shares) or 1.0

    def draw(width: int) -> str:
        line, done = "", 0.0
        for glyph, share in shares:
            done += share / whole
            line += glyph * (round(done * width) - len(line))
        return line

    return Drawing(draw)


def _losses_table(sizes: Sequence[ScalingSize], *, show_all: bool) -> TableView:
    """One row per cause, one column per size; columns add up to the loss."""
    shown = sizes if show_all else sizes[-_MOST_SIZES:]
    lost = [
        {name: [loss for loss in size.losses if loss.cause == name] for name in CAUSES.values()}
        for size in shown
    ]
    used = [
        name for name in CAUSES.values() if any(loss.lost_ns for of in lost for loss in of[name])
    ]
    least = 0.0 if show_all else _LEAST_SHARE
    small = [
        name for name in used if all(abs(loss.ratio) < least for of in lost for loss in of[name])
    ]
    rows = [_loss_row(name, [of[name] for of in lost]) for name in used if name not in small]
    if small:
        title = small[0] if len(small) == 1 else f"{len(small)} smaller causes"
        rows.append(
            _loss_row(title, [[loss for name in small for loss in of[name]] for of in lost])
        )
    rows.append(_loss_row("lost", [size.losses for size in shown]))
    largest = counted(shown[-1].num_ranks, "rank")
    sizes_named = [f"{size.num_ranks:,}" for size in shown]
    return TableView(
        title="Losses by cause",
        caption="share of the step by number of ranks; the parts add up",
        columns=(Column("", left=True), *map(Column, sizes_named), Column(f"on {largest}")),
        rows=tuple(rows),
        strong=frozenset({len(rows) - 1}),
        notes=("Parts come from traced steps, scaled to the steps without a profiler.",),
    )


def _loss_row(title: str, lost: Sequence[Sequence[ScalingLoss]]) -> tuple[str, ...]:
    """The share of the step at each size, and the time at the largest."""
    shares = [sum(loss.ratio for loss in losses) for losses in lost]
    return (
        title,
        *(f"{100 * share:.1f} %".replace("-0.0", "0.0").replace("-", "−") for share in shares),
        signed(sum(loss.lost_ns for loss in lost[-1])),
    )


def _extrapolation_table(laws: Sequence[ScalingLaw]) -> TableView | None:
    beyond = [[one for one in law.predictions if one.is_extrapolated] for law in laws]
    if not beyond or not all(beyond):
        return None
    return TableView(
        title="Beyond the measured sizes",
        caption="efficiency by each law; 95 % intervals of measurement error only",
        columns=(Column("ranks"), *(Column(LAWS.get(law.law, law.law), left=True) for law in laws)),
        rows=tuple(
            (f"{ones[0].num_ranks:,}", *map(_interval, ones)) for ones in zip(*beyond, strict=True)
        ),
    )


def _parameters(law: ScalingLaw) -> str:
    return ", ".join(
        f"{_PARAMETERS.get(p.name, p.name)} {p.value:.3g} ({p.low:.3g} to "
        + ("∞)" if p.high is None else f"{p.high:.3g})")
        for p in law.parameters
    )


_LAW = (
    Column("law", lambda law: LAWS.get(law.law, law.law), left=True),
    Column("parameters, 95 % intervals", _parameters, left=True, wrap=True),
    Column("off by", "residual_ratio"),
)


def _page(report: ScalingReport, options: RenderOptions) -> Page:
    print_ = report.fingerprint
    runs = counted(sum(size.num_repeats for size in report.scaling.sizes), "run")
    facts = (print_.strategy or print_.workload, print_.device, print_.backend, runs, report.source)
    costs = (one.cost_ns_per_step for one in report.findings)
    texts = ("" if ns is None else f"{format_duration(ns)} per step" for ns in costs)
    priced = tuple(map(Priced, report.findings, texts))
    return Page(
        verdict=scaling_verdict(report.scaling),
        origin=" · ".join(fact for fact in facts if fact),
        sentences=(*scaling_sentences(report.scaling), *report.notes),
        remarked=priced,
        tables=present(scaling_tables(report.scaling, show_all=options.show_all)),
    )


SCALING = Document(
    kind=ScalingReport,
    noun="a sweep",
    fix="make it again with: distprof scale --from DIR --format json",
    page=_page,
)
