"""The graph of a traced run: it simulates what was measured, and what would be without a fault."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import distprof
from distprof.ingest.assemble import assemble_run
from distprof.run.run import Run
from distprof.sections.moe import MoeResult
from distprof.sections.pipeline import PipelineResult
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.sections.whatif import WhatIfResult
from distprof.sections.whatif.measure import analyze_whatif
from distprof.sections.whatif.plan import Workbench
from distprof.sections.whatif.trace_graph import TraceGraph, trace_graph
from distprof.terms import CollectiveKind
from tests.builders import RankBuilder, make_run
from tests.drawn import drawn as seeds
from tests.sections.measured import measure
from tests.simulator import (
    Collective,
    Compute,
    Input,
    LateHost,
    LateInput,
    MoreWork,
    Recording,
    SimulatedJob,
    SlowDevice,
    trials,
)
from tests.simulator.job import DDP_STEP, MS, US, Exchange, Wait
from tests.simulator.trials import Trial, report_of, trial_of

PLAIN = (Input(), Compute(ns=4 * MS), Collective(), Compute(ns=2 * MS), Collective())
MESH = (
    Input(),
    Compute(ns=3 * MS),
    Collective(axis="tp", transfer_ns=MS // 2),
    Compute(ns=2 * MS),
    Collective(axis="tp", transfer_ns=MS // 2),
    Compute(ns=MS),
    Collective(axis="dp", overlap=True),
    Wait(),
    Compute(ns=MS),
)
AXES = {"tp": ((0, 1), (2, 3)), "dp": ((0, 2), (1, 3))}
STAGES = (
    Input(),
    Compute(ns=2 * MS),
    Exchange(src=0, dst=1, axis="pp"),
    Compute(ns=3 * MS),
    Exchange(src=1, dst=0, axis="pp"),
    Compute(ns=MS),
)
PROGRAMS = {"ddp": (DDP_STEP, {}), "plain": (PLAIN, {}), "mesh": (MESH, AXES)}


FORTH = (Compute(ns=2 * MS), Collective(axis="tp", transfer_ns=MS // 4))
BACK = (*FORTH, Collective(axis="dp", transfer_ns=1900 * US, overlap=True), Compute(ns=MS))
TWO_STREAMS = (Input(), *FORTH * 3, *BACK * 3, Wait(), Compute(ns=MS))
"""Gradients are reduced before or after the next collective of tensor parallelism, as it comes."""


def run_of(recording: Recording) -> Run:
    return assemble_run("simulated", recording.to_ranks())


def graph_of(run: Run) -> TraceGraph:
    graph = trace_graph(run, measure(run).analyses)
    assert graph is not None
    return graph


def whatif_of(run: Run) -> WhatIfResult:
    measured = measure(run)
    stragglers = analyze_stragglers(run, measured.analyses, measured.step_time)
    return analyze_whatif(
        run, measured.analyses, stragglers, MoeResult(), PipelineResult(), Workbench()
    )


def recovered(result: WhatIfResult) -> dict[str, int]:
    return {scenario.what: scenario.recoverable_ns for scenario in result.without}


# By hand ------------------------------------------------------------------------------------------


def two_ranks() -> Run:
    """Rank 0 computes 40 and waits 20 for rank 1; the transfer takes 10; both compute 30 more."""
    builders = [RankBuilder(0, world_size=2), RankBuilder(1, world_size=2)]
    for builder, first in zip(builders, (40, 60), strict=True):
        builder.step(0, 0, 100).kernel("gemm", 0, first)
        builder.comm("ncclDevKernel_AllReduce", first, 70, ranks=(0, 1), seq=1, size=1_000)
        builder.kernel("gemm", 70, 100)
    ranks = [builder.rank() for builder in builders]
    assembled = assemble_run("by hand", ranks)
    return make_run(ranks, steps=(0,), matches=assembled.matches)


def test_a_transfer_lasts_from_the_last_start_to_the_end():
    graph = graph_of(two_ranks())
    assert graph.transfers.duration_ns.tolist() == [10]
    assert graph.transfers.is_joined.tolist() == [True]
    assert graph.own_ns.sum(axis=1).tolist() == [40, 30, 0, 60, 30, 0]


def test_the_simulation_of_nothing_changed_is_what_was_measured():
    graph = graph_of(two_ranks())
    assert graph.window_ns(graph.simulate()).tolist() == [[100], [100]]


def test_scenarios_by_hand():
    """Without rank 1's lateness 80; without the transfer 90; without both 70."""
    result = whatif_of(two_ranks())
    assert (result.step_ns, result.replayed_ns, result.model_error_ratio) == (100, 100, 0.0)
    found = recovered(result)
    assert (found["rank 1"], found["late ranks"]) == (20, 20)
    assert (found["exposed transfer"], found["communication"]) == (10, 30)
    assert "rank 0" not in found


