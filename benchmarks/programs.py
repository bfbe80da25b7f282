"""Are faults in real programs named with rank and cause, and is no rank blamed in healthy ones?

::

    python3 tasks.py programs --collect-only   # makes the programs' environment
    python -m benchmarks.programs --trials 5 --kept programs.jsonl --wrong wrong/
    python -m benchmarks.programs --only FSDP2 --busy 4

Each trial runs a program of ``tests/programs`` under ``distprof capture``, healthy or with one of
five faults; a program's second trial comes after the first one of all others. "Named" counts
reports that blame only the faulty rank, "explained" those that also name the cause, "others" those
that blame another rank. The last columns are the probes' own measurement of their cost.
``--busy N`` adds N processes that compute for the whole time. With ``--kept``, each trial is one
line of a file, and trials in the file are not run again: the same call resumes a call that was
ended. ``--wrong`` keeps the run directories of trials with a wrong report.

::

    python -m benchmarks.programs --overhead --steps 120 --trials 3 --ranks 1

prints the cost of always-on probes and tracing for each healthy program, as a share of its step,
with the 95 % interval over alternating blocks of steps. With several trials it shows the median
one. The probes need six pairs of blocks: give enough steps, and leave a core free.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.kept import Kept
from tests.programs.declared import (
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
Case = tuple[Program, Fault | None]


class Cost(msgspec.Struct, frozen=True):
    """Cost of the probes, as shares of the step.

    Args:
        ratio: The estimate.
        low: Lower end of its 95 % interval.
        high: Upper end.
        num_pairs: Number of pairs of blocks, on the rank with the fewest.
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


class Trial(msgspec.Struct, kw_only=True):
    """One program once, healthy or with a fault.

    Args:
        program: Its name.
        fault: Kind of the fault; empty if healthy.
        number: Of the trial, from 0.
        busy: Number of other processes that computed at the same time.
        steps: Number of steps to train.
        failed: Whether it ended badly or left no report.
        steps_wrong: Whether the steps differ from the program's log.
        named: Whether the report blames only the faulty rank.
        explained: Whether it also names the cause.
        blamed_others: Whether it blames another rank.
        said: The report's statements, if they are not right.
        unmeasured: Why a cost could not be measured.
        always_on: Cost of the probes without tracing.
        tracing: Cost of tracing.
    """

    program: str
    fault: str
    number: int
    busy: int
    steps: int
    failed: bool = False
    steps_wrong: bool = False
    named: bool = False
    explained: bool = False
    blamed_others: bool = False
    said: list[str] = []
    unmeasured: list[str] = []
    always_on: list[Cost] = []
    tracing: list[Cost] = []

    @property
    def is_right(self) -> bool:
        """Whether the report names the fault and nothing else."""
        found = self.explained or not self.fault
        return found and not (self.failed or self.steps_wrong or self.blamed_others)


def judge(trial: Trial, program: Program, fault: Fault | None, ended: Ended) -> None:
    """Fill in the result of a trial."""
    if ended.code != 0 or not (ended.folder / "report.json").is_file():
        errors = [one for one in ended.err.splitlines() if "Error" in one]
        said = (errors or ["no error was printed"])[0][:200]
        trial.failed, trial.said = True, [f"exit code {ended.code}: {said}"]
        return
    logged = {step for _, step in losses(ended.out)}
    counted = {len(ended.steps(rank)) for rank in range(program.ranks)}
    trial.steps_wrong = len(logged) != trial.steps or counted != {trial.steps}
    report = ended.report
    _judge_blame(trial, fault, report)
    trial.unmeasured = [note for note in report["job"]["probe_notes"] if "not measured" in note]
    for found in report["job"]["overhead"]:
        cost = Cost(*(found[name] for name in Cost.__struct_fields__))
        (trial.tracing if found["mode"] == "tracing" else trial.always_on).append(cost)


def _judge_blame(trial: Trial, fault: Fault | None, report: Report) -> None:
    others = accused(report)
    if fault is not None:
        others = [one for one in others if tuple(one["ranks"]) != (fault.rank,)]
        trial.named, trial.explained = is_named(report, fault), is_explained(report, fault)
        if not trial.explained:
            trial.said += [f"{one['code']} {one['message']}" for one in report["findings"][:3]]
    trial.blamed_others = bool(others)
    trial.said += [f"blamed: {one['code']} {one['message']}" for one in others]


def _same(one: Trial, other: Trial) -> bool:
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("program", "fault", "number", "busy", "steps")
    )


@contextlib.contextmanager
def busy(number: int) -> Iterator[None]:
    """Run this many processes that compute."""
    code = "while True: sum(range(9999))"
    load = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(number)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def cases(only: str, *, healthy_only: bool, ranks: int | None = None) -> list[Case]:
    """Each program healthy and with each of its faults, if the name contains the text."""
    found: list[Case] = []
    for usual in PROGRAMS.values():
        program = usual if ranks is None else replace(usual, ranks=ranks)
        reason = why_not(program)
        if program.ranks < program.fewest_ranks:
            reason = f"it needs {program.fewest_ranks} ranks"
        if reason:
            print(f"{program.name}: left out, {reason}", flush=True)
            continue
        faults = () if healthy_only else program.faults
        each = [(program, None), *((program, program.struck_by(kind)) for kind in faults)]
        found += [case for case in each if only in f"{program.name} {_kind(case[1]) or 'healthy'}"]
    return found


def _kind(fault: Fault | None) -> str:
    return fault.kind if fault else ""


# Output -------------------------------------------------------------------------------------------


