"""Damaged recordings: is the verdict that of the undamaged one, or is the damage named?

::

    python -m benchmarks.damage --cases 200
    python -m benchmarks.damage --first 200 --cases 200 --only clock_jump

Jobs of the simulator with and without faults, and real jobs from ``tests/golden``, lose events, get
wrong times, ranks or steps (:mod:`benchmarks.fuzzing.damages`). A case fails if the ranks that are
blamed, the cause, or a share of the step by more than two points differ from those of the
undamaged job, and the evidence line of the default output names no damage. Case N is the same on
every machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import distprof
from benchmarks.fuzzing.damages import DAMAGES, Traces
from distprof.documents.saved import Report
from distprof.errors import DistprofError
from distprof.sections.parts import parts_of
from distprof.sections.shows import origin
from tests.simulator.job import LateHost, LateInput, SimulatedJob, SlowDevice
from tests.simulator.shapes import Shape, data_parallel, sharded, tensor_parallel
from tests.simulator.trials import with_fault

__all__ = ["Case", "Outcome", "analysed", "case_of", "main", "outcome_of", "traces_of"]

MOST_POINTS = 0.02
PER_JOB = len(DAMAGES)
"""Cases of one job, one of each kind of damage, so that it is simulated and analysed once."""

GOLDEN = Path(__file__).parents[1] / "tests/golden"
REAL = (GOLDEN / "kineto/dlrm-v100-8gpu", GOLDEN / "job/nccl-fsdp-2ranks-h100")


@dataclass(frozen=True)
class Outcome:
    """What a report says.

    Args:
        blamed: Ranks and causes of the stragglers that cost more than two points.
        shares: Parts of the mean step.
        evidence: The evidence line.
        facts: What it says of damage.
    """

    blamed: frozenset[tuple[tuple[int, ...], str]]
    shares: Mapping[str, float]
    evidence: str
    facts: tuple[str, ...]

    def differences(self, other: Outcome) -> list[str]:
        """How another report differs."""
        found = []
        if self.blamed != other.blamed:
            found.append(f"blamed {sorted(self.blamed)} → {sorted(other.blamed)}")
        keys = {*self.shares, *other.shares}
        moved = {key: other.shares.get(key, 0.0) - self.shares.get(key, 0.0) for key in keys}
        largest = max(moved, key=lambda key: abs(moved[key]), default="")
        if largest and abs(moved[largest]) > MOST_POINTS:
            found.append(f"{largest} {100 * moved[largest]:+.1f} points")
        return found


def outcome_of(report: Report) -> Outcome:
    """What is compared of a report."""
    sets = report.stragglers.sets
    slow = [
        *((one.ranks, one.cause.value, one.share_of_step_ratio) for one in sets),
        *(
            ((one.rank,), one.cause.value, one.share_of_step_ratio)
            for one in report.stragglers.ranks
            if not sets and one.pattern.value != "none"
        ),
    ]
    return Outcome(
        blamed=frozenset((ranks, cause) for ranks, cause, share in slow if share > MOST_POINTS),
        shares={part.key: part.ratio for part in parts_of(report)},
        evidence=origin(report),
        facts=tuple(gap.fact for gap in report.capture.gaps if gap.fact),
    )


@dataclass(frozen=True)
class Case:
    """A damaged job.

    Args:
        number: Its number.
        job: Number of the job.
        damage: Name of the damage.
        differences: How its report differs from that of the undamaged job.
        named: Whether the default output names damage.
        said: The evidence line, or the error.
    """

    number: int
    job: int
    damage: str
    differences: tuple[str, ...]
    named: bool
    said: str

    @property
    def is_silent(self) -> bool:
        """Whether the report differs without a word."""
        return bool(self.differences) and not self.named


# Jobs ---------------------------------------------------------------------------------------------


def _simulated(number: int) -> SimulatedJob:
    dice = random.Random(f"damaged job {number}")
    shape = dice.choice((Shape(num_nodes=1, per_node=4), Shape(num_nodes=2, per_node=2)))
    if dice.random() < 0.2:
        shape = Shape(num_nodes=2, per_node=4)
    kind = dice.choice((data_parallel, sharded, tensor_parallel))
    job = kind(shape, dice, num_steps=dice.randint(5, 8))
    rank = dice.randrange(job.world_size)
    fault = dice.choice(
        (
            None,
            SlowDevice(rank=rank, factor=dice.uniform(1.2, 1.6)),
            LateInput(rank=rank, ns=dice.randint(2_000_000, 8_000_000)),
            LateHost(rank=rank, ns=dice.randint(2_000_000, 8_000_000)),
        )
    )
    return job if fault is None else with_fault(job, fault).job


@lru_cache(maxsize=2)
def traces_of(number: int) -> tuple[Traces, Outcome]:
    """The traces of a job, and what its report says."""
    if number % 8 == 7:
        paths = sorted(p for p in REAL[number // 8 % len(REAL)].rglob("*trace*.json*"))
        traces = {}
        for path in paths:
            data = path.read_bytes()
            trace = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
            traces[trace["distributedInfo"]["rank"]] = trace
    else:
        with tempfile.TemporaryDirectory() as folder:
            dice = random.Random(f"sequence numbers {number}")
            written = (
                _simulated(number).run().write_kineto(Path(folder), with_seq=dice.random() < 0.6)
            )
            traces = dict(enumerate(json.loads(gzip.decompress(p.read_bytes())) for p in written))
    return traces, analysed(traces)


def analysed(traces: Mapping[int, dict[str, Any]]) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        for rank, trace in traces.items():
            path = Path(folder, f"rank{rank}.json.gz")
            path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
        run = distprof.open_run(folder, use_cache=False, executor="serial")
        return outcome_of(distprof.analyze(run, executor="serial"))


def damage_of(number: int) -> Callable[[Traces, random.Random], Traces]:
    """The damage of a case: all kinds in turn."""
    return DAMAGES[number % len(DAMAGES)]


def case_of(number: int) -> Case:
    """The case with this number."""
    job = number // PER_JOB
    traces, undamaged = traces_of(job)
    chance = random.Random(f"damage {number}")
    damage = damage_of(number)
    try:
        changed = damage(traces, chance)
        damaged = analysed({**traces, **changed})
    except DistprofError as error:
        return Case(number, job, damage.__name__, (), True, str(error))
    differences = tuple(undamaged.differences(damaged))
    new = bool(set(damaged.facts) - set(undamaged.facts))
    return Case(number, job, damage.__name__, differences, new, damaged.evidence)


def main() -> None:
    """Try cases and print those that differ in silence."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help="name of a damage")
    parser.add_argument("--show", action="store_true", help="print every case")
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    began = time.monotonic()
    for number in range(options.first, options.first + options.cases):
        if options.only not in ("", damage_of(number).__name__):
            continue
        case = case_of(number)
        kind = "silent" if case.is_silent else "named" if case.named else "same"
        counts[case.damage, kind] += 1
        if case.is_silent or options.show:
            differs = "; ".join(case.differences)
            print(f"{number} {kind} {case.damage}: {differs} | {case.said}", flush=True)
    for damage in DAMAGES:
        of = {kind: counts[damage.__name__, kind] for kind in ("same", "named", "silent")}
        print(f"{damage.__name__:20} " + "  ".join(f"{kind} {n:4}" for kind, n in of.items()))
    total = sum(n for (_, kind), n in counts.items() if kind == "silent")
    print(f"{total} silent of {sum(counts.values())}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
