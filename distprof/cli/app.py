"""The ``distprof`` command: dispatches to verbs and turns every outcome into an exit code."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module

import click

from distprof.errors import DistprofError, StatementError
from distprof.escape import inert, plain, plain_lines
from distprof.version import __version__

_VERBS = {
    "analyze": "Where each step's time goes, what causes it, what a fix would gain.",
    "op": "One operator: shapes, kernels, callers, and a script that repeats it.",
    "compare": "What changed between two runs, and which parts of a step explain it.",
    "scale": "How efficiency falls as ranks are added, and where it is lost.",
    "check": "Fail when runs are slower than a baseline: a gate for CI.",
    "history": "Metrics of runs over commits: add, show, compact.",
    "report": "Show a saved report in any format.",
    "export": "A timeline of all ranks for Perfetto; metrics for Prometheus and OpenTelemetry.",
    "rule": "Explain a rule: what it detects, why it costs time, how to fix it.",
    "watch": "Follow a running job: its speed, late ranks, lost ranks; alerts.",
    "hang": "Which ranks the others wait for when a job is stuck.",
    "fabric": "How fast a network is, as measured by distprof bench or nccl-tests.",
    "plan": "Which layouts of a model fit a cluster, and how fast each is.",
    "demo": "Analyse a real recording that comes with distprof.",
    "mcp": "Serve read-only tools to an AI assistant (Model Context Protocol).",
    "doctor": "Check this installation: versions, extras, cache, GPU.",
}

_SIMPLE = ("report", "compare", "hang", "op", "fabric", "demo", "mcp", "rule")
"""Verbs that share the module ``simple``."""

_STARTING = {
    "run": (
        "distprof_runs.cli",
        "Train a reference workload with one kind of parallelism, under probes.",
    ),
    "bench": (
        "distprof_runs.bench.cli",
        "Measure the speed of collectives, or of computation, on this machine.",
    ),
    "capture": (
        "distprof_probes.cli.capture",
        "Record your own program, unmodified, and report on it.",
    ),
    "attach": (
        "distprof_probes.cli.attach",
        "Inspect a running or hung job: state, stacks, a profile now.",
    ),
}
"""Modules and summaries of verbs that start training processes or attach to them. They are listed
only if their package is installed, and named as text: this package must not import them."""

_GROUPS = {
    "Start": ("demo", "doctor"),
    "Record": ("capture", "run", "attach", "bench"),
    "Diagnose": ("analyze", "op", "watch", "hang", "report", "export", "rule"),
    "Compare and gate": ("compare", "scale", "check", "history"),
    "Plan": ("plan", "fabric"),
    "Connect": ("mcp",),
}

_GARBAGE = 250_000
"""Allocations between garbage collections. Imports and definitions create many objects and no
garbage, and scanning them takes 5 % of a short command."""


class ExitCode(IntEnum):
    """Exit codes of the command."""

    FINE = 0
    FINDINGS = 1
    USAGE = 2
    INPUT = 3
    INTERRUPTED = 130
    TERMINATED = 143


class _Terminated(BaseException):
    """Raised on SIGTERM, which batch systems send: exit cleanly and leave no worker behind."""


@dataclass
class State:
    """State of one invocation of the program."""

    debug: bool = False  # Whether to show the traceback of an unexpected error.


class _Verbs(click.Group):
    """A group whose verbs are imported only when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name in _VERBS:
            module = f"distprof.cli.{'simple' if cmd_name in _SIMPLE else cmd_name}"
        elif cmd_name in _STARTING and _is_installed(cmd_name):
            module, _ = _STARTING[cmd_name]
        else:
            return None
        command = getattr(import_module(module), cmd_name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            found = super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(_unknown_verb(args[0]), ctx) from error
        computes = found[0] in _VERBS and found[0] not in ("rule", "doctor")
        if computes and not {*ctx.help_option_names} & {*args}:
            from distprof.kernel import import_numpy

            import_numpy()  # before anything else does
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the verbs by purpose, with their summaries, without importing them."""
        summaries = _summaries()
        for title, names in _GROUPS.items():
            rows = [(name, summaries[name]) for name in names if name in summaries]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=len("analyze") + 4)


def _summaries() -> dict[str, str]:
    """Summaries of the verbs that can be called."""
    starting = {name: text for name, (_, text) in _STARTING.items() if _is_installed(name)}
    return {**_VERBS, **starting}


def _is_installed(name: str) -> bool:
    """Whether the package of a verb in ``_STARTING`` is there; it is not imported."""
    from importlib.util import find_spec

    return find_spec(_package_of(name)) is not None


def _package_of(name: str) -> str:
    return _STARTING[name][0].partition(".")[0]


def _unknown_verb(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, _summaries(), n=2, cutoff=0.6)
    hint = f"to analyse traces, distprof analyze {plain(name)}"
    if name in _STARTING:
        hint = f"its package {_package_of(name)} is not installed (pip install distprof)"
    elif near:
        hint = f"did you mean {' or '.join(near)}?"
    return f"no command {plain(name)!r}: {hint}"


@click.command(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 success, 1 findings at or above --fail-on, 2 wrong usage, 3 bad input.",
)
@click.version_option(__version__, prog_name="distprof", message="%(prog)s %(version)s")
def app() -> None:
    """Find out where each step of a distributed PyTorch job spends its time.

    \b
    Start with a folder of Kineto traces, one per rank, or with a single trace:
      distprof analyze traces/
    """  # noqa: D301 - click reads it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, or these arguments instead; return the :class:`ExitCode`."""
    gc.set_threshold(_GARBAGE)
    try:
        return _outcome(arguments, State())
    finally:
        if arguments is None:
            gc.freeze()  # the process exits now: skip the final garbage collection


def _outcome(arguments: Sequence[str] | None, state: State) -> int:
    """Run the command and map every outcome, errors included, to an exit code."""
    try:  # outside: SIGTERM may also come while its handler is restored
        with warnings.catch_warnings(), _unwinding_on_sigterm(), _again_if_ignored():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")  # library warnings are not meant for the user
            return _run(arguments, state)
    except (KeyboardInterrupt, click.Abort) as end:
        _say(_with_notes("Interrupted.", end))
        return ExitCode.INTERRUPTED
    except _Terminated as end:
        _say(_with_notes("Terminated.", end))
        return ExitCode.TERMINATED
    except DistprofError as error:
        _say(f"{error}" if isinstance(error, StatementError) else f"Error: {error}")
        return error.exit_code
    except OSError as error:
        return _name_too_long(error) or _unexpected(error, state)
    except Exception as error:  # last resort: print a sentence, not a traceback
        return _unexpected(error, state)


def _with_notes(message: str, end: BaseException) -> str:
    """``message`` plus the notes of the interrupted code, also if click wrapped the exception."""
    notes = [*getattr(end, "__notes__", ()), *getattr(end.__context__, "__notes__", ())]
    return " ".join((message, *notes))


@contextmanager
def _unwinding_on_sigterm() -> Iterator[None]:
    """Make SIGTERM unwind the stack inside the block; a no-op outside the main thread."""

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


@contextmanager
def _again_if_ignored() -> Iterator[None]:
    """Repeat a signal whose exception Python ignored: it came in a destructor or around a fork."""
    before = sys.unraisablehook

    def repeat(unraisable: sys.UnraisableHookArgs) -> None:
        number = _SIGNALS.get(unraisable.exc_type)
        if number is None:
            before(unraisable)
            return
        later = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
        later.daemon = True
        later.start()

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = before


_SIGNALS = {KeyboardInterrupt: signal.SIGINT, _Terminated: signal.SIGTERM}
_AGAIN_S = 0.02
"""Time after which the signal is repeated: the code that ignores exceptions has ended by then."""


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
        context = getattr(error, "ctx", None)
        _say(f"Error: {error.format_message()}")
        if isinstance(context, click.Context):
            _say(f"Try: {context.command_path} --help")
        return error.exit_code
    return result if isinstance(result, int) else ExitCode.FINE


def _name_too_long(error: OSError) -> int | None:
    """Report an argument too long for a file name; None for any other error."""
    if error.errno != errno.ENAMETOOLONG:
        return None
    name = str(error.filename or "")
    _say(f"Error: {name[:80]}…:\n  expected: a file name\n  found: {len(name):,} characters")
    return ExitCode.INPUT


def _unexpected(error: Exception, state: State) -> int:
    if state.debug:
        traceback.print_exception(error)
    what = plain(f"{type(error).__name__}: {error}"[:300])
    again = "" if state.debug else " Run again with --debug to see the traceback."
    _say(f"Error: unexpected error in distprof ({what}).{again}")
    return ExitCode.INPUT


def _say(message: str) -> None:
    """Write one message to stderr, with control characters escaped."""
    click.echo(inert(plain_lines(message)), err=True)
