"""Every quantity in the sentences of a report follows from the numbers of its JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import distprof
from distprof.documents.report import gain_text
from distprof.documents.saved import Report
from distprof.sections.shows import judge
from distprof.units import format_bytes, format_duration, format_ratio

GOLDEN = Path(__file__).parents[1] / "golden"
REPORTS = (
    "kineto/dlrm-v100-8gpu",
    "kineto/ddp-a100-2gpu-rank0",
    "kineto/tp8-b200-rank0",
    "kineto/gloo-ddp-2ranks",
    "job/gloo-hsdp-4ranks",
    "job/gloo-pp-4ranks",
    "job/nccl-fsdp-2ranks-h100",
)

_QUANTITY = re.compile(
    r"(?<![\w.])(\d+(?:,\d{3})*(?:\.\d+)?) (ns|µs|ms|s|min|h|B|kB|MB|GB|TB|%)(?![\w/])"
)
_TEXTS = ("headline", "detail", "message", "fix", "title", "what", "why", "docs", "docs_url",
          "notes")  # fmt: skip
"""Fields that hold sentences themselves: they prove nothing."""

_CONSTANTS = frozenset({"7 µs"})
"""Cost of an operator under a profiler, 3 to 7 µs: a constant that the rule's page gives."""


def sentences(report: Report) -> Iterator[str]:
    """The verdict, its reasons, every finding's message and price."""
    verdict = judge(report)
    yield from (f"{verdict.headline}. {verdict.detail}", *verdict.why)
    for finding in report.findings:
        yield f"{finding.headline}. {finding.message}"
        yield gain_text(finding, report)


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a document with the name of its field."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in _TEXTS:
                yield from leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value


@cache
def report_of(name: str) -> Report:
    return distprof.analyze(distprof.open_run(GOLDEN / name, use_cache=False))


class Proof:
    """What the JSON of a report proves.

    Sections of single kernels, steps and groups prove nothing: among so many numbers every quantity
    would be found. A total over ranks and steps also proves its mean.

    Args:
        report: The report.
    """

    def __init__(self, report: Report) -> None:
        document = msgspec.json.decode(msgspec.json.encode(report))
        waterfall = document["waterfall"]
        self.windows = max(waterfall["num_ranks"] * waterfall["num_steps"], 1)
        total = waterfall["all"] or {}
        mean = {name: ns / self.windows for name, ns in total.items()}
        exposed = [mean.get(f"exposed_{part}_ns", 0) for part in _EXPOSED]
        start = document["capture"]["start_wait_ns"]
        self.parts = [*mean.values(), start, sum(exposed), sum(exposed) - start]
        self.parts += [exposed[0] - start, exposed[1] + exposed[3]]
        self.parts += [sum(ns for name, ns in mean.items() if name.startswith("idle_"))]
        self.steps = [mean.get("span_ns", 0), document["plan"]["step_ns"] or 0]
        self.steps += [document["whatif"]["replayed_ns"] or 0]
        self.steps += [document["step_time"]["median_ns"] or 0]
        some = {name: document[name] for name in document if name not in _TOO_MANY}
        named = list(leaves(some))
        times = [ns for key, ns in named if key.endswith("_ns") or "_ns_" in key]
        times += list(_by_kind(document["collectives"]["classes"]))
        self.durations = {format_duration(ns) for ns in (*times, *self.parts, *self.steps)}
        self.durations |= {format_duration(int(ns)) for ns in self.parts}
        self.sizes = {format_bytes(size) for key, size in named if "bytes" in key}
        ratios = [value for key, value in named if key.endswith(("ratio", "fraction"))]
        hidden = sum(rank["overlapped_ns"] for rank in document["overlap"]["ranks"]) / self.windows
        for whole in (sum(exposed), exposed[0] + exposed[1], hidden + sum(exposed),
                      hidden + exposed[1] + exposed[3]):  # fmt: skip
            ratios += [
                part / whole for part in (hidden, exposed[0] + exposed[2], *exposed) if whole
            ]
        ratios += [part / step for part in self.parts for step in self.steps if step]
        self.ratios = {format_ratio(ratio) for ratio in ratios}

    def holds(self, quantity: str, sentence: str) -> bool:
        """Whether a quantity of a sentence follows; a share also from two times beside it."""
        if not quantity.endswith("%"):
            return quantity in self.durations | self.sizes | _CONSTANTS
        times = [_ns(*pair) for pair in _QUANTITY.findall(sentence) if pair[1] in _NS]
        share = float(quantity.removesuffix(" %")) / 100
        wholes = [*times, *self.steps]
        off = max(_ROUNDED * share, _LAST_DIGIT)
        near = (abs(a / b - share) <= off for a in times for b in wholes if b)
        return quantity in self.ratios or any(near)


def _by_kind(classes: list[dict[str, Any]]) -> Iterator[int]:
    """Exposed time of all classes of one kind together, and the transfer in it."""
    for kind in {row["kind"] for row in classes}:
        mine = [row for row in classes if row["kind"] == kind]
        exposed, wait = (sum(row[f"{name}_ns_per_step"] or 0 for row in mine) for name in _OF_CLASS)
        yield from (exposed, exposed - wait)


_OF_CLASS = ("exposed", "exposed_wait")


_EXPOSED = ("wait", "transfer", "p2p_wait", "comm_unsplit")

_TOO_MANY = frozenset({"kernels", "breakdown", "step_log"})

_NS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}

_ROUNDED = 0.011
"""Two times of three digits give a share that is at most so far off."""

_LAST_DIGIT = 0.00005
"""Half of the last digit of a small share, 0.01 %."""


def _ns(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * _NS[unit]


def unproven(report: Report) -> list[tuple[str, str]]:
    """Quantities in sentences that the JSON does not prove, with their sentence."""
    proof = Proof(report)
    found = []
    for sentence in sentences(report):
        text = " ".join(sentence.split())
        for number, unit in _QUANTITY.findall(text):
            if not proof.holds(f"{number} {unit}", text):
                found.append((f"{number} {unit}", sentence))
    return found


@pytest.mark.parametrize("name", REPORTS)
def test_every_quantity_of_a_sentence_is_in_the_json(name: str) -> None:
    assert unproven(report_of(name)) == []


WRONG = ("123 ms", "4.44 ms", "2.77 ms", "654 µs", "7.77 GB", "83.1 %", "61.7 %", "1.23 s")


@pytest.mark.parametrize("quantity", WRONG)
def test_a_quantity_that_was_not_measured_is_found(quantity: str) -> None:
    report = report_of("kineto/dlrm-v100-8gpu")
    first, *others = report.findings
    wrong = replace(first, message=f"{first.message} It takes {quantity}.")
    found = unproven(replace(report, findings=(wrong, *others)))
    assert quantity in {one for one, _ in found}


@pytest.mark.parametrize("name", REPORTS)
def test_what_saves_is_a_step_of_the_plan_and_the_other_way_round(name: str) -> None:
    report = report_of(name)
    saving = [one for one in report.findings if gain_text(one, report).startswith("saves")]
    planned = [repair.gain_ns for repair in report.plan.repairs]
    assert list(dict.fromkeys(one.remaining_ns for one in saving)) == planned
    for one in report.findings:
        text = gain_text(one, report)
        if one.remaining_ns and one not in saving:
            assert text.startswith("at most") or text.endswith("too little for a plan")
