"""Dumps of several versions and spellings become one table; damage costs what is damaged."""

from __future__ import annotations

import gzip
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.errors import InputError
from distprof.ingest.flight.recorder import looks_like_dump, parse_flight
from distprof.run.records import FlightDump, FlightState, GroupStatus
from distprof.terms import CollectiveKind
from tests.flight_jobs import GPU_ERROR, LOCK_GIL, START_NS, dump, message, op


def read(content: object) -> FlightDump:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return parse_flight(data, rank=3, source="_dump_3")


def same(first: FlightDump, second: FlightDump) -> bool:
    tables = first.entries.to_pandas().equals(second.entries.to_pandas())
    return tables and (first.groups, first.status) == (second.groups, second.status)


def test_a_dump_of_nccl_holds_what_its_publisher_says() -> None:
    found = parse_flight((GPU_ERROR / "_dump_12").read_bytes(), rank=12, source="_dump_12")
    last = found.entries.to_pandas().iloc[-1]
    assert (found.version, found.library, len(found.entries)) == ("2.9", "2.27.3", 27)
    assert (last.group, last.description, last.seq) == ("74", "EXPERT_MODEL_PARALLEL_GROUP", 20536)
    assert (last.kind, last["shape"], last.in_dtype) == (
        CollectiveKind.ALL_TO_ALL, "4096×5120", "BFloat16")  # fmt: skip
    assert last.created_ns == 1758610505924024825
    assert found.status[11] == GroupStatus(enqueued=20536, started=None, completed=20529)
    assert {g.name: g.ranks for g in found.groups}["74"] == (12, 13, 14, 15)
    assert int(found.entries["is_p2p"].sum()) == 4


def test_a_dump_without_entries_still_tells_progress() -> None:
    found = parse_flight((LOCK_GIL / "_dump_9").read_bytes(), rank=9, source="_dump_9")
    assert len(found.entries) == 0
    assert found.status[11].enqueued == 45264


@pytest.mark.parametrize("spelling", ["json", "gzip", "pickle 2", "pickle 5", "gzipped pickle"])
def test_all_spellings_are_read_alike(spelling: str) -> None:
    content = dump(
        [op(1), op(2, state="started"), message("send 0->1"), op(3, state="scheduled")],
        {"0": [0, 1, 2, 3]},
        pg_status={"0": {"last_enqueued_collective": 3}},
    )
    data = {
        "json": json.dumps(content).encode(),
        "gzip": gzip.compress(json.dumps(content).encode()),
        "pickle 2": pickle.dumps(content, protocol=2),
        "pickle 5": pickle.dumps(content, protocol=5),
        "gzipped pickle": gzip.compress(pickle.dumps(content)),
    }[spelling]
    found = read(data)
    assert same(found, read(content))
    assert found.entries["state"].tolist() == [
        FlightState.COMPLETED, FlightState.STARTED, FlightState.SCHEDULED, FlightState.SCHEDULED,
    ]  # fmt: skip
    assert found.entries["created_ns"][0] == START_NS + 1_000_000


def test_version_1_counts_with_one_number() -> None:
    """Before 2.0 there was one ``seq_id``, entries were numbered by ``id``, sizes were the same."""
    entry = {
        "id": 7, "seq_id": 12, "profiling_name": "nccl:all_reduce", "state": "scheduled",
        "process_group": ["0", "default_pg"], "time_created_ns": START_NS,
        "input_sizes": [[3, 4]], "output_sizes": [[3, 4]], "frames": [],
    }  # fmt: skip
    found = read({"version": "1.5", "entries": [entry], "pg_config": {}})
    table = found.entries
    assert (table["record"][0], table["seq"][0], table["in_elements"][0]) == (7, 12, 12)


def test_gloo_writes_numbers_as_text_and_times_as_zero() -> None:
    content = dump([op(1, library="gloo", time_discovered_started_ns=0)], {"": [0, 1]})
    content["pg_status"] = {
        "0": {"last_enqueued_collective": "96", "last_started_collective": "-1"}
    }
    found = read(content)
    assert found.status == {0: GroupStatus(enqueued=96)}
    assert found.entries["started_ns"].tolist() == [-1]


