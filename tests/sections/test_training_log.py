"""Figures of training logs: by hand, then what publishers and their data say of real ones."""

import os
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from distprof.api import analyze, open_run
from distprof.hardware import load_sheet
from distprof.ingest.assemble import assemble_run
from distprof.ingest.kinds import with_evidence
from distprof.ingest.training_logs.grammar import byte_patterns
from distprof.ingest.training_logs.read import read_training_log
from distprof.run.logs import TrainingFacts, TrainingLog
from distprof.sections.shows import judge
from distprof.sections.training_log.measure import analyze_training_log

MS = 1_000_000
GOLDEN = Path(__file__).parents[1] / "golden"
LOGS = GOLDEN / "training-logs"


def log_of(duration_ms, **fields) -> TrainingLog:
    duration = np.array(duration_ms, np.int64) * MS
    count = len(duration)
    nothing = np.full(count, np.nan)
    given = {
        "origin": "somebody",
        "iteration": np.arange(1, count + 1, dtype=np.int64),
        "span": np.ones(count, np.int64),
        "duration_ns": duration,
        "samples_per_s": nothing,
        "tokens_per_s": nothing,
        "tokens_per_s_per_device": nothing,
        "tflops": nothing,
        "loss": nothing,
        "printed_samples_per_s": np.empty(0),
    }
    return TrainingLog(**given | fields)


def result_of(log):
    run = assemble_run("train.log", (), (), may_be_empty=True)
    return analyze_training_log(run.having(log))


def test_the_first_report_does_not_count():
    result = result_of(log_of([9_000, 100, 100, 130]))
    assert result.num_steady == 3
    assert result.mean_ns == 110 * MS
    assert result.median_ns == 100 * MS
    assert result.max_ns == 130 * MS


def test_a_mean_weighs_reports_by_their_iterations():
    log = log_of([9_000, 100, 200], span=np.array([1, 30, 10], np.int64))
    assert result_of(log).mean_ns == 125 * MS


def test_a_pipeline_idles_for_what_its_stage_does_not_compute():
    timers = {
        "forward-compute": np.array([0, 300, 300]) * MS,
        "backward-compute": np.array([0, 200, 200]) * MS,
        "forward-recv": np.array([0, 400, 400]) * MS,
    }
    facts = TrainingFacts(mesh={"pp": 4}, num_micro_batches=4)
    result = result_of(log_of([5_000, 1_000, 1_000], timers=timers, facts=facts))
    assert result.compute_ratio == pytest.approx(0.5)
    assert result.idle_ratio == pytest.approx(0.5)
    assert result.ideal_bubble_ratio == pytest.approx(3 / 7)
    assert result.timer_stage == "last"
    assert [timer.name for timer in result.timers if timer.waits] == ["forward-recv"]


@pytest.mark.parametrize(
    ("names", "stage"),
    [
        (("forward-send", "backward-recv"), "first"),
        (("forward-send", "forward-recv"), "middle"),
        (("forward-recv", "backward-send"), "last"),
        (("optimizer",), ""),
    ],
)
def test_the_stage_is_told_by_what_it_exchanges(names, stage):
    timers = {name: np.array([1, 1, 1]) * MS for name in names}
    log = log_of([100] * 3, timers=timers, facts=TrainingFacts(mesh={"pp": 4}))
    assert result_of(log).timer_stage == stage


def test_slow_iterations_that_come_regularly_have_a_period():
    times = np.full(400, 100)
    times[49::50] = 300
    result = result_of(log_of(times))
    assert result.num_slow == 8
    assert result.slow_period == 50
    assert result.slowest[0].duration_ns == 300 * MS
    assert result.slow_excess_ns == pytest.approx(8 * 200 * MS / 399, abs=1)


def test_slow_iterations_that_come_at_random_have_none():
    times = np.full(400, 100)
    times[np.random.default_rng(5).choice(400, 30, replace=False)] = 300
    result = result_of(log_of(times))
    assert result.num_slow >= 29
    assert result.slow_period is None


def test_iterations_that_all_take_longer_from_one_on_are_not_single_slow_ones():
    result = result_of(log_of([400] * 30 + [700] * 20))
    assert result.num_slow == 0
    assert result.slow_span.num_reports == 20


def test_iterations_that_grow_with_the_batch_are_not_slow():
    times = np.repeat([100, 200, 300], 101)
    assert result_of(log_of([100, *times])).num_slow <= 20  # none but next to a change


