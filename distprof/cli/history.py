"""``distprof history``: run summaries over time, and a metric over commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, flag_option, output_options
from distprof.cli.output import Output, deliver, note
from distprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distprof.artefacts.summary_file import SummaryFile

_FEW_SERIES = 4
_FEW_POINTS = 20

_history_option = click.option(
    "--history",
    "folder",
    metavar="URL",
    help="Folder or URL.  [history of [check] in distprof.toml, else .distprof/history]",
)


@click.group()
def history() -> None:
    """Store the metrics of runs, and follow one metric over commits.

    A history is a folder of small Parquet files, local or at any fsspec URL (s3://, gs://). Several
    jobs may add to it at the same time without losing runs.

    \b
      distprof history add runs/*/
      distprof history show --metric step_time -o history.html
    """  # noqa: D301 - click reads it


@history.command()
@click.argument("sources", metavar="RUN…", nargs=-1, required=True)
@_history_option
@click.option("--label", help="Human-readable label for these runs.")
@click.option("--commit", metavar="SHA", help="Commit of the code, for runs that do not record it.")
@flag_option("-q", "--quiet", help="Write only errors to stderr.")
@debug_option
def add(
    sources: tuple[str, ...],
    folder: str | None,
    label: str | None,
    commit: str | None,
    *,
    quiet: bool,
) -> int:
    """Add runs to a history.

    RUNs are run directories, saved reports, summaries, a sweep's folder, or traces. Runs that the
    history already holds are skipped.

    \b
      distprof history add runs/nightly --history s3://bucket/perf
      distprof history add traces/ --commit $(git rev-parse HEAD) --label nightly
    """  # noqa: D301 - click reads it
    from msgspec.structs import replace

    from distprof.verbs.sources import summaries_of

    place = _place(folder)
    summaries = [
        replace(
            summary,
            label=label if label is not None else summary.label,
            git_commit=summary.git_commit or commit or "",
        )
        for summary in summaries_of(sources)
    ]
    from distprof.verbs.history.dataset import append  # imports numpy: its threads are set by now

    added = append(place, summaries)
    note(f"Added {added} of {len(summaries)} runs to {place}", quiet=quiet)
    return ExitCode.FINE


@history.command()
@_history_option
@click.option("--metric", "name", default="step_time", help="Metric to follow.  [step_time]")
@click.option("--series", "key", metavar="KEY", help="Only this series; its first digits suffice.")
@click.option(
    "--workload", metavar="NAME", help="Only runs whose workload or strategy contains NAME."
)
@click.option(
    "--last",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help=f"Number of newest points.  [{_FEW_POINTS}]",
)
@output_options
@debug_option
def show(
    folder: str | None,
    name: str,
    key: str | None,
    workload: str | None,
    last: int | None,
    **output_options: Any,
) -> int:
    """Show a metric over commits, and where it regressed or improved.

    A series is one job on one kind of hardware. Repeats of a commit make one point. Each point is
    compared with earlier points as in distprof check. A loss is marked at the point where it
    begins.

    \b
      distprof history show --metric memory --last 50
      distprof history show --series 3f9a -o history.html
    """  # noqa: D301 - click reads it
    output = Output(**output_options)
    from distprof.verbs.history.show import HISTORY

    output.check(HISTORY)
    from distprof.config import load_config
    from distprof.verbs.gate.baseline import find_metric
    from distprof.verbs.history import HISTORY_METRICS, trace_metric

    metric = find_metric(name, HISTORY_METRICS)
    if metric is None:
        names = ", ".join(metric.name for metric in HISTORY_METRICS)
        raise UsageError(f"no metric {name!r}: choose from {names}")
    place = _place(folder)
    from distprof.verbs.history.dataset import read

    summaries, notes = read(place)
    chosen = _chosen(summaries, key, workload)
    settings = load_config(None).check
    result = trace_metric(
        dict(list(chosen.items())[: None if output.show_all else _FEW_SERIES]),
        metric,
        source=place,
        tolerance=settings.tolerance.get(metric.name),
        window=settings.window,
        last=last or (None if output.show_all else _FEW_POINTS),
        notes=(*notes, *_more(place, chosen, show_all=output.show_all)),
    )
    deliver(HISTORY, result, output)
    return ExitCode.FINE


@history.command()
@_history_option
@flag_option("-q", "--quiet", help="Write only errors to stderr.")
@debug_option
def compact(folder: str | None, *, quiet: bool) -> int:
    """Merge the small files of a history into one file, which is faster to read.

    Jobs may add runs at the same time.
    """
    from distprof.verbs.history.dataset import compact as merge_files

    place = _place(folder)
    files, runs = merge_files(place)
    note(f"Merged {files} files with {runs} runs in {place}", quiet=quiet)
    return ExitCode.FINE


def _place(folder: str | None) -> str:
    from distprof.config import load_config
    from distprof.verbs.history.dataset import DEFAULT_FOLDER

    if folder == "":
        raise UsageError("--history is empty: name a folder or a URL")
    return folder or load_config(None).check.history or DEFAULT_FOLDER


def _chosen(
    summaries: Sequence[SummaryFile], key: str | None, workload: str | None
) -> dict[str, list[SummaryFile]]:
    """The series that the user asked for; a UsageError without one lists the existing ones."""
    from distprof.verbs.history import by_series
    from distprof.verbs.history.show import series_name

    series = by_series(summaries)
    chosen = {
        name: runs
        for name, runs in series.items()
        if name.startswith(key or "")
        and (workload or "").lower()
        in f"{runs[-1].fingerprint.workload} {runs[-1].fingerprint.strategy}".lower()
    }
    if chosen or not series:
        return chosen
    existing = "; ".join(
        f"{name} ({series_name(runs[-1].fingerprint)})"
        for name, runs in list(series.items())[:_FEW_SERIES]
    )
    raise UsageError(f"series not found; the history holds {existing}")


def _more(place: str, chosen: dict[str, list[SummaryFile]], *, show_all: bool) -> Iterator[str]:
    """Notes on series that are not shown, and on how to speed up reading."""
    from distprof.verbs.history.dataset import MANY_FILES, count_files

    more = len(chosen) - _FEW_SERIES
    if more > 0 and not show_all:
        yield f"{more} older series are not shown: use --all, or --series KEY for one."
    files = count_files(place)
    if files > MANY_FILES:
        yield f"{files:,} files are slow to read: run distprof history compact."
