"""Laws that hold for any rank, whatever its trace: exact sums, and what must not matter."""

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from msgspec.structs import fields, replace

from distprof.run.tables import RankTables
from distprof.schema import ABSENT, Table
from distprof.sections.context import KernelSteps, LaunchBounds, MainLine, RankAnalysis
from distprof.terms import ActivityKind, CollectiveKind, IdleCause
from tests.builders import RankBuilder
from tests.sections.measured import measured, sync_calls

UNIT = 3_000  # so that calls of a few units last long enough to count as having waited
TIMES = st.integers(0, 60).map(lambda time: time * UNIT)
LENGTHS = st.integers(0, 15).map(lambda length: length * UNIT)
SPANS = st.tuples(TIMES, LENGTHS).map(lambda pair: (pair[0], pair[0] + pair[1]))
KINDS = st.sampled_from([ActivityKind.COMPUTATION, ActivityKind.COPY, ActivityKind.ANNOTATION])
WINDOWS = st.lists(TIMES, min_size=2, max_size=5, unique=True).map(
    lambda cuts: list(zip(sorted(cuts)[:-1], sorted(cuts)[1:], strict=True))
)


@st.composite
def ranks(draw: st.DrawFn) -> tuple[RankBuilder, list[int]]:
    """A rank of any events, and when the last member of each of its collectives started."""
    rank = RankBuilder()
    launch = 0
    for kind, span, stream in draw(
        st.lists(st.tuples(KINDS, SPANS, st.integers(7, 8)), max_size=8)
    ):
        launch += draw(st.integers(1, 9)) * UNIT
        launched = (launch, launch + UNIT) if draw(st.booleans()) else None
        rank.kernel(kind.name, *span, kind=kind, stream=stream, launched=launched)
    for span, is_p2p in draw(st.lists(st.tuples(SPANS, st.booleans()), max_size=4)):
        kind = CollectiveKind.SEND if is_p2p else CollectiveKind.ALL_REDUCE
        rank.comm("nccl", *span, kind=kind, record=draw(st.booleans()))
    for name in ("cudaStreamSynchronize", "distprof:input", "wait_tensor"):
        for span in draw(st.lists(SPANS, max_size=2)):
            rank.call(name, *span, category="annotation")
    waits = [draw(st.one_of(st.just(ABSENT), TIMES)) for _ in rank.collectives]
    return rank, waits


def shifted(table: Table, by: int) -> Table:
    names = [column.name for column in table.schema]
    columns = {}
    for name, column in zip(names, table.schema, strict=True):
        values = table.coded(name) if column.dtype == "category" else table[name]
        if name in ("start_ns", "end_ns"):
            values = values + by
        if name == "enqueue_ns":
            values = np.where(values == ABSENT, ABSENT, values + by)
        columns[name] = values
    return Table(table.schema, columns)


def comparable(analysis: RankAnalysis) -> dict:
    """An analysis as plain values, so that two can be compared."""
    plain = {}
    for field in fields(analysis):
        value = getattr(analysis, field.name)
        plain[field.name] = value.tolist() if isinstance(value, np.ndarray) else value
    start = analysis.window_start_ns[:1]
    for name in ("window_start_ns", "window_end_ns"):
        plain[name] = (getattr(analysis, name) - start).tolist() if len(start) else []
    return {
        **plain,
        "exposed": [column.tolist() for column in analysis.exposed],
        "idle_ns": {cause: ns.tolist() for cause, ns in analysis.idle_ns.items()},
        "line": _since_its_start(analysis.line),
        "kernel_steps": _by_name(analysis.kernel_steps),
    }


def _by_name(kernels: KernelSteps | None) -> dict | None:
    """Kernels as plain values; those of equal time may come in any order."""
    if kernels is None:
        return None
    columns = (kernels.count, kernels.total_ns, kernels.quartile_ns)
    return {
        name: [column[row].tolist() for column in columns] for row, name in enumerate(kernels.names)
    }


