"""Options that verbs share, defined once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from distprof.cli.app import State
from distprof.terms import FORMATS, PAGE_FORMATS, Severity
from distprof.units import MOST_RANKS, parse_duration

Command = TypeVar("Command", bound=Callable[..., Any])
flag_option = partial(click.option, is_flag=True)
path_option = partial(click.option, type=click.Path(), metavar="FILE")
_eager_flag = partial(flag_option, is_eager=True, expose_value=False)
MAX_RANK = 10_000_000


class _Named(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """One of a set of names, with shell completion."""

    def choices(self) -> Iterable[str]:
        """The names."""
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check that it is one of the names."""
        if value not in self.choices():
            self.fail(f"{value!r} is not one of {', '.join(self.choices())}", param, ctx)
        return str(value)

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Names that start with the typed text."""
        return [CompletionItem(name) for name in self.choices() if name.startswith(incomplete)]


class FormatChoice(_Named):
    """The name of a format."""

    name = "format"

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self.names = names or FORMATS

    def choices(self) -> Iterable[str]:
        """The formats that the command supports."""
        return self.names

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002
        """As in the help: ``text|md|…``."""
        return "|".join(self.names)


class SectionName(_Named):
    """A section of the report, or ``findings``, with shell completion."""

    name = "section"

    def choices(self) -> Iterable[str]:
        """Sections and ``findings``."""
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
        """Parse the numbers and ranges."""
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
                    f"{piece.strip()[:40]!r} is neither a {self.one} nor a range such as 0-3"
                    f" ({self.name} go up to {MAX_RANK:,})",
                    param,
                    ctx,
                )
            if len(ranks) + last - first >= MOST_RANKS:
                self.fail(
                    f"{str(value)[:40]!r} names more than {MOST_RANKS:,} {self.name}", param, ctx
                )
            ranks.update(range(first, last + 1))
        return frozenset(ranks)


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """A time with its unit, for example ``30.5ms``; int ns."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse number and unit."""
        if isinstance(value, int):
            return value
        parsed = parse_duration(str(value))
        if parsed is None:
            self.fail(
                f"{str(value)[:40]!r} is not a time such as 30.5ms, 1.2s or 850us", param, ctx
            )
        return parsed


class StepList(RankList):
    """Steps, in the same notation as ranks."""

    name = "steps"
    one = "step"


def format_option(*names: str) -> Callable[[Command], Command]:
    """The option for the format of a verb that only writes to stdout; by default the first."""
    kind, about = click.Choice(names), "Output format."
    return click.option("--format", "format_name", type=kind, default=names[0], help=about)


def output_options(command: Command) -> Command:
    """Add the options for how and where to show the result of a verb."""
    return output_options_with(*PAGE_FORMATS)(command)


def report_options(command: Command) -> Command:
    """Add the output options of a run's report, whose text may be short, full or one section."""
    section = click.option(
        "--section",
        "sections",
        type=SectionName(),
        multiple=True,
        metavar="NAME",
        help="Show one section; --list-sections lists them. May be repeated.",
    )
    full = flag_option("--full", help="Show every section, not only what to do.")
    listing = _eager_flag(
        "--list-sections", callback=_list_sections, help="List the sections and exit."
    )
    return _apply((*_output_options(()), full, section, listing), command)


def _list_sections(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if not value or ctx.resilient_parsing:
        return
    from distprof.formats import FINDINGS
    from distprof.sections.shows import described_sections

    listed = {FINDINGS: "All findings, with their fixes.", **described_sections()}
    for name, subject in listed.items():
        click.echo(f"{name:<14}{subject}")
    ctx.exit()


def output_options_with(*formats: str) -> Callable[[Command], Command]:
    """Like :func:`output_options`, for a verb whose result has other formats."""
    return lambda command: _apply(_output_options(formats), command)


def _output_options(formats: tuple[str, ...]) -> tuple[Callable[[Command], Command], ...]:
    return (
        click.option(
            "--format",
            "format_name",
            type=FormatChoice(formats),
            help="Output format; by default from the file extension of -o, else text.",
        ),
        click.option(
            "--brief",
            "format_name",
            flag_value="brief",
            help="Short for --format brief: at most 1,500 tokens, for AI assistants and chats.",
        ),
        path_option(
            "-o",
            "--output",
            "outputs",
            multiple=True,
            help="Write to FILE instead of stdout (-). May be repeated, for several formats.",
        ),
        flag_option("--force", help="Replace existing files."),
        click.option(
            "--width",
            type=click.IntRange(40, 400),
            metavar="COLUMNS",
            help="Text width; the terminal's by default.",
        ),
        flag_option("--all", "show_all", help="Show every finding, rank, class and kernel."),
        flag_option("-q", "--quiet", help="Write only errors to stderr."),
    )


fail_on_option = click.option(
    "--fail-on",
    type=click.Choice([severity.value for severity in Severity]),
    help="Exit with 1 if a finding is at least this severe.",
)
config_option = path_option("--config", help="Configuration; the nearest distprof.toml by default.")


def _remember_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    state = ctx.find_object(State)
    if state is not None:
        state.debug = value


debug_option = _eager_flag(
    "--debug", callback=_remember_debug, help="Show the traceback of an unexpected error."
)


def _apply(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
