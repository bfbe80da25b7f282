"""Gradients of DDP: which collectives carry them, how often they are reduced, and when."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distprof
from distprof.run.topology import ProcessGroup
from distprof.sections.gradients.measure import analyze_gradients, needless_rows, unhidden_rows
from distprof.sections.gradients.traffic import DDP_FORWARD, SEARCH
from distprof.terms import CollectiveKind, MeshAxis
from tests.builders import RankBuilder, make_run
from tests.sections.joined import join_by_seq
from tests.sections.measured import measure

GOLDEN = Path(__file__).parents[1] / "golden" / "kineto"
AUTOGRAD = "100/200"
WORLD = ProcessGroup(
    name="0", description="default_pg", ranks=(0, 1), size=2, backend="nccl", axis=MeshAxis.WORLD
)
TP = ProcessGroup(
    name="1", description="mesh_tp", ranks=(0, 1), size=2, backend="nccl", axis=MeshAxis.TP
)
EP = ProcessGroup(
    name="2", description="mesh_ep", ranks=(0, 1), size=2, backend="nccl", axis=MeshAxis.EP
)
OPTIMIZER = "Optimizer.step#AdamW.step"


def result_of(builder, *, steps=(0,)):
    run = make_run([builder.rank()], steps=steps, groups=(WORLD, TP, EP), world_size=2)
    return analyze_gradients(run, measure(run).analyses)


def reduce(builder, start, end, *, asked, size=8_192, **more):
    """An all-reduce that autograd's thread asks for."""
    more = {"ranks": (0, 1), "dtype": "Float", "thread": AUTOGRAD, **more}
    return builder.comm("ncclAllReduce", start, end, launched=(asked, asked + 1), size=size, **more)


def one_step():
    """Host 0-100 forward, 100-200 backward, 210-220 update; the device is behind by 200."""
    rank = RankBuilder(0).step(0, 0, 1_000).member_of(WORLD).member_of(TP)
    rank.annotation(DDP_FORWARD, 0, 100).annotation(OPTIMIZER, 210, 220)
    rank.kernel("forward", 200, 280, launched=(10, 12))
    rank.kernel("loss", 280, 300, launched=(101, 102))  # by the main thread: no backward yet
    rank.kernel("backward", 300, 700, launched=(105, 106), thread=AUTOGRAD)
    reduce(rank, 400, 450, asked=110)
    reduce(rank, 550, 600, asked=120)
    reduce(rank, 700, 760, asked=130, size=16_384)
    rank.kernel("adam", 760, 800, launched=(211, 212))
    return rank


def test_buckets_backward_and_what_is_exposed_by_hand():
    (group,) = result_of(one_step()).groups
    assert (group.axis, group.ranks, group.group_size) == ("world", (0,), 2)
    assert (group.num_buckets, group.bytes, group.last_bucket_ratio) == (3, 32_768, 0.5)
    assert (group.micro_batches, group.times_reduced) == (1.0, 1.0)
    assert group.before_first_ns == 100  # 300 to 400
    assert group.backward_ns == 400  # 300 to 700
    assert group.exposed_ns_per_step == group.last_bucket_ns_per_step == 60  # 700 to 760
    assert group.redundant_ns_per_step == 0
    assert group.dtypes == ("float32",)


def test_one_rank_of_two_cannot_tell_waiting_from_transfer():
    (group,) = result_of(one_step()).groups
    assert not group.is_split
    assert group.transfer_ns is None


@pytest.mark.parametrize("fixed", [0, 5_700_000])
def test_the_time_that_sizes_do_not_explain_is_fitted_without_the_other_ranks_too(fixed):
    rank = RankBuilder(0).step(0, 0, 40_000_000).member_of(WORLD)
    rank.annotation(DDP_FORWARD, 0, 100).annotation(OPTIMIZER, 210, 220)
    rank.kernel("forward", 200, 280, launched=(10, 12))
    rank.kernel("backward", 300, 700, launched=(105, 106), thread=AUTOGRAD)
    small, large = fixed + 575_000, fixed + 1_760_000
    reduce(rank, 700, 700 + small, asked=110, size=5_750_000)
    reduce(rank, 1_000 + small, 1_000 + small + large, asked=120, size=17_600_000)
    (group,) = result_of(rank).groups
    assert not group.is_split
    assert group.bucket_fixed_ns == pytest.approx(fixed, abs=1_000)
    assert group.is_held_up == (fixed > 0)


def test_losses_counts_other_axes_and_what_follows_the_update_are_no_gradients():
    rank = one_step()
    reduce(rank, 320, 330, asked=108, size=4)  # a loss
    reduce(rank, 331, 340, asked=109, dtype="Int")  # a count
    reduce(rank, 341, 350, asked=109, group="1", desc="mesh_tp")
    reduce(rank, 810, 830, asked=230)  # weights averaged after the update
    assert result_of(rank) == result_of(one_step())


