"""How often the gate is right, compared with other rules on the same simulated runs.

::

    python -m benchmarks.gate --trials 2000

The noise is described in ``tests/verbs/gate/noise.py``. ``own`` is the share of its variance that
two adjacent runs do not have in common. The remaining lines show the best possible power: the
normal test with known deviation, without outliers and without any tolerance.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from statistics import NormalDist

from distprof.verbs.gate import ALPHA
from tests.verbs.gate.noise import (
    Noise,
    asv_rule,
    looking_gate,
    paired_gate,
    single_point,
    stored_gate,
)

Trial = Callable[[float, int], str]
LOSS = 0.05


def flagged(is_flagged: bool) -> str:
    """The answer of a rule without an inconclusive state."""
    return "regressed" if is_flagged else "passed"


def rows() -> dict[str, Trial]:
    """Name of a rule to a function of true loss and seed."""
    quiet, calm, free = Noise(own=0.05), Noise(own=0.1), Noise(own=1.0)
    wild = Noise(noise=0.15, own=0.05)
    chaos = Noise(noise=0.15, own=1.0)
    return {
        "10 pairs, tolerance 1 %, 5 % noise, own 5 %": lambda x, s: paired_gate(quiet, x, s).state,
        "10 pairs, tolerance 2 %, 5 % noise, own 5 %": lambda x, s: (
            paired_gate(quiet, x, s, tolerance=0.02).state
        ),
        "10 pairs, tolerance 1 %, 5 % noise, own 10 %": lambda x, s: paired_gate(calm, x, s).state,
        "10 pairs, tolerance 1 %, 5 % noise, own 100 %": lambda x, s: paired_gate(free, x, s).state,
        "40 pairs, tolerance 1 %, 5 % noise, own 100 %": lambda x, s: (
            paired_gate(free, x, s, pairs=40).state
        ),
        "10 pairs, tolerance 1 %, 15 % noise, own 5 %": lambda x, s: paired_gate(wild, x, s).state,
        "10 pairs, tolerance 1 %, 15 % noise, own 100 %": lambda x, s: (
            paired_gate(chaos, x, s).state
        ),
        "10 against a stored session of 10": lambda x, s: stored_gate(quiet, x, s).state,
        "the same, told that sessions never differ": lambda x, s: (
            stored_gate(quiet, x, s, session_noise=0.0).state
        ),
        "10 against 8 stored sessions of 10": lambda x, s: (
            stored_gate(quiet, x, s, sessions=8).state
        ),
        "5 to 16 against a stored session of 10, no drift, tolerance 0": lambda x, s: (
            looking_gate(free, x, s).state
        ),
        "the same, every look at 0.01": lambda x, s: (
            looking_gate(free, x, s, early_alpha=ALPHA).state
        ),
        "one run, 10 % slower": lambda x, s: flagged(single_point(quiet, x, s)),
        "asv continuous, factor 1.1": lambda x, s: flagged(asv_rule(quiet, x, s)),
        "asv continuous, factor 1.05": lambda x, s: flagged(asv_rule(quiet, x, s, factor=1.05)),
    }


def best_power(deviation: float, repeats: int, false_alarms: float = 0.01) -> float:
    """Largest share of losses that any rule on independent runs can catch (Neyman and Pearson)."""
    standard = NormalDist()
    distance = math.log1p(LOSS) / (deviation * math.sqrt(2 / repeats))
    return 1 - standard.cdf(standard.inv_cdf(1 - false_alarms) - distance)


def shares(trial: Trial, loss: float, trials: int, first: int) -> str:
    """Regressed, inconclusive, passed, improved, in %."""
    said = [trial(loss, first + seed) for seed in range(trials)]
    kinds = ("regressed", "inconclusive", "passed", "improved")
    return " / ".join(f"{100 * said.count(kind) / trials:.1f}" for kind in kinds)


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=100_000, help="first seed")
    options = parser.parse_args()
    print("regressed / inconclusive / passed / improved, %\n")
    print("| rule | nothing changed | 5 % slower |\n|---|---|---|")
    for name, trial in rows().items():
        cells = [shares(trial, loss, options.trials, options.first) for loss in (0.0, LOSS)]
        print(f"| {name} | {cells[0]} | {cells[1]} |", flush=True)
    print("\nBest possible on independent runs, 1 % false alarms:")
    for deviation in (0.01, 0.02, 0.03, 0.05):
        print(f"  {100 * deviation:.0f} % noise, 10 + 10 runs: {best_power(deviation, 10):.1%}")


if __name__ == "__main__":
    main()
