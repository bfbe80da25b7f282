"""The shared folder of a job with several launchers, and their reports to the first one.

The launcher of rank 0 writes run.json and completes it. The others write how their ranks ended to
``exit.json``. If the folder turns out not to be shared, each host keeps a complete description of
the run next to its own ranks, so that the folders can be merged later. All launchers learn about a
failed rank through :mod:`distprof_probes.job.alarm`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from distprof.artefacts import EXIT_FILE
from distprof.artefacts.run_file import Exit, ExitFile, RunFile
from distprof.errors import InputError, UsageError
from distprof_probes.job.directory import (
    new_run_directory,
    rank_directory,
    read_run_file,
    write_run_file,
)
from distprof_probes.job.evidence import RankEvidence, rank_evidence
from distprof_probes.job.messages import say

_MEET_S = 30.0
_LOOK_S = 0.05


def agreed_directory(
    folder: Path,
    *,
    is_first: bool,
    describe: Callable[[], RunFile],
    patience_s: float = _MEET_S,
) -> Path:
    """The run directory on this host, with run.json in it; the same path on every host.

    The first process describes the run for all. After ``patience_s`` without it, the folder counts
    as not shared.
    """
    if is_first:
        run_dir = new_run_directory(folder, folder.name)
        write_run_file(run_dir, describe(), is_new=True)
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
    """A folder that the first host does not see, in which ranks of this host may have written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        known = any(folder.glob("rank[0-9]*"))
    except OSError as error:
        raise UsageError(f"{folder} cannot be created: {error.strerror}; use another -o") from error
    return folder.resolve() if known else new_run_directory(folder, folder.name)


def report_endings(run_dir: Path, ranks: Sequence[RankEvidence]) -> None:
    """Report to the first launcher how ranks here ended. A full disk only prints a message."""
    for each in ranks:
        if each.exit is None:
            continue
        file = rank_directory(run_dir, each.rank) / EXIT_FILE
        temporary = file.with_suffix(".partial")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(_exit_file(each, each.exit)))
            temporary.replace(file)
        except OSError as error:
            say(f"the exit status of rank {each.rank} could not be written: {error.strerror}")


def _exit_file(each: RankEvidence, end: Exit) -> ExitFile:
    return ExitFile(
        **msgspec.structs.asdict(end),
        alive_until_ns=each.alive_until_ns,
        told_to_end_ns=each.told_to_end_ns,
        state=each.state,
        struck_by=each.struck_by,
    )


def evidence_of_others(
    run_dir: Path, ranks: Iterable[int], *, patience_s: float
) -> list[RankEvidence]:
    """Evidence that the ranks of other launchers have written; missing ones are waited for."""
    missing, exit_files = set(ranks), dict[int, ExitFile]()
    all_ranks = sorted(missing)
    until = time.monotonic() + patience_s
    while missing and time.monotonic() < until:
        for rank in sorted(missing):
            exit_file = _read_exit_file(run_dir, rank)
            if exit_file is not None:
                exit_files[rank] = exit_file
        missing -= exit_files.keys()
        time.sleep(_LOOK_S)
    return [_evidence(run_dir, rank, exit_files.get(rank)) for rank in all_ranks]


def _evidence(run_dir: Path, rank: int, exit_file: ExitFile | None) -> RankEvidence:
    if exit_file is None:
        # The rank's folder shows that it writes here, so its launcher would also write here.
        return rank_evidence(run_dir, rank, is_lost=rank_directory(run_dir, rank).is_dir())
    told_to_end_ns = exit_file.told_to_end_ns or (
        exit_file.ended_ns if exit_file.by_launcher else None
    )
    return rank_evidence(
        run_dir,
        rank,
        exit=Exit(**{name: getattr(exit_file, name) for name in Exit.__struct_fields__}),
        alive_until_ns=exit_file.alive_until_ns,
        told_to_end_ns=told_to_end_ns,
        state=exit_file.state,
        struck_by=exit_file.struck_by,
    )


def _read_exit_file(run_dir: Path, rank: int) -> ExitFile | None:
    try:
        content = (rank_directory(run_dir, rank) / EXIT_FILE).read_bytes()
        return msgspec.json.decode(content, type=ExitFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def job_name() -> str:
    """The name of the job, common to all its ranks; empty if its launcher sets none."""
    job, step = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", "")
    if job:
        return f"{job}.{step}" if step else job
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name  # torchrun's default
