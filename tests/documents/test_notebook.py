"""Results in a notebook: rich in a cell, one line in a shell, text when printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distprof.documents.document import document_of
from distprof.documents.html.page import figures_of
from distprof.formats import RenderOptions
from docs.documents import ALL_DOCUMENTS
from tests.contracts.test_documents import FAST, SAMPLES, SLOW
from tests.documents.html_pages import Seen
from tests.documents.samples import healthy, nasty, straggler
from tests.documents.test_figures import FIGURES, hang_with
from tests.flight_jobs import GPU_ERROR
from tests.optional import optional

SUMMARY = next(each for each in ALL_DOCUMENTS if each.name == "summary")
BEYOND = "</script><img src=x onerror=alert(1)><!--\"'`\u202e\x00\x85"


@pytest.mark.parametrize("name", FIGURES)
def test_a_verbs_result_shows_its_figures_and_tables(name: str) -> None:
    result: Any = SAMPLES[name]()
    seen = Seen(result._repr_html_())
    page = document_of(type(result)).page
    assert page is not None
    view = page(result, RenderOptions())
    for part in figures_of(result):
        assert part.title in seen.text
        assert Seen(part.content).text in seen.text
    for table in view.tables:
        assert table.title in seen.text
    assert " ".join(view.verdict.split()) in seen.text


def test_a_report_shows_the_bar_and_the_plan() -> None:
    html = straggler()._repr_html_()
    assert 'class="bar tall"' in html
    assert "22.3 ms → 16.5 ms, saves 26.0 %" in Seen(html).text
    assert "waiting for late ranks 27.1 %" in Seen(html).text


@pytest.mark.parametrize("name", [*FIGURES, "report"])
def test_the_style_reaches_nothing_else_in_the_notebook(name: str) -> None:
    """Every rule stands in the scope of the output, the colours of notebooks' themes aside."""
    html = str(SAMPLES[name]()._repr_html_())  # type: ignore[attr-defined]
    seen = Seen(html)
    themes, _, scoped = seen.raw["style"].partition("@scope (.distprof) {")
    assert scoped.rstrip().endswith("}")
    assert scoped.count("{") + 1 == scoped.count("}")
    selectors = [rule.split("}")[-1].strip() for rule in themes.split("{")[:-1]]
    assert selectors
    assert all(selector.endswith(".distprof") for selector in selectors)
    assert ":root" not in scoped
    assert not {"script", "img", "iframe", "body", "html"} & seen.names
    assert seen.ids == [one for one in seen.ids if one.startswith("hatch-")]


@pytest.mark.parametrize("result", [nasty(), hang_with(BEYOND)], ids=["report", "hang"])
def test_hostile_names_are_text(result: Any) -> None:
    seen = Seen(result._repr_html_())
    assert not {"script", "img"} & seen.names
    assert not [name for name in seen.attributes if name.startswith("on")]


@pytest.mark.parametrize("name", FIGURES)
def test_a_shell_shows_one_line_and_print_the_page(name: str) -> None:
    result = SAMPLES[name]()
    line = repr(result)
    assert line.startswith(f"<{type(result).__name__}: ")
    assert "\n" not in line
    assert str(result) == document_of(type(result)).reporter("text")(result, RenderOptions())


def test_a_line_holds_no_control_characters() -> None:
    result = msgspec.structs.replace(SAMPLES["hang"](), verdict="a\x1b[31m\nb")
    assert repr(result) == r"<HangReport: a\x1b[31m b>"


def cells(folder: Path) -> list[str]:
    """Imports, then one result each."""
    now, before = (
        [str(folder / f"{name}-{i}.json") for i in range(3)] for name in ("now", "before")
    )
    return [
        "import distprof\n"
        "from distprof.verbs.sweep.measure import report_scaling\n"
        "from distprof.verbs.summaries import load_summaries",
        f"report = distprof.load_report({str(folder / 'first.json')!r})\nreport",
        f"distprof.compare(report, {str(folder / 'second.json')!r})",
        f"distprof.hang({str(GPU_ERROR)!r}, executor='serial')",
        "distprof.plan('llama2-7b', gpus=16)",
        f"distprof.check({now!r}, against={before!r})",
        f"report_scaling(load_summaries({before!r}), source='runs')",
    ]


def written(folder: Path) -> None:
    """Two reports, and summaries of repeats before and now."""
    for name, report in (("first", healthy()), ("second", straggler())):
        report.save(folder / f"{name}.json")
    for name, runs in (("before", FAST), ("now", SLOW)):
        for number, run in enumerate(runs):
            SUMMARY.save(run, folder / f"{name}-{number}.json")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the notebook's own libraries
def test_a_real_kernel_displays_every_result(tmp_path: Path) -> None:
    nbclient, nbformat = optional("nbclient"), optional("nbformat")
    optional("ipykernel")
    written(tmp_path)
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(text) for text in cells(tmp_path)]
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    for cell in notebook.cells[1:]:
        (output,) = [one for one in cell.outputs if one.output_type == "execute_result"]
        html, text = output.data["text/html"], output.data["text/plain"]
        assert html.startswith('<div class="distprof">'), cell.source
        assert re.match(r"<(Report on|[A-Z]\w+:) .*>$", text), cell.source
        assert "\n" not in text
        Seen(html)
