"""Pages in a real browser: the policy, the script, the maps. Skipped where there is no Chromium.

A page is opened with a probe of ours added, whose hash joins those of the policy: it acts as a
reader does, and writes what happened into the document, where it is waited for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.step_picture import Browser
from distprof.documents.html.page import page_html
from distprof.documents.page import Page
from distprof.documents.saved import Report
from distprof.formats import RenderOptions, find_reporter
from distprof.sections.picture import COMPUTATION, WAIT, DrawnRank, packed_split
from distprof.sections.pipeline import PictureRow
from distprof.sections.table import Column, TableView
from distprof.verbs.compare.show import COMPARISON
from docs.documents import ALL_DOCUMENTS
from tests.contracts.test_documents import SAMPLES
from tests.documents.html_pages import Seen
from tests.documents.samples import nasty
from tests.documents.test_figures import FIGURES, hang_of
from tests.documents.test_html import made, pipeline
from tests.documents.test_step_picture import pair
from tests.documents.test_step_picture import report as slow_job

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

DOCUMENT = "document.documentElement.outerHTML"
FOUND = """
new Promise((done) => {
  const look = () => {
    if ("found" in document.body.dataset) done(document.body.dataset.found);
    else setTimeout(look, 10);
  };
  look();
})
"""


def with_probe(page: str, probe: str = PROBE) -> str:
    """The page with our two scripts before and after its own, allowed by the policy."""
    hashes = [
        base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in (FIRST, probe)
    ]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    page = page.replace("script-src ", f"script-src {allowed} ", 1)
    page = page.replace("<body>", f"<body><script>{FIRST}</script>", 1)
    return page.replace("</body>", f"<script>{probe}</script></body>", 1)


@contextmanager
def opened(page: str, folder: Path, size: tuple[int, int] = (800, 600)) -> Iterator[Browser]:
    """A browser with this page."""
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    browser = Browser(folder / "profile", size)
    try:
        browser.call("Log.enable")
        browser.call("Runtime.enable")
        browser.open(file)
        yield browser
    finally:
        browser.close()


def found_by(
    page: str, probe: str, folder: Path, size: tuple[int, int] = (800, 600)
) -> dict[str, Any]:
    """What a probe found on a page, as soon as it has, without anything logged."""
    with opened(with_probe(page, probe), folder, size) as browser:
        found: dict[str, Any] = json.loads(browser.run(FOUND))
        assert browser.logged == []
    return found


@pytest.fixture(scope="module")
def acted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    page = find_reporter("html")(made(9, 3), RenderOptions())
    return found_by(page, PROBE, tmp_path_factory.mktemp("page"), (500, 800))


ZOOM = """
const found = {};
const maps = [...document.querySelectorAll("figure.heat")];
const figure = maps.find((one) => one.dataset.row === "rank");
const region = figure.querySelector(".wide");
const svg = region.querySelector("svg.cells");
const size = () => [svg.clientWidth, svg.clientHeight];
const press = (key) => region.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const button = (name) => figure.querySelector(`button[aria-label="${name}"]`);
found.before = size();
found.labels = region.querySelectorAll(".labels")[0].childElementCount;
button("Larger").click();
found.larger = size();
press("0");
found.whole = size();
found.room = region.clientHeight;
press("1");
found.again = size();
press("+");
press("+");
press("+");
found.largest = size();
found.more = region.querySelectorAll(".labels")[0].childElementCount;
const list = figure.querySelector(".zoom select");
list.selectedIndex = 64;
list.dispatchEvent(new Event("change"));
found.nodes = list.options.length;
found.top = region.scrollTop / svg.clientHeight;
found.rank = figure.querySelector(".chosen select").value;
const from = region.scrollTop;
const mouse = (type, clientX, clientY) => svg.dispatchEvent(new PointerEvent(
  type, { clientX, clientY, pointerType: "mouse", button: 0, bubbles: true }));