def test_means_of_many_iterations_show_no_slow_ones():
    result = result_of(log_of([100] * 50, span=np.full(50, 10, np.int64)))
    assert result.num_slow is None
    assert any("single slow iterations" in text for text in result.unavailable)


def test_without_a_log_nothing_is_said_but_why():
    result = result_of(None)
    assert not result.origin
    assert result.unavailable


def test_four_stages_with_four_micro_batches_compute_for_half():
    result = analyze(str(LOGS / "megatron-tp4-pp4-mb4-v100.out.gz")).training_log
    compute = sum(
        t.mean_ns for t in result.timers if t.name in ("forward-compute", "backward-compute")
    )
    waiting = next(t for t in result.timers if t.name == "backward-embedding-all-reduce")
    assert result.mean_ns / MS == pytest.approx(1_388.7, abs=0.05)
    assert compute / MS == pytest.approx(700.1, abs=0.05)
    assert result.compute_ratio == pytest.approx(0.504, abs=5e-4)
    assert result.ideal_bubble_ratio == pytest.approx(0.429, abs=5e-4)
    assert waiting.mean_ns / MS == pytest.approx(419, abs=0.5)
    assert waiting.waits
    assert result.timer_stage == "last"
    assert (result.world_size, result.mesh) == (16, {"tp": 4, "pp": 4, "dp": 1})


def test_sixteen_stages_with_four_micro_batches_compute_for_a_fifth():
    report = analyze(str(LOGS / "megatron-tp4-pp16-mb4-v100.out.gz"))
    result = report.training_log
    log = read_training_log(str(LOGS / "megatron-tp4-pp16-mb4-v100.out.gz"))
    assert result.mean_ns / MS == pytest.approx(2_745.7, abs=0.05)
    assert result.compute_ratio == pytest.approx(0.205, abs=5e-4)
    assert result.ideal_bubble_ratio == pytest.approx(0.789, abs=5e-4)
    assert log.timers["backward-embedding-all-reduce"][-1] / MS == pytest.approx(1_542.5, abs=0.1)
    assert log.timers["forward-recv"][-1] / MS == pytest.approx(509.3, abs=0.1)
    assert [finding.code for finding in report.findings] == ["PIP105"]
    assert judge(report).headline.startswith("The last stage of the pipeline computes 20.5 %")


def test_many_micro_batches_leave_little_idle_at_best():
    name = "megatron-ds-3d-tp4-pp16-mb-many-v100-ds-off.out.gz"
    result = analyze(str(LOGS / name)).training_log
    assert result.num_micro_batches == 256
    assert result.mean_ns / MS == pytest.approx(126_589, abs=0.5)
    assert result.compute_ratio == pytest.approx(0.814, abs=5e-4)
    assert result.ideal_bubble_ratio == pytest.approx(0.055, abs=5e-4)


def test_a_speedruns_steps_add_up_to_its_time():
    log = read_training_log(str(LOGS / "nanogpt-8xh100-2025-12-31.txt.gz"))
    assert log.iteration[-1] == 1_845
    assert len(log.iteration) == 1_845
    assert int(log.duration_ns.sum()) == 113_972 * MS


def test_a_terminal_with_nccls_lines_and_the_programs_is_read_as_both():
    path = str(GOLDEN / "nccl" / "rccl-2.22.3-mi300x-2node-16gpu-socket.txt.gz")
    report = analyze(path)
    assert report.nccl.num_files == 1
    assert report.training_log.origin == "MLPerf logging"
    assert round(read_training_log(path).printed_samples_per_s[0], 2) == 3.93
    assert "NET/Socket" in judge(report).detail


def test_a_log_beside_traces_joins_them():
    traces = str(GOLDEN / "kineto" / "gloo-ddp-2ranks")
    log = str(LOGS / "megatron-tp4-pp4-mb4-v100.out.gz")  # of 16 ranks
    assert open_run(traces, evidence=[log], use_cache=False).get(TrainingLog) is None
    alone = open_run(traces, use_cache=False)
    unsized = replace(alone, topology=replace(alone.topology, world_size=None))
    run = with_evidence(unsized, [log])
    assert run.get(TrainingLog) is not None
    assert len(run) == 2
    assert analyze(run).training_log.num_reports == 20


corpus = pytest.mark.skipif(
    "DISTPROF_CORPUS" not in os.environ, reason="DISTPROF_CORPUS is not set"
)


