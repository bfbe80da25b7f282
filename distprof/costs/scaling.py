"""Speed-up and efficiency over ranks, and the scaling laws fitted to them.

Source of every formula here: formula sheet, "Scaling". Throughput is the work of all ranks per unit
of time, in any unit. In Amdahl's law and the Universal Scalability Law (Gunther, "Guerrilla
Capacity Planning", 2007), the time of a rank for its share of the work is linear in the fitted
coefficients; in Gustafson's, throughput is::

    N / X(N) = a + b (N − 1) + c N (N − 1),   a = 1 / X(1),  σ = b / a,  κ = c / a

Errors are relative. Estimates stay within the bounds of the law (σ, κ ≥ 0). Intervals of a ratio of
two coefficients are Fieller's, which are exact for normal errors, also at the bounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from distprof.costs.repeats import Interval, student_quantile
from distprof.schema import Floats

Law = Literal["amdahl", "gustafson", "usl"]
LAWS: tuple[Law, ...] = ("amdahl", "gustafson", "usl")
LAW_NAMES: dict[str, str] = {
    "amdahl": "Amdahl's law",
    "gustafson": "Gustafson's law",
    "usl": "the Universal Scalability Law",
}
"""Names of the laws inside a sentence."""
_PARAMETERS: dict[Law, tuple[str, ...]] = {
    "amdahl": ("serial",),
    "gustafson": ("serial",),
    "usl": ("sigma", "kappa"),
}
_ROUNDS = 25
_LEAST_ERROR = 1e-6  # no clock is more precise; an exact sweep would have intervals of width 0


class NoScalingFitError(ValueError):
    """The sweep does not determine the law; the message says why in one sentence."""


def throughput_speedup(base_throughput: float, throughput: float) -> float:
    """X_N / X_b; divide by N / b for the efficiency.

    Raises:
        ValueError: If a throughput is not positive.
    """
    if not (base_throughput > 0 and throughput > 0):
        raise ValueError(f"throughputs must be positive: {base_throughput} and {throughput}")
    return throughput / base_throughput


def peak_ranks(sigma: float, kappa: float) -> float | None:
    """Ranks at the peak of the Universal Scalability Law, √((1 − σ)/κ); None if it has no peak."""
    return math.sqrt((1 - sigma) / kappa) if kappa > 0 and sigma < 1 else None


class ScalingFit(msgspec.Struct, frozen=True, kw_only=True):
    """One fitted law."""

    law: Law  # The law.
    names: tuple[str, ...]  # Names of its parameters.
    # Estimates with their intervals, clipped to the range that the law allows.
    parameters: tuple[Interval, ...]
    residual_ratio: float  # Median relative deviation of a throughput from the fit.
    notes: tuple[str, ...]  # Deviations that the bounds hide, one sentence each.
    _free: _Line
    _bounded: Floats

    def relative_efficiency(self, num_ranks: int, base: int) -> Interval:
        """Efficiency of N ranks relative to that of ``base`` ranks, both from the law.

        The interval covers measurement errors only. It assumes that the law also holds beyond the
        measured sizes.
        """
        here, there = _design(self.law, np.array([float(num_ranks), float(base)]))
        if self.law == "gustafson":  # its coefficients describe throughput
            here, there = here / num_ranks, there / base
        else:  # those of the other laws describe its inverse
            here, there = there, here
        value = float(here @ self._bounded) / float(there @ self._bounded)
        low, high = _fieller(self._free, here, there)
        growth = num_ranks / base
        flat = (
            0.0 if self.law == "usl" else 1 / growth
        )  # all work is serial; or worse, by coherence
        if growth >= 1:
            return _inside(value, low, high, flat, 1.0)
        return _inside(value, low, high, 1.0, math.inf if self.law == "usl" else flat)

    @property
    def peak(self) -> Interval | None:
        """Ranks above which the law gets slower; None if κ is estimated as 0."""
        if self.law != "usl":
            return None
        sigma, kappa = self.parameters
        value = peak_ranks(sigma.value, kappa.value)
        if value is None:
            return None
        low = peak_ranks(min(sigma.high, 1.0), kappa.high)
        high = peak_ranks(sigma.low, kappa.low)
        return Interval(value, low or 0.0, math.inf if high is None else high)


class _Line(msgspec.Struct, frozen=True):
    """Unbounded coefficients, their covariance, and the degrees of freedom of the residuals."""

    coefficients: Floats
    covariance: Floats
    freedom: int


def fit_scaling(law: Law, num_ranks: Sequence[int], throughput: Sequence[float]) -> ScalingFit:
    """Fit one law to the total throughput of all ranks, in any unit, over numbers of ranks.

    A size that was measured several times is repeated.

    Raises:
        NoScalingFitError: If there are fewer sizes than the law has parameters (including its base
            throughput), or no more measurements than parameters.
        ValueError: If a number is not positive and finite, or the lengths differ.
    """
    n, x = _checked(law, num_ranks, throughput)
    design = _design(law, n)
    observed = x if law == "gustafson" else n / x
    line = _least_squares(design, observed)
    bounded = _bounded(design, observed)
    notes: list[str] = []
    return ScalingFit(
        law=law,
        names=_PARAMETERS[law],
        parameters=tuple(
            _parameter(law, index, line, bounded, notes) for index in range(design.shape[1] - 1)
        ),
        residual_ratio=float(np.median(np.abs(design @ bounded / observed - 1))),
        notes=tuple(notes),
        _free=line,
        _bounded=bounded,
    )


def _checked(
    law: Law, num_ranks: Sequence[int], throughput: Sequence[float]
) -> tuple[Floats, Floats]:
    n, x = np.asarray(num_ranks, np.float64), np.asarray(throughput, np.float64)
    if n.shape != x.shape or n.ndim != 1 or not len(n):
        raise ValueError(f"{n.size} sizes and {x.size} throughputs: there must be one for each")
    if not (np.isfinite(n).all() and np.isfinite(x).all() and (n >= 1).all() and (x > 0).all()):
        raise ValueError("numbers of ranks must be 1 or more, and throughputs positive")
    name, unknowns, sizes = LAW_NAMES[law], len(_PARAMETERS[law]) + 1, len(np.unique(n))
    if sizes < unknowns:
        raise NoScalingFitError(
            f"{name} needs {unknowns} different numbers of ranks, measured: {sizes}"
        )
    if len(n) <= unknowns:
        raise NoScalingFitError(
            f"{name} fits {len(n)} measurements exactly, so the quality of the fit is unknown:"
            " repeat them, or add a size"
        )
    return n, x


def _design(law: Law, n: Floats) -> Floats:
    """Columns of the fitted coefficients; Gustafson's are s·X(1) and (1 − s)·X(1)."""
    if law == "usl":
        return np.stack([np.ones_like(n), n - 1, n * (n - 1)], axis=1)
    return np.stack([np.ones_like(n), n if law == "gustafson" else n - 1], axis=1)


