"""Slots of pipeline stages from names in traces, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.schema import ABSENT
from distprof.sections.pipeline.slots import UNKNOWN_STAGE, SlotName, parse_mark, parse_torch
from distprof.terms import ActivityKind, SlotKind
from tests.builders import RankBuilder
from tests.sections.measured import measured

F, B = SlotKind.FORWARD, SlotKind.BACKWARD


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("PP:0F3", SlotName(0, F, 3)),
        ("PP:12B0", SlotName(12, B, 0)),
        ("PP:0I2", SlotName(0, SlotKind.BACKWARD_INPUT, 2)),
        ("PP:3W17", SlotName(3, SlotKind.BACKWARD_WEIGHT, 17)),
        ("Forward 3", SlotName(UNKNOWN_STAGE, F, 3)),
        ("Backward 0", SlotName(UNKNOWN_STAGE, B, 0)),
    ],
)
def test_torchs_annotations_of_work(name, expected):
    assert parse_torch(name) == (expected,)


def test_an_overlapped_pair_is_a_forward_and_a_backward():
    forward, backward = parse_torch("PP:(0F3;7B1)OVERLAP_F_B")
    assert (forward.stage, forward.kind, forward.micro_batch) == (0, F, 3)
    assert (backward.stage, backward.kind, backward.micro_batch) == (7, B, 1)
    assert forward.part[1] == backward.part[0]


@pytest.mark.parametrize(
    "name",
    [
        "PP:1SEND_F0",
        "PP:2RECV_B1",
        "PP:0UNSHARD",
        "PP:0RESHARD",
        "PP:0REDUCE_GRAD",
        "PP:0F",
        "PP:F3",
        "Forward",
        "Forward 3 ",
        "Forward pass 3",
        "PP:0F3\n",
        "PP:(0F3)OVERLAP_F_B",
        "PP:99999999999F1",
    ],
)
def test_what_is_no_work_is_no_slot(name):
    assert parse_torch(name) == ()


@given(st.text(max_size=60))
def test_no_name_breaks_the_parsers(name):
    for parser in (parse_mark, parse_torch):
        assert all(0 <= slot.micro_batch < 10**9 for slot in parser(name))


def slots_of(builder, **more):
    return measured(builder, **more).slots


def test_slots_of_marks_have_stage_kind_micro_batch_step_and_work():
    builder = RankBuilder(0).step(0, 0, 100).step(1, 100, 200)
    for step in range(2):
        low = 100 * step
        builder.annotation("distprof:pp stage=2 op=F mb=5", low + 10, low + 40)
        builder.kernel("gemm", low + 10, low + 40)
    slots = slots_of(builder, is_cpu=True)
    assert slots.origin == "distprof marks"
    assert slots.is_sure
    assert (slots.stage.tolist(), slots.kind.tolist(), slots.micro_batch.tolist()) == (
        [2, 2],
        [F, F],
        [5, 5],
    )
    assert slots.step.tolist() == [0, 1]
    assert (slots.start_ns.tolist(), slots.work_ns.tolist()) == ([10, 110], [30, 30])


def test_a_range_of_the_host_without_a_launch_is_no_slot_of_a_device():
    builder = RankBuilder(0).step(0, 0, 100)
    builder.annotation("distprof:pp stage=0 op=F mb=0", 0, 50).kernel("gemm", 10, 40)
    assert slots_of(builder) is None


def test_slots_of_a_host_that_runs_ahead_are_the_kernels_launched_inside():
    """Both ranges end before their kernels begin; autograd's thread launches one of them."""
    builder = RankBuilder(0).step(0, 0, 200)
    builder.annotation("PP:0F0", 0, 10).kernel("gemm", 30, 50, launched=(2, 4))
    builder.kernel("norm", 55, 60, launched=(6, 8))
    builder.annotation("PP:0B0", 10, 20)
    builder.kernel("dgemm", 100, 150, launched=(12, 14), thread="100/777")
    builder.kernel("adam", 160, 170, launched=(25, 26))
    slots = slots_of(builder)
    assert slots.origin == "torch annotations, kernels launched inside"
    assert (slots.start_ns.tolist(), slots.end_ns.tolist()) == ([30, 100], [60, 150])
    assert slots.work_ns.tolist() == [25, 50]


