"""A saved report with a number that cannot be is refused, or shown in every format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.documents.saved import REPORT
from distprof.errors import SchemaError
from distprof.formats import RenderOptions, find_reporter
from distprof.sections.table import Bar
from tests.documents.job_samples import SAMPLES

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
def sample(name: str) -> tuple[bytes, tuple[Place, ...]]:
    data = REPORT.encode(SAMPLES[name]())
    return data, tuple(places(json.loads(data)))


def with_number(data: bytes, place: Place, number: float) -> bytes:
    document: Any = json.loads(data)
    within = document
    for key in place[:-1]:
        within = within[key]
    within[place[-1]] = number
    return json.dumps(document).encode()


@given(st.sampled_from(sorted(SAMPLES)), st.data(), st.sampled_from(IMPOSSIBLE), st.booleans())
def test_any_number_in_any_place_is_refused_or_shown(
    name: str, drawn: st.DataObject, number: float, show_all: bool
) -> None:
    data, found = sample(name)
    changed = with_number(data, drawn.draw(st.sampled_from(found)), number)
    try:
        report = REPORT.decode(changed, "report.json")
    except SchemaError:
        return
    for form in FORMATS:
        assert find_reporter(form)(report, RenderOptions(width=80, show_all=show_all))


@pytest.mark.parametrize(("ratio", "length"), [(0.5, 5), (-1e9, 0), (1e300, 10), (1.01, 10)])
def test_a_bar_is_never_longer_than_its_room(ratio: float, length: int) -> None:
    assert Bar(ratio=ratio, key="").length(10) == length


@pytest.mark.parametrize(
    ("name", "place", "number"),
    [
        ("healthy", ("waterfall", "num_ranks"), 0),
        ("straggler", ("collectives", "classes", 0, "bytes"), -1),
        ("capture-only", ("waterfall", "ranks", 0, "exposed_transfer_ns"), 2**62),
    ],
)
def test_numbers_that_once_broke_a_page(name: str, place: Place, number: float) -> None:
    report = REPORT.decode(with_number(sample(name)[0], place, number), "report.json")
    for form in FORMATS:
        text = find_reporter(form)(report, RenderOptions(width=80))
        assert len(text) < 2_000_000