mouse("pointerdown", 300, 300);
mouse("pointermove", 300, 200);
mouse("pointerup", 300, 200);
found.dragged = region.scrollTop - from;
const schedule = document.querySelector("figure.schedule");
const slots = schedule.querySelector("svg.slots");
const isSeen = (one) => getComputedStyle(one).display !== "none";
const seen = () => [...slots.querySelectorAll("text")].filter(isSeen).length;
found.slots = [slots.clientWidth, seen()];
const larger = schedule.querySelector('button[aria-label="Larger"]');
for (let i = 0; i < 4; i += 1) larger.click();
found.wider = [slots.clientWidth, seen(), slots.clientHeight];
found.blocked = refused.length;
document.body.dataset.found = JSON.stringify(found);
"""


def large() -> Report:
    """1,024 ranks on 128 nodes, with 128 pipelines of 8 stages and 64 micro-batches."""
    slots = [
        PictureRow(
            rank=stage,
            stage=stage,
            kind=kind,
            micro_batch=number,
            start_ns=10 * (stage + number) + late,
            end_ns=10 * (stage + number) + late + 10,
        )
        for stage in range(8)
        for kind, late in (("forward", 0), ("backward", 700))
        for number in range(64)
    ]
    group = replace(
        pipeline(), ranks=tuple(range(8)), stages=8, num_micro_batches=64, picture=tuple(slots)
    )
    report = made(1_024, 60)
    return replace(report, pipeline=replace(report.pipeline, groups=(group,) * 128))


@pytest.fixture(scope="module")
def zoomed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    page = find_reporter("html")(large(), RenderOptions())
    assert len(page.encode()) < 4e6
    return found_by(page, ZOOM, tmp_path_factory.mktemp("zoom"), (1200, 900))


def test_a_large_map_zooms_by_buttons_and_keys(zoomed: dict[str, Any]) -> None:
    assert zoomed["blocked"] == 0
    assert zoomed["larger"] == pytest.approx([1.5 * each for each in zoomed["before"]], abs=2)
    assert zoomed["again"] == zoomed["before"]
    assert zoomed["largest"][1] == pytest.approx(1.5**3 * zoomed["before"][1], abs=2)
    assert zoomed["more"] > zoomed["labels"]  # with more room there are more labels


def test_the_whole_map_fits_without_scrolling(zoomed: dict[str, Any]) -> None:
    assert zoomed["before"][1] > zoomed["room"]
    assert 0.5 * zoomed["room"] < zoomed["whole"][1] <= zoomed["room"]


def test_a_node_is_found_by_its_name(zoomed: dict[str, Any]) -> None:
    assert zoomed["nodes"] == 128
    assert zoomed["top"] == pytest.approx(0.5, abs=0.01)
    assert zoomed["rank"] == "512"


def test_a_map_is_dragged(zoomed: dict[str, Any]) -> None:
    assert zoomed["dragged"] == pytest.approx(100, abs=1)


def test_a_schedule_gets_wider_and_shows_more_numbers(zoomed: dict[str, Any]) -> None:
    (width, numbers), (wider, more, height) = zoomed["slots"], zoomed["wider"]
    assert wider == pytest.approx(1.5**4 * width, abs=2)
    assert more > numbers
    assert more - 2 == 2 * 8 * 64  # every slot, and both ends of the time line
    assert height == 8 * 30 + 24


AXE = find_spec("axe_core_python")
AXE_RUN = """
const serious = (result) => result.violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => [one.id, one.nodes.length, one.nodes[0].html.slice(0, 200)]);
(async () => {
  const found = {};
  for (const theme of ["light", "dark"]) {
    document.documentElement.dataset.theme = theme;
    found[theme] = serious(await axe.run(document, { resultTypes: ["violations"] }));
  }
  document.body.dataset.found = JSON.stringify(found);
})();
"""


needs_axe = pytest.mark.skipif(
    AXE is None, reason="axe-core is not installed: pip install axe-core-python"
)


def axe_probe() -> str:
    """The script of axe-core, which judges the page in both themes."""
    assert AXE is not None
    assert AXE.origin is not None
    return (Path(AXE.origin).parent / "axe.min.js").read_text(encoding="utf-8") + AXE_RUN


def shown(name: str) -> str:
    """The page of a verb with figures, or of a report."""
    if name == "report":
        return find_reporter("html")(made(9, 3), RenderOptions())
    documents = {document.name: document for document in ALL_DOCUMENTS}
    if name == "large hang":
        return documents["hang"].reporter("html")(hang_of(128), RenderOptions())
    return documents[name].reporter("html")(SAMPLES[name](), RenderOptions())


@needs_axe
@pytest.mark.parametrize("name", [*FIGURES, "report", "large hang"])
def test_axe_finds_nothing_serious(name: str, tmp_path: Path) -> None:
    """Contrast, names and roles, light and dark, as axe-core (Deque) judges them in a browser."""
    found = found_by(shown(name), axe_probe(), tmp_path)
    assert found == {"light": [], "dark": []}


@needs_axe
def test_axe_finds_what_is_serious(tmp_path: Path) -> None:
    """A list without a name and pale text are found, so that finding nothing means something."""
    bad = "<main><select></select><p class='pale'>pale</p>"
    page = shown("check").replace("<main", bad.replace("<main>", "") + "<main", 1)
    page = page.replace("</style>", ".pale { color: #eee; background: #fff; }</style>")
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    found = found_by(page, axe_probe(), tmp_path)
    assert {name for name, *_ in found["light"]} == {"select-name", "color-contrast"}


@pytest.mark.parametrize("name", FIGURES)
def test_the_page_of_a_verb_is_not_wider_than_a_phone(name: str, tmp_path: Path) -> None:
    probe = """
