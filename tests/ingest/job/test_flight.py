"""The Flight Recorder's dump, and its join with operators of a trace."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.ingest.collectives import Membership
from distprof.ingest.collectives.gloo_records import gloo_records, groups_of_threads
from distprof.ingest.communication import Classifier
from distprof.ingest.flight.recorder import read_flight
from distprof.ingest.host_activity import executed_activity
from distprof.ingest.kineto.parsed import COMM_ARGS
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT
from distprof.terms import CollectiveKind as Kind
from distprof.terms import MeshAxis, Origin
from tests.builders import MAIN_THREAD, RankBuilder, table_of

US = 1_000
START = 1_000_000_000


def entry(time, name="all_reduce", *, group="1", desc="mesh_tp", seq=1, size=8, **more):
    return {
        "time_created_ns": START + time,
        "profiling_name": f"gloo:{name}",
        "process_group": [group, desc],
        "collective_seq_id": seq,
        "input_sizes": [[size]],
        "is_p2p": False,
        **more,
    }


def flight_of(folder, *entries):
    path = folder / "flight.json"
    path.write_text(json.dumps({"version": "2.10", "entries": list(entries), "pg_config": {}}))
    return read_flight(str(path))


# The dump ----------------------------------------------------------------------------------------


def test_entries_come_in_order_of_time_without_messages(tmp_path):
    found = flight_of(
        tmp_path,
        entry(9, "all_gather", group="2", desc="mesh_dp", seq=4, size=3),
        entry(5, seq=2),
        entry(7, is_p2p=True),
    )
    assert found.time_ns.tolist() == [START + 5, START + 9]
    assert found.kind.tolist() == [Kind.ALL_REDUCE, Kind.ALL_GATHER]
    assert found.seq.tolist() == [2, 4]
    assert found.elements.tolist() == [8, 3]
    assert found.group.decode() == ["1", "2"]
    assert found.description.decode() == ["mesh_tp", "mesh_dp"]
    assert found.notes == ()


def test_damaged_entries_are_counted_and_cost_themselves_only(tmp_path):
    found = flight_of(tmp_path, entry(1), {"profiling_name": 4}, "x", entry(2, seq=10**30))
    assert len(found) == 1
    assert found.notes == ("3 damaged entries of flight.json were skipped.",)


def test_sizes_that_are_nonsense_are_unknown(tmp_path):
    found = flight_of(
        tmp_path, entry(1, input_sizes=None), entry(2, input_sizes=[[-4]]), entry(3, size=1 << 50)
    )
    assert found.elements.tolist() == [ABSENT] * 3


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"entries":{}}', b"\x80\x04pickle"])
def test_a_damaged_dump_is_a_note(tmp_path, content):
    (tmp_path / "flight.json").write_bytes(content)
    found = read_flight(str(tmp_path / "flight.json"))
    assert len(found) == 0
    assert found.notes == ("flight.json is damaged: distprof ignores it.",)


def test_a_dump_without_entries_is_empty(tmp_path):
    """TORCH_FR_BUFFER_SIZE=0 turns the recorder off: the dump has no entries."""
    (tmp_path / "flight.json").write_text('{"version":"2.10"}')
    assert (
        len(read_flight(str(tmp_path / "flight.json"))),
        read_flight("nowhere").notes != (),
    ) == (
        0,
        True,
    )


@given(st.binary(max_size=200))
def test_no_dump_stops_the_reading(tmp_path_factory, noise):
    path = tmp_path_factory.mktemp("flight") / "flight.json"
    path.write_bytes(b'{"entries":[' + noise + b"]}")
    assert len(read_flight(str(path))) == 0


# The join ----------------------------------------------------------------------------------------

TP = ProcessGroup(
    name="1", description="mesh_tp", ranks=(0, 1), size=2, backend="gloo", axis=MeshAxis.TP
)
DP = ProcessGroup(
    name="2", description="mesh_dp", ranks=(0, 2), size=2, backend="gloo", axis=MeshAxis.DP
)
PP = ProcessGroup(
    name="3", description="mesh_pp", ranks=(0, 4), size=2, backend="gloo", axis=MeshAxis.PP
)
NAMES = {"all_reduce": "allreduce_", "all_gather": "_allgather_base_"}


class Recording:
    """A rank that asks for collectives in two groups; each group has two threads of its own."""

    def __init__(self):
        self.built = RankBuilder()
        self.events = []

    def asked(self, start, *, name="all_reduce", size=8, length=10 * US, concrete=""):
        operator = f"c10d::{NAMES.get(name, name)}"
        self.built.operator(operator, START + start, START + start + length)
        dims = {"all_reduce": f"[[[{size}]],[]]", "all_gather": f"[[{2 * size}],[{size}]]"}
        return self._event(operator, start, length, MAIN_THREAD, dims.get(name, f"[[[{size}]]]"),
                           concrete)  # fmt: skip

    def ran(self, start, thread, *, name="all_reduce", size=8, length=50 * US):
        self.built.annotation(f"gloo:{name}", START + start, START + start + length, thread=thread)
        return self._event(f"gloo:{name}", start, length, thread, f"[[{size}]]", "")

    def _event(self, name, start, length, thread, dims, concrete):
        self.events.append(
            {
                "start_ns": START + start,
                "end_ns": START + start + length,
                "name": name,
                "category": "cpu_op" if name.startswith("c10d") else "annotation",
                "thread": thread,
                "input_dims": dims,
                "input_types": '["float","float"]',
                "concrete_inputs": concrete,
            }
        )
        return self

    def records(self, flight, *groups):
        executed = executed_activity(self.built.tables().host, Classifier())
        membership = Membership(groups=groups or (TP, DP), world_size=8)
        return gloo_records(
            executed, table_of(COMM_ARGS, self.events), membership, Classifier(), flight
        )


def groups_of(records):
    table = records.table
    return list(zip(table.coded("group").decode(), table["seq"].tolist(), strict=True))


def test_the_entry_made_while_an_operator_runs_tells_its_group(tmp_path):
    recording = Recording().asked(0).asked(100 * US).ran(20 * US, "g/1").ran(120 * US, "g/1")
    flight = flight_of(tmp_path, entry(3 * US, seq=7), entry(105 * US, seq=8))
    records = recording.records(flight)
    assert groups_of(records) == [("1", 7), ("1", 8)]
    assert records.table.coded("group_ranks").decode() == ["0-1", "0-1"]
    assert records.table["group_origin"].tolist() == [Origin.MEASURED] * 2
    assert records.notes[-1].startswith("Process group and sequence number of 2 of 2 collectives")


def test_stamps_off_by_some_microseconds_still_find_their_operator(tmp_path):
    recording = Recording().asked(0).asked(12 * US).ran(30 * US, "g/1").ran(90 * US, "g/1")
    flight = flight_of(tmp_path, entry(13 * US, seq=1), entry(25 * US, seq=2))
    assert groups_of(recording.records(flight)) == [("1", 1), ("1", 2)]


def test_entries_of_another_kind_size_or_time_are_of_others(tmp_path):
    recording = Recording().asked(0).ran(20 * US, "g/1")
    for other in (entry(3 * US, "all_gather"), entry(3 * US, size=9), entry(900 * US)):
        assert groups_of(recording.records(flight_of(tmp_path, other))) == [("", ABSENT)]


def test_threads_belong_to_the_group_whose_sizes_they_run(tmp_path):
    """Both groups ask for 8 elements; the second one's thread also runs 5, which only it asks."""
    recording = Recording()
    recording.asked(0).asked(20 * US).asked(40 * US, size=5)
    recording.ran(30 * US, "tp/1").ran(32 * US, "dp/1").ran(90 * US, "dp/1", size=5)
    flight = flight_of(
        tmp_path,
        entry(5 * US, seq=1),
        entry(25 * US, group="2", desc="mesh_dp", seq=1),
        entry(45 * US, group="2", desc="mesh_dp", seq=2, size=5),
    )
    assert groups_of(recording.records(flight)) == [("1", 1), ("2", 1), ("2", 2)]


