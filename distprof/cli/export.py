"""``distprof export``: export a run to other programs."""

from __future__ import annotations

import time
from functools import partial

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import RankList, StepList, debug_option, flag_option, path_option
from distprof.cli.output import check_free, note, progress_bar, to_stdout
from distprof.errors import UsageError
from distprof.escape import plain
from distprof.units import MOST_RANKS, finite_range, format_bytes, name_ranks
from distprof.verbs.sources import check_comparable, check_source, listen_address, single_source

_HOW_TO_OPEN = """\
Open this address in a browser on this machine; Ctrl-C ends the wait:
{address}
Or open https://ui.perfetto.dev and drag the file into the page: {path}
The page reads the file inside the browser and uploads nothing.
Keys: w and s zoom, a and d move, / searches, f shows the selection.
With SQL: trace_processor_shell {path}"""
_every_option = partial(click.option, "--every", type=finite_range(0.1, 86_400), metavar="SECONDS")


@click.group()
def export() -> None:
    """Export a run to other programs, as a timeline or as metrics.

    \b
      distprof export perfetto traces/ -o job.pftrace
      distprof export prometheus runs/mine --listen 9464
      distprof export otel runs/mine
    """  # noqa: D301 - click reads it


@export.command()
@click.argument("sources", metavar="RUN", nargs=-1, required=True)
@path_option("-o", "--output", required=True, help="File to write.")
@click.option("--ranks", type=RankList(), metavar="0-3,8", help="Write only these ranks.")
@click.option("--steps", type=StepList(), metavar="4-6,9", help="Write only these steps.")
@click.option(
    "--only",
    type=click.Choice(["collectives", "gpu"]),
    help="collectives: without kernels and CPU threads. gpu: without CPU threads.",
)
@flag_option("--open", "how", help="Serve the file to ui.perfetto.dev until it is fetched.")
@flag_option("--force", help="Replace an existing file.")
@path_option("--cache-dir", metavar="DIR", help="Cache for parsed tables.")
@path_option("--config", help="Configuration.")
@path_option(
    "--with", "evidence", multiple=True, help="More evidence, such as sensors. May be repeated."
)
@flag_option("-q", "--quiet", help="Write only errors to stderr.")
@debug_option
def perfetto(
    sources: tuple[str, ...],
    output: str,
    ranks: frozenset[int] | None,
    steps: frozenset[int] | None,
    only: str | None,
    cache_dir: str | None,
    config: str | None,
    evidence: tuple[str, ...],
    *,
    how: bool,
    force: bool,
    quiet: bool,
) -> int:
    """Merge all ranks into one Perfetto trace on one clock.

    RUN is any source that distprof analyze accepts. All ranks are read, because clock alignment and
    wait times need them. --ranks, --steps and --only limit what is written.

    \b
      distprof export perfetto traces/ -o job.pftrace --open
      distprof export perfetto traces/ -o small.pftrace --only collectives
    """  # noqa: D301 - click reads it
    source = single_source(sources)
    check_source(source)
    check_free(output, force=force)
    from distprof import api
    from distprof.config import load_config

    settings = load_config(config)
    with progress_bar("reading traces", quiet=quiet, unit="bytes") as progress:
        run = api.open_run(
            source, cache_dir=cache_dir, config=settings, evidence=evidence, bytes_read=progress
        )
    with progress_bar("measuring ranks", quiet=quiet) as progress:
        examined = api.examine(run, config=settings, progress=progress)
    from distprof.verbs.export.perfetto import Choice, export_perfetto
    from distprof.verbs.export.rank_tracks import ONLY

    chosen = Choice(ranks=ranks, steps=steps, only=next((o for o in ONLY if o == only), None))
    with progress_bar("writing ranks", quiet=quiet) as progress:
        written = export_perfetto(examined, output, chosen, progress=progress)
    for sentence in written.notes:
        note(sentence, quiet=quiet)
    size = f", {format_bytes(written.num_bytes)}" if written.num_bytes else ""
    what = f"{name_ranks(written.ranks)}, {written.num_slices:,} slices{size}"
    note(f"Wrote {written.path}: {what}", quiet=quiet)
    if how:
        from pathlib import Path

        from distprof.verbs.export import serve

        def tell(address: str) -> None:
            click.echo(_HOW_TO_OPEN.format(address=address, path=plain(output)))

        serve(Path(output), tell)
    return ExitCode.FINE


