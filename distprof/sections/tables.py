"""Tables of a report as columns and cells of text, for both terminal and Markdown output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from distprof.sections.shows import declared
from distprof.sections.table import TableView

if TYPE_CHECKING:
    from distprof.sections.report import Report


def tables_of(
    report: Report, *, show_all: bool, sections: tuple[str, ...] = ()
) -> tuple[TableView, ...]:
    """All tables worth showing, or only those of some sections, in reading order."""
    wanted = (
        make for make in declared(report, "table") if not sections or make.section in sections
    )
    made = ((make(report, show_all=show_all), make.section) for make in wanted)
    return tuple(replace(view, section=section) for view, section in made if view is not None)
