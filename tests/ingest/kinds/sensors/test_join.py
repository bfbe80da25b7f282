"""Sensors beside a recording: which rank each device has, and when its samples were taken."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import distprof
from distprof.artefacts.run_file import RankEntry, RunFile
from distprof.ingest.assemble import assemble_run
from distprof.ingest.sensors.collect import Collector
from distprof.ingest.sensors.join import Places, Recorded, find_zone, with_device_log
from distprof.run.logs import (
    DeviceEvent,
    DeviceLog,
    DeviceState,
    Identity,
    NcclCommunicator,
    NcclLog,
    NcclMember,
    NcclProcess,
)
from distprof.run.records import RankRecords
from distprof.run.run import Device
from distprof.terms import StragglerCause
from tests.simulator import SimulatedJob, SlowDevice
from tests.simulator.records import InMemoryRecords

S = 10**9
HOUR = 3_600 * S
RECORDED = Recorded(start_ns=1_000_000 * S, end_ns=1_000_020 * S)


def simulated(**options):
    """A run of four ranks in one node, which are devices 0 to 3 of it."""
    job = SimulatedJob(**options)
    ranks = [
        replace(rank, device=Device(name="NVIDIA H200", count=job.world_size))
        for rank in job.run().to_ranks()
    ]
    return on_one_node(assemble_run("simulated", ranks))


def on_one_node(run):
    everyone = tuple(rank.rank for rank in run)
    topology = replace(run.topology, nodes={"node-1": everyone}, node_origin="host_name")
    return replace(run, topology=topology)


def span_of(run):
    return min(r.capture_start_ns for r in run), max(r.capture_end_ns for r in run)


def log_beside(run, *, clock="epoch", shift=0, host="", throttled=(), file="gpu.csv"):
    """Samples of every rank's device, ten times in the recording and as often around it."""
    start, end = span_of(run)
    collector = Collector(file)
    for t_ns in np.linspace(2 * start - end, 2 * end - start, 30).astype(np.int64).tolist():
        for rank in run:
            slow = rank.rank in throttled
            collector.sample(
                Identity(host=host, index=rank.rank),
                (t_ns + shift, clock),
                {"sm_clock_mhz": 1_200 if slow else 1_980, "power_w": 500.0},
                "hw_thermal_slowdown" if slow else "none",
            )
    return collector.result()


def gaps_of(run, what):
    return [gap.message for gap in run.gaps if gap.what == what]


def test_devices_of_the_only_node_are_joined_by_their_number():
    run = simulated()
    joined = with_device_log(run, log_beside(run))
    assert [series.rank for series in joined.get(DeviceLog).series] == [0, 1, 2, 3]
    records = joined.records[2].load()
    assert (records.rank, len(records.telemetry)) == (2, 30)
    assert records.about["telemetry"]["origin"] == "gpu.csv, GPU 2"


def test_local_times_get_the_zone_under_which_they_cover_the_recording_and_it_is_said():
    run = simulated()
    joined = with_device_log(run, log_beside(run, clock="local", shift=2 * HOUR))
    times = joined.records[0].load().telemetry["t_ns"]
    start, end = span_of(run)
    assert times[0] < start < end < times[-1]
    (note,) = [text for text in gaps_of(joined, "assumed") if "gpu.csv" in text]
    assert "UTC+02:00" in note


def test_samples_of_another_day_are_not_joined_and_it_is_said():
    run = simulated()
    joined = with_device_log(run, log_beside(run, shift=30 * 24 * HOUR))
    assert joined.records == run.records
    assert any(
        "do not fit the time of the recording" in text for text in gaps_of(joined, "assumed")
    )
    assert joined.get(DeviceLog).series == ()


def test_devices_that_the_job_does_not_use_are_left_out_and_it_is_said():
    run = simulated()
    few = on_one_node(replace(run, ranks=run.ranks[:2]))
    joined = with_device_log(few, log_beside(run, throttled=(3,)))
    assert sorted(joined.records) == [0, 1]
    assert {series.rank for series in joined.get(DeviceLog).series} == {0, 1}
    assert any("GPU 2, GPU 3" in text for text in gaps_of(joined, "assumed"))


