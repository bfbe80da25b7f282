"""Broken inputs of every kind through the command line: each must end in a result or a sentence.

::

    python -m benchmarks.fuzz --inputs 100000                 # continues where it stopped
    python -m benchmarks.fuzz --inputs 100000 --shard 1/4     # a quarter of them
    python -m benchmarks.fuzz --inputs 100000 --only history  # those that change with a fix
    python -m benchmarks.fuzz --replay 4711                   # one input, with what it answered

An input is a number, which determines the seed, its mutations and the command that reads it. A
process that has imported everything reads one input after another. It is replaced if an input takes
too long or kills it. Failures are minimised and kept in the folder of failures, one for each class
of failure, with the command that reproduces it.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import multiprocessing
import os
import re
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from benchmarks.fuzzing.mutations import Files, is_long
from benchmarks.fuzzing.oracle import Answer, problem_of
from benchmarks.fuzzing.run import Input, answer_of, files_of, input_of, run_files
from benchmarks.fuzzing.seeds import all_seeds

__all__ = ["Found", "Limits", "chosen", "failures", "main", "smaller"]

SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
MOST_DATA = 8 << 30
"""Memory limit of a process: a runaway input must not affect the machine.

It does not count address space that threads only reserve, which is more on more cores.
"""

LIFE = 3_000
"""Inputs per process, so that side effects of one input reach few others."""

MOST_TRIALS = 400
LONGEST_S = 60.0
"""Runs and time for minimising one failure."""

SAVE_EVERY_S = 5.0


@dataclass(frozen=True)
class Limits:
    """Limits of one input.

    Args:
        seconds: CPU time, including processes that it started. After three times as long in wall
            time the process is ended. Time spent waiting for a CPU does not count.
    """

    seconds: float = 10.0


@dataclass(frozen=True)
class Found:
    """A failure.

    Args:
        tried: The input.
        problem: Its class.
        answer: The answer; None if the process ended.
    """

    tried: Input
    problem: str
    answer: Answer | None


@dataclass
class State:
    """Progress of a shard, kept in a file.

    Args:
        next: Position within the shard of the first untried input.
        seconds: Time taken so far.
        problems: Class of failure to its number.
        first: Class of failure to the number of the first input that showed it.
    """

    next: int = 0
    seconds: float = 0.0
    problems: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)


# One process --------------------------------------------------------------------------------------


def _serve(pipe: Connection, theirs: Connection, limits: Limits, stacks: Path) -> None:
    """Try inputs by their numbers until the pipe closes; runs in the child."""
    theirs.close()  # a copy of the parent's end, without which the pipe would never close
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA, MOST_DATA))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    scratch = tempfile.TemporaryDirectory(dir=SCRATCH, prefix="distprof-fuzz-")
    with scratch as name, stacks.open("wb") as dump:
        faulthandler.register(signal.SIGUSR1, file=dump)
        os.environ.update(TMPDIR=name, HOME=name, DISTPROF_CACHE_DIR=f"{name}/shared")
        os.environ.pop("GITHUB_STEP_SUMMARY", None)
        tempfile.tempdir = name
        try:
            while True:
                tried, files = pipe.recv()
                said = _tried(tried, files, Path(name, "input"), limits)
                pipe.send(said)
        except (EOFError, OSError):
            return


def _tried(
    tried: Input, files: Files | None, folder: Path, limits: Limits
) -> tuple[str, Answer | None]:
    """The class of failure, and the answer if there is one."""
    answer = answer_of(tried, folder) if files is None else run_files(files, tried.words, folder)
    problem = problem_of(answer, limits.seconds)
    return problem, answer if problem else None


_FRAME = re.compile(r'File "[^"]*/(distprof/[^"]+)", line \d+ in (\w+)')


class Child:
    """A process that tries inputs, restarted after each input that it does not survive."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        self._age = 0
        self._stacks = Path(tempfile.mkstemp(prefix="distprof-fuzz-", dir=SCRATCH)[1])

    def run(self, tried: Input, files: Files | None = None) -> tuple[str, Answer | None]:
        """The class of failure, empty for none, and the answer to a failing input.

        An input with something long has a process of its own, whose memory nothing else has used.
        """
        if any(map(is_long, tried.changes)):
            self.stop()
        pipe = self._fresh()
        pipe.send((tried, files))
        with suppress(EOFError, OSError):
            if self._answers(pipe):
                got: tuple[str, Answer | None] = pipe.recv()
                return got
            self._show_stacks()
        self.stop()
        where = _FRAME.findall(self._stacks.read_text())
        what = f"hangs in {' '.join(where[0])}" if where else f"ends the process: {tried.words[0]}"
        return what, None

    def _answers(self, pipe: Connection) -> bool:
        """Whether an answer arrives in time, not counting time spent waiting for a CPU."""
        begun, waited = time.monotonic(), self._waited_s()
        while not pipe.poll(1.0):
            lasted = time.monotonic() - begun
            if lasted - (self._waited_s() - waited) > 3 * self._limits.seconds:
                return False
        return True

    def _waited_s(self) -> float:
        """How long its threads and child processes have been ready to run without a CPU."""
        pid = self._process.pid if self._process is not None else None
        return _run_queue_ns(pid) / 1e9 if pid is not None else 0.0

    def _show_stacks(self) -> None:
        """Make the process print its stacks."""
        if self._process is not None and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGUSR1)
            time.sleep(0.2)

    def _fresh(self) -> Connection:
        self._age += 1
        if self._pipe is None or self._age > LIFE:
            self.stop()
            context = multiprocessing.get_context("fork")
            self._pipe, childs = context.Pipe()
            self._process = context.Process(
                target=_serve, args=(childs, self._pipe, self._limits, self._stacks)
            )
            self._process.start()
            childs.close()
            self._age = 0
        return self._pipe

    def close(self) -> None:
        """End the process, and delete its files."""
        self.stop()
        self._stacks.unlink(missing_ok=True)

    def stop(self) -> None:
        """End the process; the next input starts another."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.join(1.0)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()


def _run_queue_ns(pid: int) -> int:
    """Run-queue time of a process and its children; 0 if the system does not report it."""
    waited = 0
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError, ValueError, IndexError):
            waited += int((task / "schedstat").read_text().split()[1])
            started = (task / "children").read_text().split()
            waited += sum(_run_queue_ns(int(each)) for each in started)
    return waited


def failures(numbers: Sequence[int] | range, limits: Limits) -> Iterator[Found | None]:
    """The failure of each input, by number; None without a failure."""
    child = Child(limits)
    try:
        for number in numbers:
            tried = input_of(number)
            problem, answer = child.run(tried)
            yield Found(tried, problem, answer) if problem else None
    finally:
        child.close()


# Making a failure smaller -------------------------------------------------------------------------


def smaller(found: Found, limits: Limits) -> tuple[Input, Files]:
    """The fewest mutations, then the fewest bytes, that show the same class of failure."""
    child = Child(limits)
    left = iter(range(MOST_TRIALS))
    end = time.monotonic() + LONGEST_S

    def fails(tried: Input, files: Files | None) -> bool:
        if next(left, None) is None or time.monotonic() > end:
            return False
        return child.run(tried, files)[0] == found.problem

    try:
        tried = _fewer_changes(found.tried, fails)
        files = files_of(tried)
        fixed = all_seeds()[tried.seed].fixed
        for name in sorted(files, key=lambda name: len(files[name])):
            without = {key: value for key, value in files.items() if key != name}
            if len(files) > 1 and fails(tried, {**fixed, **without}):
                files = without
        for name in files:
            files = {**files, name: _fewer_bytes(tried, {**fixed, **files}, name, fails)}
        return tried, {**fixed, **files}
    finally:
        child.close()


Fails = Callable[[Input, Files | None], bool]


def _fewer_changes(tried: Input, fails: Fails) -> Input:
    for change in tried.changes:
        rest = tuple(other for other in tried.changes if other != change)
        fewer = msgspec.structs.replace(tried, changes=rest)
        if fails(fewer, None):
            tried = fewer
    return tried


def _fewer_bytes(tried: Input, files: Files, name: str, fails: Fails) -> bytes:
    """Delta debugging: leave out halves, then quarters, and so on."""
    data = files[name]
    size = len(data) // 2
    while size:
        start = 0
        while start < len(data):
            less = data[:start] + data[start + size :]
            if fails(tried, {**files, name: less}):
                data = less
            else:
                start += size
        size //= 2
    return data


def keep(found: Found, folder: Path, limits: Limits) -> Path:
    """Write a minimised failure with the command that reproduces it. Returns its folder."""
    tried, files = smaller(found, limits)
    name = hashlib.sha256(found.problem.encode()).hexdigest()[:12]
    place = folder / name
    for file, data in files.items():
        path = place / "input" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    said = (
        "" if found.answer is None else f"{found.answer.err[-4_000:]}\n{found.answer.out[:2_000]}"
    )
    words = " ".join(tried.words)
    number, again = tried.number, f"python -m benchmarks.fuzz --replay {tried.number}"
    (place / "failure.txt").write_text(
        f"{found.problem}\ninput {number}: {again}\nseed: {all_seeds()[tried.seed].name}\n"
        f"changes: {list(tried.changes)}\ncd input && distprof {words}\n\n{said}",
        encoding="utf-8",
        errors="backslashreplace",
    )
    return place


# A campaign ---------------------------------------------------------------------------------------


def chosen(numbers: range, pattern: str) -> Sequence[int]:
    """The inputs whose seed and command match a regular expression; all for an empty one."""
    if not pattern:
        return numbers
    wanted = re.compile(pattern)
    inputs = map(input_of, numbers)
    return [
        each.number
        for each in inputs
        if wanted.search(f"{all_seeds()[each.seed].name}: {' '.join(each.words)}")
    ]


def _campaign(numbers: Sequence[int], options: argparse.Namespace, limits: Limits) -> State:
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    shard, of = options.shard
    only = f"-{hashlib.sha256(options.only.encode()).hexdigest()[:8]}" if options.only else ""
    file = folder / f"state-{shard}-of-{of}-from-{options.first}{only}.json"
    state = _loaded(file)
    saved = start = time.monotonic()
    before = state.seconds
    for found in failures(numbers[state.next :], limits):
        state.next += 1
        if found is not None:
            _record(state, found, folder, limits)
        state.seconds = before + time.monotonic() - start
        if found is not None or time.monotonic() - saved > SAVE_EVERY_S:
            _save(state, file)
            saved = time.monotonic()
        if options.minutes and time.monotonic() - start > 60 * options.minutes:
            break
    _save(state, file)
    return state


def _record(state: State, found: Found, folder: Path, limits: Limits) -> None:
    state.problems[found.problem] += 1
    if found.problem in state.first:
        return
    state.first[found.problem] = found.tried.number
    place = keep(found, folder / "failures", limits)
    print(f"{found.tried.number}: {found.problem}\n  {place}", flush=True)


def _loaded(file: Path) -> State:
    if not file.is_file():
        return State()
    said = json.loads(file.read_text())
    return State(said["next"], said["seconds"], Counter(said["problems"]), said["first"])


def _save(state: State, file: Path) -> None:
    made = file.with_suffix(".tmp")
    made.write_text(json.dumps(vars(state), indent=1))
    made.replace(file)


def _replay(number: int, limits: Limits) -> None:
    """Show one input and its answer."""
    tried = input_of(number)
    print(f"seed: {all_seeds()[tried.seed].name}\nchanges: {list(tried.changes)}")
    print(f"distprof {' '.join(tried.words)}")
    folder = Path(tempfile.mkdtemp(prefix="distprof-fuzz-"))
    answer = answer_of(tried, folder / "input")
    print(f"files: {folder / 'input'}\nexit code: {answer.code}, {answer.seconds:.2f} s")
    print(f"problem: {problem_of(answer, limits.seconds) or 'none'}")
    print(ascii(answer.err).replace("\\n", "\n")[:6_000])
    print(ascii(answer.out).replace("\\n", "\n")[:3_000])


def _shard(text: str) -> tuple[int, int]:
    shard, _, of = text.partition("/")
    if not 1 <= int(shard) <= int(of):
        raise ValueError(text)
    return int(shard), int(of)


def main() -> None:
    """Try inputs and print the number of failures by class."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=2_000, help="number of inputs, all shards")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="only inputs whose seed and command match"
    )
    parser.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N")
    parser.add_argument(
        "--minutes", type=float, help="stop after this many minutes; a later call continues"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="limit of one input")
    parser.add_argument("--folder", type=Path, default=Path("fuzz"), help="state and failures")
    parser.add_argument("--replay", type=int, metavar="NUMBER", help="show one input")
    options = parser.parse_args()
    limits = Limits(seconds=options.seconds)
    if options.replay is not None:
        _replay(options.replay, limits)
        return
    shard, of = options.shard
    numbers = chosen(
        range(options.first + shard - 1, options.first + options.inputs, of), options.only
    )
    state = _campaign(numbers, options, limits)
    rate = state.next / state.seconds if state.seconds else 0.0
    print(
        f"{state.next:,} of {len(numbers):,} inputs, {len(all_seeds())} seeds, {rate:.0f} a second"
    )
    print(f"{sum(state.problems.values()):,} failures of {len(state.problems)} classes")
    for problem, count in state.problems.most_common():
        print(f"  {count:6,}  {problem}  (first: {state.first[problem]})")


if __name__ == "__main__":
    main()
