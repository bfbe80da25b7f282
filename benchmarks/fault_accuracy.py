"""Does the report of a real run name the injected fault, and no rank in a healthy run?

::

    python -m benchmarks.fault_accuracy --trials 5
    python -m benchmarks.fault_accuracy --trials 5 --share 0.1 --only "ddp x 2"
    python -m benchmarks.fault_accuracy --trials 3 --compute real --only ddp

Each trial is one ``distprof run`` on CPU ranks, recorded and analysed like any other job. For each
fault and workload the table shows in how many trials the report named the affected rank, stage or
expert, in how many it also named the cause, and how often it blamed another one. By default blocks
sleep for given times, so that ranks need not share cores. With ``--compute real`` they compute, and
other load on the machine affects the result. "First" counts reports whose first finding is the
fault. For a report that begins with another finding, the injected delay and the median step follow:
on a busy machine steps are longer, so the fault costs a smaller share.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

import distprof
from distprof.artefacts import RUN_FILE
from tests.e2e.accusations import Fault, is_first, is_named, is_rightly_explained, others_accused

SMALL = (
    *("--hidden", "64", "--heads", "4", "--kv-heads", "4", "--ffn", "128"),
    *("--vocabulary", "256", "--sequence", "32", "--batch", "2"),
)
SLEEP = ("--compute", "sleep", "--forward-ms", "10", "--backward-ms", "20")
STEPS = ("--steps", "18", "--profile-steps", "10", "--no-measure-overhead", "--device", "cpu")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload, with a fault or healthy."""

    workload: str
    ranks: int
    fault: Fault | None = None
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name in the table."""
        return f"{self.workload} x {self.ranks}"


@dataclass(kw_only=True)
class Score:
    """Counts of one case."""

    trials: int = 0
    named: int = 0
    explained: int = 0
    first: int = 0
    accused_others: int = 0
    failed: int = 0
    said: list[str] = field(default_factory=list)


def on_rank(kind: str, rank: int, amount: float) -> Fault:
    return Fault(kind=kind, target=rank, amount=amount, ranks=(rank,))


USUAL_SHARE = 0.2


def scaled(case: Case, share: float) -> Case:
    """The same with a fault of another size; those of pipelines are scaled by the same factor."""
    fault, scale = case.fault, share / USUAL_SHARE
    if fault is None or fault.kind == "routing-skew":
        return case
    is_factor = fault.kind in ("slow-rank", "stage-skew")
    amount = 1 + (fault.amount - 1) * scale if is_factor else fault.amount * scale
    return replace(case, fault=replace(fault, amount=round(amount, 4)))


def cases() -> Iterator[Case]:
    """A step sleeps for 120 ms on each rank; faults are a fifth of that, mean per step."""
    for workload, ranks in (
        ("ddp", 2),
        ("ddp", 4),
        ("fsdp", 2),
        ("tp", 2),
        ("cp", 2),
        ("moe", 2),
        ("3d", 4),
    ):
        # by default it also shards, which takes eight ranks: too many for two cores, even asleep
        options = ("--fsdp", "1") if workload == "3d" else ()
        yield Case(workload=workload, ranks=ranks, options=options)
        last = ranks - 1
        for fault in (
            on_rank("slow-rank", last, 1.2),
            on_rank("slow-host", 0, 5),
            on_rank("late-input", last, 25),
            on_rank("gc-pause", 0, 75),
            on_rank("sleep-rank", last, 25),
        ):
            yield Case(workload=workload, ranks=ranks, fault=fault, options=options)
    yield Case(workload="moe", ranks=2, fault=Fault(kind="routing-skew", target=5, amount=3))
    yield from pipelines()


def pipelines() -> Iterator[Case]:
    """Four micro-batches: two ranks work 240 ms per step each, four 120 ms."""
    options = ("--micro-batches", "4")
    for ranks in (2, 4):
        yield Case(workload="pp", ranks=ranks, options=options)
        for fault in (
            Fault(kind="stage-skew", target=1, amount=1.3, ranks=(1,)),
            on_rank("slow-rank", 0, 1.3),
            on_rank("slow-host", 1, 10),
            on_rank("late-input", 0, 60),
            on_rank("gc-pause", 1, 180),
            on_rank("sleep-rank", ranks - 1, 60),
        ):
            yield Case(workload="pp", ranks=ranks, fault=fault, options=options)


def report_of(case: Case, folder: Path, compute: Sequence[str], seed: int) -> dict[str, Any] | None:
    """The report of one trial; None if the job failed. A kept run is only analysed again."""
    if not (folder / RUN_FILE).is_file():
        command = command_of(case, folder, compute, seed)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, capture_output=True, check=False, env=environment)
    if not (folder / RUN_FILE).is_file():
        return None
    report: dict[str, Any] = json.loads(
        msgspec.json.encode(distprof.analyze(folder, executor="serial"))
    )
    return report if report["job"]["outcome"] == "completed" else None


def command_of(case: Case, folder: Path, compute: Sequence[str], seed: int) -> list[str]:
    fault = () if case.fault is None else ("--fault", case.fault.option)
    return [
        *(sys.executable, "-m", "distprof", "run", case.workload, "--ranks", str(case.ranks)),
        *(*STEPS, *compute, *case.options, *fault, "--seed", str(seed), "-o", str(folder)),
    ]


def add(score: Score, case: Case, report: dict[str, Any] | None) -> None:
    """Count one trial."""
    score.trials += 1
    if report is None:
        score.failed += 1
        return
    others = others_accused(report, case.fault)
    score.accused_others += bool(others)
    score.said += [f"{found['code']} {found['message']}" for found in others]
    if case.fault is not None:
        score.named += is_named(report, case.fault)
        score.explained += is_rightly_explained(report, case.fault)
        score.first += is_first(report, case.fault)
        if not is_first(report, case.fault):
            median_ms = report["step_time"]["median_ns"] / 1e6
            asked = f"{ordered_ms(case):.0f} of {median_ms:.0f} ms"
            score.said += [f"{asked}, first: {f['message']}" for f in report["findings"][:1]]


def ordered_ms(case: Case) -> float:
    """Mean delay of the faulty rank per step; NaN if it is unknown."""
    fault = case.fault
    if fault is None or fault.kind == "routing-skew":
        return math.nan  # experts do not sleep
    blocks = 16 / case.ranks if case.workload == "pp" else 4  # forwards per step
    work_ms = 30 * blocks
    if fault.kind in ("slow-rank", "stage-skew"):
        return (fault.amount - 1) * work_ms
    each = {"slow-host": blocks, "gc-pause": 1 / 3}  # in every third step
    return fault.amount * each.get(fault.kind, 1)


def line(case: Case, score: Score) -> str:
    fault = "healthy" if case.fault is None else case.fault.option
    counts = (
        "          -          -          -"
        if case.fault is None
        else "".join(
            f"{count:>5}/{score.trials:<5}" for count in (score.named, score.explained, score.first)
        )
    )
    failed = f"  {score.failed} failed" if score.failed else ""
    return f"{case.name:10} {fault:18} {counts} {score.accused_others:>5}/{score.trials:<5}{failed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--compute", choices=("sleep", "real"), default="sleep")
    parser.add_argument("--share", type=float, default=USUAL_SHARE, help="of a step, per fault")
    parser.add_argument("--only", default="", help="part of a workload's or a fault's name")
    parser.add_argument(
        "--keep", type=Path, help="keep run directories here; those there are analysed again"
    )
    parser.add_argument("--save", type=Path, help="write the counts here, as JSON lines")
    options = parser.parse_args()
    compute = (*SMALL, *SLEEP) if options.compute == "sleep" else ()
    chosen = [
        case
        for case in (scaled(case, options.share) for case in cases())
        if options.only in f"{case.name} {case.fault.option if case.fault else 'healthy'}"
    ]
    base = options.keep or Path(tempfile.mkdtemp(prefix="fault-accuracy-"))
    print(
        f"{'workload':10} {'fault':18}   named      explained  first      others accused",
        flush=True,
    )
    began = time.monotonic()
    for number, case in enumerate(chosen):
        score = Score()
        for trial in range(options.trials):
            folder = base / f"{number:03}-{case.workload}-{trial}"
            add(score, case, report_of(case, folder, compute, trial))
            if options.keep is None:
                shutil.rmtree(folder, ignore_errors=True)
        print(line(case, score), *(f"\n    {said}" for said in score.said), flush=True)
        if options.save:
            with options.save.open("a") as file:
                row = {"case": case.name, "fault": case.fault.option if case.fault else ""}
                file.write(json.dumps({**row, **vars(score)}) + "\n")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
