"""Tables of pipelines and the picture of a schedule, from a report alone."""

import shutil
from pathlib import Path

import msgspec
import pytest

import distprof
from distprof.documents.saved import REPORT
from distprof.formats import RenderOptions
from distprof.sections.pipeline import (
    PictureRow,
    PipelineGroup,
    PipelinePrediction,
    PipelineResult,
    StageDetail,
)
from distprof.sections.pipeline.show import (
    bubble_table,
    draw_line,
    pipeline_picture,
    pipeline_table,
    predictions_table,
)
from distprof.sections.shows import judge
from distprof.sections.table import Drawing
from distprof.terms import Confidence
from tests.documents.samples import healthy

MS = 1_000_000
GOLDEN = Path(__file__).parent.parent / "golden"


def slot(rank, kind, batch, start, end):
    return PictureRow(
        rank=rank, stage=rank, kind=kind, micro_batch=batch, start_ns=start, end_ns=end
    )


def group(**fields):
    usual = {
        "schedule": "1f1b",
        "ranks": (0, 1),
        "replicas": ((0, 1),),
        "stages": 2,
        "virtual_stages": 1,
        "num_micro_batches": 1,
        "source": "distprof marks",
        "confidence": Confidence.MEASURED,
        "num_steps": 3,
        "step_ns": 64 * MS,
        "span_ns": 60 * MS,
        "work_ns": 30 * MS,
        "idle_ns": 30 * MS,
        "bubble_fraction": 0.5,
        "ideal_bubble_fraction": 0.5,
        "ideal_source": "closed form",
        "warm_up_drain_ns": 20 * MS,
        "imbalance_ns": 4 * MS,
        "variation_ns": MS,
        "exposed_p2p_ns": 3 * MS,
        "host_ns": 2 * MS,
        "limiting_stage": 1,
        "stages_detail": tuple(
            StageDetail(
                stage=place,
                rank=place,
                position=place,
                work_ns_per_step=30 * MS,
                forward_ns=10 * MS,
                backward_ns=20 * MS,
                bubble_fraction=0.5,
                in_flight=2 - place,
            )
            for place in range(2)
        ),
        "prediction_error_ratio": -0.01,
        "predictions": tuple(
            PipelinePrediction(
                what=f"M = {batches} instead of 1",
                change="micro-batches",
                schedule="1f1b",
                num_micro_batches=batches,
                virtual_stages=1,
                bubble_fraction=0.3,
                step_ns=(64 - batches) * MS,
                saved_ns=batches * MS,
            )
            for batches in (8, 7, 6, 5, 4, 3, 0)
        ),
        "picture": (
            slot(0, "forward", 0, 0, 10 * MS),
            slot(0, "backward", 0, 40 * MS, 60 * MS),
            slot(1, "forward", 0, 10 * MS, 20 * MS),
            slot(1, "backward", 0, 20 * MS, 40 * MS),
        ),
    }
    return PipelineGroup(**{**usual, **fields})


def report(*groups):
    return msgspec.structs.replace(healthy(), pipeline=PipelineResult(groups=groups))


def test_the_parts_of_the_bubble_stand_below_it():
    table = bubble_table(report(group()), show_all=False)
    assert [row[:3] for row in table.rows] == [
        ("1f1b, ranks 0-1", "30.0 ms", "50.0 %"),
        ("  warm-up and drain", "20.0 ms", "33.3 %"),
        ("  unequal stages", "4.00 ms", "6.67 %"),
        ("  uneven micro-batches", "1.00 ms", "1.67 %"),
        ("  messages", "3.00 ms", "5.00 %"),
        ("  CPU and other", "2.00 ms", "3.33 %"),
        ("  ideal", "", "50.0 %"),
    ]
    assert table.strong == {0}


def test_parts_that_are_not_known_are_no_rows():
    names = ("warm_up_drain_ns", "imbalance_ns", "variation_ns", "exposed_p2p_ns", "host_ns")
    bare = group(ideal_bubble_fraction=None, **dict.fromkeys(names))
    table = bubble_table(report(bare), show_all=False)
    assert len(table.rows) == 1


def test_at_most_five_predictions_and_only_those_that_save_time():
    table = predictions_table(report(group()), show_all=False)
    assert [row[0] for row in table.rows] == [f"M = {m} instead of 1" for m in (8, 7, 6, 5, 4)]
    assert table.rows[0][1:] == ("56.0 ms", "8.00 ms", "30.0 %")


def test_stages_of_a_log_have_a_table_of_their_own():
    table = pipeline_table(report(group()), show_all=False)
    assert table.rows[1] == ("1", "1", "30.0 ms", "10.0 ms", "20.0 ms", "50.0 %", "1", "limits")


def test_forward_is_drawn_with_digits_and_backward_with_letters():
    rows = group().picture
    assert draw_line(rows[:2], 60 * MS, 12, crowded=False) == "00······aaaa"
    assert draw_line(rows[2:], 60 * MS, 12, crowded=False) == "··00aaaa····"


def test_weights_are_capitals_and_micro_batch_numbers_their_last_digit():
    rows = (slot(0, "forward", 13, 0, 5), slot(0, "backward_weight", 2, 5, 10))
    assert draw_line(rows, 10, 4, crowded=False) == "33CC"


def test_crowded_lines_show_directions_only():
    rows = (slot(0, "forward", 0, 0, 5), slot(0, "backward", 0, 5, 10))
    assert draw_line(rows, 10, 4, crowded=True) == ">><<"


@pytest.mark.parametrize("span", [0, -5])
def test_a_step_without_length_is_idle(span):
    assert draw_line(group().picture, span, 3, crowded=False) == "···"


def test_a_slot_beyond_the_span_does_not_break_the_line():
    rows = (slot(0, "forward", 0, -50, -20), slot(0, "forward", 1, 90, 200))
    assert len(draw_line(rows, 100, 10, crowded=False)) == 10


def test_many_ranks_are_thinned_out_with_the_first_and_the_last():
    rows = tuple(slot(rank, "forward", 0, 0, 10) for rank in range(64))
    many = group(ranks=tuple(range(64)), picture=rows)
    table = pipeline_picture(report(many), show_all=False)
    assert (table.rows[0][0], table.rows[-1][0], len(table.rows)) == ("0", "63", 16)
    assert "not drawn: 48 more ranks" in table.notes
    assert isinstance(table.rows[0][1], Drawing)


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    text = REPORT.reporter("text")(report(group()), RenderOptions(width=width, full=True))
    assert "Schedule" in text
    assert max(len(line) for line in text.splitlines()) <= width
    assert "00" in text
    lines = text.splitlines()
    drawn = lines[next(i for i, line in enumerate(lines) if line.startswith("Schedule")) + 2]
    assert len(drawn) > width - 20


def test_without_pipelines_there_are_no_tables():
    empty = report()
    for make in (bubble_table, predictions_table, pipeline_picture, pipeline_table):
        assert make(empty, show_all=True) is None


def test_where_only_the_bubble_is_known_it_is_the_verdict(tmp_path):
    """A timeline that lacks the ranks of one stage."""
    for file in (GOLDEN / "pipeline" / "primus-pp8-8gpu").iterdir():
        if file.name != "pp_rank_3.json":
            shutil.copy(file, tmp_path)
    told = distprof.analyze(tmp_path)
    assert judge(told).headline.startswith("The pipeline idles 3")
    assert "7 of the pipeline's 8 stages were recorded (missing: 3)" in REPORT.reporter("text")(
        told, RenderOptions(full=True)
    )
