"""``distprof export``: a run as a file of another program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import RankList, StepList, debug_option
from distprof.cli.output import check_free, note
from distprof.escape import plain
from distprof.verbs.sources import check_source, single_source

if TYPE_CHECKING:
    from distprof.api import Examined
    from distprof.verbs.export.perfetto import Exported

__all__ = ["export"]

_HOW_TO_OPEN = """\
Open https://ui.perfetto.dev and drag the file into the page: {path}
The page reads it inside the browser and uploads nothing.
Keys: w and s zoom, a and d move, / searches, f shows the selection.
With SQL: trace_processor_shell {path}"""


@click.group()
def export() -> None:
    """Write a run as a file of another program.

    \b
      distprof export perfetto traces/ -o job.pftrace
    """  # noqa: D301 - click reads it


@export.command()
@click.argument("sources", metavar="RUN", nargs=-1, required=True)
@click.option(
    "-o", "--output", type=click.Path(), metavar="FILE", required=True, help="File to write."
)
@click.option("--ranks", type=RankList(), metavar="0-3,8", help="Write only these ranks.")
@click.option("--steps", type=StepList(), metavar="4-6,9", help="Write only these steps.")
@click.option(
    "--only",
    type=click.Choice(["collectives", "gpu"]),
    help="collectives: no kernels, no CPU. gpu: no CPU threads.",
)
@click.option("--open", "how", is_flag=True, help="Print how to open the file.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--cache-dir", type=click.Path(), metavar="DIR", help="Cache for parsed tables.")
@click.option("--config", type=click.Path(), metavar="FILE", help="Configuration.")
@click.option(
    "--with",
    "evidence",
    type=click.Path(),
    multiple=True,
    metavar="FILE",
    help="More evidence, such as sensors. May be repeated.",
)
@click.option("-q", "--quiet", is_flag=True, help="Write only errors to stderr.")
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

    RUN is what distprof analyze takes. All its ranks are read, because clocks and waiting
    depend on them; --ranks, --steps and --only limit what is written.

    \b
      distprof export perfetto traces/ -o job.pftrace --open
      distprof export perfetto traces/ -o small.pftrace --only collectives
    """  # noqa: D301 - click reads it
    source = single_source(sources)
    check_source(source)
    check_free(output, force=force)
    examined = _examined(source, cache_dir, config, evidence, quiet=quiet)
    from distprof.cli.progress import progress_bar
    from distprof.verbs.export.perfetto import Choice, export_perfetto
    from distprof.verbs.export.rank_tracks import ONLY

    chosen = Choice(ranks=ranks, steps=steps, only=next((o for o in ONLY if o == only), None))
    with progress_bar("writing ranks", quiet=quiet) as progress:
        written = export_perfetto(examined, output, chosen, progress=progress)
    _tell(written, quiet=quiet)
    if how:
        click.echo(_HOW_TO_OPEN.format(path=plain(output)))
    return ExitCode.FINE


def _examined(
    source: str,
    cache_dir: str | None,
    config: str | None,
    evidence: tuple[str, ...],
    *,
    quiet: bool,
) -> Examined:
    from distprof.ingest.executor import import_numpy

    import_numpy()  # before anything else does
    from distprof import api
    from distprof.cli.progress import progress_bar
    from distprof.config import load_config

    settings = load_config(config)
    with progress_bar("reading traces", quiet=quiet, unit="bytes") as progress:
        run = api.open_run(
            source, cache_dir=cache_dir, config=settings, evidence=evidence, bytes_read=progress
        )
    with progress_bar("measuring ranks", quiet=quiet) as progress:
        return api.examine(run, config=settings, progress=progress)


def _tell(written: Exported, *, quiet: bool) -> None:
    from distprof.units import format_bytes, name_ranks

    for sentence in written.notes:
        note(sentence, quiet=quiet)
    size = f", {format_bytes(written.num_bytes)}" if written.num_bytes else ""
    what = f"{name_ranks(written.ranks)}, {written.num_slices:,} slices{size}"
    note(f"Wrote {written.path}: {what}", quiet=quiet)
