"""What the report says of the simulated step: tables, findings, verdict."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.documents.report import cost_text
from distprof.documents.saved import REPORT, Report
from distprof.formats import RenderOptions
from distprof.sections.shows import judge
from distprof.sections.whatif import (
    PathShare,
    RepairPlan,
    Scenario,
    WhatIfResult,
    WorkerSlowdown,
)
from distprof.sections.whatif.show import path_table, whatif_table
from tests.documents.samples import MS, US, finding, report_of, straggler, waterfall_of

STEP = 22_300 * US
RANK_2 = "rank 2 kept up with its peers"


def scenario(what: str, recoverable_ns: int, title: str = "") -> Scenario:
    return Scenario(
        what=what,
        title=title or f"{what} is gone",
        step_ns=STEP - recoverable_ns,
        recoverable_ns=recoverable_ns,
    )


def whatif(*without: Scenario, **fields: object) -> WhatIfResult:
    known: dict[str, object] = {
        "source": "traces",
        "num_operations": 100,
        "num_steps": 10,
        "step_ns": STEP,
        "replayed_ns": STEP,
        "model_error_ratio": -0.004,
        "step_error_ratio": 0.006,
        "without": without,
    }
    return WhatIfResult(**{**known, **fields})  # type: ignore[arg-type]


def slow_rank() -> Report:
    result = whatif(
        scenario("communication", 8 * MS),
        scenario("rank 2", 5_800 * US, RANK_2),
        scenario("copies", 1 * US),
        ideal_ns=20 * MS,
        slowdown=1.115,
        workers=(WorkerSlowdown(rank=2, dp_rank=None, stage=None, slowdown=1.1),),
        m_w=0.9,
        path=(
            PathShare(
                rank=2, kind="compute", name="computation", ns_per_step=18 * MS, share_ratio=0.81
            ),
            PathShare(
                rank=None,
                kind="transfer",
                name="all_reduce dp",
                ns_per_step=4_300 * US,
                share_ratio=0.19,
            ),
        ),
    )
    return msgspec.structs.replace(straggler(), whatif=result)


def test_scenarios_are_shown_by_what_they_recover_and_small_ones_are_not() -> None:
    table = whatif_table(slow_rank(), show_all=False)
    assert table is not None
    assert [row[:4] for row in table.rows] == [
        ("communication", "14.3 ms", "8.00 ms", "35.9 %"),
        ("rank 2", "16.5 ms", "5.80 ms", "26.0 %"),
    ]
    assert table.rows[1][4] == RANK_2


def test_of_scenarios_that_recover_the_same_one_is_shown() -> None:
    same = [scenario(what, 3 * MS) for what in ("axis dp", "exposed transfer", "overlap")]
    report = msgspec.structs.replace(straggler(), whatif=whatif(*same))
    table, whole = (whatif_table(report, show_all=show_all) for show_all in (False, True))
    assert table is not None
    assert whole is not None
    assert [row[0] for row in table.rows] == ["exposed transfer"]
    assert len(whole.rows) == 3


def test_notes_name_the_model_error_and_who_explains_the_slow_down() -> None:
    table = whatif_table(slow_rank(), show_all=True)
    assert table is not None
    assert len(table.rows) == 3
    assert table.notes == (
        "with nothing changed, the simulation is 0.40 % off the measured mean of 10 steps",
        "the step takes 1.115 times as long as with identical ranks. The slowest ranks, rank 2 "
        "first, explain 90.0 % of the difference",
    )


def test_the_path_names_ranks_and_classes() -> None:
    table = path_table(slow_rank(), show_all=False)
    assert table is not None
    assert [row[:5] for row in table.rows] == [
        ("2", "compute", "computation", "18.0 ms", "81.0 %"),
        ("several", "transfer", "all_reduce dp", "4.30 ms", "19.0 %"),
    ]


def test_without_a_simulation_there_are_no_tables() -> None:
    report = straggler()
    assert whatif_table(report, show_all=True) is None
    assert path_table(report, show_all=True) is None


def test_the_verdict_says_what_the_step_takes_without_the_late_rank() -> None:
    assert (
        "If rank 2 kept up with its peers, a step would take 16.5 ms instead of 22.3 ms "
        "(simulated), 26.0 % less. The simulation is 0.40 % off the measured step."
    ) in judge(msgspec.structs.replace(slow_rank(), plan=RepairPlan())).why


def test_a_gain_that_is_none_is_not_put_forward() -> None:
    report = msgspec.structs.replace(straggler(), whatif=whatif(scenario("rank 2", 1_000)))
    assert not any("(simulated)" in sentence for sentence in judge(report).why)


@pytest.mark.parametrize(
    ("cost", "recovered", "text"),
    [
        (6_910 * US, None, "6.91 ms per step (31.0 %)"),
        (6_910 * US, 6_900 * US, "6.91 ms per step (31.0 %)"),
        (6_910 * US, 4_200 * US, "6.91 ms per step (31.0 %), recovers 4.20 ms (simulated)"),
        (6_910 * US, 0, "6.91 ms per step (31.0 %), recovers 0 ns (simulated)"),
        (None, 4_200 * US, "recovers 4.20 ms per step (simulated)"),
        (None, None, ""),
    ],
)
def test_a_simulated_gain_stands_beside_a_cost_that_differs(
    cost: int | None, recovered: int | None, text: str
) -> None:
    found = finding(cost_ns_per_step=cost, recoverable_ns=recovered)
    assert cost_text(found, straggler()) == text


def test_text_and_markdown_show_both() -> None:
    found = finding(recoverable_ns=4_200 * US)
    report = msgspec.structs.replace(slow_rank(), findings=(found,))
    text = REPORT.reporter("text")(report, RenderOptions(width=120, full=True))
    assert "recovers 4.20 ms (simulated)" in text
    assert "What if" in text
    assert "Critical path" in text
    short = " ".join(str(report).split())
    assert "4.20 ms per step" in short
    assert "outside the plan" in short  # only steps of the plan save time
    assert "recovers 4.20 ms" in REPORT.reporter("md")(report, RenderOptions())


NAMES = st.text(max_size=60)
NUMBERS = st.integers(0, 10**17)


@given(NAMES, NUMBERS, NUMBERS, st.none() | st.floats(-1, 1e9), st.floats(0, 1e9))
def test_any_names_and_numbers_can_be_shown(
    name: str, step: int, recovered: int, error: float | None, share: float
) -> None:
    result = whatif(
        Scenario(what=name, title=name, step_ns=step, recoverable_ns=recovered),
        replayed_ns=step,
        model_error_ratio=error,
        slowdown=share,
        path=(PathShare(rank=None, kind=name, name=name, ns_per_step=step, share_ratio=share),),
    )
    report = report_of([waterfall_of(0, computation_ns=1)], whatif=result)
    text = REPORT.reporter("text")(report, RenderOptions(width=80, show_all=True))
    assert not any(ord(char) < 32 and char != "\n" for char in text)
    assert REPORT.reporter("md")(report, RenderOptions(show_all=True))