@export.command()
@click.argument("source", metavar="RUN", type=click.Path())
@path_option(
    "-o",
    "--output",
    metavar="FILE.prom",
    help="Write FILE for node_exporter's textfile collector instead of stdout.",
)
@_every_option(help="With -o: rewrite the file every SECONDS, until Ctrl-C.")
@click.option(
    "--listen",
    metavar="[HOST:]PORT",
    help="Serve metrics to Prometheus over HTTP, until Ctrl-C; HOST is 127.0.0.1 by default.",
)
@flag_option("--force", help="Replace an existing file.")
@flag_option("-q", "--quiet", help="Write only errors to stderr.")
@debug_option
def prometheus(
    source: str,
    output: str | None,
    every: float | None,
    listen: str | None,
    *,
    force: bool,
    quiet: bool,
) -> int:
    """Export metrics of a run to Prometheus: of its steps as it trains, and of its report.

    RUN is a saved report, or a run directory, even one whose job is still running. A separate
    process reads the files that the probes write, so it never blocks the training.

    \b
      distprof export prometheus runs/mine --listen 9464
      distprof export prometheus runs/mine -o /var/lib/node_exporter/distprof.prom --every 15
    """  # noqa: D301 - click reads it
    if listen is not None and output is not None:
        raise UsageError("choose one: -o FILE or --listen")
    if every is not None and output is None:
        raise UsageError("--every needs -o FILE")
    if output is not None:
        check_free(output, force=force)
    check_comparable(source)
    from distprof.verbs.export.prometheus import Exposition, keep_file, serve, text_of

    address = None if listen is None else listen_address(listen)
    exposition = Exposition(source)
    if address is not None:
        end, port = serve(exposition, *address)
        note(f"Serving http://{address[0]}:{port}/metrics; Ctrl-C ends it", quiet=quiet)
        try:
            while True:
                time.sleep(3_600)
        finally:
            end()
    elif output is not None:
        keep_file(exposition, output, every, failed=note)
        note(f"Wrote {output}", quiet=quiet)
    else:
        to_stdout(text_of(exposition), "prometheus")
    return ExitCode.FINE


@export.command()
@click.argument("source", metavar="RUN", type=click.Path())
@click.option(
    "--endpoint",
    metavar="URL",
    default="http://127.0.0.1:4318",
    show_default=True,
    help="The collector, which must accept OTLP over HTTP.",
)
@_every_option(help="Send again every SECONDS, until Ctrl-C. Spans cover only steps from now on.")
@click.option(
    "--rank",
    type=click.IntRange(0, MOST_RANKS),
    metavar="RANK",
    help="Rank whose steps become spans; the lowest rank by default.",
)
@flag_option("-q", "--quiet", help="Write only errors to stderr.")
@debug_option
def otel(source: str, endpoint: str, every: float | None, rank: int | None, *, quiet: bool) -> int:
    """Send metrics of a run, and a span per step, to an OpenTelemetry collector.

    RUN is a run directory, even one whose job is still running, or a saved report, which has no
    step spans. OTEL_EXPORTER_OTLP_HEADERS adds headers to each request.

    \b
      distprof export otel runs/mine
      distprof export otel runs/mine --endpoint http://collector:4318 --every 15
    """  # noqa: D301 - click reads it
    check_comparable(source)
    from distprof.verbs.export.otel import Sender, base_of, send
    from distprof.verbs.export.prometheus import Observed

    base_of(endpoint)  # rejects a bad URL before anything is read
    sender = Sender(Observed(source), endpoint, rank=rank)
    send(sender, endpoint, every, failed=note)
    note(f"Sent to {endpoint}", quiet=quiet)
    return ExitCode.FINE
