"""The command ``distprof``: finds the verbs, and turns every way out into an exit code.

Verbs are imported when they are called, so that ``distprof --help`` stays quick. Another package
adds one under the entry-point group ``distprof.commands``.
"""

from __future__ import annotations

import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module

import click

from distprof.errors import DistprofError
from distprof.escape import plain, plain_lines
from distprof.version import __version__

__all__ = ["ExitCode", "State", "app", "main"]

ENTRY_POINT_GROUP = "distprof.commands"

_VERBS = {
    "analyze": "Where each step's time goes, who caused it, what a fix is worth.",
    "compare": "What changed between two runs, and where the difference lies.",
    "scale": "How efficiency falls over the number of ranks, and where it goes.",
    "check": "Fail when runs are slower than a baseline: a gate for CI.",
    "history": "Figures of runs over commits: add, show, query.",
    "report": "Show a saved report again, in any format.",
    "rule": "Explain a rule: what it detects, its cost, its fix.",
    "hang": "Which ranks the others wait for where a job is stuck.",
    "fabric": "How fast a network is, by distprof bench or nccl-tests.",
    "plan": "Which layouts fit a model on a cluster, and what each costs.",
    "doctor": "Check this installation: versions, extras, cache, device.",
}

_STARTING = {
    "run": "Train a reference workload of one parallelism, under probes.",
    "capture": "Record your own program, unchanged, and report on it.",
    "attach": "Look into a running or hung job: state, stacks, a profile now.",
    "bench": "Measure how fast collectives are here.",
}
"""Verbs that start or enter training processes; an installation without them lacks the names."""


class ExitCode(IntEnum):
    """What the shell is told."""

    FINE = 0
    FINDINGS = 1
    USAGE = 2
    INPUT = 3
    INTERRUPTED = 130
    TERMINATED = 143


class _Terminated(BaseException):
    """SIGTERM, as batch systems send it: an orderly end, so that no worker process is left."""


@dataclass
class State:
    """What one call of the program knows from its start to its end.

    Args:
        debug: Whether an unexpected error shows where it happened.
    """

    debug: bool = False


class _Verbs(click.Group):
    """A group whose verbs are imported only when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*_VERBS, *(name for name in _other_verbs() if name not in _VERBS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name in _VERBS:
            command = getattr(import_module(f"distprof.cli.{cmd_name}"), cmd_name)
            return command if isinstance(command, click.Command) else None
        return _load_other(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(_unknown_verb(args[0]), ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the verbs by what is known of them without importing them."""
        rows = list(_VERBS.items())
        rows += [
            (name, _STARTING.get(name, f"From {package}."))
            for name, package in _other_verbs().items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _other_verbs() -> dict[str, str]:
    """Verbs of other packages, with the name of the package."""
    from importlib.metadata import entry_points

    points = entry_points(group=ENTRY_POINT_GROUP)
    return {p.name: p.dist.name if p.dist else p.module for p in points if p.name not in _VERBS}


def _load_other(name: str) -> click.Command | None:
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        command = point.load()
        if isinstance(command, click.Command):
            return command
    return None


def _unknown_verb(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, _VERBS, n=2, cutoff=0.6)
    if near:
        return f"no command {plain(name)!r}: did you mean {' or '.join(near)}?"
    return f"no command {plain(name)!r}: to analyse traces, distprof analyze {plain(name)}"


@click.command(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 fine, 1 findings at or above --fail-on, 2 wrong usage, 3 bad input.",
)
@click.version_option(__version__, prog_name="distprof", message="%(prog)s %(version)s")
def app() -> None:
    """Find out where each step of a distributed PyTorch job goes.

    \b
    Start with a folder of Kineto traces, one per rank, or with just one:
      distprof analyze traces/
    """  # noqa: D301 - click reads it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Instead of the process's own.

    Returns:
        The exit code: see :class:`ExitCode`.
    """
    state = State()
    with warnings.catch_warnings(), _orderly_end():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")  # a library's warning is no message to a user
        try:
            return _run(arguments, state)
        except (KeyboardInterrupt, click.Abort):
            _say("Interrupted. What was parsed stays in the cache.")
            return ExitCode.INTERRUPTED
        except _Terminated:
            _say("Terminated. What was parsed stays in the cache.")
            return ExitCode.TERMINATED
        except DistprofError as error:
            _say(f"Error: {error}")
            return error.exit_code
        except Exception as error:  # the last resort: a sentence, never a traceback
            return _unexpected(error, state)


@contextmanager
def _orderly_end() -> Iterator[None]:
    """Make SIGTERM unwind, for the time of the block; other threads than the first cannot."""

    def unwind(*_: object) -> None:
        raise _Terminated

    try:
        before = signal.signal(signal.SIGTERM, unwind)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: Sequence[str] | None, state: State) -> int:
    try:
        result = app.main(
            args=None if arguments is None else list(arguments),
            prog_name="distprof",
            standalone_mode=False,
            obj=state,
        )
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return ExitCode.FINE
    except click.ClickException as error:
        _show_usage_error(error)
        return error.exit_code
    return result if isinstance(result, int) else ExitCode.FINE


def _show_usage_error(error: click.ClickException) -> None:
    context = getattr(error, "ctx", None)
    _say(f"Error: {error.format_message()}")
    if isinstance(context, click.Context):
        _say(f"Try: {context.command_path} --help")


def _unexpected(error: Exception, state: State) -> int:
    if state.debug:
        traceback.print_exception(error)
    what = plain(f"{type(error).__name__}: {error}"[:300])
    again = "" if state.debug else " Run again with --debug to see where."
    _say(f"Error: distprof met something it does not expect ({what}).{again}")
    return ExitCode.INPUT


def _say(message: str) -> None:
    """One message on stderr, harmless to the terminal."""
    click.echo(plain_lines(message), err=True)
