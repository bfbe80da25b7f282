"""JUnit XML, as Jenkins and others read it.

Source: ``junit-10.xsd`` of Jenkins' xUnit plug-in.
"""

from __future__ import annotations

from xml.etree import ElementTree

from distprof.documents.ci.cases import Case, Cases, Outcome, one_line

_ELEMENTS: dict[Outcome, str] = {"failed": "failure", "skipped": "skipped", "passed": "system-out"}


def junit(found: Cases) -> str:
    """One test case per case, at least one: some services treat an empty file as a failure."""
    suite = ElementTree.Element("testsuite", name=found.command)
    for case in found.cases or (Case(code="verdict", message=found.verdict),):
        _add(suite, case, found)
    counts = {
        "tests": len(suite),
        "failures": len(suite.findall("*/failure")),
        "errors": 0,
    }
    suites = ElementTree.Element("testsuites", {name: str(n) for name, n in counts.items()})
    counts["skipped"] = len(suite.findall("*/skipped"))
    suite.attrib |= {name: str(count) for name, count in counts.items()}
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, case: Case, found: Cases) -> None:
    name = ".".join(found.command.split())
    test = ElementTree.SubElement(suite, "testcase", classname=name, name=case.title, time="0")
    element = _ELEMENTS[case.outcome]
    if element == "system-out":
        ElementTree.SubElement(test, element).text = case.text
    else:
        ElementTree.SubElement(test, element, message=one_line(case.message)).text = case.text
