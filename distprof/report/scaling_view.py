"""A sweep's verdict, sentences and tables, before somebody draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from distprof.analyzers.scaling.result import (
    CAUSES,
    ScalingLaw,
    ScalingLoss,
    ScalingPrediction,
    ScalingResult,
    ScalingSize,
)
from distprof.artefacts.summary_file import Fingerprint
from distprof.report.comparison_view import signed
from distprof.report.views.table import Bar, Cell, Drawing, TableColumn, TableView, counted
from distprof.units import format_duration, format_ratio

__all__ = ["scaling_headline", "scaling_sentences", "scaling_tables", "scaling_verdict"]

_LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}
_PARAMETERS = {"serial": "s", "sigma": "σ", "kappa": "κ"}
_GLYPHS = {
    "exposed transfer": "▓",
    "imbalance and stragglers": "▒",
    "pipeline bubble": "▞",
    "exposed communication, not split": "▓",
    "host": "░",
    "input": "·",
    "copies": "▚",
    "computation grew": "█",
    "other": "-",
}
_MOST_SIZES = 6
_WIDEST = 4.0  # an interval whose ends are further apart tells nothing: two repeats, for example


def scaling_verdict(scaling: ScalingResult) -> str:
    """Efficiency at the largest size, and where most of the loss goes."""
    if not scaling.sizes:
        return "No sweep: " + (" ".join(scaling.unavailable) or "there are no runs.")
    largest = scaling.sizes[-1]
    step, ideal = format_duration(largest.step_ns), format_duration(largest.ideal_step_ns)
    verdict = (
        f"{counted(largest.num_ranks, 'rank')} reach {_efficiency(largest)} of the efficiency of "
        f"{scaling.baseline_ranks} ({scaling.mode} scaling): a step takes {step}, at full "
        f"efficiency {ideal}"
    )
    main = _main_loss(largest)
    if main is None:
        return f"{verdict}."
    return f"{verdict}; {main.cause} makes {signed(main.lost_ns)} of {signed(largest.lost_ns)}."


def _efficiency(size: ScalingSize) -> str:
    ends = _telling(size.efficiency_low, size.efficiency_high)
    return f"{format_ratio(size.efficiency)}{f' ({ends} %)' if ends else ''}"


def _telling(low: float | None, high: float | None) -> str:
    """An interval in percent; empty where it is so wide that it tells nothing."""
    if low is None or high is None or high > _WIDEST * low:
        return ""
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _main_loss(size: ScalingSize) -> ScalingLoss | None:
    """The cause of at least a third of the loss; None where there is none."""
    most = max(size.losses, key=lambda loss: loss.lost_ns, default=None)
    if most is None or size.lost_ns <= 0 or 3 * most.lost_ns < size.lost_ns:
        return None
    return most


def scaling_headline(scaling: ScalingResult, print_: Fingerprint, source: str) -> str:
    """Where it comes from, in half a sentence."""
    runs = counted(sum(size.num_repeats for size in scaling.sizes), "run")
    facts = (print_.strategy or print_.workload, print_.device, print_.backend, runs, source)
    return " · ".join(fact for fact in facts if fact)


def scaling_sentences(scaling: ScalingResult) -> Iterator[str]:
    """What kind of scaling it is, what it extrapolates to, and what is not known."""
    if not scaling.sizes:
        return
    yield scaling.how
    best = _best_law(scaling)
    if best is not None:
        yield from _extrapolation(best)
    yield from scaling.unavailable


def _best_law(scaling: ScalingResult) -> ScalingLaw | None:
    return min(scaling.laws, key=lambda law: law.residual_ratio, default=None)


def _extrapolation(law: ScalingLaw) -> Iterator[str]:
    beyond = [one for one in law.predictions if one.is_extrapolated]
    if beyond:
        told = "; ".join(f"{one.num_ranks} ranks {_interval(one)}" for one in beyond)
        yield (
            f"If it goes on by {_LAWS.get(law.law, law.law)}'s law: {told}. The intervals hold the "
            "error of the measurements, not that of the law."
        )
    if law.peak_ranks is not None:
        upto = f"{law.peak_high:,.0f}" if law.peak_high is not None else "∞"
        low = f"{law.peak_low:,.0f}" if law.peak_low is not None else "?"
        yield f"Beyond {law.peak_ranks:,.0f} ranks ({low} to {upto}) more are slower, by that law."


def _interval(one: ScalingPrediction) -> str:
    low, high = format_ratio(max(one.low, 0)), format_ratio(one.high)
    return f"{format_ratio(one.efficiency)} ({low.removesuffix(' %')} to {high})"


def scaling_tables(scaling: ScalingResult, *, show_all: bool) -> Iterator[TableView]:
    """Sizes, losses drawn and in numbers, laws."""
    if not scaling.sizes:
        return
    yield _sizes_table(scaling)
    lossy = [size for size in scaling.sizes if size.losses]
    if lossy:
        yield _drawn_table(lossy)
        yield _losses_table(lossy, show_all=show_all)
    if scaling.laws:
        yield _laws_table(scaling.laws)


def _sizes_table(scaling: ScalingResult) -> TableView:
    unit = scaling.unit
    return TableView(
        title="Efficiency",
        caption=f"{scaling.mode} scaling, over {scaling.baseline_ranks}; 95 % intervals",
        columns=(
            TableColumn(title="ranks"),
            TableColumn(title="runs", wide_only=True),
            TableColumn(title="step"),
            TableColumn(title="95 %", left=True, wide_only=True),
            TableColumn(title=f"{unit}/s"),
            TableColumn(title="speed-up"),
            TableColumn(title="efficiency"),
            TableColumn(title="95 %", left=True),
            TableColumn(title="", left=True),
        ),
        rows=tuple(_size_row(size) for size in scaling.sizes),
        notes=tuple(_size_notes(scaling.sizes)),
    )


def _size_notes(sizes: Sequence[ScalingSize]) -> Iterator[str]:
    if any(size.is_traced for size in sizes):
        yield "Steps under a profiler: longer than they are without it."
    if any(
        size.efficiency_low is not None and not _telling(size.efficiency_low, size.efficiency_high)
        for size in sizes
    ):
        yield "Intervals that are left out tell nothing: there are too few repeats."


def _size_row(size: ScalingSize) -> tuple[Cell, ...]:
    low, high = size.step_low_ns, size.step_high_ns
    is_known = low is not None and high is not None and high <= _WIDEST * low
    step = f"{format_duration(low)} to {format_duration(high)}" if is_known else ""
    ends = _telling(size.efficiency_low, size.efficiency_high)
    return (
        f"{size.num_ranks:,}",
        str(size.num_repeats),
        format_duration(size.step_ns),
        step,
        f"{size.throughput_per_s:,.4g}",
        f"{size.speedup:.2f} of {size.ideal_speedup:g}",
        format_ratio(size.efficiency),
        ends,
        Bar(ratio=min(size.efficiency, 1.0), key="computation"),
    )


def _drawn_table(sizes: Sequence[ScalingSize]) -> TableView:
    """A line per size: efficiency, and what is lost to each cause, as shares of the step."""
    used = {loss.cause for size in sizes for loss in size.losses if loss.ratio > 0.005}
    legend = "  ".join(f"{glyph} {cause}" for cause, glyph in _GLYPHS.items() if cause in used)
    return TableView(
        title="Where the efficiency goes",
        caption="a step as one line: # at full efficiency, then what is lost",
        columns=(TableColumn(title="ranks"), TableColumn(title="", left=True)),
        rows=tuple((f"{size.num_ranks:,}", Drawing(_drawing(size))) for size in sizes),
        notes=(legend,) if legend else (),
    )


def _drawing(size: ScalingSize) -> Callable[[int], str]:
    def draw(width: int) -> str:
        line, done = "", 0.0
        shares = [("#", min(size.efficiency, 1.0))]
        shares += [(_GLYPHS.get(loss.cause, "?"), max(loss.ratio, 0.0)) for loss in size.losses]
        whole = sum(share for _, share in shares) or 1.0
        for glyph, share in shares:
            done += share / whole
            line += glyph * (round(done * width) - len(line))
        return line

    return draw


def _losses_table(sizes: Sequence[ScalingSize], *, show_all: bool) -> TableView:
    """Causes down, sizes across; columns add up to what is lost."""
    shown = sizes if show_all else sizes[-_MOST_SIZES:]
    causes = [
        cause
        for cause in CAUSES.values()
        if any(loss.lost_ns for size in shown for loss in size.losses if loss.cause == cause)
    ]
    lost = [{loss.cause: loss for loss in size.losses} for size in shown]
    rows = [(cause, *(_loss_text(of.get(cause)) for of in lost)) for cause in causes]
    rows.append(("lost", *(f"{signed(size.lost_ns)} {_share(size)}" for size in shown)))
    return TableView(
        title="What is lost, by cause",
        caption="time of a step, and share of it; the parts add up",
        columns=(
            TableColumn(title="", left=True),
            *(TableColumn(title=f"{size.num_ranks:,} ranks") for size in shown),
        ),
        rows=tuple(rows),
        strong=frozenset({len(rows) - 1}),
        notes=("Parts are of traced steps, scaled to the steps without a profiler.",),
    )


def _loss_text(loss: ScalingLoss | None) -> str:
    if loss is None:
        return "–"
    return f"{signed(loss.lost_ns)} {100 * loss.ratio:5.1f} %"


def _share(size: ScalingSize) -> str:
    return f"{100 * sum(loss.ratio for loss in size.losses):5.1f} %"


def _laws_table(laws: Sequence[ScalingLaw]) -> TableView:
    return TableView(
        title="Laws",
        caption="fitted to every run",
        columns=(
            TableColumn(title="law", left=True),
            TableColumn(title="parameters, 95 % intervals", left=True, wrap=True),
            TableColumn(title="off by"),
            TableColumn(title="beyond", left=True, wrap=True, wide_only=True),
        ),
        rows=tuple(
            (
                _LAWS.get(law.law, law.law),
                ", ".join(_parameter(p.name, p.value, p.low, p.high) for p in law.parameters),
                format_ratio(law.residual_ratio),
                "; ".join(
                    f"{one.num_ranks}: {_interval(one)}"
                    for one in law.predictions
                    if one.is_extrapolated
                ),
            )
            for law in laws
        ),
        notes=tuple(dict.fromkeys(note for law in laws for note in law.notes)),
    )


def _parameter(name: str, value: float, low: float, high: float | None) -> str:
    upto = f"{high:.3g}" if high is not None else "∞"
    return f"{_PARAMETERS.get(name, name)} {value:.3g} ({low:.3g} to {upto})"
