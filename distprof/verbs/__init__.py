"""Commands other than the analysis of one recording, one folder each; results show themselves."""

from __future__ import annotations

from typing import NamedTuple


class Displayed:
    """A mixin for the structs of documents that have a page."""

    __slots__ = ()

    def __repr__(self) -> str:
        """One line: a result may hold thousands of rows."""
        from distprof.documents.notebook import one_line

        return one_line(self)

    def __str__(self) -> str:
        """The whole page as text, 100 columns wide."""
        from distprof.documents.notebook import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        """The content of its page, as HTML for a notebook."""
        from distprof.documents.notebook import result_html

        return result_html(self)


class Part(NamedTuple):
    """A part of a mean step in what verbs say and draw."""

    name: str  # In tables and sentences.
    cause: str  # As the cause of a loss.
    glyph: str  # Its character in a bar on a terminal.
    kind: str  # Its colour and hatching in the style sheet.


PARTS = {
    "exposed_transfer": Part("exposed transfer", "exposed transfer", "▓", "exposed_transfer"),
    "exposed_wait": Part("waiting for late ranks", "imbalance and stragglers", "▒", "exposed_wait"),
    "bubble": Part("pipeline bubble", "pipeline bubble", "▞", "bubble"),
    "unsplit_comm": Part(
        "exposed communication", "exposed communication, not split", "▓", "exposed_comm_unsplit"
    ),
    "host": Part("idle: host", "host", "░", "idle"),
    "input": Part("idle: input", "input", "·", "input"),
    "copy": Part("exposed copies", "copies", "▚", "exposed_copy"),
    "computation": Part("computation", "computation grew", "█", "computation"),
    "other": Part("other", "other", "-", "other"),
}
"""By field of ``StepParts``, without its unit; in the order of display."""


def part_of(field: str) -> Part:
    """What is said of a part; its field, in the colour of other parts, if a report has it alone."""
    return PARTS.get(field) or PARTS["other"]._replace(name=field)
