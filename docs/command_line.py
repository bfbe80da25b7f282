"""The command line's reference page, generated from the commands themselves."""

from __future__ import annotations

import click

from distprof.cli.app import app

__all__ = ["command_line_page"]

_WIDTH = 90
_EXIT_CODES = """\
## Exit codes

| code | meaning |
|---:|---|
| 0 | success |
| 1 | findings at or above `--fail-on`, or problems found by `doctor` |
| 2 | wrong usage: an option, a configuration, a missing extra |
| 3 | input that is bad or insufficient, or an unexpected error |
| 130 | interrupted; traces that were parsed stay in the cache |
| 143 | terminated (SIGTERM), the same |

Reports go to stdout, everything else to stderr. Colour and progress appear on terminals only;
`NO_COLOR` switches colour off. A run directory keeps its report as `report.json`. A folder of bare
traces stays unchanged unless `-o` or `--save-report` names a file there.
"""


def command_line_page() -> str:
    """The page, in Markdown."""
    settings = {**app.context_settings, "max_content_width": _WIDTH, "terminal_width": _WIDTH}
    context = click.Context(app, info_name="distprof", **settings)
    parts = ["# Command line", "<!-- generated: python -m docs.build --write -->"]
    parts.append(_block(app, context))
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        if command is None or not _is_own(command):
            continue
        inner = click.Context(command, context, info_name=name, terminal_width=_WIDTH)
        parts += [f"## distprof {name}", _block(command, inner)]
        parts += _verbs_of(command, inner)
    return "\n\n".join([*parts, _EXIT_CODES])


def _verbs_of(command: click.Command, context: click.Context) -> list[str]:
    """Subcommands of a command, if it has any."""
    parts = []
    for name, inner in getattr(command, "commands", {}).items():
        below = click.Context(inner, context, info_name=name, terminal_width=_WIDTH)
        parts += [f"### {below.command_path}", _block(inner, below)]
    return parts


def _block(command: click.Command, context: click.Context) -> str:
    lines = command.get_help(context).splitlines()
    text = "\n".join(line.rstrip() for line in lines)
    return f"```text\n{text}\n```"


def _is_own(command: click.Command) -> bool:
    """Whether the verb is distprof's; verbs of other packages have their own pages."""
    return getattr(command.callback, "__module__", "").startswith("distprof.")
