"""Slow links: the group that passes one is named, and no rank is blamed for it."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.ingest.assemble import assemble_run
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.terms import StragglerPattern
from tests.sections.measured import measure
from tests.simulator import (
    Collective,
    Compute,
    Exchange,
    Input,
    SimulatedJob,
    SlowDevice,
    SlowLink,
)
from tests.simulator.shapes import pipeline
from tests.simulator.trials import report_of

MS = 1_000_000
MESH = SimulatedJob(
    num_nodes=3,
    ranks_per_node=2,
    num_steps=8,
    program=(
        Input(),
        Compute(ns=4 * MS),
        Collective(axis="tp", transfer_ns=MS // 10, bytes=1 << 20),
        Collective(axis="dp", transfer_ns=2 * MS, bytes=64 << 20),
        Collective(bytes=4, transfer_ns=20_000),
    ),
    axes={"tp": ((0, 1), (2, 3), (4, 5)), "dp": ((0, 2, 4), (1, 3, 5))},
)


def stragglers_of(job):
    run = assemble_run("simulated", job.run().to_ranks())
    found = measure(run)
    return analyze_stragglers(run, found.analyses, found.step_time)


@pytest.mark.parametrize("factor", [1.3, 2.0, 4.0])
def test_the_group_with_a_slow_link_is_named_with_what_it_costs(factor):
    result = stragglers_of(replace(MESH, faults=(SlowLink(rank=3, factor=factor),)))
    (link,) = result.links
    assert link.ranks == (1, 3, 5)
    assert (link.kind, link.axis, link.bytes) == ("all_reduce", "dp", 64 << 20)
    assert link.ratio == pytest.approx(factor, rel=0.03)
    assert link.lost_ns_per_step == pytest.approx((factor - 1) * 2 * MS, rel=0.05)
    assert link.nodes == ("node0", "node1", "node2")


@pytest.mark.parametrize("rank", range(6))
@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_a_gpu_whose_groups_of_all_axes_are_slow_is_named(rank, factor):
    job = replace(MESH, faults=(SlowLink(rank=rank, factor=factor, is_gpu=True),))
    report = report_of(job.run())
    (found,) = (finding for finding in report.findings if finding.code == "STR107")
    assert found.ranks == (rank,)
    assert found.recoverable_ns == pytest.approx(mean_step(job) - mean_step(MESH), rel=0.1)


def test_ranks_that_a_slow_link_holds_up_are_not_stragglers():
    result = stragglers_of(replace(MESH, faults=(SlowLink(rank=3, factor=2.0),)))
    assert result.pattern is StragglerPattern.NONE
    assert {record.pattern for record in result.ranks} == {StragglerPattern.NONE}


def test_alike_links_and_late_ranks_are_no_slow_links():
    assert stragglers_of(MESH).links == ()
    assert stragglers_of(replace(MESH, faults=(SlowDevice(rank=3, factor=1.5),))).links == ()


def test_a_link_inside_of_a_node_is_not_slow_when_the_card_to_others_is():
    result = stragglers_of(replace(MESH, faults=(SlowLink(rank=0, factor=2.0),)))
    assert [link.axis for link in result.links] == ["dp"]


def test_one_group_alone_has_nothing_to_be_compared_with():
    alone = replace(MESH, axes={}, program=(Compute(ns=4 * MS), Collective(transfer_ns=2 * MS)))
    assert stragglers_of(replace(alone, faults=(SlowLink(rank=0, factor=3.0),))).links == ()


def test_too_few_transfers_tell_nothing():
    few = replace(MESH, num_steps=4, faults=(SlowLink(rank=3, factor=2.0),))
    assert stragglers_of(few).links == ()


def test_a_rank_that_is_slow_beside_a_slow_link_is_still_named():
    faults = (SlowLink(rank=3, factor=1.5), SlowDevice(rank=4, factor=1.3))
    result = stragglers_of(replace(MESH, faults=faults))
    assert [link.ranks for link in result.links] == [(1, 3, 5)]
    named = [record.rank for record in result.ranks if record.pattern is not StragglerPattern.NONE]
    assert named == [4]


@given(factor=st.floats(1.5, 4.0), rank=st.integers(0, 5), seed=st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_whichever_link_is_slow_its_group_is_named_and_loses_no_more_than_the_step(
    factor, rank, seed
):
    job = replace(MESH, seed=seed, faults=(SlowLink(rank=rank, factor=factor),))
    (link,) = stragglers_of(job).links
    assert link.ranks == ((0, 2, 4), (1, 3, 5))[rank % 2]
    assert 0 < link.share_of_step_ratio < 1


# --- pipelines: what leaves a node ----------------------------------------------------------------

PIPELINE = SimulatedJob(
    num_nodes=4,
    ranks_per_node=2,
    num_steps=8,
    program=(
        Compute(ns=4 * MS),
        Exchange(axis="pp", src=0, dst=1, bytes=8 << 20, transfer_ns=MS),
        Compute(ns=6 * MS),
        Exchange(axis="pp", src=1, dst=0, bytes=8 << 20, transfer_ns=MS),
        Collective(axis="dp", transfer_ns=2 * MS, bytes=64 << 20),
        Collective(bytes=4, transfer_ns=20_000),
    ),
    axes={"dp": ((0, 1, 2, 3), (4, 5, 6, 7)), "pp": ((0, 4), (1, 5), (2, 6), (3, 7))},
)


@pytest.mark.parametrize("node", [(0, 1), (2, 3), (4, 5), (6, 7)])
def test_collectives_and_messages_over_the_links_of_one_node_are_one_cause(node):
    faults = tuple(SlowLink(rank=rank, factor=3.0) for rank in node)
    (link,) = stragglers_of(replace(PIPELINE, faults=faults)).links
    assert link.ranks == node
    other = 4 if node[0] < 4 else -4
    stage = (0, 1, 2, 3) if node[0] < 4 else (4, 5, 6, 7)
    pairs = {tuple(sorted((rank, rank + other))) for rank in node}
    assert {slow.ranks for slow in link.transfers} == {stage, *pairs}
    assert all(
        slow.transfer_ns == pytest.approx(3 * slow.others_ns, rel=0.05) for slow in link.transfers
    )


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_mending_the_links_of_a_node_recovers_what_the_job_takes_longer(factor):
    faults = tuple(SlowLink(rank=rank, factor=factor) for rank in (2, 3))
    report = report_of(replace(PIPELINE, faults=faults).run())
    (found,) = (finding for finding in report.findings if finding.code == "STR107")
    longer = mean_step(replace(PIPELINE, faults=faults)) - mean_step(PIPELINE)
    assert found.ranks == (2, 3)
    assert found.recoverable_ns == pytest.approx(longer, rel=0.1)
    assert report.findings[0].code == "STR107"


def mean_step(job):
    """From the last rank's end of a step to the next, without the first one."""
    ends = {}
    for instance in job.run().instances:
        ends[instance.step] = max(ends.get(instance.step, 0), instance.end_ns)
    times = [ends[step] for step in sorted(ends)]
    return (times[-1] - times[0]) / (len(times) - 1)


