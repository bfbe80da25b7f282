"""Records of device communication, from each kind of evidence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.costs.operators import element_bytes
from distprof.ingest.collectives import Membership, full_buffer_bytes
from distprof.ingest.collectives.device_records import device_records, mark_communication
from distprof.ingest.communication import Classifier
from distprof.ingest.kineto.parsed import COMM_ARGS
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT
from distprof.terms import ActivityKind, Origin
from distprof.terms import CollectiveKind as Kind
from tests.builders import MAIN_THREAD, RankBuilder, table_of

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ARGUMENTS = {
    "collective": "allreduce",
    "in_nelems": 1000,
    "out_nelems": 1000,
    "dtype": "BFloat16",
    "group": "3",
    "group_desc": "mesh_dp",
    "group_ranks": "[0, 4]",
    "group_size": 2,
    "seq": 17,
}


def group(name, ranks, *, size=None, description=""):
    return ProcessGroup(
        name=name,
        description=description,
        ranks=tuple(ranks),
        size=size or len(ranks) or None,
        backend="nccl",
        axis=None,
    )


def on_kernel(built, **arguments):
    """Arguments on the device row added last."""
    row = built.activities[-1]
    event = {name: row[name] for name in ("start_ns", "end_ns", "name", "stream", "correlation")}
    return {**event, "category": "kernel", "thread": "0/7", **arguments}


def on_host(name, start, end, *, thread=MAIN_THREAD, **arguments):
    category = "annotation" if name.startswith("nccl:") else "cpu_op"
    row = {"start_ns": start, "end_ns": end, "name": name, "category": category}
    return {**row, "thread": thread, **arguments}


def records_of(built, comm_args, *, groups=(), world=None):
    tables = built.tables()
    arguments = table_of(COMM_ARGS, comm_args)
    activity = mark_communication(tables.activity, arguments, Classifier())
    membership = Membership(groups=tuple(groups), world_size=world)
    return device_records(activity, tables.host, arguments, membership, Classifier())


def row_of(records, index=0):
    table = records.table
    return {
        column.name: table.coded(column.name).decode()[index]
        if column.dtype == "category"
        else table[column.name][index].item()
        for column in table.schema
    }


def test_arguments_on_the_kernel_tell_everything():
    built = RankBuilder().kernel(ALL_REDUCE, 50, 80, stream=20, launched=(10, 12))
    record = row_of(records_of(built, [on_kernel(built, **ARGUMENTS)]))
    assert record == {
        "start_ns": 50,
        "end_ns": 80,
        "is_timed": True,
        "enqueue_ns": 10,
        "kind": Kind.ALL_REDUCE,
        "kind_origin": Origin.MEASURED,
        "group": "3",
        "group_desc": "mesh_dp",
        "group_ranks": "0,4",
        "group_size": 2,
        "group_origin": Origin.MEASURED,
        "seq": 17,
        "dtype": "BFloat16",
        "bytes": 2000,
        "bytes_origin": Origin.MEASURED,
        "peer": ABSENT,
        "in_splits": "",
        "out_splits": "",
        "stream": 20,
        "correlation": 1,
        "name": ALL_REDUCE,
    }


def test_a_kernel_of_any_name_is_communication_by_its_arguments():
    built = RankBuilder().kernel("mystery_kernel", 0, 10).kernel("gemm", 10, 20)
    arguments = table_of(COMM_ARGS, [on_kernel_of(built, 0, **ARGUMENTS)])
    marked = mark_communication(built.tables().activity, arguments, Classifier())
    assert marked["kind"].tolist() == [ActivityKind.COMMUNICATION, ActivityKind.COMPUTATION]


def on_kernel_of(built, index, **arguments):
    row = built.activities[index]
    event = {name: row[name] for name in ("start_ns", "end_ns", "name", "stream", "correlation")}
    return {**event, "category": "kernel", "thread": "0/7", **arguments}


def test_copies_and_ranges_never_become_communication():
    built = RankBuilder().copy("ncclKernel_copy", 0, 10).range("nccl:all_reduce", 0, 10)
    marked = mark_communication(built.tables().activity, table_of(COMM_ARGS, []), Classifier())
    assert marked["kind"].tolist() == [ActivityKind.COPY, ActivityKind.ANNOTATION]


def test_the_operator_around_the_launch_tells_where_the_kernel_does_not():
    built = RankBuilder().kernel(SEND_RECV, 50, 80, launched=(10, 12))
    arguments = {**ARGUMENTS, "collective": "all_to_allv", "in_splits": "[400, 600]"}
    record = row_of(records_of(built, [on_host("record_param_comms", 5, 20, **arguments)]))
    assert (record["kind"], record["kind_origin"]) == (Kind.ALL_TO_ALL, Origin.DERIVED)
    assert (record["seq"], record["bytes"], record["in_splits"]) == (17, 2000, "400,600")


@pytest.mark.parametrize(
    "host",
    [
        on_host("record_param_comms", 5, 20, thread="100/999", **ARGUMENTS),
        on_host("record_param_comms", 5, 9, **ARGUMENTS),
        on_host("record_param_comms", 11, 20, **ARGUMENTS),
        on_host("record_param_comms", 5, 20, **{**ARGUMENTS, "collective": "wait"}),
    ],
    ids=["another thread", "ended before", "begins later", "waiting"],
)
def test_what_did_not_launch_the_kernel_tells_nothing(host):
    built = RankBuilder().kernel(ALL_REDUCE, 50, 80, launched=(10, 12))
    record = row_of(records_of(built, [host]))
    assert (record["kind"], record["kind_origin"]) == (Kind.ALL_REDUCE, Origin.DERIVED)
    assert (record["seq"], record["bytes"], record["group_size"]) == (ABSENT, ABSENT, ABSENT)


def test_the_last_operator_to_start_before_the_launch_tells():
    built = RankBuilder().kernel(ALL_REDUCE, 50, 80, launched=(30, 32))
    host = [
        on_host("record_param_comms", 5, 20, **{**ARGUMENTS, "seq": 1}),
        on_host("record_param_comms", 25, 40, **{**ARGUMENTS, "seq": 2}),
        on_host("record_param_comms", 45, 60, **{**ARGUMENTS, "seq": 3}),
    ]
    assert row_of(records_of(built, host))["seq"] == 2


def test_shapes_of_an_old_operator_give_kind_and_bytes():
    """Before PyTorch 2.1 record_param_comms has no arguments of the collective."""
    built = RankBuilder().kernel("ncclKernel_ReduceScatter_RING(int)", 50, 80, launched=(10, 12))
    host = [
        on_host(
            "c10d::_reduce_scatter_base_",
            5,
            20,
            input_dims="[[8192,384],[65536,384],[],[],[]]",
            input_types='["float","float","","","Scalar"]',
        ),
        on_host("record_param_comms", 6, 19, input_dims="[[],[]]"),
    ]
    record = row_of(records_of(built, host, world=8))
    assert (record["kind"], record["bytes"]) == (Kind.REDUCE_SCATTER, 65536 * 384 * 4)
    assert record["bytes_origin"] == Origin.DERIVED
    assert record["dtype"] == "float"


def test_the_annotation_fills_in_what_a_list_of_tensors_hides():
    built = RankBuilder().kernel("ncclKernel_AllReduce_RING(int)", 50, 80, launched=(10, 12))
    host = [
        on_host("c10d::allreduce_", 5, 20, input_dims="[[],[]]", input_types='["TensorList",""]'),
        on_host("nccl:all_reduce", 6, 18, input_dims="[[394241]]", input_types='["float"]'),
    ]
    record = row_of(records_of(built, host))
    assert (record["bytes"], record["dtype"]) == (4 * 394241, "float")


def test_a_tensor_without_dimensions_is_one_element():
    built = RankBuilder().kernel("ncclKernel_AllReduce_RING(int)", 50, 80, launched=(10, 12))
    host = [
        on_host("c10d::allreduce_", 5, 20, input_dims="[[[]],[]]", input_types='["TensorList",""]'),
        on_host("nccl:all_reduce", 6, 18, input_dims="[[]]", input_types='["float"]'),
    ]
    assert row_of(records_of(built, host))["bytes"] == 4


def test_a_number_that_is_no_tensor_tells_no_size():
    built = RankBuilder().kernel("ncclKernel_AllReduce_RING(int)", 50, 80, launched=(10, 12))
    host = [on_host("c10d::allreduce_", 5, 20, input_dims="[[],[]]", input_types='["Int","float"]')]
    assert row_of(records_of(built, host))["bytes"] == ABSENT


def test_a_symmetric_memory_operator_gives_its_size():
    built = RankBuilder().kernel("multimem_all_reduce_kernel<c10::BFloat16>", 5, 9, launched=(2, 3))
    host = [
        on_host(
            "symm_mem::multimem_all_reduce_",
            1,
            4,
            input_dims="[[2557440],[],[]]",
            input_types='["c10::BFloat16","",""]',
        )
    ]
    assert row_of(records_of(built, host))["bytes"] == 2 * 2557440


def test_kernels_of_one_call_do_not_each_get_its_size():
    built = RankBuilder()
    built.kernel(ALL_REDUCE, 50, 80, launched=(10, 11)).kernel(
        ALL_REDUCE, 80, 90, launched=(12, 13)
    )
    records = records_of(built, [on_host("record_param_comms", 5, 20, **ARGUMENTS)])
    assert records.table["bytes"].tolist() == [ABSENT, ABSENT]
    assert records.table["seq"].tolist() == [17, 17]
    assert any("an unknown size" in note for note in records.notes)


def test_coalesced_operations_take_their_kind_from_the_kernel():
    built = RankBuilder().kernel("ncclDevKernel_AllGather_RING_LL(int)", 50, 80)
    arguments = {**ARGUMENTS, "collective": "coalesced"}
    record = row_of(records_of(built, [on_kernel(built, **arguments)]))
    assert (record["kind"], record["kind_origin"]) == (Kind.ALL_GATHER, Origin.DERIVED)


def test_a_barrier_has_no_size():
    built = RankBuilder().kernel(ALL_REDUCE, 50, 80)
    arguments = {**ARGUMENTS, "collective": "barrier", "in_nelems": 1, "out_nelems": 1}
    records = records_of(built, [on_kernel(built, **arguments)])
    record = row_of(records)
    assert (record["kind"], record["bytes"]) == (Kind.BARRIER, ABSENT)
    assert records.notes == ()


@pytest.mark.parametrize(("collective", "column"), [("send", "dst_rank"), ("recv", "src_rank")])
def test_point_to_point_names_its_peer(collective, column):
    built = RankBuilder().kernel(SEND_RECV, 50, 80)
    arguments = {**ARGUMENTS, "collective": collective, column: 4}
    record = row_of(records_of(built, [on_kernel(built, **arguments)]))
    assert (Kind(record["kind"]).label, record["peer"]) == (collective, 4)


def test_an_abbreviated_list_of_ranks_is_completed_from_the_metadata():
    built = RankBuilder().kernel(ALL_REDUCE, 50, 80)
    arguments = {**ARGUMENTS, "group_ranks": "[0, 1, ..., 63]", "group_size": 64}
    record = row_of(
        records_of(built, [on_kernel(built, **arguments)], groups=[group("3", range(64))])
    )
    assert (record["group_ranks"], record["group_size"]) == ("0-63", 64)


def test_ranks_unknown_everywhere_stay_unknown():
    built = RankBuilder().kernel(ALL_REDUCE, 50, 80)
    arguments = {**ARGUMENTS, "group_ranks": "[]", "group_size": 64}
    record = row_of(records_of(built, [on_kernel(built, **arguments)], world=128))
    assert (record["group"], record["group_ranks"], record["group_size"]) == ("3", "", 64)


def test_without_any_group_the_world_is_taken_and_said():
    built = RankBuilder().kernel(ALL_REDUCE, 50, 80)
    records = records_of(built, [], world=8)
    record = row_of(records)
    assert (record["group_ranks"], record["group_origin"]) == ("0-7", Origin.DERIVED)
    assert "all ranks of the job" in records.notes[0]


def test_with_several_possible_groups_none_is_taken():
    built = RankBuilder().kernel(ALL_REDUCE, 50, 80)
    records = records_of(built, [], groups=[group("0", range(8)), group("1", [0, 1])], world=8)
    record = row_of(records)
    assert (record["group_ranks"], record["group_size"]) == ("", ABSENT)
    assert record["group_origin"] == Origin.ABSENT
    assert any("unknown" in note for note in records.notes)


def test_records_are_in_order_of_start():
    built = RankBuilder().kernel(ALL_REDUCE, 90, 99).kernel(ALL_REDUCE, 10, 20)
    assert records_of(built, []).table["start_ns"].tolist() == [10, 90]


def test_no_communication_gives_no_records():
    assert len(records_of(RankBuilder().kernel("gemm", 0, 9), []).table) == 0


@pytest.mark.parametrize(
    ("kind", "in_elements", "out_elements", "expected", "scaled"),
    [
        (Kind.ALL_REDUCE, 100, 100, 400, False),
        (Kind.ALL_GATHER, 100, 800, 3200, False),
        (Kind.ALL_GATHER, 100, ABSENT, 3200, True),
        (Kind.REDUCE_SCATTER, 800, 100, 3200, False),
        (Kind.REDUCE_SCATTER, ABSENT, 100, 3200, True),
        (Kind.ALL_TO_ALL, 700, 900, 2800, False),
        (Kind.ALL_TO_ALL, ABSENT, 900, 3600, False),
        (Kind.BROADCAST, 100, ABSENT, 400, False),
        (Kind.SCATTER, ABSENT, 100, 3200, True),
        (Kind.GATHER, 100, ABSENT, 3200, True),
        (Kind.SEND, 100, ABSENT, 400, False),
        (Kind.RECV, 0, 100, 400, False),
        (Kind.BARRIER, 1, 1, ABSENT, False),
        (Kind.UNKNOWN, 1, 1, ABSENT, False),
        (Kind.ALL_REDUCE, ABSENT, ABSENT, ABSENT, False),
    ],
)
def test_full_buffer_of_eight_ranks_of_floats(kind, in_elements, out_elements, expected, scaled):
    size, mask = full_buffer_bytes(
        kind=np.array([kind], np.int8),
        in_elements=np.array([in_elements]),
        out_elements=np.array([out_elements]),
        element_bytes=np.array([4]),
        group_size=np.array([8]),
    )
    assert (size.tolist(), mask.tolist()) == ([expected], [scaled])


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("Float", 4),
        ("BFloat16", 2),
        ("c10::BFloat16", 2),
        ("long int", 8),
        ("unsigned char", 1),
        ("Float8_e4m3fn", 1),
        ("ComplexDouble", 16),
        ("TensorList", None),
        ("", None),
    ],
)
def test_bytes_of_an_element(dtype, size):
    assert element_bytes(dtype) == size


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 9)
TEXTS = st.sampled_from(
    (
        *("", "nan", "0", "allreduce", "wait", "Float", "[0, 1]", "[[-3]]", '[["float"]]'),
        *("[", "[" * 2000, "[1e400]", "[[8,8],[9223372036854775807]]", '["","",9]'),
        f'["","","{9**40}"]',
    )
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                column.name: TEXTS if column.dtype == "category" else NUMBERS
                for column in COMM_ARGS
                if column.name not in ("name", "start_ns", "end_ns", "category", "thread")
            }
        ),
        max_size=4,
    ),
    st.sampled_from(["record_param_comms", "c10d::alltoall_base_", "nccl:send", "gloo:recv"]),
)
def test_no_arguments_end_in_an_exception_or_a_negative_size(rows, name):
    built = RankBuilder()
    for index, _ in enumerate(rows):
        built.kernel(ALL_REDUCE, 50 + index, 80, launched=(10 * index + 1, 10 * index + 2))
    host = [on_host(name, 10 * i, 10 * i + 9, **row) for i, row in enumerate(rows)]
    table = records_of(built, host, groups=[group("0", [0, 1])], world=4).table
    for column in ("bytes", "seq", "peer", "group_size"):
        assert (table[column] >= ABSENT).all()


# --- several messages in one kernel -------------------------------------------------------------

MESSAGE = {"dtype": "BFloat16", "group": "2", "group_ranks": "[0, 1, 2]", "group_size": 3}


def asked(start, collective, peer, elements=500):
    """A send or receive of a batch: its call launches nothing."""
    end = "dst_rank" if collective == "send" else "src_rank"
    sizes = {"in_nelems": elements, "out_nelems": elements}
    arguments = {**MESSAGE, **sizes, "collective": collective, end: peer}
    return on_host("record_param_comms", start, start + 5, **arguments)


def batch_of(*host):
    """One kernel whose launch only closes the batch."""
    built = RankBuilder().kernel(SEND_RECV, 80, 120, stream=20, launched=(50, 52))
    closing = on_host("nccl:coalesced", 48, 55)
    return row_of(records_of(built, [*host, closing]))


def test_a_batch_with_one_peer_goes_both_ways_with_it():
    record = batch_of(asked(10, "send", 1), asked(20, "recv", 1, elements=300))
    assert (record["kind"], record["kind_origin"]) == (Kind.SEND_RECV, Origin.DERIVED)
    assert (record["peer"], record["group_ranks"]) == (1, "0-2")
    assert (record["bytes"], record["bytes_origin"]) == (1000, Origin.DERIVED)  # the larger way


@pytest.mark.parametrize(("collective", "kind"), [("send", Kind.SEND), ("recv", Kind.RECV)])
def test_a_batch_of_one_message_is_that_message(collective, kind):
    record = batch_of(asked(10, collective, 2))
    assert (record["kind"], record["peer"], record["bytes"]) == (kind, 2, 1000)


def test_a_batch_with_several_peers_names_none():
    record = batch_of(asked(10, "send", 1), asked(20, "recv", 2))
    assert (record["kind"], record["peer"]) == (Kind.SEND_RECV, ABSENT)
    assert (record["group"], record["bytes"]) == ("2", 1000)


@pytest.mark.parametrize(
    "host",
    [
        {**asked(10, "send", 1), "thread": "100/999"},
        asked(60, "send", 1),
        {**asked(10, "send", 1), "collective": "allreduce"},
    ],
    ids=["another thread", "asked for after the launch", "no message"],
)
def test_other_calls_are_no_part_of_a_batch(host):
    record = batch_of(host)
    assert (record["kind"], record["peer"], record["bytes"]) == (Kind.SEND_RECV, ABSENT, ABSENT)


def test_messages_belong_to_the_next_communication_that_their_thread_launches():
    built = RankBuilder().kernel(ALL_REDUCE, 60, 70, stream=24, launched=(30, 32))
    built.kernel(SEND_RECV, 80, 120, stream=20, launched=(50, 52))
    host = [asked(10, "send", 1), asked(40, "recv", 2)]
    records = records_of(built, host)
    assert row_of(records, 0)["kind"] == Kind.ALL_REDUCE
    assert (row_of(records, 1)["kind"], row_of(records, 1)["peer"]) == (Kind.RECV, 2)


def test_a_call_that_launched_its_own_kernel_is_no_part_of_a_batch():
    built = RankBuilder().kernel(SEND_RECV, 60, 70, stream=20, launched=(12, 13))
    built.kernel(SEND_RECV, 80, 120, stream=20, launched=(50, 52))
    records = records_of(built, [asked(10, "send", 1), asked(40, "recv", 1)])
    assert [row_of(records, n)["kind"] for n in range(2)] == [Kind.SEND, Kind.RECV]