const wide = document.documentElement.scrollWidth - innerWidth;
document.body.dataset.found = JSON.stringify([wide, refused.length]);
"""
    found = found_by(shown(name), probe, tmp_path, (500, 900))
    assert found[0] <= 0
    assert found[1] == 0


def test_nothing_is_refused_and_no_script_fails(acted: dict[str, Any]) -> None:
    assert acted["blocked"] == 0


def test_a_button_switches_the_colours(acted: dict[str, Any]) -> None:
    assert (acted["theme"], acted["switched"]) == ("system", "dark")


def test_a_click_and_a_list_show_the_value_of_a_cell(acted: dict[str, Any]) -> None:
    steps = made(9, 3).breakdown.steps
    for key, rank in (("clicked", 4), ("chosen", 0)):
        (cell,) = [c for c in steps if (c.rank, c.step) == (rank, 2)]
        shown = float(str(acted[key]).partition(" ")[0])
        assert shown == pytest.approx(100 * (1 - cell.computation_ns / cell.span_ns), abs=0.06)
    assert acted["lists"] == ["4", "2"]


def test_everything_opens_at_once(acted: dict[str, Any]) -> None:
    assert acted["closed"] == 0


def test_a_narrow_page_does_not_scroll_sideways(acted: dict[str, Any]) -> None:
    assert int(str(acted["wide"])) <= 0  # less by a scroll bar


def test_hostile_names_run_nothing(tmp_path: Path) -> None:
    page = find_reporter("html")(nasty(), RenderOptions(show_all=True))
    with opened(page, tmp_path) as browser:
        document = browser.run(DOCUMENT)
        assert browser.logged == []
    added = {"output", "option", "select", "label", "input", "button"}
    assert Seen(document).names <= Seen(page).names | added


def test_a_probe_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    """The policy works at all: without its hash a script does not run."""
    page = find_reporter("html")(nasty(), RenderOptions())
    script = "<script>document.body.dataset.ran = 'yes'</script></body>"
    with opened(page.replace("</body>", script, 1), tmp_path) as browser:
        assert "data-ran" not in browser.run(DOCUMENT)
        assert "Content Security Policy" in "".join(browser.logged)


# The picture of the step, and tables --------------------------------------------------------------

PICTURE = """
const found = {};
const figure = document.querySelector(".step-picture");
const canvas = figure.querySelector("canvas");
const says = () => figure.querySelector("output").textContent;
const press = (key) => canvas.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const lists = () => [...figure.querySelectorAll("select")].map((list) => list.value);
const shades = () => {
  const pen = canvas.getContext("2d");
  const data = new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return new Set(data).size;
};
found.hidden = getComputedStyle(figure.querySelector(".static")).display;
found.shades = shades();
found.lists = lists();
const high = canvas.height;
press("ArrowDown");
found.first = says();
press("Enter");
found.grown = canvas.height > high;
press("Enter");
found.back = canvas.height === high;
for (let i = 0; i < 2000; i += 1) press(".");
found.ends = says();
press(".");
found.beyond = says();
press("0");
const box = canvas.getBoundingClientRect();
const hover = (x, y) => canvas.dispatchEvent(new PointerEvent("pointermove", {
  clientX: box.left + x, clientY: box.top + y, bubbles: true }));
