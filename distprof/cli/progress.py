"""Progress of long work: a bar on a terminal, or the current run of a sweep."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from distprof.artefacts import RUN_FILE
from distprof.cli.app import ExitCode
from distprof.cli.output import in_encoding, note
from distprof.errors import UsageError
from distprof.escape import plain
from distprof.units import capitalized, format_bytes

if TYPE_CHECKING:
    from distprof.artefacts.summary_file import SweepFile
    from distprof.verbs.sweep.running import Outcome, Progress

PATIENCE_S = 1.0
LINE_S = 30.0
"""Time between lines without a terminal: often enough to show progress, rare enough for CI logs."""
_REDRAW_S = 0.1
_CELLS = 30
_FEW_CELLS = 16
_ERASE = "\r\x1b[2K"
RUN_FAILED = 4
"""Exit code when a run failed; finished runs are kept."""


@contextmanager
def progress_bar(
    label: str,
    *,
    quiet: bool,
    unit: Literal["ranks", "bytes"] = "ranks",
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar that appears after a second of work and is erased at the end."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _line() as draw:
            yield _Paced(label, unit, clock, PATIENCE_S, _REDRAW_S, lambda bar, n: draw(bar + n))
    else:
        yield _Paced(label, unit, clock, LINE_S, LINE_S, lambda _, n: note(f"{label}: {n}"))


class _Paced:
    """Shows progress at a limited rate: a label with a bar, and the numbers."""

    def __init__(
        self,
        label: str,
        unit: str,
        clock: Callable[[], float],
        first_s: float,
        every_s: float,
        show: Callable[[str, str], None],
    ) -> None:
        self._label, self._unit, self._clock, self._show = label, unit, clock, show
        self._next, self._every = clock() + first_s, every_s

    def __call__(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` units are done, unless the last update is too recent."""
        now = self._clock()
        if total <= 1 or now < self._next:
            return
        self._next = now + self._every
        numbers = f"{done}/{total}"
        if self._unit == "bytes":
            numbers = f"{format_bytes(done)} of {format_bytes(total)}"
        self._show(f"{self._label} {_bar(done, total, _CELLS)} ", numbers)


@contextmanager
def status_line() -> Iterator[Callable[[int, int, str], None]]:
    """Show a line with a bar and the current state, for work that consists of a few long tasks."""
    with _line() as draw:

        def show(done: int, total: int, text: str) -> None:
            line = f"{_bar(done, total, _FEW_CELLS)} {done}/{total} done · {plain(text)}"
            draw(line[: shutil.get_terminal_size().columns - 1])

        yield show


@contextmanager
def _line() -> Iterator[Callable[[str], None]]:
    """The last line of a terminal, redrawn on each call and erased at the end."""
    stream = sys.stderr
    encoding = getattr(stream, "encoding", None) or "utf-8"
    is_drawn = False

    def draw(text: str) -> None:
        nonlocal is_drawn
        stream.write(_ERASE + in_encoding(text, encoding))
        stream.flush()
        is_drawn = True

    try:
        yield draw
    finally:
        if is_drawn:
            stream.write(_ERASE)
            stream.flush()


def _bar(done: int, total: int, cells: int) -> str:
    filled = "█" * (cells * done // max(total, 1))
    return f"{filled:░<{cells}}"


def make_sweep(place: Path, sweep: SweepFile, *, again: str, quiet: bool) -> int:
    """Record every run that is not done; return the exit code, 0 if all are done.

    ``again`` tells the user how to resume after an interruption.
    """
    from distprof.verbs.sweep.running import make_runs

    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{place} cannot be created: {error.strerror}") from error
    number = len(sweep.runs)
    note(f"{number} run{'' if number == 1 else 's'} in {place}", quiet=quiet)
    try:
        with _shown(quiet=quiet) as say:
            outcome = make_runs(place, sweep, say=say)
    except KeyboardInterrupt:
        note(f"Interrupted: {_how_far(place, sweep)}; {again}")
        return ExitCode.INTERRUPTED
    except BaseException as error:
        if not isinstance(error, Exception):  # SIGTERM, as batch systems send it
            note(f"Stopped: {_how_far(place, sweep)}; {again}")
        raise
    return ExitCode.FINE if not outcome.exit_code else _failed(place, outcome, again)


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Show one updated line on a terminal; elsewhere a line before each run."""
    is_live = not quiet and sys.stderr.isatty()

    def line(progress: Progress) -> None:
        if progress.elapsed_s == 0:
            note(f"[{progress.number}/{progress.total}] {progress.run}", quiet=quiet)

    if not is_live:
        yield line
        return
    with status_line() as show:
        yield lambda progress: show(progress.number - 1, progress.total, _state(progress))


def _state(progress: Progress) -> str:
    left = "" if progress.left_s is None else f", {_time_left(progress.left_s)}"
    return f"{progress.run}, for {progress.elapsed_s:.0f} s{left}"


def _time_left(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(round(seconds / 5) * 5, 5)} s left"
    if seconds < 5_400:
        return f"about {round(seconds / 60)} min left"
    return f"about {seconds / 3_600:.1f} h left"


def _how_far(place: Path, sweep: SweepFile) -> str:
    from distprof.verbs.sweep.running import load_sweep

    saved = load_sweep(place)
    count = sum(run.state == "done" for run in saved.runs) if saved else 0
    return f"{count} of {len(sweep.runs)} runs are done"


def _failed(place: Path, outcome: Outcome, again: str) -> int:
    note(
        f"{outcome.num_done} of {len(outcome.sweep.runs)} runs are done; one ended with "
        f"{outcome.exit_code}:"
    )
    for line in outcome.why.splitlines():
        note(f"  {line}")
    failed = next((run for run in outcome.sweep.runs if run.state == "failed"), None)
    if failed is not None and (place / failed.folder / RUN_FILE).is_file():
        note(f"To see its recording: distprof analyze {shlex.quote(str(place / failed.folder))}")
    note(capitalized(again))
    return RUN_FAILED
