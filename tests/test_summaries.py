"""From what a user names to summaries."""

import shutil
from pathlib import Path

import msgspec
import pytest

import distprof
from distprof.artefacts.summary_file import SUMMARY_SCHEMA, SummaryFile
from distprof.errors import InputError
from distprof.verbs.summaries import load_summaries, open_report

GOLDEN = Path(__file__).parent / "golden"
RUN = GOLDEN / "job" / "gloo-hsdp-4ranks"


def test_traces_are_analysed(tmp_path):
    traces = tmp_path / "traces"
    shutil.copytree(RUN, traces)
    (summary,) = load_summaries([traces])
    assert summary.fingerprint.world_size == 4
    assert summary.parts is not None


def test_a_saved_report_is_not_analysed_again(tmp_path):
    report = distprof.analyze(RUN)
    saved = report.save(tmp_path / "mine.json")
    assert open_report(saved) == report
    assert load_summaries([saved])[0].source == report.run.source


def test_saved_summaries_come_back_as_they_were(tmp_path):
    one = SummaryFile(distprof_version="1", created_ns=1, step_ns=(3, 4))
    single, several = tmp_path / "one.json", tmp_path / "two.json"
    single.write_bytes(msgspec.json.encode(one))
    several.write_bytes(msgspec.json.encode([one, one]))
    assert load_summaries([single, several]) == (one, one, one)


@pytest.mark.parametrize(
    "text",
    [
        '{"schema": "distprof.summary/1"',
        '{"schema": "distprof.summary/1", "step_ns": "no"}',
        '[{"schema": "distprof.summary/1"}, 3]',
        '{"schema": "distprof.summary/1", "tokens_per_step": 1e999}',
        '{"schema": "distprof.summary/1", "step_ns": [99999999999999999999]}',
    ],
)
def test_damaged_summaries_are_named(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError, match=SUMMARY_SCHEMA):
        load_summaries([path])


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        load_summaries([tmp_path / "nowhere"])
