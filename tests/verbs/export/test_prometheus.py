"""Metrics for Prometheus: by the official parsers, while a job writes, and when things go wrong."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import msgspec
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from distprof.artefacts import STEPS_FILE
from distprof.artefacts.records import CollectivesRecord, GroupTimes, StepRecord
from distprof.cli import main
from distprof.errors import InputError, UsageError
from distprof.ingest.job.growing import LiveRun
from distprof.verbs.export import prometheus
from distprof.verbs.export.prometheus import (
    Exposition,
    all_families,
    families_of_report,
    families_of_run,
    keep_file,
    serve,
    text_of,
)
from distprof.verbs.sources import listen_address
from tests.documents.job_samples import SAMPLES
from tests.documents.samples import straggler
from tests.job_folders import MS, START_NS, JobFolder

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "job" / "nccl-fsdp-2ranks-h100"
UNITS = ("_total", "_seconds", "_ratio", "_bytes", "_watts", "_celsius", "_hertz", "_joules")
UNITLESS = ("_loss", "_ranks", "_findings", "_rules", "_steps", "_per_second")


@pytest.fixture
def job(tmp_path):
    folder = JobFolder(tmp_path / "run", mesh={"dp_replicate": 2})
    for rank, ms in ((0, 10), (1, 12)):
        folder.steps(rank, [ms] * 5, phases={"forward": 0.5}, tokens=100)
    folder.write()
    return folder


def parsed(text: str) -> dict[tuple[str, tuple], float]:
    """Every sample, by the official parser."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_names_follow_the_conventions():
    names = [family.name for family in all_families()]
    assert len(set(names)) == len(names)
    for family in all_families():
        assert family.name.startswith("distprof_")
        assert family.name.endswith((*UNITS, *UNITLESS)), family.name
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert not family.name.endswith(("_count", "_sum", "_bucket", "_info"))


def test_a_live_run_is_what_its_ranks_wrote(job):
    found = parsed(text_of(Exposition(str(job.path))))
    assert found["distprof_steps_total", (("rank", "0"),)] == 5
    assert found["distprof_step_seconds_total", (("rank", "1"),)] == pytest.approx(0.06)
    assert found["distprof_tokens_total", (("rank", "1"),)] == 500
    assert found["distprof_job_ranks", ()] == 2
    assert found["distprof_job_steps_total", ()] == 5
    assert found["distprof_job_step_median_seconds", ()] == pytest.approx(0.011)
    assert found["distprof_job_step_slowest_seconds", ()] == pytest.approx(0.012)
    key = ("distprof_phase_seconds_total", (("phase", "forward"), ("rank", "0")))
    assert found[key] == pytest.approx(0.025)
    assert not any("report" in name or "loss" in name for name, _ in found)


def test_own_time_is_sent_as_what_the_thread_did(tmp_path):
    folder = JobFolder(tmp_path / "run", mesh={"dp_replicate": 2}, outcome="running")
    steps = [
        StepRecord(
            step=number,
            start_ns=START_NS + number * 10 * MS,
            end_ns=START_NS + (number + 1) * 10 * MS,
            cpu_ns=6 * MS,
            run_queue_ns=10**17 if number else MS,  # longer than the step: a damaged line
            input_asleep_ns=None if number else 2 * MS,
        )
        for number in range(2)
    ]
    folder.lines(0, STEPS_FILE, steps).steps(1, [10]).write()
    found = parsed(text_of(Exposition(str(folder.path))))
    states = {
        labels[1][1]: round(value * 1e3)
        for (name, labels), value in found.items()
        if name == "distprof_thread_seconds_total" and labels[0] == ("rank", "0")
    }
    assert states == {"running": 12, "waiting_for_cpu": 11, "waiting_for_input": 2}


def test_the_time_of_collectives_is_sent_where_it_is_recorded(tmp_path):
    folder = JobFolder(tmp_path / "run", mesh={"dp_replicate": 2}, outcome="running")
    folder.steps(0, [10, 10]).steps(1, [10])
    groups = (
        GroupTimes(group="0:1", kind="all", num=2, total_ns=(3 * MS, 4 * MS)),
        GroupTimes(group="p", kind="messages", num=1, total_ns=(-5,)),
    )
    folder.collectives(0, *(CollectivesRecord(step=n, groups=groups) for n in range(2))).write()
    found = parsed(text_of(Exposition(str(folder.path))))
    name = "distprof_collective_seconds_total"
    assert found[name, (("rank", "0"),)] == pytest.approx(0.014)
    assert (name, (("rank", "1"),)) not in found


@pytest.mark.parametrize("name", SAMPLES)
def test_a_report_is_its_metrics(name, tmp_path):
    report = SAMPLES[name]()
    report.save(tmp_path / "report.json")
    found = parsed(text_of(Exposition(str(tmp_path / "report.json"))))
    expected = {
        (f"distprof_report_{key.removesuffix('_count')}", ()): value
        for key, value in report.metrics().items()
    }
    assert found == pytest.approx(expected)


def test_a_run_that_has_ended_has_both(tmp_path):
    folder = shutil.copytree(GOLDEN, tmp_path / "run")
    assert main(["analyze", str(folder), "-q", "--brief"]) == 0
    names = {name for name, _ in parsed(text_of(Exposition(str(folder))))}
    assert {"distprof_report_computation_ratio", "distprof_gpu_power_watts"} <= names


def test_what_is_sent_is_declared_and_of_the_declared_labels(job):
    run = LiveRun(str(job.path))
    run.look()
    sent = {**families_of_run(run), **families_of_report(straggler())}
    assert set(sent) <= set(all_families())
    for family, samples in sent.items():
        assert all(len(sample.labels) == len(family.labels) for sample in samples)


