"""A saved report comes back as it was, or says why it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

import distprof
from distprof.documents import document
from distprof.documents.saved import REPORT, load_report
from distprof.errors import InputError, SchemaError
from docs.schemas import schema_of, schema_page, schema_text
from tests.documents.job_samples import SAMPLES
from tests.documents.samples import healthy, nasty, report_of, run_info

SHIPPED = Path(distprof.__file__).parent / "documents" / "schemas" / "report.schema.json"


@pytest.mark.parametrize("name", SAMPLES)
def test_what_was_written_is_read_back(name: str, tmp_path: Path) -> None:
    report = SAMPLES[name]()
    assert load_report(report.save(tmp_path / "r.json")) == report


def test_a_large_report_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = healthy()
    small = REPORT.encode(report)
    monkeypatch.setattr(document, "LARGE", 100)
    path = report.save(tmp_path / "r.json")
    assert load_report(path) == report
    assert small.count(b"\n") > path.read_bytes().count(b"\n") == 1


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**300])
def test_a_number_that_nothing_measures_is_refused(number: int) -> None:
    document = json.loads(REPORT.encode(healthy()))
    document["waterfall"]["num_steps"] = number
    with pytest.raises(SchemaError, match="of more than 64 bits"):
        REPORT.decode(json.dumps(document).encode(), "r.json")


@pytest.mark.parametrize("number", ["1e999", "-1E+999", "9" * 400 + ".0"])
def test_a_number_that_a_parser_makes_infinite_is_refused(number: str) -> None:
    data = REPORT.encode(healthy()).replace(b'_ratio": 1.0', b'_ratio": ' + number.encode(), 1)
    with pytest.raises(SchemaError, match="out of range"):
        REPORT.decode(data, "r.json")


def test_long_digits_in_a_text_are_no_number() -> None:
    document = json.loads(REPORT.encode(healthy()))
    document["run"]["source"] = "9" * 40
    assert REPORT.decode(json.dumps(document).encode(), "r.json").run.source == "9" * 40


@pytest.mark.parametrize("name", SAMPLES)
def test_every_report_fits_the_schema(name: str) -> None:
    validator = jsonschema.Draft202012Validator(schema_of(REPORT))
    validator.validate(json.loads(REPORT.encode(SAMPLES[name]())))


def test_the_schema_refuses_what_is_no_report() -> None:
    validator = jsonschema.Draft202012Validator(schema_of(REPORT))
    document = json.loads(REPORT.encode(healthy()))
    del document["waterfall"]["num_steps"]
    assert not validator.is_valid(document)
    assert not validator.is_valid({"schema": "distprof.report/2"})


def test_the_shipped_schema_is_the_generated_one(golden: Callable[[Path, str], None]) -> None:
    golden(SHIPPED, schema_text(schema_of(REPORT)))


def test_the_reference_page_is_the_generated_one(golden: Callable[[Path, str], None]) -> None:
    page = Path(distprof.__file__).parent.parent / "docs" / "reference" / "report-schema.md"
    golden(page, schema_page(REPORT))


def test_the_schema_says_what_fields_mean() -> None:
    definitions = schema_of(REPORT)["$defs"]
    described = definitions["RankStraggler"]["properties"]["lost_ns_per_step"]["description"]
    assert described.startswith("Exposed wait of a typical other member, summed over")
    assert "Args" not in definitions["RankStraggler"]["description"]


def test_json_is_the_same_bytes_every_time_and_ends_with_a_newline() -> None:
    first, second = REPORT.encode(healthy()), REPORT.encode(healthy())
    assert first == second
    assert first.endswith(b"}\n")
    assert first.startswith(b'{\n "schema": "distprof.report/2",\n "distprof_version"')


def test_a_run_directory_stands_for_its_report(tmp_path: Path) -> None:
    healthy().save(tmp_path / "report.json")
    assert load_report(tmp_path) == healthy()


def test_saving_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("old")
    healthy().save(file)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert load_report(file) == healthy()


def test_a_missing_report_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_report(tmp_path / "absent.json")


def test_a_place_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="-o"):
        healthy().save(tmp_path / "absent" / "report.json")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b"{", "damaged or unrelated JSON"),
        (b"\xff\xfe\x00", "damaged or unrelated JSON"),
        (b"[1, 2]", "damaged or unrelated JSON"),
        (b'{"traceEvents": []}', 'JSON without "schema"'),
        (b'{"schema": "distprof.report/1"}', '"schema": "distprof.report/1"'),  # an earlier version
        (b'{"schema": "distprof.report/3"}', '"schema": "distprof.report/3"'),
        (b'{"schema": 1}', "damaged or unrelated JSON"),
        (b'{"schema": "distprof.report/2"}', "missing required field"),
        (b"[" * 100_000, "damaged or unrelated JSON"),
    ],
)
def test_what_is_no_report_is_refused_with_what_was_found(data: bytes, found: str) -> None:
    with pytest.raises(SchemaError) as caught:
        REPORT.decode(data, "some.json")
    assert found in caught.value.found
    assert caught.value.source == "some.json"


def test_a_wrong_type_inside_is_named_by_its_place() -> None:
    data = REPORT.encode(healthy()).replace(b'"num_ranks": 8', b'"num_ranks": "8"', 1)
    with pytest.raises(SchemaError, match=r"num_ranks"):
        REPORT.decode(data, "some.json")


def test_an_unknown_field_is_refused_and_the_writer_named() -> None:
    data = REPORT.encode(healthy()).replace(b'"run": {', b'"more": 1, "run": {', 1)
    with pytest.raises(SchemaError, match=r"more.*written by distprof 0\.1\.0"):
        REPORT.decode(data, "some.json")


def test_characters_that_a_terminal_obeys_are_spelled_out_and_come_back() -> None:
    data = REPORT.encode(nasty())
    assert b"\\u202e" in data
    assert "\u202e".encode() not in data
    assert REPORT.decode(data, "x") == nasty()


def test_a_file_name_that_is_not_utf8_does_not_cost_the_report() -> None:
    report = report_of([], run=run_info((0,), source="run-\udcff", device="\U000e0041"))
    back = REPORT.decode(REPORT.encode(report), "x")
    assert back.run.source == r"run-\udcff"
    assert back.run.device == "\U000e0041"
