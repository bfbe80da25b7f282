"""``distprof check``: a gate on speed and scaling efficiency that one can trust."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, output_options_with
from distprof.cli.output import Output, check_format, check_free, deliver, note
from distprof.errors import InputError, UsageError

if TYPE_CHECKING:
    from distprof.artefacts.baseline_file import BaselineFile, BaselineSession
    from distprof.artefacts.summary_file import SummaryFile
    from distprof.config import CheckConfig
    from distprof.gate.check import CheckResult

__all__ = ["check"]

FORMATS = ("text", "json", "md", "junit", "benchmark")
_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


@click.command(
    epilog="Exit codes: 0 passed, 1 regressed (with --fail-on-inconclusive also too few repeats),"
    " 2 wrong usage, 3 bad or unlike input, 4 a run failed, 130 interrupted.",
)
@click.argument("sources", metavar="RUN", nargs=-1)
@click.option(
    "--baseline", type=click.Path(), metavar="FILE", help="What is compared with; kept in git."
)
@click.option(
    "--against",
    multiple=True,
    metavar="RUN",
    help="Compare with these runs instead, measured in turns with the others: what drifts cancels.",
)
@click.option(
    "--run",
    "workload",
    metavar="'WORKLOAD …'",
    help="Make the runs first: arguments of distprof run, for example 'ddp --ranks 2'. With"
    " --ranks 1,2 the scaling efficiency is guarded too.",
)
@click.option("--repeats", type=click.IntRange(1, 100), default=5, help="With --run.  [5]")
@click.option(
    "--max-repeats",
    type=click.IntRange(1, 100),
    help="With --run: make more while that may decide it, up to so many.  [--repeats]",
)
@click.option(
    "--sweep",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="With --run: where the runs are kept.  [runs/check-TIME]",
)
@click.option(
    "--update-baseline", is_flag=True, help="Accept these runs as a new session of the baseline."
)
@click.option(
    "--acknowledge",
    metavar="METRIC=LOSS",
    help="Accept a loss for a while, for example step_time=0.08; needs --reason.",
)
@click.option("--reason", default="", help="Why a loss is accepted.")
@click.option("--until", metavar="YYYY-MM-DD", help="Last day on which it is.")
@click.option(
    "--tolerance",
    multiple=True,
    metavar="METRIC=VALUE",
    help="Instead of distprof.toml's: 0.03 is 3 % of a time, or 3 points of a share.",
)
@click.option(
    "--metrics", metavar="NAME,…", help="Those that decide.  [distprof.toml's, else all known]"
)
@click.option(
    "--fail-on-inconclusive/--pass-on-inconclusive",
    default=None,
    help="Whether too few repeats fail.  [distprof.toml's, else they pass]",
)
@click.option("--allow-unlike", is_flag=True, help="Compare other hardware, jobs or software too.")
@click.option("--history", metavar="URL", help="Add the runs to a history.  [distprof.toml's]")
@output_options_with(*FORMATS)
@debug_option
def check(sources: tuple[str, ...], **options: Any) -> int:
    """Fail when runs are slower than a baseline by more than chance and tolerance explain.

    RUNs are repeats of one job: run directories, saved reports, summaries or a sweep's folder;
    those of two sizes guard the scaling efficiency as well. A loss counts when the whole bootstrap
    interval is beyond the tolerance and a rank test agrees; else the check passes, or says how many
    more repeats would decide.

    \b
      distprof check runs/*/ --baseline perf.json --update-baseline
      distprof check runs/*/ --baseline perf.json
      distprof check --run "ddp --ranks 2 --device cpu" --repeats 8 --baseline perf.json
      distprof check new/*/ --against old/a --against old/b --against old/c
      distprof check --baseline perf.json --acknowledge step_time=0.08 --reason "new encoder"
    """  # noqa: D301 - click reads it
    output = Output(**{name: options.pop(name) for name in Output.__dataclass_fields__})
    output.check()
    from distprof.config import load_config
    from distprof.report.check_reporters import CHECK_REPORTERS

    check_format(CHECK_REPORTERS, output, what="a check")
    settings = _settings(load_config(None).check, options)
    if options["acknowledge"] is not None:
        return _acknowledge(sources, options, quiet=output.quiet)
    _check_usage(sources, options)
    return _checked(sources, output, settings, options)


def _check_usage(sources: tuple[str, ...], options: dict[str, Any]) -> None:
    if bool(sources) == bool(options["workload"]):
        raise UsageError("name the runs to check, or make them with --run 'WORKLOAD …'")
    if (options["baseline"] is None) == (not options["against"]):
        raise UsageError("name what to compare with: --baseline FILE, or --against RUN")
    if options["update_baseline"] and options["baseline"] is None:
        raise UsageError("--update-baseline needs --baseline FILE")


def _settings(config: CheckConfig, options: dict[str, Any]) -> CheckConfig:
    """What was typed wins over distprof.toml."""
    from dataclasses import replace

    from distprof.gate.metrics import find_metric

    metrics = config.metrics
    if options["metrics"] is not None:
        metrics = tuple(name.strip() for name in options["metrics"].split(","))
    tolerance = {**config.tolerance, **dict(map(_assigned, options["tolerance"]))}
    for name in (*metrics, *tolerance):
        if find_metric(name) is None:
            raise UsageError(f"no metric {name!r}: choose from {_metric_names()}")
    wrong = next((name for name, value in tolerance.items() if not 0 <= value < 1), None)
    if wrong is not None:
        raise UsageError(f"the tolerance of {wrong} must be from 0 up and below 1: 0.03 is 3 %")
    fails = options["fail_on_inconclusive"]
    return replace(
        config,
        metrics=metrics,
        tolerance=tolerance,
        inconclusive_fails=config.inconclusive_fails if fails is None else fails,
        history=options["history"] if options["history"] is not None else config.history,
    )


def _metric_names() -> str:
    from distprof.gate.metrics import METRICS

    return ", ".join(metric.name for metric in METRICS)


def _assigned(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise UsageError(f"{text!r} is no METRIC=VALUE such as step_time=0.03") from None


def _acknowledge(sources: tuple[str, ...], options: dict[str, Any], *, quiet: bool) -> int:
    """Write a loss that is accepted into the baseline."""
    from distprof.artefacts.baseline_file import Acknowledged
    from distprof.gate.baseline import acknowledge, baseline_json, read_baseline
    from distprof.report.saved import write_atomically

    file = options["baseline"]
    if file is None or sources:
        raise UsageError("--acknowledge METRIC=LOSS takes --baseline FILE, and no runs")
    metric, loss = _assigned(options["acknowledge"])
    accepted = Acknowledged(
        metric=metric, up_to=loss, reason=options["reason"], until_ns=_until(options["until"])
    )
    try:
        changed = acknowledge(read_baseline(file), accepted)
    except ValueError as error:
        raise UsageError(f"{error}; metrics: {_metric_names()}") from error
    write_atomically(Path(file), baseline_json(changed))
    note(f"Wrote {file}: {metric} may lose {100 * loss:g} %", quiet=quiet)
    return ExitCode.FINE


def _until(text: str | None) -> int | None:
    """The end of that day, ns since the epoch."""
    if text is None:
        return None
    import datetime as dt

    try:
        day = dt.date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no day such as 2027-01-31") from None
    after = dt.datetime.combine(day + dt.timedelta(days=1), dt.time(), dt.UTC)
    return int(after.timestamp()) * 1_000_000_000


def _checked(
    sources: tuple[str, ...], output: Output, settings: CheckConfig, options: dict[str, Any]
) -> int:
    from distprof.report.check_reporters import CHECK_REPORTERS

    if options["workload"]:
        made = _made(output, settings, options)
        if isinstance(made, int):
            return made
        sources = made
    runs = _summaries(sources)
    small, large = _sizes(runs)
    _remember(runs, settings.history, quiet=output.quiet)
    if options["update_baseline"]:
        return _update(small, large, settings, options, quiet=output.quiet)
    result = _judged(small, large, settings, options)
    deliver(CHECK_REPORTERS, result, output, what="a check")
    _summarize(result)
    return _code(result, settings)


def _summaries(sources: tuple[str, ...]) -> tuple[SummaryFile, ...]:
    from distprof.cli.source import check_comparable
    from distprof.ingest.executor import import_numpy

    import_numpy()  # before anything else does
    from distprof.summaries import load_summaries

    for source in sources:
        check_comparable(source)
    return load_summaries(sources)


def _sizes(runs: tuple[SummaryFile, ...]) -> tuple[tuple[SummaryFile, ...], ...]:
    """Runs of the smaller size, none where there is one; and of the larger, which is guarded.

    Raises:
        InputError: If runs have no steps, or more than two sizes.
    """
    named = ", ".join(run.source for run in runs[:3])
    if not runs or not all(run.step_ns for run in runs):
        without = next((run.source for run in runs if not run.step_ns), "")
        raise InputError(
            without or "the runs",
            expected="repeats with steps",
            found="a run without any" if without else "no run at all",
            fix="check repeats of the same job, for example those of distprof check --run",
        )
    sizes = sorted({run.fingerprint.world_size or 0 for run in runs})
    if len(sizes) > 2:
        raise InputError(
            named,
            expected="repeats of one size, or of two for the scaling efficiency",
            found=f"runs on {', '.join(map(str, sizes))} ranks",
            fix="name runs of two sizes; distprof scale looks at more",
        )
    large = tuple(run for run in runs if (run.fingerprint.world_size or 0) == sizes[-1])
    small = tuple(run for run in runs if run not in large)
    return small, large


def _session(small: tuple[SummaryFile, ...], large: tuple[SummaryFile, ...]) -> BaselineSession:
    from distprof.gate.baseline import session_of

    try:
        return session_of(large, small)
    except ValueError as error:
        raise InputError(
            ", ".join(run.source for run in large[:3]),
            expected="repeats of the same run",
            found=str(error),
            fix="check runs of one job on one machine at a time",
        ) from error


def _judged(
    small: tuple[SummaryFile, ...],
    large: tuple[SummaryFile, ...],
    settings: CheckConfig,
    options: dict[str, Any],
) -> CheckResult:
    from distprof.gate.baseline import read_baseline
    from distprof.gate.check import judge
    from distprof.run.fingerprint import unlike
    from distprof.version import __version__

    session = _session(small, large)
    source = options["baseline"] or ", ".join(options["against"])
    baseline = _others(options) if options["against"] else read_baseline(source)
    fingerprint = large[-1].fingerprint
    wrong = unlike(baseline.fingerprint, fingerprint, is_gate=True)
    if wrong and not options["allow_unlike"]:
        told = "; ".join(difference.sentence for difference in wrong[:4])
        raise InputError(
            source,
            expected="a baseline of the same hardware, job and software",
            found=told,
            fix="make a baseline here (--update-baseline with a new FILE), or --allow-unlike",
        )
    return judge(
        baseline,
        session,
        source=source,
        fingerprint=fingerprint,
        version=__version__,
        now_ns=time.time_ns(),
        tolerances=settings.tolerance,
        gated=settings.metrics,
        is_paired=bool(options["against"]),
        unlike=[difference.sentence for difference in wrong],
    )


def _others(options: dict[str, Any]) -> BaselineFile:
    """The runs after --against, as a baseline of one session."""
    from distprof.gate.baseline import make_baseline
    from distprof.version import __version__

    small, large = _sizes(_summaries(options["against"]))
    try:
        return make_baseline(large, small, distprof_version=__version__)
    except ValueError as error:
        raise InputError(
            ", ".join(options["against"][:3]), expected="repeats of the same run", found=str(error)
        ) from error


def _update(
    small: tuple[SummaryFile, ...],
    large: tuple[SummaryFile, ...],
    settings: CheckConfig,
    options: dict[str, Any],
    *,
    quiet: bool,
) -> int:
    """Accept the runs: a new session, or a new baseline."""
    from distprof.gate.baseline import accepted, baseline_json, make_baseline, read_baseline
    from distprof.report.saved import write_atomically
    from distprof.run.fingerprint import unlike
    from distprof.version import __version__

    file = Path(options["baseline"])
    _session(small, large)  # says what is wrong with the runs
    if not file.exists():
        check_free(str(file), force=False)
        new = make_baseline(large, small, distprof_version=__version__, window=settings.window)
        said = f"Wrote {file}: a new baseline of {len(large)} repeats"
    else:
        old = read_baseline(str(file))
        new = accepted(old, large, small, distprof_version=__version__)
        wrong = unlike(old.fingerprint, large[-1].fingerprint, is_gate=True)
        said = f"Wrote {file}: {len(new.sessions)} of {new.window} sessions"
        if wrong:
            said += f"; it begins anew, since {wrong[0].sentence}"
    write_atomically(file, baseline_json(new))
    note(said, quiet=quiet)
    return ExitCode.FINE


def _remember(runs: tuple[SummaryFile, ...], history: str, *, quiet: bool) -> None:
    if not history:
        return
    from distprof.history.dataset import append

    added = append(history, runs)
    note(f"Added {added} of {len(runs)} runs to {history}", quiet=quiet)


def _summarize(result: CheckResult) -> None:
    """The summary page of a step of GitHub's CI, where there is one."""
    file = os.environ.get(_STEP_SUMMARY)
    if not file:
        return
    from distprof.report.check_reporters import CHECK_REPORTERS
    from distprof.report.registry import RenderOptions

    try:
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(CHECK_REPORTERS["md"](result, RenderOptions()))
    except OSError as error:
        note(f"The step summary was not written: {error.strerror}")


def _code(result: CheckResult, settings: CheckConfig) -> int:
    if result.state == "regressed":
        return ExitCode.FINDINGS
    if result.state == "inconclusive" and settings.inconclusive_fails:
        return ExitCode.FINDINGS
    return ExitCode.FINE


def _made(output: Output, settings: CheckConfig, options: dict[str, Any]) -> tuple[str, ...] | int:
    """Make the runs; the folder that holds them, or the exit code of what went wrong."""
    from distprof.cli.making import make_sweep
    from distprof.sweep.plan import parse_workload, plan_workload, with_more_repeats
    from distprof.sweep.running import configuration_of

    workload, device, sizes, arguments = parse_workload(options["workload"])
    place = options["folder"] or Path("runs", f"check-{time.strftime('%Y%m%d-%H%M%S')}")
    most = max(options["max_repeats"] or 0, options["repeats"])
    sweep = plan_workload(
        workload,
        sizes,
        arguments,
        repeats=options["repeats"],
        scaling="weak",
        device=device,
        configuration=configuration_of,
    )
    again = "make them again with the same command and --sweep DIR"
    while True:
        code = make_sweep(place, sweep, again=again, quiet=output.quiet)
        if code:
            return code
        repeats = max(run.repeat for run in sweep.runs) + 1
        if options["update_baseline"] or repeats >= most:
            return (str(place),)
        small, large = _sizes(_summaries((str(place),)))
        needed = _judged(small, large, settings, options).needed_repeats
        if not needed:
            return (str(place),)
        sweep = with_more_repeats(sweep, min(needed, most - repeats))
        note(f"{needed} more repeats would decide it", quiet=output.quiet)
