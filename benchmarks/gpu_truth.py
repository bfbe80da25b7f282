"""Are verdicts, prices and silence right on this GPU? Programs with one fault, against the truth.

::

    python -m benchmarks.gpu_truth --list
    python -m benchmarks.gpu_truth --out truth --budget 200 --measure-only
    python -m benchmarks.gpu_truth --analyze-only truth
    python -m benchmarks.gpu_truth --out truth --device cpu --only 'moe/*'

Each training program (``gpu_programs``: a transformer, a convolutional network, an MoE, the Hugging
Face Trainer, two ranks on one GPU) exists healthy and with one fault that changes one thing. Both
are measured untraced, in turns in one process: the difference is the truth, what a repair saves.
Then each runs in a fresh process under ``distprof capture`` with its default options, and
``distprof analyze`` must name the fault first, price it, and accuse no healthy program.

A call can be repeated: what ``--out`` already holds is skipped, and ``--budget`` begins no new
program after that many seconds, so a GPU can be used for a few minutes at a time. Each fault comes
first in one of the models, so that a short call covers many faults. ``--out`` is a folder for each
machine. It holds ``truth.jsonl``, one line per program and fault, ``runs/``, the run directories,
and ``logs/``. ``--keep DIR`` copies the first two, without caches and reports, about 1 MB per run:
analyse them elsewhere, and again after each change, with ``--analyze-only DIR``, which needs no
GPU. Two ranks on one GPU (``ranks/*``) run only if ``--only`` names them.

On a machine without internet, with a checkout, in ``wheels/`` the wheels of what ``pyproject.toml``
lists as dependencies, and the project's own (``pip wheel --no-deps .``: it declares the commands)::

    python -m pip install --no-index --no-deps --target site wheels/*.whl
    export PYTHONPATH=$PWD/site:$PWD:$PWD/probes:$PWD/reference_runs
    python -m benchmarks.gpu_truth --out truth --keep kept --budget 200 --measure-only

Steps of a block are between two synchronisations, and blocks of both variants alternate: speeds of
CPUs drift. A fault counts if it costs at least 5 % of the faulty step.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.gpu_programs.faults import Case, cases
from benchmarks.kept import Kept
from benchmarks.measuring import print_table
from distprof.artefacts import RUN_FILE
from distprof.ingest.job.rank_folder import RankFolder
from distprof.run.records import untraced_steps

__all__ = ["Finding", "Truth", "judge", "main", "named"]

ROOT = Path(__file__).resolve().parent.parent
TRUTH, RUNS, LOGS = "truth.jsonl", "runs", "logs"
COUNTS = 0.05
"""Share of a step from which a fault must be found, and a healthy program must not be accused."""
CLOSE = 0.15
ACCUSING = ("HST", "INP", "STR", "COM")
LIMIT_S = 150
"""The longest that one program may take."""
OTHERS = {"trainer": "trainer", "ranks": "ranks"}
"""Modules of programs that have their own."""
NOT_KEPT = ("report.*", "*.parquet", ".*", "*.lock")


class Truth(msgspec.Struct, kw_only=True):
    """What a fault costs, measured without any profiler.

    Args:
        program: Name of the program.
        fault: Name of the fault.
        device: The GPU, or "cpu".
        healthy_ms: Mean milliseconds of a step without the fault, in each block.
        faulty_ms: The same with it; block i was next to block i of the healthy program.
        saves_ms: Median difference: what the repair saves per step.
        run_dir: Run directory of the faulty program, relative to the file.
        healthy_run_dir: Of the healthy one; programs with equal settings share it.
        settings: What differs from a default training: of both programs, and the fault.
        error: Why it could not be measured.
    """

    program: str
    fault: str
    device: str = ""
    healthy_ms: list[float] = []
    faulty_ms: list[float] = []
    saves_ms: float = 0.0
    run_dir: str = ""
    healthy_run_dir: str = ""
    settings: list[dict[str, Any]] = []
    error: str = ""

    @property
    def share(self) -> float:
        """Share of the faulty step that a repair saves."""
        return self.saves_ms / statistics.median(self.faulty_ms) if self.faulty_ms else 0.0


class Finding(msgspec.Struct):
    """The fields of a finding that are judged."""

    code: str
    message: str
    cost_ns_per_step: int | None = None
    recoverable_ns: int | None = None
    remaining_ns: int | None = None

    @property
    def price_ms(self) -> float | None:
        """What the report says that it saves per step; if that is unknown, what it costs."""
        known = (self.remaining_ns, self.recoverable_ns, self.cost_ns_per_step)
        return next((value / 1e6 for value in known if value is not None), None)


class Plan(msgspec.Struct):
    """The length of the analysed step."""

    step_ns: int | None = None


class Report(msgspec.Struct):
    """The parts of a report that are judged."""

    findings: list[Finding]
    plan: Plan | None = None

    @property
    def first(self) -> Finding | None:
        """The first finding that is about the job and not about the recording."""
        return next((one for one in self.findings if not one.code.startswith("CAP")), None)


# Running ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured and recorded."""

    device: str
    tiny: bool
    steps: int
    blocks: int
    block_steps: int