def test_samples_without_times_are_joined_as_figures_of_the_whole_job():
    run = simulated()
    collector = Collector("dmon.txt")
    for rank in run:
        collector.sample(Identity(index=rank.rank), None, {"power_w": 100.0})
    joined = with_device_log(run, collector.result())
    report = distprof.analyze(joined)
    assert [row.power_w_mean for row in report.telemetry.ranks] == [100.0] * 4
    assert all(row.in_steps is None for row in report.telemetry.ranks)
    assert report.telemetry.energy_per_step_j is None
    assert any("no times" in text for text in gaps_of(joined, "assumed"))


def test_a_rank_keeps_what_its_own_probe_recorded():
    run = simulated()
    probed = with_device_log(run, log_beside(run)).records[1].load().telemetry.take(slice(0, 3))
    source = InMemoryRecords(RankRecords(rank=1, telemetry=probed))
    joined = with_device_log(replace(run, records={1: source}), log_beside(run))
    assert len(joined.records[1].load().telemetry) == 3
    assert len(joined.records[0].load().telemetry) == 30


def test_of_another_host_nothing_is_joined():
    run = simulated()
    run = replace(run, topology=replace(run.topology, nodes={"node-1": (0, 1), "node-2": (2, 3)}))
    joined = with_device_log(run, log_beside(run, host="node-9"))
    assert joined.records == run.records
    assert "Unknown rank" in gaps_of(joined, "unplaced-devices")[0]


H100 = "NVIDIA H100 80GB HBM3"


def named(log, names):
    """The log with the names of its GPUs."""
    series = tuple(replace(one, name=names[i % len(names)]) for i, one in enumerate(log.series))
    return replace(log, series=series)


def test_sensors_of_other_gpus_than_the_jobs_are_refused_by_name():
    run = simulated()
    log = named(log_beside(run, throttled=(1,)), [H100])
    xid = DeviceEvent(file="gpu.csv", kind="xid", number=79, index=1, text="off the bus")
    state = DeviceState(file="gpu.csv", index=0, name=H100)
    joined = with_device_log(run, replace(log, events=(xid,), states=(state,)))
    assert joined.records == run.records
    found = joined.get(DeviceLog)
    assert (found.series, found.states, found.events) == ((), (), ())
    (said,) = gaps_of(joined, "another-job")
    assert said == f"The ranks ran on NVIDIA H200, so {H100} in gpu.csv is not used."


def test_gpus_of_other_models_in_a_file_of_a_cluster_are_left_out_alone():
    run = simulated()
    joined = with_device_log(run, named(log_beside(run), ["NVIDIA H200", H100]))
    assert [series.rank for series in joined.get(DeviceLog).series] == [0, 2]
    assert len(gaps_of(joined, "another-job")) == 1


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM..."),
        ("NVIDIA A100-PG509-200", "A100"),
        ("AMD Instinct MI250X", "AMD Instinct MI250"),
        ("AMD Radeon Graphics", "AMD Instinct MI300X"),
        ("NVIDIA H200", ""),
        ("", "NVIDIA H200"),
    ],
)
def test_a_model_that_may_be_the_same_is_joined(ours, theirs):
    run = simulated()
    ranks = tuple(replace(rank, device=replace(rank.device, name=ours)) for rank in run)
    run = replace(run, ranks=ranks)
    joined = with_device_log(run, named(log_beside(run), [theirs]))
    assert sorted(joined.records) == [0, 1, 2, 3]
    assert gaps_of(joined, "another-job") == []


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("NVIDIA H200", "NVIDIA H20"), ("NVIDIA B200", "NVIDIA GB200"), ("Tesla V100", "Tesla T4")],
)
def test_models_with_similar_names_are_told_apart(ours, theirs):
    run = simulated()
    ranks = tuple(replace(rank, device=replace(rank.device, name=ours)) for rank in run)
    joined = with_device_log(replace(run, ranks=ranks), named(log_beside(run), [theirs]))
    assert joined.records == run.records


