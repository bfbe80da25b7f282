"""A plan as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from distprof.planning.result import Plan
from distprof.report.registry import RenderOptions

__all__ = ["plan_reporters"]


def plan_reporters() -> dict[str, Callable[[Plan, RenderOptions], str]]:
    """Name of a format to what writes it."""
    return {"text": _text, "json": _json, "md": _markdown}


def _text(plan: Plan, options: RenderOptions) -> str:
    from distprof.report.text import printed

    return printed(_text_blocks(plan, options), options)


def _text_blocks(plan: Plan, options: RenderOptions) -> Iterator[Any]:
    from rich.text import Text

    from distprof.report.escape import plain, wrapped
    from distprof.report.plan_view import headline, plan_tables, reasons, verdict
    from distprof.report.text import sentence, table_blocks

    yield Text(wrapped(plain(verdict(plan)), options.width), style="bold")
    yield Text()
    yield sentence(headline(plan), options.width, style="dim")
    for why in reasons(plan):
        yield sentence(why, options.width)
    for view in plan_tables(plan, show_all=options.show_all):
        yield Text()
        yield from table_blocks(view, options.width)
    yield Text()
    yield Text("Assumed", style="bold")
    for assumed in plan.assumptions:
        yield sentence(f"· {assumed}", options.width, style="dim")


def _markdown(plan: Plan, options: RenderOptions) -> str:
    from distprof.report.markdown import joined

    return joined(_markdown_blocks(plan, options), show_all=options.show_all)


def _markdown_blocks(plan: Plan, options: RenderOptions) -> Iterator[str]:
    from distprof.report.markdown import sentence, table
    from distprof.report.plan_view import headline, plan_tables, reasons, verdict

    yield f"### {sentence(verdict(plan))}"
    yield sentence(headline(plan))
    said = [f"- {sentence(why)}" for why in reasons(plan)]
    if said:
        yield "\n".join(said)
    for view in plan_tables(plan, show_all=options.show_all):
        yield f"**{sentence(view.title)}** {sentence(view.caption)}\n\n{table(view)}"
    yield "**Assumed**\n\n" + "\n".join(f"- {sentence(text)}" for text in plan.assumptions)


def _json(plan: Plan, options: RenderOptions) -> str:  # noqa: ARG001 - a reporter's signature
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode() + "\n"