def _since_its_start(line: MainLine | None) -> dict | None:
    """A main line as plain values, times since its start."""
    if line is None:
        return None
    plain = {name: getattr(line, name) for name in MainLine.__struct_fields__}
    del plain["start_ns"]
    for name in ("wait_start_ns", "wait_end_ns"):
        plain[name] = plain[name] - line.start_ns
    bounds = plain.pop("bounds")
    plain |= {name: getattr(bounds, name) for name in LaunchBounds.__struct_fields__}
    return {name: np.asarray(values).tolist() for name, values in plain.items()}


# Exactness ----------------------------------------------------------------------------------------


@given(ranks(), WINDOWS)
def test_every_split_adds_up_exactly(rank_and_waits, windows):
    rank, waits = rank_and_waits
    analysis = measured(rank, windows=windows, wait_end=waits)
    for step in analysis.steps:
        parts = (step.computation_ns, step.exposed_comm_ns, step.exposed_copy_ns, step.idle_ns)
        assert sum(parts) == step.span_ns
        assert min(parts) >= 0
    waterfall = msgspec.structs.asdict(analysis.waterfall)
    del waterfall["rank"]
    assert waterfall.pop("span_ns") == sum(waterfall.values())
    assert min(waterfall.values()) >= 0
    exposed = sum(value for name, value in waterfall.items() if name in EXPOSED_COMM)
    assert exposed == analysis.overlap.exposed_comm_ns
    assert analysis.overlap.overlapped_ns + exposed == analysis.overlap.communication_ns


EXPOSED_COMM = {
    "exposed_transfer_ns",
    "exposed_wait_ns",
    "exposed_p2p_wait_ns",
    "exposed_comm_unsplit_ns",
}


@given(ranks(), WINDOWS)
def test_idle_causes_are_a_partition_of_the_idle_time(rank_and_waits, windows):
    rank, waits = rank_and_waits
    analysis = measured(rank, windows=windows, wait_end=waits)
    if analysis.idle is None:
        return
    idle = msgspec.structs.asdict(analysis.idle)
    causes = [
        idle[f"{cause}_ns"] for cause in ("input", "sync", "pause", "host", "comm_wait", "unknown")
    ]
    assert sum(causes) == idle["idle_ns"] == sum(step.idle_ns for step in analysis.steps)
    assert min(causes) >= 0
    assert sum(call.idle_ns for call in sync_calls(analysis)) == idle["sync_ns"]
    assert analysis.idle_ns[IdleCause.INPUT].sum() == idle["input_ns"]
    assert analysis.idle_ns[IdleCause.HOST].sum() == idle["host_ns"]


@st.composite
def host_driven_ranks(draw: st.DrawFn) -> RankBuilder:
    """A rank whose host launches, works, loads data and waits for the device, in turn."""
    rank, host, device = RankBuilder(), 0, 0
    what = st.sampled_from(["launch", "launch", "work", "load", "wait"])
    for action, length in draw(st.lists(st.tuples(what, st.integers(1, 40)), max_size=20)):
        begin = host
        if action == "launch":
            host += 2 * UNIT
            start = max(device, begin + UNIT)
            device = start + length * UNIT
            rank.kernel("gemm", start, device, launched=(begin, host))
        elif action == "wait":
            host = max(host, device) + 100
            rank.sync("cudaStreamSynchronize", begin, host)
        else:
            host += length * UNIT
            if action == "load":
                rank.annotation("distprof:input", begin, host)
    return rank


@settings(max_examples=300)
@given(host_driven_ranks())
def test_synchronising_calls_are_blamed_for_no_more_than_they_blocked(rank):
    analysis = measured(rank, windows=[(0, 10_000 * UNIT)])
    blocked = sum(call.blocked_ns for call in sync_calls(analysis))
    assert sum(call.idle_ns for call in sync_calls(analysis)) <= blocked


@settings(max_examples=300)
@given(host_driven_ranks())
def test_without_waiting_the_host_is_late_and_no_call_is_blamed(rank):
    """The same rank without its synchronising calls on record: what they took is the host's.

    Or another pause's, which ended in the same gap and was the shorter one.
    """
    window = [(0, 10_000 * UNIT)]
    told = measured(rank, windows=window).idle
    rank.host = [row for row in rank.host if row["name"] != "cudaStreamSynchronize"]
    untold = measured(rank, windows=window).idle
    if told is None or untold is None:
        return
    assert untold.sync_ns == 0
    at_end = told.unknown_ns - untold.unknown_ns  # calls after the last activity
    assert at_end >= 0
    loads = untold.input_ns + untold.pause_ns
    named = told.host_ns + told.sync_ns + told.input_ns + told.pause_ns
    assert untold.host_ns + loads == named + at_end
    if not loads:
        assert untold.host_ns == told.host_ns + told.sync_ns