def test_replicas_may_be_those_of_an_expert_or_context_parallel_axis():
    rank = one_step()
    for row in rank.collectives:
        row |= {"group": "2", "group_desc": "mesh_ep"}
    (group,) = result_of(rank).groups
    assert (group.axis, group.num_buckets) == ("ep", 3)


def test_a_group_that_reduces_within_forward_is_not_one_of_gradients():
    rank = reduce(one_step(), 210, 215, asked=20)
    result = result_of(rank)
    assert result.groups == ()
    assert "no floating-point all-reduce" in result.unavailable[0]


def test_without_ddp_marks_nothing_is_told_and_nothing_is_missing():
    rank = one_step()
    rank.host = [row for row in rank.host if row["name"] != DDP_FORWARD]
    result = result_of(rank)
    assert result.groups == ()
    assert result.unavailable == ()


def accumulating(sizes, *, updates_between=False, mark_updates=True, number_of=0):
    """A micro-batch per list of sizes; backward computes 100 each, every reduction 30 after it."""
    length = 200
    rank = RankBuilder(number_of).step(0, 0, length * len(sizes)).member_of(WORLD)
    for number, buckets in enumerate(sizes):
        at = number * length
        rank.annotation(DDP_FORWARD, at, at + 10)
        rank.kernel("backward", at + 12, at + 112, launched=(at + 11, at + 12), thread=AUTOGRAD)
        for index, size in enumerate(buckets):
            begin = at + 112 + 30 * index
            seq = len(rank.collectives)
            reduce(rank, begin, begin + 30, asked=at + 20 + index, size=size, seq=seq)
        if mark_updates and (updates_between or number == len(sizes) - 1):
            rank.annotation(OPTIMIZER, at + 180, at + 190)
    return rank


def test_reductions_that_repeat_before_one_update_are_counted():
    (group,) = result_of(accumulating([[8_192, 4_096]] * 3)).groups
    assert (group.micro_batches, group.times_reduced) == (3.0, 3.0)
    assert group.exposed_ns_per_step == 180
    assert group.redundant_ns_per_step == 120
    assert group.bytes_per_step == 3 * 12_288


def test_rows_of_needless_reductions_are_those_before_the_last():
    run = make_run([accumulating([[8_192, 4_096]] * 3).rank()], steps=(0,), groups=(WORLD,))
    (analysis,) = measure(run).analyses.values()
    assert needless_rows(analysis).tolist() == [True, True, True, True, False, False]


@pytest.mark.parametrize(
    ("buckets", "shares"),
    [
        ([8_192, 8_192, 4_096], [0, 0, 1]),  # the last is ready when backward has ended
        ([8_192], [0.1]),  # in ten buckets a tenth of it would be
        ([4_096] * 200, [0.1] * 200),  # merged into ten buckets likewise
    ],
)
def test_no_order_hides_the_last_bucket_of_gradients(buckets, shares):
    own = SimpleNamespace(
        rows=np.arange(1, len(buckets) + 1),
        bytes=np.array([sum(buckets)]),
        num_buckets=np.array([len(buckets)]),
    )
    analysis = SimpleNamespace(collective_step=np.zeros(len(buckets) + 1), gradients=own)
    np.testing.assert_allclose(unhidden_rows(analysis), [0, *shares], rtol=1e-6)


def test_gradients_that_begin_after_backward_overlap_but_for_the_last_bucket():
    ranks = [accumulating([[8_192, 4_096]], number_of=number).rank() for number in (0, 1)]
    matches, _ = join_by_seq(ranks)
    report = distprof.analyze(make_run(ranks, steps=(0,), groups=(WORLD,), matches=matches))
    without = {scenario.what: scenario.recoverable_ns for scenario in report.whatif.without}
    assert without["exposed transfer"] == 60
    assert without["overlap"] == 30


def test_a_step_without_needless_reductions_is_simulated():
    ranks = [accumulating([[8_192, 4_096]] * 3, number_of=number).rank() for number in (0, 1)]
    matches, _ = join_by_seq(ranks)
    report = distprof.analyze(make_run(ranks, steps=(0,), groups=(WORLD,), matches=matches))
    (group,) = report.gradients.groups
    assert group.is_split
    assert group.redundant_ns_per_step == 120
    without = {scenario.what: scenario.recoverable_ns for scenario in report.whatif.without}
    assert without["repeated gradients"] == 120


def test_an_update_after_each_backward_makes_every_reduction_needed():
    (group,) = result_of(accumulating([[8_192, 4_096]] * 3, updates_between=True)).groups
    assert (group.num_updates, group.micro_batches, group.times_reduced) == (3.0, 1.0, 1.0)
    assert group.redundant_ns_per_step == 0


def test_no_sync_reduces_once():
    (group,) = result_of(accumulating([[], [], [8_192, 4_096]])).groups
    assert (group.micro_batches, group.times_reduced) == (3.0, 1.0)


