"""Ends or stops each verb by a signal at many moments: what remains, and does the next call work?

::

    python -m benchmarks.interruptions --moments 50
    python -m benchmarks.interruptions --moments 10 --only "analyze,run"
    python -m benchmarks.interruptions --moments 50 --kept trials.jsonl --shard 1/4

A job runs once undisturbed, then once for each signal and moment, from a fixed seed. With
``--kept``, each trial is one line of a file, and trials in the file are not run again: the same
call resumes a call that was ended, and shards may share the file. After a trial, none of its
processes may run, no temporary file, socket or shared memory of distprof may be left (after
SIGKILL, or Ctrl-C twice: once the same command has run again), it may not have shown an error in
distprof, and its next call must succeed. SIGSTOP is followed by SIGCONT a second later, and the job
must end as if it had not been stopped.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec

from benchmarks.kept import Kept
from benchmarks.measuring import machine

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
MARK = "DISTPROF_INTERRUPTED"
GRACE_S = 20.0
LIMIT_S = 300.0
SMALL = (
    *("--device", "cpu", "--compute", "sleep", "--forward-ms", "5", "--backward-ms", "10"),
    *("--layers", "2", "--hidden", "64", "--sequence", "32", "--batch", "1", "--steps", "30"),
)
SIGNALS = ("SIGINT", "SIGINT twice", "SIGTERM", "SIGKILL", "SIGSTOP")
ENDS = {"SIGINT": {130, -2}, "SIGINT twice": {130, -2}, "SIGTERM": {143, -15}, "SIGKILL": {-9}}
AT_ONCE = ("SIGKILL", "SIGINT twice")
"""After these signals, the next call cleans up."""
OURS = re.compile(r"unexpected error in distprof|distprof/[^\n]*, line \d+[^/]*\Z")
"""A bug in distprof, caught or not: the last frame of a traceback is in one of its files."""
TRAIN = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
dist.destroy_process_group()
"""


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A command, and the command that must succeed after it was ended.

    Args:
        name: Name in the table.
        command: Arguments of distprof; ``{}`` is the folder that it may write to.
        after: Arguments of the next call; empty for the same command.
        may_fail: Allowed exit codes of the next call other than 0: 3 if nothing may have been
            recorded.
        ends: Exit codes of a user's program after a signal.
    """

    name: str
    command: tuple[str, ...]
    after: tuple[str, ...] = ()
    may_fail: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


def verbs() -> Iterator[Verb]:
    traces = str(GOLDEN / "kineto" / "dlrm-v100-8gpu")
    parallel = ("--executor", "process:2", "--cache-dir", "{}/cache")
    yield Verb(name="analyze", command=("analyze", traces, *parallel))
    yield Verb(name="analyze --no-cache", command=("analyze", traces, "--no-cache"))
    yield Verb(
        name="analyze -o",
        command=("analyze", traces, "--cache-dir", "{}/cache", "-o", "{}/report.json", "--force"),
    )
    run = ("run", "ddp", "--ranks", "2", *SMALL, "-o", "{}/run")
    yield Verb(name="run", command=run, after=("analyze", "{}/run"), may_fail=(3,))
    launch = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    )
    capture = ("capture", "-o", "{}/run", "--", *launch, "{}/train.py")
    analyze = ("analyze", "{}/run")
    yield Verb(name="capture", command=capture, after=analyze, may_fail=(3,), ends=(1,))
    sweep = ("scale", "ddp", "--ranks", "1,2", "--repeats", "1", "--sweep", "{}/sweep", *SMALL)
    yield Verb(name="scale", command=sweep, after=("scale", "--sweep", "{}/sweep"), may_fail=(3,))
    history = ("--history", "{}/history")
    yield Verb(
        name="history add",
        command=("history", "add", traces, *history, "--label", "run"),
        after=("history", "add", traces, *history, "--label", "run"),
    )
    yield Verb(
        name="export perfetto",
        command=("export", "perfetto", traces, "-o", "{}/job.pftrace", "--force"),
    )
    watched = str(GOLDEN / "job" / "nccl-fsdp-2ranks-h100")
    yield Verb(name="watch", command=("watch", watched, "--once"))
    yield Verb(name="bench", command=("bench", "--ranks", "2", "--collectives", "all_reduce"))


class Trial:
    """One job in a separate folder.

    Args:
        verb: The command.
        folder: Its folder, which also holds its temporary files.
    """

    def __init__(self, verb: Verb, folder: Path) -> None:
        self._verb, self._folder = verb, folder
        self._mark = uuid.uuid4().hex
        self._shared = set(_shared_memory())
        for name in ("work", "tmp", "home"):
            (folder / name).mkdir(parents=True)
        (folder / "work" / "train.py").write_text(TRAIN)

    def undisturbed_s(self) -> float:
        """Seconds from start to end.

        Raises:
            RuntimeError: If it fails.
        """
        began = time.monotonic()
        process = self._start(self._verb.command)
        _, err = process.communicate(timeout=LIMIT_S)
        if process.returncode:
            raise RuntimeError(f"{self._verb.name} fails undisturbed: {err[-2000:]}")
        return time.monotonic() - began

    def troubles(self, how: str, after_s: float) -> Iterator[str]:
        """Failures after the signal, one sentence each."""
        process = self._start(self._verb.command)
        time.sleep(after_s)
        was_running = process.poll() is None
        _tell(process, how)
        try:
            _, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            yield "it hangs"
            return
        expected = {0, *ENDS.get(how, ()), *self._verb.ends}
        if was_running and process.returncode not in expected:
            yield f"exit code {process.returncode}: {err[-300:]!r}"
        if OURS.search(err):
            yield f"an error of distprof: {err[-600:]!r}"
        yield from self._left(how)
        yield from self._next(how)

    def _left(self, how: str) -> Iterator[str]:
        limit = time.monotonic() + GRACE_S
        while (running := self._processes()) and time.monotonic() < limit:
            time.sleep(0.1)
        if running:
            yield f"processes are left: {running}"
            for pid in running:
                os.kill(pid, signal.SIGKILL)
        if how not in AT_ONCE:
            yield from self._files("")

    def _files(self, when: str) -> Iterator[str]:
        left = sorted(path.name for path in (self._folder / "tmp").glob("distprof*"))
        if left:
            yield f"temporary files are left{when}: {left[:3]}"
        if shared := self._shared_that_stays():
            yield f"shared memory is left{when}: {sorted(shared)[:3]}"

    def _shared_that_stays(self) -> set[str]:
        """Shared memory that is not deleted: other programs create some for moments."""
        if self._verb.ends:
            return set()
        limit, left = time.monotonic() + GRACE_S, set(_shared_memory()) - self._shared
        while left and time.monotonic() < limit:
            time.sleep(0.5)
            left &= set(_shared_memory())
            left = {name for name in left if not _is_mapped(name)}
        return left

    def _next(self, how: str) -> Iterator[str]:
        if how in AT_ONCE:
            self._age()
        process = self._start(self._verb.after or self._verb.command)
        _, err = process.communicate(timeout=LIMIT_S)
        if process.returncode not in (0, *self._verb.may_fail):
            yield f"the next call fails with {process.returncode}: {err[-600:]!r}"
        if OURS.search(err):
            yield f"the next call shows an error of distprof: {err[-600:]!r}"
        if how in AT_ONCE and not self._verb.after:
            yield from self._files(" after the next call")

    def _age(self) -> None:
        """Make temporary files as old as they will be at the next call."""
        old = time.time() - 100
        for path in (self._folder / "tmp").iterdir():
            os.utime(path, (old, old))

    def _start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        words = [word.replace("{}", str(self._folder / "work")) for word in command]
        environment = {
            **os.environ,
            MARK: self._mark,
            "TMPDIR": str(self._folder / "tmp"),
            "HOME": str(self._folder / "home"),
            "OMP_NUM_THREADS": "1",
        }
        environment.pop("XDG_RUNTIME_DIR", None)
        return subprocess.Popen(
            [sys.executable, "-m", "distprof", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _processes(self) -> list[int]:
        """Processes that were started with our mark and still run."""
        mark, found = f"{MARK}={self._mark}".encode(), []
        for entry in Path("/proc").iterdir():
            try:
                if mark in (entry / "environ").read_bytes() and _runs(entry):
                    found.append(int(entry.name))
            except (OSError, ValueError):
                continue
        return found


def _runs(process: Path) -> bool:
    return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"


def _shared_memory() -> Iterator[str]:
    """Shared memory of multiprocessing."""
    return (path.name for kind in ("sem.*", "psm_*") for path in Path("/dev/shm").glob(kind))


def _is_mapped(name: str) -> bool:
    """Whether a running process uses it, so that it belongs to another program."""
    for entry in Path("/proc").iterdir():
        try:
            if f"/dev/shm/{name}" in (entry / "maps").read_text():
                return True
        except OSError:
            continue
    return False


def _tell(process: subprocess.Popen[str], how: str) -> None:
    """Send the signals of a terminal or a scheduler: Ctrl-C goes to the whole group."""
    if process.poll() is not None:
        return
    if how.startswith("SIGINT"):
        os.killpg(process.pid, signal.SIGINT)
        if how.endswith("twice"):
            time.sleep(0.3)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        return
    process.send_signal(signal.Signals[how])
    if how == "SIGSTOP":
        time.sleep(1)
        process.send_signal(signal.SIGCONT)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One trial, as a line of the file that keeps them.

    Args:
        verb: Its name.
        how: The signal.
        seed: Seed of the moments.
        number: Number of the moment.
        after_s: Time of the signal, seconds from the start.
        troubles: Failures; empty if there were none.
    """

    verb: str
    how: str
    seed: int
    number: int
    after_s: float
    troubles: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Its identity."""
        return self.verb, self.how, self.seed, self.number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--moments", type=int, default=5, help="per verb and signal")
    parser.add_argument("--only", default="", help="verbs, separated by commas")
    parser.add_argument("--signals", default=",".join(SIGNALS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, help="file of the trials: those in it are done")
    parser.add_argument("--shard", default="1/1", help="which part of the trials, as 1/4")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else []
    chosen = [verb for verb in verbs() if not wanted or verb.name in wanted]
    kept = Kept(options.kept, Outcome)
    base = Path(tempfile.mkdtemp(prefix="interrupt-", dir="/tmp"))  # short, for sockets
    print(machine())
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        for verb in chosen:
            _try(verb, options, base, kept)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    names = {verb.name for verb in chosen}
    sys.exit(1 if _summarise([each for each in kept.results if each.verb in names]) else 0)


def _try(verb: Verb, options: argparse.Namespace, base: Path, kept: Kept[Outcome]) -> None:
    """Run every remaining trial of this shard."""
    part, _, parts = options.shard.partition("/")
    known = {outcome.key for outcome in kept.results}
    trials = list(product(options.signals.split(","), range(options.moments)))
    left = [
        (how, number)
        for place, (how, number) in enumerate(trials)
        if place % int(parts) == int(part) - 1
        and (verb.name, how, options.seed, number) not in known
    ]
    if not left:
        return
    lasts_s = Trial(verb, base / f"{verb.name}-whole").undisturbed_s()
    for how, number in left:
        draw = random.Random(f"{options.seed} {verb.name} {how} {number}")
        after_s = draw.uniform(0.02, 1.0) * lasts_s
        folder = base / f"{uuid.uuid4().hex[:8]}"
        troubles = tuple(Trial(verb, folder).troubles(how, after_s))
        shutil.rmtree(folder, ignore_errors=True)
        kept.add(
            Outcome(
                verb=verb.name,
                how=how,
                seed=options.seed,
                number=number,
                after_s=round(after_s, 3),
                troubles=troubles,
            )
        )
        for text in troubles[:2]:
            print(f"    {verb.name} {how} {number}: after {after_s:.2f} s: {text}", flush=True)


def _summarise(outcomes: Sequence[Outcome]) -> int:
    """Print one line for each verb and signal. Returns the number of trials with failures."""
    for verb, how in dict.fromkeys((each.verb, each.how) for each in outcomes):
        these = [each for each in outcomes if (each.verb, each.how) == (verb, how)]
        wrong = sum(bool(each.troubles) for each in these)
        print(f"{verb:20} {how:14} {len(these):4} moments {wrong:4} with trouble")
    return sum(bool(each.troubles) for each in outcomes)


if __name__ == "__main__":
    main()
