"""Headlines: short, one quantity, and words that a reader knows or can look up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import distprof
from distprof.escape import MAX_HEADLINE, fitting, headed
from distprof.rules import all_rules
from distprof.rules.engine import run_rules
from tests.rules.fixtures import fixture

LOGS = Path(__file__).parents[1] / "golden" / "logs"
RULES = all_rules()
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)

_NAMES = re.compile(
    r"\b(?:ranks?|stages?|experts?|layers?|XID|GPU|PCIe|step|iteration) "
    r"\d[\d,.\-–…]*(?! ?%)(?: \(\d+\))?\b(?! %)|\b[A-Za-z_][\w-]*\d\w*|\b\w+=\S+",
    re.IGNORECASE,
)
"""Numbers that are names: of ranks, stages, hosts, settings, data types."""
_QUANTITY = re.compile(r"\d[\d,.]*(?: of \d[\d,.]*)?|\b(?:one|once|twice)\b")
"""A number with digits, one of so many, or a number as a word."""
_WITHOUT = frozenset(("CAP104", "CAP106"))
"""How a process ended."""
_OBJECTIONS = frozenset(f"CFG{number}" for number in range(101, 111))
"""Objections to a configuration: the numbers that contradict each other."""


def quantities(headline: str) -> list[str]:
    """The quantities in a headline."""
    return _QUANTITY.findall(_NAMES.sub("", headline))


_KNOWN = frozenset(("GPU", "GPUs", "GPU's", "CPU", "CPUs", "MB", "GB", "TB", "B"))
_JARGON = re.compile(r"\b(?:[A-Z]{2,}\w*|NVLinks?|gloo|fp32|bubble|micro-batch)\b")


@each_rule
def test_a_headline_is_short_with_one_quantity(rule):
    for finding in run_rules(fixture(rule, "bad"), rules=RULES).findings:
        assert len(finding.headline) <= MAX_HEADLINE
        assert re.fullmatch(r"[A-Z0-9].*[^.]", finding.headline)
        assert "…" not in finding.headline
        if rule.code in _OBJECTIONS:
            assert re.search(r"\d", finding.headline)
        else:
            found = quantities(finding.headline)
            assert len(found) == (rule.code not in _WITHOUT), finding.headline


@each_rule
def test_special_terms_of_a_headline_are_on_the_page_that_its_code_links_to(rule):
    page = " ".join((rule.name, *rule.doc.sections.values())).lower()
    for finding in run_rules(fixture(rule, "bad"), rules=RULES).findings:
        for term in {*_JARGON.findall(finding.headline)} - _KNOWN:
            assert term.removesuffix("s").lower() in page


def test_the_evidence_adds_to_the_headline():
    """No finding says a whole sentence twice."""
    for rule in RULES:
        for finding in run_rules(fixture(rule, "bad"), rules=RULES).findings:
            assert finding.headline.lower() not in finding.message.lower()


def test_the_evidence_does_not_say_the_number_of_the_headline_again():
    """It says how the number is known, what it is made of, or what it is compared with."""
    again = set()
    by_chance = "INP108"  # two shares of this fixture are equal
    for rule in RULES:
        for finding in run_rules(fixture(rule, "bad"), rules=RULES).findings:
            number = re.findall(r"\d[\d,.]* (?:%|[mµn]?s|times)(?!\w)", finding.headline)
            again |= {finding.code for one in number if one in finding.message}
    assert again <= {by_chance}


def test_long_names_choose_another_wording_and_never_break_a_word():
    name = "x" * 90
    assert fitting(f"The GPU waits for {name}", "The GPU waits for an operator") == (
        "The GPU waits for an operator"
    )
    assert fitting(f"The GPU waits for {name} {name}") == "The GPU waits for …"
    assert len(fitting(name)) == MAX_HEADLINE
    assert fitting("a\n b\x1b") == r"a b\x1b"


@pytest.mark.parametrize(
    ("text", "headline", "rest"),
    [
        ("Rank 3 died.", "Rank 3 died", ""),
        ("Rank 3 died. It was the first of them.", "Rank 3 died", "It was the first of them."),
        (
            "Rank 10 on node-a was ended by SIGKILL, most often by the kernel's out-of-memory "
            "killer or a limit of the scheduler.",
            "Rank 10 on node-a was ended by SIGKILL",
            "Most often by the kernel's out-of-memory killer or a limit of the scheduler.",
        ),
        (
            "Stuck: ranks 0-6 wait in all-reduce 96,117 of tp, and rank 7 printed nothing about "
            "it: it is the first suspect.",
            "Stuck: ranks 0-6 wait in all-reduce 96,117 of tp",
            "Rank 7 printed nothing about it: it is the first suspect.",
        ),
        (
            "Ranks 1-7 failed in NCCL: ncclInvalidUsage (a device of which there are only eight "
            "was asked for).",
            "Ranks 1-7 failed in NCCL: ncclInvalidUsage",
            "(a device of which there are only eight was asked for).",
        ),
        (  # the name of an error alone says too little
            "A process failed: RuntimeError: the block of rank 3 is missing in the table of all "
            "ranks.",
            "A process failed: RuntimeError: the block of rank 3 is missing in the table of …",
            "A process failed: RuntimeError: the block of rank 3 is missing in the table of all "
            "ranks.",
        ),
        (
            "Between nodes NCCL uses TCP sockets over enp36s0f1 and enp37s0f1, because the "
            "library could not be opened.",
            "Between nodes NCCL uses TCP sockets over enp36s0f1 and enp37s0f1",
            "The library could not be opened.",
        ),
    ],
)
def test_a_statement_is_cut_between_clauses(text, headline, rest):
    assert headed(text) == (headline, rest)


@pytest.mark.parametrize("file", sorted(LOGS.glob("*.log")), ids=lambda file: file.stem)
def test_how_a_job_ended_fits_into_a_headline(file):
    report = distprof.hang(str(file))
    assert 0 < len(report.headline) <= MAX_HEADLINE
    assert "…" not in report.headline or " failed" in report.headline