hover(box.width / 2, 8);
found.hovered = says();
hover(10, 8);
found.left = says();
const wheel = (shiftKey, deltaY) => canvas.dispatchEvent(
  new WheelEvent("wheel", { deltaY, shiftKey, bubbles: true, cancelable: true }));
const start = () => { hover(121, 8); return says(); };
found.whole = start();
found.scrolls = wheel(false, -300);
canvas.focus();
found.zooms = wheel(false, -900);
found.zoomed = start();
wheel(true, 100_000);
hover(box.width - 3, 8);
found.end = says();
press("0");
hover(box.width - 3, 8);
found.last = says();
found.again = start();
document.querySelector(".finding .show").click();
found.shown = says();
found.chosen = document.activeElement === canvas;
found.blocked = refused.length;
document.body.dataset.found = JSON.stringify(found);
"""


def test_the_picture_is_drawn_moved_and_opened(tmp_path: Path) -> None:
    page = find_reporter("html")(slow_job(), RenderOptions())
    found = found_by(page, PICTURE, tmp_path, (1000, 800))
    assert found["blocked"] == 0
    assert found["hidden"] == "none"
    assert found["shades"] > 4, "computation, waits, transfers, ground"
    assert found["lists"][-1] == "", "alike ranks are folded"
    assert re.match(r"rank \d+: .+, [\d.]+ [mµ]s from", found["first"])
    assert found["grown"]
    assert found["back"]
    assert re.match(r"rank \d+: ", found["hovered"])
    assert found["left"].startswith("Click a name")
    assert found["scrolls"], "a wheel over a picture that is not in focus scrolls the page"
    assert not found["zooms"]
    assert found["ends"] == found["beyond"], "the last piece stays chosen"
    assert re.match(r"rank \d+: ", found["ends"])
    assert found["zoomed"] != found["whole"] == found["again"]
    assert found["end"] == found["last"], "moved as far as it goes, the end is at the edge"
    assert "rank 3 begins last" in found["shown"]
    assert found["chosen"]


BOTH = """
const found = {};
const figure = document.querySelector(".step-picture");
const canvas = figure.querySelector("canvas");
const says = () => figure.querySelector("output").textContent;
const box = canvas.getBoundingClientRect();
const hover = (x, y) => { canvas.dispatchEvent(new PointerEvent("pointermove", {
  clientX: box.left + x, clientY: box.top + y, bubbles: true })); return says(); };
const press = (key) => canvas.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const begins = () => [hover(121, 30), hover(121, canvas.clientHeight - 36)].map(
  (text) => text.split(" from ")[1]);