class Job:
    """A program that begins when it is told to: its imports are done while another one works."""

    def __init__(self, command: Sequence[str], log: Path, lines: Sequence[str] = ()) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        path = [str(ROOT), *(str(ROOT / name) for name in ("probes", "reference_runs"))]
        path += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        self.log = log
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"},
        )
        self._lines = lines

    def work(self) -> int:
        """Let it begin and end; the exit code."""
        try:
            self._process.communicate("\n".join([*self._lines, "", ""]).encode(), LIMIT_S)
        except subprocess.TimeoutExpired:
            self.end()
        self._log.close()
        return self._process.returncode

    def end(self) -> None:
        """End it now."""
        self._process.terminate()
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Measure the pairs of some cases in one process."""

    cases: Sequence[Case]
    out: Path
    sizes: Sizes

    @property
    def title(self) -> str:
        return "measure " + ", ".join(case.name for case in self.cases)

    def start(self) -> Job:
        self._results.unlink(missing_ok=True)
        pairs = [
            json.dumps(
                {
                    "program": case.program,
                    "fault": case.fault.name,
                    "healthy": case.settings(faulty=False, tiny=self.sizes.tiny),
                    "faulty": case.settings(faulty=True, tiny=self.sizes.tiny),
                }
            )
            for case in self.cases
        ]
        sizes = ["--blocks", str(self.sizes.blocks), "--block-steps", str(self.sizes.block_steps)]
        module = "benchmarks.gpu_programs.in_turns"
        command = [sys.executable, "-m", module, str(self._results), *sizes]
        return Job(
            [*command, "--device", self.sizes.device],
            self.out / LOGS / f"measure-{slug(self.cases[0].name)}.log",
            pairs,
        )

    def finish(self, code: int, truths: Kept[Truth]) -> str:
        lines = self._results.read_text().splitlines() if self._results.exists() else []
        for line in lines:
            truths.add(self._truth(json.loads(line)))
        self._results.unlink(missing_ok=True)
        errors = [f"{one.fault}: {one.error}" for one in truths.results[-len(lines) :] if one.error]
        missing = len(self.cases) - len(lines)
        errors += [f"{missing} not measured, exit code {code}"] if missing else []
        return "; ".join(errors)

    @property
    def _results(self) -> Path:
        return self.out / LOGS / f"{slug(self.cases[0].name)}.jsonl"

    def _truth(self, result: dict[str, Any]) -> Truth:
        found = msgspec.convert(result, Truth)
        case = next(one for one in self.cases if named(one) == (found.program, found.fault))
        found.settings = [case.settings(faulty=f, tiny=self.sizes.tiny) for f in (False, True)]
        found.run_dir, found.healthy_run_dir = faulty_run(case), healthy_run(case)
        pairs = zip(found.healthy_ms, found.faulty_ms, strict=True)
        found.saves_ms = statistics.median(b - a for a, b in pairs) if found.healthy_ms else 0.0
        return found


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Capture one program, with default options."""

    case: Case
    faulty: bool
    out: Path
    sizes: Sizes

    @property
    def title(self) -> str:
        return f"capture {Path(self._folder).name}"

    def start(self) -> Job:
        shutil.rmtree(self._folder, ignore_errors=True)
        settings = json.dumps(self.case.settings(faulty=self.faulty, tiny=self.sizes.tiny))
        distprof = [sys.executable, "-m", "distprof", "capture", "--no-report"]
        module = OTHERS.get(self.case.program, "train")
        program = [sys.executable, "-m", f"benchmarks.gpu_programs.{module}", self.case.program]
        sizes = ["--device", self.sizes.device, "--steps", str(self.sizes.steps)]
        command = [*distprof, "-o", str(self._folder), "--", *program, *sizes]
        return Job(
            [*command, "--settings", settings, "--wait"],
            self.out / LOGS / f"{self._folder.name}.log",
        )

    def finish(self, code: int, truths: Kept[Truth]) -> str:  # noqa: ARG002
        return "" if is_recorded(self._folder) else f"exit code {code}, no complete recording"

    @property
    def _folder(self) -> Path:
        name = faulty_run(self.case) if self.faulty else healthy_run(self.case)
        return self.out / name