def test_two_hosts_in_a_file_are_not_both_the_unknown_host_of_the_job():
    run = simulated()
    unnamed = replace(run, topology=replace(run.topology, nodes={}))
    log = DeviceLog.merged([log_beside(run, host="alpha"), log_beside(run, host="beta")])
    joined = with_device_log(unnamed, log)
    assert joined.records == run.records
    assert {series.rank for series in joined.get(DeviceLog).series} == {None}


def test_no_rank_beyond_the_job_gets_sensors():
    """NCCL's log of a larger job: its rank 19 has the bus id of a GPU in the file."""
    run = simulated()
    process = NcclProcess(host="node-1", pid=1, rank=19)
    member = NcclMember(process=0, rank=19, bus_id="1b000")
    group = NcclCommunicator(name="c", num_ranks=4, members=(member,), is_certain=True)
    run = run.having(NcclLog(processes=(process,), communicators=(group,)))
    log = log_beside(run)
    series = (replace(log.series[0], index=None, bus_id="00000000:1b:00.0"),)
    joined = with_device_log(run, replace(log, series=series))
    assert joined.records == run.records


def test_several_nodes_without_a_name_are_told_apart_by_nothing_and_the_fix_is_said():
    run = simulated()
    topology = replace(run.topology, nodes={"node-1": (0, 1), "node-2": (2, 3)})
    joined = with_device_log(replace(run, topology=topology), log_beside(run))
    assert joined.records == {}
    assert "(gpu.node-1.csv)" in gaps_of(joined, "unplaced-devices")[0]


def test_a_files_name_tells_the_host_where_the_file_does_not():
    run = simulated()
    nodes = {"node-1": (0, 1), "node-2": (2, 3)}
    topology = replace(run.topology, nodes=nodes, node_origin="host_name")
    run = replace(run, topology=topology)
    joined = with_device_log(run, log_beside(run, file="gpu.node-2.csv"))
    assert sorted(joined.records) == [2, 3]
    assert joined.records[3].origin == "gpu.node-2.csv, GPU 1 of node-2"


def test_nccls_log_joins_by_bus_id_even_where_numbers_differ():
    run = simulated()
    processes = tuple(NcclProcess(host="node-1", pid=i, rank=i) for i in range(4))
    members = tuple(NcclMember(rank=i, process=i, bus_id=f"{0x10 + i:x}000") for i in range(4))
    nccl = NcclLog(
        processes=processes,
        communicators=(NcclCommunicator(name="x", num_ranks=4, members=members),),
    )
    places = Places.of(run.having(nccl))
    assert places.rank_of("node-1", 0, "00000000:12:00.0", "") == 2


def test_visible_devices_of_the_job_say_which_device_a_process_had():
    entries = tuple(
        RankEntry(rank=rank, node=0, host="node-1", local_rank=rank) for rank in range(2)
    )
    job = RunFile(
        distprof_version="0",
        kind="run",
        command=(),
        started_ns=0,
        ranks=entries,
        environment={"CUDA_VISIBLE_DEVICES": "6,GPU-abc"},
    )
    run = assemble_run("x", (), may_be_empty=True)
    topology = replace(run.topology, nodes={"node-1": (0, 1)}, node_origin="run.json")
    places = Places.of(replace(run, job=job, topology=topology))
    assert places.rank_of("node-1.example.org", 6, "", "") == 0
    assert places.rank_of("", 0, "", "GPU-abc") == 1
    assert places.rank_of("", 0, "", "") is None


@pytest.mark.parametrize(
    ("is_first", "host", "other"), [(True, "", ""), (False, "node-1", ""), (False, "", "node-1")]
)
def test_an_error_on_a_bus_id_is_of_the_rank_whose_sensors_name_it(is_first, host, other):
    run = simulated()
    start, end = span_of(run)
    bus = "00000000:9b:00.0"
    sensors, kernel = Collector("gpu.csv"), Collector("dmesg.log")
    for t_ns in (start, end):
        device = Identity(host=other, index=2, bus_id=bus)
        sensors.sample(device, (t_ns, "epoch"), {"power_w": 1.0})
    kernel.event(
        DeviceEvent(file="dmesg.log", kind="xid", number=79, text="", bus_id=bus, host=host)
    )
    logs = [sensors.result(), kernel.result()]
    for log in logs if is_first else reversed(logs):
        run = with_device_log(run, log)
    assert [event.rank for event in run.get(DeviceLog).events] == [2]


