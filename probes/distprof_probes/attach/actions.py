"""Requests of ``distprof attach`` to the ranks of this host, sent to all in parallel."""

from __future__ import annotations

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
    STACKS_FILE,
    TRACE_FILE,
)
from distprof.artefacts.files import write_atomically
from distprof.artefacts.run_file import RunFile
from distprof.errors import DistprofError, InputError
from distprof_probes.attach import questions
from distprof_probes.attach.client import NoAnswer
from distprof_probes.attach.ranks import LivingRank
from distprof_probes.attach.stacks import Stack, parse_stacks, training_stack
from distprof_probes.environment import tool_version
from distprof_probes.job.directory import new_run_directory, read_run_file, write_run_file

_MOST_AT_ONCE = 64

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Generic[_Answer]):
    """Answers of the ranks."""

    given: dict[int, _Answer]  # Rank to its answer.
    missing: dict[int, str]  # Rank to the reason why it has none.


class RanksHere:
    """The ranks of this host, queried through their sockets.

    Args:
        run_dir: The run directory of the job.
        ranks: All of them; those that cannot be queried are skipped.
    """

    is_everywhere = False
    spread_s: float | None = None
    unseen_hosts: Sequence[str] = ()
    absent_ranks: Sequence[int] = ()

    def __init__(self, run_dir: Path, ranks: Sequence[LivingRank]) -> None:
        self.ranks = ranks
        self._run_dir = run_dir
        self._able = [rank for rank in ranks if rank.can_be_asked]
        self.is_reached = bool(self._able)  # Whether any can be queried.

    def stacks(self, *, save: bool) -> Answers[Stack]:
        """The stack of each rank's training thread; ``save`` writes those of all threads."""
        answers = _each(self._able, questions.stacks)
        for rank in self._able:
            if save and rank.rank in answers.given:
                write(rank.folder / STACKS_FILE, answers.given[rank.rank].encode())
        return of_training(answers)

    def flight(self) -> Answers[int]:
        """Write the Flight Recorder of each rank to a file; return its number of collectives."""
        answers = _each(self._able, questions.flight)
        for rank in self._able:
            if rank.rank in answers.given:
                write(rank.folder / FLIGHT_FILE, answers.given[rank.rank])
        return Answers(
            given={rank: num_entries(dump) for rank, dump in answers.given.items()},
            missing=answers.missing,
        )

    def profile(self, seconds: float, out: Path | None) -> tuple[Path, Answers[int]]:
        """Trace each rank for a few seconds into a new run directory, by default next to the job's.

        Returns the directory, and the size of each trace in bytes.
        """
        stamp = time.strftime("%Y%m%d-%H%M%S")
        asked = out or self._run_dir.with_name(f"{self._run_dir.name}-profile-{stamp}")
        folder = new_run_directory(asked, "profile")
        started_ns = time.time_ns()
        answers = _each(self._able, lambda rank: _trace(rank, seconds, folder))
        write_run_file(folder, description_of_profile(self._run_dir, seconds, started_ns))
        return folder, answers


def _each(
    ranks: Sequence[LivingRank], question: Callable[[LivingRank], _Answer]
) -> Answers[_Answer]:
    """Query all ranks in parallel, so that an unresponsive rank delays no other."""

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


def of_training(answers: Answers[str]) -> Answers[Stack]:
    """The stack of the training thread, from the text with the stacks of all threads."""
    found = {rank: training_stack(parse_stacks(text)) for rank, text in answers.given.items()}
    silent = {rank: "it is not running Python" for rank, stack in found.items() if stack is None}
    return Answers(
        given={rank: stack for rank, stack in found.items() if stack is not None},
        missing={**answers.missing, **silent},
    )


def num_entries(dump: bytes) -> int:
    """Collectives in a dump of the Flight Recorder."""
    found = msgspec.json.decode(dump)
    return len(found.get("entries", ())) if isinstance(found, dict) else 0


def _trace(rank: LivingRank, seconds: float, run_dir: Path) -> int:
    folder = run_dir / RANK_DIR_FORMAT.format(rank=rank.rank)
    try:
        folder.mkdir()
        size = questions.trace(rank, seconds, folder / TRACE_FILE)
        questions.keep_neighbours(rank, folder)
    except OSError as error:
        raise cannot_write(folder / TRACE_FILE, error) from error
    except NoAnswer:
        folder.rmdir()
        raise
    return size


def description_of_profile(run_dir: Path, seconds: float, started_ns: int) -> RunFile:
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


def write(file: Path, content: bytes) -> None:
    """Write a file; InputError if that is impossible."""
    try:
        write_atomically(file, content)
    except OSError as error:
        raise cannot_write(file, error) from error


def cannot_write(file: Path, error: OSError) -> InputError:
    """The error for a file that cannot be written."""
    return InputError(
        str(file),
        expected="a writable folder",
        found=error.strerror or str(error),
        fix="free disk space, or choose another folder with -o",
    )
