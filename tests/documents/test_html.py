"""The HTML of every sample: whole, harmless, complete in itself, and no more than Markdown says."""

from __future__ import annotations

import base64
import hashlib
import re
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from distprof.documents.html.blocks import (
    Markup,
    Segment,
    bar,
    columns,
    edges,
    element,
    step_figure,
)
from distprof.documents.html.chart import collectives_figure, expected_ns
from distprof.documents.html.findings import markdown_html, rule_page
from distprof.documents.html.heat_map import (
    LEAST_SPREAD,
    MAX_CELLS,
    SHADES,
    Heat,
    _bounds,
    _shades,
    heat_figure,
    heats_of,
    node_heats_of,
    strokes,
)
from distprof.documents.html.roofline import roofline_figure
from distprof.documents.html.schedule import MAX_SLOTS, schedule_figure, schedule_figures
from distprof.documents.html.subjects import _set, stragglers_figure, workers_figure
from distprof.documents.page import step_bar
from distprof.documents.saved import Report
from distprof.escape import plain
from distprof.formats import RenderOptions, find_reporter
from distprof.rules import all_rules
from distprof.sections.computation import ComputationResult, OperatorRow, Roof
from distprof.sections.pipeline import PictureRow
from distprof.sections.shows import judge, tables_of
from distprof.sections.stragglers import StepBlame, StragglerSet
from distprof.sections.time import BreakdownResult, StepBreakdown
from distprof.sections.whatif import WhatIfResult, WorkerSlowdown
from distprof.terms import StragglerCause, StragglerPattern
from distprof.units import format_duration
from tests.documents.html_pages import Seen
from tests.documents.job_samples import SAMPLES, hostile_job
from tests.documents.samples import (
    MS,
    NASTY,
    all_reduce,
    finding,
    kernels,
    nasty,
    pipeline,
    report_of,
    run_info,
    straggler,
    stragglers_of,
    waterfall_of,
)

BEYOND = "</script><img src=x onerror=alert(1)><!--\"'`\u202e\x00\x85"


def shown(report: Report, **options: object) -> str:
    return find_reporter("html")(report, RenderOptions(**options))  # type: ignore[arg-type]


def made(num_ranks: int, num_steps: int) -> Report:
    """Ranks on nodes of eight, with every figure, and no two cells alike."""
    rng = np.random.default_rng(7)
    ranks = [
        waterfall_of(
            rank,
            computation_ns=int(rng.integers(80, 99)) * MS,
            exposed_wait_ns=int(rng.integers(1, 40)) * MS,
            idle_host_ns=int(rng.integers(1, 9)) * MS,
        )
        for rank in range(num_ranks)
    ]
    numbers = rng.integers(1_000, 9_999_999, (num_ranks, num_steps, 4)).tolist()
    steps = [
        StepBreakdown(
            rank=rank,
            step=step,
            span_ns=sum(cell),
            computation_ns=cell[0],
            exposed_comm_ns=cell[1],
            exposed_copy_ns=cell[2],
            idle_ns=cell[3],
        )
        for rank, row in enumerate(numbers)
        for step, cell in enumerate(row)
    ]
    nodes = {
        f"node-{first // 8}": tuple(range(first, min(first + 8, num_ranks)))
        for first in range(0, num_ranks, 8)
    }
    report = report_of(
        ranks,
        num_steps=num_steps,
        run=run_info(tuple(range(num_ranks)), nodes=nodes, num_steps=num_steps),
        stragglers=stragglers_of({rank: rank * MS for rank in range(1, num_ranks)}),
        kernels=kernels(),
        findings=tuple(finding(rule.code, name=rule.name) for rule in all_rules()[:20]),
    )
    breakdown = BreakdownResult(ranks=report.breakdown.ranks, steps=tuple(steps))
    return msgspec.structs.replace(report, breakdown=breakdown)


