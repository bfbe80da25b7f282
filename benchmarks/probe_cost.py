"""The cost of probes: CPU of all threads and wall time of a step, with and without them.

::

    python benchmarks/probe_cost.py
    python benchmarks/probe_cost.py --step-ms 200 --steps 200 --rounds 5

A small model trains one rank in one thread and then sleeps, so that a step has the requested
length. Contestants run alternately, each in a fresh process. CPU time of all threads is the upper
bound of the cost if every core is busy. CPU time of the training thread is the cost with a core to
spare, because the other threads then run there. ``no-attach`` is ``always-on`` without the socket
and the thread that looks for requests from other nodes. Unlike the length of steps, both hardly
depend on other programs on the machine. ``once`` is the additional cost of the first steps, in
which probes inspect the program's objects. Limit: 1 % of a step of 200 ms, 0.5 % with a core to
spare.
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

Contestant = Literal["without", "off", "no-attach", "always-on"]
CONTESTANTS: tuple[Contestant, ...] = get_args(Contestant)
WARM_UP = 20
FIRST = 5
"""Steps in which probes do their one-time work."""


def train(contestant: Contestant, steps: int, step_ms: float) -> None:
    """Run one contestant; prints seconds of a step, CPU of all threads, own and wall, and once."""
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
            has_attach = contestant != "no-attach"
            mode: Any = contestant if has_attach else "always-on"
            options = ProbeOptions(mode=mode, attach=has_attach, measure_overhead=False)
            opened = session(folder, options=options, rank=0, world_size=1)
        with opened as watching:

            def run(count: int) -> list[float]:
                """Seconds of these steps, each."""
                clocks = time.process_time, time.thread_time, time.perf_counter
                began = [clock() for clock in clocks]
                for _ in range(count):
                    _step(watching, model, optimizer, batch)
                    time.sleep(step_ms / 1e3)
                return [
                    (clock() - start) / count for clock, start in zip(clocks, began, strict=True)
                ]

            first, later = run(FIRST), run(steps)
            print(*later, FIRST * (first[1] - later[1]))


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
    found: dict[Contestant, list[list[float]]] = {name: [] for name in CONTESTANTS}
    for _ in range(options.rounds):
        for name in CONTESTANTS:
            command = [sys.executable, __file__, *size, "--contestant", name]
            finished = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name].append([float(word) for word in finished.stdout.split()[-4:]])
    print(machine())
    print(versions("distprof", "torch"))
    print_table(
        (
            *("probes", "CPU ms per step", "training thread ms", "wall ms"),
            *("cost in CPU, % of a step", "with a core to spare", "once ms"),
        ),
        _rows(found),
    )


def _rows(found: dict[Contestant, list[list[float]]]) -> list[tuple[str, ...]]:
    medians = {
        name: [statistics.median(values) for values in zip(*runs, strict=True)]
        for name, runs in found.items()
    }
    bare_cpu, bare_own, bare_wall, _ = medians[CONTESTANTS[0]]
    return [
        (
            name,
            f"{cpu * 1e3:.2f}",
            f"{own * 1e3:.2f}",
            f"{wall * 1e3:.2f}",
            f"{(cpu - bare_cpu) / bare_wall:.2%}",
            f"{(own - bare_own) / bare_wall:.2%}",
            f"{once * 1e3:.0f}",
        )
        for name, (cpu, own, wall, once) in medians.items()
    ]


if __name__ == "__main__":
    main()