def test_two_models_before_one_update_do_not_repeat_each_other():
    (group,) = result_of(accumulating([[8_192], [65_536, 4_096]])).groups
    assert group.times_reduced == 1.0


def test_without_marks_of_updates_repetition_is_not_known():
    (group,) = result_of(accumulating([[8_192]] * 3, mark_updates=False)).groups
    assert group.times_reduced is None


@given(
    buckets=st.lists(st.integers(4_096, 10**8), min_size=1, max_size=2),
    times=st.integers(1, 5),
    shift=st.integers(0, 10**15),
)
def test_needless_reductions_are_their_share_whatever_the_clock_says(buckets, times, shift):
    rank = accumulating([buckets] * times)
    for table in (rank.host, rank.activities, rank.collectives, rank.steps):
        for row in table:
            for name in ("start_ns", "end_ns", "enqueue_ns"):
                if name in row:
                    row[name] += shift
    (group,) = result_of(rank).groups
    assert group.times_reduced == times
    assert group.bytes_per_step == times * sum(buckets)
    assert group.redundant_ns_per_step * times == group.exposed_ns_per_step * (times - 1)
    assert group.last_bucket_ns_per_step <= group.exposed_ns_per_step


def test_a_search_costs_what_the_device_idles_and_the_exposed_bitmap():
    rank = one_step()
    rank.operator(SEARCH, 100, 240)  # the device computes from 200 on
    reduce(rank, 765, 790, asked=131, size=156, dtype="Int")  # hidden by adam but for 0
    result = result_of(rank)
    assert result.search_ns_per_step == 140
    assert result.search_exposed_ns_per_step == 100
    assert result.groups == result_of(one_step()).groups


def test_on_cpus_backward_begins_with_forwards_end_and_a_bucket_when_it_is_asked_for():
    run = distprof.open_run(GOLDEN / "gloo-ddp-2ranks")
    (group,) = distprof.analyze(run).gradients.groups
    assert group.dtypes == ("float32",)
    assert (group.num_buckets, group.bytes, group.times_reduced) == (4, 1_052_672, 1.0)
    assert group.is_split
    assert 0 < group.before_first_ns < group.backward_ns


def test_real_ddp_on_gpus_begins_to_reduce_early_in_backward():
    run = distprof.open_run(GOLDEN / "ddp-a100-2gpu-rank0")
    (group,) = distprof.analyze(run).gradients.groups
    # resnet50: 25.6 M parameters in five buckets, the first of 8.2 MB, the last of 9.7 MB
    assert (group.num_buckets, group.bytes) == (5, 102_228_128)
    assert group.last_bucket_ratio == pytest.approx(9_724_160 / 102_228_128)
    assert group.before_first_ns < 0.05 * group.backward_ns
    assert not group.is_split


def test_tensor_parallel_inference_reduces_no_gradients():
    report = distprof.analyze(distprof.open_run(GOLDEN / "tp8-b200-rank0"))
    assert report.collectives.classes[0].kind == CollectiveKind.ALL_REDUCE.label
    assert report.gradients.groups == ()


_TIMES = st.integers(0, 1_000)


@st.composite
def disorder(draw):
    """Marks, kernels and all-reduces anywhere, overlapping, in no order."""
    rank = RankBuilder(0).step(0, 0, 500).step(1, 500, 1_000).member_of(WORLD).member_of(TP)
    for name in draw(st.lists(st.sampled_from([DDP_FORWARD, OPTIMIZER, SEARCH]), max_size=8)):
        start = draw(_TIMES)
        rank.annotation(name, start, start + draw(st.integers(0, 200)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(_TIMES)
        launched = draw(st.none() | st.tuples(_TIMES, _TIMES).map(lambda pair: tuple(sorted(pair))))
        rank.kernel("gemm", start, start + draw(st.integers(0, 300)), launched=launched)
    for _ in range(draw(st.integers(0, 6))):
        start = draw(_TIMES)
        reduce(
            rank,
            start,
            start + draw(st.integers(0, 100)),
            asked=draw(_TIMES),
            size=draw(st.sampled_from([-1, 0, 4, 4_096, 10**12])),
            dtype=draw(st.sampled_from(["Float", "Int", "", "c10::BFloat16", "\x1b[2J"])),
            desc=draw(st.sampled_from(["default_pg", "mesh_tp", ""])),
        )
    return rank


@given(disorder())
def test_whatever_the_trace_says_parts_are_no_larger_than_the_whole(rank):
    for group in result_of(rank, steps=(0, 1)).groups:
        assert 0 <= group.redundant_ns_per_step <= group.exposed_ns_per_step
        assert 0 <= group.last_bucket_ns_per_step <= group.exposed_ns_per_step
        assert 0 < group.last_bucket_ratio <= 1
        assert group.micro_batches >= 1
        assert group.times_reduced is None or group.times_reduced >= 1
        if group.backward_ns is not None:
            assert 0 <= group.before_first_ns <= group.backward_ns
