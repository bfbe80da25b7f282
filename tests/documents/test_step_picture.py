"""The drawn step in a page: the static picture, its data, its table; hostile names."""

from __future__ import annotations

import json
import re
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

import distprof
from distprof.documents.html.picture import Evidence, picture_figure, pictures_figure
from distprof.documents.page import step_bar
from distprof.documents.saved import Report
from distprof.formats import RenderOptions, find_reporter
from distprof.rules.base import Finding
from distprof.sections.picture import (
    COMPUTATION,
    TRANSFER,
    WAIT,
    AlikeRanks,
    DrawnLane,
    DrawnRank,
    StepPicture,
    packed_split,
    pieces_of,
)
from distprof.units import format_duration
from distprof.verbs.compare import Comparison
from distprof.verbs.compare.show import COMPARISON, compare_reports
from tests.documents.html_pages import Seen
from tests.documents.samples import pipeline
from tests.sections.joined import joined_run
from tests.simulator import SimulatedJob, SlowDevice

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\x1b[31m&amp;"


@cache
def report(num_nodes: int = 3) -> Report:
    """A job whose rank 3 is slow."""
    job = SimulatedJob(
        num_nodes=num_nodes,
        ranks_per_node=8,
        num_steps=4,
        faults=(SlowDevice(rank=3, factor=1.5),),
    )
    return distprof.analyze(joined_run(job.run()))


def page(shown: Report) -> str:
    return find_reporter("html")(shown, RenderOptions())


def data_of(text: str) -> dict:
    (found,) = re.findall(r'<script type="application/json" class="data">(.*?)</script>', text)
    return json.loads(found)


def test_the_page_holds_the_step_before_what_to_do() -> None:
    text = page(report())
    assert text.index('id="picture"') < text.index("What to do")
    seen = Seen(text)
    assert "▲ rank 3" in seen.text
    assert "After repair 1" in seen.text
    assert seen.ids.count("picture") == 1


def test_without_a_script_rows_waits_and_the_repaired_step_are_drawn() -> None:
    drawn = report().picture
    text = picture_figure(drawn, late=(3,))
    static = text[text.index('class="static"') : text.index("<script")]
    repaired = len(drawn.steps[0].repaired[0].ranks)
    assert static.count('class="k-rest"') == len(drawn.groups) + repaired
    assert static.count('class="arrow"') >= 1
    assert 'class="k-computation"' in static
    assert 'class="k-exposed_wait"' in static


def test_the_script_gets_what_the_report_holds() -> None:
    data = data_of(page(report()))
    assert data["late"] == [3]
    assert [rank["rank"] for rank in data["steps"][0]["ranks"]] == list(range(24))
    assert data["found"][0]["ranks"] == [3]
    assert len(data["classes"]) == len(data["kinds"])
    assert f'id="{data["found"][0]["anchor"]}"' in page(report())


def test_a_table_says_the_same() -> None:
    drawn = report(1).picture
    seen = Seen(picture_figure(drawn, late=(3,)))
    assert "The same as a table" in seen.text
    assert "3 ▲ late" in seen.text
    assert "rank 3 begins last" in seen.text


@pytest.mark.parametrize(("with_slots", "is_drawn"), [((0, 1), False), ((0,), True), ((), True)])
def test_a_pipeline_whose_slots_the_step_shows_is_not_drawn_again(
    with_slots: tuple[int, ...], is_drawn: bool
) -> None:
    drawn = report(1).picture
    step = drawn.steps[0]
    lane = DrawnLane(name="pipeline slots", pieces=step.ranks[0].lanes[0].pieces)
    ranks = (
        replace(rank, lanes=(lane,) if rank.rank in with_slots else rank.lanes)
        for rank in step.ranks
    )
    shown = replace(
        report(1),
        picture=replace(drawn, steps=(replace(step, ranks=tuple(ranks)),)),
        pipeline=replace(report(1).pipeline, groups=(pipeline(),)),
    )
    assert ('<figure class="schedule"' in page(shown)) is is_drawn
    part = find_reporter("html")(shown, RenderOptions(sections=("pipeline",)))
    assert '<figure class="schedule"' in part  # of the section alone, which has no picture


def test_hostile_names_stay_text() -> None:
    drawn = report(1).picture
    step = drawn.steps[0]
    wait = replace(step.waits[0], name=HOSTILE)
    repaired = replace(step.repaired[0], done=HOSTILE)
    names = (HOSTILE,) * len(step.names)
    hostile = replace(step, waits=(wait,), repaired=(repaired,), names=names)
    shown = replace(report(1), picture=replace(drawn, axes=(HOSTILE,), steps=(hostile,)))
    text = page(shown)
    Seen(text)
    assert "<img" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert data_of(text)["steps"][0]["names"][0].startswith("</script><img")


def test_a_damaged_picture_of_a_saved_report_is_drawn_as_far_as_it_goes() -> None:
    drawn = report(1).picture
    step = drawn.steps[0]
    broken = [replace(rank, split="!" + rank.split[:7], lanes=()) for rank in step.ranks]
    damaged = replace(drawn, steps=(replace(step, ranks=tuple(broken)),))
    Seen(picture_figure(damaged, found=[Evidence("x", (99,), ())]))


def test_a_report_without_traces_has_no_picture() -> None:
    bare = replace(report(1), picture=replace(report(1).picture, steps=()))
    assert 'id="picture"' not in page(bare)


@cache
def pair() -> Comparison:
    """A job of 24 ranks and one of 8 ranks, both with a slow rank 3."""
    return compare_reports(report(), report(1))


def test_a_comparison_draws_both_steps_on_one_scale() -> None:
    first, second = pair().pictures
    text = COMPARISON.reporter("html")(pair(), RenderOptions())
    (static,) = re.findall(r'<div class="static">.*?</div>', text)
    assert format_duration(max(one.steps[0].span_ns for one in (first, second))) in static
    rows = len(first.groups) + len(second.groups)
    assert static.count('class="k-rest"') == rows
    assert all(not rank.lanes for one in (first, second) for rank in one.steps[0].ranks)
    assert len(first.steps[0].ranks) == len(report().picture.groups) < 24
    assert re.search(r"\d+(-\d+)?,?.* \(rank \d+\)", Seen(text).text), "a row names its ranks"


def test_the_second_step_has_the_classes_and_the_units_of_the_first() -> None:
    """The axis ``other`` comes first in the second run only, whose unit is half as long."""
    (step,) = report(1).picture.brief().steps
    kinds, ends = np.array([COMPUTATION, TRANSFER, TRANSFER + 1]), np.array([200, 300, 500])
    rank = DrawnRank(rank=0, split=packed_split(kinds, ends, 0, 1))
    of_first = replace(step, unit_ns=20, ranks=(rank,), waits=(), mean_ns=10_000_000)
    of_second = replace(of_first, unit_ns=10, mean_ns=5_000_000)
    alone = (AlikeRanks(ranks=(0,), shown=0),)
    first = StepPicture(axes=("dp", "tp"), groups=alone, steps=(of_first,))
    second = StepPicture(axes=("other", "tp"), groups=alone, steps=(of_second,))
    text = pictures_figure([("first", first), ("second", second)])
    data = data_of(text)
    ((below,),) = data["below"]
    (drawn,) = below["ranks"]
    assert data["classes"][TRANSFER:] == [
        f"exposed transfer, {name}" for name in ("dp", "tp", "other")
    ]
    assert pieces_of(drawn["split"]) == [
        (0, 100, COMPUTATION), (100, 150, TRANSFER + 2), (150, 250, TRANSFER + 1)
    ]  # fmt: skip
    assert "to the second: -5.00 ms." in Seen(text).text.replace("−", "-")


def test_what_changed_between_two_steps_is_said_by_class() -> None:
    """Two of three ranks wait 3 ms less; a row stands for all its ranks."""
    (step,) = report(1).picture.brief().steps

    def drawn(wait: int) -> StepPicture:
        splits = [([COMPUTATION, WAIT], [4_000, 4_000 + wait]), ([COMPUTATION], [9_000])]
        ranks = tuple(
            DrawnRank(rank=rank, split=packed_split(np.array(kinds), np.array(ends), 0, 1))
            for rank, (kinds, ends) in enumerate(splits)
        )
        of = replace(step, unit_ns=1_000, ranks=ranks, waits=(), mean_ns=6_000_000 + 700 * wait)
        groups = (AlikeRanks(ranks=(0, 2), shown=0), AlikeRanks(ranks=(1,), shown=1))
        return StepPicture(groups=groups, steps=(of,))

    text = Seen(pictures_figure([("first", drawn(4_000)), ("second", drawn(1_000))])).text
    assert "waiting for late ranks -2.00 ms." in text.replace("−", "-")


def test_a_run_without_a_picture_leaves_that_of_the_other() -> None:
    drawn = report(1).picture.brief()
    data = data_of(pictures_figure([("first", StepPicture()), ("second", drawn)]))
    assert (data["below"], data["said"]) == ([[]], "second")
    assert pictures_figure([("first", StepPicture()), ("second", StepPicture())]) == ""


def test_a_finding_on_all_ranks_and_steps_has_no_place_in_the_picture() -> None:
    (first, *_) = report(1).findings
    everywhere = replace(first, ranks=tuple(range(8)), steps=())
    drawn = report(1).picture.steps[0].step
    at_once = replace(first, ranks=(), steps=(drawn,))
    for finding, places in ((everywhere, 0), (at_once, 1), (first, 1)):
        shown = replace(report(1), findings=(finding,))
        assert len(data_of(page(shown))["found"]) == places


def test_a_headline_on_some_steps_is_drawn_in_one_of_them_with_its_repair() -> None:
    """A repair of what only the longest step has would leave a usual one as it was."""
    shown = report(1)
    usual, longest = shown.picture.steps
    assert len(longest.repaired) == len(usual.repaired) > 0
    first, *others = shown.findings
    for told, steps in (((), [usual, longest]), ((longest.step,), [longest, usual])):
        found = (replace(first, steps=told), *others)
        data = data_of(page(replace(shown, findings=found)))
        assert [one["step"] for one in data["steps"]] == [one.step for one in steps]
        assert data["captions"][0].startswith(f"Step {steps[0].step}, ")
        assert data["below"][0][0]["span_ns"] == steps[0].repaired[0].span_ns


def test_the_plan_counts_all_steps_and_the_picture_says_so() -> None:
    """Both numbers are in one line where they differ, so that no reader looks for an error."""
    shown = report(1)
    (repair,) = shown.plan.repairs[:1]
    plan = replace(shown.plan, step_ns=98_700_000, repairs=(replace(repair, step_ns=65_400_000),))
    data = data_of(page(replace(shown, plan=plan)))
    assert data["captions"][0].endswith("; mean of all steps: 98.7 ms.")
    assert data["below"][0][0]["title"].endswith(f"; mean of all steps: 65.4 ms ({repair.done})")
    (step, *_) = shown.picture.steps
    same = replace(
        shown.plan,
        step_ns=step.mean_ns,
        repairs=(replace(repair, step_ns=step.repaired[0].mean_ns),),
    )
    data = data_of(page(replace(shown, plan=same)))
    assert "mean of all" not in data["captions"][0] + data["below"][0][0]["title"]


def test_the_text_draws_the_step_and_the_rank_of_its_headline() -> None:
    shown = report(1)
    usual, longest = shown.picture.steps
    first = shown.findings[0]
    for steps, ranks, said, drawn in (
        ((), (5,), "", [0, 5]),
        ((longest.step,), (), f"step {longest.step}, {format_duration(longest.mean_ns)}", [0, 3]),
        (tuple(range(99)), tuple(range(8)), "", [0, 3]),
        ((usual.step + 99,), (), f"step {usual.step}, a usual one", [0, 3]),
    ):
        assert bar_of(shown, replace(first, steps=steps, ranks=ranks)) == (said, drawn)
    stall = replace(first, evidence=("step_log.stalls",), ranks=())
    assert bar_of(shown, stall)[0] == f"step {usual.step}, a usual one"


def bar_of(shown: Report, found: Finding) -> tuple[str, list[int]]:
    bar = step_bar(replace(shown, findings=(found, *shown.findings[1:])))
    assert bar is not None
    return bar.drawn, [strip.rank for strip in bar.strips]


def test_a_page_of_chosen_sections_has_no_picture() -> None:
    text = find_reporter("html")(report(1), RenderOptions(sections=("kernels",)))
    assert 'id="picture"' not in text
