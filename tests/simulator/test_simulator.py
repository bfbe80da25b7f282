"""The simulator itself: its truth must follow from its rules."""

import gzip
import json

import pytest

from distprof.terms import CollectiveKind
from tests.simulator import (
    Collective,
    Compute,
    Exchange,
    Input,
    LateHost,
    LateInput,
    MoreWork,
    SimulatedJob,
    SlowDevice,
)

MS = 1_000_000
QUIET = {"compute_noise": 0.0, "end_jitter_ns": 0, "num_nodes": 1, "ranks_per_node": 2}
STEP = (Compute(ns=4 * MS, kernels=4), Collective(transfer_ns=MS))


def test_a_collective_ends_one_transfer_after_its_last_member_starts():
    slow = SlowDevice(rank=1, factor=1.5)
    recording = SimulatedJob(**QUIET, num_steps=1, program=STEP, faults=(slow,)).run()
    (instance,) = recording.instances
    # rank 0 is launched at 0, its device starts 4 us later and computes 4 ms; rank 1 6 ms
    assert instance.start_ns == {0: 4 * MS + 4_000, 1: 6 * MS + 4_000}
    assert instance.end_ns == 7 * MS + 4_000
    assert instance.last_rank == 1
    assert instance.wait_ns(0) == 2 * MS
    assert recording.lost_ns(10) == {1: 2 * MS}


@pytest.mark.parametrize(
    "fault",
    [
        SlowDevice(rank=1, factor=1.5),
        MoreWork(rank=1, factor=1.5),
        LateHost(rank=1, ns=2 * MS),
    ],
)
def test_each_fault_makes_its_rank_the_costliest(fault):
    recording = SimulatedJob(**QUIET, program=STEP, faults=(fault,)).run()
    assert recording.costliest_rank() == 1
    assert recording.lost_ns(12)[1] == pytest.approx(2 * MS, rel=0.01)


def test_late_input_delays_the_step_it_is_in_only():
    fault = LateInput(rank=0, ns=3 * MS, steps=(11,))
    recording = SimulatedJob(**QUIET, program=(Input(), *STEP), faults=(fault,)).run()
    assert recording.lost_ns(11)[0] == pytest.approx(3 * MS, rel=0.01)
    assert recording.lost_ns(10).get(0, 0) < 10_000


def test_own_clocks_show_offset_and_drift():
    job = SimulatedJob(clock_offset_ns=(0, 8 * MS), clock_drift_ppm=(0.0, 20.0))
    assert job.own_clock(0, 1_000 * MS) == 1_000 * MS
    assert job.own_clock(2, 1_000 * MS) == 1_008 * MS + 20_000


def test_skipped_and_cut_communications_are_not_in_the_trace():
    recording = SimulatedJob(capture_skip={2: 4}, capture_cut={0: 2}).run()
    ranks = recording.to_ranks()
    assert [len(rank.collectives) for rank in ranks] == [13, 15, 11, 15]
    assert ranks[2].collectives["seq"][0] == 5


def test_messages_have_two_ends_and_peers():
    program = (Compute(ns=MS), Exchange(src=0, dst=1, axis="pp"), Collective())
    recording = SimulatedJob(program=program, axes={"pp": ((0, 2), (1, 3))}, num_steps=1).run()
    first, _, third, _ = (rank.collectives for rank in recording.to_ranks())
    assert first["kind"].tolist() == [CollectiveKind.SEND, CollectiveKind.ALL_REDUCE]
    assert third["kind"].tolist() == [CollectiveKind.RECV, CollectiveKind.ALL_REDUCE]
    assert (first["peer"][0], third["peer"][0]) == (2, 0)


def test_written_traces_keep_nanoseconds(tmp_path):
    recording = SimulatedJob(num_steps=1).run()
    paths = recording.write_kineto(tmp_path)
    assert len(paths) == 4
    rank = recording.to_ranks()[3]
    trace = json.loads(gzip.decompress(paths[3].read_bytes()), parse_float=str)
    comm = [e for e in trace["traceEvents"] if e["cat"] == "kernel" and "Seq" in e["args"]]
    base = trace["baseTimeNanoseconds"]
    assert [base + int(e["ts"].replace(".", "")) for e in comm] == rank.collectives[
        "start_ns"
    ].tolist()
    assert trace["distributedInfo"]["pg_config"][0]["ranks"] == [0, 1, 2, 3]