found.canvases = document.querySelectorAll("canvas").length;
found.hidden = getComputedStyle(figure.querySelector(".static")).display;
found.hint = says();
found.first = hover(140, 30);
found.second = hover(140, canvas.clientHeight - 36);
found.whole = begins();
press("+"); press("+"); press("+"); press("+"); press("+");
press("ArrowRight"); press("ArrowRight"); press("ArrowRight");
found.zoomed = begins();
const list = [...figure.querySelectorAll("select")].find((one) => one.options.length === 2);
const high = canvas.height;
list.value = "";
list.dispatchEvent(new Event("change"));
found.lower = high - canvas.height;
found.options = [...list.options].map((option) => option.text);
found.ranks = [...[...figure.querySelectorAll("select")].pop().options].map((one) => one.text);
found.blocked = refused.length;
document.body.dataset.found = JSON.stringify(found);
"""


def test_both_steps_of_a_comparison_are_drawn_and_zoomed_together(tmp_path: Path) -> None:
    page = COMPARISON.reporter("html")(pair(), RenderOptions())
    found = found_by(page, BOTH, tmp_path, (1000, 800))
    assert (found["blocked"], found["canvases"], found["hidden"]) == (0, 1, "none")
    assert found["hint"].startswith("Drag"), "there is nothing to open"
    assert re.match(r"rank \d+, first: ", found["first"])
    assert re.match(r"rank \d+, second: ", found["second"])
    for before, after in zip(found["whole"], found["zoomed"], strict=True):
        assert before != after, "one zoom for both"
    assert found["options"] == ["nothing", "second"]
    assert found["lower"] > 0
    assert found["ranks"] == ["alike ones folded"], "the other ranks are not in the page"


SHARES = """
const canvas = document.querySelector(".step-picture canvas");
const list = [...document.querySelectorAll(".step-picture select")].pop();
list.value = "all";
list.dispatchEvent(new Event("change"));
requestAnimationFrame(() => {
  const probe = document.createElement("i");
  document.body.append(probe);
  const inks = ["computation", "wait"].map((name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  });
  const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const pixel = (x, y) => [...data.slice(4 * (y * width + x), 4 * (y * width + x) + 3)];
  const column = (x) => Array.from({ length: high }, (_, y) => pixel(x, y));
  const high = canvas.height - 22;
  const found = { inks, blocked: refused.length };
  found.columns = [0.2, 0.5, 0.8].map((at) => column(Math.round(120 + at * (width - 120))));
  document.body.dataset.found = JSON.stringify(found);
});
"""


def shares_of_waiting(
    splits: list[list[tuple[int, int]]], num_lines: int, folder: Path
) -> list[list[float]]:
    """Share of the waiting colour in the first pixels of three columns, for these ranks."""
    ranks = []
    for rank, pieces in enumerate(splits):
        kind, length = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
        ranks.append(DrawnRank(rank=rank, split=packed_split(kind, np.cumsum(length), 0, 1)))
    span = sum(length for _, length in splits[0])
    (step, *_) = slow_job().picture.steps
    step = replace(
        step, span_ns=span, mean_ns=span, unit_ns=1, ranks=tuple(ranks), waits=(), repaired=()
    )
    picture = replace(slow_job().picture, groups=(), steps=(step,))
    page = find_reporter("html")(replace(slow_job(), picture=picture), RenderOptions())
    found = found_by(page, SHARES, folder, (1000, 900))
    assert found["blocked"] == 0
    computation, wait = (np.array(ink, float) for ink in found["inks"])
    along = wait - computation
    columns = []
    for pixels in found["columns"]:
        column = pixels[:num_lines]
        shares = (np.array(column) - computation) @ along / (along @ along)
        assert np.allclose(computation + shares[:, None] * along, column, atol=3), "a third colour"
        columns.append(shares.tolist())
    return columns


def test_pieces_narrower_than_a_pixel_are_drawn_by_their_share(tmp_path: Path) -> None:
    pieces = [(COMPUTATION, 3), (WAIT, 1)] * 20_000
    for column in shares_of_waiting([pieces], 2, tmp_path):
        assert column[1] == pytest.approx(0.25, abs=0.03)


def test_ranks_thinner_than_a_pixel_are_drawn_by_their_share(tmp_path: Path) -> None:
    """Of 2,040 ranks on 680 lines, each line has three: all, one of three, or none of them wait."""
    waits, computes = [(WAIT, 900)], [(COMPUTATION, 900)]
    splits = [computes] * 680 + [waits, computes, computes] * 226 + [waits] * 682
    for column in shares_of_waiting(splits, 680, tmp_path):
        assert len(column) == 680
        assert np.mean(column) == pytest.approx((226 + 682) / 2_040, abs=0.005)
        assert column[100] == pytest.approx(0, abs=0.03)
        assert column[340] == pytest.approx(1 / 3, abs=0.03)
        assert column[600] == pytest.approx(1, abs=0.03)


MOVED = """
const canvas = document.querySelector(".step-picture canvas");
const SLOW = Number("TICK_MS");
let clock = 0;
if (SLOW) performance.now = () => clock += SLOW;
const list = [...document.querySelectorAll(".step-picture select")].pop();
list.value = "all";
list.dispatchEvent(new Event("change"));
canvas.focus();
const wheel = (shiftKey, deltaY) => canvas.dispatchEvent(new WheelEvent(
  "wheel", { deltaY, shiftKey, cancelable: true, bubbles: true }));
