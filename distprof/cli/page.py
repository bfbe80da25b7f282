"""Pages of rules on a terminal."""

from __future__ import annotations

import io
import re
import sys
from typing import TYPE_CHECKING

from distprof.cli.output import has_color, terminal_width
from distprof.report.escape import plain, wrapped

if TYPE_CHECKING:
    from distprof.rules.base import Rule

__all__ = ["listed_rules", "page_text"]

MAX_PAGE_WIDTH = 100
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)  # set at the left, where rich centres them


def page_text(markdown: str) -> str:
    """A page written in Markdown, drawn for the terminal."""
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
    """Code, name and severity of each rule, and under it what it detects."""
    width = min(terminal_width(), MAX_PAGE_WIDTH)
    lines = []
    for rule in rules:
        lines.append(plain(f"{rule.code}  {rule.name}  ({rule.severity.value})"))
        summary = wrapped(plain(rule.summary), width - 8)
        lines += [f"        {line}" for line in summary.split("\n")]
    return "\n".join(lines) + "\n"
