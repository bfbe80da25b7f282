"""Do intervals of fitted laws contain the truth? Simulated sweeps with known parameters.

::

    python -m benchmarks.scaling_accuracy --sweeps 1000

Every size is run several times; throughputs have independent relative errors. The table shows the
share of sweeps whose interval contains each parameter, the median width of the intervals, and the
same for the efficiency at four times the largest size.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.costs.scaling import Law, fit_scaling

SPEEDUP: dict[str, Callable[..., Any]] = {
    "amdahl": lambda n, s: 1 / (s + (1 - s) / np.float64(n)),
    "gustafson": lambda n, s: n - s * (np.float64(n) - 1),
    "usl": lambda n, sigma, kappa: n / (1 + (sigma + kappa * n) * (np.float64(n) - 1)),
}
"""Speed-up on N ranks: with a serial share s of a constant work, of each rank's time, or with
contention σ and the cost of coherence κ."""

NOISES = (0.01, 0.03, 0.05)
LONG, SHORT = (1, 2, 4, 8, 16), (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One law with its parameters, and the sweep from which to estimate them."""

    law: Law
    truth: tuple[float, ...]
    sizes: tuple[int, ...]
    repeats: int
    noise: float

    def __str__(self) -> str:
        """For example ``usl(0.05, 0.001), 5 x 1, 2, 4, 8, noise 3 %``."""
        sizes = ", ".join(map(str, self.sizes))
        return f"{self.law}{self.truth}, {self.repeats} x {sizes}, noise {100 * self.noise:g} %"


def cases() -> Iterator[Case]:
    """Cases inside and at the bounds of the parameters."""
    for noise in NOISES:
        for truth in ((0.05, 0.001), (0.0, 0.0005), (0.05, 0.0), (0.0, 0.0)):
            yield Case(law="usl", truth=truth, sizes=LONG, repeats=5, noise=noise)
        yield Case(law="usl", truth=(0.05, 0.001), sizes=SHORT, repeats=3, noise=noise)
        for serial in (0.0, 0.02, 0.2):
            yield Case(law="amdahl", truth=(serial,), sizes=SHORT, repeats=5, noise=noise)
        yield Case(law="gustafson", truth=(0.1,), sizes=SHORT, repeats=5, noise=noise)


def row(case: Case, sweeps: int, seed: int) -> str:
    """One line of the table."""
    random = np.random.default_rng(seed)
    ranks = np.repeat(case.sizes, case.repeats)
    exact = SPEEDUP[case.law](ranks, *case.truth)
    far = 4 * max(case.sizes)
    truth = [*case.truth, float(SPEEDUP[case.law](far, *case.truth)) / far]
    hits, widths = np.zeros(len(truth)), np.empty((sweeps, len(truth)))
    for sweep in range(sweeps):
        errors = np.exp(case.noise * random.standard_normal(len(ranks)))
        fit = fit_scaling(case.law, ranks.tolist(), (exact * errors).tolist())
        found = [*fit.parameters, fit.relative_efficiency(far, 1)]
        hits += [p.low <= t <= p.high for p, t in zip(found, truth, strict=True)]
        widths[sweep] = [p.high - p.low for p in found]
    cells = [
        f"{100 * hit / sweeps:.1f} % ({width:.2g})"
        for hit, width in zip(hits, np.median(widths, axis=0), strict=True)
    ]
    return f"| {case} | {' / '.join(cells[:-1])} | {cells[-1]} |"


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    print("| law and sweep | parameters held (width) | efficiency at 4 x the largest |")
    print("|---|---|---|")
    for case in cases():
        print(row(case, options.sweeps, options.seed), flush=True)


if __name__ == "__main__":
    main()
