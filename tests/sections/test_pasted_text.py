"""Text that people paste when a job is slow: the first lines say what an expert reads in it."""

import tomllib
from pathlib import Path

import pytest

from distprof.api import analyze, open_run
from distprof.errors import InputError
from distprof.ingest.fabric import read_fabric
from distprof.sections.verdict import judge

GOLDEN = Path(__file__).parents[1] / "golden" / "pasted"
EXPECTED = tomllib.loads((GOLDEN / "expected.toml").read_text("utf-8"))


def first_lines(path: Path) -> str:
    try:
        report = analyze(open_run(str(path)))
    except InputError as error:
        return str(error)
    verdict = judge(report)
    return " ".join(
        (verdict.headline, *(finding.message for finding in report.findings), *verdict.why)
    )


def test_each_sample_has_an_expectation():
    assert {path.name for path in GOLDEN.iterdir()} == {"expected.toml", *EXPECTED}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_first_lines_say_what_an_expert_says(name):
    text, at = first_lines(GOLDEN / name), 0
    for phrase in EXPECTED[name]["says"]:
        at = text.find(phrase, at)
        assert at >= 0, (phrase, text)
    assert not [phrase for phrase in EXPECTED[name].get("never", ()) if phrase in text]


def test_tests_of_one_rank_have_no_bandwidth():
    with pytest.raises(InputError, match="a single rank"):
        read_fabric(str(GOLDEN / "tests-of-one-rank.log"))
