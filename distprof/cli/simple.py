"""Verbs that parse, make one call and deliver what it returns; and the pages of rules."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from distprof.cli.app import ExitCode
from distprof.cli.options import (
    MAX_RANK,
    config_option,
    debug_option,
    fail_on_option,
    flag_option,
    format_option,
    output_options,
    path_option,
    report_options,
)
from distprof.cli.output import (
    Output,
    check_free,
    deliver,
    has_color,
    note,
    progress_bar,
    show_fabric,
    terminal_width,
    to_stdout,
    verdict_code,
)
from distprof.escape import plain, wrapped
from distprof.verbs.sources import check_comparable, check_source, spooled


@click.command()
@click.argument("saved", type=click.Path())
@report_options
@fail_on_option
@debug_option
def report(saved: str, **options: Any) -> int:
    """Show a saved report. SAVED is a report.json or a run directory that holds one.

    \b
      distprof report RUN
      distprof report report.json --format md > comment.md
    """  # noqa: D301 - click reads it
    from distprof.documents.saved import REPORT, load_report

    output = Output.taken_from(options)
    output.check()
    loaded = load_report(saved)
    deliver(REPORT, loaded, output, saved_as=saved)
    return verdict_code(loaded.findings, output.fail_on)


@click.command()
@click.argument("first", metavar="FIRST")
@click.argument("second", metavar="SECOND")
@output_options
@debug_option
def compare(first: str, second: str, **output_options: Any) -> int:
    """Show what changed between two runs, and which parts of a step explain the difference.

    FIRST and SECOND are run directories, saved reports, or any traces that distprof analyze
    accepts. Hardware and size may differ: the report says what is not directly comparable.

    \b
      distprof compare runs/before runs/after
      distprof compare baseline.json runs/mine --format md -o comparison.md
    """  # noqa: D301 - click reads it
    output = Output(**output_options)
    from distprof.verbs.compare.show import COMPARISON, compare_reports
    from distprof.verbs.summaries import open_report

    output.check(COMPARISON)
    for source in (first, second):  # before the first is read, which may take minutes
        check_comparable(source)
    reports = []
    for source in (first, second):
        note(f"Reading {source}", quiet=output.quiet or not sys.stderr.isatty())
        reports.append(open_report(source))
    comparison = compare_reports(reports[0], reports[1], names=(first, second))
    deliver(COMPARISON, comparison, output)
    return ExitCode.FINE


if TYPE_CHECKING:
    from distprof.rules.base import Rule
    from distprof.verbs.hang import HangReport

_HANGS = ("stuck", "failed")
_FAILING = {"stuck": _HANGS, "in_flight": (*_HANGS, "in_flight"), "never": ()}
"""States of a hang that fail the command, by ``--fail-on``."""


@click.command()
@click.argument("sources", metavar="DIR|LOG...", nargs=-1, required=True, type=click.Path())
@output_options
@flag_option("--full", help="Show every table, not only what to do.")
@click.option(
    "--fail-on",
    type=click.Choice([*_FAILING]),
    default="stuck",
    show_default=True,
    help="Exit with 1 if the job is stuck or failed; in_flight: also if operations are in flight.",
)
@click.option("--executor", metavar="SPEC", default="process", help="process, process:N or serial.")
@debug_option
def hang(sources: tuple[str, ...], fail_on: str, executor: str, **output_options: Any) -> int:
    """Find out in which operation a job is stuck, which ranks the others wait for, or who failed.

    DIR holds dumps of torch's Flight Recorder, pickle or JSON, one per rank; some may be missing.
    It may also be a run directory into which distprof attach DIR --flight collected dumps. Logs and
    Python stacks in the folder are read too. Nothing in a dump is executed. LOG is what the job
    printed, a glob of such files, or - for standard input: its watchdogs, launchers and tracebacks
    decide without any dump. Name several to join them.

    \b
      distprof hang dumps/
      distprof hang job.out
      distprof hang 'logs/*.out' stacks/
      distprof hang runs/mine --format json -o hang.json
    """  # noqa: D301 - click reads it
    output = Output(**output_options)
    from distprof.verbs.hang.show import HANG

    output.check(HANG)
    report = _report(sources, executor, quiet=output.quiet)
    deliver(HANG, report, output)
    return ExitCode.FINDINGS if report.state.value in _FAILING[fail_on] else ExitCode.FINE


def _report(sources: tuple[str, ...], executor: str, *, quiet: bool) -> HangReport:
    from distprof.verbs.functions import hang as diagnose

    with progress_bar("reading dumps", quiet=quiet) as progress:
        return diagnose(*map(spooled, sources), executor=executor, progress=progress)


@click.command()
@click.argument("trace", metavar="TRACE")
@click.argument("name", metavar="NAME")
@output_options
@click.option("--rank", type=click.IntRange(0, MAX_RANK), help="Rank; by default the first one.")
@path_option("--fabric", help="Limits that distprof bench --compute measured.")
@config_option
@path_option(
    "--script",
    help="Write a script that repeats one call with random data on this machine; needs only torch.",
)
@click.option(
    "--call",
    type=click.IntRange(1, 10_000),
    default=1,
    metavar="N",
    help="Which row of the table the script repeats.  [1, the longest]",
)
@debug_option
def op(
    trace: str,
    name: str,
    rank: int | None,
    fabric: str | None,
    config: str | None,
    script: str | None,
    call: int,
    **output_options: Any,
) -> int:
    """Tell one operator's story: shapes, time by kernel, share of the GPU's limit, callers.

    TRACE is any trace or run directory that distprof analyze accepts. NAME is an operator, a
    kernel, or a part of its name; if several fit, they are listed.

    \b
      distprof op traces/ aten::addmm
      distprof op traces/ layer_norm_backward --script repeat.py
    """  # noqa: D301 - click reads it
    output = Output(**output_options)
    from distprof import api
    from distprof.config import load_config
    from distprof.documents.document import write_file
    from distprof.hardware import load_sheet
    from distprof.verbs.op import script_of, tell
    from distprof.verbs.op.show import OPERATOR

    output.check(OPERATOR)
    if script is not None:
        check_free(script, force=output.force)
    check_source(trace)
    settings = load_config(config)
    run = api.open_run(trace, config=settings)
    sheet = load_sheet(settings.hardware, settings.source)
    told = tell(run, name, sheet=sheet, fabric=api.fabric_of(fabric, settings), rank=rank)
    if script is not None:
        write_file(Path(script), script_of(told, call).encode())
        note(f"Wrote {script}. Next: python {script}", quiet=output.quiet)
    deliver(OPERATOR, told.story, output)
    return ExitCode.FINE


@click.command()
@click.argument("file", metavar="FILE", type=click.Path())
@output_options
@debug_option
def fabric(file: str, **output_options: Any) -> int:
    """Show how fast a network is: latency, bandwidth and crossover size of each collective.

    FILE is a profile from distprof bench, or the output of nccl-tests or perftest; - is standard
    input. --format json converts nccl-tests output to a profile. distprof analyze --fabric FILE
    compares a run with the profile.

    \b
      distprof fabric fabric.json --all
      distprof fabric all_reduce.log --format json -o fabric.json
    """  # noqa: D301 - click reads it
    return show_fabric(file, Output(**output_options))


_TRAINING = ("ddp", "--ranks", "2", "--device", "cpu", "--fault", "slow-rank=1:1.5")


@click.command(context_settings={"ignore_unknown_options": True}, options_metavar="")
@click.argument("arguments", metavar="[run] [OPTIONS]", nargs=-1, type=click.UNPROCESSED)
@debug_option
@click.pass_context
def demo(ctx: click.Context, arguments: tuple[str, ...]) -> int:
    """Analyse a real recording that comes with distprof.

    The recording holds 4 of the 8 ranks of a recommendation model on V100 GPUs. OPTIONS are those
    of distprof analyze. With "run", train on two CPU ranks instead, one of them slowed down on
    purpose. This needs torch, and OPTIONS are those of distprof run.

    \b
      distprof demo
      distprof demo --full
      distprof demo run
    """  # noqa: D301 - click reads it
    if arguments[:1] == ("run",):
        return _invoke(ctx, "run", (*_TRAINING, *arguments[1:]))
    from distprof.demo import ABOUT, FOLDER

    note(ABOUT, quiet=bool({"-q", "--quiet"} & set(arguments)))
    return _invoke(ctx, "analyze", (str(FOLDER), *arguments))


def _invoke(ctx: click.Context, verb: str, arguments: tuple[str, ...]) -> int:
    """Call another verb as if the user had typed it; return its exit code."""
    group = ctx.find_root().command
    command = group.get_command(ctx, verb) if isinstance(group, click.Group) else None
    if command is None:
        raise click.UsageError(f"distprof {verb} is not installed: pip install 'distprof[run]'")
    with command.make_context(verb, list(arguments), parent=ctx.parent) as called:
        code = command.invoke(called)
    return code if isinstance(code, int) else 0


@click.command()
@path_option(
    "--root",
    metavar="DIR",
    required=True,
    help="Folder that may be read. Nothing outside it is ever read.",
)
@debug_option
def mcp(root: str) -> int:
    """Serve read-only tools to an AI assistant on stdin and stdout; the assistant starts this.

    Tools: analyze, list_findings, explain_rule, compare, hang. They read traces, run directories
    and reports below DIR and write nothing there. Parsed tables go to your own cache
    (DISTPROF_CACHE_DIR). Needs the extra mcp.

    \b
      distprof mcp --root runs/
    """  # noqa: D301 - click reads it
    from distprof.verbs.mcp import Root, make_server

    server = make_server(Root(root))
    note("Waiting for a client on stdin. Press Ctrl-C to stop.", quiet=not sys.stdin.isatty())
    server.run("stdio")
    return ExitCode.FINE


class RuleCode(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """The code or name of a rule, with shell completion."""

    name = "rule"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Rule codes that start with the typed text; if there are none, rule names."""
        from distprof.rules import all_rules

        rules = all_rules()
        codes = [r for r in rules if r.code.startswith(incomplete.upper())]
        if codes:
            return [CompletionItem(rule.code, help=rule.name) for rule in codes]
        by_name = [r for r in rules if r.name.startswith(incomplete)]
        return [CompletionItem(rule.name, help=rule.code) for rule in by_name]


