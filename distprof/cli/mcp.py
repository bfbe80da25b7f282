"""``distprof mcp``: tools for AI assistants, over the Model Context Protocol."""

from __future__ import annotations

import sys

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option
from distprof.cli.output import note


@click.command()
@click.option(
    "--root",
    type=click.Path(),
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
    from distprof.ingest.executor import import_numpy
    from distprof.verbs.mcp import Root, make_server

    import_numpy()  # before anything else does
    server = make_server(Root(root))
    note("Waiting for a client on stdin. Press Ctrl-C to stop.", quiet=not sys.stdin.isatty())
    server.run("stdio")
    return ExitCode.FINE
