"""The benchmark against measured truth: its faults, its judgement, and one program as a whole.

No test asserts a time of a real process.
"""

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import gpu_truth
from benchmarks.gpu_programs.faults import MODELS, Case, cases
from benchmarks.gpu_programs.settings import Settings
from benchmarks.gpu_truth import Finding, Plan, Report, Truth
from distprof.rules import all_rules

CASES = list(cases())
NAMES = [case.name for case in CASES]


def case_of(name: str) -> Case:
    return CASES[NAMES.index(name)]


def truth(saves_ms: float = 20.0, healthy_ms: float = 30.0) -> Truth:
    return Truth(
        program="transformer",
        fault="loader",
        healthy_ms=[healthy_ms],
        faulty_ms=[healthy_ms + saves_ms],
        saves_ms=saves_ms,
    )


def test_each_model_has_twenty_faults() -> None:
    assert len(set(NAMES)) == len(NAMES)
    for model in MODELS:
        assert sum(case.program == model for case in CASES) >= 20


def test_short_calls_cover_many_faults() -> None:
    first = CASES[:30]
    assert len({case.fault.name for case in first}) == len(first)
    assert {case.program for case in first} == set(MODELS)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_fault_changes_one_setting(case: Case) -> None:
    for tiny in (False, True):
        healthy, faulty = (
            asdict(Settings(**case.settings(faulty=faulty, tiny=tiny))) for faulty in (False, True)
        )
        changed = {name for name in healthy if healthy[name] != faulty[name]}
        assert changed == set(case.fault.change)
        assert len(changed) == 1


def test_right_answers_exist() -> None:
    known = {one.code for one in all_rules()}
    for case in CASES:
        assert set(case.fault.right) <= known
        assert case.fault.right or case.fault.words
        assert all(word == word.lower() for word in case.fault.words)


def test_cases_with_equal_healthy_programs_share_their_recording() -> None:
    by_run: dict[str, set[str]] = {}
    for case in CASES:
        settings = str(sorted(case.settings(faulty=False, tiny=False).items()))
        by_run.setdefault(gpu_truth.healthy_run(case), set()).add(settings)
    assert all(len(settings) == 1 for settings in by_run.values())
    assert gpu_truth.healthy_run(case_of("moe/spin")) == "runs/moe-healthy"


def test_a_first_finding_is_right_by_its_code() -> None:
    report = Report([Finding("CAP105", "tracing costs"), Finding("INP103", "loads", 1, 18_000_000)])
    found = gpu_truth.judge(truth(20.0), case_of("transformer/loader"), report, 50.0)
    assert (found.is_right, found.counts, found.price_ratio) == (True, True, 0.9)


def test_a_first_finding_is_right_by_what_it_names() -> None:
    report = Report([Finding("HST999", "The CPU is in save_checkpoint for 20 ms", 20_000_000)])
    assert gpu_truth.judge(truth(), case_of("transformer/checkpoint"), report, 50.0).is_right


def test_only_the_first_finding_counts() -> None:
    report = Report([Finding("HST101", "launch-bound", 1, 2), Finding("INP103", "loads", 1, 2)])
    found = gpu_truth.judge(truth(), case_of("transformer/loader"), report, 50.0)
    assert (found.is_right, found.price_ratio) == (False, None)
    assert not gpu_truth.judge(truth(), case_of("transformer/loader"), Report([]), 50.0).is_right


def test_what_is_still_saved_comes_before_what_is_saved_alone_and_what_it_costs() -> None:
    assert Finding("X", "", 3_000_000, 2_000_000, 1_000_000).price_ms == 1.0
    assert Finding("X", "", 3_000_000, 2_000_000).price_ms == 2.0
    assert Finding("X", "", 3_000_000).price_ms == 3.0
    assert Finding("X", "").price_ms is None


def test_small_faults_do_not_count() -> None:
    verdict = gpu_truth.judge(truth(1.0), case_of("transformer/loader"), Report([]), 50.0)
    assert not verdict.counts
    assert "0 cost at least" in gpu_truth.summary([verdict], 0, 0)


def test_the_summary_counts_right_and_close() -> None:
    case = case_of("transformer/loader")
    reports = [Report([Finding("INP103", "", 1, price)]) for price in (18_000_000, 10_000_000)]
    wrong = Report([Finding("HST101", "", 1, 20_000_000)])
    verdicts = [gpu_truth.judge(truth(20.0), case, report, 50.0) for report in (*reports, wrong)]
    assert gpu_truth.summary(verdicts, 4, 1).endswith(
        "first finding right in 2 of 3 (67%), priced within 15% in 1 of 3 (33%), "
        "or of what the recorded process lost in 1 of 3 (33%); 1 of 4 healthy programs accused"
    )


@pytest.mark.parametrize(
    ("code", "price_ns", "is_accused"),
    [("HST101", 6_000_000, True), ("HST101", 4_000_000, False), ("MEM104", 6_000_000, False)],
)
def test_a_healthy_program_is_accused_by_a_noticeable_gain(
    code: str, price_ns: int, is_accused: bool
) -> None:
    report = Report([Finding(code, "", price_ns)], Plan(step_ns=100_000_000))
    assert bool(gpu_truth.accusations(report)) == is_accused


@pytest.mark.slow
def test_a_program_is_measured_recorded_kept_and_judged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    size = ["--blocks", "1", "--block-steps", "10", "--steps", "40", "--healthy", "all"]
    call = ["--out", str(out), "--device", "cpu", "--only", "transformer/loader", *size]
    gpu_truth.main([*call, "--keep", str(kept), "--measure-only"])
    measured = (out / gpu_truth.TRUTH).read_text()
    assert len(measured.splitlines()) == 1
    assert "capture transformer-loader" in capfd.readouterr().out

    gpu_truth.main([*call, "--measure-only"])
    assert (out / gpu_truth.TRUTH).read_text() == measured
    assert "capture" not in capfd.readouterr().out

    before = {file: file.read_bytes() for file in kept.rglob("*") if file.is_file()}
    gpu_truth.main(["--analyze-only", str(kept)])
    shown = capfd.readouterr().out
    assert "| transformer/loader " in shown
    assert "transformer-healthy-for-loader: " in shown
    assert "1 faults" in shown
    assert {file: file.read_bytes() for file in kept.rglob("*") if file.is_file()} == before


def test_a_spent_budget_begins_nothing_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    call = ["--out", str(tmp_path), "--device", "cpu", "--only", "moe/spin", "--measure-only"]
    gpu_truth.main([*call, "--blocks", "1", "--block-steps", "1", "--budget", "0"])
    assert "The budget is spent" in capfd.readouterr().out
    assert not list((tmp_path / gpu_truth.RUNS).glob("*/rank*"))