@click.command()
@click.argument("code_or_name", metavar="[CODE|NAME]", required=False, type=RuleCode())
@flag_option("--all", "list_all", help="List every rule (the default).")
@format_option("text", "json", "md")
@debug_option
def rule(code_or_name: str | None, list_all: bool, format_name: str) -> None:
    """Explain a rule: what it detects, why it costs time, how to fix it, when it can be wrong.

    Without a name, list all rules.

    \b
      distprof rule COM101
      distprof rule
    """  # noqa: D301 - click reads it
    from distprof.rules import all_rules, find_rule

    if list_all and code_or_name:
        raise click.UsageError("name a rule, or list all rules with --all")
    rules = (find_rule(code_or_name),) if code_or_name else all_rules()
    to_stdout(_FORMATS[format_name](rules, listed=not code_or_name), format_name)


def _as_json(rules: tuple[Rule, ...], *, listed: bool) -> str:
    import msgspec

    from distprof.config import load_config

    site = load_config().site
    described = [
        {
            "code": r.code,
            "name": r.name,
            "severity": r.severity.value,
            "since": r.since,
            "summary": r.summary,
            "limits": {
                name: {"value": limit.value, "meaning": limit.meaning}
                for name, limit in r.limits.items()
            },
            "docs": r.docs,
            "docs_url": r.docs_url(site),
            "page": r.page,
        }
        for r in rules
    ]
    content = described if listed else described[0]
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def _as_markdown(rules: tuple[Rule, ...], *, listed: bool) -> str:
    if not listed:
        return rules[0].page
    rows = [f"| `{r.code}` | {r.name} | {r.severity.value} | {r.summary} |" for r in rules]
    return "\n".join(["| code | name | severity | detects |", "|---|---|---|---|", *rows]) + "\n"


