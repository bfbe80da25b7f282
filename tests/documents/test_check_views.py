"""The gate's answer as people and machines read it."""

import json
from xml.etree import ElementTree

import msgspec
import pytest

from distprof.artefacts.summary_file import Fingerprint
from distprof.formats import RenderOptions
from distprof.verbs.gate import SHORT_BASELINE, UNKNOWN_SESSIONS
from distprof.verbs.gate.check import CheckResult, MetricCheck, PartLoss
from distprof.verbs.gate.show import CHECK, amount, check_verdict


def metric(**fields):
    values = {
        "metric": "step_time", "label": "step time", "unit": "ns", "state": "regressed",
        "scale": "ratio", "baseline": 100e6, "candidate": 108e6, "change": 1.08, "low": 1.06,
        "high": 1.1, "p": 0.004, "tolerance": 0.02, "num_baseline": 5, "num_candidate": 6,
        "needed_repeats": None, "is_gated": True, "why": "Because.",
    }  # fmt: skip
    return MetricCheck(**{**values, **fields})


OVERLAP_FIELDS = {
    "metric": "overlap", "label": "overlap of communication", "unit": "ratio",
    "state": "inconclusive", "scale": "difference", "baseline": 0.7, "candidate": 0.64,
    "change": -0.06, "low": -0.2, "high": 0.08,
}  # fmt: skip
OVERLAP = metric(**OVERLAP_FIELDS, is_gated=False)


def result(*metrics, **fields):
    values = {
        "distprof_version": "1",
        "state": metrics[0].state,
        "baseline": "perf.json",
        "baseline_commit": "a" * 40,
        "candidate_commit": "b" * 40,
        "fingerprint": Fingerprint(device="H200"),
        "metrics": metrics,
    }
    return CheckResult(**{**values, **fields})


def shown(result, name="text", **options):
    return CHECK.reporter(name)(result, RenderOptions(**options))


def test_the_first_line_is_the_verdict_with_its_figures():
    lines = shown(result(metric(), OVERLAP)).splitlines()
    assert lines[0] == "Regressed: step time +8 % (+6 to +10), tolerance 2 %."
    assert "6 repeats against 5" in lines[2]
    assert "commit bbbbbbbbbbbb against commit aaaaaaaaaaaa" in lines[2]


@pytest.mark.parametrize(
    ("needed", "why", "advice"),
    [
        (1, "Because.", "Run 1 more repeat."),
        (7, "Because.", "Run 7 more repeats."),
        (None, "Because.", "No reasonable number of repeats would settle it"),
        (None, UNKNOWN_SESSIONS, "measure both sides alternately"),
        (None, SHORT_BASELINE, "a single repeat"),
    ],
)
def test_what_is_undecided_says_what_would_decide_it(needed, why, advice):
    one = metric(state="inconclusive", needed_repeats=needed, why=why)
    assert advice in check_verdict(result(one, needed_repeats=needed))


def test_each_figure_has_its_unit_and_the_estimate_its_name():
    text = shown(result(metric(), metric(**{**OVERLAP_FIELDS, "tolerance": 0.03})), width=120)
    assert "the change is a Hodges-Lehmann estimate" in text
    assert "+8 %" in text
    assert " 2 %" in text
    assert " 3 pt" in text


def test_without_a_common_metric_nothing_is_claimed():
    assert "no gated metric in common" in check_verdict(result(OVERLAP, state="inconclusive"))


def test_metrics_that_only_inform_are_apart_and_carry_no_verdict():
    text = shown(result(metric(), OVERLAP))
    deciding, _, informing = text.partition("Informational")
    assert "overlap" not in deciding.partition("Gated metrics")[2]
    assert "−6 pt" in informing
    assert "inconclusive" not in informing