def named(case: Case) -> tuple[str, str]:
    """Names of program and fault."""
    return case.program, case.fault.name


def slug(name: str) -> str:
    """A file name."""
    return name.replace("/", "-")


def faulty_run(case: Case) -> str:
    """Folder of the faulty program's run."""
    return f"{RUNS}/{slug(case.name)}"


def healthy_run(case: Case) -> str:
    """Folder of the healthy program's run; the first case with its settings names it."""
    same = (one for one in cases() if one.program == case.program)
    first = next(one for one in same if one.fault.both == case.fault.both)
    suffix = f"-for-{first.fault.name}" if case.fault.both else ""
    return f"{RUNS}/{case.program}-healthy{suffix}"


def is_recorded(folder: Path) -> bool:
    """Whether a capture went to its end and left a trace."""
    file = folder / RUN_FILE
    if not file.exists():
        return False
    is_complete = json.loads(file.read_bytes()).get("outcome") == "completed"
    return is_complete and any(folder.glob("rank*/trace*"))


def to_do(
    chosen: Sequence[Case],
    out: Path,
    sizes: Sizes,
    truths: Kept[Truth],
    *,
    group: int,
    healthy: str,
) -> Iterator[Measurement | Recording]:
    """Measurements of a few cases, then their recordings; without what is there."""
    done: set[str] = set()
    for some in groups(chosen, group):
        known = {(one.program, one.fault) for one in truths.results if not one.error}
        missing = [case for case in some if named(case) not in known]
        if missing:
            yield Measurement(cases=missing, out=out, sizes=sizes)
        for case in some:
            for faulty in (True, False):
                name = faulty_run(case) if faulty else healthy_run(case)
                wanted = faulty or healthy == "all" or (healthy == "plain" and not case.fault.both)
                if wanted and name not in done and not is_recorded(out / name):
                    yield Recording(case=case, faulty=faulty, out=out, sizes=sizes)
                done.add(name)


def groups(chosen: Sequence[Case], size: int) -> Iterator[list[Case]]:
    """So many cases at a time; those that need a process of their own alone."""
    waiting: list[Case] = []
    for case in chosen:
        if case.fault.is_alone:
            yield [case]
            continue
        waiting.append(case)
        if len(waiting) == size:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def carry_out(
    works: Iterable[Measurement | Recording], truths: Kept[Truth], *, until: float
) -> None:
    """One after the other; the next one starts, and then waits, while one works."""
    coming = iter(works)
    work = next(coming, None)
    job = work.start() if work else None
    while work and job:
        after = next(coming, None)
        next_job = after.start() if after else None
        began = time.monotonic()
        try:
            failed = work.finish(job.work(), truths)
        except BaseException:
            if next_job:
                next_job.end()
            raise
        print(f"{time.monotonic() - began:5.1f} s  {work.title}", flush=True)
        if failed:
            print(f"         {failed}; see {job.log}", flush=True)
        if next_job and time.monotonic() > until:
            print("The budget is spent: the same call continues.", flush=True)
            next_job.end()
            return
        work, job = after, next_job


def why_not(case: Case, device: str) -> str:
    """Why a case cannot run here; empty if it can."""
    missing = {
        "cuda": device == "cpu" and "it needs a GPU",
        "compiler": not (shutil.which("cc") or shutil.which("gcc")) and "it needs a C compiler",
        "transformers": next(
            (
                f"it needs {name}"
                for name in ("transformers", "accelerate")
                if importlib.util.find_spec(name) is None
            ),
            "",
        ),
    }
    return missing.get(case.fault.needs, "") or ""


