"""The brief form of results: what it says, in which order, and that it never grows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.record import Gap
from distprof.cli import main
from distprof.documents.brief import MAX_TOKENS, most_tokens, page_brief
from distprof.documents.page import Listing, Page
from distprof.documents.saved import Report
from distprof.formats import RenderOptions, find_reporter
from distprof.rules.base import NotChecked
from distprof.sections.table import Column, TableView
from docs.documents import ALL_DOCUMENTS
from tests.contracts.test_documents import SAMPLES as DOCUMENTS
from tests.documents.job_samples import SAMPLES
from tests.documents.samples import (
    MS,
    finding,
    healthy,
    nasty,
    report_of,
    single_rank,
    straggler,
    waterfall_of,
)

PLAN = "Findings; plan: 22.3 ms → 14.7 ms per step, simulated"
TITLES = (PLAN, "Evidence", "Unknown", "Next")


def brief(report: Report, **options: object) -> str:
    return find_reporter("brief")(report, RenderOptions(**options))  # type: ignore[arg-type]


def titles(text: str) -> list[str]:
    return [block.partition("\n")[0] for block in text.split("\n\n")[1:]]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("rank", 2),
        ("the fix", 2),
        ("31.0 %", 5),
        ("a_b", 3),
        ("µs", 3),
        ("😀", 4),
        ("one\ntwo", 3),
        ("\ud800", 3),
    ],
)
def test_tokens_are_counted_by_the_stated_rule(text: str, tokens: int) -> None:
    """Every digit, sign and line break one; words one for three letters; others one per byte."""
    assert most_tokens(text) == tokens


def test_verdict_plan_evidence_unknowns_and_commands_in_that_order() -> None:
    text = brief(straggler())
    assert text.startswith("Rank 2 holds the others up: 31.0 % of each step\nThey wait 6.91 ms of ")
    assert titles(text) == list(TITLES)
    plan = text.partition(f"\n{PLAN}\n")[2].splitlines()
    assert plan[0].startswith(
        "1. rank 2 fixed: 22.3 ms → 16.5 ms, saves 26.0 %. STR101 persistent-"
    )
    assert plan[1].startswith(
        "2. COM102 arrival-skew-bound-collectives (warning, measured, costs 6"
    )
    assert "- TEL101, TEL102 not checked: no device telemetry was recorded" in text
    assert "- distprof rule STR101  # what it means and how to fix it" in text


def test_the_message_that_is_the_verdict_is_said_once() -> None:
    report = straggler()
    assert brief(report).count(report.findings[0].message.rstrip(".")) == 1


def test_parts_that_hold_nothing_have_no_title() -> None:
    assert titles(brief(healthy())) == ["Evidence", "Next"]


def test_what_does_not_fit_is_counted() -> None:
    one = finding(code="COM101", name="low-overlap")
    found = tuple(msgspec.structs.replace(one, message=f"Number {i}.") for i in range(200))
    text = brief(msgspec.structs.replace(healthy(), findings=found))
    shown = text.count("COM101 low-overlap")
    assert 5 < shown < 200
    assert f"\n- and {200 - shown} more\n" in text
    assert "\nNext\n- distprof rule COM101" in text
    assert most_tokens(text) <= MAX_TOKENS


def test_gaps_of_the_recording_and_reasons_are_unknowns_and_a_reason_is_said_once() -> None:
    gap = Gap(what="missing-ranks", message="Ranks 4-7 have no trace.", ranks=(4, 5, 6, 7))
    left = tuple(NotChecked(code=f"TEL{i}", name="n", why="no samples") for i in range(101, 121))
    report = healthy()
    report = msgspec.structs.replace(
        report,
        capture=msgspec.structs.replace(report.capture, gaps=(gap, gap)),
        not_checked=left,
    )
    unknown = brief(report).partition("\nUnknown\n")[2].partition("\n\n")[0].splitlines()
    assert unknown[0] == "- Ranks 4-7 have no trace."
    assert unknown[1].startswith("- TEL101, TEL102, ")
    assert unknown[1].endswith("TEL108 and 12 more not checked: no samples")
    assert len(unknown) == 2


def test_missing_ranks_are_said_once() -> None:
    """By the finding if there is one, else in a sentence; the gap says it again."""
    report = single_rank()
    gap = Gap(what="missing-ranks", message="7 of 8 ranks have no trace.", ranks=(1, 2))
    capture = msgspec.structs.replace(report.capture, gaps=(gap,))
    report = msgspec.structs.replace(report, capture=capture, findings=())
    missing = finding(code="CAP101", headline="Ranks 1-7 of 8 are not in the recording")
    for found in ((), (missing,)):
        shown = msgspec.structs.replace(report, findings=found)
        text = brief(shown)
        assert text.count("Ranks 1-7") == 1
        assert "have no trace" not in text
        for options in (RenderOptions(full=True), RenderOptions()):
            assert find_reporter("text")(shown, options).count("Ranks 1-7") == 1


def test_a_sentence_without_a_new_amount_is_left_out() -> None:
    lost = [waterfall_of(0, computation_ns=800 * MS, idle_host_ns=200 * MS)]
    text = brief(report_of(lost))
    assert text.count("20.0 %") == 2  # in the headline and in the parts of the step


@pytest.mark.parametrize("name", SAMPLES)
def test_every_report_is_within_the_limit(name: str) -> None:
    assert most_tokens(brief(SAMPLES[name]())) <= MAX_TOKENS


@pytest.mark.parametrize(
    "document", [one for one in ALL_DOCUMENTS if one.page], ids=lambda document: document.name
)
def test_every_other_result_is_within_the_limit(document) -> None:
    text = document.reporter("brief")(DOCUMENTS[document.name](), RenderOptions())
    assert most_tokens(text) <= MAX_TOKENS
    assert text.partition("\n")[0]


WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"]) | st.sampled_from("a1 \n\x1b"),
    max_size=5_000,
)


@given(
    verdict=WORDS,
    sentences=st.lists(WORDS, max_size=8),
    steps=st.lists(WORDS, max_size=8),
    cells=st.lists(WORDS, min_size=2, max_size=2),
)
def test_no_page_is_longer_and_no_control_character_passes(
    verdict: str, sentences: list[str], steps: list[str], cells: list[str]
) -> None:
    columns = (Column(title="a", left=True), Column(title="b"))
    page = Page(
        verdict=verdict,
        sentences=tuple(sentences),
        listings=(Listing(title="Next steps", sentences=tuple(steps), is_numbered=True),),
        tables=(TableView(title="T", columns=columns, rows=(tuple(cells),) * 20),),
    )
    text = page_brief(page)
    assert most_tokens(text) <= MAX_TOKENS
    assert text.endswith("\n")
    assert all(character.isprintable() for line in text.split("\n") for character in line)


def test_a_verdict_of_megabytes_is_cut() -> None:
    text = page_brief(Page(verdict="x" * 5_000_000, sentences=("y " * 3_000_000,)))
    assert len(text) < 2_000


def test_hostile_names_are_spelled_out() -> None:
    assert "\x1b" not in brief(nasty())


def test_the_flag_is_short_for_the_format(tmp_path, capsys) -> None:
    straggler().save(tmp_path / "report.json")
    shown = []
    for options in (["--brief"], ["--format", "brief"]):
        assert main(["report", str(tmp_path / "report.json"), *options]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert shown[0].startswith("Rank 2 holds the others up")


def test_a_section_alone_has_no_brief_form(tmp_path, capsys) -> None:
    straggler().save(tmp_path / "report.json")
    assert main(["report", str(tmp_path / "report.json"), "--brief", "--section", "idle"]) == 2
    assert "--section works with text, Markdown and HTML; brief" in capsys.readouterr().err


def test_a_job_whose_end_was_not_seen_may_hang() -> None:
    report = straggler()
    running = msgspec.structs.replace(report.job, outcome="running")
    hang = f"\nNext\n- distprof hang {report.run.source}  # if it makes no progress"
    assert hang in brief(msgspec.structs.replace(report, job=running))
    assert "distprof hang" not in brief(report)


def test_compare_and_hang_have_it_too(tmp_path, capsys) -> None:
    for name, report in (("a", healthy()), ("b", straggler())):
        report.save(tmp_path / f"{name}.json")
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--brief"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Not like for like: nodes 1 → 2\nBoth runs take 22.3 ms per step")
    assert "Where the difference is\n- part computation, first" in text
    assert "\nNext\n- distprof rule STR101  # what it means and how to fix it\n" in text
