"""Tables of damaged or hostile traces: joined as far as they go, never a crash."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distprof.ingest.assemble import assemble_run
from distprof.join.waits import last_start_on_own_clock
from distprof.run.run import Device
from distprof.terms import CollectiveKind
from tests.simulator.by_hand import collective, group, rank_by_hand

FAR = 2**61
times = st.one_of(st.integers(0, 1000), st.integers(0, FAR))
texts = st.sampled_from(["", "0", "0-1", "1-0", "0-3", "x", "7,1", "\x1b[31m", "0-99999999"])


@st.composite
def rows(draw):
    start = draw(times)
    return collective(
        start,
        start + draw(times),
        enqueue_ns=draw(st.one_of(st.just(-1), times)),
        kind=draw(st.sampled_from(list(CollectiveKind))),
        group=draw(texts),
        group_desc=draw(texts),
        group_ranks=draw(texts),
        group_size=draw(st.integers(-1, 5)),
        seq=draw(st.one_of(st.integers(-1, 4), st.just(2**63 - 1))),
        bytes=draw(st.sampled_from([-1, 0, 8, 2**63 - 1])),
        peer=draw(st.integers(-1, 4)),
    )


@st.composite
def ranks(draw, number):
    table = sorted(draw(st.lists(rows(), max_size=8)), key=lambda row: row["start_ns"])
    starts = sorted(draw(st.lists(times, max_size=3)))
    return rank_by_hand(
        number,
        table,
        [(draw(st.integers(-1, 3)), start, start + draw(times)) for start in starts],
        world_size=draw(st.sampled_from([None, 1, 2, 4, 1000, 2**62])),
        host=draw(st.sampled_from([None, "a", "b"])),
        device=Device(name="g", count=draw(st.sampled_from([None, 1, 2, 8]))),
        groups=tuple(draw(st.lists(st.builds(group, texts, st.integers(0, 3)), max_size=2))),
        has_epoch=draw(st.booleans()),
    )


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ranks=st.tuples(ranks(0), ranks(1), ranks(3)))
def test_any_tables_make_a_run(ranks):
    run = assemble_run("test", ranks)
    waits = last_start_on_own_clock(run.matches, run.clock, run.ranks)
    assert [len(waits[rank.rank]) for rank in run] == [len(rank.collectives) for rank in run]
    assert run.matches.num_matched <= len(run.matches.member_row)
    assert set(run.clock.residual_ns[run.clock.residual_ns < 0].tolist()) <= {-1}