def test_slow_downs_by_hand():
    """Ideal: both compute 50, transfer 10, compute 30."""
    result = whatif_of(two_ranks())
    assert (result.ideal_ns, result.slowdown) == (90, pytest.approx(100 / 90))
    assert result.m_w == pytest.approx(1.0)
    assert {worker.rank: worker.slowdown for worker in result.workers} == {
        1: pytest.approx(100 / 90),
        0: pytest.approx(1.0),
    }


def test_the_critical_path_by_hand():
    result = whatif_of(two_ranks())
    shares = {(share.rank, share.kind): share.ns_per_step for share in result.path}
    assert shares[1, "compute"] + shares.get((0, "compute"), 0) == 90
    assert shares[1, "compute"] >= 60
    assert shares[None, "transfer"] == 10
    assert sum(shares.values()) == 100
    assert list(result.to_pandas("path").columns)[:3] == ["rank", "kind", "name"]


def mailed() -> Run:
    """Rank 0 sends and goes on at once; rank 1 takes the message 35 later."""
    first, second = RankBuilder(0, world_size=2), RankBuilder(1, world_size=2)
    more = {"ranks": (0, 1), "seq": 1, "size": 1_000}
    first.step(0, 0, 70).kernel("gemm", 0, 10).kernel("gemm", 10, 70)
    first.comm("ncclDevKernel_SendRecv", 10, 15, kind=CollectiveKind.SEND, peer=1, **more)
    second.step(0, 0, 70).kernel("gemm", 0, 50).kernel("gemm", 55, 70)
    second.comm("ncclDevKernel_SendRecv", 50, 55, kind=CollectiveKind.RECV, peer=0, **more)
    ranks = [first.rank(), second.rank()]
    return make_run(ranks, steps=(0,), matches=assemble_run("by hand", ranks).matches)


def test_a_message_from_a_buffer_holds_up_its_receiver_only():
    graph = graph_of(mailed())
    assert graph.window_ns(graph.simulate()).tolist() == [[70], [70]]
    own = graph.own_ns.sum(axis=1)
    quick = np.where((graph.owner == 1) & (own == 50), 0, own)
    slow = np.where((graph.owner == 1) & (own == 50), 90, own)
    assert graph.window_ns(graph.simulate(quick)).tolist() == [[70], [35]]  # 15 + 5 + 15
    assert graph.window_ns(graph.simulate(slow)).tolist() == [[70], [110]]


JOBS = Path(__file__).parents[2] / "golden" / "job"


def recorded_job(name: str) -> WhatIfResult:
    return whatif_of(distprof.open_run(JOBS / name, executor="serial", use_cache=False))


def test_a_recorded_pipeline_of_cpu_ranks_is_simulated_to_its_steps():
    """Of its messages only the moments of posting are known, and how long ranks were blocked."""
    result = recorded_job("gloo-pp-4ranks")
    assert abs(result.model_error_ratio) < 0.02
    assert result.step_error_ratio < 0.02
    assert any("send_recv" in share.name for share in result.path)


def test_a_job_of_which_less_than_half_was_matched_is_not_simulated():
    result = recorded_job("gloo-hsdp-4ranks")
    assert result.without == ()
    assert "found their partners" in result.unavailable[0]


def test_a_rank_alone_has_scenarios_of_its_own_time_and_of_what_it_could_hide():
    rank = RankBuilder(0).step(0, 0, 100)
    rank.kernel("gemm", 0, 40, launched=(0, 0)).kernel("gemm", 70, 100, launched=(68, 70))
    rank.call("distprof:input", 45, 65, category="annotation")
    rank.comm("ncclDevKernel_AllReduce", 40, 45, ranks=(0, 1))
    result = whatif_of(make_run([rank.rank()], steps=(0,)))
    assert recovered(result) == {"input": 20, "launch-gaps": 5, "overlap": 5}
    assert result.slowdown is None


def test_ranks_that_were_not_matched_are_not_simulated():
    run = structs.replace(two_ranks(), matches=make_run([]).matches)
    result = whatif_of(run)
    assert result.without == ()
    assert "found their partners" in result.unavailable[0]


def test_nothing_measured_is_said():
    assert whatif_of(make_run([])).unavailable