@pytest.fixture(scope="module")
def template() -> Seen:
    """Everything that the templates have: a report without anything hostile, all figures in it."""
    group = pipeline()
    report = msgspec.structs.replace(
        made(9, 3),
        collectives=msgspec.structs.replace(
            straggler().collectives,
            classes=(
                all_reduce(expected_busbw_bytes_per_s=2e11),
                *(all_reduce(kind=str(kind), bytes=10**kind) for kind in range(1, 8)),
            ),
        ),
        plan=straggler().plan,
        pipeline=msgspec.structs.replace(straggler().pipeline, groups=(group,)),
    )
    pages = "".join(rule.page for rule in all_rules())
    return Seen(shown(report, show_all=True) + markdown_html(pages))


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("show_all", [False, True])
def test_a_page_is_whole_and_its_links_lead_somewhere(name: str, show_all: bool) -> None:
    text = shown(SAMPLES[name](), show_all=show_all)
    assert text.startswith("<!doctype html>\n<html lang=")
    seen = Seen(text)
    assert len(seen.ids) == len(set(seen.ids))
    inside = {link[1:] for link in seen.links if link.startswith("#")}
    assert inside <= set(seen.ids)
    assert all(link.startswith(("#", "https://", "http://")) for link in seen.links)


@pytest.mark.parametrize("name", SAMPLES)
def test_whatever_markdown_shows_stands_in_the_page(name: str) -> None:
    report = SAMPLES[name]()
    seen = Seen(shown(report)).text
    assert " ".join(plain(judge(report).headline).split()) in seen
    for view in tables_of(report, show_all=False):
        assert " ".join(plain(view.title).split()) in seen
    for one in report.findings:
        assert " ".join(plain(f"{one.code} {one.name}").split()) in seen


def test_every_cell_of_a_table_stands_in_the_page() -> None:
    report = straggler()
    seen = Seen(shown(report)).text
    for view in tables_of(report, show_all=True):
        cells = [cell for row in view.rows for cell in row if isinstance(cell, str)]
        assert [c for c in cells if " ".join(c.split()) not in seen] == []


@pytest.mark.parametrize("report", [nasty(), hostile_job()], ids=["traces", "job"])
def test_hostile_names_bring_no_element_or_attribute(report: Report, template: Seen) -> None:
    seen = Seen(shown(report, show_all=True))
    assert seen.names <= template.names
    assert seen.attributes <= template.attributes
    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", "".join(seen.texts)) is None
    assert "<script>alert(1)</script>" in seen.text  # as text: shown, not obeyed


@pytest.mark.parametrize("text", [BEYOND, NASTY, "&lt;b&gt;", "]]>", "\ud800"])
def test_a_hostile_name_is_text_wherever_it_stands(text: str, template: Seen) -> None:
    report = msgspec.structs.replace(
        made(9, 3),
        run=run_info((0, 1), nodes={text: (0,), "b": (1,)}, source=text, device=text),
        findings=(finding(text, name=text, message=text, fix=text, evidence=(text,)),),
        kernels=kernels(text),
        collectives=msgspec.structs.replace(
            straggler().collectives,
            classes=(all_reduce(kind=text, group=text, axis=text),),
        ),
        pipeline=msgspec.structs.replace(
            straggler().pipeline,
            groups=(
                msgspec.structs.replace(
                    pipeline(),
                    schedule=text,
                    picture=tuple(
                        msgspec.structs.replace(row, kind=text) for row in pipeline().picture
                    ),
                ),
            ),
        ),
    )
    page = shown(report, show_all=True)
    seen = Seen(page)
    assert seen.names <= template.names
    assert seen.attributes <= template.attributes
    assert page.count("</script>") == 1
    assert page.encode("utf-8")


def test_the_policy_allows_this_style_and_script_and_nothing_else() -> None:
    page = shown(straggler())
    seen = Seen(page)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    policy = policy.replace("&#x27;", "'")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for name in ("style", "script"):
        digest = hashlib.sha256(seen.raw[name].encode()).digest()
        assert rules[f"{name}-src"] == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert set(rules) == {"default-src", "style-src", "script-src", "base-uri", "form-action"}
    assert "style" not in seen.attributes  # the policy would ignore it
    assert not [name for name in seen.attributes if name.startswith("on")]


def test_nothing_is_loaded(template: Seen) -> None:
    assert not {"img", "link", "iframe", "object", "embed", "image", "use"} & template.names
    assert not {"src", "srcset", "xlink:href", "action"} & template.attributes