# Judging ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was said about one program with a fault."""

    truth: Truth
    first: Finding | None
    is_right: bool
    own_ms: float

    @property
    def counts(self) -> bool:
        """Whether the fault costs enough to be judged."""
        return self.truth.share >= COUNTS

    @property
    def price_ratio(self) -> float | None:
        """The first finding's price as a share of the truth; None if it is wrong or has none."""
        return self._share_of(self.truth.saves_ms)

    @property
    def own_ratio(self) -> float | None:
        """The same as a share of what the recorded process itself lost: CPUs vary in speed."""
        return self._share_of(self.own_ms - statistics.median(self.truth.healthy_ms))

    def _share_of(self, saves_ms: float) -> float | None:
        price = self.first.price_ms if self.first else None
        return price / saves_ms if self.is_right and price is not None and saves_ms > 0 else None


def untraced_ms(folder: Path) -> float:
    """Mean untraced step of the recorded process, stalls included."""
    log = RankFolder(0, str(next(folder.glob("rank0*")))).load().step_log
    kept = log.take(untraced_steps(log))
    return float((kept["end_ns"] - kept["start_ns"]).mean()) / 1e6


def judge(truth: Truth, case: Case, report: Report, own_ms: float) -> Verdict:
    """Whether the first finding names the fault.

    Args:
        truth: What the fault costs.
        case: The program with the fault.
        report: What was said about it.
        own_ms: Mean untraced step of the recorded process.
    """
    first = report.first
    message = first.message.lower() if first else ""
    is_right = first is not None and (
        first.code in case.fault.right or any(word in message for word in case.fault.words)
    )
    return Verdict(truth=truth, first=first, is_right=is_right, own_ms=own_ms)


def accusations(report: Report) -> list[Finding]:
    """Findings that promise a healthy program a noticeable gain."""
    step_ms = (report.plan.step_ns or 0) / 1e6 if report.plan else 0.0
    return [
        one
        for one in report.findings
        if one.code.startswith(ACCUSING) and (one.price_ms or 0.0) > COUNTS * step_ms
    ]


