"""Where a report goes: the terminal, a pipe or a file, which is not replaced by accident."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from distprof.cli.app import ExitCode
from distprof.errors import UsageError
from distprof.escape import inert, plain

if TYPE_CHECKING:
    from msgspec import Struct

    from distprof.documents.document import Document
    from distprof.formats import RenderOptions
    from distprof.rules.base import Finding
    from distprof.sections.report import Report

__all__ = [
    "Output",
    "check_free",
    "deliver",
    "has_color",
    "in_encoding",
    "note",
    "show",
    "show_in_step_summary",
    "terminal_width",
    "to_stdout",
    "verdict_code",
]

T = TypeVar("T", bound="Struct")

_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"

PIPE_WIDTH = 100
_ASCII = str.maketrans("█▓▒▚▞░·µ–…×→", "#=~+%.-u-~x>")
"""Characters that reports draw with, and their ASCII substitutes of the same width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The user's choices about output.

    Args:
        format_name: Name of a reporter, None for the file's ending or text.
        output: File to write, None for stdout.
        force: Whether files may be replaced.
        width: Columns of text, None for the terminal's.
        show_all: Whether to show everything, with nothing folded.
        quiet: Whether to write only errors to stderr.
        full: Whether a report's text has every section.
        sections: Sections of a report to show; empty for all.
        fail_on: Severity from which findings fail; None for none.
    """

    format_name: str | None
    output: str | None
    force: bool
    width: int | None
    show_all: bool
    quiet: bool
    full: bool = False
    sections: tuple[str, ...] = ()
    fail_on: str | None = None

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Output:
        """The choices among a verb's options, which are removed from them."""
        return cls(**{name: options.pop(name) for name in cls.__slots__ if name in options})

    def __post_init__(self) -> None:
        if self.output == "-":  # stdout, as in other programs
            object.__setattr__(self, "output", None)

    @property
    def reporter(self) -> str:
        """The name of the reporter to use."""
        from distprof.formats import format_of_file

        return self.format_name or (self.output and format_of_file(self.output)) or "text"

    def check(self, document: Document[Any] | None = None) -> None:
        """Refuse up front what would fail only after the work.

        Args:
            document: What will be written; None for a report, whose format is checked earlier.

        Raises:
            UsageError: If the file exists, its folder does not, the format is unknown or has no
                sections, or the file's ending names no format.
        """
        if self.output is not None:
            self._check_ending(self.output)
            check_free(self.output, force=self.force)
        from distprof.terms import CI_FORMATS

        if self.sections and self.reporter in ("brief", "json", *CI_FORMATS):
            raise UsageError(
                f"--section is for text, Markdown and HTML, not for {self.reporter}, which is of"
                " the whole report"
            )
        if document is not None:
            document.reporter(self.reporter)

    def _check_ending(self, file: str) -> None:
        """Refuse text in a file that is called, for example, ``report.html``."""
        from distprof.formats import endings, format_of_file

        ending = Path(file).suffix
        if self.format_name or not ending or format_of_file(file):
            return
        raise UsageError(
            f"{file}: no format has the ending {ending}: name the format with --format, or end the "
            f"file's name in {', '.join(endings())}"
        )


def check_free(file: str, *, force: bool) -> None:
    """Refuse a file that exists or cannot be created.

    Raises:
        UsageError: If so; the message says why.
    """
    path = Path(file)
    if not file:
        raise UsageError("the name of the file to write is empty")
    if path.is_dir():
        raise UsageError(f"{file} is a folder: name a file in it")
    if path.is_file() and not force:
        raise UsageError(f"{file} exists: add --force to replace it")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder: create it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path.parent} cannot be written: choose another place")


def show(report: Report, output: Output, *, saved_as: str = "") -> None:
    """Render the report and deliver it.

    Raises:
        InputError: If a file cannot be written.
    """
    from distprof.formats import find_reporter

    _write(find_reporter(output.reporter)(report, _options(output, saved_as)), output)


def deliver(document: Document[T], result: T, output: Output) -> None:
    """Render a result other than a run's report, and write it where the user wants it.

    Raises:
        InputError: If a file cannot be written.
        UsageError: If the format is unknown.
    """
    _write(document.reporter(output.reporter)(result, _options(output)), output)


def show_in_step_summary(document: Document[T], result: T, output: Output) -> None:
    """Append a result to the summary page of a step of GitHub Actions, if there is one.

    Not where the user has the result written to that page anyway.
    """
    file = os.environ.get(_STEP_SUMMARY)
    if not file or (output.output and Path(output.output).absolute() == Path(file).absolute()):
        return
    from distprof.formats import RenderOptions

    try:
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(document.reporter("md")(result, RenderOptions()))
    except OSError as error:
        note(f"The step summary was not written: {error.strerror}")


def _options(output: Output, saved_as: str = "") -> RenderOptions:
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
    """1 if a finding is at least as severe as ``fail_on``, else 0."""
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
    """Write to stdout and flush; a reader that has closed the pipe, like ``head``, is not an error.

    Args:
        text: What to write.
        format_name: Its format, by which workflow commands are kept out under GitHub Actions.

    Raises:
        InputError: If stdout cannot be written, for example because its disk is full.
    """
    from distprof.errors import InputError

    stream = sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(in_encoding(inert(text, format_name), encoding))
        stream.flush()
    except BrokenPipeError:
        _forget_stdout()
    except OSError as error:
        _forget_stdout()
        raise InputError(
            "stdout",
            expected="an output that accepts the report",
            found=error.strerror or str(error),
            fix="free some space, or write elsewhere with -o",
        ) from error


def in_encoding(text: str, encoding: str) -> str:
    """``text`` with characters that the encoding lacks replaced or escaped."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    return text


def _forget_stdout() -> None:
    """Keep the interpreter from flushing to a closed pipe at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def terminal_width() -> int:
    """Columns of the terminal; 100 where there is none."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return PIPE_WIDTH
    return shutil.get_terminal_size((PIPE_WIDTH, 40)).columns


def has_color(stream: TextIO) -> bool:
    """Whether the stream is a terminal whose user has not switched colour off, or forced it.

    ``NO_COLOR`` and ``FORCE_COLOR`` are conventions of many programs; the former wins.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"
