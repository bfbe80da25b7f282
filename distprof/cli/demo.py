"""``distprof demo``: a first look for users who have no traces."""

from __future__ import annotations

import click

from distprof.cli.options import debug_option
from distprof.cli.output import note

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
