"""The table of gradients."""

from __future__ import annotations

from typing import Any

import msgspec

from distprof.sections.gradients import GradientsResult
from distprof.sections.gradients.show import gradients_table
from distprof.sections.table import TableView
from tests.documents.samples import SAMPLES
from tests.rules.samples import gradient_group


def table_of(**fields: Any) -> TableView:
    result = GradientsResult(groups=(gradient_group(**fields),))
    report = msgspec.structs.replace(SAMPLES["straggler"](), gradients=result)
    table = gradients_table(report, show_all=False)
    assert table is not None
    return table


def test_a_row_says_how_often_and_when() -> None:
    table = table_of(micro_batches=4.0, times_reduced=4.0)
    assert table.rows == (
        ("world", "131 MB bfloat16", "4", "4 ×", "5", "800 µs", "7.00 ms", "10.0 ms", "10.0 %"),
    )
    assert table.notes == ()


def test_what_is_not_known_is_a_dash_and_waiting_is_said() -> None:
    table = table_of(
        times_reduced=None, transfer_ns=None, backward_ns=None, is_split=False, dtypes=("",)
    )
    assert table.rows == (("world", "131 MB", "1", "–", "5", "800 µs", "–", "–", "–"),)
    assert "waiting for late ranks" in table.notes[0]


def test_without_ddp_there_is_no_table() -> None:
    report = msgspec.structs.replace(SAMPLES["straggler"](), gradients=GradientsResult())
    assert gradients_table(report, show_all=True) is None
