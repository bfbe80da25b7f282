"""What is kept of a report to be compared."""

from pathlib import Path

import msgspec
import pytest

import distprof
from distprof.artefacts.summary_file import StepParts
from distprof.sections.job import JobResult
from distprof.sections.settings import SettingsResult
from distprof.sections.step_log import StepLogResult
from distprof.verbs.summaries import summarize_report
from tests.rules.samples import host_setup

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDINGS = ("job/gloo-hsdp-4ranks", "job/gloo-pp-4ranks", "kineto/dlrm-v100-8gpu")


@pytest.fixture(scope="module", params=RECORDINGS)
def report(request):
    return distprof.analyze(GOLDEN / request.param)


def test_the_parts_add_up_to_the_step(report):
    parts = summarize_report(report).parts
    assert isinstance(parts, StepParts)
    figures = msgspec.to_builtins(parts)
    assert figures.pop("span_ns") == sum(figures.values())


def test_without_a_step_log_steps_are_the_traced_ones(report):
    summary = summarize_report(report)
    assert summary.is_traced
    assert len(summary.step_ns) == report.step_time.num_steps
    assert sorted(summary.step_ns)[len(summary.step_ns) // 2] >= report.step_time.median_ns


def test_steps_that_no_profiler_disturbed_come_first(report):
    log = StepLogResult(plain_ns=(90, 110, 100), tokens_per_step=200)
    summary = summarize_report(msgspec.structs.replace(report, step_log=log))
    assert summary.step_ns == (90, 110, 100)
    assert not summary.is_traced
    assert summary.tokens_per_step == 200
    assert summary.samples_per_step is None


def test_a_log_alone_tells_ranks_steps_and_work():
    log = GOLDEN / "training-logs" / "megatron-tp4-pp4-mb4-v100.out.gz"
    summary = summarize_report(distprof.analyze(log))
    assert summary.fingerprint.world_size == 16
    assert summary.fingerprint.mesh == {"tp": 4, "pp": 4, "dp": 1}
    assert len(summary.step_ns) == 19  # of 20 reports; the first is no steady one
    assert sorted(summary.step_ns)[9] == 1_380_600_000
    assert not summary.is_traced
    assert (summary.tokens_per_step, summary.samples_per_step) == (4_096, 4)


def test_waiting_for_messages_is_a_bubble_in_pipelines_only(report):
    parts = summarize_report(report).parts
    assert (parts.bubble_ns > 0) == ("pp" in report.run.mesh)


def test_the_fingerprint_has_what_the_job_says_of_itself(report):
    job = JobResult(kind="run", workload="ddp", config={"model.hidden": "64"}, git_commit="abc")
    summary = summarize_report(msgspec.structs.replace(report, job=job), label="mine")
    assert summary.label == "mine"
    assert summary.git_commit == "abc"
    assert summary.fingerprint.workload == "ddp"
    assert summary.fingerprint.config == {"model.hidden": "64"}
    assert summary.fingerprint.world_size == report.run.world_size


@pytest.mark.parametrize(
    ("device", "models", "expected"),
    [
        ("cpu", ("EPYC", "EPYC"), "cpu (EPYC)"),
        ("cpu", ("Xeon", "", "EPYC"), "cpu (EPYC, Xeon)"),
        ("cpu", ("",), "cpu"),
        ("cpu", (), "cpu"),
        ("NVIDIA H100", ("EPYC",), "NVIDIA H100"),
    ],
)
def test_processors_are_told_apart_by_their_model(report, device, models, expected):
    hosts = tuple(host_setup(str(i), (i,), processor=model) for i, model in enumerate(models))
    changed = msgspec.structs.replace(
        report,
        run=msgspec.structs.replace(report.run, device=device),
        settings=SettingsResult(hosts=hosts),
    )
    assert summarize_report(changed).fingerprint.device == expected


def test_energy_and_utilisation_are_those_of_the_report(report):
    telemetry = msgspec.structs.replace(report.telemetry, energy_per_step_j=12.5)
    efficiency = msgspec.structs.replace(report.efficiency, mfu_ratio=0.4)
    changed = msgspec.structs.replace(report, telemetry=telemetry, efficiency=efficiency)
    summary = summarize_report(changed)
    assert (summary.energy_per_step_j, summary.mfu_ratio) == (12.5, 0.4)
