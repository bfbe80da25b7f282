"""Figures of the verbs: found where they are declared, drawn to scale, safe whatever names say."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from distprof.documents.html.blocks import changes, interval_bar
from distprof.documents.html.chart import HEIGHT, WIDTH, Chart, nice_ticks
from distprof.documents.html.page import figures_of
from distprof.formats import RenderOptions
from distprof.verbs.compare import PartChange, StepChange
from distprof.verbs.compare.figures import medians_figure, pair_figure
from distprof.verbs.gate import decide
from distprof.verbs.gate.check import MetricCheck
from distprof.verbs.gate.figures import metrics_figure, tolerances_worse
from distprof.verbs.hang import GroupProgress, HangReport, HangState, RankPosition
from distprof.verbs.hang.figures import places_figure, progress_figure
from distprof.verbs.history import HistoryPoint
from distprof.verbs.history.figures import series_figure
from distprof.verbs.plan.figures import memory_figure, steps_figure
from distprof.verbs.plan.search import make_plan
from distprof.verbs.sweep.figures import curve_figure, losses_figure
from distprof.verbs.sweep.measure import report_scaling
from docs.documents import ALL_DOCUMENTS
from tests.contracts.test_documents import SAMPLES
from tests.documents.html_pages import Seen
from tests.documents.samples import MS
from tests.flight_jobs import diagnosed, job, op
from tests.verbs.plan.jobs import question
from tests.verbs.sweep.sweeps import parts, runs

BEYOND = "</script><img src=x onerror=alert(1)><!--\"'`\u202e\x00\x85"
FIGURES = {
    "check": ["metrics", "changes"],
    "comparison": ["both-steps", "changes"],
    "hang": ["places", "progress"],
    "history": ["over-time"],
    "plan": ["steps", "memory"],
    "scaling": ["curve", "losses"],
}
"""Document to the parts of its page that are figures."""
DOCUMENTS = {document.name: document for document in ALL_DOCUMENTS}


def page(name: str, result: msgspec.Struct) -> str:
    return DOCUMENTS[name].reporter("html")(result, RenderOptions())


def rects(svg: str) -> list[tuple[float, float]]:
    found = re.findall(r'x="([\d.]+)%" width="([\d.]+)%" height="100%"', svg)
    return [(float(x), float(width)) for x, width in found]


def by_row(figure: str) -> list[str]:
    return figure.split('<div class="row">')[1:]


# Found where they are declared


@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_of_a_verb_are_parts_of_its_page(name: str) -> None:
    result = SAMPLES[name]()
    found = figures_of(result)
    assert [part.anchor for part in found] == FIGURES[name]
    seen = Seen(page(name, result))
    assert set(FIGURES[name]) <= set(seen.ids)
    assert len(seen.ids) == len(set(seen.ids))


@pytest.mark.parametrize("name", sorted(set(DOCUMENTS) - set(FIGURES)))
def test_other_documents_have_none(name: str) -> None:
    assert figures_of(SAMPLES[name]()) == ()


@pytest.mark.parametrize("name", FIGURES)
def test_every_picture_has_a_name_and_a_caption(name: str) -> None:
    for part in figures_of(SAMPLES[name]()):
        pictures = re.findall(r"<svg[^>]*>", part.content)
        assert pictures
        assert all('role="img" aria-label="' in one or "aria-hidden" in one for one in pictures)
        assert part.content.count("<figure") == part.content.count("<figcaption>")


@pytest.mark.parametrize("name", FIGURES)
def test_text_and_markdown_do_not_draw_them(name: str) -> None:
    for form in ("text", "md"):
        assert "<svg" not in DOCUMENTS[name].reporter(form)(SAMPLES[name](), RenderOptions())


def hang_with(name: str) -> HangReport:
    report = SAMPLES["hang"]()
    assert isinstance(report, HangReport)
    return replace(
        report,
        groups=tuple(replace(one, description=name, group=name) for one in report.groups),
        ranks=tuple(replace(one, host=f"{one.rank // 8}{name}") for one in report.ranks),
    )


def renamed(document: str, name: str) -> msgspec.Struct:
    """The sample with a name wherever a figure shows one."""
    result = SAMPLES[document]()
    if document == "hang":
        return hang_with(name)
    if document == "check":
        return replace(result, metrics=tuple(replace(m, label=name) for m in result.metrics))
    if document == "comparison":
        return replace(result, parts=tuple(replace(p, part=name) for p in result.parts))
    if document == "scaling":
        laws = tuple(replace(law, law=name) for law in result.scaling.laws)
        return replace(result, scaling=replace(result.scaling, laws=laws))
    if document == "history":
        series = replace(
            result.series[0],
            fingerprint=replace(result.series[0].fingerprint, strategy=name),
            points=tuple(replace(p, commit=name) for p in result.series[0].points),
        )
        return replace(result, label=name, series=(series,))
    return replace(result, model=replace(result.model, name=name))


@pytest.mark.parametrize("document", FIGURES)
def test_hostile_names_bring_no_element_or_attribute(document: str) -> None:
    text = page(document, renamed(document, BEYOND))
    plain, seen = Seen(page(document, renamed(document, "harmless"))), Seen(text)
    assert seen.names <= plain.names
    assert seen.attributes <= plain.attributes
    assert text.count("</script>") == 1
    assert "onerror=alert(1)" in text  # as text


NUMBERS = (0, -1, 1, 10**18, -(10**18), 1e308, -1e308, 1e-300)


def with_numbers(value: Any, draw: random.Random, share: float) -> Any:
    """The same with some of its numbers replaced, and some lists cut short."""
    if isinstance(value, dict):
        return {key: with_numbers(each, draw, share) for key, each in value.items()}
    if isinstance(value, list):
        kept = draw.randrange(len(value) + 1) if draw.random() < share / 4 else len(value)
        return [with_numbers(each, draw, share) for each in value[:kept]]
    if isinstance(value, bool) or not isinstance(value, int | float) or draw.random() > share:
        return value
    number = draw.choice(NUMBERS)
    return int(max(min(number, 10**18), -(10**18))) if isinstance(value, int) else float(number)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("name", FIGURES)
def test_a_saved_result_with_absurd_numbers_is_drawn_or_left_out(name: str, share: float) -> None:
    """A file may say anything: no traceback, and no coordinate that is not a number."""
    kind = type(SAMPLES[name]())
    saved = msgspec.json.decode(msgspec.json.encode(SAMPLES[name]()))
    for seed in range(40):
        result = msgspec.convert(with_numbers(saved, random.Random(seed), share), kind)
        for part in figures_of(result):
            Seen(part.content)
            places = r' (?:[xy][12]?|c[xy]|r|width|height|points|d)="[^"]*(?:nan|inf)'
            assert re.findall(places, part.content) == []
            assert re.findall(r' (?:width|height|r)="-', part.content) == []


# Bars


def test_changes_begin_where_the_one_before_ended_and_the_sum_where_they_began() -> None:
    figure = changes([("computation", 30 * MS), ("waiting", -10 * MS), ("copies", 20 * MS)])
    assert rects(figure) == [(0, 75), (50, 25), (50, 50), (0, 100)]
    assert re.findall(r'class="value">([^<]*)<', figure) == [
        "+30.0 ms",
        "−10.0 ms",
        "+20.0 ms",
        "+40.0 ms",
    ]
    assert figure.count('class="k-better"') == 1


def test_a_loss_and_a_gain_of_the_same_size_sum_to_the_line() -> None:
    figure = changes([("a", -5 * MS), ("b", 5 * MS)])
    assert rects(figure) == [(0, 100), (0, 100)]
    assert set(re.findall(r'<line x1="([\d.]+)%"', figure)) == {"100"}


def test_an_interval_stands_at_its_shares() -> None:
    drawn = interval_bar(0.5, (0.25, 0.75), label="x", zone=(0.1, 0.3), marks=(0.2,))
    assert '<rect x="10%" width="20%"' in drawn
    assert '<line x1="25%" x2="75%" y1="50%"' in drawn
    assert '<line x1="20%" x2="20%" y1="0"' in drawn
    assert 'cx="50%"' in drawn


# Axes


def test_a_value_stands_between_its_ends() -> None:
    chart = Chart(left=0, right=10, least=100, most=200)
    left, middle, right = (chart.x(value) for value in (0, 5, 10))
    assert middle == (left + right) / 2
    assert 0 < left < right < WIDTH
    assert chart.y(150) == (chart.y(100) + chart.y(200)) / 2
    assert 0 < chart.y(200) < chart.y(100) < HEIGHT
    assert chart.y(1e9) == chart.y(200)


def test_values_that_are_all_the_same_are_drawn() -> None:
    chart = Chart(left=3, right=3, least=7, most=7)
    assert chart.x(3) >= 0
    assert chart.y(7) >= 0
    assert nice_ticks(7, 7) == [7]
    assert nice_ticks(-1e308, 1e308) == [-1e308]


@pytest.mark.parametrize(
    ("ends", "ticks"),
    [
        ((0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ((97, 133), [100, 110, 120, 130]),
        ((-2, 2), [-2, -1, 0, 1, 2]),
    ],
)
def test_ticks_are_round_and_inside(ends: tuple[float, float], ticks: Sequence[float]) -> None:
    assert nice_ticks(*ends, 5) == pytest.approx(ticks)


# Compare


def test_both_steps_are_drawn_on_one_scale() -> None:
    found = (
        PartChange(part="computation", first_ns=60, second_ns=60, change_ns=0),
        PartChange(part="exposed_wait", first_ns=20, second_ns=140, change_ns=120),
    )
    first, second = by_row(pair_figure(found))
    assert rects(first) == [(0, 30), (30, 10)]
    assert rects(second) == [(0, 30), (30, 70)]


def test_without_traces_only_the_medians_are_drawn() -> None:
    step = StepChange(
        first_ns=100,
        first_low_ns=90,
        first_high_ns=110,
        second_ns=190,
        second_low_ns=None,
        second_high_ns=None,
        change_ns=90,
        change_ratio=0.9,
        trend="slower",
    )
    assert pair_figure(()) == ""
    places = re.findall(r'cx="([\d.]+)%"', medians_figure(step))
    assert [float(place) for place in places] == pytest.approx([8 + 84 * 0.1, 92], abs=0.01)
    assert medians_figure(step).count('class="whisker"') == 1
    assert medians_figure(replace(step, second_ns=None)) == ""


# Check


def metric(name: str, change: float, **fields: object) -> MetricCheck:
    known = {
        "label": name,
        "unit": "ns",
        "state": "regressed",
        "scale": "ratio",
        "baseline": 1.0,
        "candidate": change,
        "low": None,
        "high": None,
        "p": 0.01,
        "tolerance": 0.02,
        "num_baseline": 3,
        "num_candidate": 3,
        "needed_repeats": None,
        "is_gated": True,
        "why": "",
    }
    return MetricCheck(metric=name, change=change, **{**known, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "change", "scale", "tolerances"),
    [
        ("step_time", 1.02, "ratio", 1),
        ("step_time", 1 / 1.02, "ratio", -1),
        ("efficiency", 0.98, "ratio", 1),
        ("overlap", -0.02, "difference", 1),
        ("bubble", 0.04, "difference", 2),
        ("bubble", 0.0, "difference", 0),
    ],
)
def test_a_change_is_drawn_in_tolerances_and_worse_is_right(
    name: str, change: float, scale: str, tolerances: float
) -> None:
    found = tolerances_worse(change, metric(name, change, scale=scale))
    assert found == pytest.approx(tolerances)


@pytest.mark.parametrize("loss", [1.01, 1.019, 1.021, 1.05])
def test_the_line_of_the_tolerance_is_where_the_decision_draws_it(loss: float) -> None:
    runs_before = [1.0, 1.0001, 0.9999] * 4
    decision = decide(
        runs_before,
        [loss * value for value in runs_before],
        tolerance=0.02,
        better="lower",
        scale="ratio",
        session_noise=0.0,
    )
    at = tolerances_worse(decision.change, metric("step_time", decision.change))
    assert at is not None
    assert (at > 1) is (decision.state == "regressed")


def test_metrics_that_this_version_does_not_know_are_not_drawn() -> None:
    assert tolerances_worse(1.1, metric("of_tomorrow", 1.1)) is None
    assert tolerances_worse(1.1, metric("step_time", 1.1, tolerance=0.0)) is None
    assert metrics_figure([metric("of_tomorrow", 1.1)], "x") == ""


def test_what_is_far_beyond_the_tolerance_stands_at_the_edge_and_the_caption_says_so() -> None:
    near = metrics_figure([metric("step_time", 1.03, low=1.02, high=1.04)], "x")
    far = metrics_figure([metric("step_time", 9.0, low=8.0, high=10.0)], "x")
    assert "at the edge" not in near
    assert "at the edge" in far
    assert 'cx="98%"' in far


# Scale


def swept(losses: Sequence[float] = (100, 125)) -> object:
    small = runs(2, losses[0], parts(computation=90, exposed_wait=10))
    large = runs(8, losses[1], parts(computation=95, exposed_transfer=20, host=10))
    return report_scaling([*small, *large], source="runs").scaling


def test_the_curve_marks_each_size_at_its_efficiency_below_the_ideal_line() -> None:
    figure = curve_figure(swept())
    (ideal,) = re.findall(r'y1="([\d.]+)" y2="[\d.]+" class="ideal"', figure)
    dots = re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="4.5"', figure)
    (x0, y0), (x1, y1) = [(float(x), float(y)) for x, y in dots]
    assert y0 == pytest.approx(float(ideal), abs=0.01)
    assert x0 < x1
    zero = HEIGHT - 46
    assert (zero - y1) / (zero - y0) == pytest.approx(0.8, abs=0.001)
    assert figure.count('class="whisker"') == 1  # the baseline is 1 by definition
    assert "law: Gustafson" in figure
    assert curve_figure(msgspec.structs.replace(swept(), sizes=())) == ""


def test_losses_of_a_size_add_up_to_what_it_lost() -> None:
    scaling = swept()
    figure = losses_figure(scaling.sizes)
    (row,) = by_row(figure)
    pieces = rects(row)
    (zero,) = re.findall(r'<line x1="([\d.]+)%"', row)
    whole = sum(abs(loss.ratio) for loss in scaling.sizes[-1].losses)
    gains = sum(width for x, width in pieces if x + width <= float(zero) + 0.01)
    losses = sum(width for x, width in pieces if x >= float(zero) - 0.01)
    lost = 1 - scaling.sizes[-1].efficiency
    assert (losses - gains) / 100 * whole == pytest.approx(lost, abs=1e-3)
    for (x, width), (following, _) in pairwise(pieces):
        assert following == pytest.approx(x + width, abs=0.011)


# History


def test_a_change_has_a_line_with_its_commit_and_points_keep_their_order() -> None:
    history = SAMPLES["history"]()
    figure = series_figure(history, history.series[0])
    xs = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', figure)]
    assert len(xs) == 7
    assert xs == sorted(xs)
    assert re.findall(r"<text[^>]*>(regressed at [^<]*)<", figure) == ["regressed at c4"]
    (line,) = re.findall(r'<g class="flag worse"><line x1="([\d.]+)"', figure)
    assert float(line) == xs[4]


def test_a_long_history_draws_the_newest_points_and_counts_the_others() -> None:
    history = SAMPLES["history"]()
    points = [
        HistoryPoint(commit=f"c{i}", label="", created_ns=i, num_runs=1, value=1e8)
        for i in range(5_000)
    ]
    series = replace(history.series[0], points=tuple(points))
    figure = series_figure(history, series)
    assert figure.count("<circle") == 400
    assert "4,600 earlier points not drawn" in figure
    assert len(figure) < 200_000


# Hang


def cells(figure: str) -> list[list[str]]:
    """Words of each cell, as the script tells them, row by row."""
    text = figure.replace("&quot;", '"')
    (values,) = re.findall(r'data-values="([0-9a-z]*)"', text)
    words = msgspec.json.decode(re.findall(r'data-words="(\[.*?\])"', text)[0])
    columns = msgspec.json.decode(re.findall(r'data-columns="(\[.*?\])"', text)[0])
    pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
    said = ["" if pair == "zz" else words[int(pair, 36)] for pair in pairs]
    return [said[i : i + len(columns)] for i in range(0, len(said), len(columns))]


def test_a_rank_that_launched_nothing_is_blamed_and_the_others_wait() -> None:
    dumps = job(
        {rank: [op(1), *([op(2, state="scheduled")] if rank != 2 else [])] for rank in range(4)}
    )
    report = diagnosed(dumps)
    assert report.culprits == (2,)
    rows = cells(places_figure(report))
    assert rows[2] == ["blamed: others wait for it", "behind the others"]
    assert [rows[rank] for rank in (0, 1, 3)] == [["", "waits in it"]] * 3


def hang_of(num_ranks: int) -> HangReport:
    """Ranks in groups of eight and of every eighth, rank 13 behind, rank 77 without a dump."""
    groups = [
        GroupProgress(
            group=f"{name}{number}",
            description=name,
            ranks=members,
            lowest_seq=40 if 13 in members else 42,
            highest_seq=42,
            behind=(13,) if 13 in members else (),
            unknown=(77,) if 77 in members else (),
            pending=1,
            waits_on="nccl:all_reduce",
        )
        for name, number, members in (
            *(("tp", i, tuple(range(8 * i, 8 * i + 8))) for i in range(num_ranks // 8)),
            *(("dp", i, tuple(range(i, num_ranks, 8))) for i in range(8)),
        )
    ]
    positions = [
        RankPosition(
            rank=rank,
            host=f"node-{rank // 8}",
            source="",
            entries=1,
            last_name="nccl:all_reduce",
            last_group="dp",
            last_seq=42,
            last_ns=1,
            waits_for=() if rank in (13, 77) else (13,),
        )
        for rank in range(num_ranks)
    ]
    return HangReport(
        distprof_version="1",
        source="dumps",
        state=HangState.STUCK,
        verdict="Stuck.",
        culprits=(13,),
        missing_dumps=(77,),
        groups=tuple(groups),
        ranks=tuple(positions),
    )


def test_groups_of_one_axis_share_a_column_and_ranks_stand_by_host() -> None:
    rows = cells(places_figure(hang_of(128)))
    assert len(rows) == 128
    assert {len(row) for row in rows} == {3}
    assert rows[13] == ["blamed: others wait for it", "behind the others", "behind the others"]
    assert rows[77][1:] == ["left no dump"] * 2
    assert rows[5] == ["", "launched the same as the others", "waits in it"]


@pytest.mark.parametrize(("num_ranks", "megabytes"), [(64, 1.5), (1_024, 4.0), (8_192, 4.0)])
def test_the_page_of_a_large_hang_stays_small(num_ranks: int, megabytes: float) -> None:
    report = hang_of(num_ranks) if num_ranks > 77 else replace(hang_of(64), missing_dumps=())
    assert len(page("hang", report).encode()) < megabytes * 1e6
    merged = cells(places_figure(report))
    assert len(merged) <= 2_048
    assert sum(row[0] != "" for row in merged) == 1  # the root is seen however many share its row


def test_groups_that_are_furthest_apart_come_first() -> None:
    even, two = hang_of(128).groups[5], hang_of(128).groups[1]
    five = replace(two, description="pp", lowest_seq=37)
    figure = progress_figure([even, two, five])
    assert [rects(row) for row in by_row(figure)] == [[(0, 100)], [(60, 40)], []]
    assert re.findall(r'class="value">([^<]*)<', figure) == ["37 to 42", "40 to 42", "all at 42"]


def test_no_hang_is_not_drawn() -> None:
    assert figures_of(replace(hang_of(128), state=HangState.NO_HANG)) == ()


# Plan


def test_steps_of_layouts_have_the_lengths_of_their_parts() -> None:
    plan = make_plan(question(model="llama3-70b", gpus=64), most=6)
    most = max(one.step_ns for one in plan.best)
    for one, row in zip(plan.best, by_row(steps_figure(plan.best)), strict=True):
        widths = [width for _, width in rects(row)]
        assert sum(widths) == pytest.approx(100 * one.step_ns / most, abs=0.02)
        assert widths[0] == pytest.approx(100 * one.compute_ns / most, abs=0.011)


def test_memory_beyond_the_limit_goes_beyond_its_line() -> None:
    plan = make_plan(question(gpus=64), most=3)
    total = plan.best[0].memory.total_bytes
    figure = memory_figure(plan.best[:1], total // 2)
    (limit,) = re.findall(r'<line x1="([\d.]+)%"', figure)
    assert float(limit) == pytest.approx(50, abs=0.01)
    assert sum(width for _, width in rects(figure)) == pytest.approx(100, abs=0.011)
    room = memory_figure(plan.best[:1], 2 * total)
    assert sum(width for _, width in rects(room)) == pytest.approx(50, abs=0.011)
