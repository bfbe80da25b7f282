"""One input: its files and command, derived from its number, and distprof's answer."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from benchmarks.fuzzing.mutations import Files, mutated, unpacked
from benchmarks.fuzzing.oracle import Answer
from benchmarks.fuzzing.seeds import Command, all_seeds

__all__ = ["Input", "answer_of", "files_of", "input_of", "run_files"]

PAGES: Final = ("json", "md", "html")
FORMATS: Final = {
    "analyze": ((), ("--full",), ("--all", "--full"), *(("--format", f) for f in PAGES)),
    "check": ((), ("--format", "junit"), *(("--format", f) for f in PAGES)),
    "export": ((), ("--only", "collectives"), ("--only", "gpu")),
    "html": ((),),
    "rule": ((),),
    "add": ((),),
    "compact": ((),),
}
USUAL: Final = ((), ("--all",), *(("--format", f) for f in PAGES))


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """An input, in full.

    Args:
        number: Its number.
        seed: Position of its seed.
        words: The command's arguments.
        changes: Seeds of its mutations, in order.
    """

    number: int
    seed: int
    words: Command
    changes: tuple[int, ...]


def input_of(number: int) -> Input:
    """The input with this number, the same in every process and on every machine."""
    chance = Random(f"distprof {number}")
    seeds = all_seeds()
    seed = number % len(seeds)
    command = chance.choice(seeds[seed].commands)
    verb = command[1] if command[0] == "history" else command[0]
    words = (*command, *chance.choice(FORMATS.get(verb, USUAL)))
    if verb != "html":
        words = (*words, "--debug")
    count = chance.choice((1, 1, 1, 2, 2, 3, 5))
    return Input(
        number=number,
        seed=seed,
        words=words,
        changes=tuple(chance.getrandbits(48) for _ in range(count)),
    )


def files_of(tried: Input) -> Files:
    """The input's files after its mutations, without the fixed ones."""
    seeds = all_seeds()
    files = seeds[tried.seed].files
    for change in tried.changes:
        other = seeds[change % len(seeds)].files
        files = mutated(files, change, [unpacked(data) for data in other.values()] or [b""])
    return files


def answer_of(tried: Input, folder: Path) -> Answer:
    """The answer of the command line to an input."""
    return run_files({**all_seeds()[tried.seed].fixed, **files_of(tried)}, tried.words, folder)


def run_files(files: Files, words: Sequence[str], folder: Path) -> Answer:
    """The answer of the command line to files.

    Args:
        files: Files to write into the folder first.
        words: The command's arguments; ``{text}`` stands for the content of such a file.
        folder: A scratch folder, emptied first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    _write(files, folder)
    text = files.get("{text}", b"").decode("utf-8", "surrogateescape").replace("\0", "")
    arguments = [text if word == "{text}" else word for word in words]
    out, err = _stream("strict"), _stream("backslashreplace")
    _forget_peak()
    before = _peak_bytes()  # of the importing process: a test process is large
    start = _cpu_s()
    with _inside(folder), _captured(out, err):
        code = _called(arguments)
    return Answer(
        words=tuple(words),
        code=code,
        out=_text_of(out),
        err=_text_of(err),
        seconds=_cpu_s() - start,
        peak_bytes=_peak_bytes() - before,
        num_bytes=sum(len(unpacked(data)) for data in files.values()),
    )


def _called(arguments: list[str]) -> int:
    from distprof.cli import main

    if arguments[0] != "html":
        return main(arguments)
    from distprof.documents.notebook import report_html
    from distprof.documents.saved import load_report
    from distprof.errors import DistprofError

    try:
        sys.stdout.write(report_html(load_report(arguments[1])))
    except DistprofError:
        sys.stderr.write("Error: refused")
        return 3
    return 0


def _write(files: Files, folder: Path) -> None:
    """Write the files, except for those whose name is now a folder, or impossible."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except (OSError, ValueError):
            continue


def _stream(errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), "utf-8", errors=errors, newline="\n")


def _text_of(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8", "surrogatepass")


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _captured(out: io.TextIOWrapper, err: io.TextIOWrapper) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _cpu_s() -> float:
    """CPU time of this process and its finished children, independent of other load."""
    return sum(os.times()[:4])


_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def _forget_peak() -> None:
    """Reset the peak; Linux only."""
    try:
        _RESET.write_text("5")
    except OSError:
        return


def _peak_bytes() -> int:
    """Largest resident set since the reset."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
