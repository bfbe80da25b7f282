"""Quality of a recording: what is there, what is missing, how sure the clocks are."""

import numpy as np
from msgspec.structs import replace

from distprof.artefacts.record import Gap
from distprof.run.run import CaptureWindow, ClockAlignment, CollectiveMatches, Quality
from distprof.sections.capture.measure import analyze_capture
from tests.builders import RankBuilder, make_run


def ranks(*numbers, **changes):
    return [RankBuilder(rank).step(0, 0, 10).rank(**changes) for rank in numbers]


def test_missing_ranks_are_those_of_the_world_that_are_not_there():
    result = analyze_capture(make_run(ranks(0, 2), world_size=4))
    assert result.ranks_present == (0, 2)
    assert result.ranks_missing == (1, 3)


def test_without_a_world_size_missing_ranks_are_unknown_not_none():
    run = make_run(ranks(0, 2))
    run = replace(run, topology=replace(run.topology, world_size=None))
    result = analyze_capture(run)
    assert result.ranks_missing == ()
    assert any("world size" in text for text in result.unavailable)


def test_what_readers_counted_adds_up_over_ranks():
    quality = Quality(
        num_events=10, num_repaired=1, num_quarantined=2, num_clamped=3, num_unlaunched=4
    )
    result = analyze_capture(make_run(ranks(0, 1, quality=quality)))
    counts = (
        result.num_events,
        result.num_repaired,
        result.num_quarantined,
        result.num_clamped,
        result.num_unlaunched,
    )
    assert counts == (20, 2, 4, 6, 8)


def test_truncated_files_are_a_gap_with_what_was_lost():
    whole, cut = ranks(0, 1)
    cut = replace(cut, quality=Quality(truncated=True, lost_bytes=1_500))
    result = analyze_capture(make_run([whole, cut], gaps=[Gap(what="odd", message="Odd.")]))
    assert [gap.what for gap in result.gaps] == ["odd", "truncated"]
    assert result.gaps[1].ranks == (1,)
    assert "1.50 kB" in result.gaps[1].message


def test_a_residual_that_was_not_measured_is_none_not_zero():
    clock = ClockAlignment(
        domains=((0,), (1,)),
        names=("a", "b"),
        offset_ns=np.array([0.0, 1234.6]),
        drift_ratio=np.array([0.0, 2e-5]),
        reference_ns=0,
        residual_ns=np.array([7, -1], dtype=np.int64),
        component=np.zeros(2, dtype=np.int32),
        num_checked=5,
        num_violations=1,
    )
    result = analyze_capture(make_run(ranks(0, 1), clock=clock))
    assert [c.residual_ns for c in result.clocks] == [7, None]
    assert (result.clocks[1].offset_ns, round(result.clocks[1].drift_ppm)) == (1235, 20)
    assert (result.num_causality_checked, result.num_causality_violations) == (5, 1)


def test_matched_share_is_unknown_without_candidates():
    assert analyze_capture(make_run(ranks(0, 1))).matched_ratio is None
    matches = replace(CollectiveMatches.none(), num_candidates=10, num_matched=9)
    assert analyze_capture(make_run(ranks(0, 1), matches=matches)).matched_ratio == 0.9


def test_windows_are_passed_on():
    run = make_run(ranks(0, 1))
    window = CaptureWindow(
        steps=(3, 4), dropped={2: "cut"}, overlap_ratio=0.5, transient_steps=(1,)
    )
    result = analyze_capture(replace(run, window=window))
    assert (result.steps, result.dropped_steps) == ((3, 4), {2: "cut"})
    assert (result.window_overlap_ratio, result.transient_steps) == (0.5, (1,))


def test_what_all_ranks_say_is_said_once_and_what_some_say_with_their_ranks():
    first, second = ranks(0, 1, quality=Quality(notes=("All clamp.",)))
    second = replace(second, step_note="Steps of the host.")
    result = analyze_capture(make_run([first, second]))
    assert result.notes == ("All clamp.", "rank 1: Steps of the host.")


def test_one_rank_alone_says_what_it_cannot_show():
    assert any("only one rank" in text for text in analyze_capture(make_run(ranks(0))).unavailable)
