"""Pages in a real browser: the policy, the script, the maps. Skipped where there is no Chromium.

A page is opened with a probe of ours added, whose hash joins those of the policy: it acts as a
reader does, and writes what happened into the document. Chromium dumps that document.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from distprof.formats import RenderOptions, find_reporter
from tests.documents.html_pages import Seen
from tests.documents.samples import nasty
from tests.documents.test_html import made

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium: apt-get install chromium"),
]

PROBE = """
const found = {};
found.theme = document.documentElement.dataset.theme || "system";
document.getElementById("theme").click();
found.switched = document.documentElement.dataset.theme;
const figure = document.querySelector("figure.heat");
const svg = figure.querySelector("svg.cells");
const box = svg.getBoundingClientRect();
svg.dispatchEvent(new MouseEvent("click", {
  clientX: box.left + box.width * 2.5 / 3, clientY: box.top + box.height * 4.5 / 9,
}));
found.clicked = figure.querySelector("output").textContent;
found.lists = [...figure.querySelectorAll("select")].map((list) => list.value);
document.querySelectorAll("figure.heat select")[0].value = "0";
document.querySelectorAll("figure.heat select")[0].dispatchEvent(new Event("change"));
found.chosen = figure.querySelector("output").textContent;
document.getElementById("open-all").click();
found.closed = document.querySelectorAll("details:not([open])").length;
found.wide = document.documentElement.scrollWidth - innerWidth;
found.blocked = refused.length;
document.body.dataset.found = JSON.stringify(found);
"""
FIRST = """
const refused = [];
addEventListener("securitypolicyviolation", (event) => refused.push(event.violatedDirective));
addEventListener("error", (event) => refused.push(String(event.message)));
"""


def with_probe(page: str) -> str:
    """The page with our two scripts before and after its own, allowed by the policy."""
    hashes = [
        base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in (FIRST, PROBE)
    ]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    page = page.replace("script-src ", f"script-src {allowed} ", 1)
    page = page.replace("<body>", f"<body><script>{FIRST}</script>", 1)
    return page.replace("</body>", f"<script>{PROBE}</script></body>", 1)


def opened(file: Path, *options: str) -> tuple[str, str]:
    """The document after its scripts, and what the browser logged about it."""
    finished = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={file.parent / 'profile'}",
            *options,
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    logged = [line for line in finished.stderr.splitlines() if "CONSOLE" in line]
    return finished.stdout, "\n".join(logged)


@pytest.fixture(scope="module")
def acted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    file = tmp_path_factory.mktemp("page") / "page.html"
    page = find_reporter("html")(made(9, 3), RenderOptions())
    file.write_text(with_probe(page), encoding="utf-8")
    document, logged = opened(file, "--window-size=500,800")
    assert logged == ""
    (found,) = re.findall(r'data-found="([^"]*)"', document)
    result: dict[str, object] = json.loads(found.replace("&quot;", '"'))
    return result


def test_nothing_is_refused_and_no_script_fails(acted: dict[str, object]) -> None:
    assert acted["blocked"] == 0


def test_a_button_switches_the_colours(acted: dict[str, object]) -> None:
    assert (acted["theme"], acted["switched"]) == ("system", "dark")


def test_a_click_and_a_list_show_the_value_of_a_cell(acted: dict[str, object]) -> None:
    steps = made(9, 3).breakdown.steps
    for key, rank in (("clicked", 4), ("chosen", 0)):
        (cell,) = [c for c in steps if (c.rank, c.step) == (rank, 2)]
        shown = float(str(acted[key]).partition(" ")[0])
        assert shown == pytest.approx(100 * (1 - cell.computation_ns / cell.span_ns), abs=0.06)
    assert acted["lists"] == ["4", "2"]


def test_everything_opens_at_once(acted: dict[str, object]) -> None:
    assert acted["closed"] == 0


def test_a_narrow_page_does_not_scroll_sideways(acted: dict[str, object]) -> None:
    assert int(str(acted["wide"])) <= 0  # less by a scroll bar


def test_hostile_names_run_nothing(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    page = find_reporter("html")(nasty(), RenderOptions(show_all=True))
    file.write_text(page, encoding="utf-8")
    document, logged = opened(file)
    assert logged == ""
    assert Seen(document).names <= Seen(page).names | {"output", "option", "select", "label"}


def test_a_probe_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    """The policy works at all: without its hash a script does not run."""
    file = tmp_path / "page.html"
    page = find_reporter("html")(nasty(), RenderOptions())
    script = "<script>document.body.dataset.ran = 'yes'</script></body>"
    file.write_text(page.replace("</body>", script, 1), encoding="utf-8")
    document, logged = opened(file)
    assert "data-ran" not in document
    assert "Content Security Policy" in logged
