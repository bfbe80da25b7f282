"""The cost of probes: CPU of all threads and wall time of a step, with and without them.

::

    python benchmarks/probe_cost.py
    python benchmarks/probe_cost.py --step-ms 200 --steps 200 --rounds 5

A small model trains one rank in one thread and then sleeps, so that a step lasts as long as asked.
Contestants run alternately, each in a fresh process. CPU time of all threads is the upper bound of
the cost when every core is busy. Unlike the length of steps, it hardly depends on other programs on
the machine. Limit: 1 % of a step of 200 ms.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from typing import Any, Literal, get_args

from measuring import machine, print_table, versions

Contestant = Literal["without", "off", "always-on"]
CONTESTANTS: tuple[Contestant, ...] = get_args(Contestant)
WARM_UP = 20


def train(contestant: Contestant, steps: int, step_ms: float) -> None:
    """Run one contestant; prints CPU seconds and wall seconds of a step."""
    import torch
    from distprof_probes import ProbeOptions, session

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(8, 64)
    for _ in range(WARM_UP):
        _step(None, model, optimizer, batch)
    with tempfile.TemporaryDirectory() as folder:
        opened: Any = nullcontext()
        if contestant != "without":
            options = ProbeOptions(mode=contestant, measure_overhead=False)
            opened = session(folder, options=options, rank=0, world_size=1)
        with opened as watching:
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(steps):
                _step(watching, model, optimizer, batch)
                time.sleep(step_ms / 1e3)
            print((time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps)


def _step(watching: Any, model: Any, optimizer: Any, batch: Any) -> None:
    def phase(name: str) -> Any:
        return nullcontext() if watching is None else watching.phase(name)

    with phase("forward"):
        loss = model(batch).square().mean()
    with phase("backward"):
        loss.backward()
    with phase("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    if watching is not None:
        watching.step(loss=loss, tokens=1_000, samples=8)


def main() -> None:
    """Measure all contestants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-ms", type=float, default=200.0, help="how long each step sleeps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        train(options.contestant, options.steps, options.step_ms)
        return
    size = ["--steps", str(options.steps), "--step-ms", str(options.step_ms)]
    found: dict[Contestant, list[tuple[float, float]]] = {name: [] for name in CONTESTANTS}
    for _ in range(options.rounds):
        for name in CONTESTANTS:
            command = [sys.executable, __file__, *size, "--contestant", name]
            finished = subprocess.run(command, check=True, capture_output=True, text=True)
            cpu, wall = map(float, finished.stdout.split()[-2:])
            found[name].append((cpu, wall))
    print(machine())
    print(versions("distprof", "torch"))
    print_table(("probes", "CPU ms per step", "wall ms", "cost in CPU, % of a step"), _rows(found))


def _rows(found: dict[Contestant, list[tuple[float, float]]]) -> list[tuple[str, ...]]:
    cpu = {name: statistics.median(cpu for cpu, _ in runs) for name, runs in found.items()}
    wall = {name: statistics.median(wall for _, wall in runs) for name, runs in found.items()}
    bare = CONTESTANTS[0]
    return [
        (
            name,
            f"{cpu[name] * 1e3:.2f}",
            f"{wall[name] * 1e3:.2f}",
            f"{(cpu[name] - cpu[bare]) / wall[bare]:.2%}",
        )
        for name in CONTESTANTS
    ]


if __name__ == "__main__":
    main()