def test_the_call_is_the_innermost_of_the_users_own() -> None:
    frames = [
        {
            "name": "all_reduce",
            "filename": "/lib/python3.11/site-packages/torch/c10d.py",
            "line": 9,
        },
        {"name": "average", "filename": "/home/me/train.py", "line": 40},
        {"name": "main", "filename": "/home/me/train.py", "line": 90},
    ]
    for content in (json.dumps, pickle.dumps):
        data = content(dump([op(1, frames=frames)], {"0": [0]}))
        found = read(data if isinstance(data, bytes) else data.encode())
        assert found.entries.coded("frame").decode() == ["average (train.py:40)"]


def test_entries_come_in_order_of_launch() -> None:
    content = dump([op(1), op(2), op(3)], {"0": [0]})
    content["entries"].reverse()
    assert read(content).entries["seq"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("encode", [json.dumps, pickle.dumps])
def test_damaged_entries_are_counted_and_cost_themselves_only(encode: object) -> None:
    content = dump([op(1), op(2), op(3), op(4), op(5)], {"0": [0]})
    content["entries"][1] = 7
    content["entries"][2]["profiling_name"] = 9
    content["entries"][3]["collective_seq_id"] = 2**63 - 1
    data = encode(content)  # type: ignore[operator]
    found = read(data if isinstance(data, bytes) else data.encode())
    assert found.entries["seq"].tolist() == [1, 5]
    assert found.notes == ("3 damaged entries of _dump_3 were skipped.",)


def test_damaged_groups_cost_themselves_only() -> None:
    content = dump([op(1)], {"0": [0]}) | {"pg_config": 5, "pg_status": [1]}
    found = read(content)
    assert (len(found.entries), found.groups, found.status, len(found.notes)) == (1, (), {}, 2)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b'{"traceEvents": []}', b'{"entries": {}}', b'{"entries": 3}',
        b"\x80\x02}.", b"\x80\x02cos\nsystem\n.", b"\x1f\x8b\x08broken", b"\x80\x02].", b"\xff" * 9,
        b'{"entries":' + b"[" * 100_000, b'{"version": "2.9"}',
    ],
)  # fmt: skip
def test_what_is_no_dump_is_refused_with_a_way_out(data: bytes) -> None:
    with pytest.raises(InputError, match="Flight Recorder") as caught:
        read(data)
    assert caught.value.found
    assert caught.value.fix


def test_sizes_that_explode_are_not_multiplied() -> None:
    content = dump([op(1)], {"0": [0]})
    content["entries"][0]["input_sizes"] = [[2**62] * 1000]
    assert read(content).entries["in_elements"].tolist() == [-1]


def test_traces_are_not_taken_for_dumps() -> None:
    trace = b'{"schemaVersion": 1, "distributedInfo": {"pg_config": [{}]}, "deviceProperties": []'
    assert not looks_like_dump(trace)
    assert looks_like_dump((GPU_ERROR / "_dump_0").read_bytes()[:4096])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_hostile_fields_cause_no_more_than_a_refusal(data: st.DataObject) -> None:
    value = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=9)
    nested = st.recursive(value, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
    content = dump([op(1), op(2)], {"0": [0, 1]}, pg_status={"0": {}})
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(sorted(content["entries"][0])))
        content["entries"][data.draw(st.integers(0, 1))][name] = data.draw(nested)
    part = data.draw(st.sampled_from(["version", "pg_config", "pg_status", "nccl_version"]))
    content[part] = data.draw(nested)
    by_pickle, by_json = read(pickle.dumps(content)), read(content)
    assert len(by_pickle.entries) <= 2
    assert len(by_json.entries) <= 2
    assert np.isin(by_json.entries["kind"], [int(kind) for kind in CollectiveKind]).all()