@pytest.mark.parametrize(("num_ranks", "megabytes"), [(64, 1.5), (1_024, 4.0)])
def test_a_file_stays_small(num_ranks: int, megabytes: float) -> None:
    report = made(num_ranks, 60)
    assert len(shown(report).encode()) < megabytes * 1e6
    assert len(shown(report, show_all=True).encode()) < megabytes * 1e6


def test_text_is_escaped_and_markup_is_not_escaped_twice() -> None:
    inner = element("b", "a<b")
    assert element("p", inner, " & ", title='"') == '<p title="&quot;"><b>a&lt;b</b> &amp; </p>'
    joined_to_text = inner + "<i>"
    assert not isinstance(joined_to_text, Markup)


def rects(svg: str) -> list[tuple[float, float]]:
    found = re.findall(r'x="([\d.]+)%" width="([\d.]+)%"', svg)
    return [(float(x), float(width)) for x, width in found]


@pytest.mark.parametrize("name", SAMPLES)
def test_pieces_of_the_step_add_up_to_it(name: str) -> None:
    step = step_bar(SAMPLES[name]())
    if step is None:
        assert name in ("empty", "untraced")
        return
    pieces = rects(step_figure(step))
    assert pieces[0][0] == 0
    for (x, width), (following, _) in pairwise(pieces):
        assert following == pytest.approx(x + width, abs=1e-9)
    assert sum(width for _, width in pieces) == pytest.approx(100, abs=1e-9)


def test_edges_are_exact() -> None:
    assert edges([1 / 3, 1 / 3, 1 / 3], 100) == [0, 33, 67, 100]


def test_a_bar_begins_where_it_is_told() -> None:
    drawn = bar((Segment(kind="idle", ratio=0.25),), label="a quarter", start=0.5)
    assert rects(drawn) == [(50, 25)]
    assert 'aria-label="a quarter"' in drawn


def test_columns_are_as_high_as_their_values() -> None:
    path = re.findall(r"M(\d+) 100v-([\d.]+)", columns([1, 2, 0, 4], "x"))
    assert path == [("0", "25"), ("1", "50"), ("3", "100")]


def test_the_plan_and_each_finding_are_on_the_page_once() -> None:
    report = straggler()
    page = shown(report)
    now = report.plan.step_ns
    for repair in report.plan.repairs:
        step = f"{format_duration(now)} → {format_duration(repair.step_ns)}"
        assert page.replace("\u00a0", " ").count(step) == 1
        now = repair.step_ns
    text = Seen(page).text
    for one in report.findings:
        assert text.count(one.message) == 1


def test_cells_of_a_heat_map_have_the_shade_of_their_value() -> None:
    values = np.array([[0.0, 0.1, 0.1], [0.8, np.nan, 0.45]])
    paths = strokes(_shades(values, 0.0, 0.8), SHADES)
    assert paths[0] == "M0 0.5h3"  # 0 and an eighth are in the first of eight shades
    assert paths[7] == "M0 1.5h1"
    assert paths[4] == "M2 1.5h1"
    assert sum(map(bool, paths)) == 3


def test_cells_that_hardly_differ_look_alike() -> None:
    assert _bounds(np.array([[0.5, 0.5 + LEAST_SPREAD / 2]]))[0] == 0
    assert _bounds(np.array([[0.5, 0.7]])) == (0.5, 0.7)


def test_a_heat_map_says_each_value_again() -> None:
    report = made(9, 3)
    heats = heats_of(report)
    assert heats is not None
    figure = heat_figure(heats[0], "x")
    (text,) = re.findall(r'data-values="([0-9a-z]*)"', figure)
    for i, cell in enumerate(report.breakdown.steps):
        lost = 1 - cell.computation_ns / cell.span_ns
        assert int(text[2 * i : 2 * i + 2], 36) / 1_000 == pytest.approx(lost, abs=0.0006)


def test_the_pace_of_a_rank_is_relative_to_the_median_of_its_step() -> None:
    report = made(9, 3)
    heats = heats_of(report)
    assert heats is not None
    by_step = [[c.computation_ns for c in report.breakdown.steps if c.step == s] for s in range(3)]
    for rank in range(9):
        for step in range(3):
            expected = by_step[step][rank] / float(np.median(by_step[step]))
            assert heats[1].values[rank, step] == pytest.approx(expected)


