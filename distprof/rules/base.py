"""Rules: documented checks of results, with limits that users may change."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from inspect import signature
from pathlib import Path
from typing import ClassVar, Self, TypeAlias, get_type_hints

import msgspec

from distprof.artefacts.record import Record
from distprof.bounds import table_beside
from distprof.installed import page_url
from distprof.terms import Confidence, Severity, Subject

HEADINGS = (
    "What it detects",
    "Why it costs time",
    "Evidence needed",
    "How the cost is computed",
    "How to fix",
    "When it is wrong",
    "Sources",
)
"""The headings that an author writes, in order."""

EXAMPLES_FILE = Path(__file__).with_name("examples.json")
"""Rule code to the messages for its failing fixture; generated, like the pages."""

_PAGES_FILE = "pages.toml"

_EXAMPLE, _BEFORE_EXAMPLE = "Example", "How to fix"

_WIDTH = 100

_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=\S)")


class Page(msgspec.Struct, frozen=True):
    """A parsed page: the text under each heading, in source order."""

    sections: Mapping[str, str]

    @property
    def summary(self) -> str:
        """The first sentence of the first section, on one line; empty without sections."""
        first = next(iter(self.sections.values()), "")
        flat = " ".join(first.split())
        end = flat.find(". ")
        return flat if end < 0 else flat[: end + 1]

    def with_example(self, name: str, messages: Sequence[str]) -> Page:
        """The page with an example section of these messages; unchanged without messages."""
        if not messages:
            return self
        lines = "\n".join(_filled(f"{name}: {message}") for message in messages)
        sections: dict[str, str] = {}
        for heading, text in self.sections.items():
            sections[heading] = text
            if heading == _BEFORE_EXAMPLE:
                sections[_EXAMPLE] = f"```text\n{lines}\n```"
        return Page(sections)


def parse_page(text: str, shared: str = "") -> Page:
    """Split a page into its ``##`` sections; what comes before them says what is detected.

    It also has the sections of ``shared`` that it does not write itself.
    """
    sections: dict[str, list[str]] = {}
    current = sections.setdefault(HEADINGS[0], [])
    for line in inspect.cleandoc(text).splitlines():
        if line.startswith("## "):
            current = sections.setdefault(line[3:].strip(), [])
        else:
            current.append(line)
    joined = {name: "\n".join(lines).strip() for name, lines in sections.items()}
    found = {name: words for name, words in joined.items() if words}
    if shared:
        found = {**parse_page(shared).sections, **found}
        found = {heading: found[heading] for heading in HEADINGS}
    return Page(found)


@cache
def examples() -> Mapping[str, Sequence[str]]:
    """Code of each built-in rule to its example messages."""
    return msgspec.json.decode(EXAMPLES_FILE.read_bytes(), type=dict[str, tuple[str, ...]])


def advice(problem: str, case: str = "", **parts: object) -> str:
    """What to do about the problem of a rule, or about one case of it, as ``advice.toml`` says.

    ``{name}`` in it stands for one of ``parts``.
    """
    found = table_beside(__package__, "advice.toml")[problem]
    text: str = found[case] if case else found
    return text.format(**parts)


def _filled(text: str) -> str:
    """The text wrapped to the width of a page, with numbers and units kept together."""
    tied = _NUMBER_AND_UNIT.sub("\N{NO-BREAK SPACE}", text)
    lines = textwrap.fill(tied, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


Limits: TypeAlias = Mapping[str, float]


class Evidence:
    """Base of everything that a rule judges: a result of a section or verb, or a configuration."""

    __slots__ = ()

    subject: ClassVar[Subject] = Subject.RUN
    has_own_steps: ClassVar[bool] = False
    """Whether costs refer to steps of this evidence, independent of the steps that traces mark."""

    @classmethod
    def found_in(cls, results: Mapping[type[Evidence], Evidence]) -> Self | None:
        """The evidence of this type among results, by their types; None if it is missing."""
        found = results.get(cls)
        return found if isinstance(found, cls) else None

    @property
    def marks_steps(self) -> bool:
        """False if the recording has no step marks, so that costs per step are unknown."""
        return True

    @property
    def mean_step_ns(self) -> int | None:
        """Length of the mean step, to which costs are compared; None if this does not tell it."""
        return None

    @property
    def recoverable_ns(self) -> Mapping[str, int]:
        """Key of each simulated scenario to the step time that it recovers, ns."""
        return {}


class InsufficientEvidenceError(Exception):
    """Raised by a check that cannot judge. The message says which evidence is missing and why."""


class Limit(msgspec.Struct, frozen=True):
    """A threshold: its default, and its meaning as one sentence without full stop."""

    value: float
    meaning: str
    # Whether findings that cost a smaller share of the mean step are left out.
    is_least_cost: bool = False


def worth(
    share: float, meaning: str = "smallest share of the step that is worth reporting"
) -> Limit:
    """The smallest share of the mean step that a finding must cost, or it is left out."""
    return Limit(share, meaning, is_least_cost=True)


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check; the engine adds code, name, severity and page to make a finding."""

    # Subject, one number and cause, in at most :data:`~distprof.escape.MAX_HEADLINE` characters, no
    # full stop. With names of any length, choose a wording by :func:`~distprof.escape.fitting`.
    headline: str
    message: str  # The evidence for it: further numbers with units, one or two sentences.
    fix: str = ""  # How to fix it, one or two sentences; by default what ``advice.toml`` says.
    # Step time that could be recovered, an upper bound; None when unknown, and always None for a
    # rule with ``costs_time=False``.
    cost_ns_per_step: int | None = None
    # Whether the statement is measured, inferred or modelled.
    confidence: Confidence = Confidence.MEASURED
    ranks: tuple[int, ...] = ()  # Affected ranks; empty for all.
    steps: tuple[int, ...] = ()  # Affected steps; empty for all analysed steps.
    evidence: tuple[str, ...] = ()  # Sections and keys of the report that hold the numbers.
    severity: Severity | None = None  # Severity, only if it differs from that of the rule.
    # Key of the what-if scenario that removes this problem
    # (:class:`~distprof.sections.whatif.Scenario`), so that the simulated gain is shown next
    # to the cost; empty if there is no scenario.
    without: str = ""
    # Whether that scenario removes only a part of the cost, such as what differs between ranks: the
    # cost then stands, however little the simulation recovers.
    is_partial: bool = False
    # Codes of wider findings whose cost includes the same time, so that they add little to this
    # finding (:mod:`distprof.rules.engine`).
    explains: tuple[str, ...] = ()
    # Whether it comes before all repairs of the plan that name no ranks, because the recording has
    # too little data to simulate its repair.
    comes_first: bool = False
    # For a finding that counts only if no other finding names the same scenario: the least time
    # that the scenario must still recover after all others. None for ordinary findings.
    last_resort_ns: int | None = None