const frames = (count) => new Promise((done) => {
  const next = () => { if (count--) requestAnimationFrame(next); else done(); };
  next();
});
const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: 500 });
const pen = copy.getContext("2d", { willReadFrequently: true });
const drawn = () => {
  pen.drawImage(canvas, 0, 0);
  return pen.getImageData(0, 0, copy.width, copy.height).data;
};
const differ = (one, other) => one.filter((part, i) => Math.abs(part - other[i]) > 2).length;
(async () => {
  const found = [];
  await frames(3);
  const moves = [
    [0, -120], [1, 60], [1, -35], [0, -200], [1, 1e4], [1, -77], [0, 90], [1, -2.5], [1, -2.5],
  ];
  for (const [isPan, delta] of moves) {
    const before = drawn();
    wheel(Boolean(isPan), delta);
    await frames(SLOW ? 40 : 3);
    const moved = drawn();
    document.getElementById("theme").click();
    await frames(3);
    document.getElementById("theme").click();
    await frames(3);
    found.push([differ(moved, drawn()), differ(moved, before) > 0]);
  }
  return JSON.stringify(found);
})()
"""


@pytest.mark.parametrize("tick_ms", [0, 2], ids=["fast", "slow"])
def test_a_moved_picture_is_the_one_painted_anew(tick_ms: int, tmp_path: Path) -> None:
    """Pixels that are moved, or stretched until their turn comes, become those of a new picture."""
    page = find_reporter("html")(slow_job(), RenderOptions())
    with opened(page, tmp_path, (1000, 900)) as browser:
        found = json.loads(browser.run(MOVED.replace("TICK_MS", str(tick_ms))))
    assert [differ for differ, _ in found] == [0] * 9
    assert [is_moved for _, is_moved in found] == [True] * 9


FOLDS = """
const found = {};
const canvas = document.querySelector(".step-picture canvas");
const list = [...document.querySelectorAll(".step-picture select")].pop();
const says = () => document.querySelector(".step-picture output").textContent;
const press = (...keys) => keys.forEach((key) => canvas.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })));
found.folds = [...list.options].map((option) => option.text);
list.value = "by node";
list.dispatchEvent(new Event("change"));
const folded = canvas.height;
press("ArrowDown");
found.first = says();
press("ArrowDown");
found.second = says();
press("Enter");
found.grown = canvas.height - folded;
press("ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp");
found.heading = says();
press("Enter");
found.back = canvas.height - folded;
document.body.dataset.found = JSON.stringify(found);
"""


def test_ranks_fold_by_node_and_unfold_with_keys(tmp_path: Path) -> None:
    nodes = {f"node{node}": tuple(range(8 * node, 8 * node + 8)) for node in range(3)}
    run = replace(slow_job().run, nodes=nodes, mesh={"dp": 3, "tp": 8})
    page = find_reporter("html")(replace(slow_job(), run=run), RenderOptions())
    found = found_by(page, FOLDS, tmp_path, (1000, 800))
    kinds = [f"folded by {kind}" for kind in ("node", "dp", "tp")]
    assert found["folds"] == ["alike ones folded", *kinds, "all"]
    assert found["first"].startswith("node0, rank 0: ")
    assert found["second"].startswith("node0, rank 1: ")
    assert found["grown"] > 80
    assert found["heading"] == "node0: 8 ranks. Enter folds them."
    assert found["back"] == 0


def test_two_fingers_zoom_the_picture_and_a_tap_names_a_piece(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(find_reporter("html")(slow_job(), RenderOptions()), encoding="utf-8")
    browser = Browser(tmp_path / "touch", (390, 844))

    def touch(kind: str, *points: tuple[float, float]) -> None:
        given = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=given)

    def tapped(x: float, y: float) -> str:
        touch("touchStart", (x, y))
        touch("touchEnd")
        return str(browser.run("document.querySelector('#picture output').textContent"))

    changes = (
        "(() => { const one = document.querySelector('#picture canvas'); const wide = one.width;"
        " const line = one.getContext('2d').getImageData(240, 6, wide - 240, 1).data;"
        " return line.filter((part, i) => i % 4 === 0 && i && part !== line[i - 4]).length; })()"
    )
    try:
        screen = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        browser.call("Emulation.setDeviceMetricsOverride", **screen)
        browser.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
        browser.open(file)
        place = (
            "(() => { const one = document.querySelector('#picture canvas');"
            " one.scrollIntoView(); const box = one.getBoundingClientRect();"
            " return [box.left, box.top]; })()"
        )
        left, top = browser.run(place)
        middle, high = left + 240, top + 9
        named = tapped(middle - 100, high)
        before = browser.run(changes)
        touch("touchStart", (middle - 20, high), (middle + 20, high))
        for wider in range(10, 90, 10):
            touch("touchMove", (middle - 20 - wider, high), (middle + 20 + wider, high))
        touch("touchEnd")
        browser.run("new Promise((done) => setTimeout(done, 200))")
        after = browser.run(changes)
        scale = browser.run("visualViewport.scale")
    finally:
        browser.close()
    assert re.fullmatch(r"rank \d+: [^,]+(, [^,]+)?, [\d.]+ [mµ]s from [\d.]+ [mµ]s", named), named
    assert 0 < after < 0.6 * before, "half of the pieces have left the picture"
    assert scale == 1, "the page itself did not zoom"


PHONE = """
(() => {
  const box = (each) => each.getBoundingClientRect();
  const list = [...document.querySelectorAll(".step-picture label")].find(
    (label) => !label.hidden && label.textContent.startsWith("Below"));
  document.querySelectorAll("main > section").forEach((each) => {
    each.style.contentVisibility = "visible";
  });
  document.querySelectorAll("details").forEach((each) => { each.open = true; });
  const long = "after repair 1: no waiting for late ranks";
  list.querySelector("select").selectedOptions[0].text = long;
  const small = [...document.querySelectorAll("svg text, main :not(svg *)")].filter((each) =>
    each.checkVisibility() && [...each.childNodes].some((one) => one.nodeType === 3 &&
      one.data.trim()) && parseFloat(getComputedStyle(each).fontSize) < 11);
  return JSON.stringify({
    label: box(list).height,
    list: box(list.querySelector("select")).height,
    low: [...document.querySelectorAll("a, button, select, summary")].filter((each) =>
      each.checkVisibility() && !each.closest("p:not(.brand, .chosen, .tools)")
      && box(each).height && box(each).height < 24).map((each) => each.textContent),
    small: small.map((each) => each.textContent),
    wide: document.documentElement.scrollWidth,
    broken: [...document.querySelectorAll(".page :is(th, td)")].filter((each) =>
      each.textContent.length < 9 && box(each).height > 30).map((each) => each.textContent),
  });
})()
"""


def test_a_phone_shows_all_at_a_size_that_can_be_read_and_tapped(tmp_path: Path) -> None:
    browser = Browser(tmp_path / "phone", (390, 844))
    try:
        screen = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        browser.call("Emulation.setDeviceMetricsOverride", **screen)
        browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
        file = tmp_path / "page.html"
        file.write_text(find_reporter("html")(slow_job(), RenderOptions()), encoding="utf-8")
        browser.open(file)
        found = json.loads(browser.run(PHONE))
    finally:
        browser.close()
    assert found["wide"] == 390
    assert found["low"] == found["small"] == found["broken"] == []
    assert found["label"] < 1.5 * found["list"], "a list stands beside its name, not below it"


TABLE = """
const found = {};
const region = [...document.querySelectorAll(".wide")].find((one) => one.querySelector("table")
  && one.querySelector("table").tBodies[0].rows.length > 7);
