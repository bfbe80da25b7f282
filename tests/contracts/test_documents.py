"""What holds for every document: its schema, its formats, and that it comes back as written.

A new document needs a sample in ``SAMPLES`` and nothing else here.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from distprof import open_run, verbs
from distprof.artefacts.summary_file import Acknowledged
from distprof.documents.document import Document
from distprof.errors import InputError, SchemaError, UsageError
from distprof.formats import RenderOptions
from distprof.hardware import load_sheet
from distprof.ingest.fabric import read_fabric
from distprof.verbs.compare.show import compare_reports
from distprof.verbs.gate.baseline import accepted, acknowledge, find_metric, make_baseline
from distprof.verbs.gate.check import baseline_of, judge
from distprof.verbs.hang.evidence import read_evidence
from distprof.verbs.hang.measure import diagnose
from distprof.verbs.history import by_series, trace_metric
from distprof.verbs.op import tell
from distprof.verbs.plan.lint import check_layout, layout_of, read_job_file
from distprof.verbs.plan.search import make_plan
from distprof.verbs.sweep.measure import report_scaling
from distprof.verbs.sweep.runs import plan_program
from docs.documents import ALL_DOCUMENTS
from docs.schemas import schema_file, schema_of, schema_text
from tests.documents.samples import healthy, straggler
from tests.flight_jobs import GPU_ERROR
from tests.verbs.history.samples import commits
from tests.verbs.plan.jobs import question
from tests.verbs.sweep.sweeps import parts, runs
from tests.verbs.watch.samples import alert, running

TESTS = Path(__file__).parent.parent
FAST = tuple(runs(2, 100, parts(computation=90, exposed_wait=10)))
SLOW = tuple(runs(2, 120, parts(computation=90, exposed_wait=30)))
LARGE = runs(8, 125, parts(computation=95, exposed_transfer=20, host=10))


def baseline():
    made = make_baseline(FAST)
    loss = Acknowledged(metric="memory", up_to=0.1, reason="a larger cache")
    return acknowledge(accepted(made, FAST), loss)


def check():
    return judge(
        baseline(),
        baseline_of(((), SLOW)).sessions[0],
        source="perf.json",
        fingerprint=SLOW[0].fingerprint,
        now_ns=1,
    )


def history():
    metric = find_metric("step_time")
    assert metric is not None
    series = by_series(commits([[100e6, 101e6, 100e6]] * 4 + [[130e6, 131e6, 130e6]] * 3))
    return trace_metric(series, metric, source="runs")


def lint():
    file = read_job_file(TESTS / "verbs" / "plan" / "jobs_of_others" / "own.toml")
    layout, batch = layout_of(file, num_gpus=24, batch=None)
    return check_layout(question(batch=batch or 128, gpus=24), layout, file)


SAMPLES: dict[str, Callable[[], msgspec.Struct]] = {
    "alert": alert,
    "baseline": baseline,
    "check": check,
    "comparison": lambda: compare_reports(healthy(), straggler()),
    "fabric": lambda: read_fabric(
        str(TESTS / "golden" / "nccl-tests" / "mlperf-v4.0-h100-8gpu-allreduce.log")
    ),
    "hang": lambda: diagnose(read_evidence(str(GPU_ERROR), executor="serial"), version="1"),
    "history": history,
    "operator": lambda: (
        tell(
            open_run(TESTS / "golden" / "kineto" / "tp8-b200-rank0"), "aten::mm", sheet=load_sheet()
        ).story
    ),
    "plan": lambda: make_plan(question(gpus=16), most=3),
    "plan-lint": lint,
    "report": straggler,
    "scaling": lambda: report_scaling([*FAST, *LARGE], source="runs"),
    "summary": lambda: FAST[0],
    "sweep": lambda: plan_program(["train", "{ranks}"], [1, 2], repeats=2, device="ranks"),
    "watch": running,
}


@pytest.fixture(scope="module", params=ALL_DOCUMENTS, ids=lambda document: document.name)
def document(request):
    return request.param


@pytest.fixture(scope="module")
def sample(document):
    return SAMPLES[document.name]()


def test_every_sample_is_of_a_document():
    assert set(SAMPLES) == {document.name for document in ALL_DOCUMENTS}


def test_every_document_that_a_verb_declares_is_listed():
    declared = {
        id(value)
        for verb in pkgutil.walk_packages(verbs.__path__, "distprof.verbs.")
        if ".rules" not in verb.name
        for value in vars(import_module(verb.name)).values()
        if isinstance(value, Document)
    }
    assert declared <= {id(document) for document in ALL_DOCUMENTS}


def test_its_schema_is_named_as_the_struct_names_it(document):
    fields = {field.name: field for field in msgspec.structs.fields(document.kind)}
    assert fields["schema"].default == document.schema


def test_the_shipped_schema_is_the_generated_one(document):
    shipped = schema_file(document)
    assert shipped.read_text("utf-8") == schema_text(schema_of(document))


def test_what_is_written_fits_the_schema_and_nothing_else_does(document: Document, sample):
    validator = jsonschema.Draft202012Validator(schema_of(document))
    written = json.loads(document.encode(sample))
    validator.validate(written)
    assert not validator.is_valid({**written, "schema": "distprof.other/1"})
    assert not validator.is_valid([])


def test_what_was_written_is_read_back(document: Document, sample, tmp_path):
    assert document.load(document.save(sample, tmp_path / "file.json")) == sample
    assert [file.name for file in tmp_path.iterdir()] == ["file.json"]


def test_every_format_shows_it(document: Document, sample):
    for name in document.reporters:
        text = document.reporter(name)(sample, RenderOptions(width=80))
        assert text.strip(), name
        assert text.endswith("\n"), name
    if document.page is not None:
        assert {"text", "json", "md"} <= set(document.reporters)


def test_another_format_is_refused_with_those_that_there_are(document: Document):
    with pytest.raises(UsageError, match=r"no format 'pdf' for an? .*: choose from .*json"):
        document.reporter("pdf")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b"{", "damaged or unrelated JSON"),
        (b"[]", "damaged or unrelated JSON"),
        (b"{}", 'JSON without "schema"'),
        (b'{"schema": "distprof.other/1"}', '"schema": "distprof.other/1"'),
    ],
)
def test_what_is_none_is_refused_by_what_was_found(document: Document, data, found):
    with pytest.raises(SchemaError) as caught:
        document.decode(data, "some.json")
    assert found in caught.value.found
    assert document.schema in caught.value.expected
    assert caught.value.fix


def test_a_field_of_another_type_is_named_by_its_place(document: Document, sample):
    written = {**json.loads(document.encode(sample)), "distprof_version": 1, "version": 1}
    with pytest.raises(SchemaError, match="version"):
        document.decode(json.dumps(written).encode(), "some.json")


def test_a_missing_or_a_larger_file_is_an_input_error(document: Document, tmp_path):
    with pytest.raises(InputError, match="No such file"):
        document.load(tmp_path / "absent.json")
    (tmp_path / "large.json").write_bytes(b" " * (2 << 20))
    with pytest.raises(InputError, match="more than 1 MiB"):
        replace(document, max_bytes=1 << 20).load(tmp_path / "large.json")
