from distprof.ingest.communication import Classifier
from distprof.ingest.host_activity import host_activity
from distprof.terms import ActivityKind
from tests.builders import MAIN_THREAD, RankBuilder

LOOP = "100/201"


def rows_of(built):
    table = host_activity(built.tables().host, Classifier())
    return list(
        zip(
            table.coded("name").decode(),
            table["start_ns"].tolist(),
            table["end_ns"].tolist(),
            [ActivityKind(kind).name for kind in table["kind"].tolist()],
            strict=True,
        )
    )


def test_outermost_operators_compute():
    built = RankBuilder().operator("aten::linear", 0, 100).operator("aten::addmm", 10, 90)
    built.operator("aten::relu", 100, 120)
    assert rows_of(built) == [
        ("aten::linear", 0, 100, "COMPUTATION"),
        ("aten::relu", 100, 120, "COMPUTATION"),
    ]


def test_a_mode_that_looks_at_operators_is_none():
    """A mode on one rank, or the slowdown of a reference run, must not look like more work."""
    built = RankBuilder().operator("PythonDispatchMode", 0, 20).operator("aten::mm", 30, 60)
    built.operator("PythonDispatchMode", 70, 100).operator("aten::relu", 80, 90)
    assert rows_of(built) == [
        ("aten::mm", 30, 60, "COMPUTATION"),
        ("aten::relu", 80, 90, "COMPUTATION"),
    ]


def test_operators_of_one_start_keep_the_longer():
    built = RankBuilder().operator("inner", 0, 50).operator("outer", 0, 100)
    assert [name for name, *_ in rows_of(built)] == ["outer"]


def test_gloo_executes_on_its_own_thread_and_its_copies_are_communication():
    built = RankBuilder().operator("aten::mm", 0, 100)
    built.annotation("gloo:all_reduce", 20, 80, thread=LOOP)
    built.operator("aten::copy_", 30, 40, thread=LOOP)
    assert rows_of(built) == [
        ("aten::mm", 0, 100, "COMPUTATION"),
        ("gloo:all_reduce", 20, 80, "COMMUNICATION"),
    ]


def test_asking_and_waiting_are_no_computation():
    built = RankBuilder()
    built.operator("c10d::allreduce_", 0, 10).operator("aten::empty", 2, 4)
    built.operator("_c10d_functional::wait_tensor", 10, 60).operator("aten::mm", 60, 90)
    assert rows_of(built) == [("aten::mm", 60, 90, "COMPUTATION")]


def test_an_operator_that_contains_a_request_counts_by_its_other_children():
    """AccumulateGrad runs the hook of DDP, which asks for the all-reduce of a full bucket."""
    built = RankBuilder().operator("AccumulateGrad", 0, 100).operator("aten::add_", 5, 30)
    built.operator("c10d::allreduce_", 40, 60).operator("aten::copy_", 70, 90)
    assert rows_of(built) == [
        ("aten::add_", 5, 30, "COMPUTATION"),
        ("aten::copy_", 70, 90, "COMPUTATION"),
    ]


def test_a_request_on_one_thread_changes_nothing_on_another():
    built = (
        RankBuilder().operator("aten::mm", 0, 100).operator("c10d::barrier", 10, 20, thread=LOOP)
    )
    assert [name for name, *_ in rows_of(built)] == ["aten::mm"]


def test_a_thread_that_posts_a_send_still_computes():
    built = RankBuilder().annotation("gloo:send", 0, 50).operator("aten::mm", 10, 30)
    assert rows_of(built) == [
        ("aten::mm", 10, 30, "COMPUTATION"),
        ("gloo:send", 30, 50, "WAITING"),
    ]


def test_being_blocked_in_a_receive_begins_after_the_last_operator_on_its_thread():
    built = RankBuilder().operator("c10d::recv_", 0, 10).annotation("gloo:recv", 8, 90)
    built.operator("aten::mm", 20, 40).operator("aten::mm", 50, 60, thread="1/2")
    assert ("gloo:recv", 40, 90, "WAITING") in rows_of(built)


def test_a_receive_that_is_awaited_inside_an_operator_waits_from_its_start():
    built = RankBuilder().annotation("gloo:recv", 5, 70).operator("autograd", 30, 95)
    assert ("gloo:recv", 30, 70, "WAITING") in rows_of(built)


def test_marks_of_probes_say_when_a_stage_waits():
    built = RankBuilder().annotation("gloo:recv", 0, 90).annotation("distprof:pp_wait", 60, 88)
    assert rows_of(built) == [("distprof:pp_wait", 60, 88, "WAITING")]


def test_annotations_that_only_launch_are_no_communication():
    """A trace of NCCL without device rows: nccl: is when the host asked, not when it ran."""
    built = RankBuilder().annotation("nccl:all_reduce", 0, 50).annotation("ProfilerStep#1", 0, 90)
    assert rows_of(built) == []


def test_stream_is_the_thread():
    built = RankBuilder().operator("a", 0, 10).operator("b", 5, 10, thread=LOOP)
    built.operator("c", 20, 30, thread=MAIN_THREAD)
    assert host_activity(built.tables().host, Classifier())["stream"].tolist() == [0, 1, 0]


def test_no_rows_are_no_trouble():
    assert rows_of(RankBuilder()) == []
