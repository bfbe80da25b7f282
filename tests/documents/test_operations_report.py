"""The report on a table of operations: what is read first, and that nothing asks for traces."""

from pathlib import Path

import msgspec
import pytest

import distprof
from distprof.documents.html.report import report_html
from distprof.documents.saved import REPORT
from distprof.formats import RenderOptions
from distprof.sections.shows import judge
from tests.operation_logs import log_of, pipeline_rows, write_table

GOLDEN = Path(__file__).parents[1] / "golden" / "straggler" / "bytedance-ST"


@pytest.fixture(scope="module")
def report():
    return distprof.analyze(GOLDEN / "trace-ST.parquet")


def test_the_verdict_is_the_first_finding_and_names_the_stage(report):
    assert report.findings[0].code == "PIP101"
    assert judge(report).headline == report.findings[0].headline
    assert judge(report).headline.startswith("Stage 3 (rank 6) limits the pipeline")


def test_the_reasons_give_the_slowdown_the_plan_shares_ideal_and_model_error(report):
    slowdown, last, worst, model, plan = judge(report).why
    assert slowdown == "Steps take 17.9 % longer than with even operations. Stage 3 explains it."
    assert plan.startswith("Plan: 2.21 s → 1.92 s (stages balanced) → 1.38 s (16 micro-batches")
    assert plan.endswith("simulated, with operations launched as late as measured.")
    assert last.startswith("The last pipeline stage explains 122 %, the slowest 3 % of the workers")
    assert worst == "An ideal step takes 1.84 s. The slowest, step 23, takes 26.9 % longer."
    assert model.startswith("The simulated step is 1.89 % shorter than the measured one")


def test_the_stage_is_found_once_with_what_equal_stages_save(report):
    by_code = {finding.code: finding for finding in report.findings}
    assert "STR105" not in by_code
    assert "Stage 3" in by_code["PIP101"].headline
    assert by_code["PIP101"].recoverable_ns == 293_379_532


def uneven(report):
    return next(finding for finding in report.findings if finding.code == "STR105")


def test_without_a_known_schedule_the_finding_names_the_stage(tmp_path):
    rows = pipeline_rows(lambda _, s, *__: 10**6 * (1 + (s == 3)), dp=2, stages=4, micro_batches=8)
    path = write_table(tmp_path / "t.parquet", log_of(rows, unit=1), mb_id=[-1] * len(rows))
    finding = uneven(distprof.analyze(path))
    assert finding.ranks == (3, 7)
    assert "Stage 3 (ranks 3,7) computes for 32.0 ms per step" in finding.message
    assert finding.recoverable_ns == finding.cost_ns_per_step


def test_the_run_says_its_size_mesh_and_steps(report):
    assert report.run.world_size == 8
    assert report.run.mesh == {"pp": 4, "dp": 2}
    assert report.run.num_steps == report.step_time.num_steps == 32
    assert report.step_time.median_ns == pytest.approx(2.21e9, rel=0.01)


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_asks_for_traces_that_there_never_were(report, width):
    text = REPORT.reporter("text")(report, RenderOptions(width=width, full=True))
    assert "pp 4 × dp 2 · 8 ranks · 32 steps" in text
    assert "stage 3 (ranks 6-7)" in text
    for wrong in ("0 of 8", "No rank", "One rank alone", "no trace says", "could be measured"):
        assert wrong.lower() not in text.lower()
    told, _, _ = text.partition("\nNext\n")
    assert max(map(len, told.splitlines())) <= width


def test_parts_are_shown_with_what_making_them_ideal_saves(report):
    from distprof.sections.whatif.show import slowdown_table

    view = slowdown_table(report, show_all=False)
    rows = {row[0]: row[1:] for row in view.rows}
    assert rows["everything"] == ("+17.9 %", "329 ms", "")
    assert rows["stage 3 (ranks 6-7)"] == ("+23.2 %", "402 ms", "1.37 s")
    assert rows["forward-compute"] == ("+8.75 %", "163 ms", "")
    assert rows["rank 7 (dp_rank 1, stage 3)"] == ("+17.8 %", "", "")  # rank 6 stays as slow


def test_a_saved_report_reads_the_same(report, tmp_path):
    from distprof.documents.saved import load_report

    assert load_report(report.save(tmp_path / "r.json")) == report


