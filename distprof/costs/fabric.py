"""Fit α and β of a link to the times of a collective over sizes; predict the speed at a size.

Source: formula sheet, "Collectives". Times span six decades, so errors are relative; outliers get
little weight (Huber's weights, then Tukey's). If no single line fits the largest sizes, they alone
determine the bandwidth, and the smallest sizes the latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from distprof.artefacts.fabric_file import FabricCurve, FabricFile, FabricFit, FabricPoint, Tier
from distprof.costs.collectives import BucketTime, bus_factor, latency_steps
from distprof.costs.repeats import student_quantile
from distprof.schema import Floats
from distprof.terms import CollectiveKind
from distprof.units import format_bytes

MIN_SIZES = 5
"""Two unknowns, their errors, and one outlier."""

_MIN_IN_REGIME = 2
_REGIME_RATIO = 0.75  # share of latency, or of transfer, from which a size belongs to that regime
_HUBER, _TUKEY = 1.345, 4.685  # 95 % as efficient as least squares for normal errors
_ROUNDS = 20
_SATURATED_RATIO = 0.1
_TOP = 3  # largest sizes that must fit the line
_BENT_RATIO = 0.05
_CLEARLY_LATENCY = 0.1
_LEAST_ERROR = 1e-3  # no clock or machine reproduces a time more precisely


class NoFitError(ValueError):
    """The sizes do not determine latency and bandwidth; the message says why in one sentence."""


class _Line(msgspec.Struct, frozen=True):
    """time = start + slope · bytes, with the covariance of both."""

    start: float
    slope: float
    covariance: Floats


def point(
    kind: CollectiveKind,
    group_size: int,
    num_bytes: int,
    rounds_ns: Sequence[float],
    *,
    num_iterations: int | None = None,
) -> FabricPoint:
    """The measured point of one size, from the time of one operation in each round.

    ValueError if the kind has no bus factor or a time is not positive.
    """
    factor = bus_factor(kind, group_size)
    if factor is None or min(rounds_ns) <= 0:
        raise ValueError(f"{kind.label} in {min(rounds_ns)} ns has no bandwidth")
    time_ns = max(round(float(np.median(rounds_ns))), 1)
    has_spread = len(rounds_ns) > 1
    return FabricPoint(
        bytes=num_bytes,
        time_ns=time_ns,
        low_ns=round(min(rounds_ns)) if has_spread else None,
        high_ns=round(max(rounds_ns)) if has_spread else None,
        num_rounds=len(rounds_ns),
        num_iterations=num_iterations,
        algbw_bytes_per_s=num_bytes / time_ns * 1e9,
        busbw_bytes_per_s=factor * num_bytes / time_ns * 1e9,
    )


def fitted(curve: FabricCurve) -> FabricCurve:
    """The curve with its fit, or with the reason why it has none."""
    sizes = [p.bytes for p in curve.points]
    times = [p.time_ns for p in curve.points]
    try:
        fit = fit_alpha_beta(CollectiveKind[curve.kind.upper()], curve.group_size, sizes, times)
    except NoFitError as error:
        return msgspec.structs.replace(curve, fit=None, refusal=str(error))
    return msgspec.structs.replace(curve, fit=fit, refusal="")


def fit_alpha_beta(
    kind: CollectiveKind, group_size: int, sizes: Sequence[int], times_ns: Sequence[float]
) -> FabricFit:
    """Latency and bandwidth from times over sizes, in bytes as nccl-tests counts them.

    Steps and bytes of a ring are divided out. NoFitError if there are
    too few sizes, or they cover only one regime.
    """
    steps, factor = latency_steps(kind, group_size, "ring"), bus_factor(kind, group_size)
    if not steps or not factor:
        raise NoFitError(f"{kind.label} among {group_size} sends nothing")
    if len(set(sizes)) < MIN_SIZES:
        raise NoFitError(f"a fit needs {MIN_SIZES} sizes, measured: {len(set(sizes))}")
    size, time = np.asarray(sizes, np.float64), np.asarray(times_ns, np.float64)
    line = _robust_line(size, time)
    largest = size >= np.sort(np.unique(size))[-_TOP:][0]  # their slope defines the bandwidth
    if _misfit(line, size, time)[largest].mean() > _BENT_RATIO:
        line = _by_regime(size, time) or line
    _check_regimes(line, size)
    wrong = _misfit(line, size, time)
    wide = (student_quantile(max(len(size) - 2, 1)) * np.sqrt(np.diag(line.covariance))).tolist()
    slopes = (line.slope + wide[1], max(line.slope - wide[1], line.slope / 1e3))
    low, high = (factor / float(each) * 1e9 for each in slopes)
    return FabricFit(
        alpha_ns=line.start / steps,
        alpha_low_ns=max(line.start - wide[0], 0.0) / steps,
        alpha_high_ns=(line.start + wide[0]) / steps,
        bandwidth_bytes_per_s=factor / line.slope * 1e9,
        bandwidth_low_bytes_per_s=low,
        bandwidth_high_bytes_per_s=high,
        num_steps=steps,
        algorithm="ring",
        crossover_bytes=round(line.start / line.slope),
        residual_ratio=float(np.median(wrong)),
        worst_ratio=float(wrong.max()),
        worst_bytes=int(size[wrong.argmax()]),
    )


def _misfit(line: _Line, size: Floats, time: Floats) -> Floats:
    return np.asarray(np.abs(time / (line.start + line.slope * size) - 1), np.float64)


def expected_busbw(
    profile: FabricFile, kind: CollectiveKind, *, group_size: int, num_nodes: int, num_bytes: int
) -> float | None:
    """Bus bandwidth that a collective should reach, bytes per second; None outside the range.

    A curve of the same group size is interpolated, and extended where it has levelled off. For
    another group size in the same tier, α and β are used within the measured sizes. Of several
    matching curves, the fastest counts, because the machines have reached it.
    """
    is_message = kind.is_point_to_point  # its bandwidth is that of one pair
    kind = CollectiveKind.SEND_RECV if is_message else kind
    tier: Tier = "node" if num_nodes == 1 else "across"
    curves = [c for c in profile.curves if c.kind == kind.label and c.tier == tier and c.points]
    same = [
        c
        for c in curves
        if is_message or (c.group_size == group_size and c.num_nodes in (None, num_nodes))
    ]
    found = [_interpolated(curve, num_bytes) for curve in same]
    if not same:
        found = [_modelled(curve, kind, group_size, num_bytes) for curve in curves]
    return max((value for value in found if value is not None), default=None)


def expected_latency_ns(
    profile: FabricFile, kind: CollectiveKind, *, group_size: int, num_nodes: int
) -> int | None:
    """Start-up time of a collective from the fitted α, for any size; None if no curve has a fit.

    Of several matching curves of the tier, the shortest time counts, as for bandwidth.
    """
    tier: Tier = "node" if num_nodes == 1 else "across"
    steps = latency_steps(kind, group_size, "ring")
    found = [
        steps * curve.fit.alpha_ns
        for curve in profile.curves
        if curve.kind == kind.label and curve.tier == tier and curve.fit is not None
    ]
    return round(min(found)) if found and steps else None


def _interpolated(curve: FabricCurve, num_bytes: int) -> float | None:
    """Interpolation between the two nearest sizes, on logarithmic scales.

    Above the largest size, the last bandwidth if doubling the size (or more) hardly changed it.
    """
    points, last = curve.points, curve.points[-1]
    if num_bytes < points[0].bytes:
        return None
    if num_bytes > last.bytes:
        before = [p for p in points if 2 * p.bytes <= last.bytes]
        if not before:
            return None
        gained = last.busbw_bytes_per_s / before[-1].busbw_bytes_per_s - 1
        return last.busbw_bytes_per_s if abs(gained) <= _SATURATED_RATIO else None
    sizes = np.log([p.bytes for p in points])
    speeds = np.log([p.busbw_bytes_per_s for p in points])
    return float(np.exp(np.interp(math.log(num_bytes), sizes, speeds)))


def _modelled(
    curve: FabricCurve, kind: CollectiveKind, group_size: int, num_bytes: int
) -> float | None:
    """Bandwidth from the α and β of another group in the same tier."""
    fit, factor = curve.fit, bus_factor(kind, group_size)
    if fit is None or not factor:
        return None
    if not curve.points[0].bytes <= num_bytes <= curve.points[-1].bytes:
        return None
    steps = latency_steps(kind, group_size, "ring")
    moved = factor * num_bytes
    return moved / (steps * fit.alpha_ns / 1e9 + moved / fit.bandwidth_bytes_per_s)


def _robust_line(size: Floats, time: Floats) -> _Line:
    """Least squares of relative errors, made robust to outliers with Huber's and Tukey's weights.

    Residuals are divided by the fitted time. Division by the measured time would pull the line
    below the data.
    """
    order = np.argsort(size)
    quarter = max(len(size) // 4, 1)
    start = float(np.median(time[order[:quarter]]))
    last = order[-quarter:]
    level = start * 1e-6 / float(size.max())
    slope = max(float(np.median((time[last] - start) / size[last])), level)
    weight = np.ones_like(size)
    for number in range(2 * _ROUNDS):
        wrong = time / (start + slope * size) - 1
        far = np.abs(wrong) / max(1.4826 * float(np.median(np.abs(wrong))), _LEAST_ERROR)
        weight = _huber(far) if number < _ROUNDS else _tukey(far)
        start, slope = _step(size, time, start, slope, np.sqrt(weight))
    return _Line(start, slope, _covariance(size, time, start, slope, weight))


def _huber(far: Floats) -> Floats:
    return np.minimum(1.0, _HUBER / np.maximum(far, 1e-9))


def _tukey(far: Floats) -> Floats:
    return np.clip(1 - (far / _TUKEY) ** 2, 0.0, None) ** 2


def _by_regime(size: Floats, time: Floats) -> _Line | None:
    """Bandwidth from the largest sizes alone and latency from the smallest, for curved times.

    Times curve where the protocol changes with the size, and where traffic shapers let bursts pass.
    Smaller sizes are included while they fit the line of the largest. None if those follow no line,
    or too few sizes show the latency.
    """
    order = np.argsort(size)
    size, time = size[order], time[order]
    distinct = np.unique(size)
    for count in range(len(distinct), _TOP - 1, -1):
        upper = size >= distinct[-count]
        own, slope, error = _own_line(size[upper], time[upper])
        wrong = np.abs(time[upper] / (own + slope * size[upper]) - 1)
        if slope > 0 and float(wrong.max()) <= _BENT_RATIO:
            break
    else:
        return None
    for share in (_CLEARLY_LATENCY, 1 - _REGIME_RATIO):  # smaller sizes curve less
        lower = slope * size <= share * time
        if np.count_nonzero(lower) >= _MIN_IN_REGIME:
            break
    else:
        return None
    starts = (time - slope * size)[lower]
    start = float(np.median(starts))
    of_start = float(starts.std(ddof=1)) / math.sqrt(len(starts)) if len(starts) > 1 else start
    freedom = student_quantile(max(len(size) - 2, 1))  # the caller widens the interval by this
    errors = np.array(
        [
            student_quantile(max(len(starts) - 1, 1)) * of_start / freedom,
            student_quantile(max(int(upper.sum()) - 2, 1)) * error / freedom,
        ]
    )
    return _Line(start, slope, np.diag(errors**2))


def _own_line(size: Floats, time: Floats) -> tuple[float, float, float]:
    """Intercept, slope and its standard error, by least squares of relative errors."""
    matrix = np.stack([np.ones_like(size), size], axis=1) / time[:, None]
    (own, slope), *_ = np.linalg.lstsq(matrix, np.ones_like(size), rcond=None)
    wrong = matrix @ np.array([own, slope]) - 1
    variance = max(float(wrong @ wrong) / max(len(size) - 2, 1), _LEAST_ERROR**2)
    inverse = np.linalg.pinv(matrix.T @ matrix)
    return float(own), float(slope), math.sqrt(float(inverse[1, 1]) * variance)


def _step(
    size: Floats, time: Floats, start: float, slope: float, root: Floats
) -> tuple[float, float]:
    """One weighted least-squares step, relative to the previous line; both stay positive."""
    matrix = root[:, None] * _shares(size, start, slope)
    relative = root * time / (start + slope * size)
    by, of = np.linalg.lstsq(matrix, relative, rcond=None)[0].tolist()
    start = max(start * by, 1e-6 * float(time.min()))
    return start, max(slope * of, 1e-6 * start / float(size.max()))


def _shares(size: Floats, start: float, slope: float) -> Floats:
    """Shares of latency and transfer in each fitted time: the columns of the relative fit."""
    model = start + slope * size
    return np.stack([start / model, slope * size / model], axis=1)


def _covariance(size: Floats, time: Floats, start: float, slope: float, weight: Floats) -> Floats:
    """Covariance of start and slope, scaled by the larger of the robust and the weighted error."""
    wrong = time / (start + slope * size) - 1
    mean_square = float(np.sum(weight * wrong**2)) / max(float(np.sum(weight)) - 2, 1)
    robust = 1.4826 * float(np.median(np.abs(wrong)))
    variance = max(mean_square, robust**2, _LEAST_ERROR**2)
    matrix = np.sqrt(weight)[:, None] * _shares(size, start, slope)
    scale = np.array([start, slope])
    relative = np.linalg.pinv(matrix.T @ matrix) * variance
    return np.asarray(relative * np.outer(scale, scale), np.float64)


def _check_regimes(line: _Line, size: Floats) -> None:
    latency = line.start / (line.start + line.slope * size)
    ends = f"{format_bytes(float(size.min()))} to {format_bytes(float(size.max()))}"
    distinct = {float(s): float(r) for s, r in zip(size, latency, strict=True)}.values()
    if sum(ratio >= _REGIME_RATIO for ratio in distinct) < _MIN_IN_REGIME:
        raise NoFitError(f"{ends} are too large for a fit: smaller sizes would show the latency")
    if sum(ratio <= 1 - _REGIME_RATIO for ratio in distinct) < _MIN_IN_REGIME:
        raise NoFitError(f"{ends} are all latency-bound: larger sizes would show the bandwidth")


# Buckets of gradients -----------------------------------------------------------------------------

_LEAST_SPREAD = 1.5
"""Smallest ratio of largest to smallest size at which the two unknowns can be separated."""


def fit_buckets(sizes: Sequence[int], times_ns: Sequence[int]) -> BucketTime | None:
    """Fit α and β, neither negative, to the median time of each bucket size by relative errors.

    None if all buckets have the same or nearly the same size.
    """
    size, time = np.asarray(sizes, np.float64), np.asarray(times_ns, np.float64)
    usable = (size > 0) & (time > 0)
    distinct = np.unique(size[usable])
    if len(distinct) < 2 or distinct[-1] < _LEAST_SPREAD * distinct[0]:
        return None
    typical = np.array([np.median(time[usable & (size == one)]) for one in distinct])
    design = np.column_stack([1 / typical, distinct / typical])
    (latency, slope), *_ = np.linalg.lstsq(design, np.ones(len(distinct)), rcond=None)
    if slope < 0:
        return BucketTime(latency_ns=float(np.median(typical)), ns_per_byte=0.0)
    if latency < 0:
        return BucketTime(latency_ns=0.0, ns_per_byte=float(np.median(typical / distinct)))
    return BucketTime(latency_ns=float(latency), ns_per_byte=float(slope))
