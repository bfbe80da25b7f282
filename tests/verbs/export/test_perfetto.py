"""What is in a run is found again in its Perfetto trace, to the nanosecond."""

from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import distprof
from distprof.api import examine, open_run
from distprof.errors import InputError, UsageError
from distprof.escape import plain
from distprof.run.records import TELEMETRY, RankRecords
from distprof.schema import ABSENT
from distprof.terms import ActivityKind, CollectiveKind
from distprof.verbs.export.perfetto import Choice, export_perfetto
from tests.builders import RankBuilder, make_run, table_of
from tests.optional import optional
from tests.simulator.job import MS, SimulatedJob, SlowDevice
from tests.simulator.pipeline_job import PipelineJob
from tests.verbs.export.reader import read_trace

optional("perfetto", reason="the package perfetto is not installed")

GOLDEN = Path(__file__).parents[2] / "golden"
INPUTS = sorted(
    [*(GOLDEN / "kineto").iterdir(), *(f for f in (GOLDEN / "job").iterdir() if f.is_dir())]
)
OFFSET_NS = 8 * MS


def exported(run, tmp_path, **choice):
    """The run's report and its trace, read back."""
    examined = examine(run)
    file = tmp_path / "job.pftrace"
    written = export_perfetto(examined, file, Choice(**choice))
    assert file.stat().st_size == written.num_bytes
    trace = read_trace(file)
    assert len(trace.slices) == written.num_slices
    return examined, trace


def seen(slices):
    return Counter((one.name, one.category, one.start, one.end) for one in slices)


def of_rank(trace, rank):
    """Slices of a rank by the name of their track, of lanes by that of the first."""
    found = {}
    for one in trace.slices:
        parts = [part.partition(",")[0] for part in one.track]
        if f"rank {rank}" in parts:
            found.setdefault(one.track[-1].partition(" (overlapping")[0], []).append(one)
    return found


def rows(run, rank, table, category):
    """Rows of a table as slices of the file, times by the run's own alignment."""
    shift = max(
        0,
        *(-int(run.clock.to_common(r.rank, np.array([r.capture_start_ns]))[0]) for r in run.ranks),
    )
    start = (run.clock.to_common(rank, table["start_ns"]) + shift).tolist()
    end = (run.clock.to_common(rank, table["end_ns"]) + shift).tolist()
    names = [plain(name) or "(no name)" for name in table.coded("name").decode()]
    return Counter(zip(names, category, start, end, strict=True))


@pytest.mark.parametrize("source", INPUTS, ids=lambda path: path.name)
def test_golden_inputs_are_found_again(source, tmp_path):
    examined, trace = exported(open_run(source, use_cache=False), tmp_path)
    run = examined.run
    for rank in run.ranks:
        check_rank(run, rank, of_rank(trace, rank.rank))
    check_arrows(run, trace)
    check_halves(examined, trace)
    check_markers(examined, trace)


def check_rank(run, rank, found):
    tables = rank.tables.load(every_host_row=True)
    activity, host = tables.activity, tables.host
    kinds = [ActivityKind(kind).name.lower() for kind in activity["kind"].tolist()]
    streams = [s for n, own in found.items() if n.startswith(("stream", "work")) for s in own]
    threads = [s for n, own in found.items() if n.startswith("CPU thread") for s in own]
    assert seen(streams) == rows(run, rank.rank, activity, kinds)
    assert seen(threads) == rows(run, rank.rank, host, host.coded("category").decode())
    assert {n for n in found if n.startswith("CPU thread")} == {
        f"CPU thread {name}" for name in host.coded("thread").decode()
    }
    whole = [one for one in found.get("collectives", ()) if one.category == "collective"]
    common = run.clock.to_common(rank.rank, rank.collectives["start_ns"]).tolist()
    assert sorted(one.start for one in whole) == sorted(common)
    sizes = Counter(size for size in rank.collectives["bytes"].tolist() if size != ABSENT)
    assert Counter(one.args["bytes"] for one in whole if "bytes" in one.args) == sizes
    steps = [(one.start, one.end) for one in found.get("steps", ())]
    to_common = [
        run.clock.to_common(rank.rank, rank.steps[name]).tolist() for name in ("start_ns", "end_ns")
    ]
    assert sorted(steps) == sorted(zip(*to_common, strict=True))