const table = region.querySelector("table");
const line = region.previousElementSibling;
const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
const column = (i) => [...table.tBodies[0].rows].filter((row) => !row.hidden)
  .map((row) => row.cells[i].textContent);
const heads = [...table.tHead.rows[0].cells];
const at = Number("COLUMN");
found.names = names;
found.before = column(at);
heads[at].querySelector("button").click();
found.sort = heads[at].getAttribute("aria-sort");
found.down = column(at);
heads[at].querySelector("button").click();
found.up = column(at);
heads[at].querySelector("button").click();
found.again = column(at);
found.unsorted = heads[at].getAttribute("aria-sort");
const field = line.querySelector("input");
field.value = found.before[2];
field.dispatchEvent(new Event("input"));
found.filtered = column(at);
found.says = line.querySelector("output").textContent;
let copied = "";
document.execCommand = () => { copied = document.activeElement.value; return true; };
line.querySelector("button").click();
found.copied = copied;
document.body.dataset.found = JSON.stringify(found);
"""


RANKS = (
    ("rank 10", "9.00 µs"),
    ("rank 9", "1.00 ms"),
    ("=cmd()", "2.50 s"),
    ('a "b", c', "–"),
    ("-3", "10.0 µs"),
    ("@x", "1,000 ms"),
    ("rank 1", "0 ns"),
    ("rank 2", "1.00 ms"),
)

MODULES = (
    ("GPT", "9.00 ms"),
    ("· Block × 2", "5.00 ms"),
    ("· · Norm", "1.00 ms"),
    ("· · Linear", "4.00 ms"),
    ("· Embedding", "6.00 ms"),
    ("Loss", "10.0 ms"),
    ("· Softmax", "900 µs"),
    ("(outside modules)", "7.00 ms"),
)


def table_page(rows: tuple[tuple[str, str], ...] = RANKS) -> str:
    view = TableView(
        section="x",
        title="Some",
        columns=(Column("name", left=True), Column("time")),
        rows=rows,
    )
    return page_html(Page(verdict="Tables", tables=(view,)))


def test_a_table_sorts_numbers_with_units(tmp_path: Path) -> None:
    found = found_by(table_page(), TABLE.replace("COLUMN", "1"), tmp_path)
    order = ["2.50 s", "1,000 ms", "1.00 ms", "1.00 ms", "10.0 µs", "9.00 µs", "0 ns", "–"]
    assert [text.replace("\u00a0", " ") for text in found["down"]] == order
    assert [text.replace("\u00a0", " ") for text in found["up"]] == [*order[-2::-1], "–"]
    assert (found["sort"], found["unsorted"]) == ("descending", None)
    assert found["again"] == found["before"]


def test_a_table_sorts_names_and_filters_and_copies(tmp_path: Path) -> None:
    found = found_by(table_page(), TABLE.replace("COLUMN", "0"), tmp_path)
    ranks = [name for name in found["down"] if name.startswith("rank")]
    assert ranks == ["rank 1", "rank 2", "rank 9", "rank 10"]
    assert found["sort"] == "ascending"
    assert found["filtered"] == ["=cmd()"]
    assert "1 of 8 rows" in found["says"]
    assert found["copied"] == "name,time\n'=cmd(),2.50 s\n", "no formula"


def test_rows_of_a_tree_stay_below_those_around_them(tmp_path: Path) -> None:
    found = found_by(table_page(MODULES), TABLE.replace("COLUMN", "1"), tmp_path)
    time = dict(MODULES)
    down = ["Loss", "· Softmax", "GPT", "· Embedding", "· Block × 2", "· · Linear", "· · Norm"]
    up = ["(outside modules)", "GPT", "· Block × 2", "· · Norm", "· · Linear", "· Embedding"]
    assert [text.replace("\u00a0", " ") for text in found["down"]] == [
        time[name] for name in (*down, "(outside modules)")
    ]
    assert [text.replace("\u00a0", " ") for text in found["up"]] == [
        time[name] for name in (*up, "Loss", "· Softmax")
    ]
    assert found["again"] == found["before"]
