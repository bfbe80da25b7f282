"""Messages of a launcher to its user: single lines on stderr, without control characters."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from distprof.artefacts import ERROR_FILE, OUTPUT_FILE, STACKS_FILE
from distprof.artefacts.run_file import Failure, RunFile
from distprof_probes.job.directory import rank_directory
from distprof_probes.job.evidence import last_lines, read_error, stack_of
from distprof_probes.job.finish import page_of

_LINES = 12
_PLUMBING = ('"<frozen ', "/distprof_probes/job/rank_main.py")


def plain(text: str) -> str:
    r"""``text`` with control characters escaped, as in ``\x1b``: ranks may print anything."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text.expandtabs()
    )


def one_line(error: Exception) -> str:
    """The text of an error that has several lines."""
    return "; ".join(line.strip() for line in str(error).splitlines())


def say(text: str, *, quiet: bool = False) -> None:
    """Print one line on stderr."""
    if quiet or sys.stderr is None:  # None: it was closed before the start
        return
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    line = f"{plain(text)}\n".encode(encoding, "replace").decode(encoding)
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except OSError:  # the terminal is gone; the job continues
        return


def shown_path(path: Path) -> str:
    """The shorter of the relative and the absolute path, quoted for a shell."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):
        relative = str(path)
    return shlex.quote(min(relative, str(path), key=len))


def print_failure(run_dir: Path, failure: Failure) -> None:
    """Print the first failure, and the last output of the rank that failed."""
    say(f"The job failed: {failure.message}.")
    if failure.rank is None:
        return
    folder = rank_directory(run_dir, failure.rank)
    output = folder / OUTPUT_FILE
    for line in _last_words(folder, failure) or last_lines(output, _LINES):
        say(f"  {line}")
    if output.is_file() and output.stat().st_size:
        say(f"Full output of rank {failure.rank}: {shown_path(output)}")


def _last_words(folder: Path, failure: Failure) -> list[str]:
    """The traceback of a rank that raised, or the stack of one that made no progress."""
    if failure.kind in ("hung", "stopped"):
        stack = stack_of(folder / STACKS_FILE)
        return [line for line in stack if not any(name in line for name in _PLUMBING)][:_LINES]
    error = read_error(folder / ERROR_FILE)
    is_its_own = error is not None and failure.kind in ("exception", "out_of_memory")
    return error.traceback.splitlines()[-_LINES:] if error and is_its_own else []


def print_next_steps(run: RunFile, run_dir: Path, *, has_report: bool) -> None:
    """Print the folder, the report's page, if any, and the two most useful next commands."""
    folder = shown_path(run_dir)
    analyze = f"distprof analyze {folder} --format md -o report.md"
    again = f"distprof report {folder}" if has_report else f"distprof analyze {folder}"
    if run.failure is not None and run.failure.rank is not None:
        output = rank_directory(run_dir, run.failure.rank) / OUTPUT_FILE
        analyze = f"less {shown_path(output)}"
    page = page_of(run_dir) if has_report else None
    shown = f", the report in {shown_path(page)}" if page else ""
    say(f"Everything is in {folder}{shown}. Next: {again}  |  {analyze}")