def test_too_many_steps_are_put_together_without_losing_any() -> None:
    report = made(64, 1_500)
    heats = heats_of(report)
    assert heats is not None
    lost: Heat = heats[0]
    assert lost.values.size <= MAX_CELLS
    assert lost.grid.columns[0] == "0 to 1"
    assert lost.grid.columns[-1].endswith("1499")
    cells = report.breakdown.steps[:2]
    expected = np.mean([1 - c.computation_ns / c.span_ns for c in cells])
    assert lost.values[0, 0] == pytest.approx(expected)


def test_a_node_has_the_mean_of_its_ranks_and_the_pace_of_the_slowest() -> None:
    report = made(80, 3)
    heats = node_heats_of(report)
    assert heats is not None
    lost, pace = heats
    assert lost.grid.rows == tuple(f"node-{i}" for i in range(10))
    steps = {(c.rank, c.step): c for c in report.breakdown.steps}
    for node in range(10):
        for step in range(3):
            cells = [steps[rank, step] for rank in range(8 * node, 8 * node + 8)]
            shares = [1 - c.computation_ns / c.span_ns for c in cells]
            assert lost.values[node, step] == pytest.approx(sum(shares) / 8)
            middle = float(np.median([steps[rank, step].computation_ns for rank in range(80)]))
            slowest = max(c.computation_ns for c in cells)
            assert pace.values[node, step] == pytest.approx(slowest / middle)


def test_a_small_job_and_one_of_unknown_nodes_have_no_map_by_node() -> None:
    assert node_heats_of(made(64, 3)) is None
    report = made(80, 3)
    unknown = msgspec.structs.replace(report, run=run_info(tuple(range(80)), nodes={}))
    assert node_heats_of(unknown) is None
    assert "Lost time by node" not in shown(unknown)
    assert "Lost time by node" in shown(report)


def test_a_map_names_the_first_row_of_each_node() -> None:
    heats = heats_of(made(20, 3))
    assert heats is not None
    assert heats[0].grid.groups == ((0, "node-0"), (8, "node-1"), (16, "node-2"))
    figure = heat_figure(heats[0], "x")
    assert figure.count('class="node"') == 2  # lines between them
    assert "[[0,&quot;node-0&quot;],[8,&quot;node-1&quot;],[16,&quot;node-2&quot;]]" in figure


def test_a_slow_worker_is_dark_in_its_stage_and_replica() -> None:
    slow = {(stage, replica): 1.0 for stage in range(2) for replica in range(3)}
    slow[1, 2] = 1.5
    workers = tuple(
        WorkerSlowdown(rank=3 * stage + replica, stage=stage, dp_rank=replica, slowdown=slowdown)
        for (stage, replica), slowdown in slow.items()
    )
    figure = workers_figure(WhatIfResult(workers=workers))
    assert '<path d="M2 1.5h1" class="h7"/>' in figure
    assert 'data-values="0000000000dw"' in figure  # 500 per mille
    assert workers_figure(WhatIfResult()) == ""
    one_replica = tuple(worker for worker in workers if worker.dp_rank == 2)
    assert workers_figure(WhatIfResult(workers=one_replica)) == ""  # the table has each stage


def test_marks_of_collectives_stand_at_their_size_and_time() -> None:
    small = all_reduce(bytes=1_000, transfer_ns_median=1_000)
    large = all_reduce(bytes=1_000_000, transfer_ns_median=1_000_000)
    middle = all_reduce(bytes=31_623, transfer_ns_median=31_623)
    figure = collectives_figure((small, large, middle))
    assert 'class="chart"' in figure  # drawn as wide as a small screen
    marks = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="[\d.]+" class="mark"', figure)[:3]
    (x0, y0), (x1, y1), (x2, y2) = [(float(x), float(y)) for x, y in marks]
    assert (x2, y2) == pytest.approx(((x0 + x1) / 2, (y0 + y1) / 2), abs=0.05)
    assert x0 < x1
    assert y0 > y1
    assert "polyline" not in figure


def test_the_fabrics_line_is_what_its_bandwidth_promises() -> None:
    slow = all_reduce(transfer_ns_median=400, busbw_bytes_per_s=1e9, expected_busbw_bytes_per_s=4e9)
    assert expected_ns(slow) == 100
    assert expected_ns(all_reduce()) is None
    assert "polyline" in collectives_figure((slow,))


