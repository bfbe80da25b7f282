"""A saved document with a value that cannot be is refused, or shown in every format."""

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
from docs.documents import ALL_DOCUMENTS
from tests.contracts.test_documents import SAMPLES
from tests.documents.job_samples import SAMPLES as REPORTS

FORMATS = ("text", "brief", "md", "html", "github", "gitlab", "sarif", "junit")
NUMBERS = (0, -1, 1e300, -1e300, 1e-300, 2**62, -(2**62), 2**64 - 1)
OTHERS = (None, [], {}, "", "other", True)
Place = tuple[str | int, ...]


def places(value: object, place: Place = ()) -> Iterator[Place]:
    """Where the values of a document stand: tables, lists and plain ones."""
    if place:
        yield place
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*place, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:2]):
            yield from places(inner, (*place, number))


@cache
def samples() -> dict[str, tuple[Document[Any], Any]]:
    """By name: every document, and every kind of report."""
    documents = {each.name: (each, SAMPLES[each.name]()) for each in ALL_DOCUMENTS}
    return documents | {f"report, {name}": (REPORT, make()) for name, make in REPORTS.items()}


@cache
def encoded(name: str) -> tuple[bytes, tuple[Place, ...]]:
    document, result = samples()[name]
    data = document.encode(result)
    return data, tuple(places(json.loads(data)))


def with_value(data: bytes, place: Place, value: object) -> bytes:
    document: Any = json.loads(data)
    within = document
    for key in place[:-1]:
        within = within[key]
    within[place[-1]] = value
    return json.dumps(document).encode()


def all_formats(document: Document[Any], result: Any, *, show_all: bool = False) -> list[str]:
    shown = []
    for form in FORMATS:
        with suppress(UsageError):  # it has no such format
            report = document.reporter(form)
            shown.append(report(result, RenderOptions(width=80, show_all=show_all)))
    return shown


@given(st.sampled_from(sorted(samples())), st.data(), st.booleans())
def test_any_value_in_any_place_is_refused_or_shown(
    name: str, drawn: st.DataObject, show_all: bool
) -> None:
    data, found = encoded(name)
    document = samples()[name][0]
    place = drawn.draw(st.sampled_from(found))
    changed = with_value(data, place, drawn.draw(st.sampled_from([*NUMBERS, *OTHERS])))
    try:
        result = document.decode(changed, "saved.json")
    except SchemaError:
        return
    assert all(all_formats(document, result, show_all=show_all))


@pytest.mark.parametrize(("ratio", "length"), [(0.5, 5), (-1e9, 0), (1e300, 10), (1.01, 10)])
def test_a_bar_is_never_longer_than_its_room(ratio: float, length: int) -> None:
    assert Bar(ratio=ratio, key="").length(10) == length


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("report, healthy", ("waterfall", "num_ranks"), 0),
        ("report, straggler", ("collectives", "classes", 0, "bytes"), -1),
        ("report, capture-only", ("waterfall", "ranks", 0, "exposed_transfer_ns"), 2**62),
        ("scaling", ("scaling", "sizes", 0, "run_step_ns", 0), 0),
        ("plan", ("best", 0, "step_ns"), 0),
        ("scaling", ("scaling", "sizes", 1, "losses", 0, "cause"), "other"),
        ("check", ("parts", 0, "part"), "other"),
        ("fabric", ("curves", 0, "points"), []),
        ("report", ("placement", "order"), "other"),
    ],
)
def test_values_that_once_broke_a_page(name: str, place: Place, value: object) -> None:
    document = samples()[name][0]
    result = document.decode(with_value(encoded(name)[0], place, value), "saved.json")
    shown = all_formats(document, result)
    assert len(shown) >= 4
    assert all(len(text) < 2_000_000 for text in shown)
