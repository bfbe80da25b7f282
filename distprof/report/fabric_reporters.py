"""A fabric profile as text, Markdown and JSON."""

from __future__ import annotations

from distprof.artefacts.fabric_file import FabricFile
from distprof.report.fabric_view import (
    fabric_headline,
    fabric_tables,
    fabric_verdict,
    fabric_words,
)
from distprof.report.page import Page, page_reporters
from distprof.report.registry import RenderOptions

__all__ = ["FABRIC_REPORTERS"]


def _page(profile: FabricFile, options: RenderOptions) -> Page:
    return Page(
        verdict=fabric_verdict(profile),
        headline=fabric_headline(profile),
        sentences=tuple(fabric_words(profile)),
        tables=tuple(fabric_tables(profile, show_all=options.show_all)),
    )


FABRIC_REPORTERS = page_reporters(_page)
"""Name of a format to what writes a profile in it."""