def product(name: str, flop: int, num_bytes: int, flops: float, **fields) -> OperatorRow:
    known = {"category": "gemm", "part": "forward", "num_calls": 1, "total_ns": 1_000}
    known |= {"inputs": "bf16[8, 8]", "flop": flop, "bytes": num_bytes, "flops": flops}
    return OperatorRow(name=name, **known | fields)


ROOFS = (Roof(dtype="bf16", flops=1e15),)


def computation(*rows: OperatorRow, roofs=ROOFS, memory=1e12):
    return ComputationResult(
        ranks=(0,),
        num_steps=1,
        total_ns=sum(row.total_ns for row in rows),
        operators=rows,
        roofs=roofs,
        memory_bytes_per_s=memory,
    )


def places(figure: str) -> list[tuple[float, float]]:
    marks = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="[\d.]+" class="mark"', figure)
    return [(float(x), float(y)) for x, y in marks]


def roofs_of(figure: str) -> list[list[tuple[float, ...]]]:
    lines = re.findall(r'<polyline points="([^"]+)"', figure)
    return [[tuple(map(float, one.split(","))) for one in line.split()] for line in lines]


def test_operators_at_the_limits_stand_on_the_lines_of_the_roofline() -> None:
    by_memory = product("aten::mm", 10_000, 1_000, 1e13)  # 10 FLOP per byte at 1 TB/s
    at_the_ridge = product("aten::bmm", 1_000_000, 1_000, 1e15)
    by_computation = product("aten::addmm", 10_000_000, 1_000, 1e15)
    figure = roofline_figure(computation(by_memory, at_the_ridge, by_computation))
    (x0, y0), ridge, (x2, y2) = places(figure)[:3]
    slope, level = roofs_of(figure)
    assert slope[1] == level[0] == pytest.approx(ridge, abs=0.02)
    assert y2 == pytest.approx(level[1][1], abs=0.02)
    assert x0 < ridge[0] < x2 < level[1][0]
    share = (x0 - slope[0][0]) / (slope[1][0] - slope[0][0])
    assert y0 == pytest.approx(slope[0][1] + share * (slope[1][1] - slope[0][1]), abs=0.02)


def test_only_roofs_of_types_that_operators_multiply_are_drawn() -> None:
    roofs = tuple(Roof(dtype=kind, flops=flops) for kind, flops in (("bf16", 1e15), ("fp8", 2e15)))
    figure = roofline_figure(computation(product("aten::mm", 10, 1, 1e12), roofs=roofs))
    assert "bf16 1 PFLOP/s" in figure
    assert "fp8" not in figure


def test_on_an_unknown_gpu_operators_stand_without_lines() -> None:
    figure = roofline_figure(computation(product("aten::mm", 10, 1, 1e12), roofs=(), memory=None))
    assert len(places(figure)) == 2  # one of them in the legend
    assert roofs_of(figure) == []
    assert "bench --compute" in figure


def test_numbers_of_marks_that_overlap_stand_together_and_the_list_has_them_all() -> None:
    rows = [product(f"aten::mm{n}", 10, 1, 1e12 * (1 + n / 1_000)) for n in range(3)]
    rows.append(product("aten::bmm", 1_000, 1, 1e14))
    figure = roofline_figure(computation(*rows))
    assert ">1, 2, 3</text>" in figure
    assert ">4</text>" in figure
    assert figure.count("<li>aten::") == 4


def test_impossible_numbers_and_unknown_ones_have_no_place_in_the_roofline() -> None:
    nothing = computation(
        product("aten::mm", 10, 1, float("inf")),
        product("aten::mm", 10, 0, 1e12),
        product("aten::mm", 10, 1, 1e12, total_ns=-5),
        product("aten::add", None, 1, None),
    )
    assert roofline_figure(nothing) == ""
    good = product("aten::mm", 10, 1, 1e12)
    for roof, memory in ((float("inf"), 1e12), (-1.0, 1e12), (1e15, float("nan")), (1e15, -1.0)):
        result = computation(good, roofs=(Roof(dtype="bf16", flops=roof),), memory=memory)
        assert roofs_of(roofline_figure(result)) == []


