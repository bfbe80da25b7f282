"""Generates the Grafana dashboard for the metrics of ``distprof export prometheus``.

Panels are declared here in a line each. Metric names in their queries are checked against the
exporter's by a test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["dashboard", "dashboard_text"]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_JOB = 'job=~"$job", instance=~"$instance"'
_WIDTH, _HEIGHT = 8, 8
_COLUMNS = 24

_STEP = f"rate(distprof_step_seconds_total{{{_JOB}}}[$__rate_interval])"
_STEPS = f"rate(distprof_steps_total{{{_JOB}}}[$__rate_interval])"
_THREAD = f"rate(distprof_thread_seconds_total{{{_JOB}}}[$__rate_interval])"
_COLLECTIVES = f"rate(distprof_collective_seconds_total{{{_JOB}}}[$__rate_interval])"
_PHASE = f"rate(distprof_phase_seconds_total{{{_JOB}}}[$__rate_interval])"

# Row, title, unit of Grafana, then query and legend of each line
_PANELS: Sequence[tuple[str, str, str, Sequence[tuple[str, str]]]] = (
    (
        "Training",
        "Steps per second of the slowest rank",
        "ops",
        ((f"min({_STEPS})", "steps per second"),),
    ),
    (
        "Training",
        "Step by rank",
        "s",
        ((f"{_STEP} / {_STEPS}", "rank {{rank}}"),),
    ),
    (
        "Training",
        "Own time by rank, per step (CPU ranks)",
        "s",
        ((f"sum by (rank) ({_THREAD}) / sum by (rank) ({_STEPS})", "rank {{rank}}"),),
    ),
    (
        "Training",
        "Step: median and slowest rank",
        "s",
        (
            (f"distprof_job_step_median_seconds{{{_JOB}}}", "median"),
            (f"distprof_job_step_slowest_seconds{{{_JOB}}}", "slowest"),
        ),
    ),
    (
        "Training",
        "Since the last step",
        "s",
        (
            (
                f"time() - max(distprof_last_step_end_timestamp_seconds{{{_JOB}}})",
                "since any rank ended a step",
            ),
        ),
    ),
    (
        "Training",
        "Tokens per second, all ranks",
        "ops",
        ((f"sum(rate(distprof_tokens_total{{{_JOB}}}[$__rate_interval]))", "tokens per second"),),
    ),
    ("Training", "Loss", "none", ((f"avg(distprof_loss{{{_JOB}}})", "mean over ranks"),)),
    (
        "Training",
        "Phases, mean over ranks",
        "percentunit",
        ((f"avg by (phase) ({_PHASE}) / scalar(avg({_STEP}))", "{{phase}}"),),
    ),
    ("GPU", "Power", "watt", ((f"distprof_gpu_power_watts{{{_JOB}}}", "rank {{rank}}"),)),
    (
        "GPU",
        "Temperature",
        "celsius",
        ((f"distprof_gpu_temperature_celsius{{{_JOB}}}", "rank {{rank}}"),),
    ),
    ("GPU", "Clock", "hertz", ((f"distprof_gpu_sm_clock_hertz{{{_JOB}}}", "rank {{rank}}"),)),
    (
        "GPU",
        "Collectives by rank, per step: the least is late",
        "s",
        ((f"{_COLLECTIVES} / {_STEPS}", "rank {{rank}}"),),
    ),
    (
        "GPU",
        "Memory of tensors",
        "bytes",
        ((f"distprof_memory_allocated_bytes{{{_JOB}}}", "rank {{rank}}"),),
    ),
    (
        "Last report",
        "Share of the step",
        "percentunit",
        (
            (f"distprof_report_computation_ratio{{{_JOB}}}", "computation"),
            (f"distprof_report_exposed_communication_ratio{{{_JOB}}}", "exposed communication"),
            (f"distprof_report_idle_ratio{{{_JOB}}}", "idle"),
        ),
    ),
    (
        "Last report",
        "Gain of the plan",
        "percentunit",
        ((f"distprof_report_planned_gain_ratio{{{_JOB}}}", "share of the simulated step"),),
    ),
    (
        "Last report",
        "Findings",
        "none",
        (
            (f"distprof_report_error_findings{{{_JOB}}}", "errors"),
            (f"distprof_report_warning_findings{{{_JOB}}}", "warnings"),
            (f"distprof_report_unchecked_rules{{{_JOB}}}", "rules not checked"),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    return {
        "uid": "distprof",
        "title": "distprof",
        "tags": ["distprof", "pytorch"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "annotations": {"list": []},
        "panels": list(_panels()),
    }


def dashboard_text() -> str:
    """The dashboard as the file that users import."""
    return json.dumps(dashboard(), indent=1) + "\n"


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    for name, inside in (("job", ""), ("instance", '{job=~"$job"}')):
        yield {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": f"label_values(distprof_job_ranks{inside}, {name})", "refId": "A"},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _panels() -> Iterator[dict[str, Any]]:
    top, column, number, row = 0, 0, 0, ""
    for title_of_row, title, unit, queries in _PANELS:
        if title_of_row != row:
            top += _HEIGHT if column else 0
            number, column, row = number + 1, 0, title_of_row
            place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
            yield {
                "id": number,
                "type": "row",
                "title": row,
                "collapsed": False,
                "gridPos": place,
                "panels": [],
            }
            top += 1
        elif column == _COLUMNS:
            top, column = top + _HEIGHT, 0
        number += 1
        place = {"x": column, "y": top, "w": _WIDTH, "h": _HEIGHT}
        yield _panel(number, title, unit, queries, place)
        column += _WIDTH


def _panel(
    number: int,
    title: str,
    unit: str,
    queries: Sequence[tuple[str, str]],
    place: dict[str, int],
) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": _SOURCE,
                "expr": expr,
                "legendFormat": legend,
            }
            for i, (expr, legend) in enumerate(queries)
        ],
    }
