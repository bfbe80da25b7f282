"""What was asked for, joined with what gloo executed."""

from hypothesis import given
from hypothesis import strategies as st

from distprof.ingest.collectives import Membership
from distprof.ingest.collectives.gloo_records import gloo_records
from distprof.ingest.communication import Classifier
from distprof.ingest.host_activity import executed_activity
from distprof.ingest.kineto.parsed import COMM_ARGS
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT
from distprof.terms import CollectiveKind as Kind
from tests.builders import MAIN_THREAD, RankBuilder, table_of

LOOP = "100/201"
PAIR = ProcessGroup(
    name="0", description="default_pg", ranks=(2, 5), size=2, backend="gloo", axis=None
)
OTHER = ProcessGroup(
    name="1", description="mesh_tp", ranks=(0, 2), size=2, backend="gloo", axis=None
)


class Recording:
    """Events of one rank in both tables."""

    def __init__(self):
        self.built = RankBuilder()
        self.events = []

    def asked(self, name, start, *, dims="", types="", concrete=""):
        self.built.operator(f"c10d::{name}", start, start + 2)
        return self._event(f"c10d::{name}", start, start + 2, MAIN_THREAD, dims, types, concrete)

    def ran(self, name, start, end, *, dims="", types='["float"]', thread=LOOP):
        self.built.annotation(f"gloo:{name}", start, end, thread=thread)
        return self._event(f"gloo:{name}", start, end, thread, dims, types, "")

    def _event(self, name, start, end, thread, dims, types, concrete):
        self.events.append(
            {
                "start_ns": start,
                "end_ns": end,
                "name": name,
                "category": "cpu_op" if name.startswith("c10d") else "annotation",
                "thread": thread,
                "input_dims": dims,
                "input_types": types,
                "concrete_inputs": concrete,
            }
        )
        return self

    def table(self, *groups):
        executed = executed_activity(self.built.tables().host, Classifier())
        membership = Membership(groups=groups or (PAIR,), world_size=8)
        return gloo_records(
            executed, table_of(COMM_ARGS, self.events), membership, Classifier()
        ).table


def test_kind_and_bytes_come_from_the_operator_and_times_from_the_execution():
    """Gloo has no reduce-scatter: it runs an all-reduce of the whole input."""
    recording = Recording()
    recording.asked(
        "_reduce_scatter_base_", 5, dims="[[3,4],[6,4],[]]", types='["float","float",""]'
    )
    recording.ran("all_reduce", 20, 60, dims="[[6,4]]")
    table = recording.table()
    assert table["kind"].tolist() == [Kind.REDUCE_SCATTER]
    assert table["bytes"].tolist() == [6 * 4 * 4]
    assert (table["enqueue_ns"].tolist(), table["start_ns"].tolist()) == ([5], [20])
    assert table.coded("group_ranks").decode() == ["2,5"]


def test_a_list_of_tensors_gets_its_type_from_the_execution():
    recording = Recording().asked(
        "allreduce_", 5, dims="[[[10],[6]],[]]", types='["TensorList",""]'
    )
    recording.ran("all_reduce", 20, 60, dims="[[10],[6]]", types='["double","double"]')
    table = recording.table()
    assert table["bytes"].tolist() == [16 * 8]
    assert table.coded("dtype").decode() == ["double"]


def test_executions_asked_for_before_the_capture_stay_alone():
    """The first execution was queued before the recording began: it starts before the request."""
    recording = Recording().ran("all_reduce", 1, 9, dims="[[8]]")
    recording.asked("allreduce_", 5, dims="[[[8]]]").ran("all_reduce", 10, 30, dims="[[8]]")
    assert recording.table()["enqueue_ns"].tolist() == [ABSENT, 5]


def test_the_queue_shifts_all_pairs_when_one_would_run_before_it_was_asked_for():
    recording = Recording()
    recording.asked("allreduce_", 5, dims="[[[8]]]").asked("allreduce_", 40, dims="[[[8]]]")
    for start in (10, 20, 50):
        recording.ran("all_reduce", start, start + 8, dims="[[8]]")
    assert recording.table()["enqueue_ns"].tolist() == [ABSENT, 5, 40]