def test_the_number_of_series_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(prometheus, "MAX_RANKS", 3)
    folder = JobFolder(tmp_path / "run", mesh={"dp_replicate": 4})
    for rank in range(4):
        folder.steps(rank, [10])
    folder.write()
    found = parsed(text_of(Exposition(str(folder.path))))
    assert found["distprof_job_ranks", ()] == 4
    assert all(labels == () for _, labels in found)


@pytest.fixture
def served(job):
    end, port = serve(Exposition(str(job.path)), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{port}/metrics"
    end()


def fetched(address: str, accept: str = "text/plain") -> str:
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def test_openmetrics_is_valid_by_the_official_parser(served):
    text = fetched(served, "application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    kinds = {one.name: one.type for one in openmetrics.text_string_to_metric_families(text)}
    assert kinds["distprof_steps"] == "counter"
    assert kinds["distprof_job_ranks"] == "gauge"


def test_each_scrape_is_of_now(served, job):
    assert parsed(fetched(served))["distprof_steps_total", (("rank", "0"),)] == 5
    record = StepRecord(step=5, start_ns=START_NS, end_ns=START_NS + 10 * MS)
    with (job.rank_dir(0) / STEPS_FILE).open("ab") as stream:
        stream.write(msgspec.json.encode(record) + b"\n")
    assert parsed(fetched(served))["distprof_steps_total", (("rank", "0"),)] == 6


def test_a_scraper_that_hangs_keeps_nobody_waiting(served):
    """It asks, and never reads or ends its request."""
    port = int(served.rpartition(":")[2].partition("/")[0])
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
    try:
        for one in slow:
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
        assert "distprof_steps_total" in fetched(served)
    finally:
        for one in slow:
            one.close()


def test_a_port_that_is_taken_is_named(served, job):
    port = int(served.rpartition(":")[2].partition("/")[0])
    with pytest.raises(InputError, match=f"127.0.0.1:{port}"):
        serve(Exposition(str(job.path)), "127.0.0.1", port)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_addresses_are_loopback_unless_said(text, address):
    assert listen_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "host:", "1:99999", "-1", "²", "1" * 50])
def test_other_addresses_are_refused(text):
    with pytest.raises(UsageError):
        listen_address(text)


def test_the_file_is_whole_at_any_time_and_written_again(job, tmp_path):
    file, written = tmp_path / "out" / "distprof.prom", []
    file.parent.mkdir()

    def look(seconds: float) -> None:
        written.append((seconds, len(parsed(file.read_text())), sorted(file.parent.iterdir())))
        if len(written) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep_file(Exposition(str(job.path)), str(file), 15, failed=pytest.fail, sleep=look)
    assert [seconds for seconds, _, _ in written] == [15, 15, 15]
    assert all(count > 10 and files == [file] for _, count, files in written)


def test_a_disk_that_is_full_for_a_while_is_no_end(job, tmp_path, monkeypatch):
    file, told, rounds = tmp_path / "distprof.prom", [], []
    real = Path.replace

    def full(self, target):
        if len(rounds) == 1:
            raise OSError(28, "No space left on device")
        return real(self, target)

    def look(_: float) -> None:
        rounds.append(file.read_text())
        if len(rounds) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(KeyboardInterrupt):
        keep_file(Exposition(str(job.path)), str(file), 1, failed=told.append, sleep=look)
    assert told == [f"{file} was not written: No space left on device"]
    assert all("distprof_steps_total" in text for text in rounds)
    assert list(tmp_path.glob("*distprof.prom*")) == [file]


def test_one_write_that_fails_is_an_error(job, tmp_path):
    with pytest.raises(InputError, match="No such file or directory"):
        keep_file(
            Exposition(str(job.path)), str(tmp_path / "absent" / "x"), None, failed=pytest.fail
        )


def test_nothing_in_the_run_directory_changes(job):
    before = {file: file.stat().st_mtime_ns for file in job.path.rglob("*")}
    text_of(Exposition(str(job.path)))
    assert {file: file.stat().st_mtime_ns for file in job.path.rglob("*")} == before


def test_a_damaged_report_costs_the_report_only(job):
    (job.path / "report.json").write_text('{"schema": "distprof.report/2"')
    found = parsed(text_of(Exposition(str(job.path))))
    assert ("distprof_job_ranks", ()) in found


def test_the_command_writes_to_stdout_and_into_a_file(job, tmp_path, capsys):
    assert main(["export", "prometheus", str(job.path)]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "x.prom"
    assert main(["export", "prometheus", str(job.path), "-o", str(file), "-q"]) == 0
    assert file.read_text() == printed
    assert main(["export", "prometheus", str(job.path), "-o", str(file)]) == 2
    assert "--force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "1", "-o", "x.prom"], "choose one"),
        (["--every", "1"], "--every needs -o FILE"),
        (["--listen", "nowhere"], "is not an address"),
    ],
)
def test_wrong_usage_is_said(job, words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "prometheus", str(job.path), *words]) == 2
    assert said in capsys.readouterr().err


def test_without_the_package_the_extra_is_named(job, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["export", "prometheus", str(job.path)]) == 2
    assert "pip install 'distprof[prometheus]'" in capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted(job):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["export", "prometheus", str(job.path), "--listen", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "distprof", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert f"http://127.0.0.1:{port}/metrics" in process.stderr.readline()
        assert "distprof_steps_total" in fetched(f"http://127.0.0.1:{port}/metrics")
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.returncode == 130
