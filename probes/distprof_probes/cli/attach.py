"""``distprof attach``: inspect a running or hung job."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distprof.artefacts import RUN_FILE
from distprof.errors import InputError
from distprof.units import finite_range, name_ranks
from distprof_probes.attach.ranks import LivingRank, look

if TYPE_CHECKING:
    from distprof_probes.attach.actions import Answers, RanksHere
    from distprof_probes.attach.requests.asking import Progress, RanksEverywhere
    from distprof_probes.attach.stacks import Stack

_INPUT = 3
_SECONDS = 2.0
_MAX_FRAMES_SHOWN = 30
_MAX_HOSTS_SHOWN = 5
_LONG_WITHOUT_STEP_S = 10.0
"""Longer than most steps. The message lets the user judge whether it is long for this job."""


@click.command()
@click.argument("run_dir", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--stacks", is_flag=True, help="Show the Python stacks of every rank; identical ones once."
)
@click.option("--flight", is_flag=True, help="Save the Flight Recorder of every rank.")
@click.option(
    "--profile",
    "seconds",
    is_flag=False,
    flag_value=_SECONDS,
    type=finite_range(0.01, 600),
    metavar="[SECONDS]",
    help=f"Trace every rank now for this many seconds ({_SECONDS:g} without a number), and report.",
)
@click.option(
    "--all-nodes",
    is_flag=True,
    help="Ask the ranks of all nodes, through the run directory that they share.",
)
@click.option(
    "--notice",
    "notice_s",
    type=finite_range(3, 600),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="With --all-nodes: how far ahead all ranks begin; more where files show up late.",
)
@click.option("--ranks", metavar="0-3,8", help="Only these ranks; by default all.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Output directory of --profile; by default next to DIR, with --all-nodes in DIR/requests.",
)
@click.option("--no-report", is_flag=True, help="With --profile: record without a report.")
def attach(
    run_dir: Path,
    stacks: bool,
    flight: bool,
    seconds: float | None,
    all_nodes: bool,
    notice_s: float,
    ranks: str | None,
    out: Path | None,
    no_report: bool,
) -> int:
    """Inspect a running or hung job: show where each rank is and what it is doing.

    DIR is the run directory that distprof capture or distprof run printed at the start. Ranks on
    this host, and with --all-nodes on all, answer even while they hang in a collective or in your
    code.

    \b
      distprof attach runs/mine                 state of every rank
      distprof attach runs/mine --stacks        Python stacks, identical ones once
      distprof attach runs/mine --profile 2     trace the next two seconds
      distprof attach runs/mine --profile 2 --all-nodes
    """  # noqa: D301 - click reads it
    found = _chosen(_all_ranks(run_dir), ranks)
    way: RanksHere | RanksEverywhere = (
        _everywhere(run_dir, found, chosen=ranks is not None, notice_s=notice_s)
        if all_nodes
        else _here(run_dir, found)
    )
    code, asked = 0, stacks or flight or seconds is not None
    if not asked:
        _show_state(way)
    if stacks:
        _show_stacks(way)
    if flight:
        _show_flight(way)
    if seconds is not None and (all_nodes or way.is_reached):
        code = _show_profile(run_dir, way, seconds, out, with_report=not no_report)
    _show_others(run_dir, way, verbose=asked)
    return code if way.is_reached else _INPUT


def _here(run_dir: Path, found: list[LivingRank]) -> RanksHere:
    from distprof_probes.attach.actions import RanksHere

    return RanksHere(run_dir.resolve(), found)


def _everywhere(
    run_dir: Path, found: list[LivingRank], *, chosen: bool, notice_s: float
) -> RanksEverywhere:
    from distprof_probes.attach.requests.asking import RanksEverywhere

    tell = _ProgressLine().tell
    folder = run_dir.resolve()
    return RanksEverywhere(folder, found, chosen=chosen, notice_s=notice_s, tell=tell)


class _ProgressLine:
    """Reports the progress of a request on stderr: one changing line, or a line for each stage."""

    def __init__(self) -> None:
        self._text = ""

    def tell(self, progress: Progress) -> None:
        """Print the progress, if it has changed."""
        text = _in_words(progress)
        if text == self._text:
            return
        if sys.stderr.isatty():
            click.echo(f"\r{text:<{len(self._text)}}", err=True, nl=progress.is_over)
        elif text.split()[:2] != self._text.split()[:2]:
            click.echo(text, err=True)
        self._text = text


def _in_words(progress: Progress) -> str:
    asked = f"{progress.asked} rank" + ("s" if progress.asked != 1 else "")
    if progress.answered == progress.asked:
        return f"All answered: {asked}"
    if progress.is_over:
        return f"No more answers: {progress.answered} of {asked}"
    if progress.seen < progress.asked and not progress.answered:
        return f"Waiting for {asked} to see the request: {progress.seen} have"
    if progress.starts_in_s > 0:
        return f"Tracing starts in {progress.starts_in_s:.0f} s on {asked}"
    return f"Waiting for answers: {progress.answered} of {asked}"


def _all_ranks(run_dir: Path) -> list[LivingRank]:
    folder = run_dir.parent if run_dir.name == RUN_FILE else run_dir
    found = look(folder.resolve()) if folder.is_dir() else []
    if not found:
        raise InputError(
            str(run_dir),
            expected="the run directory of a job started by distprof run or distprof capture",
            found="no files of a rank" if folder.is_dir() else "no folder of this name",
            fix="name the folder that was printed when the job started",
        )
    return found


def _chosen(found: list[LivingRank], ranks: str | None) -> list[LivingRank]:
    if ranks is None:
        return found
    from distprof_probes.attach.replica import parse_ranks

    wanted = set(parse_ranks(ranks, option="--ranks"))
    return [rank for rank in found if rank.rank in wanted]


def _show_state(way: RanksHere | RanksEverywhere) -> None:
    answers = way.stacks(save=False)
    now_ns = time.time_ns()
    rows: list[tuple[str, ...]] = [
        ("rank", "host", "pid", "state", "last step", "ago", "where it is")
    ]
    rows += [_row(rank, answers, now_ns) for rank in way.ranks]
    for line in _table(rows):
        click.echo(line)


def _row(rank: LivingRank, answers: Answers[Stack], now_ns: int) -> tuple[str, ...]:
    from distprof_probes.attach.stacks import own_frame

    stack = answers.given.get(rank.rank)
    frame = own_frame(stack) if stack else None
    where = str(frame) if frame else answers.missing.get(rank.rank, rank.why_not)
    return (
        str(rank.rank),
        rank.host or "?",
        "?" if rank.pid is None else str(rank.pid),
        _state(rank),
        "none" if rank.last_step is None else str(rank.last_step),
        _ago(rank.progressed_ns, now_ns),
        where if rank.process else "",
    )


def _state(rank: LivingRank) -> str:
    if rank.process is None:
        gone = "gone" if rank.is_here else "on another host"
        return "ended" if rank.has_ended else gone
    meaning = {
        "T": "stopped (T)",
        "t": "stopped by a debugger (t)",
        "D": "blocked in the kernel (D)",
    }
    return meaning.get(rank.process.letter, f"alive ({rank.process.letter})")


def _ago(then_ns: int | None, now_ns: int) -> str:
    return "" if then_ns is None else f"{max(now_ns - then_ns, 0) / 1e9:.1f} s"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    shown = [[_plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in shown) for place in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]


def _show_stacks(way: RanksHere | RanksEverywhere) -> None:
    from distprof_probes.attach.stacks import fold

    answers = way.stacks(save=True)
    for ranks, stack in fold(answers.given):
        click.echo(f"{name_ranks(ranks)}:")
        for frame in stack.frames[:_MAX_FRAMES_SHOWN]:
            line = "?" if frame.line is None else frame.line
            click.echo(_plain(f"    {frame.name}  {frame.file}:{line}"))
        if len(stack.frames) > _MAX_FRAMES_SHOWN:
            click.echo(f"    and {len(stack.frames) - _MAX_FRAMES_SHOWN} more calls")
    if answers.given:
        click.echo("All threads: stacks.txt in each rank's folder.")
    _show_missing(answers.missing)


def _show_flight(way: RanksHere | RanksEverywhere) -> None:
    answers = way.flight()
    if answers.given:
        total = sum(answers.given.values())
        named = name_ranks(answers.given)
        click.echo(f"{total} collectives of {named}: flight.json in each rank's folder.")
    _show_missing(answers.missing)


def _show_profile(
    run_dir: Path,
    way: RanksHere | RanksEverywhere,
    seconds: float,
    out: Path | None,
    *,
    with_report: bool,
) -> int:
    from distprof_probes.job.finish import report

    folder, answers = way.profile(seconds, out)
    _show_missing(answers.missing)
    if not answers.given:
        click.echo("No rank returned a trace.", err=True)
        return _INPUT
    click.echo(f"Traced {name_ranks(answers.given)} in {_short(folder)}", err=True)
    if way.spread_s is not None and len(answers.given) > 1:
        click.echo(
            f"They began within {way.spread_s * 1e3:.0f} ms of each other, by the clocks of their"
            " nodes.",
            err=True,
        )
    _show_if_hung(run_dir, set(answers.given))
    return report(folder) if with_report else 0


def _show_if_hung(run_dir: Path, traced: set[int]) -> None:
    """If no step has ended for long, a profile shows little: name the commands that show more."""
    last = [rank for rank in look(run_dir.resolve()) if rank.rank in traced]
    ends_ns = [rank.progressed_ns for rank in last if rank.progressed_ns is not None]
    if not ends_ns or time.time_ns() - max(ends_ns) < _LONG_WITHOUT_STEP_S * 1e9:
        return
    place = shlex.quote(str(run_dir))
    ago = _ago(max(ends_ns), time.time_ns())
    click.echo(
        f"No step has ended for {ago}. If a step of this job takes less, the job hangs, and a"
        " profile shows little:\n"
        f"  distprof attach {place} --stacks           # where each rank is\n"
        f"  distprof attach {place} --flight && distprof hang {place}"
        "  # which rank the others wait for",
        err=True,
    )


def _show_missing(missing: dict[int, str]) -> None:
    by_reason: dict[str, list[int]] = {}
    for rank, why in missing.items():
        by_reason.setdefault(why, []).append(rank)
    for why, ranks in by_reason.items():
        click.echo(_plain(f"{name_ranks(ranks)}: {why}"), err=True)


def _show_others(run_dir: Path, way: RanksHere | RanksEverywhere, *, verbose: bool) -> None:
    """Ranks that could not be queried, and what to do about it."""
    if way.is_everywhere:
        _show_unseen(run_dir, way)
        return
    elsewhere: dict[str, list[int]] = {}
    for rank in way.ranks:
        if not rank.is_here:
            elsewhere.setdefault(rank.host, []).append(rank.rank)
    for host, ranks in elsewhere.items():
        command = f"ssh {shlex.quote(host)} distprof attach {shlex.quote(str(run_dir.resolve()))}"
        click.echo(_plain(f"{name_ranks(ranks)} on another host: {command}"), err=True)
    if elsewhere and any(rank.takes_requests for rank in way.ranks):
        click.echo("To ask the ranks of all hosts at once, add --all-nodes.", err=True)
    if verbose:
        here = [rank for rank in way.ranks if rank.is_here and not rank.can_be_asked]
        _show_missing({rank.rank: rank.why_silent for rank in here})


def _show_unseen(run_dir: Path, way: RanksHere | RanksEverywhere) -> None:
    """Ranks that cannot have seen the request, and where to look for the reason."""
    place = shlex.quote(str(run_dir))
    if way.unseen_hosts:
        hosts = ", ".join(way.unseen_hosts[:_MAX_HOSTS_SHOWN])
        more = len(way.unseen_hosts) - _MAX_HOSTS_SHOWN
        hosts += f" and {more} more" if more > 0 else ""
        click.echo(
            f"No answer from {_plain(hosts)}: either no process of the job is left there,\n"
            "or it writes to another folder. Is this one file system on both hosts?\n"
            f"  findmnt -T {place}\n"
            "If new files show up late there, give a longer --notice.",
            err=True,
        )
    absent = way.absent_ranks
    if absent:
        click.echo(
            f"Without a folder in {place}: {name_ranks(absent)}. Their hosts write to another"
            " folder,\nor they have not started to train.",
            err=True,
        )


def _short(folder: Path) -> Path:
    """The path relative to the working directory, if it is below it."""
    with contextlib.suppress(OSError):  # the working directory may be gone
        here = Path.cwd()
        return folder.relative_to(here) if here in folder.parents else folder
    return folder


def _plain(text: str) -> str:
    """Text without control characters: names come from the job and are not trusted."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