def test_of_groups_with_equal_sizes_a_thread_is_that_of_the_group_that_asked_right_before(tmp_path):
    recording, entries = Recording(), []
    for i in range(6):
        at = i * 1000 * US
        recording.asked(at).asked(at + 400 * US)
        recording.ran(at + 15 * US, "tp/1").ran(at + 415 * US, "dp/1")
        entries.append(entry(at + 5 * US, seq=i))
        entries.append(entry(at + 405 * US, group="2", desc="mesh_dp", seq=i))
    found = groups_of(recording.records(flight_of(tmp_path, *entries)))
    assert found == [(group, i) for i in range(6) for group in ("1", "2")]


def test_an_operator_that_a_dispatch_mode_hands_on_asks_once(tmp_path):
    recording = Recording().asked(0, length=30 * US).asked(10 * US, length=10 * US)
    recording.ran(40 * US, "g/1")
    records = recording.records(flight_of(tmp_path, entry(12 * US, seq=3)))
    assert groups_of(records) == [("1", 3)]
    assert "1 of 1 collectives" in records.notes[-1]


def test_messages_are_those_of_the_only_group_along_which_stages_exchange(tmp_path):
    recording = Recording().asked(0, name="send", concrete='["","","1","0"]')
    recording.ran(5 * US, MAIN_THREAD, name="send")
    table = recording.records(flight_of(tmp_path), TP, DP, PP).table
    assert table["peer"].tolist() == [4]
    assert table.coded("group").decode() == ["3"]
    assert table["group_origin"].tolist() == [Origin.DERIVED]
    assert table["is_timed"].tolist() == [False]
    assert table["start_ns"].tolist() == table["end_ns"].tolist() == [START + 5 * US]


def test_nothing_is_assumed_where_two_groups_could_be_meant(tmp_path):
    recording = Recording().asked(0, name="send", concrete='["","","1","0"]')
    recording.ran(5 * US, MAIN_THREAD, name="send")
    assert recording.records(flight_of(tmp_path), TP, DP).table["peer"].tolist() == [ABSENT]


def test_a_thread_without_evidence_has_no_group():
    found = groups_of_threads(
        run_key=np.array([10, 20]),
        run_thread=np.array([0, 1], np.int32),
        run_start=np.array([100, 100]),
        ask_key=np.array([10, 10]),
        ask_group=np.array([1, 2], np.int32),
        ask_start=np.array([50, 50]),
    )
    assert found.tolist() == [ABSENT, ABSENT]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 2)), min_size=1, max_size=12))
def test_each_entry_is_used_once_and_nothing_runs_before_it_was_asked(tmp_path_factory, asked):
    recording, entries, count = Recording(), [], [0, 0]
    for i, (group, size) in enumerate(asked):
        at = i * 200 * US
        recording.asked(at, size=size).ran(at + 20 * US, f"g/{group}", size=size)
        entries.append(entry(at + 5 * US, group=str(group + 1), seq=count[group], size=size))
        count[group] += 1
    flight = flight_of(tmp_path_factory.mktemp("flight"), *entries)
    table = recording.records(flight).table
    found = list(zip(table.coded("group").decode(), table["seq"].tolist(), strict=True))
    assert len(set(found)) == len(found) == len(asked)
    assert (table["enqueue_ns"] <= table["start_ns"]).all()
