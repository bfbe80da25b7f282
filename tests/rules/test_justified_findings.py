"""Every finding on a real artefact has been looked at, and its reason is written down."""

import os
import re
import tomllib
from pathlib import Path

import pytest

import distprof
from distprof.rules import all_rules

GOLDEN = Path(__file__).parents[1] / "golden"
JUSTIFIED = tomllib.loads((GOLDEN / "findings.toml").read_text("utf-8"))


def sample_of(artefact):
    """Where it lies among the samples; None where it is too large for them."""
    name = Path(artefact).name
    return next((path for path in sorted(GOLDEN.rglob(name)) if "LICENSES" not in path.parts), None)


SAMPLED = {artefact: path for artefact in JUSTIFIED if (path := sample_of(artefact))}


def codes_found(path):
    report = distprof.analyze(distprof.open_run(path, use_cache=False), debug=True)
    return list(dict.fromkeys(finding.code for finding in report.findings))


def assert_justified(codes, artefact):
    """The same findings, the most important one first."""
    assert set(codes) == set(JUSTIFIED[artefact])
    assert codes[:1] == list(JUSTIFIED[artefact])[:1]


@pytest.mark.parametrize("artefact", SAMPLED, ids=lambda artefact: Path(artefact).name)
def test_findings_on_samples_are_those_that_are_justified(artefact):
    assert_justified(codes_found(SAMPLED[artefact]), artefact)


@pytest.mark.corpus
@pytest.mark.parametrize("artefact", JUSTIFIED, ids=lambda artefact: Path(artefact).name)
def test_findings_on_all_real_artefacts_are_those_that_are_justified(artefact):
    folder = os.environ.get("DISTPROF_CORPUS")
    if not folder:
        pytest.skip("DISTPROF_CORPUS names no folder of real traces")
    path = Path(folder).parent / artefact
    if not path.exists():
        pytest.skip(f"{path} is not there")
    assert_justified(codes_found(path), artefact)


def test_many_artefacts_are_samples_and_some_are_silent():
    assert len(SAMPLED) >= 20
    assert sum(not reasons for reasons in JUSTIFIED.values()) >= 10


def test_reasons_are_sentences_about_known_rules():
    known = {rule.code for rule in all_rules()}
    for reasons in JUSTIFIED.values():
        assert set(reasons) <= known
        assert all(re.fullmatch(r".{15,}\.", reason) for reason in reasons.values())
