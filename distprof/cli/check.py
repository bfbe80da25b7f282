"""``distprof check``: a gate on speed and scaling efficiency."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, flag_option, output_options_with, path_option
from distprof.cli.output import Output, check_free, deliver, make_sweep, note, show_in_step_summary
from distprof.errors import UsageError
from distprof.terms import FORMATS
from distprof.units import finite_range
from distprof.verbs.sources import summaries_of

if TYPE_CHECKING:
    from distprof.config import CheckConfig
    from distprof.verbs.gate.check import CheckResult, Sizes

REPEATS = 5
MOST = 100
_LATEST_NS = (1 << 63) - 1


@click.command(
    epilog="Exit codes: 0 passed, 1 regressed (with --fail-on-inconclusive also too few repeats),"
    " 2 wrong usage, 3 bad or incomparable input, 4 a run failed, 130 interrupted."
)
@click.argument("sources", metavar="RUN", nargs=-1)
@path_option("--baseline", help="The baseline to compare with; keep it in git.")
@click.option(
    "--against",
    multiple=True,
    metavar="RUN",
    help="Compare with this run or folder of runs instead. Alternate old and new runs when you"
    " record them, so that drift cancels out.",
)
@click.option(
    "--run",
    "workload",
    metavar="'WORKLOAD …'",
    help="Record the runs first: arguments of distprof run, for example 'ddp --ranks 2'."
    " --ranks 1,2 also gates the scaling efficiency.",
)
@click.option("--repeats", type=click.IntRange(1, MOST), help="With --run: runs of each size.  [5]")
@click.option(
    "--max-repeats",
    type=click.IntRange(1, MOST),
    help="With --run: keep adding runs while undecided, up to this many.  [--repeats]",
)
@click.option(
    "--sweep",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="With --run: folder for the runs; an interrupted check resumes there.  [runs/check-TIME]",
)
@flag_option("--update-baseline", help="Accept these runs as a new session of the baseline.")
@click.option(
    "--acknowledge",
    metavar="METRIC=LOSS",
    help="Accept a known loss, for example step_time=0.08; needs --reason.",
)
@click.option("--reason", default="", help="Why the loss is accepted.")
@click.option("--until", metavar="YYYY-MM-DD", help="Last day on which the loss is accepted.")
@click.option(
    "--tolerance",
    multiple=True,
    metavar="METRIC=VALUE",
    help="Tolerated loss: 0.03 is 3 % of a time, or 3 percentage points of a share."
    "  [distprof.toml's]",
)
@click.option(
    "--metrics",
    metavar="NAME,…",
    help="Gated metrics.  [distprof.toml's, else step_time and efficiency]",
)
@click.option(
    "--session-noise",
    type=finite_range(0, 1, max_open=True),
    metavar="DEVIATION",
    help="Spread between sessions on this machine: 0.03 is 3 %.  [distprof.toml's, else unknown]",
)
@click.option(
    "--fail-on-inconclusive/--pass-on-inconclusive",
    default=None,
    help="Whether the check fails if there are too few repeats.  [distprof.toml's, else it passes]",
)
@flag_option("--allow-unlike", help="Compare even if hardware, job or software differ.")
@click.option("--history", metavar="URL", help="Add the runs to this history.  [distprof.toml's]")
@output_options_with(*FORMATS, "benchmark")
@debug_option
def check(sources: tuple[str, ...], **options: Any) -> int:
    """Fail when runs are slower than a baseline by more than chance and tolerance explain.

    RUNs are repeats of one job: run directories, saved reports, summaries or a sweep's folder. Runs
    of two sizes also gate the scaling efficiency. A loss counts if the whole bootstrap interval is
    above the tolerance and a rank test agrees. Otherwise the check passes, or says how many more
    repeats would decide.

    \b
      distprof check runs/*/ --baseline perf.json --update-baseline
      distprof check runs/*/ --baseline perf.json
      distprof check --run "ddp --ranks 2 --device cpu" --repeats 8 --baseline perf.json
      distprof check new/ --against old/
      distprof check --baseline perf.json --acknowledge step_time=0.08 --reason "new encoder"
    """  # noqa: D301 - click reads it
    output = Output.taken_from(options)
    from distprof.config import load_config
    from distprof.verbs.gate.show import CHECK

    output.check(CHECK)
    settings = _settings(load_config(None).check, options)
    if options["acknowledge"] is not None:
        return _acknowledge(sources, options, quiet=output.quiet)
    _check_usage(sources, options)
    from distprof.verbs.gate.baseline import accept_runs
    from distprof.verbs.gate.check import baseline_of

    if options["workload"]:
        place = options["folder"] or Path("runs", f"check-{time.strftime('%Y%m%d-%H%M%S')}")
        code = _record_runs(place, settings, options, quiet=output.quiet)
        if code:
            return code
        sources = (str(place),)
    sizes = _sizes(sources)
    baseline_of(sizes)  # raises if the runs are not comparable
    if settings.history:
        from distprof.verbs.history.dataset import append

        runs = [run for of_size in sizes for run in of_size]
        added = append(settings.history, runs)
        note(f"Added {added} of {len(runs)} runs to {settings.history}", quiet=output.quiet)
    if options["update_baseline"]:
        file = options["baseline"]
        summary = accept_runs(file, sizes[1], sizes[0], window=settings.window)
        note(f"Wrote {file}: {summary}", quiet=output.quiet)
        return ExitCode.FINE
    result = _judge(sizes, settings, options)
    deliver(CHECK, result, output)
    show_in_step_summary(CHECK, result, output)
    return ExitCode.FINDINGS if result.is_failed else ExitCode.FINE


def _check_usage(sources: tuple[str, ...], options: dict[str, Any]) -> None:
    """Reject arguments that would otherwise fail only after the runs."""
    if bool(sources) == bool(options["workload"]):
        raise UsageError("name the runs to check, or record them with --run 'WORKLOAD …'")
    if (options["baseline"] is None) == (not options["against"]):
        raise UsageError("say what to compare with: --baseline FILE or --against RUN")
    if options["reason"] or options["until"]:
        raise UsageError("--reason and --until belong to --acknowledge METRIC=LOSS")
    against = options["against"]
    old = {Path(name).absolute().parent for name in against}
    stray = [name for name in sources if Path(name).absolute().parent in old]
    if stray and len(stray) < len(sources):
        raise UsageError(
            f"does {stray[0]} belong to --against? --against takes one name: name the folder that"
            " holds the runs, or repeat --against for each run"
        )
    _check_making(options)
    if options["update_baseline"]:
        if options["baseline"] is None:
            raise UsageError("--update-baseline needs --baseline FILE")
        _check_writable(options["baseline"])
        if not Path(options["baseline"]).exists():
            return
    if options["baseline"] is not None:
        from distprof.verbs.gate.baseline import read_baseline

        read_baseline(options["baseline"])


def _check_making(options: dict[str, Any]) -> None:
    making = {"--repeats": "repeats", "--max-repeats": "max_repeats", "--sweep": "folder"}
    if not options["workload"]:
        for flag, name in making.items():
            if options[name] is not None:
                raise UsageError(f"{flag} needs --run")
        return
    options["repeats"] = options["repeats"] or REPEATS
    if (options["max_repeats"] or MOST) < options["repeats"]:
        raise UsageError(
            f"--max-repeats {options['max_repeats']} is less than --repeats {options['repeats']}"
        )


def _settings(config: CheckConfig, options: dict[str, Any]) -> CheckConfig:
    """Settings of the check: the command line overrides distprof.toml."""
    from msgspec.structs import replace

    from distprof.verbs.gate.baseline import METRICS, find_metric

    metrics = config.metrics
    if options["metrics"] is not None:
        metrics = tuple(name.strip() for name in options["metrics"].split(","))
    tolerance = {**config.tolerance, **dict(map(_assigned, options["tolerance"]))}
    for name in (*metrics, *tolerance):
        if find_metric(name) is None:
            known = ", ".join(metric.name for metric in METRICS)
            raise UsageError(f"no metric {name!r}: choose from {known}")
    wrong = next((name for name, value in tolerance.items() if not 0 <= value < 1), None)
    if wrong is not None:
        raise UsageError(f"the tolerance of {wrong} must be at least 0 and below 1: 0.03 is 3 %")
    fails, noise = options["fail_on_inconclusive"], options["session_noise"]
    return replace(
        config,
        metrics=metrics,
        tolerance=tolerance,
        inconclusive_fails=config.inconclusive_fails if fails is None else fails,
        session_noise=config.session_noise if noise is None else noise,
        history=options["history"] if options["history"] is not None else config.history,
    )


def _acknowledge(sources: tuple[str, ...], options: dict[str, Any], *, quiet: bool) -> int:
    """Write an accepted loss into the baseline."""
    file, until = options["baseline"], options["until"]
    if file is None or sources or options["workload"]:
        raise UsageError("--acknowledge METRIC=LOSS needs --baseline FILE and takes no runs")
    from distprof.artefacts.summary_file import Acknowledged
    from distprof.verbs.gate.baseline import BASELINE, acknowledge, read_baseline

    metric, loss = _assigned(options["acknowledge"])
    accepted = Acknowledged(
        metric=metric, up_to=loss, reason=options["reason"], until_ns=_end_of(until)
    )
    baseline = read_baseline(file)
    _check_writable(file)
    try:
        changed = acknowledge(baseline, accepted)
    except ValueError as error:
        raise UsageError(str(error)) from error
    BASELINE.save(changed, file)
    ends = f" until {until}" if until else ""
    note(f"Wrote {file}: {metric} may lose {100 * loss:g} %{ends}", quiet=quiet)
    return ExitCode.FINE


def _end_of(day: str | None) -> int | None:
    """The end of the day (UTC) in ns since the epoch, clamped to 1970–2262 (64 bits)."""
    if day is None:
        return None
    try:
        after = dt.date.fromisoformat(day) + dt.timedelta(days=1)
    except (ValueError, OverflowError):
        raise UsageError(f"{day!r} is not a date such as 2027-01-31") from None
    ns = int(dt.datetime.combine(after, dt.time(), dt.UTC).timestamp()) * 1_000_000_000
    return min(max(ns, 0), _LATEST_NS)


def _assigned(text: str) -> tuple[str, float]:
    """Parse ``METRIC=VALUE``."""
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise UsageError(
            f"{text!r} is not of the form METRIC=VALUE, for example step_time=0.03"
        ) from None


def _check_writable(file: str) -> None:
    """Reject a baseline that cannot be written, before any work is done."""
    if not Path(file).exists():
        check_free(file, force=False)
    elif Path(file).is_dir() or not os.access(Path(file).resolve().parent, os.W_OK):
        raise UsageError(f"{file} cannot be written: choose another location")


def _sizes(sources: tuple[str, ...]) -> Sizes:
    """Load the runs that the user named, grouped by size."""
    runs = summaries_of(sources)  # sets numpy's threads before anything imports it
    from distprof.verbs.gate.check import sizes_of

    return sizes_of(runs)


def _record_runs(
    place: Path, settings: CheckConfig, options: dict[str, Any], *, quiet: bool
) -> int:
    """Record the runs, adding repeats while the result is undecided; return the exit code."""
    from distprof.verbs.gate import EARLY_ALPHA
    from distprof.verbs.gate.baseline import read_baseline
    from distprof.verbs.gate.check import num_repeats, planned_repeats, refuse_unlike_plan
    from distprof.verbs.sweep.runs import with_more_repeats

    again = f"to resume, repeat the command with --sweep {place}"
    sweep = planned_repeats(options["workload"], place, repeats=options["repeats"])
    if options["baseline"] and not (options["update_baseline"] or options["allow_unlike"]):
        baseline = options["baseline"]
        refuse_unlike_plan(sweep, read_baseline(baseline), baseline)
    code = make_sweep(place, sweep, again=again, quiet=quiet)
    most = 0 if options["update_baseline"] else options["max_repeats"] or 0
    while not code and (repeats := num_repeats(sweep)) < most:
        # Only a clear loss stops early: every extra look raises the false-alarm rate
        interim = _judge(_sizes((str(place),)), settings, options, alpha=EARLY_ALPHA)
        needed = interim.needed_repeats
        if not needed:
            return ExitCode.FINE
        note(f"Undecided after {repeats} repeats: {needed} more may decide", quiet=quiet)
        sweep = with_more_repeats(sweep, min(needed, most - repeats))
        code = make_sweep(place, sweep, again=again, quiet=quiet)
    return code


def _judge(
    sizes: Sizes, settings: CheckConfig, options: dict[str, Any], **alpha: float
) -> CheckResult:
    from distprof.verbs.gate.baseline import read_baseline
    from distprof.verbs.gate.check import judge_runs

    source = options["baseline"] or ", ".join(options["against"])
    against = _sizes(options["against"]) if options["against"] else read_baseline(source)
    allow = options["allow_unlike"]
    return judge_runs(sizes, against, source=source, settings=settings, allow_unlike=allow, **alpha)
