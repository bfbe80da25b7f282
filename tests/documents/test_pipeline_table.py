"""The table of pipeline stages."""

import msgspec

from distprof.sections.pipeline import PipelinePosition, PipelineRank, PipelineResult
from distprof.sections.pipeline.show import pipeline_table
from tests.documents.samples import healthy

MS = 1_000_000


def pipeline():
    def position(stages, ranks, work_ms, excess):
        return PipelinePosition(
            stages=stages,
            ranks=ranks,
            num_micro_batches=8.0,
            work_ns_per_step=work_ms * MS,
            work_ns_per_micro_batch=work_ms * MS // 8,
            excess_ratio=excess,
            chance=0.5,
        )

    def rank(number, wait_ms):
        return PipelineRank(
            rank=number,
            stages=(number // 2,),
            work_ns_per_step=80 * MS,
            wait_ns_per_step=wait_ms * MS,
            other_ns_per_step=0,
        )

    return PipelineResult(
        positions=(position((0, 3), (0, 1), 80, -0.5), position((1, 2), (2, 3), 160, 1.0)),
        ranks=tuple(rank(number, wait) for number, wait in enumerate((10, 30, 0, 2))),
        max_over_mean=1.33,
        lost_ns_per_step=35 * MS,
        step_ns=200 * MS,
    )


def test_a_row_per_position_with_its_ranks_work_and_mean_waiting():
    report = msgspec.structs.replace(healthy(), pipeline=pipeline())
    table = pipeline_table(report, show_all=False)
    assert table is not None
    assert [column.title for column in table.columns][:2] == ["stage", "ranks"]
    assert [tuple(row) for row in table.rows] == [
        ("0, 3", "0-1", "8", "80.0 ms", "10.0 ms", "-50.0 %", "20.0 ms", "–"),
        ("1, 2", "2-3", "8", "160 ms", "20.0 ms", "100 %", "1.00 ms", "–"),
    ]


def test_without_stages_there_is_no_table():
    assert pipeline_table(healthy(), show_all=True) is None