def test_operations_of_another_size_are_no_partners():
    recording = (
        Recording().asked("allreduce_", 1, dims="[[[8]]]").asked("allreduce_", 2, dims="[[[9]]]")
    )
    recording.ran("all_reduce", 10, 20, dims="[[9]]").ran(
        "all_reduce", 12, 22, dims="[[8]]", thread="1/2"
    )
    assert recording.table()["enqueue_ns"].tolist() == [2, 1]


def test_requests_that_were_not_executed_are_no_records():
    recording = Recording().asked("allreduce_", 1, dims="[[[8]]]")
    assert len(recording.table()) == 0


def test_a_barrier_is_paired_without_a_size():
    recording = Recording().asked("barrier", 1, dims="[[1],[]]").ran("barrier", 5, 9, types="")
    table = recording.table()
    assert table["kind"].tolist() == [Kind.BARRIER]
    assert (table["enqueue_ns"].tolist(), table["bytes"].tolist()) == ([1], [ABSENT])


def test_a_peer_in_the_group_becomes_a_global_rank():
    recording = Recording().asked("send", 1, dims="[[[8]]]", concrete='["","","1","0"]')
    recording.ran("send", 2, 9, dims="[[8]]", thread=MAIN_THREAD)
    table = recording.table()
    assert table["kind"].tolist() == [Kind.SEND]
    assert table["peer"].tolist() == [5]


def test_a_peer_stays_unknown_where_several_groups_may_be_meant():
    recording = Recording().asked("send", 1, dims="[[[8]]]", concrete='["","","1","0"]')
    recording.ran("send", 2, 9, dims="[[8]]", thread=MAIN_THREAD)
    table = recording.table(PAIR, OTHER)
    assert table["peer"].tolist() == [ABSENT]
    assert table["group_size"].tolist() == [ABSENT]


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 50)), max_size=20), st.integers(0, 3))
def test_nothing_runs_before_it_was_asked_for_and_every_request_is_used_once(waits, before):
    recording = Recording()
    for index in range(before):
        recording.ran("all_reduce", index, index + 1, dims="[[8]]")
    clock = 10
    for gap, wait in waits:
        clock += gap
        recording.asked("allreduce_", clock, dims="[[[8]]]")
        recording.ran("all_reduce", clock + wait, clock + wait + 5, dims="[[8]]")
    table = recording.table()
    known = table["enqueue_ns"] != ABSENT
    assert known.sum() == len(waits)
    assert (table["enqueue_ns"][known] <= table["start_ns"][known]).all()
    assert len(set(table["enqueue_ns"][known].tolist())) == len(waits)


# Splits of all-to-alls ----------------------------------------------------------------------------


def exchanged(concrete, dims="[[9,4],[6,4],[],[],[]]"):
    """An all-to-all of rows of four floats: nine come, six go."""
    recording = Recording()
    recording.asked("alltoall_base_", 5, dims=dims, types='["float","float"]', concrete=concrete)
    recording.ran("all_to_all", 20, 60, dims="[[6,4]]")
    table = recording.table()
    return table.coded("in_splits").decode(), table.coded("out_splits").decode()


def test_split_sizes_of_an_all_to_all_come_from_the_operator():
    """Its fourth input is what comes, its fifth what goes."""
    told = '["","","","[7, 2]","[1, 5]","False","-1"]'
    assert exchanged(told) == (["1,5"], ["7,2"])


def test_even_splits_and_long_ones_are_not_told():
    for told in ('["","","","[]","[]","False","-1"]', '["","",""]', "", "[1,2,3,4,5]"):
        assert exchanged(told) == ([""], [""])


def test_splits_that_are_no_sizes_are_left_out():
    for told in ("[1, -2]", "[1, x]", "[1, 2", "1, 2", "[1.5]", "[" + "9" * 40 + "]"):
        concrete = f'["","","","{told}","[1, 5]","False","-1"]'
        assert exchanged(concrete) == (["1,5"], [""])


def test_inputs_of_other_operators_are_no_splits():
    recording = Recording().asked(
        "_allgather_base_", 5, dims="[[8],[4]]", types='["float","float"]',
        concrete='["","","","[7, 2]","[1, 5]"]',
    )  # fmt: skip
    table = recording.ran("all_gather", 20, 60, dims="[[4]]").table()
    assert table.coded("in_splits").decode() == [""]