def of_pipeline(tmp_path, length):
    rows = pipeline_rows(length, dp=8, stages=4, micro_batches=8)
    return distprof.analyze(write_table(tmp_path / "t.parquet", log_of(rows, unit=1)))


def own_sentence(report):
    """What the verdict would be without findings."""
    verdict = judge(msgspec.structs.replace(report, findings=()))
    return f"{verdict.headline}. {verdict.detail}"


def test_a_slow_worker_is_named(tmp_path):
    slow = of_pipeline(tmp_path, lambda d, s, *_: 10**6 * (2 if (d, s) == (5, 2) else 1))
    finding = uneven(slow)
    assert 5 * 4 + 2 in finding.ranks
    assert "the slowest 3 % of the workers, explain" in finding.message
    assert slow.findings[0] == finding
    assert judge(slow).headline == finding.headline
    assert "without the machines of these workers" in finding.fix


def test_unequal_sequences_are_told_from_stalls(tmp_path):
    def data(d, _, kind, batch):
        return 10**6 * (1 + (7 * d + 3 * batch) % 5) * (2 if kind[0] == "b" else 1)

    def stalls(d, s, kind, batch):
        return 10**6 * (5 if (11 * d + 5 * s + 3 * batch + (kind[0] == "b")) % 13 == 0 else 1)

    sequences, stalling = of_pipeline(tmp_path, data), of_pipeline(tmp_path, stalls)
    assert "their sequences differ" in uneven(sequences).message
    assert "with no pattern in the data" in uneven(stalling).message
    assert judge(sequences).headline == uneven(sequences).headline
    assert judge(stalling).headline == uneven(stalling).headline
    assert "Sequences of unequal length" in own_sentence(sequences)
    assert "vary without a pattern" in own_sentence(stalling)
    assert "garbage" in uneven(stalling).fix


def test_even_operations_are_a_good_report(tmp_path):
    even = of_pipeline(tmp_path, lambda *_: 10**6)
    assert "STR105" not in {finding.code for finding in even.findings}
    assert judge(even).why[0].startswith("Operations are even: steps take as long as with")
    assert not any("The simulated step is" in why for why in judge(even).why)
    assert judge(even).headline == even.findings[0].headline  # 8 micro-batches on 4 stages


def test_without_a_finding_the_verdict_is_that_operations_are_even(tmp_path):
    rows = pipeline_rows(lambda *_: 10**6, dp=2, stages=1, micro_batches=8)
    even = distprof.analyze(write_table(tmp_path / "t.parquet", log_of(rows, unit=1)))
    assert even.findings == ()
    assert judge(even).headline.startswith("Operations are even")


def test_uneven_transfers_are_named(tmp_path):
    rows = pipeline_rows(lambda *_: 10**6, dp=2, stages=2, micro_batches=2)
    late = [
        (d, s, k, q, a, b + (4 * 10**6 if (k, s) == ("optimizer-clip-main-grad", 0) else 0))
        for d, s, k, q, a, b in rows
    ]
    report = distprof.analyze(write_table(tmp_path / "t.parquet", log_of(late, unit=1)))
    messages = [finding.message for finding in report.findings]
    assert any(
        "Transfers of kind optimizer-clip-main-grad vary in duration" in text for text in messages
    )


def test_hostile_kinds_reach_no_terminal_raw(tmp_path):
    rows = [
        *pipeline_rows(lambda *_: 10**6, dp=1, stages=2, micro_batches=2),
        (0, 0, "\x1b[31mred[bold]\x07", 0, 0, 5),
    ]
    report = distprof.analyze(write_table(tmp_path / "t.parquet", log_of(rows, unit=1)))
    text = REPORT.reporter("text")(report, RenderOptions(width=100, full=True))
    assert "Operations left out because the dependencies" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_without_traces_the_page_begins_with_the_schedule(report):
    whole = report_html(report, RenderOptions())
    assert whole.count('class="schedule"') == 1
    assert whole.index("<h1>") < whole.index('class="schedule"') < whole.index("What to do")
    part = report_html(report, RenderOptions(sections=("pipeline",)))
    assert part.index('id="pipeline"') < part.index('class="schedule"')
