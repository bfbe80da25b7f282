"""Jobs under a profiler that makes CPU events longer are reported as they are without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import distprof
from distprof.documents.saved import Report
from distprof.ingest.steps import find_steps
from distprof.intervals import EMPTY
from distprof.rules.engine import run_rules
from distprof.run.run import Run
from distprof.sections.context import ProbeRecords
from distprof.sections.measure_run import analysed_windows
from distprof.sections.perturbation import PerturbationResult
from distprof.sections.perturbation.measure import LEAST_COST, UntracedSteps, correct
from tests.builders import make_run
from tests.drawn import drawn
from tests.sections.measured import measure
from tests.sections.perturbation.dilated import (
    AHEAD,
    MS,
    US,
    Cost,
    Program,
    Recorded,
    constant,
    noisy,
    nothing,
    run,
    two_valued,
)

STEPS = 6

PROGRAMS = {
    "gpu-bound": Program(kernel_ns=90 * US),
    "balanced": Program(kernel_ns=36 * US),
    "launch-bound": Program(kernel_ns=8 * US),
    "synchronising": Program(kernel_ns=40 * US, sync_every=10),
    "loads itself": Program(kernel_ns=60 * US, load_ns=30 * MS),
    "slow workers": Program(kernel_ns=40 * US, worker_ns=40 * MS),
    "saves": Program(kernel_ns=50 * US, pause=("save_checkpoint", 20 * MS)),
    "python": Program(kernel_ns=50 * US, pause=("", 20 * MS)),
}
COSTS = {
    "constant": constant(5 * US),
    "two-valued": two_valued(2 * US, 9 * US),
    "noisy": noisy(5 * US),
}


def as_run(recorded: Recorded) -> Run:
    tables = recorded.trace.tables()
    first, last = int(tables.host["start_ns"].min()), int(tables.host["end_ns"].max())
    found = find_steps(tables.activity, tables.host, first_ns=first, last_ns=last)
    for row in found.table.take(slice(1, None)).to_pandas().itertuples():
        recorded.trace.step(int(row.step), int(row.start_ns), int(row.end_ns))
    return make_run([recorded.trace.rank()], steps=range(1, STEPS))


def corrected(program: Program, cost: Cost) -> tuple[Run, PerturbationResult, Recorded]:
    """The dilated recording without the profiler's cost, and the run without a profiler."""
    plain, traced = run(program, 80), run(program, STEPS, cost)
    loads = float(np.mean(plain.loads[AHEAD:])) if plain.loads else None
    untraced = UntracedSteps(
        untraced_ns=np.diff(plain.ends)[AHEAD:],
        later_ns=np.empty(0, np.int64),
        light_ns=np.empty(0, np.int64),
        input_ns=loads,
        collection_ns=None,
        collections=EMPTY,
    )
    dilated = as_run(traced)
    records = ProbeRecords(found={UntracedSteps: {0: untraced}})
    correction = correct(dilated, records, analysed_windows(dilated))
    return correction.run, correction.result, plain


def shares(run: Run) -> dict[str, float]:
    total = measure(run).waterfall.all
    fields = ("computation", "idle_host", "idle_sync", "idle_input", "idle_pause")
    return {name: getattr(total, f"{name}_ns") / total.span_ns for name in fields}


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_step_and_its_parts_are_those_without_the_profiler(name, cost):
    program = PROGRAMS[name]
    found, result, plain = corrected(program, COSTS[cost])
    assert result.is_corrected or result.traced_ns == pytest.approx(plain.step_ns, rel=0.02)
    assert result.simulated_ns == pytest.approx(plain.step_ns, rel=0.03)
    truth = shares(as_run(run(program, STEPS)))
    parts = shares(found)
    apart = {part: (parts[part], truth[part]) for part in truth}
    assert all(abs(mine - right) <= 0.06 for mine, right in apart.values()), apart


@pytest.mark.parametrize("seed", drawn(range(60), always=6))
def test_the_cost_of_an_operator_is_found_where_launches_bound_the_job(seed):
    rng = np.random.default_rng(seed)
    op_ns = int(rng.integers(1, 12)) * US
    program = Program(kernel_ns=int(rng.integers(2, 12)) * US, ops=int(rng.integers(3, 9)))
    _, result, _ = corrected(program, constant(op_ns))
    assert result.operator_ns == pytest.approx(op_ns, rel=0.1)
    assert result.is_paced_by_gpu is False


