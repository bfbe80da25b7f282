"""Waits of CPUs that run ahead of their GPUs, and checkpoints: what is reported of simulated logs.

::

    python -m benchmarks.stall_accuracy --logs 3000

The queue holds 1 to 6 steps, GPU steps vary by up to 10 %, and the CPU waits every 5 to 100 steps.
"Priced" stalls have a cost, which is compared with the true one. Of "either" ones the log does not
show whether they stop training.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np

from benchmarks.measuring import print_table
from distprof.sections.step_log.stalls import find_periodic_stalls
from tests.sections.test_stalls import logged

MS = 1_000_000
SAVE_EVERY = 40


def one(seed: int, *, saves: bool) -> tuple[str, float]:
    """How a log is reported, and the cost over the true one (0 without)."""
    rng = np.random.default_rng(seed)
    num_steps = int(rng.integers(250, 600))
    save_ms = float(rng.choice((300, 1_000, 5_000))) if saves else 0.0
    step, duration = logged(
        num_steps,
        ahead=int(rng.integers(1, 7)),
        sync=int(rng.choice((10, 20) if saves else (5, 10, 20, 50, 100))),
        cpu_ms=float(rng.choice((2, 5, 20))),
        gpu_ms=50 * rng.lognormal(0, rng.uniform(0, 0.1), num_steps),
        save=SAVE_EVERY if saves else 0,
        save_ms=save_ms,
    )
    first = int(rng.integers(0, 12))  # logs begin anywhere
    found = find_periodic_stalls(step[first:], duration[first:], has_gpus=True)
    priced = [stall for stall in found if not stall.may_wait_for_gpu]
    if not priced:
        return "either" if found else "none", 0.0
    cost_ns = sum(stall.cost_ns_per_step for stall in priced)
    return "priced", cost_ns / (save_ms * MS / SAVE_EVERY) if saves else 0.0


def row(name: str, logs: int, *, saves: bool) -> tuple[str, ...]:
    found = [one(seed, saves=saves) for seed in range(logs)]
    counts = Counter(kind for kind, _ in found)
    costs = [ratio for kind, ratio in found if kind == "priced"] if saves else []
    within = f"{100 * np.mean(np.abs(np.array(costs) - 1) < 0.15):.1f} %" if costs else ""
    return name, *(f"{counts[kind]:,}" for kind in ("priced", "either", "none")), within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--logs", type=int, default=1_000, help="logs of each kind")
    logs = parser.parse_args().logs
    rows = [row("waits only", logs, saves=False), row("and checkpoints", logs, saves=True)]
    print_table(("log", "priced", "either", "none", "cost within 15 %"), rows)


if __name__ == "__main__":
    main()
