"""The real Prometheus and node_exporter read what we send, and the configurations we document work.

Both come from Debian (``apt-get install prometheus prometheus-node-exporter``).
"""

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import msgspec
import pytest

from distprof.artefacts import STEPS_FILE
from distprof.artefacts.records import Phase, StepRecord
from distprof.verbs.export.prometheus import Exposition, keep_file, serve, text_of
from tests.job_folders import MS, JobFolder
from tests.verbs.export.test_dashboard import DASHBOARD, PANELS, substituted

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "prometheus.md"
SCRAPE, ALERTS = re.findall(r"```yaml\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
GPU_OR_REPORT = re.compile(r"distprof_(gpu|memory_allocated|collective|report)_")
NEVER_DIVIDED = re.compile(r"distprof_(samples)_")

pytestmark = pytest.mark.skipif(
    not shutil.which("prometheus"), reason="no Prometheus: apt-get install prometheus"
)


def checked(*words: str, text: str = "") -> str:
    """Run promtool, which must be satisfied."""
    done = subprocess.run(
        ["promtool", *words], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def started(folder: Path, *command: str):
    """A server that runs until the end of the block; its output is shown if a test fails."""
    with (folder / "server.log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            yield
        finally:
            process.kill()
            process.wait()
            log.seek(0)
            print(log.read())


def fetched(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.read().decode()


def eventually(found, limit_s: float = 60.0):
    """What a server answers, once it answers and it is not empty."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            if answer := found():
                return answer
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:  # it listens before it is ready
                raise
            error.close()
        except OSError:
            pass  # not started yet
        assert time.monotonic() < deadline, "the server has no answer"
        time.sleep(0.1)


class Training:
    """Two ranks that write a step of 10 ms each 10 ms, until the end of the block."""

    def __init__(self, path: Path) -> None:
        self._folder = JobFolder(path, mesh={"dp_replicate": 2}, outcome="running")
        for rank in range(2):
            self._folder.steps(rank, [10])
        self._folder.write()
        self.path = self._folder.path
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._train)

    def __enter__(self) -> "Training":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _train(self) -> None:
        step = 0
        while not self._ended.wait(0.01):
            step += 1
            for rank in range(2):
                self._write(rank, step)

    def _write(self, rank: int, step: int) -> None:
        end_ns = time.time_ns()
        start_ns = end_ns - 10 * MS
        record = StepRecord(
            step=step,
            start_ns=start_ns,
            end_ns=end_ns,
            phases=(Phase("forward", start_ns, start_ns + 4 * MS),),
            cpu_ns=(3 + rank) * MS,
            run_queue_ns=MS,
            input_asleep_ns=0,
            tokens=50,
            loss=2.5,
        )
        with (self._folder.rank_dir(rank) / STEPS_FILE).open("ab") as stream:
            stream.write(msgspec.json.encode(record) + b"\n")


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    with Training(tmp_path_factory.mktemp("job") / "run") as job:
        yield job


@pytest.fixture(scope="module")
def ask(training, tmp_path_factory):
    """Asks a Prometheus that has scraped the job, by the configuration we show."""
    folder = tmp_path_factory.mktemp("prometheus")
    end, exporter = serve(Exposition(str(training.path)), "127.0.0.1", 0)
    often = (
        "global:\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n  evaluation_interval: 200ms\n"
    )
    scrape = SCRAPE.replace("localhost:9464", f"127.0.0.1:{exporter}")
    assert str(exporter) in scrape
    (folder / "rules.yml").write_text(ALERTS)
    (folder / "prometheus.yml").write_text(f"{often}rule_files: [rules.yml]\n{scrape}")
    server = f"http://127.0.0.1:{(port := free_port())}"
    words = ("--config.file=prometheus.yml", "--storage.tsdb.path=data")

    def asked(path: str, **parameters: str):
        answer = fetched(f"{server}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        return json.loads(answer)["data"]

    with started(folder, "prometheus", *words, f"--web.listen-address=127.0.0.1:{port}"):
        scraped = "count_over_time(distprof_job_ranks[1m]) > 10"
        eventually(lambda: asked("query", query=scraped)["result"])
        yield asked
    end()


def value_of(answer) -> float:
    (series,) = answer["result"]
    return float(series["value"][1])


def test_prometheus_scrapes_us_without_an_error(ask):
    (target,) = ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    assert target["labels"]["job"] == "distprof"


def test_every_rank_that_trains_is_in_its_answers(ask):
    steps = ask("query", query="rate(distprof_steps_total[5s])")["result"]
    assert {one["metric"]["rank"] for one in steps} == {"0", "1"}
    assert all(float(one["value"][1]) > 1 for one in steps)
    quotient = (
        'rate(distprof_step_seconds_total{rank="0"}[5s]) / rate(distprof_steps_total{rank="0"}[5s])'
    )
    assert value_of(ask("query", query=quotient)) == pytest.approx(0.010, rel=0.01)
    own = "sum by (rank) (rate(distprof_thread_seconds_total[5s]))"
    own_times = ask("query", query=f"{own} / sum by (rank) (rate(distprof_steps_total[5s]))")
    found = {one["metric"]["rank"]: float(one["value"][1]) for one in own_times["result"]}
    assert found == pytest.approx({"0": 0.004, "1": 0.005}, rel=0.01)


def test_the_kinds_that_prometheus_knows_are_those_we_declare(ask):
    known = ask("metadata")
    assert known["distprof_steps"][0]["type"] == "counter"  # OpenMetrics names it without _total
    assert known["distprof_job_ranks"][0]["type"] == "gauge"
    assert all(one["help"] for name, (one, *_) in known.items() if name.startswith("distprof_"))


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_prometheus_answers_every_query_of_the_dashboard(ask, panel):
    for target in panel["targets"]:
        query = substituted(target["expr"]).replace("[1m]", "[5s]")
        answer = ask("query", query=query)
        if not GPU_OR_REPORT.search(query) and not NEVER_DIVIDED.search(query):
            found = answer["result"]
            assert found, query
            rows = found if answer["resultType"] == "vector" else [{"value": found}]
            assert all(row["value"][1] not in {"NaN", "+Inf"} for row in rows), query


def test_the_variables_of_the_dashboard_have_values(ask):
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            query = substituted(variable["query"]["query"])
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()
            assert ask(f"label/{label}/values", **{"match[]": metric}), query


def test_promtool_finds_nothing_in_the_metrics(training):
    assert checked("check", "metrics", text=text_of(Exposition(str(training.path)))) == ""


def test_node_exporter_reads_our_file(training, tmp_path):
    if not shutil.which("prometheus-node-exporter"):
        pytest.skip("no node_exporter: apt-get install prometheus-node-exporter")
    (tmp_path / "metrics").mkdir()
    file = tmp_path / "metrics" / "distprof.prom"
    keep_file(Exposition(str(training.path)), str(file), None, failed=pytest.fail)
    address = f"127.0.0.1:{free_port()}"
    words = ("--collector.disable-defaults", "--collector.textfile")
    with started(
        tmp_path,
        "prometheus-node-exporter",
        *words,
        f"--collector.textfile.directory={tmp_path / 'metrics'}",
        f"--web.listen-address={address}",
    ):
        found = eventually(lambda: fetched(f"http://{address}/metrics")).splitlines()
    assert "node_textfile_scrape_error 0" in found
    ours = [line for line in file.read_text().splitlines() if line.startswith("distprof_")]
    sent = {line.split()[0]: float(line.split()[1]) for line in found if "distprof_" in line[:9]}
    assert sent == {line.split()[0]: float(line.split()[1]) for line in ours}


# The alerts we document, against invented series --------------------------------------------------


def fired(
    tmp_path: Path, alert: str, series: dict[str, str], expected: list[dict[str, str]]
) -> None:
    """Half an hour of these series has these alerts, by promtool's own test of rules.

    Args:
        tmp_path: For its files.
        alert: Name of the rule.
        series: What is scraped every 15 s: a selector, and values in promtool's notation.
        expected: Labels of the alerts that must fire, besides job and instance; no others may.
    """
    common = {"job": "distprof", "instance": "a:1"}
    (tmp_path / "rules.yml").write_text(ALERTS)
    test = {
        "interval": "15s",
        "input_series": [
            {
                "series": name.replace("{", '{job="distprof",instance="a:1",'),
                "values": values,
            }
            for name, values in series.items()
        ],
        "alert_rule_test": [
            {
                "eval_time": "30m",
                "alertname": alert,
                "exp_alerts": [{"exp_labels": {**common, **labels}} for labels in expected],
            }
        ],
    }
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": [test]}
    (tmp_path / "test.yml").write_text(json.dumps(whole))  # JSON is YAML
    checked("test", "rules", str(tmp_path / "test.yml"))


def thread(rank: int, **seconds: float) -> dict[str, str]:
    """Own time of a rank: so many seconds of every 15, in each state of its thread."""
    return {
        f'distprof_thread_seconds_total{{rank="{rank}",state="{state}"}}': f"0+{value}x200"
        for state, value in seconds.items()
    }


@pytest.mark.parametrize(
    "late", [{"running": 13}, {"running": 9, "waiting_for_cpu": 4}, {"waiting_for_input": 13}]
)
def test_the_alert_names_the_rank_that_is_late_whatever_its_thread_did(late, tmp_path):
    ranks = [thread(rank, running=8, waiting_for_cpu=1) for rank in range(7)]
    series = {key: value for one in (*ranks, thread(7, **late)) for key, value in one.items()}
    fired(tmp_path, "RankLate", series, [{"rank": "7"}])


def test_ranks_that_take_about_the_same_are_not_late(tmp_path):
    ranks = [thread(rank, running=10 + 0.1 * rank) for rank in range(8)]
    series = {key: value for one in ranks for key, value in one.items()}
    fired(tmp_path, "RankLate", series, [])


def test_an_alert_says_that_the_training_stopped(tmp_path):
    name = 'distprof_last_step_end_timestamp_seconds{rank="0"}'
    fired(tmp_path, "TrainingStopped", {name: "0+15x30 450x200"}, [{}])
    fired(tmp_path, "TrainingStopped", {name: "0+15x200"}, [])
