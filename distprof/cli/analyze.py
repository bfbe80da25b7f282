"""``distprof analyze``: from traces to a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distprof.artefacts import REPORT_FILE, RUN_FILE
from distprof.cli.app import State
from distprof.cli.options import (
    Duration,
    RankList,
    config_option,
    debug_option,
    fail_on_option,
    flag_option,
    path_option,
    report_options,
)
from distprof.cli.output import (
    Output,
    check_free,
    deliver,
    note,
    progress_bar,
    show_fabric,
    show_hang,
    show_in_step_summary,
    verdict_code,
)
from distprof.errors import InputError, OtherVerbError
from distprof.units import MOST_COLLECTIVES
from distprof.verbs.sources import check_source, single_source, spooled

if TYPE_CHECKING:
    from distprof.documents.saved import Report


@click.command()
@click.argument("sources", metavar="SOURCE", nargs=-1, required=True)
@report_options
@fail_on_option
@path_option(
    "--save-report", help="Save the report as JSON. In a run directory this is the default."
)
@click.option(
    "--window",
    type=click.Choice(["steps", "capture"]),
    default="steps",
    show_default=True,
    help="Analyse complete steps, or the whole capture as one window.",
)
@click.option(
    "--step-time",
    "step_ns",
    type=Duration(),
    metavar="TIME",
    help="How long a step takes without the profiler, for example 30.5ms; by default as the step "
    "log of the run says.",
)
@flag_option(
    "--every-step",
    help="Report every step of every rank, even if there are more than 16,384 of them.",
)
@click.option("--ranks", type=RankList(), metavar="0-3,8", help="Only these ranks; all by default.")
@flag_option("--device-only", help="Read only GPU activity: faster, but no causes on the CPU.")
@flag_option("--strict", help="Refuse damaged traces instead of salvaging them.")
@click.option(
    "--executor",
    metavar="SPEC",
    help="process, process:N, serial, dask:// or tcp://HOST:PORT; process by default.",
)
@path_option(
    "--cache-dir", metavar="DIR", help="Cache for parsed tables, or the URL of a shared cache."
)
@flag_option("--no-cache", help="Neither reuse nor cache parsed tables.")
@click.option(
    "--max-collectives",
    type=click.IntRange(1, 10**12),
    default=MOST_COLLECTIVES,
    metavar="N",
    help="Analyse only the last steps of a job whose ranks recorded more collectives: each takes "
    "about 165 bytes of memory.  [default: 20,000,000]",
)
@config_option
@path_option(
    "--fabric", help="Expected network speed: a profile from distprof bench, or nccl-tests output."
)
@path_option(
    "--with",
    "evidence",
    multiple=True,
    help="More evidence: an NCCL log, sensors, nvidia-smi topo -m. May be repeated.",
)
@debug_option
def analyze(sources: tuple[str, ...], save_report: str | None, **options: Any) -> int:
    """Find out where each step's time goes, what causes it and what a fix would gain.

    SOURCE is a Kineto trace, a folder or glob of traces (one per rank), a run directory, or any
    fsspec URL of one of these. It may also be what a job printed: a log, a folder or glob of logs,
    or - for standard input; or a folder of dumps of torch's Flight Recorder, as for distprof hang.

    \b
      distprof analyze traces/
      distprof analyze traces/ --format md -o report.md --fail-on warning
    """  # noqa: D301 - click reads it
    output = Output.taken_from(options)
    output.check()
    source = spooled(single_source(sources))
    check_source(source)
    if save_report is not None:
        check_free(save_report, force=output.force)
    from msgspec.structs import replace

    from distprof.documents.saved import REPORT

    state = click.get_current_context().find_object(State)
    try:
        report = _analyzed(
            source, quiet=output.quiet, debug=state is not None and state.debug, **options
        )
    except OtherVerbError as error:
        has_dumps = error.fix.startswith("distprof hang ")
        if options["evidence"] or save_report or (Path(source).is_dir() and not has_dumps):
            raise
        return show_hang(source, output) if has_dumps else show_fabric(source, output)
    if "-" in sources:  # the file of its text is deleted at the end
        report = replace(report, run=replace(report.run, source="-"))
    saved_as = _save(report, source, save_report, quiet=output.quiet)
    deliver(REPORT, report, output, saved_as=saved_as)
    show_in_step_summary(REPORT, report, output)
    return verdict_code(report.findings, output.fail_on)


def _analyzed(source: str, *, quiet: bool, debug: bool, **options: Any) -> Report:
    from distprof import api
    from distprof.config import load_config

    settings = load_config(options["config"])
    with progress_bar("reading traces", quiet=quiet, unit="bytes") as progress:
        run = api.open_run(
            source,
            rows="device" if options["device_only"] else "all",
            strict=options["strict"],
            ranks=options["ranks"],
            executor=options["executor"],
            cache_dir=options["cache_dir"],
            use_cache=not options["no_cache"],
            config=settings,
            evidence=options["evidence"],
            bytes_read=progress,
            max_collectives=options["max_collectives"],
        )
    with progress_bar("measuring ranks", quiet=quiet) as progress:
        return api.analyze(
            run,
            config=settings,
            fabric=options["fabric"],
            window=options["window"],
            every_step=options["every_step"],
            step_ns=options["step_ns"],
            executor=options["executor"],
            progress=progress,
            debug=debug,
        )


def _save(report: Report, source: str, wanted: str | None, *, quiet: bool) -> str:
    """Save the report where the user asked, else in a run directory; return its path or ``""``."""
    from distprof.ingest.job import find_run_directory

    if wanted:
        report.save(wanted)
        note(f"Wrote {wanted}", quiet=quiet)
        return wanted
    if "://" in source:
        return ""
    folder = Path(find_run_directory(source) or "")
    if not (folder / RUN_FILE).is_file():
        return ""
    try:
        report.save(folder / REPORT_FILE)
    except InputError as error:
        note(f"The report was not saved: {error.found}", quiet=quiet)
        return ""
    return str(folder)