def test_marks_of_the_host_measure_the_work_of_the_kernels_launched_inside():
    builder = RankBuilder(0).step(0, 0, 200)
    builder.annotation("distprof:pp stage=1 op=F mb=0", 0, 10)
    builder.kernel("gemm", 30, 50, launched=(2, 4)).kernel("adam", 60, 90, launched=(30, 31))
    found = measured(builder)
    assert found.slots.is_sure
    (stage,) = found.stages
    assert (stage.stage, stage.work_ns.tolist()) == (1, [20])


def test_waiting_at_the_start_of_an_annotation_is_no_part_of_the_slot():
    builder = RankBuilder(0).step(0, 0, 100).annotation("PP:1F0", 0, 80)
    builder.kernel("wait", 0, 50, kind=ActivityKind.WAITING).kernel("gemm", 55, 75)
    slots = slots_of(builder, is_cpu=True)
    assert slots.origin == "torch annotations"
    assert not slots.is_sure
    assert (slots.start_ns.tolist(), slots.end_ns.tolist()) == ([55], [75])
    assert slots.wait_end_ns.tolist() == [50]


def test_a_receive_beside_the_computation_cuts_nothing_off():
    builder = RankBuilder(0).step(0, 0, 100)
    builder.annotation("distprof:pp stage=0 op=F mb=0", 0, 80).kernel("gemm", 0, 80)
    builder.kernel("wait", 10, 40, kind=ActivityKind.WAITING)
    slots = slots_of(builder, is_cpu=True)
    assert (slots.start_ns.tolist(), slots.work_ns.tolist()) == ([0], [80])
    assert slots.wait_end_ns.tolist() == [ABSENT]


def test_a_wait_before_the_slot_before_is_not_this_ones():
    builder = RankBuilder(0).step(0, 0, 100)
    builder.kernel("wait", 0, 10, kind=ActivityKind.WAITING)
    for batch, low in ((0, 10), (1, 40)):
        builder.annotation(f"distprof:pp stage=0 op=F mb={batch}", low, low + 20)
        builder.kernel("gemm", low, low + 20)
    assert slots_of(builder, is_cpu=True).wait_end_ns.tolist() == [10, ABSENT]


def test_one_name_on_several_streams_is_one_slot():
    builder = RankBuilder(0).step(0, 0, 100)
    for stream, low, high in ((7, 10, 30), (9, 20, 50)):
        builder.range("distprof:pp stage=0 op=F mb=0", low, high, stream=stream)
        builder.kernel("gemm", low, high, stream=stream)
    slots = slots_of(builder)
    assert (slots.start_ns.tolist(), slots.end_ns.tolist()) == ([10], [50])
    assert slots.work_ns.tolist() == [40]


def test_one_name_twice_on_a_stream_is_two_slots():
    builder = RankBuilder(0).step(0, 0, 100)
    for low in (0, 50):
        builder.range("PP:0F0", low, low + 20).kernel("gemm", low, low + 20)
    assert slots_of(builder).start_ns.tolist() == [0, 50]


def test_marks_without_kernels_have_no_work():
    builder = RankBuilder(0).step(0, 0, 100).annotation("distprof:pp stage=0 op=F mb=0", 0, 80)
    builder.kernel("elsewhere", 90, 95)
    slots = slots_of(builder, is_cpu=True)
    assert slots.work_ns.tolist() == [0]
    assert (slots.start_ns.tolist(), slots.end_ns.tolist()) == ([0], [80])


def test_slots_outside_of_the_windows_are_left_out():
    builder = RankBuilder(0).step(0, 100, 200).annotation("PP:0F0", 0, 50).kernel("gemm", 0, 50)
    assert slots_of(builder, is_cpu=True) is None


def test_messages_of_rings_are_no_waiting_for_stages():
    builder = RankBuilder(0).step(0, 0, 100).kernel("gemm", 0, 10)
    for group, low in (("pp", 10), ("cp", 40)):
        builder.comm("ncclDevKernel_SendRecv", low, low + 20, group=group, kind=9)
    analysis = measured(builder, axis=["pp", "cp"])
    assert analysis.message_wait_ns.tolist() == [20]
