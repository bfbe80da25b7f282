"""A fabric profile as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from distprof.artefacts.fabric_file import FabricFile
from distprof.report.registry import RenderOptions

__all__ = ["fabric_reporters"]


def fabric_reporters() -> dict[str, Callable[[FabricFile, RenderOptions], str]]:
    """Name of a format to what writes it."""
    return {"text": _text, "json": _json, "md": _markdown}


def _text(profile: FabricFile, options: RenderOptions) -> str:
    from distprof.report.text import printed

    return printed(_text_blocks(profile, options), options)


def _text_blocks(profile: FabricFile, options: RenderOptions) -> Iterator[Any]:
    from rich.text import Text

    from distprof.report.escape import plain, wrapped
    from distprof.report.fabric_view import (
        fabric_headline,
        fabric_tables,
        fabric_verdict,
        fabric_words,
    )
    from distprof.report.text import sentence, table_blocks

    yield Text(wrapped(plain(fabric_verdict(profile)), options.width), style="bold")
    yield Text()
    yield sentence(fabric_headline(profile), options.width, style="dim")
    for word in fabric_words(profile):
        yield sentence(f"· {word}", options.width)
    for view in fabric_tables(profile, show_all=options.show_all):
        yield Text()
        yield from table_blocks(view, options.width)


def _markdown(profile: FabricFile, options: RenderOptions) -> str:
    from distprof.report.markdown import joined

    return joined(_markdown_blocks(profile, options), show_all=options.show_all)


def _markdown_blocks(profile: FabricFile, options: RenderOptions) -> Iterator[str]:
    from distprof.report.fabric_view import (
        fabric_headline,
        fabric_tables,
        fabric_verdict,
        fabric_words,
    )
    from distprof.report.markdown import sentence, table

    yield f"### {sentence(fabric_verdict(profile))}"
    yield sentence(fabric_headline(profile))
    words = [f"- {sentence(word)}" for word in fabric_words(profile)]
    if words:
        yield "\n".join(words)
    for view in fabric_tables(profile, show_all=options.show_all):
        notes = "".join(f"\n\n{sentence(note)}" for note in view.notes)
        yield f"**{sentence(view.title)}**\n\n{table(view)}{notes}"


def _json(profile: FabricFile, options: RenderOptions) -> str:  # noqa: ARG001 - a reporter's signature
    return msgspec.json.format(msgspec.json.encode(profile), indent=2).decode() + "\n"