def _as_text(rules: tuple[Rule, ...], *, listed: bool) -> str:
    return listed_rules(rules) if listed else page_text(rules[0].page)


_FORMATS = {"text": _as_text, "json": _as_json, "md": _as_markdown}


# Pages of rules on a terminal --------------------------------------------------------------------

MAX_PAGE_WIDTH = 100
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)  # left-aligned here; rich centres them


def page_text(markdown: str) -> str:
    """A Markdown page rendered for the terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    out = io.StringIO()
    color = has_color(sys.stdout)
    console = Console(
        file=out,
        width=min(terminal_width(), MAX_PAGE_WIDTH),
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        legacy_windows=False,
    )
    console.print(Markdown(_HEADING.sub(r"**\1**", markdown), hyperlinks=False))
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").split("\n")) + "\n"


def listed_rules(rules: tuple[Rule, ...]) -> str:
    """Code, name and severity of each rule, followed by its summary."""
    width = min(terminal_width(), MAX_PAGE_WIDTH)
    lines = []
    for rule in rules:
        lines.append(plain(f"{rule.code}  {rule.name}  ({rule.severity.value})"))
        summary = wrapped(plain(rule.summary), width - 8)
        lines += [f"        {line}" for line in summary.split("\n")]
    return "\n".join(lines) + "\n"
