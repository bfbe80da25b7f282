"""Commands other than the analysis of one recording, one folder each; results show themselves."""

from __future__ import annotations


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