@given(ranks(), WINDOWS)
def test_computation_is_what_a_bitmap_counts(rank_and_waits, windows):
    rank, waits = rank_and_waits
    bits = np.zeros(100, dtype=bool)
    for row in rank.activities:
        if row["kind"] == ActivityKind.COMPUTATION:
            bits[row["start_ns"] // UNIT : row["end_ns"] // UNIT] = True
    analysis = measured(rank, windows=windows, wait_end=waits)
    assert analysis.computation_ns.tolist() == [
        UNIT * int(bits[a // UNIT : b // UNIT].sum()) for a, b in windows
    ]


# What must not matter -----------------------------------------------------------------------------


@given(ranks(), WINDOWS, st.integers(0, 2 * 10**18))
def test_shifting_the_clock_changes_nothing(rank_and_waits, windows, shift):
    rank, waits = rank_and_waits
    tables = rank.tables()
    moved = RankTables(
        activity=shifted(tables.activity, shift),
        host=shifted(tables.host, shift),
        collectives=shifted(tables.collectives, shift),
        steps=tables.steps,
        has_host=tables.has_host,
    )
    late = measured(
        moved,
        windows=[(start + shift, end + shift) for start, end in windows],
        wait_end=[wait if wait == ABSENT else wait + shift for wait in waits],
    )
    assert comparable(late) == comparable(measured(tables, windows=windows, wait_end=waits))


@given(ranks(), WINDOWS, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(rank_and_waits, windows, random):
    rank, waits = rank_and_waits
    tables = rank.tables()
    activity_order, host_order = list(range(len(tables.activity))), list(range(len(tables.host)))
    random.shuffle(activity_order)
    random.shuffle(host_order)
    mixed = replace(
        tables,
        activity=tables.activity.take(np.array(activity_order, dtype=np.int64)),
        host=tables.host.take(np.array(host_order, dtype=np.int64)),
    )
    assert comparable(measured(mixed, windows=windows, wait_end=waits)) == comparable(
        measured(tables, windows=windows, wait_end=waits)
    )


@given(ranks(), WINDOWS)
def test_the_numbers_of_streams_do_not_matter(rank_and_waits, windows):
    rank, waits = rank_and_waits
    before = comparable(measured(rank, windows=windows, wait_end=waits))
    for row in rank.activities:
        row["stream"] = {7: 901, 8: 3, 20: 5}[row["stream"]]
    assert comparable(measured(rank, windows=windows, wait_end=waits)) == before


@given(ranks(), WINDOWS, TIMES)
def test_dividing_a_window_divides_its_measures(rank_and_waits, windows, cut):
    rank, waits = rank_and_waits
    divided = [
        part
        for start, end in windows
        for part in ([(start, cut), (cut, end)] if start < cut < end else [(start, end)])
    ]
    whole = measured(rank, windows=windows, wait_end=waits)
    parts = measured(rank, windows=divided, wait_end=waits)
    for unchanged in ("overlap", "axes", "waterfall", "idle", "cpu_pauses", "kernels"):
        assert getattr(parts, unchanged) == getattr(whole, unchanged)
    assert parts.exposed.ns.tolist() == whole.exposed.ns.tolist()
    assert parts.exposed.wait_ns.tolist() == whole.exposed.wait_ns.tolist()


# Refusals -----------------------------------------------------------------------------------------


def test_a_context_of_other_collectives_is_refused():
    with pytest.raises(ValueError, match="1 collectives"):
        measured(RankBuilder(4).comm("nccl", 0, 10), wait_end=[1, 2], axis=["dp"])


@settings(max_examples=20)
@given(ranks())
def test_an_analysis_is_the_same_twice(rank_and_waits):
    rank, waits = rank_and_waits
    once, twice = (measured(rank, wait_end=waits) for _ in range(2))
    assert comparable(once) == comparable(twice)