def analyze(folder: Path) -> Report | str:
    """What ``distprof analyze`` says about a run directory, or why it says nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / folder.name
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*NOT_KEPT))
        command = [sys.executable, "-m", "distprof", "analyze", "--format", "json", "--no-cache"]
        found = subprocess.run([*command, str(copy)], capture_output=True, check=False)
    if found.returncode:
        return found.stderr.decode(errors="replace").strip()[-300:]
    return msgspec.json.decode(found.stdout, type=Report)


def show(folder: Path, only: Sequence[str]) -> None:
    """Analyse all recordings and print the table."""
    known = {named(case): case for case in cases()}
    last = {(one.program, one.fault): one for one in Kept(folder / TRUTH, Truth).results}
    truths = [one for key, one in last.items() if key in known and is_chosen(known[key], only)]
    verdicts: list[Verdict] = []
    rows = []
    for truth in truths:
        if truth.error or not is_recorded(folder / truth.run_dir):
            print(f"{truth.program}/{truth.fault}: {truth.error or 'not recorded'}")
            continue
        report = analyze(folder / truth.run_dir)
        if isinstance(report, str):
            print(f"{truth.program}/{truth.fault}: {report}")
            continue
        case, own_ms = known[truth.program, truth.fault], untraced_ms(folder / truth.run_dir)
        verdicts.append(judge(truth, case, report, own_ms))
        rows.append(row(verdicts[-1]))
    if rows:
        print_table(HEAD, rows)
    names = sorted({one.healthy_run_dir for one in truths if one.healthy_run_dir})
    healthy = {name: analyze(folder / name) for name in names if is_recorded(folder / name)}
    accused = show_healthy(healthy)
    print(*sorted({one.device for one in truths}), sep=", ")
    print(summary(verdicts, len(healthy), accused))


HEAD = (
    *("fault", "untraced healthy ms", "untraced faulty ms", "truth: repair saves ms"),
    *("first finding", "saves ms", "right?", "price ratio", "of own step"),
)


def row(verdict: Verdict) -> tuple[str, ...]:
    """One line of the table."""
    truth, first = verdict.truth, verdict.first
    price = first.price_ms if first else None
    ratios = (verdict.price_ratio, verdict.own_ratio)
    said = "yes" if verdict.is_right else "no"
    return (
        f"{truth.program}/{truth.fault}",
        f"{statistics.median(truth.healthy_ms):.1f}",
        f"{statistics.median(truth.faulty_ms):.1f}",
        f"{truth.saves_ms:.1f}",
        f"{first.code} {first.message[:60]}".replace("|", "/") if first else "none",
        "-" if price is None else f"{price:.1f}",
        said if verdict.counts else f"({said}: below {COUNTS:.0%})",
        *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    )


def show_healthy(reports: dict[str, Report | str]) -> int:
    """Print who was accused, and count them."""
    accused = 0
    for name, report in reports.items():
        found = accusations(report) if isinstance(report, Report) else []
        accused += bool(found)
        said = report if isinstance(report, str) else "silent"
        if found:
            said = f"ACCUSED: {found[0].code}, {found[0].price_ms:.1f} ms, {found[0].message}"
        print(f"{Path(name).name}: {said}")
    return accused


def summary(verdicts: Sequence[Verdict], healthy: int, accused: int) -> str:
    """The shares that count."""
    counted = [one for one in verdicts if one.counts]
    right = [one for one in counted if one.is_right]
    close = [one for one in counted if is_close(one.price_ratio)]
    own = [one for one in counted if is_close(one.own_ratio)]
    total = len(counted)
    return (
        f"{len(verdicts)} faults, {total} cost at least {COUNTS:.0%} of a step: "
        f"first finding right in {share(len(right), total)}, "
        f"priced within {CLOSE:.0%} in {share(len(close), total)}, "
        f"or of what the recorded process lost in {share(len(own), total)}; "
        f"{accused} of {healthy} healthy programs accused"
    )


def is_close(ratio: float | None) -> bool:
    """Whether a price is near the truth."""
    return ratio is not None and abs(ratio - 1) <= CLOSE


def share(part: int, whole: int) -> str:
    """A count and its share."""
    return f"{part} of {whole}" + (f" ({part / whole:.0%})" if whole else "")


# The command --------------------------------------------------------------------------------------


def is_chosen(case: Case, only: Sequence[str]) -> bool:
    """Whether a name or pattern is that of program/fault, the program, or the fault.

    Without any, all that need only one process of their own.
    """
    names = (case.name, *named(case))
    if not only:
        return case.fault.needs != "two ranks"
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in only)


def keep(out: Path, folder: Path) -> None:
    """Copy the truth and the run directories, without what an analysis adds."""
    folder.mkdir(parents=True, exist_ok=True)
    if (out / TRUTH).exists():
        shutil.copy2(out / TRUTH, folder / TRUTH)
    for run in sorted((out / RUNS).glob("*")):
        if is_recorded(run):
            target = folder / RUNS / run.name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(run, target, ignore=shutil.ignore_patterns(*NOT_KEPT))
    total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {total / 1e6:.1f} MB")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-truth"), help="folder of results")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", default="", help="names or patterns, separated by commas")
    parser.add_argument("--list", action="store_true", help="list programs and faults, and end")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds to begin programs in")
    parser.add_argument("--steps", type=int, default=90, help="of each recorded program")
    parser.add_argument("--blocks", type=int, default=4, help="measured of each variant")
    parser.add_argument("--block-steps", type=int, default=10, help="a multiple of 10")
    parser.add_argument("--group", type=int, default=4, help="pairs measured by one process")
    parser.add_argument("--tiny", action="store_true", help="tiny models; always on a CPU")
    parser.add_argument(
        "--healthy",
        choices=("plain", "all", "none"),
        default="plain",
        help="healthy programs to record: those with default settings, all, none",
    )
    parser.add_argument("--measure-only", action="store_true", help="do not analyse")
    parser.add_argument("--analyze-only", type=Path, metavar="DIR", help="only analyse this folder")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy of results, without caches")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    began = time.monotonic()
    options = parse(arguments)
    only = [name for name in options.only.split(",") if name]
    if options.analyze_only:
        show(options.analyze_only, only)
        return
    chosen = [case for case in cases() if is_chosen(case, only)]
    able = [case for case in chosen if not why_not(case, options.device)]
    if options.list:
        for case in chosen:
            print(f"{case.name:32}", *case.fault.right, *case.fault.words, sep="  ")
    for case in chosen:
        if case not in able:
            print(f"{case.name}: left out, {why_not(case, options.device)}")
    if options.list:
        return
    sizes = Sizes(
        device=options.device,
        tiny=options.tiny or options.device == "cpu",
        steps=options.steps,
        blocks=options.blocks,
        block_steps=options.block_steps,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    truths = Kept(options.out / TRUTH, Truth)
    works = to_do(able, options.out, sizes, truths, group=options.group, healthy=options.healthy)
    carry_out(works, truths, until=began + options.budget)
    if options.keep:
        keep(options.out, options.keep)
    if not options.measure_only:
        show(options.out, only)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
