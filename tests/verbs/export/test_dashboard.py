"""The Grafana dashboard: what Grafana needs, and queries of metrics that are really sent."""

import itertools
import json
import re
from pathlib import Path

import promql_parser
import pytest

from distprof.verbs.export.prometheus import all_families

FILE = Path(__file__).parents[3] / "docs" / "how-to" / "grafana-dashboard.json"
DASHBOARD = json.loads(FILE.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [
    pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")
    for panel in PANELS
    for target in panel["targets"]
]
LABELS = {family.name: set(family.labels) for family in all_families()}
OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus itself adds."""


def substituted(text: str) -> str:
    """As Grafana replaces its variables before it asks Prometheus."""
    text = text.replace("$__rate_interval", "1m")
    return re.sub(r"\$(\w+)", ".*", text)


def selectors(node) -> list:
    """Every selector of a parsed query."""
    found = [node] if type(node).__name__ == "VectorSelector" else []
    for name in ("expr", "lhs", "rhs", "vector_selector", "vs", "param"):
        below = getattr(node, name, None)
        if below is not None:
            found += selectors(below)
    for argument in getattr(node, "args", None) or ():
        found += selectors(argument)
    return found


def test_it_has_what_grafana_needs_to_import_it():
    assert {"title", "schemaVersion", "panels", "templating", "time"} <= set(DASHBOARD)
    assert DASHBOARD["schemaVersion"] >= 36
    assert "id" not in DASHBOARD  # an id of another installation would be refused
    assert re.fullmatch(r"[\w-]{1,40}", DASHBOARD["uid"])


def test_panels_have_their_own_ids_and_places():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for one in places:
        assert one["x"] >= 0
        assert one["x"] + one["w"] <= 24
    for one, other in itertools.combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_every_panel_asks_the_source_that_the_user_chooses():
    (source,) = (v for v in DASHBOARD["templating"]["list"] if v["type"] == "datasource")
    assert (source["name"], source["query"]) == ("datasource", "prometheus")
    for panel in PANELS:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert target["refId"]


@pytest.mark.parametrize("expr", TARGETS)
def test_every_query_parses_and_is_of_metrics_and_labels_that_are_sent(expr):
    found = selectors(promql_parser.parse(substituted(expr)))
    assert found
    for one in found:
        assert one.name in LABELS, one.name
        matchers = {matcher.name for matcher in one.matchers.matchers}
        assert matchers <= LABELS[one.name] | OF_PROMETHEUS


def test_a_query_of_an_unknown_metric_is_found_here():
    found = selectors(promql_parser.parse('sum(rate(distprof_nothing_total{job="x"}[1m])) / 2'))
    assert [one.name for one in found] == ["distprof_nothing_total"]


def test_counters_are_asked_for_as_rates():
    for target in TARGETS:
        (expr,) = target.values
        for name in re.findall(r"\w+_total\b", expr):
            assert re.search(rf"rate\({name}\{{[^}}]*\}}\[\$__rate_interval\]\)", expr)


def test_variables_and_legends_use_labels_that_there_are():
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(
                r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]["query"]
            )
            assert match[1] in LABELS
            assert match[2] in OF_PROMETHEUS
    for panel in PANELS:
        for target in panel["targets"]:
            names = set(re.findall(r"\w+_(?:\w+)", target["expr"])) & set(LABELS)
            known = set().union(*(LABELS[name] for name in names)) | OF_PROMETHEUS
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known
