"""Formats of CI services: valid by their schemas, harmless, and what each service relies on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.cli import main
from distprof.documents.ci import Case, Cases, fingerprints, github, gitlab, junit, sarif
from distprof.documents.saved import Report
from distprof.formats import RenderOptions, find_reporter
from distprof.rules.base import NotChecked
from distprof.terms import CI_FORMATS, Severity
from docs.documents import ALL_DOCUMENTS
from tests.contracts.test_documents import SAMPLES as DOCUMENTS
from tests.documents.job_samples import SAMPLES, hostile_job
from tests.documents.samples import finding, healthy, nasty, straggler
from tests.optional import optional

etree = optional("lxml.etree")

SCHEMAS = Path(__file__).parent / "schemas"
JOBS = Path(__file__).parents[2] / "verbs" / "plan" / "jobs_of_others"
JUDGING = ("check", "plan-lint", "report")
WRITERS: dict[str, Callable[[Cases], str]] = {
    "github": github,
    "gitlab": gitlab,
    "sarif": sarif,
    "junit": junit,
}


def shown(report: Report, name: str, **options: str) -> str:
    return find_reporter(name)(report, RenderOptions(**options))  # type: ignore[arg-type]


def schema_of(name: str) -> jsonschema.protocols.Validator:
    schema = json.loads((SCHEMAS / name).read_text())
    return jsonschema.validators.validator_for(schema)(schema)


def check_github(text: str) -> None:
    """Each line is one of three commands; the runner reads a command wherever a line begins."""
    for line in text.splitlines():
        assert re.fullmatch(r"::(error|warning|notice) (\w+=[^,:]*,?)+::[^\r\n]*", line), line
        assert not re.search("%(?!25|0A|0D|3A|2C)", line), line
    assert text.splitlines() == text.removesuffix("\n").split("\n")


def check_gitlab(text: str) -> None:
    rows = json.loads(text)
    schema_of("gitlab-code-quality.json").validate(rows)
    assert len({row["fingerprint"] for row in rows}) == len(rows)


def check_sarif(text: str) -> None:
    log = json.loads(text)
    schema_of("sarif-2.1.0-rtm.5.json").validate(log)
    (run,) = log["runs"]
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [ids[one["ruleIndex"]] for one in run["results"]] == [
        one["ruleId"] for one in run["results"]
    ]


def check_junit(text: str) -> None:
    document = etree.fromstring(text.encode())
    etree.XMLSchema(etree.parse(str(SCHEMAS / "junit-10.xsd"))).assertValid(document)
    (suite,) = document
    assert int(suite.get("tests")) == len(suite) > 0


CHECKS = {
    "github": check_github,
    "gitlab": check_gitlab,
    "sarif": check_sarif,
    "junit": check_junit,
}


def test_documents_that_judge_have_all_of_them_and_no_other_has_one():
    having = {one.name for one in ALL_DOCUMENTS if set(CI_FORMATS) <= set(one.reporters)}
    assert having == set(JUDGING)
    any_of = {one.name for one in ALL_DOCUMENTS if set(CI_FORMATS) & set(one.reporters)}
    assert any_of == having


@pytest.mark.parametrize("format_name", CI_FORMATS)
@pytest.mark.parametrize("name", SAMPLES)
def test_every_report_is_valid(name: str, format_name: str):
    CHECKS[format_name](shown(SAMPLES[name](), format_name))


@pytest.mark.parametrize("format_name", CI_FORMATS)
@pytest.mark.parametrize("name", JUDGING)
def test_every_document_is_valid(name: str, format_name: str):
    (document,) = (one for one in ALL_DOCUMENTS if one.name == name)
    CHECKS[format_name](document.reporter(format_name)(DOCUMENTS[name](), RenderOptions()))


TEXTS = st.text(
    st.characters() | st.sampled_from("%:,\r\n\x1b\x00{}[]<&>\\/ \u202e\ud800"), max_size=40
)
CASES = st.builds(
    Case,
    code=TEXTS.filter(str.strip),
    name=TEXTS,
    message=TEXTS,
    severity=st.none() | st.sampled_from(Severity),
    outcome=st.sampled_from(["passed", "failed", "skipped"]),
    fix=TEXTS,
    ranks=st.lists(st.integers(0, 9), unique=True).map(tuple),
)
ALL = st.builds(
    Cases,
    command=st.sampled_from(["distprof analyze", "distprof plan --lint"]),
    version=TEXTS,
    source=TEXTS,
    verdict=TEXTS,
    cases=st.lists(CASES, max_size=4).map(tuple),
    is_source_file=st.booleans(),
)


@pytest.mark.parametrize("format_name", CI_FORMATS)
@given(found=ALL)
def test_any_text_is_harmless_and_the_document_valid(format_name: str, found: Cases):
    text = WRITERS[format_name](found)
    CHECKS[format_name](text)
    assert all(character.isprintable() for line in text.split("\n") for character in line)


def test_a_name_cannot_give_github_a_command():
    """A kernel or file whose name has a line break could otherwise mask or stop later output."""
    name = "x\n::stop-commands::token\r\n::add-mask::secret%0A::error::"
    made = msgspec.structs.replace(healthy(), findings=(finding(message=name, fix=name),))
    text = shown(made, "github")
    assert all(line.startswith(("::notice title=", "::error title=")) for line in text.splitlines())
    assert len(text.splitlines()) == 2
    assert "%250A" in text


def test_github_shows_the_verdict_then_problems_by_importance():
    lines = shown(straggler(), "github").splitlines()
    assert lines[0].startswith("::notice title=distprof analyze::Rank 2 holds the others up")
    assert [line.split("::")[1] for line in lines] == [
        "notice title=distprof analyze",
        "error title=STR101 persistent-straggler",
        "warning title=COM102 arrival-skew-bound-collectives",
        "notice title=HST101 launch-bound-host",
    ]
    assert "(31.0 %25)" in lines[1]
    assert "Fix: Compare rank 2 with its peers" in lines[1]


def test_problems_of_a_configuration_are_shown_at_its_file(capsys):
    words = ["plan", "--lint", str(JOBS / "own.toml"), "--model", "llama3-8b", "--gpus", "24"]
    assert main([*words, "--format", "github"]) == 1
    errors = [line for line in capsys.readouterr().out.splitlines() if "::error" in line]
    assert all("/own.toml,line=1,title=CFG" in line for line in errors)
    assert errors


def test_severities_are_those_of_each_service():
    rows = json.loads(shown(straggler(), "gitlab"))
    assert [row["severity"] for row in rows] == ["critical", "major", "info"]
    results = json.loads(shown(straggler(), "sarif"))["runs"][0]["results"]
    assert [one["level"] for one in results] == ["error", "warning", "note"]


def test_a_fingerprint_stays_while_numbers_change():
    """Services follow a problem from run to run by it."""
    first, second = straggler(), straggler()
    changed = tuple(msgspec.structs.replace(f, message="9 ms") for f in second.findings)
    second = msgspec.structs.replace(second, findings=changed)
    for name in ("gitlab", "sarif"):
        marks = [re.findall(r"[0-9a-f]{32}", shown(report, name)) for report in (first, second)]
        assert marks[0] == marks[1]
        assert len(set(marks[0])) == 3


def test_two_findings_of_one_rule_are_told_apart():
    one = Case(code="STR101", message="a", severity=Severity.ERROR, ranks=(1,))
    other = msgspec.structs.replace(one, ranks=(2,))
    found = Cases(command="c", version="1", source="s", verdict="v", cases=(one, one, other))
    assert len(set(fingerprints(found))) == 3


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("traces/", "traces"),
        ("./traces/./x", "traces/./x"),
        (".//traces", "traces"),
        ("a\\b", "a/b"),
        ("/data/run", "/data/run"),
        ("", "."),
        ("./", "."),
    ],
)
def test_a_path_is_as_the_user_named_it_without_what_services_refuse(source, path):
    found = Cases(command="c", version="1", source=source, verdict="v", cases=())
    assert found.path == path


def test_rules_that_were_not_checked_are_skipped_tests_and_notifications():
    left = (NotChecked(code="TEL101", name="hot-gpu", why="no telemetry [x] {y}"),)
    report = msgspec.structs.replace(healthy(), not_checked=left)
    suite = ElementTree.fromstring(shown(report, "junit").encode())[0]
    assert [(case.get("name"), [part.tag for part in case]) for case in suite] == [
        ("verdict", ["system-out"]),
        ("TEL101 hot-gpu", ["skipped"]),
    ]
    (run,) = json.loads(shown(report, "sarif"))["runs"]
    assert run["results"] == []
    (told,) = run["invocations"][0]["toolExecutionNotifications"]
    # braces and brackets have a meaning in SARIF's messages
    assert told["message"]["text"].endswith("not checked: no telemetry \\[x\\] {{y}}")


@pytest.mark.parametrize(
    ("fail_on", "failures"), [("", 2), ("warning", 2), ("error", 1), ("info", 3)]
)
def test_a_test_fails_where_the_job_does(fail_on, failures):
    suites = ElementTree.fromstring(shown(straggler(), "junit", fail_on=fail_on).encode())
    assert suites.get("failures") == str(failures)


def test_fail_on_reaches_the_document(tmp_path, capsys):
    straggler().save(tmp_path / "report.json")
    words = ["report", str(tmp_path / "report.json"), "--fail-on", "error"]
    out = tmp_path / "out.xml"
    assert main([*words, "-o", str(out), "-q"]) == 1
    assert ElementTree.parse(out).getroot().get("failures") == "1"


@pytest.mark.parametrize("report", [nasty(), hostile_job()], ids=["traces", "job"])
@pytest.mark.parametrize("format_name", CI_FORMATS)
def test_hostile_reports_are_valid(format_name, report):
    CHECKS[format_name](shown(report, format_name))


def test_the_ending_of_a_file_names_the_format(tmp_path):
    straggler().save(tmp_path / "report.json")
    for name in ("out.sarif", "out.xml"):
        assert main(["report", str(tmp_path / "report.json"), "-o", str(tmp_path / name)]) == 0
    check_sarif((tmp_path / "out.sarif").read_text())
    check_junit((tmp_path / "out.xml").read_text())


@pytest.mark.parametrize("format_name", CI_FORMATS)
def test_what_judges_nothing_has_none_of_them(tmp_path, capsys, format_name):
    straggler().save(tmp_path / "report.json")
    file = str(tmp_path / "report.json")
    assert main(["compare", file, file, "--format", format_name]) == 2
    assert "is not one of text, brief, json, md, html" in capsys.readouterr().err


def test_a_plan_has_them_for_lint_only(capsys):
    assert main(["plan", "--model", "llama3-8b", "--gpus", "8", "--format", "sarif"]) == 2
    assert "no format 'sarif' for a plan" in capsys.readouterr().err
