"""A run that is too large to simulate is simulated in part, and says so."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distprof
from distprof.documents.saved import REPORT
from distprof.formats import RenderOptions
from distprof.ingest.assemble import assemble_run
from distprof.run.run import Run
from distprof.schema import ABSENT
from distprof.sections import measure_run
from distprof.sections.matched import RowIndex
from distprof.sections.whatif.trace_graph import trace_graph
from distprof.sections.whatif.trace_model import _Difference
from tests.sections.measured import measure
from tests.simulator import Collective, Compute, Input, SimulatedJob, SlowDevice
from tests.simulator.job import MS, LateInput
from tests.simulator.shapes import pipeline

STEPS = 9
STEP = (
    Input(),
    Compute(ns=4 * MS),
    Collective(transfer_ns=MS),
    Compute(ns=2 * MS),
    Collective(transfer_ns=MS, overlap=True),
    Compute(ns=2 * MS),
)


def job(**more: object) -> SimulatedJob:
    slow = SlowDevice(rank=5, factor=1.3)
    settings = {"num_steps": STEPS, "program": STEP, "faults": (slow,), "seed": 3, **more}
    return SimulatedJob(num_nodes=2, ranks_per_node=4, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def run() -> Run:
    return assemble_run("simulated", job().run().to_ranks())


def take(monkeypatch: pytest.MonkeyPatch, run: Run, steps: int) -> None:
    """As if there were memory for so many steps."""
    recorded = sum(len(rank.collectives) for rank in run.ranks)
    most = -(-recorded * steps // len(run.window.steps))
    monkeypatch.setattr(measure_run, "MOST_SIMULATED", most)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_the_middle_is_simulated_as_it_was(
    run: Run, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    whole = trace_graph(run, measure(run).analyses)
    take(monkeypatch, run, steps)
    part = trace_graph(run, measure(run).analyses)
    assert whole is not None
    assert part is not None
    assert part.opens.shape == (8, steps)
    assert part.is_sample
    assert not whole.is_sample
    low = (len(run.window.steps) - steps) // 2
    assert (part.measured_ns == whole.measured_ns[:, low : low + steps]).all()
    assert (part.held_ns == whole.held_ns).all()
    spans = part.window_ns(part.simulate())
    assert np.abs(spans / part.measured_ns - 1).max() < 0.01
    assert part.graph.num_operations < whole.graph.num_operations * (steps + 1) / STEPS


def test_a_slow_rank_is_worth_as_much(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = distprof.analyze(run)
    take(monkeypatch, run, 4)
    part = distprof.analyze(run)
    assert whole.whatif.num_left_out is None
    assert (part.whatif.num_steps, part.whatif.num_left_out) == (4, len(run.window.steps) - 4)
    assert [f.code for f in part.findings] == [f.code for f in whole.findings]
    gain = whole.plan.repairs[0].gain_ns
    assert part.plan.repairs[0].what == whole.plan.repairs[0].what
    assert part.plan.repairs[0].gain_ns == pytest.approx(gain, rel=0.1)


def test_a_sample_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, run, 4)
    report, options = distprof.analyze(run), RenderOptions(full=True)
    text = " ".join(REPORT.reporter("text")(report, options).split())
    assert f"per step, simulated, from the middle 4 of {len(run.window.steps)} steps" in text


def test_what_happens_in_other_steps_is_not_priced_by_the_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = LateInput(rank=2, ns=9 * MS, steps=(10, 11))
    run = assemble_run("simulated", job(faults=(late,)).run().to_ranks())
    (whole,) = distprof.analyze(run).stragglers.sets
    take(monkeypatch, run, 3)
    part = distprof.analyze(run)
    assert part.stragglers.sets == (whole,)
    assert whole.scenario not in {scenario.what for scenario in part.whatif.without}
    assert any(2 in finding.ranks for finding in part.findings)


def test_pipelines_are_sampled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = assemble_run("simulated", pipeline(2, 2, random.Random(1), num_steps=6).run().to_ranks())
    take(monkeypatch, run, 2)
    graph = trace_graph(run, measure(run).analyses)
    assert graph is not None
    spans = graph.window_ns(graph.simulate())
    assert np.abs(spans.mean(axis=0) / graph.measured_ns.mean(axis=0) - 1).max() < 0.05


@given(st.integers(0, 2**32 - 1))
def test_rows_that_are_cut_keep_their_partners(seed: int) -> None:
    run = CUT
    dice = np.random.default_rng(seed)
    whole = RowIndex.of(run, measure_of_all(run))
    lengths = np.diff(whole.base)
    low = dice.integers(0, lengths + 1)
    high = np.minimum(low + dice.integers(0, lengths + 1), lengths)
    part = whole.cut(low, high)
    number = np.full(len(whole), ABSENT)
    for position, base in enumerate(whole.base[:-1].tolist()):
        span = slice(base + low[position], base + high[position])
        number[span] = np.arange(part.base[position], part.base[position + 1])
    every, some = whole.members(run.matches), part.members(run.matches)
    for instance in range(every.count):
        of_whole = slice(*every.offsets[instance : instance + 2])
        of_part = slice(*some.offsets[instance : instance + 2])
        kept = number[every.row[of_whole]] != ABSENT
        assert (some.row[of_part] == number[every.row[of_whole]][kept]).all()
        assert (some.rank_index[of_part] == every.rank_index[of_whole][kept]).all()
    starts = whole.column(lambda rank: rank.collectives["start_ns"])
    assert (
        part.column(lambda rank: rank.collectives["start_ns"]) == starts[number != ABSENT]
    ).all()


CUT = assemble_run("simulated", job(num_steps=2).run().to_ranks())


def measure_of_all(run: Run) -> dict[int, None]:
    return dict.fromkeys(rank.rank for rank in run.ranks)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.1, 0.9]), st.sampled_from([9, 2**40]))
def test_a_change_is_kept_as_its_difference(seed: int, share: float, most: int) -> None:
    dice = np.random.default_rng(seed)
    usual = dice.integers(0, 2**50, int(dice.integers(0, 40)))
    more = dice.integers(-most, most, len(usual)) * (dice.random(len(usual)) < share)
    kept = _Difference.of(usual, usual + more)
    assert kept is not None
    assert kept.on(usual).tolist() == (usual + more).tolist()
    assert kept.on(usual).dtype == np.int64
    assert kept.more.itemsize == (8 if abs(more).max(initial=0) >= 2**31 else 4)
    assert _Difference.of(usual, None) is None
