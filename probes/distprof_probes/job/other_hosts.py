"""One job, several launchers: the folder they share, and what each has to tell the first.

The launcher of rank 0 describes the run and concludes it. The others leave word of how their ranks
ended in ``exit.json``. Where the folder turns out not to be shared, each host keeps a whole
description of the run beside its own ranks, so that the folders can be put together later.
That a rank failed anywhere, all learn from :mod:`distprof_probes.job.alarm`.
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

__all__ = ["agreed_directory", "evidence_of_others", "job_name", "report_endings"]

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


def report_endings(run_dir: Path, ranks: Sequence[RankEvidence]) -> None:
    """Tell the first launcher how ranks of this host ended; a full disk is said, not raised.

    Args:
        run_dir: The run directory.
        ranks: What is known of each; those that have not ended are left out.
    """
    for each in ranks:
        if each.exit is None:
            continue
        file = rank_directory(run_dir, each.rank) / EXIT_FILE
        temporary = file.with_suffix(".partial")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(_word(each, each.exit)))
            temporary.replace(file)
        except OSError as error:
            say(f"how rank {each.rank} ended could not be written: {error.strerror}")


def _word(each: RankEvidence, end: Exit) -> ExitFile:
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
    """What ranks that other launchers watch have left behind.

    Args:
        run_dir: The run directory.
        ranks: Which.
        patience_s: How long to wait for word of those that have left none yet.
    """
    missing, words = set(ranks), dict[int, ExitFile]()
    everybody = sorted(missing)
    until = time.monotonic() + patience_s
    while missing and time.monotonic() < until:
        for rank in sorted(missing):
            word = _read_word(run_dir, rank)
            if word is not None:
                words[rank] = word
        missing -= words.keys()
        time.sleep(_LOOK_S)
    return [_evidence(run_dir, rank, words.get(rank)) for rank in everybody]


def _evidence(run_dir: Path, rank: int, word: ExitFile | None) -> RankEvidence:
    if word is None:
        # A folder of its own shows that this rank writes here; then its launcher would, too.
        return rank_evidence(run_dir, rank, is_lost=rank_directory(run_dir, rank).is_dir())
    told = word.told_to_end_ns or (word.ended_ns if word.by_launcher else None)
    return rank_evidence(
        run_dir,
        rank,
        exit=Exit(**{name: getattr(word, name) for name in Exit.__struct_fields__}),
        alive_until_ns=word.alive_until_ns,
        told_to_end_ns=told,
        state=word.state,
        struck_by=word.struck_by,
    )


def _read_word(run_dir: Path, rank: int) -> ExitFile | None:
    try:
        content = (rank_directory(run_dir, rank) / EXIT_FILE).read_bytes()
        return msgspec.json.decode(content, type=ExitFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def job_name() -> str:
    """What all ranks of this job call it; empty if its launcher has no name for it."""
    job, step = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", "")
    if job:
        return f"{job}.{step}" if step else job
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name  # torchrun's default