Check: TypeAlias = Callable[..., Iterator[Draft]]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. Made by :func:`rule`."""

    code: str  # Family and number, for example ``COM101``; never reused.
    name: str  # The problem in kebab-case.
    severity: Severity  # Severity of its findings, unless a draft sets another.
    since: str  # First version with this rule.
    needs: tuple[type[Evidence], ...]  # Result types, in the order of the check's parameters.
    limits: Mapping[str, Limit] = msgspec.field(default_factory=dict)  # Thresholds by name.
    # False if no finding has a cost in time: the loss is memory, energy or model quality, or no
    # source has times for it.
    costs_time: bool = True
    text: str  # The page, or what it detects alone: the docstring of the check.
    # Sections that ``text`` leaves out; empty if ``pages.toml`` next to the check has them.
    shared: str = ""
    check: Check  # Called with one result per type in ``needs``, then limits if it takes them.

    @property
    def subject(self) -> Subject:
        """The subject that the rule judges."""
        return next((need.subject for need in self.needs), Subject.RUN)

    @property
    def doc(self) -> Page:
        """The page, parsed when it is read: an analysis reads none."""
        return parse_page(self.text, self.shared or _page_beside(self.check, self.code))

    @property
    def summary(self) -> str:
        """The first sentence of the page."""
        return self.doc.summary

    @property
    def page(self) -> str:
        """The page of the rule in Markdown, with the shipped example."""
        return self.page_with(examples().get(self.code, ()))

    def page_with(self, messages: Sequence[str]) -> str:
        """The page of the rule in Markdown, with these messages as the example."""
        facts = f"`{self.code}` · {self.severity.value} · since {self.since}"
        sections = self.doc.with_example(self.name, messages).sections
        parts = [f"# {self.name}", facts]
        parts += [f"## {heading}\n\n{text}" for heading, text in sections.items()]
        return "\n\n".join([*parts, _limits_section(self)]) + "\n"

    @property
    def docs(self) -> str:
        """Path of the page, relative to the documentation."""
        return f"reference/rules/{self.name}.md"

    def docs_url(self, site: str) -> str:
        """Address of the page on a documentation site; empty without a site."""
        return page_url(self.docs, site)


def rule(
    code: str, severity: Severity, *, since: str = "0.1.0", costs_time: bool = True, **limits: Limit
) -> Callable[[Check], Rule]:
    """Turn a check function into a :class:`Rule`.

    The types of its parameters are the results that it needs; the last one is ``limits``, unless
    the engine alone compares with them (:func:`worth`). The name of the rule is that of the
    function; its page is the docstring, with the sections that it does not write itself from
    ``pages.toml`` next to the function.
    """

    def decorate(check: Check) -> Rule:
        hints = get_type_hints(check)
        results = [name for name in signature(check).parameters if name != "limits"]
        for needed in results:
            if needed not in hints:
                raise TypeError(f"{check.__module__}: the check's parameter {needed!r} has no type")
        name = check.__name__.replace("_", "-")
        return Rule(
            code=code,
            name=name,
            severity=severity,
            since=since,
            needs=tuple(hints[needed] for needed in results),
            limits=limits,
            costs_time=costs_time,
            text=check.__doc__ or "",
            check=check,
        )

    return decorate


def _page_beside(check: Check, code: str) -> str:
    """What the table next to a check says below the check itself: on all its rules, and on one."""
    if not Path(inspect.getfile(check)).with_name(_PAGES_FILE).is_file():
        return ""
    pages = table_beside(sys.modules[check.__module__].__package__ or "", _PAGES_FILE)
    return f"{pages.get('shared', '')}{pages.get(code, '')}"


def _limits_section(rule: Rule) -> str:
    if not rule.limits:
        return "## Limits\n\nNone."
    rows = [
        f"| `{name}` | {limit.value:g} | {limit.meaning} |" for name, limit in rule.limits.items()
    ]
    head = "| limit | default | meaning |\n|---|---|---|\n"
    how = f"Change them in `distprof.toml` under `[limits.{rule.code}]`."
    return "## Limits\n\n" + head + "\n".join(rows) + "\n\n" + how


class Finding(Record, frozen=True, kw_only=True):
    """One problem, its cost and its fix."""

    code: str  # Code of the rule, never reused, for example ``COM101``.
    name: str  # Name of the problem, never of the fix, for example ``low-overlap``.
    severity: Severity  # ``error``, ``warning`` or ``info``.
    confidence: Confidence  # Whether the statement is measured, inferred or modelled.
    headline: str  # Subject, one number and cause, in at most 80 characters.
    message: str  # The evidence for it, one or two sentences with further numbers.
    ranks: tuple[int, ...]  # Affected ranks; empty for all.
    steps: tuple[int, ...]  # Affected steps; empty for all analysed steps.
    # Step time that could be recovered, an upper bound: at most twice what the simulation recovers.
    # None when unknown.
    cost_ns_per_step: int | None
    evidence: tuple[str, ...]  # Source of each number: section and key of the report.
    fix: str  # How to fix it, one or two sentences.
    docs: str  # Path of the rule's page, relative to the documentation.
    # Address of that page in the version that found the problem; empty if no site is known.
    docs_url: str = ""
    # How much shorter the simulated step is without this problem; None if not simulated. Without
    # step marks, this refers to the capture.
    recoverable_ns: int | None = None
    # The part of ``recoverable_ns`` that is left after the findings above: for a finding of the
    # plan, after those before it; for any other finding, after the whole plan. Findings that need
    # the same change share it. None if not simulated.
    remaining_ns: int | None = None
    # Whether ``recoverable_ns`` belongs to an effect that many causes share, which no single change
    # removes, and which is therefore not in the plan.
    is_bound: bool = False
    # Number of the repair of the plan that removes it, from 1; None outside the plan.
    repair: int | None = None


class NotChecked(Record, frozen=True, kw_only=True):
    """A rule that could not be checked, with the reason."""

    code: str  # Code of the rule.
    name: str  # Name of the rule.
    why: str  # The missing evidence and the reason, one sentence.
