"""``distprof watch``: follow a job while it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, flag_option, output_options
from distprof.cli.output import (
    Output,
    deliver,
    has_color,
    in_encoding,
    note,
    terminal_width,
    to_stdout,
)
from distprof.errors import InputError
from distprof.escape import plain
from distprof.units import finite_range

if TYPE_CHECKING:
    from distprof.verbs.watch.show import Alert, WatchReport


@click.command()
@click.argument("source", metavar="DIR", type=click.Path())
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
@flag_option("--once", help="Show the last steps once and exit.")
@output_options
@debug_option
def watch(
    source: str,
    alerts: tuple[str, ...],
    webhook: str | None,
    command: str | None,
    period_s: float,
    once: bool,
    **output_options: Any,
) -> int:
    """Watch a job while it runs: its speed, late ranks and lost ranks.

    DIR is the run directory that distprof run or distprof capture printed. Only files are read, so
    the job is not slowed down. Watching ends with the job, or with Ctrl-C. Without a terminal, each
    update writes one line. Kinds of alerts: slow-rank, slow-job, rank-lost, stalled, input,
    throttling, memory.

    \b
      distprof watch runs/mine
      distprof watch runs/mine --alert slow-rank=10%,rank-lost --webhook https://host/hook
      distprof watch runs/mine --once --format json
    """  # noqa: D301 - click reads it
    output = Output(**output_options)
    from distprof.verbs.watch.alerts import (
        Command,
        Courier,
        Receiver,
        Webhook,
        default_levels,
        parse_alerts,
    )
    from distprof.verbs.watch.follow import follow
    from distprof.verbs.watch.show import WATCH

    output.check(WATCH)
    chosen = parse_alerts(alerts)
    receivers: dict[str, Receiver] = {}
    if webhook is not None:
        receivers["the webhook"] = Webhook(webhook)
    if command is not None:
        receivers["the command"] = Command(command)
    courier = Courier(receivers, lambda text: note(text, quiet=output.quiet))
    wanted = frozenset(chosen or default_levels())
    is_live = not once and output.output is None and output.reporter == "text"
    is_raised = False
    try:
        with _screen(output) if is_live else nullcontext(lambda *_: None) as show:
            for report, found in follow(source, default_levels() | chosen, period_s=period_s):
                to_send = [alert for alert in found if alert.kind in wanted]
                is_raised = is_raised or any(alert.state == "raised" for alert in to_send)
                for alert in to_send:
                    courier.send(alert)
                show(report, to_send)
                if once:
                    break
        if not is_live:
            deliver(WATCH, report, output)
    except KeyboardInterrupt:
        note("Stopped watching; the job continues.", quiet=output.quiet)
    finally:
        courier.close()
    # A raised alert fails the command only if the user named kinds
    return ExitCode.FINDINGS if alerts and is_raised else ExitCode.FINE


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