# Simulated jobs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("synchronise", [True, False])
@pytest.mark.parametrize("offsets", [(), (0, 12 * MS)], ids=["one clock", "12 ms apart"])
def test_the_model_error_is_small(program, synchronise, offsets):
    operations, axes = PROGRAMS[program]
    job = SimulatedJob(
        program=operations,
        axes=axes,
        synchronise=synchronise,
        clock_offset_ns=offsets,
        clock_drift_ppm=(0.0, 8.0) if offsets else (),
        faults=(SlowDevice(rank=1, factor=1.2),),
        end_jitter_ns=20 * US,
        compute_noise=0.05,
        seed=len(program),
    )
    result = whatif_of(run_of(job.run()))
    assert abs(result.model_error_ratio) < 0.001
    assert result.step_error_ratio < 0.005


def test_a_pipeline_of_messages_is_simulated_to_its_steps():
    job = SimulatedJob(program=STAGES, axes={"pp": ((0, 2), (1, 3))}, seed=5)
    result = whatif_of(run_of(job.run()))
    assert abs(result.model_error_ratio) < 0.001
    assert any(share.kind == "transfer" for share in result.path)


FAULTS = {
    "slow device": (SlowDevice(rank=1, factor=1.3), "rank 1"),
    "more work": (MoreWork(rank=2, factor=1.5), "rank 2"),
    "late input": (LateInput(rank=3, ns=3 * MS), "rank 3"),
    "late input, as such": (LateInput(rank=3, ns=3 * MS), "uneven-input"),
    "late host": (LateHost(rank=0, ns=2 * MS), "rank 0"),
    "one slow step": (SlowDevice(rank=1, factor=2.0, steps=(12,)), "rank 1"),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_fault_costs_is_what_the_job_takes_longer(program, fault):
    operations, axes = PROGRAMS[program]
    what, key = FAULTS[fault]
    bad = SimulatedJob(program=operations, axes=axes, faults=(what,), seed=11)
    truth = step_of(bad) - step_of(replace(bad, faults=()))
    assert recovered(whatif_of(run_of(bad.run())))[key] == pytest.approx(truth, rel=0.05)


def step_of(job: SimulatedJob) -> float:
    logs = job.run().logs
    return float(np.mean([log.steps[-1][2] - log.steps[0][1] for log in logs])) / job.num_steps


def test_input_costs_the_same_where_collectives_of_two_streams_take_turns_differently():
    job = SimulatedJob(
        num_nodes=1, ranks_per_node=4, program=TWO_STREAMS, axes=AXES, compute_noise=0.1
    )
    late = replace(job, faults=(LateInput(rank=2, ns=6 * MS),))
    step_ns, usual_ns = (
        np.mean(
            [
                step.span_ns
                for rank in measure(run_of(one.run())).analyses.values()
                for step in rank.steps
            ]
        )
        for one in (late, job)
    )
    gains = recovered(whatif_of(run_of(late.run())))
    assert gains["rank 2"] == pytest.approx(step_ns - usual_ns, rel=0.1)


def test_free_transfers_are_what_a_job_takes_without_them():
    slow = SimulatedJob(program=PLAIN, seed=3)
    free = tuple(replace(op, transfer_ns=1) if isinstance(op, Collective) else op for op in PLAIN)
    truth = step_of(slow) - step_of(replace(slow, program=free))
    found = recovered(whatif_of(run_of(slow.run())))
    assert found["exposed transfer"] == pytest.approx(truth, rel=0.02)
    assert found["collectives all_reduce world"] == found["exposed transfer"]


def test_no_launch_gaps_are_what_a_job_takes_with_a_fast_host():
    slow = SimulatedJob(program=PLAIN, seed=3, launch_ns=2 * MS)
    truth = step_of(slow) - step_of(replace(slow, launch_ns=6 * US))
    found = recovered(whatif_of(run_of(slow.run())))
    assert found["launch-gaps"] == pytest.approx(truth, rel=0.1)


KEYS = {
    "slow_rank": "rank",
    "late_input": "rank",
    "late_host": "rank",
    "hot_expert": "expert-imbalance",
    "slow_stage": "stage-imbalance",
    "long_sequences": "even-work",
    "slow_link": "hardware all_reduce dp",
}


@cache
def drawn(kind: str, seed: int) -> Trial:
    return trial_of(getattr(trials, kind), seed)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("seed", seeds([90_001, 90_002], always=1))
def test_the_cost_of_faults_in_drawn_jobs(kind, seed):
    """Jobs of every parallelism on several nodes, clocks off by up to 10 ms, captures torn."""
    trial = drawn(kind, seed)
    recording = trial.job.run()
    report = report_of(recording)
    steps = {row.step for row in report.breakdown.steps}
    step = recording.mean_step_ns(steps)
    truth = step - trial.truths[0].sound.run().mean_step_ns(steps)
    key = f"rank {min(trial.ranks)}" if KEYS[kind] == "rank" else KEYS[kind]
    assert abs(report.whatif.model_error_ratio) < 0.005
    found = recovered(report.whatif).get(key, 0)
    assert found == pytest.approx(truth, rel=0.12, abs=0.01 * step)


# What must hold of any run ------------------------------------------------------------------------


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    operations, axes = PROGRAMS[draw(st.sampled_from(sorted(PROGRAMS)))]
    faults = [
        SlowDevice(rank=draw(st.integers(0, 3)), factor=draw(st.floats(1.0, 2.0)))
        for _ in range(draw(st.integers(0, 2)))
    ]
    return SimulatedJob(
        program=operations,
        axes=axes,
        faults=tuple(faults),
        num_steps=3,
        seed=draw(st.integers(0, 10_000)),
        compute_noise=draw(st.sampled_from([0.0, 0.05, 0.3])),
        synchronise=draw(st.booleans()),
    ).run()


@settings(max_examples=15)
@given(recordings())
def test_a_scenario_recovers_something_between_nothing_and_the_step(recording):
    result = whatif_of(run_of(recording))
    for scenario in result.without:
        assert 0 <= scenario.recoverable_ns <= result.replayed_ns
        assert scenario.step_ns + scenario.recoverable_ns == result.replayed_ns
    gains = [scenario.recoverable_ns for scenario in result.without]
    assert gains == sorted(gains, reverse=True)
    assert sum(share.ns_per_step for share in result.path) == result.replayed_ns


@settings(max_examples=15)
@given(recordings())
def test_removing_more_recovers_at_least_as_much(recording):
    result = whatif_of(run_of(recording))
    found = recovered(result)
    # ranks that begin their first window with the others wait there for what is still late
    waits_longer = 1e-4 * result.replayed_ns
    for what, gain in found.items():
        if what.startswith("rank "):
            assert gain <= found["late ranks"] + waits_longer
        if what.startswith(("collectives", "hardware", "axis", "small", "overlap")):
            assert gain <= found["exposed transfer"]
    assert found["communication"] >= max(found["exposed transfer"], found["late ranks"])
    assert found.get("uneven-input", 0) <= found.get("input", 0)


@settings(max_examples=10)
@given(recordings(), st.integers(0, 2**32))
def test_changing_nothing_changes_nothing(recording, seed):
    graph = graph_of(run_of(recording))
    once = graph.simulate()
    again = graph.simulate(graph.own_ns.sum(axis=1), graph.transfers.duration_ns, graph.delay_ns)
    np.testing.assert_array_equal(once.end, again.end)
    shorter = graph.own_ns.sum(axis=1)
    cut = np.random.default_rng(seed).integers(0, shorter + 1)
    assert (graph.simulate(own_ns=cut).end <= once.end).all()


@settings(max_examples=10)
@given(recordings(), st.integers(-(10**9), 10**9))
def test_clocks_that_are_shifted_change_nothing(recording, shift):
    job = replace(recording.job, clock_offset_ns=(shift, shift))
    first, second = (
        recovered(whatif_of(run_of(r))) for r in (recording, replace(recording, job=job))
    )
    assert second == first


def test_how_ranks_are_numbered_changes_nothing():
    job = SimulatedJob(
        program=PLAIN, num_nodes=1, ranks_per_node=4, compute_noise=0.0, end_jitter_ns=0
    )
    one = whatif_of(run_of(replace(job, faults=(SlowDevice(rank=1, factor=1.4),)).run()))
    other = whatif_of(run_of(replace(job, faults=(SlowDevice(rank=3, factor=1.4),)).run()))
    assert recovered(one)["rank 1"] == pytest.approx(recovered(other)["rank 3"], rel=1e-3)
    assert one.slowdown == pytest.approx(other.slowdown, rel=1e-3)


def test_kinds_of_the_graph_are_those_of_the_matches():
    run = run_of(SimulatedJob(program=PLAIN, seed=4).run())
    graph = graph_of(run)
    assert set(graph.transfers.kind.tolist()) == {int(CollectiveKind.ALL_REDUCE)}
    assert [label for label, _ in graph.classes()] == ["all_reduce world"]
