"""The end of a job: completes run.json and shows the report."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from distprof.artefacts import RANK_FILE, RANK_SCHEMA, REPORT_PAGE_FILE
from distprof.artefacts.run_file import (
    Exit,
    Failure,
    Outcome,
    RankEntry,
    RankFile,
    RunFile,
    with_ranks,
)
from distprof_probes.job.directory import read_run_file, write_run_file

_MAX_RANK_FILE_BYTES = 16 * 2**20
_PAGE_FORMAT = "html"


def conclude(
    run_dir: Path,
    *,
    outcome: Outcome,
    exits: Mapping[int, Exit],
    failure: Failure | None = None,
    notes: Sequence[str] = (),
    ended_ns: int | None = None,
) -> RunFile:
    """Complete run.json with the outcome and the facts that the ranks reported."""
    run = read_run_file(run_dir)
    found, broken = rank_files(run_dir)
    run = _with_exits(with_ranks(run, found), exits)
    lost = [f"{len(broken)} rank.json could not be read: {broken[0]}."] if broken else []
    concluded = msgspec.structs.replace(
        run,
        outcome=outcome,
        failure=failure,
        ended_ns=time.time_ns() if ended_ns is None else ended_ns,
        notes=tuple(dict.fromkeys([*run.notes, *notes, *lost])),
    )
    write_run_file(run_dir, concluded)
    return concluded


def rank_files(run_dir: Path) -> tuple[list[RankFile], list[str]]:
    """The rank.json of every rank, and the names of those that cannot be read."""
    found, broken = [], []
    for file in sorted(run_dir.glob(f"rank[0-9]*/{RANK_FILE}")):
        rank = _rank_file(file)
        if rank is None:
            broken.append(f"{file.parent.name}/{file.name}")
        else:
            found.append(rank)
    return found, broken


def _rank_file(file: Path) -> RankFile | None:
    try:
        if file.stat().st_size > _MAX_RANK_FILE_BYTES:
            return None
        rank = msgspec.json.decode(file.read_bytes(), type=RankFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return rank if rank.schema == RANK_SCHEMA else None


def _with_exits(run: RunFile, exits: Mapping[int, Exit]) -> RunFile:
    entries = {entry.rank: entry for entry in run.ranks}
    for rank, end in exits.items():
        entry = entries.get(rank, RankEntry(rank=rank))
        entries[rank] = msgspec.structs.replace(entry, exit=end)
    return msgspec.structs.replace(run, ranks=tuple(entries[rank] for rank in sorted(entries)))


def analyze_command(run_dir: Path, arguments: Sequence[str] = ()) -> list[str]:
    """The command that reports on the run."""
    return [sys.executable, "-m", "distprof", "analyze", str(run_dir), *arguments]


def page_of(run_dir: Path) -> Path | None:
    """The report's HTML page, if one was written."""
    page = run_dir / REPORT_PAGE_FILE
    return page if page.is_file() else None


def report(run_dir: Path, arguments: Sequence[str] = (), *, format_name: str | None = None) -> int:
    """Analyse the run, show the report on this terminal, and return its exit code.

    The analysis runs in a separate process and shares no code with the measurement, so a fault in
    one cannot harm the other. An HTML page becomes a file in the run directory.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    here = _here()
    below = here in run_dir.parents  # the report names the folder: use the shorter path
    shown = run_dir.relative_to(here) if below and here else run_dir
    if format_name is not None:
        arguments = [*arguments, "--format", format_name]
    if format_name == _PAGE_FORMAT:
        arguments = [*arguments, "-o", str(shown / REPORT_PAGE_FILE), "--force"]
    place = None if here else "/"
    finished = subprocess.run(analyze_command(shown, arguments), check=False, cwd=place)
    return finished.returncode


def _here() -> Path | None:
    """The working directory; None if the program deleted it."""
    try:
        return Path.cwd()
    except OSError:
        return None