def line(case: Case, trials: Sequence[Trial]) -> str:
    """A row of the table: all trials of one program with one fault."""
    program, fault = case

    def share(name: str) -> str:
        return f"{sum(getattr(trial, name) for trial in trials)}/{len(trials)}"

    right = ("-", "-") if fault is None else (share("named"), share("explained"))
    always_on = _short([cost for trial in trials for cost in trial.always_on])
    tracing = _short([cost for trial in trials for cost in trial.tracing])
    return (
        f"{program.name:22} {_kind(fault) or 'healthy':15} {right[0]:>7} {right[1]:>9} "
        f"{share('blamed_others'):>7} {always_on:>9} {tracing:>9}"
        f"  {share('failed')} failed  {share('steps_wrong')} steps wrong"
    )


def totals(trials: Sequence[Trial]) -> str:
    """Rates over all programs, for faulty and for healthy runs."""
    struck = [trial for trial in trials if trial.fault]
    healthy = [trial for trial in trials if not trial.fault]

    def rate(name: str) -> str:
        count = sum(getattr(trial, name) for trial in struck)
        return f"{count} of {len(struck)} ({100 * count / max(len(struck), 1):.0f} %)"

    return (
        f"faults: rank named {rate('named')}, cause named {rate('explained')}, another rank "
        f"blamed {rate('blamed_others')}; healthy: {sum(t.blamed_others for t in healthy)} of "
        f"{len(healthy)} blame a rank; {sum(t.failed for t in trials)} failed"
    )


def _short(costs: list[Cost]) -> str:
    found = median(costs)
    return f"{100 * found.ratio:+.1f} %" if found else "-"


def median(costs: list[Cost]) -> Cost | None:
    """The median cost; None if no trial could measure one."""
    ordered = sorted(costs, key=lambda cost: cost.ratio)
    return ordered[len(costs) // 2] if costs else None


def overhead_line(case: Case, trials: Sequence[Trial]) -> str:
    """A row of the table of costs."""
    measured = [cost for trial in trials for cost in trial.always_on]
    always_on = median(measured)
    tracing = median([cost for trial in trials for cost in trial.tracing])
    one = always_on or tracing
    step = f"{one.step_ns / 1e6:,.0f} ms" if one else "-"
    pairs = always_on.num_pairs if always_on else "-"
    shown = [str(cost or "not measured") for cost in (always_on, tracing)]
    of = f"{len(measured)} of {len(trials)}"
    return f"{case[0].name:22} {step:>9} {shown[0]:>28} {pairs:>5} {of:>8}   {shown[1]}"


def _head(*, is_overhead: bool) -> str:
    if is_overhead:
        names = ("program", "step", "always on", "pairs", "measured")
        return "{:22} {:>9} {:>28} {:>5} {:>8}   tracing".format(*names)
    names_ = ("program", "fault", "named", "explained", "others", "always on", "tracing")
    return "{:22} {:15} {:>7} {:>9} {:>7} {:>9} {:>9}".format(*names_)


def show(chosen: Sequence[Case], trials: Sequence[Trial], *, is_overhead: bool) -> None:
    """Print a row for each tried case, then the rates."""
    print(_head(is_overhead=is_overhead))
    tried: list[Trial] = []
    for case in chosen:
        wanted = (case[0].name, _kind(case[1]))
        mine = [trial for trial in trials if (trial.program, trial.fault) == wanted]
        if mine:
            print(overhead_line(case, mine) if is_overhead else line(case, mine))
        tried += mine
    print(totals(tried))


# A campaign ---------------------------------------------------------------------------------------


def _keep(folder: Path, place: Path) -> None:
    """Keep a run directory, replacing one of the same name."""
    shutil.rmtree(place, ignore_errors=True)
    if folder.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a program's or a fault's name")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute next to it")
    parser.add_argument("--kept", type=Path, help="file of the trials: those in it are done")
    parser.add_argument("--wrong", type=Path, help="where run directories are kept if not right")
    parser.add_argument(
        "--overhead", action="store_true", help="healthy runs only: what probes cost"
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--ranks", type=int, help="of each program, in place of its own number")
    options = parser.parse_args()
    kept = Kept(options.kept, Trial)
    chosen = cases(options.only, healthy_only=options.overhead, ranks=options.ranks)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with busy(options.busy), tempfile.TemporaryDirectory(prefix="programs-") as base:
        for number in range(options.trials):
            for case in chosen:
                _try(number, case, options, Path(base), kept)
    wanted = (options.busy, options.steps)
    counted = [trial for trial in kept.results if (trial.busy, trial.steps) == wanted]
    show(chosen, counted, is_overhead=options.overhead)
    print(f"{time.monotonic() - began:.0f} s")


def _try(
    number: int, case: Case, options: argparse.Namespace, base: Path, kept: Kept[Trial]
) -> None:
    program, fault = case
    trial = Trial(
        program=program.name,
        fault=_kind(fault),
        number=number,
        busy=options.busy,
        steps=options.steps,
    )
    if any(_same(trial, other) for other in kept.results):
        return
    name = f"{program.name}-{trial.fault or 'healthy'}-{number}"
    folder = base / "".join(letter if letter.isalnum() else "-" for letter in name)
    ended = started(program, folder, fault=fault, steps=trial.steps)
    judge(trial, program, fault, ended)
    kept.add(trial)
    remarks = trial.said + (trial.unmeasured if options.overhead else [])
    verdict = "right" if trial.is_right else "NOT right"
    print(f"{folder.name}: {verdict}", *(f"\n    {said}" for said in remarks), flush=True)
    if options.wrong and not trial.is_right:
        _keep(folder, options.wrong / folder.name)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
