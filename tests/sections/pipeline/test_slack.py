"""Stages finish a step one after another: who is done early keeps no rank waiting."""

from pathlib import Path

import numpy as np

import distprof
from distprof.intervals import EMPTY, Intervals
from distprof.sections.context import Timeline
from distprof.sections.time.measure import rank_tail_ns
from tests.simulator.trials import ACCUSING

BALANCED = Path(__file__).parents[2] / "golden" / "pipeline" / "balanced-1f1b"


def test_no_stage_of_a_balanced_pipeline_is_accused():
    report = distprof.analyze(distprof.open_run(BALANCED), debug=True)
    assert report.waterfall.num_steps == 3
    assert report.findings[0].code == "PIP102"
    assert [found.code for found in report.findings if found.code.startswith(ACCUSING)] == []
    assert report.stragglers.sets == ()


def spans(*pairs):
    return Intervals(*(np.array(side, dtype=np.int64) for side in zip(*pairs, strict=True)))


def test_the_tail_of_a_window_begins_after_its_last_activity():
    timeline = Timeline(
        computation=spans((0, 50), (120, 130)),
        communication=spans((50, 60), (195, 230)),
        exposed_comm=spans((50, 60), (195, 230)),
        exposed_copy=EMPTY,
    )
    windows = spans((0, 100), (100, 200), (200, 300), (300, 400))
    assert rank_tail_ns(windows, timeline).tolist() == [40, 0, 70, 100]