def test_slots_of_a_pipeline_are_as_long_as_their_time() -> None:
    figure = schedule_figure(pipeline())
    boxes = re.findall(r'x="([\d.]+)%" y="(\d+)" width="([\d.]+)%" height="26" class="w-', figure)
    assert boxes == [("0", "0", "20"), ("25", "30", "25"), ("50", "30", "50")]


def test_a_number_appears_at_the_first_size_that_has_room_for_it() -> None:
    width = 790
    rows = [
        PictureRow(rank=0, stage=0, kind="forward", micro_batch=i, start_ns=start, end_ns=end)
        for i, (start, end) in enumerate(((0, 12), (12, 20), (20, 24), (24, 25), (25, width)))
    ]
    figure = schedule_figure(msgspec.structs.replace(pipeline(), picture=tuple(rows)))
    numbers = re.findall(r"<text x=\"[\d.]+%\" y=\"17\"(?: class=\"(\w+)\")?>(\d)<", figure)
    assert numbers == [("", "0"), ("z2", "1"), ("z4", "2"), ("z16", "3"), ("", "4")]


def test_of_many_pipelines_those_with_the_largest_bubbles_are_drawn() -> None:
    slots = tuple(pipeline().picture[0] for _ in range(MAX_SLOTS // 4))
    groups = [
        msgspec.structs.replace(pipeline(), picture=slots, bubble_fraction=share / 100)
        for share in (5, 30, 10, 20, 1, 40)
    ]
    figure = schedule_figures(groups)
    assert re.findall(r"<figcaption>.*?bubble ([\d.]+)", figure) == ["40.0", "30.0", "20.0", "10.0"]
    assert "Not drawn: 2 other pipelines with smaller bubbles." in figure
    assert schedule_figures([msgspec.structs.replace(pipeline(), picture=())]) == ""


def test_one_pipeline_is_drawn_however_large() -> None:
    slots = tuple(pipeline().picture[0] for _ in range(MAX_SLOTS + 1))
    assert "<figure" in schedule_figures([msgspec.structs.replace(pipeline(), picture=slots)])


def test_each_rules_page_becomes_html_without_dead_links() -> None:
    for rule in all_rules():
        page = rule_page(rule.code)
        seen = Seen(page)
        assert "h1" not in seen.names
        assert "What it detects" in seen.text
        assert all(link.startswith("http") for link in seen.links), rule.code
    assert rule_page("XYZ999") == ""


def test_markdown_of_a_plug_in_is_not_trusted() -> None:
    text = "# t\n\n<script>x</script> [a](javascript:x) ![i](http://h/i.png) [w](https://h)"
    seen = Seen(markdown_html(text))
    assert not {"script", "img"} & seen.names
    assert seen.links == ["https://h"]


@pytest.mark.parametrize(
    ("shares", "name", "said"),
    [
        ("node", "n7", "reason, node n7: "),
        ("stage", "stage 0", "reason, stage 0: "),
        ("group", "one tp group", "reason, one tp group: "),
        ("", "", "reason: "),
    ],
)
def test_what_slow_ranks_share_is_named_once(shares: str, name: str, said: str) -> None:
    one = StragglerSet(
        ranks=(0, 1),
        shares=shares,
        name=name,
        pattern=StragglerPattern.PERSISTENT,
        cause=StragglerCause.SLOW_DEVICE,
        lost_ns_per_step=1_000_000,
        share_of_step_ratio=0.05,
        confidence=0.9,
        cause_confidence=0.7,
        scenario="",
    )
    assert f"Ranks 0-1 are slow for one {said}slow device" in _set(one, "step")


def test_steps_that_lost_nothing_to_late_ranks_are_not_ranked():
    lost, nothing = stragglers_of({1: 5_000_000}), stragglers_of({1: 5_000_000})
    blames = [StepBlame(step=n, lost_ns=0, rank=None, rank_lost_ns=0) for n in (7, 8)]
    nothing = msgspec.structs.replace(nothing, steps=tuple(blames))
    some = (msgspec.structs.replace(blames[0], lost_ns=1_000_000), blames[1])
    assert "Most in step 7" in stragglers_figure(msgspec.structs.replace(lost, steps=some), "step")
    assert "Most in step" not in stragglers_figure(nothing, "step")