def test_a_loss_is_explained_by_the_parts_that_grew():
    parts = (
        PartLoss(part="computation", baseline_ns=90, candidate_ns=91, change_ns=1),
        PartLoss(part="exposed_transfer", baseline_ns=10, candidate_ns=8_000_010,
                 change_ns=8_000_000),
    )  # fmt: skip
    text = shown(result(metric(), parts=parts))
    assert "The traced step changed by +8.00 ms: exposed transfer +8.00 ms." in text


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [
        (1.0, "ratio", "±0"),
        (1.0000125, "ratio", "±0"),
        (0.9, "ratio", "−10"),
        (1.0123, "ratio", "+1.23"),
        (32.0, "ratio", "+3,100"),
        (0.031, "difference", "+3.1"),
        (None, "ratio", "–"),
    ],
)
def test_changes_are_short(value, scale, text):
    assert amount(value, scale) == text


def test_an_interval_that_says_nothing_is_left_out():
    wild = metric(state="inconclusive", low=1e-9, high=1e9)
    assert "(" not in check_verdict(result(wild, needed_repeats=3))
    none = metric(state="inconclusive", low=None, high=None)
    assert "(" not in check_verdict(result(none, needed_repeats=3))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_asked(width):
    text = shown(result(metric(), OVERLAP, notes=("Assumed: " + "calm " * 40,)), width=width)
    assert max(len(line) for line in text.splitlines()) <= width


HOSTILE = "\x1b[31m<script>|]]>&\x00\ud800"


@pytest.mark.parametrize("name", ["text", "md", "junit"])
def test_text_of_a_baseline_obeys_nobody(name):
    one = metric(state="acknowledged", reason=HOSTILE, why=HOSTILE)
    text = shown(
        result(one, baseline=HOSTILE, unlike=(HOSTILE,), not_checked={HOSTILE: HOSTILE}), name
    )
    assert "\x1b" not in text
    assert "\x00" not in text
    assert name == "text" or "<script>" not in text
    if name == "junit":
        ElementTree.fromstring(text.encode())


def cases(result):
    suites = ElementTree.fromstring(shown(result, "junit").encode())
    (suite,) = suites
    assert (suites.tag, suite.tag) == ("testsuites", "testsuite")
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    # the schema of Jenkins allows no attribute "skipped" on the outer element
    assert {name: int(number) for name, number in suites.attrib.items()} == {
        name: counts[name] for name in ("tests", "failures", "errors")
    }
    assert all(case.get("name") and case.get("classname") for case in suite)
    return counts, {case.get("name"): [part.tag for part in case] for case in suite}


def test_junit_has_a_case_for_each_metric_that_decides():
    counts, found = cases(result(metric(), OVERLAP, not_checked={"bubble": "no traces"}))
    assert found == {"step_time": ["failure"], "bubble": ["skipped"]}
    assert counts == {"tests": 2, "failures": 1, "errors": 0, "skipped": 1}


@pytest.mark.parametrize(
    ("state", "fails", "outcome"),
    [
        ("passed", False, "system-out"),
        ("improved", False, "system-out"),
        ("acknowledged", False, "system-out"),
        ("inconclusive", False, "skipped"),
        ("inconclusive", True, "failure"),
        ("regressed", False, "failure"),
    ],
)
def test_junit_fails_where_the_check_does(state, fails, outcome):
    found = result(metric(state=state), inconclusive_fails=fails)
    assert cases(found)[1] == {"step_time": [outcome]}
    assert (outcome == "failure") == found.is_failed


def test_benchmarks_are_smaller_when_better_and_name_their_unit():
    entries = json.loads(shown(result(metric(), OVERLAP), "benchmark"))
    assert entries[0] == {
        "name": "step time",
        "unit": "ms",
        "value": 108.0,
        "range": "+6 to +10 %",
        "extra": "regressed: +8 % (+6 to +10), tolerance 2 %",
    }
    assert (entries[1]["name"], entries[1]["value"]) == ("lack of overlap of communication", 36.0)


def test_json_is_read_as_it_is_written():
    whole = result(metric(), OVERLAP, not_checked={"bubble": "no traces"})
    assert msgspec.json.decode(shown(whole, "json"), type=CheckResult) == whole


def test_markdown_begins_with_a_heading_that_a_summary_page_shows():
    text = shown(result(metric(), OVERLAP), "md")
    assert text.startswith("### Regressed: step time +8 %")
    assert "| step\\_time |" in text