def test_messages_between_equal_links_are_no_slow_links():
    assert stragglers_of(PIPELINE).links == ()


@pytest.mark.parametrize(("stages", "replicas"), [(2, 4), (4, 2)])
def test_a_stage_that_a_slow_link_holds_up_is_no_straggler(stages, replicas):
    """Its messages come late, and so it comes late to the gradients of its stage."""
    job = pipeline(stages, replicas, random.Random(3))
    report = report_of(replace(job, faults=(SlowLink(rank=0, factor=6.0),)).run())
    assert report.findings[0].code == "STR107"
    assert "STR101" not in [found.code for found in report.findings]


# Slow for a time ----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [(13, 14), (12, 15), (15,), (13, 14, 15, 16)])
def test_a_link_is_named_with_the_steps_in_which_it_is_slow(steps):
    """8 steps from 10 on, the first and last of which are not recorded whole."""
    result = stragglers_of(replace(MESH, faults=(SlowLink(rank=3, factor=4.0, steps=steps),)))
    (link,) = result.links
    assert (link.ranks, link.steps, link.num_compared) == ((1, 3, 5), steps, 1)
    assert (link.transfer_ns, link.others_ns) == pytest.approx((8 * MS, 2 * MS), rel=0.05)
    lost = 3 * 2 * MS * len(steps) / link.num_steps
    assert link.lost_ns_per_step == pytest.approx(lost, rel=0.05)


@pytest.mark.parametrize("steps", [(13, 14), (12, 15), (15,), (13, 14, 15, 16)])
def test_a_network_that_is_slow_for_all_is_no_rank_s_link(steps):
    faults = tuple(SlowLink(rank=rank, factor=3.0, steps=steps) for rank in range(6))
    report = report_of(replace(MESH, faults=faults).run())
    (link,) = report.stragglers.links
    assert (link.ranks, link.steps, link.num_compared) == (tuple(range(6)), steps, 0)
    (found,) = [found for found in report.findings if found.code == "STR107"]
    assert found.ranks == ()
    assert f"in {len(steps)} of {link.num_steps} steps (" in found.message
    assert "times as long as in the other steps" in found.message


def test_a_first_step_that_is_slow_alone_proves_nothing():
    whole = stragglers_of(MESH)
    assert whole.links == ()
    first = min(step.step for step in whole.steps)
    faults = tuple(SlowLink(rank=rank, factor=3.0, steps=(first,)) for rank in range(6))
    assert stragglers_of(replace(MESH, faults=faults)).links == ()


@given(st.integers(0, 1 << 30), st.floats(0.0, 0.08))
@settings(max_examples=15)
def test_jobs_whose_links_are_all_alike_have_no_slow_one_at_any_time(seed, noise):
    job = replace(MESH, seed=seed, compute_noise=noise, end_jitter_ns=20_000)
    assert stragglers_of(job).links == ()