def check_arrows(run, trace):
    """One chain per matched instance, from member to member in order of arrival."""
    arrows = Counter()
    for first, second in trace.arrows():
        assert first.category == second.category == "collective"
        assert first.start <= second.start
        arrows[first.flows] += 1
    sizes = Counter(np.diff(run.matches.offsets).tolist())
    assert sum(arrows.values()) == sum((size - 1) * count for size, count in sizes.items())
    chains = {}
    for one in trace.slices:
        for flow in one.flows:
            chains.setdefault(flow, set()).add((rank_in(one.track), one.start))
    matches = run.matches
    by_rank = {rank.rank: rank.collectives["start_ns"] for rank in run.ranks}
    for i in range(matches.count):
        members = range(matches.offsets[i], matches.offsets[i + 1])
        expected = set()
        for member in members:
            rank = int(matches.member_rank[member])
            own = by_rank[rank][matches.member_row[member : member + 1]]
            expected.add((rank, int(run.clock.to_common(rank, own)[0])))
        assert chains[i + 1] == expected


def rank_in(track):
    (rank,) = (int(part.split()[1].rstrip(",")) for part in track if part.startswith("rank "))
    return rank


def check_halves(examined, trace):
    """Waiting and transfer of a collective tile it, and are what the analysis counts."""
    for rank, analysis in examined.analyses.items():
        table = examined.run.rank(rank).collectives
        until = examined.analyses.wait_ends[rank]
        known = (until != ABSENT) & (table["end_ns"] > table["start_ns"])
        wait = np.clip(until, table["start_ns"], table["end_ns"]) - table["start_ns"]
        slices = of_rank(trace, rank).get("collectives", [])
        drawn = sum(one.end - one.start for one in slices if one.category == "wait")
        moved = sum(one.end - one.start for one in slices if one.category == "transfer")
        rounding = 2 * len(table)
        assert abs(drawn - int(wait[known].sum())) <= rounding
        whole = int((table["end_ns"] - table["start_ns"])[known].sum())
        assert abs(drawn + moved - whole) <= rounding
        assert analysis.rank == rank


def check_markers(examined, trace):
    findings = examined.report.findings
    assert {one.name for one in trace.marks} == {f"{f.code} {f.name}" for f in findings}
    messages = {one.args["message"] for one in trace.marks}
    assert messages == {plain(f.message) for f in findings}


