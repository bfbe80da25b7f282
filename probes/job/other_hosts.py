"""One job, several launchers: the folder they share, and what each has to tell the first.

The launcher of rank 0 describes the run and concludes it. The others leave word of how their ranks
ended in ``exit.json``. Where the folder turns out not to be shared, each host keeps a whole
description of the run beside its own ranks, so that the folders can be put together later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from distprof.artefacts import EXIT_FILE
from distprof.artefacts.run_file import Exit, RunFile
from distprof.errors import InputError, UsageError
from probes.job.directory import (
    new_run_directory,
    rank_directory,
    read_run_file,
    write_run_file,
)
from probes.job.evidence import RankEvidence, rank_evidence
from probes.job.telling import say

__all__ = ["agreed_directory", "evidence_of_others", "write_exits"]

_MEET_S = 30.0
_LOOK_S = 0.05


def agreed_directory(
    folder: Path,
    *,
    is_first: bool,
    describe: Callable[[], RunFile],
    patience_s: float = _MEET_S,
) -> Path:
    """The run directory on this host, with the description of the run in it.

    Args:
        folder: The same on every host.
        is_first: Whether this process describes the run for all.
        describe: Makes run.json.
        patience_s: How long to wait for the first, until the folder counts as not shared.

    Raises:
        UsageError: If the folder holds another run, or cannot be written.
        InputError: If run.json cannot be written.
    """
    if is_first:
        run_dir = new_run_directory(folder, folder.name)
        write_run_file(run_dir, describe())
        return run_dir
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if _is_described(folder):
            return folder.resolve()
        time.sleep(_LOOK_S)
    run_dir = _own_directory(folder)
    write_run_file(run_dir, describe())
    return run_dir


def _is_described(folder: Path) -> bool:
    try:
        return read_run_file(folder).outcome == "running"
    except InputError:
        return False


def _own_directory(folder: Path) -> Path:
    """A folder that the first host does not see; ranks of this host may be there already."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        known = any(folder.glob("rank[0-9]*"))
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}; choose another -o") from error
    return folder.resolve() if known else new_run_directory(folder, folder.name)


def write_exits(run_dir: Path, exits: Mapping[int, Exit]) -> None:
    """Leave word of how ranks of this host ended; a full disk is said, not raised."""
    for rank, end in exits.items():
        file = rank_directory(run_dir, rank) / EXIT_FILE
        temporary = file.with_suffix(".partial")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(end))
            temporary.replace(file)
        except OSError as error:
            say(f"how rank {rank} ended could not be written: {error.strerror}")


def evidence_of_others(
    run_dir: Path, ranks: Iterable[int], *, patience_s: float
) -> list[RankEvidence]:
    """What ranks that other launchers watch have left behind.

    Args:
        run_dir: The run directory.
        ranks: Which.
        patience_s: How long to wait for word of those that have left none yet.
    """
    missing, ends = set(ranks), dict[int, Exit]()
    everybody = sorted(missing)
    until = time.monotonic() + patience_s
    while missing and time.monotonic() < until:
        for rank in sorted(missing):
            end = _read_exit(run_dir, rank)
            if end is not None:
                ends[rank] = end
        missing -= ends.keys()
        time.sleep(_LOOK_S)
    return [_evidence(run_dir, rank, ends.get(rank)) for rank in everybody]


def _evidence(run_dir: Path, rank: int, end: Exit | None) -> RankEvidence:
    told = end.ended_ns if end is not None and end.by_launcher else None
    return rank_evidence(run_dir, rank, exit=end, told_to_end_ns=told)


def _read_exit(run_dir: Path, rank: int) -> Exit | None:
    try:
        content = (rank_directory(run_dir, rank) / EXIT_FILE).read_bytes()
        return msgspec.json.decode(content, type=Exit)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
