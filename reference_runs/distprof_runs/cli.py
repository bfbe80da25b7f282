"""``distprof run``: runs and reports a reference run of one kind of parallelism.

Its options are made from the structs in :mod:`distprof_runs.options`; torch is imported when a
job starts, not for ``--help``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from distprof_probes.options import ProbeOptions

from distprof.formats import check_reporter
from distprof.options import Option, options_of
from distprof.terms import Severity
from distprof.units import capitalized
from distprof_runs.options import ModelOptions, TrainingOptions
from distprof_runs.registry import WORKLOADS
from distprof_runs.settings import LaunchOptions, read_settings_file, resolve, to_toml

_DEPENDS = {"num_steps": "a third of the steps, 4 to 10"}
_PROBES_SHOWN = (
    "mode",
    "start_step",
    "num_steps",
    "warmup",
    "profile_ranks",
    "stacks",
    "shapes",
    "profile_memory",
    "nvml",
    "nccl_debug",
    "memory",
    "flight_recorder",
    "pauses",
    "settings",
    "pipeline_marks",
    "moe_routing",
    "clock",
    "measure_overhead",
    "max_growth_mb",
)


class GroupedOption(click.Option):
    """An option that knows its section: of the help, and of the configuration.

    ``key`` is its section and name in the configuration; None for options of the command itself.
    """

    def __init__(
        self, *args: Any, section: str, key: tuple[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.key = key


class GroupedCommand(click.Command):
    """A command whose help shows options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One list per heading, in order of the options."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                rows.setdefault(getattr(option, "section", "Other"), []).append(record)
        for section, entries in rows.items():
            with formatter.section(section):
                formatter.write_dl(entries)


NEARLY = 0.15
"""Difference in similarity to a wrong name within which a second workload is suggested, too."""


class Workloads(click.Group):
    """The workloads as commands, each created on demand because they have many options."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them, in the registry's order."""
        del ctx
        return list(WORKLOADS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The one of that name."""
        del ctx
        return _command(cmd_name) if cmd_name in WORKLOADS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does; an error for an unknown name lists the known ones."""
        if args and args[0] not in WORKLOADS and not args[0].startswith("-"):
            near = _near(args[0])
            hint = f": did you mean {' or '.join(near)}?" if near else f": {', '.join(WORKLOADS)}"
            raise click.UsageError(f"unknown workload {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


def _near(name: str) -> list[str]:
    """The most similar workload, and another that is nearly as similar."""
    near = difflib.get_close_matches(name, WORKLOADS, n=2, cutoff=0.4)
    alike = [difflib.SequenceMatcher(None, name, one).ratio() for one in near]
    return [one for one, ratio in zip(near, alike, strict=True) if ratio >= alike[0] - NEARLY]


@click.group(
    cls=Workloads,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 success, 1 findings at or above --fail-on, 2 wrong usage, 3 bad input,"
    " 4 the job failed (the report is still shown), 130 interrupted.",
)
def run() -> None:
    """Run a small training with one kind of parallelism under probes, and report on it.

    \b
      distprof run ddp --ranks 2 --device cpu
      distprof run fsdp --gpus 8 --preset 1b -o runs/fsdp
    """  # noqa: D301 - click reads it


def _command(workload: str) -> click.Command:
    kind = WORKLOADS[workload].options
    params = [
        *_section("launch", "Launching", options_of(LaunchOptions)),
        *_section(workload, f"The workload {workload}", options_of(kind)),
        *_section("model", "Model", options_of(ModelOptions)),
        *_section("training", "Training", options_of(TrainingOptions)),
        *_section("probes", "Probes", _probe_options()),
        *_other_options(),
    ]

    def call(**values: Any) -> int:
        return _run(workload, _given(params, values), values)

    return GroupedCommand(
        workload,
        params=params,
        callback=call,
        help=f"{capitalized(kind.summary)}.",
        short_help=kind.summary,
        context_settings={"show_default": False},
    )


def _section(name: str, heading: str, options: Iterable[Option]) -> list[GroupedOption]:
    """Options of one section; None unless given, so that a file's value can apply."""
    return [
        GroupedOption(
            [each.spelling, each.name],
            section=heading,
            key=(name, each.name),
            **{**each.click_attributes(with_range=False), "help": each.help + _default(each)},
        )
        for each in options
    ]


def _probe_options() -> list[Option]:
    """The probe options that the help shows, in that order."""
    known = {each.name: each for each in options_of(ProbeOptions)}
    return [known[name] for name in _PROBES_SHOWN]


def _default(option: Option) -> str:
    if option.default in ("", -1):
        return ""
    return f"  [{_DEPENDS.get(option.name) or _shown(option.default)}]"


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _other_options() -> list[click.Parameter]:
    """Options of the command rather than of the run."""
    faults = "Faults"
    report = "Configuration and report"
    return [
        GroupedOption(
            ["--fault", "faults"],
            multiple=True,
            metavar="KIND=TARGET:AMOUNT",
            help="Inject a fault, for example slow-rank=1:1.5; may be repeated.",
            section=faults,
        ),
        GroupedOption(
            ["--config"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="TOML file with the same options; the command line overrides it.",
            section=report,
        ),
        GroupedOption(
            ["--dry-run"],
            is_flag=True,
            help="Print the whole configuration as a TOML file and exit.",
            section=report,
        ),
        GroupedOption(
            ["-o", "--out"],
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="The run directory.  [runs/WORKLOAD-TIME]",
            section=report,
        ),
        GroupedOption(
            ["--format", "format_name"],
            metavar="text|json|md|html",
            help="Format of the report; html is written to DIR/report.html.  [text]",
            section=report,
        ),
        GroupedOption(
            ["--fail-on"],
            type=click.Choice([severity.value for severity in Severity]),
            help="Exit with 1 if a finding has at least this severity.",
            section=report,
        ),
        GroupedOption(
            ["--no-report"], is_flag=True, help="Record without a report.", section=report
        ),
        GroupedOption(
            ["-q", "--quiet"], is_flag=True, help="Write only errors to stderr.", section=report
        ),
        GroupedOption(
            ["--debug"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=remember_debug,
            help="Show the traceback of an unexpected error.",
            section=report,
        ),
    ]


def remember_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Tell the calling program to show the traceback of errors."""
    del param
    if ctx.obj is not None:  # the state of this call in the program `distprof`
        ctx.obj.debug = value


def _given(params: Sequence[click.Parameter], values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Remove the typed configuration values from ``values``, and return them by section."""
    given: dict[str, dict[str, Any]] = {}
    for param in params:
        if isinstance(param, GroupedOption) and param.key is not None:
            section, name = param.key
            value = values.pop(name)
            if value is not None:
                given.setdefault(section, {})[name] = value
    return given


def _run(workload: str, given: dict[str, dict[str, Any]], values: dict[str, Any]) -> int:
    config, faults = values.pop("config"), values.pop("faults")
    if faults:
        given["faults"] = {"inject": list(faults)}
    settings = resolve(workload, read_settings_file(config) if config else {}, given)
    if values.pop("dry_run"):
        click.echo(to_toml(settings), nl=False)
        return 0
    check_reporter(values["format_name"])
    from distprof_probes.job.ending import ReportOptions

    from distprof_runs.launching.job import run_job

    return run_job(settings, ReportOptions(**values))
