"""``distprof watch``: follow a job while it runs."""

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


@click.command()
@click.argument("source", metavar="DIR|URL", type=click.Path())
@click.option(
    "--alert",
    "alerts",
    metavar="KIND[=LEVEL],…",
    multiple=True,
    help="Alerts to raise, for example slow-rank=10%,rank-lost; exit with 1 if one was raised.",
)
@click.option("--webhook", metavar="URL", help="POST each alert to URL as JSON.")
@click.option(
    "--exec", "command", metavar="COMMAND", help="Run COMMAND for each alert, JSON on its stdin."
)
@click.option(
    "--every",
    "period_s",
    type=finite_range(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two updates.",
)
@click.option(
    "--listen",
    metavar="[HOST:]PORT",
    help="Let others watch at http://HOST:PORT; HOST is 127.0.0.1 by default.",
)
@click.option("--once", is_flag=True, help="Show the last steps once and exit.")
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
    """Watch a job while it runs: its speed, late ranks and lost ranks.

    DIR is the run directory that distprof run or distprof capture printed. Only files are read, so
    the job is not slowed down. URL is the address of a distprof watch that was started with
    --listen where the job runs. Watching ends with the job, or with Ctrl-C. Without a terminal,
    each update writes one line. Kinds of alerts: slow-rank, slow-job, rank-lost, stalled, input,
    throttling, memory.

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
    is_remote = is_endpoint(source)
    chosen = dict.fromkeys(alert_kinds(alerts), 0.0) if is_remote else parse_alerts(alerts)
    wanted = _WantedAlerts(chosen or default_levels(), decides_exit_code=bool(alerts))
    if listen is not None and (once or is_remote):
        raise UsageError("--listen needs a run directory and cannot be combined with --once")
    board = None
    if listen is not None:
        from distprof.verbs.watch.board import Board

        run_directory(source)  # fails before the address is announced
        board = Board(*listen_address(listen))
        note(f"Others can watch at {board.address}", quiet=output.quiet)
    courier = _courier(webhook, command, output)
    levels = default_levels() | chosen
    follow_source = follow_endpoint if is_remote else partial(follow, levels=levels)
    try:
        reports = follow_source(source, period_s=period_s)
        _watch(reports, wanted, courier, board, output, once=once)
        if board is not None:
            _keep_open(board, period_s, output)
    except KeyboardInterrupt:
        note("Stopped watching; the job continues.", quiet=output.quiet)
    finally:
        courier.close()
        if board is not None:
            board.close()
    return ExitCode.FINDINGS if wanted.is_failed else ExitCode.FINE


class _WantedAlerts:
    """The kinds of alerts that the user wants, and whether one of them fails the command.

    A raised alert fails it only if the user named kinds.
    """

    def __init__(self, kinds: Iterable[str], *, decides_exit_code: bool) -> None:
        self._kinds = frozenset(kinds)
        self._decides_exit_code = decides_exit_code
        self.is_failed = False

    def among(self, alerts: list[Alert]) -> list[Alert]:
        """Filter the alerts by kind, and remember whether one was raised."""
        wanted = [alert for alert in alerts if alert.kind in self._kinds]
        raised = any(alert.state == "raised" for alert in wanted)
        self.is_failed = self.is_failed or (raised and self._decides_exit_code)
        return wanted


def _courier(webhook: str | None, command: str | None, output: Output) -> Courier:
    from distprof.verbs.watch.deliver import Command, Courier, Receiver, Webhook

    receivers: dict[str, Receiver] = {}
    if webhook is not None:
        receivers["the webhook"] = Webhook(webhook)
    if command is not None:
        receivers["the command"] = Command(command)
    return Courier(receivers, lambda text: note(text, quiet=output.quiet))


def _watch(
    reports: Iterator[tuple[WatchReport, list[Alert]]],
    wanted: _WantedAlerts,
    courier: Courier,
    board: Board | None,
    output: Output,
    *,
    once: bool,
) -> None:
    from distprof.verbs.watch.show import WATCH

    is_live = not once and output.output is None and output.reporter == "text"
    with _screen(output) if is_live else nullcontext(lambda *_: None) as show:
        for report, alerts in reports:
            if board is not None:
                board.show(report)
            to_send = wanted.among(alerts)
            for alert in to_send:
                courier.send(alert)
            show(report, to_send)
            if once:
                break
    if not is_live:
        deliver(WATCH, report, output)


def _keep_open(board: Board, period_s: float, output: Output) -> None:
    """Keep serving for a while, so that remote watchers see how the job ended."""
    linger_s = max(10.0, 3 * period_s)
    note(f"{board.address} stays open for another {linger_s:.0f} s.", quiet=output.quiet)
    time.sleep(linger_s)


def _screen(output: Output) -> AbstractContextManager[Any]:
    """The display for updates: a live page on a terminal, else lines."""
    if sys.stdout.isatty():
        return _Page(output)
    return nullcontext(_Lines(output).show)


class _Lines:
    """One line per update and one per alert; a line equal to the previous one is skipped.

    If the output cannot be written, for example on a full disk, watching and alerts continue.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._last = ""

    def show(self, report: WatchReport, alerts: list[Alert]) -> None:
        """Write the update and its alerts."""
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
    """A page on the terminal that is redrawn at each update; the last one stays."""

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
        """Draw the page, which includes the raised alerts."""
        from rich.text import Text

        from distprof.formats import RenderOptions
        from distprof.verbs.watch.show import WATCH

        width = self._output.width or terminal_width()
        color = has_color(sys.stdout)
        text = WATCH.reporter("text")(report, RenderOptions(width=width, color=color))
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        self._live.update(Text.from_ansi(in_encoding(text, encoding)), refresh=True)
