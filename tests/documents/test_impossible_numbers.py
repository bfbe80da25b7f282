"""A saved document with a number that cannot be is refused, or shown in every format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.documents.document import Document
from distprof.documents.saved import REPORT
from distprof.errors import SchemaError, UsageError
from distprof.formats import RenderOptions
from distprof.sections.table import Bar
from distprof.verbs.documents import all_documents
from tests.contracts.test_documents import SAMPLES
from tests.documents.job_samples import SAMPLES as REPORTS

FORMATS = ("text", "brief", "md", "html", "github", "gitlab", "sarif", "junit")
IMPOSSIBLE = (0, -1, 1e300, -1e300, 1e-300, 2**62, -(2**62), 2**64 - 1)
Place = tuple[str | int, ...]


def places(value: object, place: Place = ()) -> Iterator[Place]:
    """Where the numbers of a document stand."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*place, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:2]):
            yield from places(inner, (*place, number))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place


@cache
def samples() -> dict[str, tuple[Document[Any], Any]]:
    """By name: every document that people see, and every kind of report."""
    documents = {each.name: (each, SAMPLES[each.name]()) for each in all_documents() if each.page}
    return documents | {f"report, {name}": (REPORT, make()) for name, make in REPORTS.items()}


@cache
def encoded(name: str) -> tuple[bytes, tuple[Place, ...]]:
    document, result = samples()[name]
    data = document.encode(result)
    return data, tuple(places(json.loads(data)))


def with_number(data: bytes, place: Place, number: float) -> bytes:
    document: Any = json.loads(data)
    within = document
    for key in place[:-1]:
        within = within[key]
    within[place[-1]] = number
    return json.dumps(document).encode()


def all_formats(document: Document[Any], result: Any, *, show_all: bool = False) -> list[str]:
    shown = []
    for form in FORMATS:
        with suppress(UsageError):  # it has no such format
            report = document.reporter(form)
            shown.append(report(result, RenderOptions(width=80, show_all=show_all)))
    return shown


@given(st.sampled_from(sorted(samples())), st.data(), st.sampled_from(IMPOSSIBLE), st.booleans())
def test_any_number_in_any_place_is_refused_or_shown(
    name: str, drawn: st.DataObject, number: float, show_all: bool
) -> None:
    data, found = encoded(name)
    document = samples()[name][0]
    changed = with_number(data, drawn.draw(st.sampled_from(found)), number)
    try:
        result = document.decode(changed, "saved.json")
    except SchemaError:
        return
    assert all(all_formats(document, result, show_all=show_all))


@pytest.mark.parametrize(("ratio", "length"), [(0.5, 5), (-1e9, 0), (1e300, 10), (1.01, 10)])
def test_a_bar_is_never_longer_than_its_room(ratio: float, length: int) -> None:
    assert Bar(ratio=ratio, key="").length(10) == length


@pytest.mark.parametrize(
    ("name", "place", "number"),
    [
        ("report, healthy", ("waterfall", "num_ranks"), 0),
        ("report, straggler", ("collectives", "classes", 0, "bytes"), -1),
        ("report, capture-only", ("waterfall", "ranks", 0, "exposed_transfer_ns"), 2**62),
        ("scaling", ("scaling", "sizes", 0, "run_step_ns", 0), 0),
        ("plan", ("best", 0, "step_ns"), 0),
    ],
)
def test_numbers_that_once_broke_a_page(name: str, place: Place, number: float) -> None:
    document = samples()[name][0]
    result = document.decode(with_number(encoded(name)[0], place, number), "saved.json")
    shown = all_formats(document, result)
    assert len(shown) >= 4
    assert all(len(text) < 2_000_000 for text in shown)
