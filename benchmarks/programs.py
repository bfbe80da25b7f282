"""Are faults in real programs named with rank and cause, and is no rank blamed in healthy ones?

::

    python3 tasks.py programs --collect-only   # makes the programs' environment
    python -m benchmarks.programs --trials 5 --save programs.jsonl
    python -m benchmarks.programs --only FSDP2 --busy 4

Each trial runs a program of ``tests/programs`` under ``distprof capture``, healthy or with one of
five faults. "Named" counts reports that blame the struck rank alone, "explained" those that also
name the cause, "others" those that blame another rank. The last columns are the probes' own
measurement of their cost. ``--busy N`` adds N processes that compute for the whole time.

::

    python -m benchmarks.programs --overhead --steps 120 --trials 3

prints what always-on probes and tracing cost each healthy program: of its step, with the 95 %
interval over alternating blocks of steps. Of several trials it shows the median one. The probes
need six pairs of blocks: give enough steps, and leave a core free.
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
from typing import Any, NamedTuple

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


class Cost(NamedTuple):
    """What the probes cost, as shares of the step.

    Args:
        ratio: The estimate.
        low: Lower end of its 95 % interval.
        high: Upper end.
        num_pairs: Pairs of blocks that it is from; of the rank with the fewest.
        step_ns: Step without them.
    """

    ratio: float
    low: float
    high: float
    num_pairs: int
    step_ns: int

    def __str__(self) -> str:
        """In percent, with the interval."""
        return f"{100 * self.ratio:+.1f} % ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


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
    unmeasured: list[str] = field(default_factory=list)
    always_on: list[Cost] = field(default_factory=list)
    tracing: list[Cost] = field(default_factory=list)


def add(
    score: Score, program: Program, fault: Fault | None, ended: Ended, steps: int = STEPS
) -> None:
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
    score.steps_wrong += len(logged) != steps or set(counted) != {steps}
    judge(score, fault, ended.report)
    score.unmeasured += [
        note for note in ended.report["job"]["probe_notes"] if "not measured" in note
    ]
    for found in ended.report["job"]["overhead"]:
        cost = Cost(*(found[name] for name in Cost._fields))
        (score.tracing if found["mode"] == "tracing" else score.always_on).append(cost)


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

    right = ("-", "-") if fault is None else (share(score.named), share(score.explained))
    trouble = f"{share(score.failed)} failed  {share(score.steps_wrong)} steps wrong"
    return (
        f"{program.name:22} {fault.kind if fault else 'healthy':15} {right[0]:>7} {right[1]:>9} "
        f"{share(score.others):>7} {_short(score.always_on):>9} {_short(score.tracing):>9}"
        f"  {trouble}"
    )


def _short(costs: list[Cost]) -> str:
    found = median(costs)
    return f"{100 * found.ratio:+.1f} %" if found else "-"


def median(costs: list[Cost]) -> Cost | None:
    """The cost in the middle; None if no trial could measure one."""
    return sorted(costs)[len(costs) // 2] if costs else None


def overhead_line(program: Program, score: Score) -> str:
    """A row of the table of costs."""
    always_on, tracing = median(score.always_on), median(score.tracing)
    one = always_on or tracing
    step = f"{one.step_ns / 1e6:,.0f} ms" if one else "-"
    pairs = always_on.num_pairs if always_on else "-"
    measured = f"{len(score.always_on)} of {score.trials}"
    shown = [str(cost or "not measured") for cost in (always_on, tracing)]
    return f"{program.name:22} {step:>9} {shown[0]:>28} {pairs:>5} {measured:>8}   {shown[1]}"


def _head(*, is_overhead: bool) -> str:
    if is_overhead:
        names = ("program", "step", "always on", "pairs", "measured")
        return "{:22} {:>9} {:>28} {:>5} {:>8}   tracing".format(*names)
    names_ = ("program", "fault", "named", "explained", "others", "always on", "tracing")
    return "{:22} {:15} {:>7} {:>9} {:>7} {:>9} {:>9}".format(*names_)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a program's or a fault's name")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute next to it")
    parser.add_argument("--save", type=Path, help="write the counts here, as JSON lines")
    parser.add_argument(
        "--overhead", action="store_true", help="healthy runs only: what probes cost"
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    print(_head(is_overhead=options.overhead), flush=True)
    began = time.monotonic()
    with busy(options.busy), tempfile.TemporaryDirectory(prefix="programs-") as base:
        for number, (program, fault) in enumerate(cases(options.only)):
            if options.overhead and fault is not None:
                continue
            score = Score()
            for trial in range(options.trials):
                folder = Path(base) / f"{number:03}-{trial}"
                ended = started(program, folder, fault=fault, steps=options.steps)
                add(score, program, fault, ended, options.steps)
            row_of = (
                overhead_line(program, score) if options.overhead else line(program, fault, score)
            )
            remarks = score.said + (score.unmeasured if options.overhead else [])
            print(row_of, *(f"\n    {said}" for said in remarks), flush=True)
            if options.save:
                row = {"program": program.name, "fault": fault.kind if fault else ""}
                with options.save.open("a") as file:
                    file.write(json.dumps({**row, "busy": options.busy, **vars(score)}) + "\n")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