def test_states_have_the_ranks_of_their_gpus_and_those_of_other_gpus_are_left_out():
    run = simulated()
    states = tuple(DeviceState(file="q.txt", index=index, pcie_width=16) for index in range(6))
    joined = with_device_log(run, DeviceLog(files=("q.txt",), states=states)).get(DeviceLog)
    assert [one.rank for one in joined.states] == [0, 1, 2, 3]


def test_errors_of_another_time_are_left_out_and_counted():
    run = simulated()
    start, _ = span_of(run)
    collector = Collector("dmesg.log")
    for t_ns, clock in ((start, "epoch"), (start - 2 * HOUR, "epoch"), (start - 5 * HOUR, "local")):
        collector.event(
            DeviceEvent(file="dmesg.log", kind="xid", number=79, text="", t_ns=t_ns, clock=clock)
        )
    joined = with_device_log(run, collector.result())
    assert len(joined.get(DeviceLog).events) == 2  # a local time may be of another zone
    assert any(
        "One error was not logged during the recording" in text
        for text in gaps_of(joined, "assumed")
    )


def zone(first_s, last_s, clock="local", written_ns=None):
    times = np.arange(first_s, last_s + 1, dtype=np.int64) * S
    return find_zone(clock, [times], RECORDED, written_ns)


@pytest.mark.parametrize("hours", [-9.5, 0, 5.75, 12])
def test_samples_around_the_recording_have_one_zone(hours):
    off = round(hours * 3_600)
    found = zone(1_000_000 - 30 + off, 1_000_050 + off)
    assert found.shift_ns == -off * S
    sign = "+" if hours > 0 else "-"
    digits = f"{int(abs(hours)):02d}:{round(abs(hours) % 1 * 60):02d}"
    assert (f"UTC{sign}{digits}" if hours else "UTC") in found.text


def test_samples_of_a_day_fit_many_zones_and_none_is_guessed():
    assert zone(1_000_000 - 40_000, 1_000_000 + 40_000) is None


def test_the_files_own_time_tells_the_zone_of_a_long_log():
    written = 1_040_001 * S  # just after its last sample
    found = zone(1_000_000 - 40_000 + 7_200, 1_040_000 + 7_200, written_ns=written)
    assert found.shift_ns == -7_200 * S


def test_a_time_of_another_copy_of_the_file_tells_no_zone():
    assert zone(960_000, 1_040_000, written_ns=1_040_400 * S) is None


def test_times_of_day_find_their_day():
    assert (
        zone(1_000_000 % 86_400 - 30, 1_000_000 % 86_400 + 50, clock="day").shift_ns % 86_400 == 0
    )


def test_no_zone_is_farther_than_fourteen_hours():
    assert zone(1_000_000 + 20 * 3_600, 1_000_020 + 20 * 3_600) is None


def test_a_slow_device_is_explained_by_a_csv_beside_the_traces():
    run = simulated(faults=(SlowDevice(rank=1, factor=1.3),))
    report = distprof.analyze(with_device_log(run, log_beside(run, throttled=(1,))))
    late = report.stragglers.ranks[0]
    assert (late.rank, late.cause, late.detail) == (1, StragglerCause.SLOW_DEVICE, "throttled")
    (finding,) = [f for f in report.findings if f.code == "TEL101"]
    assert finding.ranks == (1,)
    assert finding.cost_ns_per_step == late.lost_ns_per_step
    assert finding.recoverable_ns is not None
    assert "hw_thermal_slowdown" in finding.message
    assert report.telemetry.energy_per_step_j == pytest.approx(
        500.0 * sum(row.span_ns for row in report.waterfall.ranks) / S / report.waterfall.num_steps,
        rel=1e-6,
    )