def _least_squares(design: Floats, observed: Floats) -> _Line:
    """Relative least squares without bounds: errors are a share of the fitted value."""
    fitted: Floats = observed
    coefficients: Floats = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        matrix = design / fitted[:, None]
        solved = np.linalg.lstsq(matrix, observed / fitted, rcond=None)[0]
        coefficients = np.asarray(solved, np.float64)
        before, fitted = fitted, np.maximum(design @ coefficients, 1e-3 * observed)
        if np.allclose(before, fitted, rtol=1e-10, atol=0):
            break
    matrix = design / fitted[:, None]
    freedom = len(observed) - design.shape[1]
    wrong = observed / fitted - matrix @ coefficients
    variance = max(float(wrong @ wrong) / freedom, _LEAST_ERROR**2)
    return _Line(coefficients, np.linalg.pinv(matrix.T @ matrix) * variance, freedom)


def _bounded(design: Floats, observed: Floats) -> Floats:
    """The best non-negative coefficients, from all choices of which coefficients are zero."""
    best, least = np.zeros(design.shape[1]), math.inf
    columns = range(design.shape[1])
    for count in columns:
        for kept in itertools.combinations(columns, count + 1):
            found = np.zeros(design.shape[1])
            found[list(kept)] = _least_squares(design[:, kept], observed).coefficients
            fitted = design @ found
            if (found < 0).any() or (fitted <= 0).any():
                continue
            wrong = np.log(observed / fitted)
            if float(wrong @ wrong) < least:
                best, least = found, float(wrong @ wrong)
    if best[0] == 0 and best.sum() > 0:  # in every law the first rank takes time
        best[0] = 1e-9 * best.max()
    return best


def _parameter(law: Law, index: int, line: _Line, bounded: Floats, notes: list[str]) -> Interval:
    """σ, κ or s, as the ratio of two linear combinations of coefficients."""
    unit = np.eye(len(bounded))
    above = unit[0] if law == "gustafson" else unit[index + 1]
    below = unit.sum(axis=0) if law == "gustafson" else unit[0]
    value = float(above @ bounded) / float(below @ bounded)
    low, high = _fieller(line, above, below)
    name = _PARAMETERS[law][index]
    most = math.inf if name == "kappa" else 1.0
    free = float(above @ line.coefficients) / float(below @ line.coefficients)
    if high < 0:  # the law does not hold, but an interval of width 0 would suggest that it does
        notes.append(
            f"{name} would be {free:.2g}, with its whole interval below 0: the sweep scales better"
            f" than {LAW_NAMES[law]} allows."
        )
        high += -free
    if low > most:
        notes.append(
            f"{name} would be {free:.2g}, above 1: {LAW_NAMES[law]} does not describe this sweep."
        )
    return _inside(value, low, high, 0.0, most)


def _fieller(line: _Line, above: Floats, below: Floats) -> tuple[float, float]:
    """Ends of the 95 % interval of ``above·θ / below·θ``; infinite where the divisor may be 0.

    Source:
        Fieller, "Some problems in interval estimation" (1954).
    """
    square = student_quantile(line.freedom) ** 2
    top, bottom = float(above @ line.coefficients), float(below @ line.coefficients)
    variance_top = square * float(above @ line.covariance @ above)
    variance_bottom = square * float(below @ line.covariance @ below)
    both = square * float(above @ line.covariance @ below)
    a, b, c = bottom**2 - variance_bottom, top * bottom - both, top**2 - variance_top
    if a <= 0:
        return -math.inf, math.inf
    root = math.sqrt(max(b * b - a * c, 0.0))
    return (b - root) / a, (b + root) / a


def _inside(value: float, low: float, high: float, least: float, most: float) -> Interval:
    """The interval within the bounds, extended to include the estimate."""
    value = min(max(value, least), most)
    return Interval(value, min(max(low, least), value), max(min(high, most), value))
