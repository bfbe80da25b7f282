"""``distprof scale``: efficiency against the number of ranks, and where it is lost."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, fail_on_option, output_options, path_option
from distprof.cli.output import Output, check_free, deliver, make_sweep, note, verdict_code
from distprof.errors import UsageError
from distprof.units import MOST_RANKS

if TYPE_CHECKING:
    from distprof.artefacts.summary_file import SummaryFile, SweepFile


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    epilog="Exit codes: 0 success, 1 findings at or above --fail-on, 2 wrong usage, 3 bad input,"
    " 4 a run failed (finished runs are kept), 130 interrupted.",
)
@click.argument("program", metavar="[WORKLOAD|-- PROGRAM …]", nargs=-1, type=click.UNPROCESSED)
@click.option("--ranks", metavar="1,2,4", help="Numbers of CPU ranks, or of ranks of a program.")
@click.option("--gpus", metavar="1,2,4,8", help="Numbers of GPUs, one rank on each.")
@click.option("--repeats", type=click.IntRange(1, 100), default=3, help="Runs per size.  [3]")
@click.option("--weak", "mode", flag_value="weak", help="Constant work per rank.  [default]")
@click.option(
    "--strong",
    "mode",
    flag_value="strong",
    help="Constant total work; --batch is the global batch.",
)
@click.option(
    "--sweep",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the runs; an interrupted sweep resumes there.  [runs/scale-WORKLOAD-TIME]",
)
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="RUN",
    help="Start nothing; use existing runs, reports, a sweep's folder, or a table of ranks and"
    " times (CSV, JSON). May be repeated.",
)
@click.option(
    "--baseline-ranks",
    type=click.IntRange(1, MOST_RANKS),
    help="Size whose efficiency counts as 1.  [the smallest]",
)
@path_option("--save-summaries", help="Save the metrics of each run.")
@fail_on_option
@output_options
@debug_option
def scale(
    program: tuple[str, ...],
    sources: tuple[str, ...],
    folder: Path | None,
    fail_on: str | None,
    **options: Any,
) -> int:
    """Measure how efficiency falls as ranks are added, and where it is lost.

    WORKLOAD is a workload of distprof run, followed by its options. Your own program runs under
    distprof capture: write {ranks} in its arguments for the number of ranks, and say how it scales
    with --weak or --strong. Sizes alternate, so drift affects all of them equally. The step time
    excludes profiled steps. Resume an interrupted sweep with distprof scale --sweep DIR.

    \b
      distprof scale ddp --ranks 1,2,4 --device cpu --steps 20
      distprof scale fsdp --gpus 1,2,4,8 --strong --batch 32 --sweep runs/fsdp
      distprof scale --gpus 2,4,8 -- torchrun --nproc-per-node {ranks} train.py
      distprof scale --from runs/fsdp --format md -o scaling.md
      distprof scale --from times.csv --strong
    """  # noqa: D301 - click reads it
    output = Output.taken_from(options)
    from distprof.verbs.sweep.show import SCALING

    output.check(SCALING)
    if options["save_summaries"] is not None:
        check_free(options["save_summaries"], force=output.force)
    if sources and program:
        raise UsageError("--from starts nothing: leave out the workload or the program")
    if sources and folder is not None:
        raise UsageError(
            "--from starts nothing: name the sweep's folder with either --from or --sweep"
        )
    if sources:
        return _show(sources, output, fail_on, options)
    place, sweep = _planned(program, folder, options)
    again = f"resume with: distprof scale --sweep {shlex.quote(str(place))}"
    code = make_sweep(place, sweep, again=again, quiet=output.quiet)
    if code:
        return code
    return _show((str(place),), output, fail_on, options)


def _planned(
    program: tuple[str, ...], folder: Path | None, options: dict[str, Any]
) -> tuple[Path, SweepFile]:
    """The folder of the sweep, and the sweep itself, either saved or new."""
    from distprof.verbs.sweep.running import load_sweep

    if folder is not None and folder.is_dir():
        found = load_sweep(folder)
        if found is not None:
            return folder, _resumed(found, program, options)
        try:
            has_files = any(not inner.name.startswith(".") for inner in folder.iterdir())
        except OSError as error:
            raise UsageError(f"{folder} cannot be read: {error.strerror}") from error
        if has_files:
            raise UsageError(f"{folder} exists and is not a sweep: name a new folder")
    sweep = _plan(program, options)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return folder or Path("runs", f"scale-{sweep.workload or 'program'}-{stamp}"), sweep


def _resumed(saved: SweepFile, program: tuple[str, ...], options: dict[str, Any]) -> SweepFile:
    """The sweep saved in the folder; refuse to resume it with other settings."""
    if not program and options["ranks"] is None and options["gpus"] is None:
        return saved
    requested = _plan(program, options)
    if [run.arguments for run in requested.runs] != [run.arguments for run in saved.runs]:
        raise UsageError(
            "the folder holds a sweep with other sizes, repeats or options: to resume it, name "
            "only the folder (distprof scale --sweep DIR); for another sweep, name a new folder"
        )
    return saved


def _plan(program: tuple[str, ...], options: dict[str, Any]) -> SweepFile:
    from distprof.verbs.sweep.running import configuration_of
    from distprof.verbs.sweep.runs import WORKLOADS, parse_sizes, plan_program, plan_workload

    if not program:
        raise UsageError(
            f"nothing to scale: name a workload ({', '.join(WORKLOADS)}), a program after --, "
            "or existing runs with --from"
        )
    if (options["ranks"] is None) == (options["gpus"] is None):
        raise UsageError("name the sizes with --ranks 1,2,4 or --gpus 1,2,4,8")
    device: Literal["gpus", "ranks"] = "ranks" if options["gpus"] is None else "gpus"
    sizes = parse_sizes(options[device])
    _check_sizes(sizes, device, options["baseline_ranks"])
    first, *others = program
    if first not in WORKLOADS:
        return plan_program(
            program,
            sizes,
            repeats=options["repeats"],
            device=device,
            scaling=options["mode"] or "as_given",
        )
    return plan_workload(
        first,
        sizes,
        others,
        repeats=options["repeats"],
        scaling=options["mode"] or "weak",
        device=device,
        configuration=configuration_of,
    )


def _check_sizes(sizes: tuple[int, ...], device: str, baseline_ranks: int | None) -> None:
    """Reject sizes that give no efficiency, before the runs start."""
    if len(sizes) < 2:
        more = f"--{device} {sizes[0]},{2 * sizes[0]}"
        raise UsageError(
            f"scaling compares at least two sizes, and {sizes[0]} is only one: try {more}"
        )
    if baseline_ranks is not None and baseline_ranks not in sizes:
        listed = ", ".join(map(str, sizes))
        raise UsageError(f"--baseline-ranks {baseline_ranks} is not one of the sizes {listed}")


def _show(
    sources: tuple[str, ...], output: Output, fail_on: str | None, options: dict[str, Any]
) -> int:
    from distprof.config import load_config
    from distprof.verbs.sweep.measure import report_scaling
    from distprof.verbs.sweep.running import load_sweep
    from distprof.verbs.sweep.show import SCALING

    sweeps = {source: sweep for source in sources if (sweep := load_sweep(Path(source)))}
    # The scaling mode that the user stated for their program when the sweep began
    stated = (sweep.scaling for sweep in sweeps.values() if not sweep.workload)
    saved_mode = next((mode for mode in stated if mode != "as_given"), None)
    settings = load_config(None)
    summaries = _summaries(sources, sweeps, quiet=output.quiet)
    report = report_scaling(
        summaries,
        source=", ".join(sources),
        mode=options["mode"] or saved_mode,
        baseline_ranks=options["baseline_ranks"],
        limits=settings.limits,
        site=settings.site,
        num_cpus=max((sweep.num_cpus or 0 for sweep in sweeps.values()), default=0) or None,
    )
    if (file := options["save_summaries"]) is not None:
        from distprof.verbs.sweep.runs import save_summaries

        save_summaries(summaries, file)
        note(f"Wrote {file}", quiet=output.quiet)
    deliver(SCALING, report, output)
    if not report.scaling.sizes:
        return ExitCode.INPUT
    return verdict_code(report.findings, fail_on)


def _summaries(
    sources: tuple[str, ...], sweeps: Mapping[str, SweepFile], *, quiet: bool
) -> tuple[SummaryFile, ...]:
    from distprof.verbs.sources import check_comparable
    from distprof.verbs.summaries import load_summaries
    from distprof.verbs.sweep.running import finished_runs

    wanted: list[str | Path] = []
    for source in sources:
        if source not in sweeps:
            check_comparable(source)
            wanted.append(source)
            continue
        done = finished_runs(Path(source), sweeps[source])
        missing = len(sweeps[source].runs) - len(done)
        if missing:
            note(f"{source}: {missing} runs are still missing", quiet=quiet)
        wanted += done
    return load_summaries(wanted)
