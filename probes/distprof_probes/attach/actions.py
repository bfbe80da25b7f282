"""Requests of ``distprof attach`` to running ranks, sent to all ranks in parallel."""

from __future__ import annotations

import contextlib
import gzip
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from distprof.artefacts import (
    FLIGHT_FILE,
    RANK_DIR_FORMAT,
    RANK_FILE,
    STACKS_FILE,
    TRACE_FILE,
)
from distprof.artefacts.files import write_atomically
from distprof.artefacts.run_file import RunFile
from distprof.errors import DistprofError, InputError
from distprof_probes.attach.client import NoAnswer, ask
from distprof_probes.attach.ranks import LivingRank
from distprof_probes.attach.stacks import Stack, parse_stacks, training_stack
from distprof_probes.environment import tool_version
from distprof_probes.job.directory import new_run_directory, read_run_file, write_run_file

__all__ = ["Answers", "ask_stacks", "profile", "save_flight", "save_stacks"]

_ANSWER_WITHIN_S = 5.0
_FLIGHT_WITHIN_S = 30.0
_EXPORT_WITHIN_S = 120.0
_MOST_AT_ONCE = 64

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Generic[_Answer]):
    """Answers of the ranks.

    Args:
        given: Rank to its answer.
        missing: Rank to the reason why it has none.
    """

    given: dict[int, _Answer]
    missing: dict[int, str]


def ask_stacks(ranks: Sequence[LivingRank]) -> Answers[Stack]:
    """The stack of each rank's training thread."""
    return _of_training(_each(ranks, _stacks))


def save_stacks(ranks: Sequence[LivingRank]) -> Answers[Stack]:
    """As :func:`ask_stacks`; also write the stacks of all threads to each rank's ``stacks.txt``.

    Raises:
        InputError: If a file cannot be written.
    """
    answers = _each(ranks, _stacks)
    for rank in ranks:
        if rank.rank in answers.given:
            _write(rank.folder / STACKS_FILE, answers.given[rank.rank].encode())
    return _of_training(answers)


def save_flight(ranks: Sequence[LivingRank]) -> Answers[int]:
    """Write the Flight Recorder of each rank to its ``flight.json``.

    Returns:
        Rank to the number of collectives in it.

    Raises:
        InputError: If a file cannot be written.
    """
    answers = _each(ranks, _flight)
    for rank in ranks:
        if rank.rank in answers.given:
            _write(rank.folder / FLIGHT_FILE, answers.given[rank.rank])
    return Answers(
        given={rank: _num_entries(dump) for rank, dump in answers.given.items()},
        missing=answers.missing,
    )


def profile(
    run_dir: Path, ranks: Sequence[LivingRank], *, seconds: float, out: Path | None
) -> tuple[Path, Answers[int]]:
    """Trace each rank for a few seconds into a separate run directory.

    Args:
        run_dir: The run directory of the job.
        ranks: The ranks to trace.
        seconds: Duration.
        out: The directory to create; by default next to ``run_dir``.

    Returns:
        The new directory, and the size of each trace in bytes.

    Raises:
        UsageError: If the directory cannot be created.
        InputError: If a file cannot be written.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    asked = out or run_dir.with_name(f"{run_dir.name}-profile-{stamp}")
    folder = new_run_directory(asked, "profile")
    started_ns = time.time_ns()
    answers = _each(ranks, lambda rank: _trace(rank, seconds))
    flights = _each([rank for rank in ranks if rank.rank in answers.given], _flight)
    for rank in ranks:
        if rank.rank in answers.given:
            trace, flight = answers.given[rank.rank], flights.given.get(rank.rank)
            _keep(folder / RANK_DIR_FORMAT.format(rank=rank.rank), rank, trace, flight)
    write_run_file(folder, _description(run_dir, seconds, started_ns))
    sizes = {rank: len(trace) for rank, trace in answers.given.items()}
    return folder, Answers(given=sizes, missing=answers.missing)


def _each(
    ranks: Sequence[LivingRank], question: Callable[[LivingRank], _Answer]
) -> Answers[_Answer]:
    """Query all ranks in parallel, so that one that does not answer delays no other."""

    def answer(rank: LivingRank) -> _Answer | NoAnswer:
        try:
            return question(rank)
        except NoAnswer as none:
            return none

    given: dict[int, _Answer] = {}
    missing: dict[int, str] = {}
    with ThreadPoolExecutor(max_workers=min(len(ranks), _MOST_AT_ONCE) or 1) as pool:
        for rank, result in zip(ranks, pool.map(answer, ranks), strict=True):
            if isinstance(result, NoAnswer):
                missing[rank.rank] = str(result)
            else:
                given[rank.rank] = result
    return Answers(given=given, missing=missing)


def _stacks(rank: LivingRank) -> str:
    answer = ask(rank.socket, "dump_traceback", pid=rank.pid, within_s=_ANSWER_WITHIN_S)
    return answer.decode("utf-8", "replace")


def _of_training(answers: Answers[str]) -> Answers[Stack]:
    found = {rank: training_stack(parse_stacks(text)) for rank, text in answers.given.items()}
    silent = {rank: "it is not running Python" for rank, stack in found.items() if stack is None}
    return Answers(
        given={rank: stack for rank, stack in found.items() if stack is not None},
        missing={**answers.missing, **silent},
    )


def _flight(rank: LivingRank) -> bytes:
    answer = ask(rank.socket, "fr_trace_json", pid=rank.pid, within_s=_FLIGHT_WITHIN_S)
    try:
        msgspec.json.decode(answer)
    except msgspec.DecodeError:
        raise NoAnswer("its Flight Recorder returned invalid JSON") from None
    return answer


def _num_entries(dump: bytes) -> int:
    entries = msgspec.json.decode(dump).get("entries", ())
    return len(entries)


def _trace(rank: LivingRank, seconds: float) -> bytes:
    question = f"torch_profile?duration={seconds:g}"
    answer = ask(rank.socket, question, pid=rank.pid, within_s=seconds + _EXPORT_WITHIN_S)
    if b"traceEvents" not in answer[:65536] and b"traceEvents" not in answer:
        raise NoAnswer("it returned something other than a trace")
    return answer


def _keep(folder: Path, rank: LivingRank, trace: bytes, flight: bytes | None) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    _write(folder / TRACE_FILE, gzip.compress(trace, compresslevel=3, mtime=0))
    if flight is not None:
        _write(folder / FLIGHT_FILE, flight)
    with contextlib.suppress(OSError):
        _write(folder / RANK_FILE, (rank.folder / RANK_FILE).read_bytes())


def _description(run_dir: Path, seconds: float, started_ns: int) -> RunFile:
    """run.json of the profile: a copy of the job's with the times of the profile."""
    try:
        job = read_run_file(run_dir)
    except DistprofError:
        job = RunFile(
            distprof_version=tool_version(), kind="session", command=(), started_ns=started_ns
        )
    note = f"Profiled on demand for {seconds:g} s while the job of {run_dir.name} was running."
    return msgspec.structs.replace(
        job,
        started_ns=started_ns,
        ended_ns=time.time_ns(),
        outcome="completed",
        failure=None,
        notes=(*job.notes, note),
    )


def _write(file: Path, content: bytes) -> None:
    try:
        write_atomically(file, content)
    except OSError as error:
        raise _cannot_write(file, error) from error


def _cannot_write(file: Path, error: OSError) -> InputError:
    return InputError(
        str(file),
        expected="a writable folder",
        found=error.strerror or str(error),
        fix="free disk space, or choose another folder with -o",
    )