def test_pipeline_slots_are_where_the_job_had_them(tmp_path):
    """The simulated pipeline knows its slots; each rank's clock is ahead by another time."""
    job = PipelineJob(
        orders=(
            (("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)),
            (("F", 1, 0), ("B", 1, 0), ("F", 1, 1), ("B", 1, 1)),
        ),
        forward_ns=(MS, MS),
        input_ns=(MS, MS),
        weight_ns=(MS, MS),
        reduce_ns=MS,
        num_steps=2,
        clock_offset_ns=(0, 3 * MS),
    )
    recording = job.run()
    _, trace = exported(recording.to_run(), tmp_path)
    zero = min(one.start for one in of_rank(trace, 0)["pipeline slots"])
    zero -= min(slot.start for slot in recording.slots)
    for rank in (0, 1):
        drawn = sorted(of_rank(trace, rank)["pipeline slots"], key=lambda one: one.start)
        true = sorted((s for s in recording.slots if s.rank == rank), key=lambda slot: slot.start)
        assert [one.start - zero for one in drawn] == pytest.approx(
            [slot.start for slot in true], abs=1_000
        )
        kinds = {"F": "forward", "B": "backward"}
        assert [one.name for one in drawn] == [
            f"{kinds[slot.letter]} of micro-batch {slot.micro_batch}, stage {slot.stage}"
            for slot in true
        ]


def test_the_critical_path_tiles_the_time_and_goes_through_the_slow_rank(tmp_path):
    job = SimulatedJob(faults=(SlowDevice(rank=3, factor=1.5),), compute_noise=0.0)
    job.run().write_kineto(tmp_path / "traces")
    examined, trace = exported(tmp_path / "traces", tmp_path)
    path = trace.on("distprof", "critical path")
    for before, after in pairwise(path):
        assert before.end == after.start
    spans = Counter()
    for one in path:
        spans[one.name] += one.end - one.start
    total = sum(spans.values())
    analysis = examined.analyses[3]
    assert total == pytest.approx(sum(step.span_ns for step in analysis.steps), rel=0.02)
    assert spans["rank 3: computation"] > 0.6 * total
    # what the path has of rank 3 is what rank 3 did: kernels run in it
    kernels = [s for s in of_rank(trace, 3)["stream 7"] if s.category == "computation"]
    for one in path:
        if one.name == "rank 3: computation":
            assert any(k.start < one.end and k.end > one.start for k in kernels)


# Known answers ------------------------------------------------------------------------------------


def two_ranks(**clock):
    """Rank 1 arrives 300 ns late; its clock is 1,000 ns ahead."""
    first = RankBuilder(0).kernel("gemm", 10_000, 10_100, stream=7)
    second = RankBuilder(1).kernel("gemm", 11_000, 11_400, stream=7)
    for builder, start, end in ((first, 10_100, 10_900), (second, 11_400, 11_900)):
        builder.step(3, end - 900, end + 100)
        builder.comm("ncclDevKernel_AllReduce", start, end, ranks=(0, 1), seq=1, size=4_096)
        builder.operator("aten::mm", start - 100, start - 40)
    ranks = [first.rank(), second.rank(host="node1")]
    run = make_run(ranks, steps=(3,))
    from distprof.join.matching import match_collectives
    from distprof.run.run import ClockAlignment
    from distprof.run.topology import ProcessGroup, Topology

    group = ProcessGroup(
        name="0", description="default_pg", ranks=(0, 1), size=2, backend="nccl", axis=None
    )
    topology = Topology(
        world_size=2, nodes={"node0": (0,), "node1": (1,)}, node_origin="host_name", groups=(group,)
    )
    alignment = ClockAlignment(
        domains=((0,), (1,)),
        names=("node0", "node1"),
        offset_ns=np.array([0.0, 1_000.0]),
        drift_ratio=np.zeros(2),
        reference_ns=0,
        residual_ns=np.array([20, 20]),
        component=np.zeros(2, np.int32),
    )
    matches = match_collectives(ranks, (group,), topology.nodes)
    return replace(run, topology=topology, clock=replace(alignment, **clock), matches=matches)


def test_two_ranks_by_hand(tmp_path):
    _, trace = exported(two_ranks(), tmp_path)
    slow, fast = of_rank(trace, 1), of_rank(trace, 0)
    assert [(s.name, s.category, s.start, s.end) for s in slow["stream 7"]] == [
        ("gemm", "computation", 10_000, 10_400)
    ]
    assert [(s.name, s.start, s.end, s.depth) for s in fast["collectives"]] == [
        ("all_reduce default_pg 4.10 kB", 10_100, 10_900, 0),
        ("waits for rank 1", 10_100, 10_400, 1),
        ("transfer", 10_400, 10_900, 1),
    ]
    assert [(s.name, s.start, s.end) for s in slow["collectives"]] == [
        ("all_reduce default_pg 4.10 kB", 10_400, 10_900),
        ("transfer", 10_400, 10_900),
    ]
    assert fast["collectives"][0].args == {"bytes": 4_096, "sequence number": 1, "last rank": 1}
    ((first, second),) = trace.arrows()
    assert (rank_in(first.track), rank_in(second.track)) == (0, 1)
    assert first.track[:2] == ("node node0, clock ±20 ns", "rank 0")
    assert trace.clocks == {6: 10_000, 1: 10_000}  # the earliest event, as time since 1970


def test_a_wait_below_the_clocks_error_blames_no_rank(tmp_path):
    _, trace = exported(two_ranks(residual_ns=np.array([20, 300])), tmp_path)
    assert [s.name for s in of_rank(trace, 0)["collectives"]][1] == (
        "wait shorter than the clock error"
    )
    assert "node node1, clock ±300 ns" in {one.track[0] for one in trace.slices}


def test_clocks_that_cannot_be_compared_are_said_to_be(tmp_path):
    run = two_ranks(component=np.array([0, 1], np.int32))
    written = export_perfetto(examine(run), tmp_path / "x.pftrace")
    assert "could not be aligned" in written.notes[0]
    tracks = {one.track[0] for one in read_trace(tmp_path / "x.pftrace").slices}
    assert "node node1, clock not comparable with the others'" in tracks


def test_times_below_zero_are_moved_and_the_file_says_so(tmp_path):
    run = two_ranks(offset_ns=np.array([15_000.0, 16_000.0]))
    run = replace(run, ranks=tuple(replace(rank, has_epoch=False) for rank in run.ranks))
    _, trace = exported(run, tmp_path)
    assert min(one.start for one in trace.slices) == 0
    assert "5000 ns were added to all times" in trace.about[("distprof",)]
    assert trace.clocks == {}  # nothing says what day it was


def test_slices_that_overlap_in_part_go_to_a_second_track(tmp_path):
    builder = RankBuilder(0).kernel("a", 0, 100).kernel("b", 50, 150).kernel("c", 100, 150)
    _, trace = exported(make_run([builder.rank()]), tmp_path)
    kernels = [one for one in trace.slices if one.track[-1].startswith("stream")]
    assert {(one.track[-1], one.name, one.start, one.end) for one in kernels} == {
        ("stream 7", "a", 0, 100),
        ("stream 7 (overlapping, 2)", "b", 50, 150),
        ("stream 7", "c", 100, 150),
    }


def test_sensors_are_counters_in_their_units(tmp_path):
    class Held:
        rank = 0

        def load(self):
            samples = [
                {"t_ns": at, "sm_clock_mhz": 1_000 + at, "power_w": 300.5, "temperature_c": ABSENT}
                for at in (-50, 10, 60, 5_000)
            ]
            nothing = {c.name: np.nan for c in TELEMETRY if c.dtype == "float64"}
            table = table_of(TELEMETRY, [{**nothing, **sample} for sample in samples])
            return RankRecords(rank=0, telemetry=table)

    run = make_run([RankBuilder(0).kernel("a", 0, 100).rank()])
    _, trace = exported(replace(run, records={0: Held()}), tmp_path)
    found = {track[-1]: values for track, values in trace.counters.items()}
    assert found == {
        "sm clock": [(10, 1_010), (60, 1_060)],
        "power": [(10, 300.5), (60, 300.5)],
    }
    assert {trace.units[track] for track in trace.counters} == {"MHz", "W"}


def test_sensors_of_a_file_are_counters_of_their_rank_once(tmp_path):
    job = SimulatedJob()
    recording = job.run()
    traces = recording.write_kineto(tmp_path / "traces")
    run = open_run(tmp_path / "traces", use_cache=False)
    rows = ["timestamp, index, clocks.sm [MHz], power.draw [W]"]
    rank = run.ranks[1]
    times = range(rank.capture_start_ns // 10**6 - 5, rank.capture_end_ns // 10**6 + 5, 5)
    for ms in times:
        at = datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
        rows += [f"{at}, {gpu}, {1_000 + gpu} MHz, {300 + gpu}.50 W" for gpu in (0, 1)]
    (tmp_path / "gpu.node0.csv").write_text("\n".join(rows) + "\n")
    run = open_run(tmp_path / "traces", use_cache=False, evidence=[tmp_path / "gpu.node0.csv"])
    assert len(traces) == 4
    _, trace = exported(run, tmp_path)
    clocks = {t[-2]: {v for _, v in vs} for t, vs in trace.counters.items() if "clock" in t[-1]}
    assert clocks == {"rank 0": {1_000}, "rank 1": {1_001}}
    (power,) = [v for t, v in trace.counters.items() if t[-2:] == ("rank 1", "power")]
    inside = [ms for ms in times if rank.capture_start_ns <= ms * 10**6 <= rank.capture_end_ns]
    assert [at // 10**6 for at, _ in power] == inside


def test_a_straggler_has_its_intervals(tmp_path):
    job = SimulatedJob(faults=(SlowDevice(rank=3, factor=1.5),), compute_noise=0.0)
    folder = tmp_path / "traces"
    job.run().write_kineto(folder)
    examined, trace = exported(folder, tmp_path)
    (blamed,) = examined.report.stragglers.sets
    assert blamed.ranks == (3,)
    late = of_rank(trace, 3)["straggler"]
    steps = [one for one in late if one.name.startswith("persistent: ")]
    assert len(steps) == len(examined.run.window.steps)
    waits = [one for one in late if one.name == "all other members wait for this rank"]
    assert waits
    assert not any("straggler" in of_rank(trace, rank) for rank in (0, 1, 2))
    waiting = [s for s in of_rank(trace, 0)["collectives"] if s.name == "waits for rank 3"]
    for one in waits:  # what rank 0 waits ends where rank 3 arrives
        assert any(abs(one.end - wait.end) <= 1 for wait in waiting)


# The merged clock ---------------------------------------------------------------------------------


def ends_of_collectives(trace):
    """By flow, the ends of its members."""
    ends = {}
    for one in trace.slices:
        for flow in one.flows:
            ends.setdefault(flow, []).append(one.end)
    return [max(own) - min(own) for own in ends.values()]


def test_collectives_end_together_though_the_clocks_of_nodes_differ(tmp_path):
    job = SimulatedJob(clock_offset_ns=(0, OFFSET_NS), clock_drift_ppm=(0.0, 20.0))
    recording = job.run()
    recording.write_kineto(tmp_path / "traces")
    examined, trace = exported(tmp_path / "traces", tmp_path)
    apart = ends_of_collectives(trace)
    assert len(apart) == examined.run.matches.count == 3 * job.num_steps
    assert max(apart) <= 4 * job.end_jitter_ns
    naive = [
        abs(int(own.max() - own.min()))
        for own in np.split(
            np.array(
                [
                    examined.run.rank(int(rank)).collectives["end_ns"][row]
                    for rank, row in zip(
                        examined.run.matches.member_rank,
                        examined.run.matches.member_row,
                        strict=True,
                    )
                ]
            ),
            examined.run.matches.offsets[1:-1],
        )
    ]
    assert min(naive) > OFFSET_NS // 2  # as the traces have it, no member ends with another


@settings(max_examples=8, phases=(Phase.explicit, Phase.generate))  # shrinking takes minutes
@given(
    offset=st.integers(-50 * MS, 50 * MS),
    drift=st.integers(-40, 40),
    seed=st.integers(0, 1_000),
    late=st.sampled_from([0, 1, 2, 3]),
)
def test_the_true_time_of_every_event_is_found(tmp_path_factory, offset, drift, seed, late):
    """The simulator knows when everything happened; the file differs by the residual only."""
    job = SimulatedJob(
        clock_offset_ns=(0, offset),
        clock_drift_ppm=(0.0, float(drift)),
        seed=seed,
        faults=(SlowDevice(rank=late, factor=1.3),),
        num_steps=3,
    )
    recording = job.run()
    tmp_path = tmp_path_factory.mktemp("true")
    recording.write_kineto(tmp_path / "traces")
    examined, trace = exported(tmp_path / "traces", tmp_path)
    zero = next(iter(of_rank(trace, 0)["stream 7"])).start - min(
        event.start for event in recording.logs[0].device
    )
    error = max(4 * job.end_jitter_ns, 4 * int(examined.run.clock.residual_ns.max()))
    for log in recording.logs:
        true = sorted(event.start for event in log.device)
        drawn = sorted(
            one.start
            for name, own in of_rank(trace, log.rank).items()
            for one in own
            if name.startswith("stream")
        )
        assert len(drawn) == len(true)
        assert np.abs(np.array(drawn) - zero - np.array(true)).max() <= error


# Anything -----------------------------------------------------------------------------------------

NAMES = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["\x1b[2J\x00", "\ud800half", "<script>", "k" * 10_000, "", "a\nb", "‮"]
)
SPANS = st.tuples(st.integers(0, 500), st.integers(0, 200)).map(lambda p: (p[0], p[0] + p[1]))


@given(
    kernels=st.lists(st.tuples(NAMES, SPANS, st.sampled_from([7, 20, ABSENT])), max_size=12),
    calls=st.lists(st.tuples(NAMES, SPANS, st.sampled_from(["1/1", "1/2", "\x07"])), max_size=12),
    origin=st.sampled_from([0, 1_795_219_600_024_939_158]),
)
def test_any_rank_is_found_again(tmp_path_factory, kernels, calls, origin):
    builder = RankBuilder(0).kernel("first", origin, origin + 1)
    for name, (start, end), stream in kernels:
        builder.kernel(name, origin + start, origin + end, stream=stream)
    for name, (start, end), thread in calls:
        builder.operator(name, origin + start, origin + end, thread=thread)
    run = make_run([builder.rank()])
    examined, trace = exported(run, tmp_path_factory.mktemp("any"))
    tables = examined.run.ranks[0].tables.load()
    found = of_rank(trace, 0)
    for table, prefix in ((tables.activity, "stream"), (tables.host, "CPU thread")):
        drawn = [one for name, own in found.items() if name.startswith(prefix) for one in own]
        assert Counter((one.start, one.end) for one in drawn) == Counter(
            zip(table["start_ns"].tolist(), table["end_ns"].tolist(), strict=True)
        )
        assert all(len(one.name) <= 60_000 and one.name.isprintable() for one in drawn)
        wanted = Counter(
            plain(name) or "(no name)" for name in table.coded("name").decode() if len(name) < 4_096
        )
        assert wanted <= Counter(one.name for one in drawn)


def test_a_name_of_10_000_characters_is_cut(tmp_path):
    _, trace = exported(make_run([RankBuilder(0).kernel("k" * 10_000, 0, 9).rank()]), tmp_path)
    (kernel,) = [one for one in trace.slices if one.category == "computation"]
    assert kernel.name == "k" * 4_095 + "…"


# Choices ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    SimulatedJob(clock_offset_ns=(0, OFFSET_NS)).run().write_kineto(folder)
    return distprof.open_run(folder)


def test_only_the_ranks_that_are_asked_for(job_run, tmp_path):
    _, whole = exported(job_run, tmp_path)
    _, some = exported(job_run, tmp_path, ranks=frozenset({1, 2}))
    assert {rank_in(s.track) for s in some.slices if "distprof" not in s.track} == {1, 2}
    for rank in (1, 2):  # waits and clocks are those of the whole run
        assert of_rank(some, rank) == of_rank(whole, rank)


def test_only_the_steps_that_are_asked_for(job_run, tmp_path):
    steps = frozenset({11, 12})
    _, trace = exported(job_run, tmp_path, steps=steps)
    for rank in job_run.ranks:
        found = of_rank(trace, rank.rank)
        assert {one.name for one in found["steps"]} == {"step 11", "step 12"}
        first, last = (
            f(getattr(one, end) for one in found["steps"])
            for f, end in ((min, "start"), (max, "end"))
        )
        tables = rank.tables.load(every_host_row=True)
        start, end = (
            job_run.clock.to_common(rank.rank, tables.activity[name])
            for name in ("start_ns", "end_ns")
        )
        wanted = int(((start < last) & (np.maximum(end, start + 1) > first)).sum())
        drawn = [one for name, own in found.items() if name.startswith("stream") for one in own]
        assert len(drawn) == wanted > 0
    assert {one.start for one in trace.marks} <= {
        one.start for rank in job_run.ranks for one in of_rank(trace, rank.rank)["steps"]
    }


def test_only_collectives_needs_no_tables(job_run, tmp_path):
    class Gone:
        def load(self, *, every_host_row=False):
            raise AssertionError("tables were loaded")

    examined = examine(job_run)
    ranks = tuple(replace(rank, tables=Gone()) for rank in job_run.ranks)
    bare = type(examined)(
        run=replace(job_run, ranks=ranks),
        analyses=examined.analyses,
        report=examined.report,
        simulation=examined.simulation,
    )
    export_perfetto(bare, tmp_path / "x.pftrace", Choice(only="collectives"))
    trace = read_trace(tmp_path / "x.pftrace")
    names = {name for rank in (0, 1, 2, 3) for name in of_rank(trace, rank)}
    assert {"steps", "collectives"} <= names
    assert not any(name.startswith(("stream", "CPU thread")) for name in names)
    check_arrows(job_run, trace)


def test_only_gpu_leaves_out_the_threads(job_run, tmp_path):
    _, trace = exported(job_run, tmp_path, only="gpu")
    names = set(of_rank(trace, 0))
    assert any(name.startswith("stream") for name in names)
    assert not any(name.startswith("CPU thread") for name in names)


def test_a_rank_or_step_that_is_not_there_is_a_wrong_option(job_run, tmp_path):
    with pytest.raises(UsageError, match=r"--ranks 7-8: the run has traces of ranks 0-3"):
        exported(job_run, tmp_path, ranks=frozenset({0, 7, 8}))
    with pytest.raises(UsageError, match=r"--steps 99: the ranks recorded steps 10-14"):
        exported(job_run, tmp_path, steps=frozenset({99}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            InputError("rank1.json", expected="a trace", found="nothing"),
            "Rank 1 is incomplete: rank1.json: expected: a trace found: nothing",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "activity.parquet"),
            "Rank 1 is incomplete: [Errno 2] No such file or directory: 'activity.parquet'",
        ),
    ],
)
def test_a_rank_whose_tables_are_gone_is_named(job_run, tmp_path, error, said):
    class Gone:
        def load(self, *, every_host_row=False):
            raise error

    examined = examine(job_run)
    ranks = tuple(
        replace(rank, tables=Gone()) if rank.rank == 1 else rank for rank in job_run.ranks
    )
    broken = type(examined)(
        run=replace(job_run, ranks=ranks),
        analyses=examined.analyses,
        report=examined.report,
        simulation=examined.simulation,
    )
    written = export_perfetto(broken, tmp_path / "x.pftrace")
    assert said in written.notes
    trace = read_trace(tmp_path / "x.pftrace")
    assert any(name.startswith("stream") for name in of_rank(trace, 2))
    assert "collectives" in of_rank(trace, 1)


def test_kinds_of_collectives_are_named(job_run, tmp_path):
    _, trace = exported(job_run, tmp_path, only="collectives")
    labels = {kind.label for kind in CollectiveKind}
    names = {s.name.split()[0] for s in trace.slices if s.category == "collective"}
    assert names <= labels
