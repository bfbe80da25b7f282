"""Options that verbs share, defined once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from distprof.cli.app import State
from distprof.terms import PAGE_FORMATS, Severity

__all__ = [
    "RankList",
    "StepList",
    "debug_option",
    "fail_on_option",
    "output_options",
    "output_options_with",
    "report_options",
]

Command = TypeVar("Command", bound=Callable[..., Any])

MAX_RANK = 10_000_000


class _Named(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """One of some names, which the shell completes."""

    def choices(self) -> Iterable[str]:
        """The names."""
        raise NotImplementedError

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Names that begin as typed."""
        return [CompletionItem(name) for name in self.choices() if name.startswith(incomplete)]


class FormatChoice(_Named):
    """The name of a reporter; names are looked up only when one is given."""

    name = "format"

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self.names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check that the reporter exists."""
        from distprof.formats import is_reporter

        if not (value in self.names if self.names else is_reporter(value)):
            self.fail(f"{value!r} is not one of {', '.join(self.choices())}", param, ctx)
        return str(value)

    def choices(self) -> Iterable[str]:
        """The formats of the command."""
        from distprof.formats import reporter_names

        return self.names or reporter_names()

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002
        from distprof.terms import CI_FORMATS

        return "|".join(self.names or (*PAGE_FORMATS, *CI_FORMATS))


class SectionName(_Named):
    """A section of the report, or ``findings``; the shell completes it."""

    name = "section"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check that there is such a section."""
        names = _section_names()
        if value not in names:
            self.fail(f"{value!r} is not one of {', '.join(names)}", param, ctx)
        return str(value)

    def choices(self) -> Iterable[str]:
        """Sections and ``findings``."""
        return _section_names()


def _section_names() -> tuple[str, ...]:
    from distprof.formats import FINDINGS
    from distprof.sections.shows import section_names

    return (FINDINGS, *section_names())


class RankList(click.ParamType):  # type: ignore[type-arg]
    """Ranks as numbers and ranges, for example ``0-3,8``."""

    name = "ranks"
    one = "rank"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[int]:
        """Read the numbers and ranges."""
        from distprof.options import whole_number

        if isinstance(value, frozenset):
            return value
        ranks: set[int] = set()
        for piece in str(value).split(","):
            low, _, high = piece.strip().partition("-")
            first = whole_number(low, most=MAX_RANK)
            last = whole_number(high or low, most=MAX_RANK)
            if first is None or last is None or last < first:
                self.fail(
                    f"{piece.strip()[:40]!r} is neither a {self.one} nor a range such as 0-3, of"
                    f" {self.name} up to {MAX_RANK:,}",
                    param,
                    ctx,
                )
            ranks.update(range(first, last + 1))
        return frozenset(ranks)


class StepList(RankList):
    """Steps, written in the same way."""

    name = "steps"
    one = "step"


def output_options(command: Command) -> Command:
    """Options for how and where the result of a verb is shown."""
    return output_options_with(*PAGE_FORMATS)(command)


def report_options(command: Command) -> Command:
    """The same for the report on a run, of which the text may be short, full, or of one section."""
    section = click.option(
        "--section",
        "sections",
        type=SectionName(),
        multiple=True,
        metavar="NAME",
        help="Show one section; --list-sections lists them. May be repeated.",
    )
    full = click.option("--full", is_flag=True, help="Show every section, not only what to do.")
    listing = click.option(
        "--list-sections",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_list_sections,
        help="List the sections and exit.",
    )
    return _apply((*_output_options(()), full, section, listing), command)


def _list_sections(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if not value or ctx.resilient_parsing:
        return
    from distprof.formats import FINDINGS
    from distprof.sections.shows import sections_with_tables

    listed = {FINDINGS: "All findings, with their fixes.", **sections_with_tables()}
    for name, subject in listed.items():
        click.echo(f"{name:<14}{subject}")
    ctx.exit()


def output_options_with(*formats: str) -> Callable[[Command], Command]:
    """The same for a verb whose result has its own formats.

    Args:
        formats: Their names.
    """
    return lambda command: _apply(_output_options(formats), command)


def _output_options(formats: tuple[str, ...]) -> tuple[Callable[[Command], Command], ...]:
    return (
        click.option(
            "--format",
            "format_name",
            type=FormatChoice(formats),
            help="Output format; by default the ending of -o decides, else text.",
        ),
        click.option(
            "--brief",
            "format_name",
            flag_value="brief",
            help="Short for --format brief: at most 1,500 tokens, for assistants and chats.",
        ),
        click.option(
            "-o",
            "--output",
            type=click.Path(),
            metavar="FILE",
            help="Write to FILE instead of stdout (-).",
        ),
        click.option("--force", is_flag=True, help="Replace existing files."),
        click.option(
            "--width",
            type=click.IntRange(40, 400),
            metavar="COLUMNS",
            help="Text width; the terminal's by default.",
        ),
        click.option(
            "--all", "show_all", is_flag=True, help="Show every finding, rank, class and kernel."
        ),
        click.option("-q", "--quiet", is_flag=True, help="Write only errors to stderr."),
    )


def fail_on_option(command: Command) -> Command:
    """Add ``--fail-on``: exit code 1 for findings."""
    option = click.option(
        "--fail-on",
        type=click.Choice([severity.value for severity in Severity]),
        help="Exit with 1 if a finding is at least this severe.",
    )
    return option(command)


def debug_option(command: Command) -> Command:
    """Add ``--debug``: show the traceback of an unexpected error."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
        state = ctx.find_object(State)
        if state is not None:
            state.debug = value

    option = click.option(
        "--debug",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=remember,
        help="Show the traceback of an unexpected error.",
    )
    return option(command)


def _apply(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
