"""``distprof rule``: the page of a rule, or the list of all rules."""

from __future__ import annotations

import io
import re
import sys
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from distprof.cli.options import debug_option
from distprof.cli.output import has_color, terminal_width, to_stdout
from distprof.escape import plain, wrapped

if TYPE_CHECKING:
    from distprof.rules.base import Rule


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
        from distprof.rules.registry import all_rules

        rules = all_rules()
        codes = [r for r in rules if r.code.startswith(incomplete.upper())]
        if codes:
            return [CompletionItem(rule.code, help=rule.name) for rule in codes]
        by_name = [r for r in rules if r.name.startswith(incomplete)]
        return [CompletionItem(rule.name, help=rule.code) for rule in by_name]


@click.command()
@click.argument("code_or_name", metavar="[CODE|NAME]", required=False, type=RuleCode())
@click.option("--all", "list_all", is_flag=True, help="List every rule (the default).")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["text", "json", "md"]),
    default="text",
    help="Output format.",
)
@debug_option
def rule(code_or_name: str | None, list_all: bool, format_name: str) -> None:
    """Explain a rule: what it detects, why it costs time, how to fix it, when it can be wrong.

    Without a name, list all rules.

    \b
      distprof rule COM101
      distprof rule
    """  # noqa: D301 - click reads it
    from distprof.rules.registry import all_rules, find_rule

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
