"""The public surface: what ``import distprof`` offers, and what it does not load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import distprof
from distprof.formats import RenderOptions, find_reporter
from tests.documents.samples import NASTY, nasty, single_rank, straggler

GOLDEN = Path(__file__).parent / "golden"
GLOO = str(GOLDEN / "kineto" / "gloo-ddp-2ranks")
HEAVY = ("numpy", "pandas", "pyarrow", "rich", "msgspec", "fsspec", "torch", "click")


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.splitlines()[-1].split())


def test_exported_members_are_these() -> None:
    assert distprof.__all__ == [
        "Config",
        "DistprofError",
        "Finding",
        "InputError",
        "Report",
        "Run",
        "UsageError",
        "__version__",
        "analyze",
        "check",
        "compare",
        "hang",
        "load_report",
        "open_run",
        "plan",
    ]
    assert dir(distprof) == distprof.__all__


@pytest.mark.parametrize("name", distprof.__all__)
def test_every_exported_member_can_be_reached(name: str) -> None:
    assert getattr(distprof, name) is not None
    assert name in dir(distprof)


def test_an_unknown_member_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        distprof.nonsense  # noqa: B018


def test_import_loads_nothing_heavy() -> None:
    assert loaded_after("import distprof").isdisjoint(HEAVY)


def test_using_the_api_loads_no_torch() -> None:
    assert "torch" not in loaded_after("import distprof; distprof.analyze; distprof.open_run")


def test_the_main_table_of_a_result_is_a_frame() -> None:
    frame = straggler().breakdown.to_pandas()
    assert list(frame.columns[:2]) == ["rank", "span_ns"]
    assert frame["rank"].tolist() == list(range(8))
    assert frame["span_ns"].dtype == "int64"


def test_other_tables_are_asked_for_by_name() -> None:
    frame = straggler().breakdown.to_pandas("steps")
    assert "step" in frame.columns
    with pytest.raises(ValueError, match="choose from ranks, steps"):
        straggler().breakdown.to_pandas("rows")


def test_main_tables_are_the_ones_a_reader_expects() -> None:
    report = straggler()
    assert "busbw_bytes_per_s" in report.collectives.to_pandas().columns
    assert "spread" in report.kernels.to_pandas().columns
    assert "late_ratio" in report.stragglers.to_pandas().columns
    assert report.step_time.to_pandas()["median_ns"].tolist() == [22_300_000]


def test_unknown_numbers_are_missing_in_a_frame() -> None:
    frame = single_rank().collectives.to_pandas()
    assert frame["transfer_ns_median"].dtype == "Int64"
    assert frame["transfer_ns_median"].isna().all()
    assert frame["busbw_bytes_per_s"].isna().all()


def test_an_empty_table_keeps_its_columns_and_types() -> None:
    frame = single_rank().kernels.to_pandas()
    assert len(frame) == 0
    assert frame["total_ns"].dtype == "int64"
    assert isinstance(frame, pd.DataFrame)


def test_a_notebook_shows_verdict_and_findings_escaped() -> None:
    shown = straggler()._repr_html_().replace("\u00a0", " ")
    assert "<b>Rank 2 holds the others up: 31.0 % of each step</b>" in shown
    assert " STR101 persistent-straggler" in shown
    hostile = nasty()._repr_html_()
    assert "<script" not in hostile
    assert NASTY not in hostile


def test_what_fails_can_be_caught_by_its_public_name() -> None:
    with pytest.raises(distprof.InputError, match="nothing of that name"):
        distprof.open_run("/no/such/folder")
    assert issubclass(distprof.InputError, distprof.DistprofError)


def test_a_run_and_a_report_are_one_line_in_a_shell() -> None:
    run = distprof.open_run(GLOO)
    assert repr(run) == f"<Run of {GLOO!r}: ranks 0-1 of 2, 3 common steps, 0 gaps>"
    shown = repr(straggler())
    assert shown.startswith("<Report on ")
    assert "Rank 2 holds the others up" in shown
    assert len(repr(nasty()).splitlines()) == 1
    assert NASTY not in repr(nasty())


def test_a_result_is_one_short_line_in_a_shell() -> None:
    report = straggler()
    assert repr(report.breakdown) == "<BreakdownResult: 8 ranks, 8 steps>"
    assert repr(report.step_time).startswith("<StepTimeResult: num_steps=10, median_ns=22300000")
    assert repr(single_rank().moe) == "<MoeResult: nothing measured>"


def test_findings_are_a_frame() -> None:
    frame = straggler().findings_to_pandas()
    assert frame["code"].tolist() == [finding.code for finding in straggler().findings]
    assert frame["cost_ns_per_step"].dtype == "Int64"
    assert len(single_rank().findings_to_pandas()) == len(single_rank().findings)


def test_verbs_are_functions() -> None:
    comparison = distprof.compare(straggler(), straggler())
    assert comparison.distprof_version == distprof.__version__
    stuck = distprof.hang(GOLDEN / "flight" / "gloo-ddp-3ranks-hang", executor="serial")
    assert stuck.state.value == "stuck"
    found = distprof.plan("llama3-8b", gpus=16, most=3)
    assert found.fitting > 0
    assert len(found.best) == 3
    with pytest.raises(distprof.UsageError, match="unknown keys in shape: depth"):
        distprof.plan(gpus=16, shape={"depth": 3})


def test_runs_are_checked_against_others() -> None:
    with pytest.raises(distprof.UsageError, match="give either baseline= or against="):
        distprof.check([GLOO])
    result = distprof.check([GLOO], against=[GLOO], config=distprof.Config())
    assert not result.is_failed


def test_a_printed_report_is_the_text_report() -> None:
    assert str(straggler()) == find_reporter("text")(straggler(), RenderOptions(width=100))


def test_a_console_shows_the_head_of_a_report() -> None:
    from rich.console import Console

    console = Console(width=100, record=True, file=None, quiet=False, color_system=None)
    with console.capture() as captured:
        console.print(straggler())
    assert captured.get().startswith("Rank 2 holds the others up")
    narrow = Console(width=50, color_system=None)
    with narrow.capture() as captured:
        narrow.print(straggler())
    assert max(map(len, captured.get().splitlines())) <= 50
