"""A report of a large run lists the steps of some ranks, says so, and lists all on request."""

from __future__ import annotations

import msgspec
import pytest

import distprof
from distprof.documents.saved import REPORT
from distprof.formats import RenderOptions
from distprof.ingest.assemble import assemble_run
from distprof.run.run import Run
from distprof.sections.time import measure as time
from tests.simulator.job import MS, Collective, Compute, SimulatedJob, SlowDevice

STEPS = 6
JOB = SimulatedJob(
    num_nodes=3,
    ranks_per_node=4,
    num_steps=STEPS,
    program=(Compute(ns=10 * MS), Collective(transfer_ns=2 * MS)),
    faults=(SlowDevice(rank=7, factor=1.4),),
)


@pytest.fixture(scope="module")
def run() -> Run:
    return assemble_run("simulated", JOB.run().to_ranks())


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a report could hold the steps of eight ranks."""
    monkeypatch.setattr(time, "MOST_STEPS", 8 * STEPS)


@pytest.mark.usefixtures("few")
def test_steps_of_some_ranks_are_listed_the_slow_one_among_them(run: Run) -> None:
    found = distprof.analyze(run).breakdown
    listed = sorted({row.rank for row in found.steps})
    assert len(found.steps) == len(listed) * STEPS == 8 * STEPS
    assert found.num_ranks_left_out == 4
    assert 7 in listed
    assert listed[0] == 0
    assert listed[-1] == 11
    assert [rank.rank for rank in found.ranks] == list(range(12))


def test_very_many_ranks_leave_less_room(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "MOST_STEPS", 8 * STEPS)
    monkeypatch.setattr(time, "MANY_RANKS", 11)
    found = distprof.analyze(run).breakdown
    assert [row.rank for row in found.steps] == [found.steps[0].rank] * STEPS
    assert found.num_ranks_left_out == 11


@pytest.mark.usefixtures("few")
def test_all_are_listed_on_request(run: Run) -> None:
    found = distprof.analyze(run, every_step=True).breakdown
    assert len(found.steps) == 12 * STEPS
    assert found.num_ranks_left_out == 0


def test_listing_some_changes_nothing_else(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = distprof.analyze(run)
    monkeypatch.setattr(time, "MOST_STEPS", STEPS)
    part = distprof.analyze(run)
    assert len(part.breakdown.steps) == STEPS
    assert msgspec.structs.replace(part, breakdown=whole.breakdown) == whole


def test_what_is_left_out_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    options = RenderOptions(show_all=True)
    assert "--every-step" not in REPORT.reporter("text")(distprof.analyze(run), options)
    monkeypatch.setattr(time, "MOST_STEPS", 8 * STEPS)
    report = distprof.analyze(run)
    said = "single steps of only 8 of 12 ranks: --every-step keeps those of all ranks"
    assert said in " ".join(REPORT.reporter("text")(report, options).split())
    assert said in REPORT.reporter("html")(report, options)
