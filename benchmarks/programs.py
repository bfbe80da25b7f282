"""Are faults in real programs named with rank and cause, and is no rank blamed in healthy ones?

::

    python3 tasks.py programs --collect-only   # makes the programs' environment
    python -m benchmarks.programs --trials 5 --save programs.jsonl
    python -m benchmarks.programs --only FSDP2 --busy 4

Each trial runs a program of ``tests/programs`` under ``distprof capture``, healthy or with one of
five faults. "Named" counts reports that blame the struck rank alone, "explained" those that also
name the cause, "others" those that blame another rank. The last columns are the probes' own
measurement of their cost. ``--busy N`` adds N processes that compute for the whole time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.programs.declared import (
    FAULTS,
    PROGRAMS,
    STEPS,
    Fault,
    Program,
    accused,
    is_explained,
    is_named,
    losses,
)
from tests.programs.started import Ended, started, why_not

Report = Mapping[str, Any]


@dataclass(kw_only=True)
class Score:
    """Of one program with one fault, or healthy."""

    trials: int = 0
    failed: int = 0
    steps_wrong: int = 0
    named: int = 0
    explained: int = 0
    others: int = 0
    said: list[str] = field(default_factory=list)
    always_on: list[float] = field(default_factory=list)
    tracing: list[float] = field(default_factory=list)


def add(score: Score, program: Program, fault: Fault | None, ended: Ended) -> None:
    """Count one trial."""
    score.trials += 1
    if ended.code != 0 or not (ended.folder / "report.json").is_file():
        score.failed += 1
        errors = [one for one in ended.err.splitlines() if "Error" in one]
        score.said.append(
            f"exit code {ended.code}: {(errors or ['no error was printed'])[0][:200]}"
        )
        return
    logged = {step for _, step in losses(ended.out)}
    counted = [len(ended.steps(rank)) for rank in range(program.ranks)]
    score.steps_wrong += len(logged) != STEPS or set(counted) != {STEPS}
    judge(score, fault, ended.report)
    for cost in ended.report["job"]["overhead"]:
        (score.tracing if cost["mode"] == "tracing" else score.always_on).append(cost["ratio"])


def judge(score: Score, fault: Fault | None, report: Report) -> None:
    """Count whom the report blames."""
    others = accused(report)
    if fault is not None:
        others = [one for one in others if tuple(one["ranks"]) != (fault.rank,)]
        score.named += is_named(report, fault)
        score.explained += is_explained(report, fault)
        if not is_explained(report, fault):
            score.said += [f"{one['code']} {one['message']}" for one in report["findings"][:3]]
    score.others += bool(others)
    score.said += [f"blamed: {one['code']} {one['message']}" for one in others]


@contextlib.contextmanager
def busy(number: int) -> Iterator[None]:
    """That many processes which compute."""
    code = "while True: sum(range(9999))"
    load = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(number)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def cases(only: str) -> Iterator[tuple[Program, Fault | None]]:
    """Each program healthy and with each of its faults; those whose name holds the text."""
    for program in PROGRAMS.values():
        reason = why_not(program)
        if reason:
            print(f"{program.name}: left out, {reason}", flush=True)
            continue
        for fault in (None, *(FAULTS[kind] for kind in program.faults)):
            if only in f"{program.name} {fault.kind if fault else 'healthy'}":
                yield program, fault


def line(program: Program, fault: Fault | None, score: Score) -> str:
    """A row of the table."""

    def share(count: int) -> str:
        return f"{count}/{score.trials}"

    def cost(values: list[float]) -> str:
        return f"{100 * sorted(values)[len(values) // 2]:+.1f} %" if values else "-"

    right = ("-", "-") if fault is None else (share(score.named), share(score.explained))
    trouble = f"{share(score.failed)} failed  {share(score.steps_wrong)} steps wrong"
    return (
        f"{program.name:22} {fault.kind if fault else 'healthy':15} {right[0]:>7} {right[1]:>9} "
        f"{share(score.others):>7} {cost(score.always_on):>9} {cost(score.tracing):>9}  {trouble}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a program's or a fault's name")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute next to it")
    parser.add_argument("--save", type=Path, help="write the counts here, as JSON lines")
    options = parser.parse_args()
    head = ("program", "fault", "named", "explained", "others", "always on", "tracing")
    print("{:22} {:15} {:>7} {:>9} {:>7} {:>9} {:>9}".format(*head), flush=True)
    began = time.monotonic()
    with busy(options.busy), tempfile.TemporaryDirectory(prefix="programs-") as base:
        for number, (program, fault) in enumerate(cases(options.only)):
            score = Score()
            for trial in range(options.trials):
                folder = Path(base) / f"{number:03}-{trial}"
                add(score, program, fault, started(program, folder, fault=fault))
            print(
                line(program, fault, score), *(f"\n    {said}" for said in score.said), flush=True
            )
            if options.save:
                row = {"program": program.name, "fault": fault.kind if fault else ""}
                with options.save.open("a") as file:
                    file.write(json.dumps({**row, "busy": options.busy, **vars(score)}) + "\n")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
