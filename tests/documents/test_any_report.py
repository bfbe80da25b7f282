"""Whatever was measured, however odd its names: every reporter shows it, within the width."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from distprof.documents.saved import REPORT, Report
from distprof.escape import MAX_HEADLINE
from distprof.formats import RenderOptions, find_reporter
from distprof.sections.shows import judge
from tests.documents.html_pages import Seen
from tests.documents.samples import (
    PARTS,
    capture,
    finding,
    kernels,
    report_of,
    run_info,
    stragglers_of,
    waterfall_of,
)

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=200)
ELEMENTS = """
    a article b body button code defs details div em figcaption figure footer g h1 h2 h3 h4 h5 head
    header html li line main meta nav ol p path pattern pre rect script section small span strong
    style summary svg table tbody td text th thead title tr ul
"""
KNOWN = frozenset(ELEMENTS.split())
"""Elements that a page may have, those of rules' pages included."""
TIMES = st.integers(0, 10**16)


@st.composite
def reports(draw: st.DrawFn) -> Report:
    """Reports with any times, names, numbers of ranks and stragglers."""
    numbers = sorted(draw(st.sets(st.integers(0, 5_000), min_size=1, max_size=20)))
    ranks = [
        waterfall_of(rank, **{part: draw(TIMES) for part in draw(st.sets(st.sampled_from(PARTS)))})
        for rank in numbers
    ]
    name = draw(NAMES)
    findings = [
        finding(name="a-name", message=draw(NAMES), fix=draw(NAMES), cost_ns_per_step=cost)
        for cost in draw(st.lists(st.none() | TIMES, max_size=7))
    ]
    late = draw(st.lists(st.sampled_from(numbers), max_size=3, unique=True))
    return report_of(
        ranks,
        num_steps=draw(st.integers(1, 1_000)),
        run=run_info(tuple(numbers), device=name, source=name, world_size=draw(st.none() | TIMES)),
        capture=capture(tuple(numbers), notes=(name,), world_size=None),
        stragglers=stragglers_of({rank: draw(TIMES) for rank in late}),
        kernels=kernels(name),
        findings=tuple(findings),
    )


DETAIL = st.sampled_from(({}, {"full": True}, {"show_all": True}, {"sections": ("findings",)}))


@given(reports(), st.integers(60, 160), DETAIL)
def test_text_stays_within_the_width_and_free_of_control_characters(
    report: Report, width: int, detail: dict[str, Any]
) -> None:
    text = find_reporter("text")(report, RenderOptions(width=width, **detail))
    assert not CONTROL.search(text)
    assert text.splitlines()[0].strip()
    told, _, _ = text.partition("\nNext\n")  # a command is one line, to be copied
    assert max(cell_len(line) for line in told.split("\n")) <= width


@given(reports())
def test_markdown_stays_small_and_its_tables_whole(report: Report) -> None:
    text = find_reporter("md")(report, RenderOptions())
    assert len(text.encode()) < 60_000
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


@given(reports())
def test_html_is_whole_and_has_no_element_of_a_name(report: Report) -> None:
    """Whatever the names are, the page has the elements that it has with harmless ones."""
    page = Seen(find_reporter("html")(report, RenderOptions()))
    assert page.names <= KNOWN
    assert not CONTROL.search("".join(page.texts).replace("\n", " "))


@given(reports())
def test_a_saved_report_comes_back_and_says_the_same(report: Report) -> None:
    back = REPORT.decode(REPORT.encode(report), "x")
    assert back == report
    assert judge(back) == judge(report)


@given(reports())
def test_the_verdict_names_the_part_that_costs_most_or_computation(report: Report) -> None:
    verdict = judge(report)
    assert len(verdict.headline) <= MAX_HEADLINE
    total = report.waterfall.all
    assert total is not None
    assert (verdict.part == "") == (total.span_ns == 0)
