"""The page and the line: what they say first, at any width, with nothing hostile."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from distprof.formats import RenderOptions
from distprof.verbs.watch.follow import report_on
from distprof.verbs.watch.show import WATCH, LostRank, one_line, watch_verdict
from tests.verbs.watch.jobs import Playing
from tests.verbs.watch.samples import HOSTILE, ended, on_gpus, running


def text(report, width: int) -> str:
    return WATCH.reporter("text")(report, RenderOptions(width=width))


def test_the_page_says_first_who_is_late_by_how_much_and_why() -> None:
    lines = text(running(), 100).splitlines()
    assert lines[:2] == [
        "Rank 2 is late by 16.0 ms in each step, 20.0 % of its peers' own time",
        "It computes for longer.",
    ]
    page = "\n".join(lines)
    assert "10 steps/s, 100 ms per step; before: 100 ms (+0 %)" in page
    assert "throttled  1" in page
    assert "slow-rank" in page


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("report", [running(), ended()], ids=["running", "ended"])
def test_no_line_is_wider_than_the_terminal(report, width: int) -> None:
    assert max(map(len, text(report, width).splitlines())) <= width


def test_the_page_says_what_watching_costs() -> None:
    """Three of four ranks have measured it: 0, 0.1 and 0.2 %, each ± 0.2 %."""
    cost = running().probe_cost
    assert cost is not None
    assert (cost.ratio, cost.num_ranks) == (0.001, 3)
    page = " ".join(text(running(), 120).split())
    assert "probes cost 0.10 % of the step (−0.10 % to 0.30 %), measured on 3 ranks" in page


def test_at_80_columns_a_page_fits_on_a_screen_of_24_lines() -> None:
    assert len(text(running(), 80).splitlines()) <= 24


def test_nothing_hostile_reaches_the_terminal() -> None:
    report = replace(ended(), source=HOSTILE, notes=(HOSTILE,))
    for shown in (text(report, 80), WATCH.reporter("md")(report, RenderOptions())):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    assert "a\\x1b[2J\\u202eb" in text(report, 80)


def test_what_is_known_between_bounds_is_called_so() -> None:
    report = on_gpus()
    page = text(report, 100)
    assert page.startswith(
        "Rank 2 is late by at least 12.0 ms in each step\n"
        "12.2 % of the time that its peers need up to a collective. It works for longer on its GPU"
    )
    assert "at least 80.5 % of the step, from the durations of collectives on the GPU" in page
    assert "own time compared with peers, per step, at least" in page
    assert "at most" in page
    assert "late 2 (at least +12.2 %)" in one_line(report)
    assert one_line(report).endswith("ALERT slow-rank")
    assert max(map(len, text(report, 40).splitlines())) <= 40
    assert "at least" not in text(running(), 100)


def test_a_rank_that_is_late_but_not_for_long_enough_is_no_silence() -> None:
    (late,) = (replace(late, is_slow=False, num_above=20) for late in running().late)
    assert watch_verdict(replace(running(), alerts=(), late=(late,))) == (
        "Rank 2 may be slow: it was late in 20 of the last 40 steps, by a median of 16.0 ms. It "
        "counts as slow from 26 late steps."
    )


def test_a_line_holds_what_the_page_says() -> None:
    assert one_line(running()) == (
        "running · step 149 · 10 steps/s (100 ms) · late 2 (+20.0 %) · input 1.00 % · "
        "throttled 1 · ALERT slow-rank, throttling"
    )
    assert one_line(ended()).startswith("failed · step 29 · 10 steps/s (100 ms)")
    assert one_line(ended()).endswith("lost 1 · ALERT rank-lost")


def test_the_verdict_of_each_state() -> None:
    playing = Playing(2)

    def verdict(**fields: object) -> str:
        report = report_on(playing.job, now_s=playing.now_s, now_ns=playing.now_ns)
        return watch_verdict(replace(report, **fields))

    assert verdict() == "No step yet."
    lost = (LostRank(rank=1, evidence="killed by SIGKILL"),)
    assert verdict(lost=lost) == "Rank 1 is lost: killed by SIGKILL."
    stalled = verdict(lost=lost, state="stalled", silent_ns=31 * 10**9)
    assert stalled == "No rank has completed a step for 31.0 s. Rank 1 is lost: killed by SIGKILL."
    playing.steps(0, 20)
    assert verdict() == "Nothing stands out."
    assert verdict(state="completed") == "The job has completed after step 19."
    assert (
        verdict(state="stalled", silent_ns=31 * 10**9) == "No rank has completed a step for 31.0 s."
    )


@pytest.mark.parametrize(
    ("behind", "words"),
    [
        (True, "sets the pace: more than a step behind at the end of 100 % of steps"),
        (False, "never a step behind: the CPU, its input or a wait in each step may set the pace"),
        (None, ""),
    ],
)
def test_the_page_says_whether_gpus_set_the_pace(behind: bool | None, words: str) -> None:
    playing = Playing(2)
    playing.steps(0, 60, gpu_behind=behind)
    report = report_on(playing.job, now_s=playing.now_s, now_ns=playing.now_ns)
    page = " ".join(text(report, 120).split())
    assert words in page
    assert ("GPU " in page) == bool(words)
