"""What an OpenTelemetry collector gets, decoded by the official definitions, and if it is away."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from distprof.artefacts import STEPS_FILE
from distprof.artefacts.records import StepRecord
from distprof.cli import main
from distprof.errors import InputError, UsageError
from distprof.verbs.export import otel
from distprof.verbs.export.otel import Sender, base_of, name_of, send, unit_of
from distprof.verbs.export.prometheus import Observed, all_families
from tests.documents.samples import straggler
from tests.job_folders import MS, START_NS, JobFolder


class Collector:
    """A receiver of OTLP over HTTP that keeps what it gets."""

    def __init__(self):
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.spans: list[ExportTraceServiceRequest] = []
        self.status = 200
        self.delay = threading.Event()
        self.delay.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                data = self.rfile.read(int(self.headers["Content-Length"]))
                outer.delay.wait(30)
                if outer.status == 200:
                    outer._take(self.path, data)
                self.send_response(outer.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def _take(self, path: str, data: bytes) -> None:
        if path == "/v1/metrics":
            self.metrics.append(ExportMetricsServiceRequest.FromString(data))
        elif path == "/v1/traces":
            self.spans.append(ExportTraceServiceRequest.FromString(data))

    def end(self) -> None:
        self.delay.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def points(self) -> dict[tuple[str, tuple], float]:
        """The numbers of the last request."""
        found = {}
        for metric in self._all_metrics():
            data = metric.sum if metric.HasField("sum") else metric.gauge
            for point in data.data_points:
                labels = tuple(sorted((a.key, a.value.string_value) for a in point.attributes))
                value = point.as_int if point.HasField("as_int") else point.as_double
                found[metric.name, labels] = value
        return found

    def _all_metrics(self):
        for resource in self.metrics[-1].resource_metrics:
            for scope in resource.scope_metrics:
                yield from scope.metrics

    def steps(self) -> list:
        return [
            span
            for request in self.spans
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.end()


@pytest.fixture
def job(tmp_path):
    folder = JobFolder(tmp_path / "run", mesh={"dp_replicate": 2})
    for rank, ms in ((0, 10), (1, 12)):
        folder.steps(rank, [ms] * 3, tokens=100, losses=[3.0, 2.0, 1.0])
    folder.write()
    return folder


def sender(job: JobFolder, collector: Collector, **options) -> Sender:
    return Sender(Observed(str(job.path)), collector.endpoint, **{"timeout_s": 5, **options})


def add(job: JobFolder, step: int, rank: int = 0) -> None:
    start = START_NS + step * 10 * MS
    record = StepRecord(step=step, start_ns=start, end_ns=start + 10 * MS)
    with (job.rank_dir(rank) / STEPS_FILE).open("ab") as stream:
        stream.write(msgspec.json.encode(record) + b"\n")


def attributes(span) -> dict:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_metrics_arrive_with_their_values_kinds_and_units(job, collector):
    assert sender(job, collector).send()
    points = collector.points()
    assert points["distprof.steps", (("rank", "0"),)] == 3
    assert points["distprof.step_seconds", (("rank", "1"),)] == pytest.approx(0.036)
    assert points["distprof.job_ranks", ()] == 2
    metrics = {metric.name: metric for metric in collector._all_metrics()}
    steps = metrics["distprof.steps"].sum
    assert steps.is_monotonic
    assert steps.aggregation_temporality == 2  # cumulative
    assert metrics["distprof.step_seconds"].unit == "s"
    assert metrics["distprof.job_ranks"].HasField("gauge")
    (resource,) = collector.metrics[-1].resource_metrics
    said = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert said["service.name"] == "distprof"
    assert said["distprof.run"] == "run"


def test_a_span_per_step_of_one_rank(job, collector):
    assert sender(job, collector).send()
    spans = collector.steps()
    assert [attributes(span)["distprof.step"] for span in spans] == [0, 1, 2]
    first = spans[0]
    assert (first.name, first.start_time_unix_nano) == ("step", START_NS)
    assert first.end_time_unix_nano - first.start_time_unix_nano == 10 * MS
    assert attributes(first) == {
        "distprof.rank": 0,
        "distprof.step": 0,
        "distprof.is_traced": False,
        "distprof.tokens": 100,
        "distprof.loss": 3.0,
    }
    assert len({span.trace_id for span in spans}) == 3
    assert not any(span.parent_span_id for span in spans)


def test_another_rank_can_be_chosen(job, collector):
    assert sender(job, collector, rank=1).send()
    assert {attributes(span)["distprof.rank"] for span in collector.steps()} == {1}


def test_each_step_is_sent_once_and_only_new_ones_later(job, collector):
    one = sender(job, collector)
    assert one.send()
    assert one.send()
    assert len(collector.steps()) == 3
    add(job, 3)
    assert one.send()
    assert [attributes(span)["distprof.step"] for span in collector.steps()] == [0, 1, 2, 3]
    assert collector.points()["distprof.steps", (("rank", "0"),)] == 4


def test_a_report_has_metrics_and_no_spans(tmp_path, collector):
    straggler().save(tmp_path / "report.json")
    assert Sender(Observed(str(tmp_path / "report.json")), collector.endpoint).send()
    expected = {
        (f"distprof.report_{name.removesuffix('_count')}", ()): value
        for name, value in straggler().metrics().items()
    }
    assert collector.points() == pytest.approx(expected)
    assert collector.steps() == []


def test_names_and_units_are_those_of_opentelemetry():
    names = [name_of(family) for family in all_families()]
    assert len(set(names)) == len(names)
    assert all(name.startswith("distprof.") and not name.endswith("_total") for name in names)
    units = {name_of(family): unit_of(family) for family in all_families()}
    assert units["distprof.memory_resident_bytes"] == "By"
    assert units["distprof.gpu_utilization_ratio"] == "1"
    assert units["distprof.steps"] == ""


def test_steps_wait_for_a_collector_that_is_away(job, collector):
    one = sender(job, collector, timeout_s=1)
    collector.status = 400
    assert not one.send()
    add(job, 3)
    collector.status = 200
    assert one.send()
    assert len(collector.steps()) == 4
    assert one.num_dropped == 0


def test_too_many_waiting_steps_are_dropped_and_counted(job, collector, monkeypatch):
    monkeypatch.setattr(otel, "MAX_WAITING", 2)
    one = sender(job, collector)
    assert one.send()
    assert one.num_dropped == 1
    assert [attributes(span)["distprof.step"] for span in collector.steps()] == [1, 2]


def test_many_steps_go_in_several_requests(job, collector, monkeypatch):
    monkeypatch.setattr(otel, "_BATCH", 2)
    assert sender(job, collector).send()
    assert len(collector.spans) == 2
    assert len(collector.steps()) == 3


def test_a_collector_that_never_answers_is_given_up_in_time(job, collector):
    """Nothing is asserted on how fast: only that the answer is not waited for."""
    collector.delay.clear()
    assert not sender(job, collector, timeout_s=0.5).send()


def test_a_collector_that_is_absent_is_an_error_once_and_a_sentence_each_time(job, collector):
    collector.end()
    try:
        away = sender(job, collector, timeout_s=0.5)
        with pytest.raises(InputError, match="collectors listen on port 4318"):
            send(away, collector.endpoint, None, failed=pytest.fail)
        told, naps = [], []

        def nap(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            send(away, collector.endpoint, 15, failed=told.append, sleep=nap)
        assert told == [f"{collector.endpoint} did not accept data"] * 2
        assert naps == [15, 15]
    finally:
        collector._server = _Ended()


class _Ended:
    def shutdown(self):
        pass

    server_close = shutdown


def test_again_and_again_begins_with_the_steps_from_now_on(job, collector):
    rounds = []

    def nap(_: float) -> None:
        rounds.append(len(collector.steps()))
        add(job, 3 + len(rounds))
        if len(rounds) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        send(sender(job, collector), collector.endpoint, 1, failed=pytest.fail, sleep=nap)
    assert rounds == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "4318", "localhost:4318", "ftp://x", "http://", "http://x:y"])
def test_other_addresses_are_refused(text):
    with pytest.raises(UsageError, match=r"is not an address such as http://127.0.0.1:4318"):
        base_of(text)


def test_the_command_sends_once(job, collector, capsys):
    assert main(["export", "otel", str(job.path), "--endpoint", collector.endpoint + "/"]) == 0
    assert "Sent to" in capsys.readouterr().err
    assert len(collector.steps()) == 3


def test_wrong_usage_is_said_before_anything_is_sent(job, capsys):
    assert main(["export", "otel", str(job.path), "--endpoint", "nowhere"]) == 2
    assert "is not an address" in capsys.readouterr().err


def test_without_the_packages_the_extra_is_named(job, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    assert main(["export", "otel", str(job.path)]) == 2
    assert "pip install 'distprof[otel]'" in capsys.readouterr().err


def test_nothing_in_the_run_directory_changes(job, collector):
    before = {file: file.stat().st_mtime_ns for file in job.path.rglob("*")}
    sender(job, collector).send()
    assert {file: file.stat().st_mtime_ns for file in job.path.rglob("*")} == before
