"""``distprof watch``: a job while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, output_options
from distprof.cli.output import (
    Output,
    deliver,
    has_color,
    in_encoding,
    note,
    terminal_width,
    to_stdout,
)
from distprof.errors import InputError, UsageError
from distprof.escape import plain
from distprof.units import finite_range

if TYPE_CHECKING:
    from distprof.verbs.watch.board import Board
    from distprof.verbs.watch.deliver import Courier
    from distprof.verbs.watch.result import Alert, WatchReport

__all__ = ["watch"]


@click.command()
@click.argument("source", metavar="DIR|URL", type=click.Path())
@click.option(
    "--alert",
    "alerts",
    metavar="KIND[=LEVEL],…",
    multiple=True,
    help="What to be told about, for example slow-rank=10%,rank-lost; exit with 1 if it happened.",
)
@click.option("--webhook", metavar="URL", help="Send alerts there, as JSON by POST.")
@click.option(
    "--exec", "command", metavar="COMMAND", help="Run this for each alert; JSON on its input."
)
@click.option(
    "--every",
    "period_s",
    type=finite_range(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two looks.",
)
@click.option(
    "--listen",
    metavar="[HOST:]PORT",
    help="Let others watch the same at http://HOST:PORT; the host is 127.0.0.1 if not named.",
)
@click.option("--once", is_flag=True, help="Look at the last steps once, and exit.")
@output_options
@debug_option
def watch(
    source: str,
    alerts: tuple[str, ...],
    webhook: str | None,
    command: str | None,
    period_s: float,
    listen: str | None,
    once: bool,
    **output_options: Any,
) -> int:
    """Watch a job while it runs: its speed, who is late, who is lost.

    DIR is the run directory that distprof run or distprof capture printed. Only files are read, so
    the job is not slowed down. URL is another distprof watch that was started with --listen where
    the job runs. Watching ends with the job, or with Ctrl-C. Without a terminal, each look writes
    one line. Kinds of alerts: slow-rank, slow-job, rank-lost, stalled, input, throttling, memory.

    \b
      distprof watch runs/mine
      distprof watch runs/mine --alert slow-rank=10%,rank-lost --webhook https://host/hook
      distprof watch runs/mine --once --format json
      distprof watch runs/mine --listen 9465
      distprof watch http://127.0.0.1:9465
    """  # noqa: D301 - click reads it
    output = Output(**output_options)
    from distprof.verbs.addresses import listen_address
    from distprof.verbs.watch.alerts import alert_kinds, default_levels, parse_alerts
    from distprof.verbs.watch.endpoint import follow_endpoint, is_endpoint
    from distprof.verbs.watch.follow import follow, run_directory
    from distprof.verbs.watch.show import WATCH

    output.check(WATCH)
    is_far = is_endpoint(source)
    chosen = dict.fromkeys(alert_kinds(alerts), 0.0) if is_far else parse_alerts(alerts)
    told = _Told(chosen or default_levels(), is_asked=bool(alerts))
    if listen is not None and (once or is_far):
        raise UsageError("--listen needs a run directory, and time: it does not go with --once")
    board = None
    if listen is not None:
        from distprof.verbs.watch.board import Board

        run_directory(source)  # before others are told where to look
        board = Board(*listen_address(listen))
        note(f"Others can watch at {board.address}", quiet=output.quiet)
    courier = _courier(webhook, command, output)
    levels = default_levels() | chosen
    find = follow_endpoint if is_far else partial(follow, levels=levels)
    try:
        _watch(find(source, period_s=period_s), told, courier, board, output, once=once)
        if board is not None:
            _keep_open(board, period_s, output)
    except KeyboardInterrupt:
        note("Stopped watching; the job continues.", quiet=output.quiet)
    finally:
        courier.close()
        if board is not None:
            board.close()
    return ExitCode.FINDINGS if told.has_happened else ExitCode.FINE


class _Told:
    """Which alerts the user wants to be told about, and whether one was raised.

    Args:
        kinds: Their names.
        is_asked: Whether the user named them: only then do they decide the exit code.
    """

    def __init__(self, kinds: Iterable[str], *, is_asked: bool) -> None:
        self._kinds = frozenset(kinds)
        self._is_asked = is_asked
        self.has_happened = False

    def among(self, alerts: list[Alert]) -> list[Alert]:
        """Those that the user wants."""
        found = [alert for alert in alerts if alert.kind in self._kinds]
        raised = any(alert.state == "raised" for alert in found)
        self.has_happened = self.has_happened or (raised and self._is_asked)
        return found


def _courier(webhook: str | None, command: str | None, output: Output) -> Courier:
    from distprof.verbs.watch.deliver import Command, Courier, Receiver, Webhook

    receivers: dict[str, Receiver] = {}
    if webhook is not None:
        receivers["the webhook"] = Webhook(webhook)
    if command is not None:
        receivers["the command"] = Command(command)
    return Courier(receivers, lambda text: note(text, quiet=output.quiet))


def _watch(
    looks: Iterator[tuple[WatchReport, list[Alert]]],
    told: _Told,
    courier: Courier,
    board: Board | None,
    output: Output,
    *,
    once: bool,
) -> None:
    from distprof.verbs.watch.show import WATCH

    is_live = not once and output.output is None and output.reporter == "text"
    with _screen(output) if is_live else nullcontext(lambda *_: None) as show:
        for report, alerts in looks:
            if board is not None:
                board.show(report)
            wanted = told.among(alerts)
            for alert in wanted:
                courier.send(alert)
            show(report, wanted)
            if once:
                break
    if not is_live:
        deliver(WATCH, report, output)


def _keep_open(board: Board, period_s: float, output: Output) -> None:
    """Let those who watch from elsewhere see how the job ended."""
    linger_s = max(10.0, 3 * period_s)
    note(f"{board.address} answers for {linger_s:.0f} s more.", quiet=output.quiet)
    time.sleep(linger_s)


def _screen(output: Output) -> AbstractContextManager[Any]:
    """What shows each look: a page that renews itself, or lines where there is no terminal."""
    if sys.stdout.isatty():
        return _Page(output)
    return nullcontext(_Lines(output).show)


class _Lines:
    """One line for each look, and one for each alert; a line that repeats the last is left out.

    Where the output accepts no more, as on a full disk, watching and alerts continue without it.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._last = ""

    def show(self, report: WatchReport, alerts: list[Alert]) -> None:
        """Write them."""
        from distprof.verbs.watch.show import one_line

        line = plain(one_line(report))
        if line != self._last:
            self._write(line)
        self._last = line
        for alert in alerts:
            self._write(plain(f"{alert.state}: {alert.kind}: {alert.message}"))

    def _write(self, line: str) -> None:
        try:
            to_stdout(f"{line}\n")
        except InputError as error:
            note(f"Lines are no longer written: {error.found}.", quiet=self._output.quiet)


class _Page:
    """A page on the terminal that is drawn anew at each look; the last one stays."""

    def __init__(self, output: Output) -> None:
        from rich.console import Console
        from rich.live import Live

        self._output = output
        self._live = Live(console=Console(), auto_refresh=False, transient=False)

    def __enter__(self) -> Callable[[WatchReport, list[Alert]], None]:
        self._live.__enter__()
        return self.show

    def __exit__(self, *ending: Any) -> None:
        self._live.__exit__(*ending)

    def show(self, report: WatchReport, alerts: list[Alert]) -> None:  # noqa: ARG002
        """Draw the page; the alerts that are raised are part of it."""
        from rich.text import Text

        from distprof.formats import RenderOptions
        from distprof.verbs.watch.show import WATCH

        width = self._output.width or terminal_width()
        color = has_color(sys.stdout)
        text = WATCH.reporter("text")(report, RenderOptions(width=width, color=color))
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        self._live.update(Text.from_ansi(in_encoding(text, encoding)), refresh=True)
