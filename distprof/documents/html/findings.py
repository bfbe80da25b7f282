"""Findings, with the page of the rule folded inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from distprof.documents.html.blocks import folded, sentence, slug
from distprof.documents.html.markup import Markup, element, joined
from distprof.documents.html.rule_page import rule_page
from distprof.documents.page import Priced
from distprof.escape import short_ranks
from distprof.installed import is_web_address
from distprof.rules.base import Finding

_NUM_TO_DO = 3
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


def finding_articles(found: Sequence[Priced]) -> Markup:
    """All findings, most important first. The first finding of each rule contains its page."""
    if not found:
        return sentence("None.")
    anchor_of = anchors([one.finding for one in found])
    shown: set[str] = set()
    drawn = []
    for one in found:
        code = one.finding.code
        drawn.append(_article(one, anchor_of(one.finding), has_page=code not in shown))
        shown.add(code)
    return joined(drawn)


def _article(priced: Priced, anchor: str, *, has_page: bool) -> Markup:
    one = priced.finding
    severity = one.severity.value
    parts = [
        element("p", f"{_MARKS[severity]} {severity}", class_="severity"),
        element("h3", f"{one.code} {one.name}"),
        sentence(one.message),
        sentence(one.fix, class_="fix"),
        sentence(_facts(one, priced.cost), class_="dim"),
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
        f"Cost: {cost}" if cost else "",
        one.confidence.value,
        f"ranks {short_ranks(one.ranks)}" if one.ranks else "",
        f"steps {steps}" if steps else "",
        f"evidence: {', '.join(one.evidence)}" if one.evidence else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def to_do(found: Sequence[Priced], verdict: str) -> Iterator[Markup]:
    """The first findings with their fixes, without messages that repeat the verdict."""
    anchor_of = anchors([one.finding for one in found])
    yield element("h2", "What to do")
    items = [_task(one, anchor_of(one.finding), verdict) for one in found[:_NUM_TO_DO]]
    yield element("ol", *items, class_="todo") if items else sentence("No findings.")
    left_out = len(found) - len(items)
    if left_out:
        yield sentence(f"{left_out} more below.")


def _task(one: Priced, anchor: str, verdict: str) -> Markup:
    finding = one.finding
    name = element("a", f"{finding.code} {finding.name}", href=f"#{anchor}")
    title = element("p", element("b", name), f"  {one.gain}" if one.gain else "")
    message = () if finding.message == verdict else (sentence(finding.message),)
    return element("li", title, *message, sentence(finding.fix, class_="fix"))