@pytest.mark.corpus
@corpus
def test_series_of_a_megatron_test_have_the_figures_of_their_publisher():
    folder = Path(os.environ["DISTPROF_CORPUS"])
    log = read_training_log(str(folder / "step-times" / "deepseekv3-proxy-pp4-ep16-h100.json.gz"))
    seconds = log.duration_ns / 1e9
    assert len(seconds) == 9_529
    assert log.num_unknown == 8
    assert np.median(seconds) == pytest.approx(12.03, abs=0.005)
    assert np.percentile(seconds, 99) == pytest.approx(17.57, abs=0.005)
    assert seconds.max() == pytest.approx(99.8, abs=0.05)
    assert int((seconds > 1.2 * np.median(seconds)).sum()) == 683


@pytest.mark.corpus
@corpus
def test_logs_that_hold_nccls_lines_too():
    logs = Path(os.environ["DISTPROF_CORPUS"]).parent / "logs"
    timers = logs / "nccl" / "2.7.8-v100-16node-64gpu-megatron-tp4-pp16.out.gz"
    result = analyze(str(timers)).training_log
    assert result.num_micro_batches == 256
    assert result.mean_ns / 1e9 == pytest.approx(123.5, abs=0.05)
    assert result.compute_ratio == pytest.approx(0.870, abs=5e-4)
    assert result.ideal_bubble_ratio == pytest.approx(0.055, abs=5e-4)
    wide = analyze(str(logs / "pipeline-timers" / "megatron-tp4-pp64-mb4-v100.out.gz")).training_log
    assert wide.mean_ns / MS == pytest.approx(6_721.9, abs=0.05)
    assert wide.compute_ratio == pytest.approx(0.066, abs=5e-4)
    assert wide.ideal_bubble_ratio == pytest.approx(0.940, abs=5e-4)
    bar = analyze(str(logs / "nccl" / "2.20.5-h100-4node-32gpu-sft.txt.gz")).training_log
    assert bar.mean_ns / 1e9 == pytest.approx(12.34, abs=0.01)  # 9,500 steps in 32:34:14


def test_a_log_without_steps_of_a_trace_has_its_cost_per_iteration():
    report = analyze(str(LOGS / "megatron-tp4-pp16-mb4-v100.out.gz"))
    (finding,) = report.findings
    assert finding.cost_ns_per_step == pytest.approx((0.7952 - 0.1) * 2_745.7 * MS, rel=1e-3)
    assert "1.91 s per iteration (69.5 %)" in str(report)


def test_slow_iterations_that_add_to_the_training_are_a_finding(tmp_path):
    times = [300 if number % 50 == 0 else 100 for number in range(1, 401)]
    rows = "".join(f"{number},{ms}\n" for number, ms in enumerate(times, 1))
    path = tmp_path / "steps.csv"
    path.write_text(f"step,step_time_ms\n{rows}", encoding="utf-8")
    (finding,) = analyze(str(path)).findings
    assert finding.code == "STR108"
    assert "every 50 iterations" in finding.message
    assert finding.cost_ns_per_step == pytest.approx(8 * 200 * MS / 399, abs=1)


def test_a_speedrun_with_a_few_slow_steps_is_no_finding():
    assert analyze(str(LOGS / "nanogpt-8xh100-2025-12-31.txt.gz")).findings == ()


def test_deepspeeds_breakdown_of_steps_is_enough(tmp_path):
    """No line names an iteration: the breakdown itself gives its time and the reduction."""
    head = "[2024-05-01 10:00:0{0},123] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) |"
    micro = " fwd_microstep: 210.0 | bwd_microstep: 600.0 | bwd_allreduce_microstep: 215.0"
    whole = " fwd: 210.00 | bwd: 600.00 | bwd_inner: 385.00 | bwd_allreduce: 215.00 | step: 50.00"
    lines = [head.format(i) + text for i in range(6) for text in (micro, whole)]
    file = tmp_path / "job.out"
    file.write_text("\n".join(lines) + "\n")
    report = analyze(str(file))
    assert report.training_log.mean_ns == 860 * MS
    verdict = judge(report)
    assert verdict.headline == "The reduction of gradients takes 25.0 % of an iteration"
    assert verdict.why[0].startswith("An iteration takes 860 ms")
    (finding,) = report.findings
    assert (finding.code, finding.cost_ns_per_step) == ("COM127", 215 * MS)


def test_every_gpu_of_the_hardware_sheet_is_known_by_its_name_in_a_log():
    pattern = byte_patterns("runs.toml")["gpu"]
    for name in load_sheet().gpus:
        found = pattern.findall(f"16 x {name.upper()}-SXM".encode())
        assert found == [name.upper().encode()]