@pytest.mark.parametrize("seed", drawn(range(100), always=8))
def test_no_job_that_its_gpu_paces_is_called_launch_bound(seed):
    rng = np.random.default_rng(1_000 + seed)
    cpu_ns = (4 * US + 200) * 6 + 3 * US
    program = Program(kernel_ns=int(cpu_ns * rng.uniform(1.05, 2.5)))
    found, result, _ = corrected(program, noisy(int(rng.integers(2, 10)) * US, seed))
    measured = measure(found)
    outcome = run_rules([measured.idle, measured.waterfall, measured.step_time, result])
    assert [one.code for one in outcome.findings if one.code in ("HST101", "HST112")] == []


FAULTS: dict[str, tuple[str, Callable[[Program, float], Program]]] = {
    "synchronises": ("HST102", lambda p, _: replace(p, sync_every=5)),
    "loads itself": ("INP101", lambda p, ns: replace(p, load_ns=round(ns))),
    "saves": ("HST112", lambda p, ns: replace(p, pause=("save_checkpoint", round(ns)))),
    "python": ("HST112", lambda p, ns: replace(p, pause=("", round(ns)))),
}

LEAST_LOST = dict.fromkeys(FAULTS, 0.05) | {"python": 0.1}
"""Share of the step from which a fault must be found: above its rule's limit, which is 0.08 for
code that nothing names.
"""


@pytest.mark.parametrize("seed", drawn(range(60), always=4))
@pytest.mark.parametrize("fault", FAULTS)
def test_the_price_is_what_untraced_steps_lose(fault, seed):
    rng = np.random.default_rng(2_000 + seed)
    ops = int(rng.integers(3, 9))
    kernel_ns = int(rng.integers(4 * ops + 8, 110)) * US
    healthy = Program(kernels=int(rng.integers(100, 400)), kernel_ns=kernel_ns, ops=ops)
    healthy_ns = run(healthy, 80).step_ns
    code, spoil = FAULTS[fault]
    faulty = spoil(healthy, healthy_ns * rng.uniform(0.15, 1.5))
    faulty_ns = run(faulty, 80).step_ns
    traced = run(faulty, STEPS, noisy(int(rng.integers(2, 9)) * US, seed))
    report = distprof.analyze(as_run(traced), step_ns=round(faulty_ns))
    accused = [one for one in report.findings if one.code.startswith(("HST", "INP"))]
    lost_ns = faulty_ns - healthy_ns
    if lost_ns < LEAST_LOST[fault] * faulty_ns:
        return
    assert accused[0].code == code
    price = accused[0].remaining_ns or accused[0].recoverable_ns
    assert price == pytest.approx(lost_ns, rel=0.15, abs=LEAST_COST * faulty_ns)


def test_without_a_cost_nothing_moves():
    program = PROGRAMS["launch-bound"]
    found, result, _ = corrected(program, nothing)
    assert not result.is_corrected
    assert result.simulated_ns == result.traced_ns
    assert found.ranks[0].steps["start_ns"].tolist()[0] > 0


@pytest.mark.parametrize("cost", [nothing, constant(60)])
def test_a_step_that_the_trace_agrees_with_decides_whether_launches_bound_it(cost):
    program = PROGRAMS["launch-bound"]
    recorded, step_ns = as_run(run(program, STEPS, cost)), run(program, 80).step_ns
    (guessed,) = distprof.analyze(recorded).findings
    (decided,) = distprof.analyze(recorded, step_ns=round(step_ns)).findings
    assert guessed.code == decided.code == "HST101"
    assert guessed.recoverable_ns is None
    assert "--step-time" in guessed.fix
    kernels_ns = program.kernels * program.kernel_ns
    assert decided.recoverable_ns == pytest.approx(step_ns - kernels_ns, rel=0.05)
    assert "--step-time" not in decided.fix


def test_a_report_has_the_section():
    assert "perturbation" in Report.__struct_fields__
