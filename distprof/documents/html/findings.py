"""Findings, with the page of the rule folded inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from distprof.documentation import is_web_address
from distprof.documents.html.blocks import folded, sentence, slug
from distprof.documents.html.markup import Markup, element, joined
from distprof.documents.html.rule_page import rule_page
from distprof.escape import short_ranks
from distprof.rules.base import Finding

_MARKS = {"error": "✖", "warning": "▲", "info": "●"}


def anchors(findings: Sequence[Finding]) -> Callable[[Finding], str]:
    """The id of each finding: its code, with a number if the code occurs more than once."""
    seen: Counter[str] = Counter()
    names: dict[int, str] = {}
    for one in findings:
        seen[one.code] += 1
        number = f"-{seen[one.code]}" if seen[one.code] > 1 else ""
        names[id(one)] = f"{slug(one.code)}{number}"
    return lambda one: names[id(one)]


def finding_articles(
    findings: Sequence[Finding],
    anchor_of: Callable[[Finding], str],
    cost_of: Callable[[Finding], str],
) -> Markup:
    """All findings, most important first. The first finding of each rule contains its page."""
    if not findings:
        return sentence("None.")
    shown: set[str] = set()
    drawn = []
    for one in findings:
        drawn.append(_article(one, anchor_of(one), cost_of(one), has_page=one.code not in shown))
        shown.add(one.code)
    return joined(drawn)


def _article(one: Finding, anchor: str, cost: str, *, has_page: bool) -> Markup:
    severity = one.severity.value
    parts = [
        element("p", f"{_MARKS[severity]} {severity}", class_="severity"),
        element("h3", f"{one.code} {one.name}"),
        sentence(one.message),
        sentence(one.fix, class_="fix"),
        sentence(_facts(one, cost), class_="dim"),
    ]
    if is_web_address(one.docs_url):  # a saved report may contain any text here
        link = element("a", "The rule in the documentation", href=one.docs_url, rel="noreferrer")
        parts.append(element("p", link))
    page = rule_page(one.code) if has_page else Markup("")
    if page:
        title = "What it means, how it is computed, when it is wrong"
        parts.append(folded(title, page, class_="page"))
    return element("article", *parts, id=anchor, class_=f"finding {severity}")


def _facts(one: Finding, cost: str) -> str:
    steps = ", ".join(map(str, one.steps[:12])) + (", …" if len(one.steps) > 12 else "")
    facts = [
        f"Cost: {cost}" if cost != "–" else "",
        one.confidence.value,
        f"ranks {short_ranks(one.ranks)}" if one.ranks else "",
        f"steps {steps}" if steps else "",
        f"evidence: {', '.join(one.evidence)}" if one.evidence else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def to_do(
    findings: Sequence[Finding],
    anchor_of: Callable[[Finding], str],
    gain_of: Callable[[Finding], str],
    verdict: str,
) -> Markup:
    """The first findings with their fixes, without messages that repeat the verdict."""
    items = []
    for one in findings:
        name = element("a", f"{one.code} {one.name}", href=f"#{anchor_of(one)}")
        gain = gain_of(one)
        title = element("p", element("b", name), f"  {gain}" if gain else "")
        message = () if one.message == verdict else (sentence(one.message),)
        items.append(element("li", title, *message, sentence(one.fix, class_="fix")))
    return element("ol", *items, class_="todo") if items else sentence("No findings.")
