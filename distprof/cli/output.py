"""Write a report to the terminal, a pipe or a file, and show how far long work is.

Existing files are not replaced by accident.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

import click

from distprof.artefacts import RUN_FILE
from distprof.cli.app import ExitCode
from distprof.errors import InputError, UsageError
from distprof.escape import inert, plain
from distprof.units import capitalized, format_bytes

if TYPE_CHECKING:
    from msgspec import Struct

    from distprof.artefacts.summary_file import SweepFile
    from distprof.documents.document import Document
    from distprof.formats import RenderOptions
    from distprof.rules.base import Finding
    from distprof.verbs.sweep.running import Outcome, Progress

T = TypeVar("T", bound="Struct")
_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
PIPE_WIDTH = 100
_ASCII = str.maketrans("█▓▒▚▞░·µ–…×→", "#=~+%.-u-~x>")
"""Drawing characters of reports, and ASCII substitutes of the same width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The user's choices about output."""

    format_name: str | None  # Name of a reporter; None to go by the file extension, else text.
    outputs: tuple[str, ...]  # Files to write; none or ``-`` for stdout.
    force: bool  # Whether files may be replaced.
    width: int | None  # Columns of text; None for the width of the terminal.
    show_all: bool  # Whether to show every row and finding.
    quiet: bool  # Whether to write only errors to stderr.
    full: bool = False  # Whether the text of a report has every section.
    sections: tuple[str, ...] = ()  # Sections of a report to show; empty for all.
    fail_on: str | None = None  # Lowest severity of a finding that fails; None if no finding does.

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Output:
        """Move the output choices out of a verb's options."""
        return cls(**{name: options.pop(name) for name in cls.__slots__ if name in options})

    @property
    def output(self) -> str | None:
        """The first file, None for stdout."""
        return next((file for file in self.outputs if file != "-"), None)

    @property
    def each(self) -> Iterator[Output]:
        """The same choices for one file each."""
        return (replace(self, outputs=(file,)) for file in self.outputs or ("-",))

    @property
    def reporter(self) -> str:
        """The name of the reporter to use."""
        from distprof.formats import format_of_file

        return self.format_name or (self.output and format_of_file(self.output)) or "text"

    def check(self, document: Document[Any] | None = None) -> None:
        """Reject choices that would otherwise fail only after the work is done."""
        if len(self.outputs) > 1:
            for one in self.each:
                one.check(document)
            return
        if self.output is not None:
            self._check_ending(self.output)
            check_free(self.output, force=self.force)
        from distprof.terms import CI_FORMATS

        if self.sections and self.reporter in ("brief", "json", *CI_FORMATS):
            raise UsageError(
                f"--section works with text, Markdown and HTML; {self.reporter} always covers the"
                " whole report"
            )
        if document is not None:
            document.reporter(self.reporter)

    def _check_ending(self, file: str) -> None:
        """Reject a file extension that no format has."""
        from distprof.formats import endings, format_of_file

        ending = Path(file).suffix
        if self.format_name or not ending or format_of_file(file):
            return
        raise UsageError(
            f"{file}: no format has the extension {ending}: name the format with --format, or use "
            f"one of {', '.join(endings())}"
        )


def check_free(file: str, *, force: bool) -> None:
    """Reject a file that exists or cannot be created; the UsageError says why."""
    path = Path(file)
    if not file:
        raise UsageError("the name of the output file is empty")
    if path.is_dir():
        raise UsageError(f"{file} is a folder: name a file in it")
    if path.is_file() and not force:
        raise UsageError(f"{file} exists: add --force to replace it")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder: create it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path.parent} cannot be written: choose another location")


def deliver(document: Document[T], result: T, output: Output, *, saved_as: str = "") -> None:
    """Render a result, saved as that file if any, and write it where the user asked."""
    for one in output.each:
        _write(document.reporter(one.reporter)(result, _options(one, saved_as)), one)


def show_fabric(file: str, output: Output) -> int:
    """Show a fabric profile or the output of nccl-tests or perftest; the exit code."""
    from distprof.ingest.fabric import read_fabric
    from distprof.verbs.fabric import FABRIC

    output.check(FABRIC)
    deliver(FABRIC, read_fabric(file), output)
    return ExitCode.FINE


def show_hang(source: str, output: Output) -> int:
    """Show what dumps of the Flight Recorder say; 1 if ``--fail-on`` is given and the job hangs."""
    from distprof.verbs.functions import hang
    from distprof.verbs.hang.show import HANG

    output.check(HANG)
    report = hang(source)
    deliver(HANG, report, output)
    hangs = report.state.value in ("stuck", "failed")
    return ExitCode.FINDINGS if hangs and output.fail_on else ExitCode.FINE


def show_in_step_summary(document: Document[T], result: T, output: Output) -> None:
    """Append a result to the step summary of GitHub, unless ``-o`` writes to it."""
    file = os.environ.get(_STEP_SUMMARY)
    if not file or (output.output and Path(output.output).absolute() == Path(file).absolute()):
        return
    from distprof.formats import RenderOptions

    try:
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(document.reporter("md")(result, RenderOptions()))
    except OSError as error:
        note(f"The step summary was not written: {error.strerror}")


def _options(output: Output, saved_as: str) -> RenderOptions:
    from distprof.formats import RenderOptions

    return RenderOptions(
        width=output.width or (PIPE_WIDTH if output.output else terminal_width()),
        color=output.output is None and has_color(sys.stdout),
        full=output.full,
        show_all=output.show_all,
        sections=output.sections,
        saved_as=saved_as,
        fail_on=output.fail_on or "",
    )


def _write(text: str, output: Output) -> None:
    from distprof.documents.document import write_file

    if output.output is None:
        to_stdout(text, output.reporter)
        return
    write_file(Path(output.output), text.encode("utf-8", "backslashreplace"))
    note(f"Wrote {output.output}", quiet=output.quiet)


def verdict_code(findings: Iterable[Finding], fail_on: str | None) -> int:
    """Return 1 if a finding is at least as severe as ``fail_on``, else 0."""
    from distprof.terms import Severity

    if fail_on is None:
        return ExitCode.FINE
    threshold = Severity(fail_on).rank
    failed = any(finding.severity.rank >= threshold for finding in findings)
    return ExitCode.FINDINGS if failed else ExitCode.FINE


def note(message: str, *, quiet: bool = False) -> None:
    """Write a remark to stderr."""
    if not quiet:
        click.echo(inert(plain(message)), err=True)


def to_stdout(text: str, format_name: str = "text") -> None:
    """Write to stdout and flush, unless the reader has closed the pipe, as ``head`` does."""
    stream = sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(in_encoding(inert(text, format_name), encoding))
        stream.flush()
    except BrokenPipeError:
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        raise InputError(
            "stdout",
            expected="an output that accepts the report",
            found=error.strerror or str(error),
            fix="free disk space, or write to another file with -o",
        ) from error


def in_encoding(text: str, encoding: str) -> str:
    """Replace the characters of ``text`` that the encoding lacks."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    return text


def _discard_stdout() -> None:
    """Point stdout at /dev/null, so the interpreter does not flush to a closed pipe at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def terminal_width() -> int:
    """Columns of the terminal; 100 without one."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return PIPE_WIDTH
    return shutil.get_terminal_size((PIPE_WIDTH, 40)).columns


def has_color(stream: TextIO) -> bool:
    """Whether to colour output on the stream."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


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
