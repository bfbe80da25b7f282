"""Hangs of every class with their answers written out, and the two that were published."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.ingest.flight.recorder import parse_flight
from distprof.run.records import FlightDump
from distprof.sections.ending import EndingLine
from distprof.terms import Confidence
from distprof.verbs.hang import HangEvidence, HangKind, HangReport, HangState
from distprof.verbs.hang.measure import diagnose
from tests.flight_jobs import GPU_ERROR, LOCK_GIL, MS, START_NS, diagnosed, dump, job, message, op

TIMEOUT = EndingLine(rank=0, file="a.log", line=1, about="timeout", text="Watchdog caught ...")


def published(folder: Any) -> tuple[FlightDump, ...]:
    return tuple(
        parse_flight((folder / f"_dump_{rank}").read_bytes(), rank=rank, source=f"_dump_{rank}")
        for rank in range(16)
    )


def of(dumps: tuple[FlightDump, ...]) -> HangReport:
    return diagnose(HangEvidence(source="dumps", dumps=dumps), version="0")


def done(upto: int, **fields: Any) -> list[dict[str, Any]]:
    """Collectives 1 to ``upto``, all completed."""
    return [op(seq, **fields) for seq in range(1, upto + 1)]


def waiting(seq: int, **fields: Any) -> dict[str, Any]:
    return op(seq, state="scheduled", **fields)


@pytest.mark.parametrize(
    ("folder", "missing", "seq"),
    [(GPU_ERROR, (12,), 20537), (LOCK_GIL, (9, 14), 45265)],
    ids=lambda value: getattr(value, "name", None),
)
def test_published_hangs_are_attributed_as_published(
    folder: Any, missing: tuple[int, ...], seq: int
) -> None:
    """``reference.txt`` next to the dumps: group, operation and missing ranks."""
    row = (folder / "reference.txt").read_text().splitlines()[1]
    group, description, name, _, dtype, ranks = (part.strip() for part in row.split("|"))
    found = of(published(folder))
    operation = found.operation
    assert found.state is HangState.STUCK
    assert found.kind is HangKind.NEVER_LAUNCHED
    assert operation is not None
    assert (operation.group, f"{operation.description},0") == (group, description)
    assert (operation.name, operation.dtype, operation.seq) == (name, dtype, seq)
    assert ",".join(map(str, operation.missing)) == ranks
    assert found.roots[0].ranks == operation.missing == missing


@pytest.mark.parametrize("folder", [GPU_ERROR, LOCK_GIL], ids=lambda folder: folder.name)
def test_every_injected_fault_is_a_root(folder: Any) -> None:
    """The publisher's conclusion names one of two device errors, ``fault_injection.log`` both."""
    injected = re.search(r"Fault ranks: \[(.*)\]", (folder / "fault_injection.log").read_text())
    assert injected is not None
    assert of(published(folder)).culprits == tuple(map(int, injected[1].split(",")))


def test_the_second_injected_device_error_is_named_too() -> None:
    """Rank 14's GPU failed as well: its CPU continued, so only completion shows it."""
    found = of(published(GPU_ERROR))
    assert any("12,14 did not finish all_to_all 20530" in why for why in found.why)
    second = found.roots[1]
    assert (second.ranks, second.operation.seq) == ((14,), 20530)
    assert "all_to_all 20530" in found.verdict
    assert "not on rank 14" in found.verdict


def test_a_ring_that_holds_nothing_means_a_host_that_stopped() -> None:
    found = of(published(LOCK_GIL))
    assert any("ring of ranks 9,14 holds nothing in flight" in why for why in found.why)


def test_never_launched() -> None:
    """GIVEN four ranks of which rank 2 launched 5 and the others 6 THEN rank 2 is missing in 6."""
    ranks = {rank: [*done(5), waiting(6)] for rank in range(4)} | {2: done(5)}
    found = diagnosed(job(ranks))
    assert (found.kind, found.culprits) == (HangKind.NEVER_LAUNCHED, (2,))
    assert found.operation is not None
    assert (found.operation.seq, found.operation.launched) == (6, (0, 1, 3))
    assert found.verdict == (
        "Stuck: rank 2 never launched all_reduce 6 of default_pg, and ranks 0-1,3 wait."
    )
    assert found.confidence is Confidence.INFERRED


def test_a_log_that_agrees_makes_it_measured() -> None:
    ranks = {0: [*done(5), waiting(6)], 1: done(5)}
    found = diagnosed(job(ranks), log_lines=(TIMEOUT,))
    assert found.confidence is Confidence.MEASURED


def test_launched_but_not_started() -> None:
    """On rank 1 something before it blocks the stream."""
    ranks = {
        0: [*done(5), op(6, state="started")],
        1: [*done(5), waiting(6)],
        2: [*done(5), op(6, state="started")],
    }
    found = diagnosed(job(ranks), log_lines=(TIMEOUT,))
    assert (found.kind, found.culprits) == (HangKind.LAUNCHED_NOT_STARTED, (1,))


def test_started_everywhere_and_finished_nowhere() -> None:
    ranks = {rank: [*done(5), op(6, state="started")] for rank in range(3)}
    found = diagnosed(job(ranks), log_lines=(TIMEOUT,))
    assert (found.kind, found.culprits) == (HangKind.STARTED_NOT_FINISHED, ())
    assert "network or GPU" in found.verdict


def test_finished_on_some_ranks_only() -> None:
    ranks = {0: done(6), 1: [*done(5), waiting(6)], 2: done(6)}
    found = diagnosed(job(ranks), log_lines=(TIMEOUT,))
    assert (found.kind, found.culprits) == (HangKind.LAUNCHED_NOT_FINISHED, (1,))


def test_under_way_everywhere_is_what_a_running_job_looks_like() -> None:
    ranks = {rank: [*done(5), waiting(6), waiting(7)] for rank in range(3)}
    found = diagnosed(job(ranks))
    assert (found.state, found.kind, found.culprits) == (HangState.IN_FLIGHT, None, ())


def test_what_waits_while_the_hosts_go_on_for_a_minute_is_stuck() -> None:
    ranks = {rank: [*done(5), waiting(6), waiting(7, at_ms=60_000)] for rank in range(3)}
    assert diagnosed(job(ranks)).state is HangState.STUCK


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        ({"kind": "all_gather"}, HangKind.KIND_MISMATCH),
        ({"elements": 1000}, HangKind.SIZE_MISMATCH),
        ({"dtype": "BFloat16"}, HangKind.DTYPE_MISMATCH),
    ],
)
def test_mismatches_name_the_odd_rank_and_what_it_did(odd: dict[str, Any], kind: HangKind) -> None:
    ranks = {rank: [*done(5), waiting(6)] for rank in range(4)} | {3: [*done(5), waiting(6, **odd)]}
    found = diagnosed(job(ranks))
    assert (found.kind, found.culprits) == (kind, (3,))
    assert found.operation is not None
    assert found.operation.others[0].startswith("rank 3 launched nccl:")


def test_two_ranks_that_disagree_are_both_named() -> None:
    found = diagnosed(job({0: [waiting(1)], 1: [waiting(1, kind="broadcast")]}))
    assert (found.kind, found.culprits) == (HangKind.KIND_MISMATCH, (0, 1))


def test_a_rank_that_skipped_an_operation_shows_as_another_kind() -> None:
    """All later ones are shifted by one; the first is what counts."""
    usual = [*done(3), waiting(4, kind="all_gather"), waiting(5), waiting(6, kind="broadcast")]
    skipped = [*done(3), waiting(4), waiting(5, kind="broadcast")]
    found = diagnosed(job({0: usual, 1: usual, 2: skipped}))
    assert (found.kind, found.culprits) == (HangKind.KIND_MISMATCH, (2,))
    assert found.operation is not None
    assert found.operation.seq == 4


@pytest.mark.parametrize("kind", ["all_to_all", "all_gather", "gather", "scatter"])
def test_sizes_that_may_differ_are_no_mismatch(kind: str) -> None:
    ranks = {r: [*done(5), waiting(6, kind=kind, elements=100 + r)] for r in range(3)}
    assert diagnosed(job(ranks)).state is HangState.IN_FLIGHT


def test_who_waits_himself_is_not_to_blame() -> None:
    """Rank 1 lacks an operation of group 2 because it waits for rank 0 in group 1."""
    groups: dict[int, dict[str, list[int]]] = {
        0: {"1": [0, 1]}, 1: {"1": [0, 1], "2": [1, 2]}, 2: {"2": [1, 2]},
    }  # fmt: skip
    entries = {
        0: done(5, group="1"),
        1: [*done(5, group="1"), *done(3, group="2"), waiting(6, group="1", at_ms=10)],
        2: [*done(3, group="2"), waiting(4, group="2", at_ms=9)],
    }
    found = diagnosed({rank: dump(entries[rank], groups[rank]) for rank in range(3)})
    assert found.culprits == (0,)
    assert found.operation is not None
    assert found.operation.group == "1"
    assert {position.rank: position.waits_for for position in found.ranks} == {
        0: (), 1: (0,), 2: (1,),
    }  # fmt: skip


def test_ranks_that_wait_for_each_other_are_a_circle() -> None:
    """Rank 0 waits in group 1 and rank 1 in group 2: launched in different orders."""
    groups = {"1": [0, 1], "2": [0, 1]}
    found = diagnosed({rank: dump([waiting(1, group=f"{rank + 1}")], groups) for rank in (0, 1)})
    assert (found.kind, found.culprits) == (HangKind.MUTUAL_WAIT, (0, 1))


def test_a_rank_without_a_dump_is_the_suspect_where_all_others_wait() -> None:
    found = diagnosed(job({rank: [*done(5), waiting(6)] for rank in (0, 2, 3)}, world=4))
    assert (found.kind, found.culprits) == (HangKind.NEVER_LAUNCHED, (1,))
    assert found.missing_dumps == (1,)
    assert found.operation is not None
    assert (found.operation.missing, found.operation.unknown) == ((), (1,))


def test_a_rank_that_dumped_and_lags_comes_before_one_that_left_none() -> None:
    found = diagnosed(job({0: [*done(5), waiting(6)], 2: done(5)}, world=4))
    assert found.culprits == (2,)
    assert any("Ranks 1,3 left no dump" in text for text in found.alternatives)


def pairs(*, late: tuple[int, ...], world: int = 6) -> dict[int, Any]:
    """A job of pairs (0,1), (2,3), …, each a group; the ``late`` ranks launched one fewer."""
    groups = {str(1 + rank // 2): [rank, rank + 1] for rank in range(0, world, 2)}
    dumps = {}
    for rank in range(world):
        group = str(1 + rank // 2)
        entries = done(5, group=group)
        if rank not in late:
            entries.append(waiting(6, group=group, at_ms=6 + rank))
        dumps[rank] = dump(entries, groups)
    return dumps


def test_independent_culprits_are_all_named_with_their_operation() -> None:
    """GIVEN three groups of two and two ranks that stopped THEN both, each in its own group."""
    found = diagnosed(pairs(late=(1, 4)))
    assert found.culprits == (1, 4)
    told = [(root.ranks, root.operation and root.operation.group) for root in found.roots]
    assert told == [((1,), "1"), ((4,), "3")]
    assert found.operation == found.roots[0].operation
    assert "rank 1 never launched all_reduce 6 of GROUP_1" in found.verdict
    assert "rank 4 never launched all_reduce 6 of GROUP_3" in found.verdict
    assert any("rank 1" in step for step in found.next_steps)
    assert any("rank 4" in step for step in found.next_steps)


def test_two_roots_of_one_web_of_waiting_are_both_named() -> None:
    """Rank 0 waits for 1 in one group and for 2 in another: neither waits for anybody."""
    groups = {"1": [0, 1], "2": [0, 2]}
    dumps = {
        0: dump(
            [
                *done(5, group="1"),
                *done(5, group="2"),
                waiting(6, group="1"),
                waiting(6, group="2"),
            ],
            groups,
        ),
        1: dump(done(5, group="1"), groups),
        2: dump(done(5, group="2"), groups),
    }
    found = diagnosed(dumps)
    assert found.culprits == (1, 2)
    assert [root.ranks for root in found.roots] == [(1,), (2,)]


def test_who_waits_for_a_message_is_no_further_root() -> None:
    """Rank 3 lags because it waits for a message: only rank 1 is a root."""
    dumps = pairs(late=(1, 3), world=4)
    groups = {"1": [0, 1], "2": [2, 3], "9": [1, 3]}
    dumps[3] = dump([*done(5, group="2"), message("recv 1<-0", group="9", at_ms=5)], groups)
    found = diagnosed(dumps)
    assert found.culprits == (1,)
    assert len(found.roots) == 1


def test_a_circle_and_a_lagging_rank_elsewhere_are_two_roots() -> None:
    groups = {"1": [0, 1], "2": [0, 1], "3": [2, 3]}
    dumps = {rank: dump([waiting(1, group=f"{rank + 1}")], groups) for rank in (0, 1)}
    dumps |= {2: dump([*done(5, group="3"), waiting(6, group="3", at_ms=90)], groups)}
    dumps |= {3: dump(done(5, group="3"), groups)}
    found = diagnosed(dumps)
    assert [(root.kind, root.ranks) for root in found.roots] == [
        (HangKind.MUTUAL_WAIT, (0, 1)),
        (HangKind.NEVER_LAUNCHED, (3,)),
    ]


def test_mismatches_of_separate_groups_are_separate_roots() -> None:
    dumps = pairs(late=(1,), world=2) | {
        rank: dump(
            [*done(5, group="2"), waiting(6, group="2", elements=1000 if rank == 4 else 8)],
            {"2": [2, 3, 4]},
        )
        for rank in (2, 3, 4)
    }
    found = diagnosed(dumps)
    assert {(root.kind, root.ranks) for root in found.roots} == {
        (HangKind.NEVER_LAUNCHED, (1,)),
        (HangKind.SIZE_MISMATCH, (4,)),
    }


def test_a_rank_without_a_dump_is_a_suspect_by_default() -> None:
    """Rank 2 lags in one group, but waits in another for rank 3, which left no dump."""
    groups = {"1": [0, 1, 2], "2": [2, 3]}
    dumps = {
        0: dump([*done(5, group="1"), waiting(6, group="1")], groups),
        1: dump([*done(5, group="1"), waiting(6, group="1")], groups),
        2: dump([*done(5, group="1"), waiting(1, group="2", at_ms=5)], groups),
    }
    found = diagnosed(dumps, world_size=4)
    assert found.culprits == (3,)
    assert found.roots[0].has_dump is False
    assert "rank 3 left no dump" in found.verdict


def test_a_missing_dump_is_suspect_next_to_a_culprit_that_dumped() -> None:
    found = diagnosed(job({0: [*done(5), waiting(6)], 2: done(5)}, world=4))
    assert (found.culprits, found.suspects) == ((2,), (1, 3))
    assert "Ranks 1,3 left no dump and are also suspects." in found.verdict
    assert any("Ranks 1,3" in step or "ranks 1,3" in step for step in found.next_steps)


def test_operations_unfinished_in_separate_groups_are_separate_roots() -> None:
    dumps = {
        rank: dump(
            [
                *done(5, group=str(1 + rank // 2)),
                op(6, group=str(1 + rank // 2), state="scheduled" if rank in (1, 2) else "started"),
            ],
            {"1": [0, 1], "2": [2, 3]},
        )
        for rank in range(4)
    }
    found = diagnosed(dumps, log_lines=(TIMEOUT,))
    assert [(root.kind, root.ranks) for root in found.roots] == [
        (HangKind.LAUNCHED_NOT_STARTED, (1,)),
        (HangKind.LAUNCHED_NOT_STARTED, (2,)),
    ]


def test_status_alone_tells_who_lags() -> None:
    """Dumps without entries: only the recorder's count of each group."""

    def status(latest: int) -> dict[str, Any]:
        return {"0": {"last_enqueued_collective": latest, "last_completed_collective": 7}}

    dumps = {rank: dump([], {"0": [0, 1, 2]}, pg_status=status(9)) for rank in range(3)}
    dumps[1] = dump([], {"0": [0, 1, 2]}, pg_status=status(7))
    found = diagnosed(dumps)
    assert found.culprits == (1,)
    assert found.operation is not None
    assert (found.operation.seq, found.operation.name) == (8, "")


def test_a_message_that_is_never_sent() -> None:
    dumps = job({0: done(3), 1: [*done(3), message("recv 1<-0", at_ms=9)]})
    found = diagnosed(dumps)
    assert (found.kind, found.culprits) == (HangKind.NEVER_LAUNCHED, (0,))
    assert found.operation is not None
    assert (found.operation.seq, found.operation.launched) == (None, (1,))


def test_messages_posted_on_both_sides_are_no_hang() -> None:
    found = diagnosed(
        job({0: [*done(3), message("send 0->1")], 1: [*done(3), message("recv 1<-0")]})
    )
    assert found.state is not HangState.STUCK


def test_rings_that_have_wrapped_are_compared_by_number() -> None:
    """Rank 0's ring begins later than rank 1's; before that nothing is said."""
    ranks = {0: [op(seq) for seq in range(90, 101)], 1: [op(seq) for seq in range(70, 101)]}
    assert diagnosed(job(ranks)).state is HangState.NO_HANG


def test_a_gap_in_time_between_dumps_is_no_hang() -> None:
    """Rank 0 has completed what rank 1 seems not to have launched: it launched it later."""
    found = diagnosed(job({0: done(50), 1: done(20)}))
    assert found.state is HangState.NO_HANG
    assert "at different times" in found.why[0]


def test_the_root_of_a_broadcast_may_be_done_early() -> None:
    found = diagnosed(job({0: done(6, kind="broadcast"), 1: done(5, kind="broadcast")}))
    assert (found.state, found.culprits) == (HangState.STUCK, (1,))


def test_a_dump_written_right_after_the_operation_is_no_hang() -> None:
    dumps = diagnosed_written(START_NS + 6 * MS + 100 * MS)
    assert dumps.state is HangState.IN_FLIGHT
    assert diagnosed_written(START_NS + 600_000 * MS).state is HangState.STUCK


def test_a_message_of_a_rank_that_has_no_dump_is_diagnosed() -> None:
    """As in a damaged dump: rank 1 tells of a message that rank 0 sends."""
    found = diagnosed(job({1: [*done(3), message("send 0->1", at_ms=9)]}))
    assert found.state is HangState.STUCK


def diagnosed_written(at_ns: int) -> HangReport:

    from tests.flight_jobs import parsed

    dumps = parsed(job({0: [*done(5), waiting(6)], 1: done(5)}))
    aged = tuple(replace(item, written_ns=at_ns) for item in dumps)
    return of(aged)


def test_a_healthy_job_has_a_cadence() -> None:
    ranks = {rank: [op(seq, at_ms=20 * seq) for seq in range(1, 11)] for rank in range(3)}
    found = diagnosed(job(ranks))
    assert found.state is HangState.NO_HANG
    (cadence,) = found.cadence
    assert (cadence.count, cadence.period_ns, cadence.longest_ns) == (30, 20 * MS, 20 * MS)


def test_gloo_tells_no_completion_and_still_who_lags() -> None:
    """Its entries stay scheduled, and are retired even when they failed."""

    def launched(upto: int) -> list[dict[str, Any]]:
        return [
            op(seq, library="gloo", state="scheduled", retired=True) for seq in range(1, upto + 1)
        ]

    found = diagnosed(job({0: launched(96), 1: launched(95), 2: launched(96)}))
    assert (found.state, found.culprits) == (HangState.STUCK, (1,))
    assert diagnosed(job({r: launched(96) for r in range(3)})).state is HangState.NO_HANG


def test_gloo_without_a_dump_is_a_hang_only_where_something_else_tells_so() -> None:
    ranks = {rank: [op(1, library="gloo", state="scheduled")] for rank in (0, 2)}
    assert diagnosed(job(ranks, world=3)).state is HangState.NO_HANG
    found = diagnosed(job(ranks, world=3), log_lines=(TIMEOUT,))
    assert (found.state, found.culprits) == (HangState.STUCK, (1,))


def test_a_rank_that_is_known_to_have_died_is_said_to() -> None:
    ranks = {rank: [*done(5), waiting(6)] for rank in (0, 2)}
    found = diagnosed(job(ranks, world=3), failed={1: "its process ended by SIGKILL"})
    assert found.culprits == (1,)
    assert "SIGKILL" in found.verdict


def test_groups_that_share_a_name_are_kept_apart_by_their_members() -> None:
    """After a split, ranks 0,1 and 2,3 both have a group named 5."""
    dumps = {
        rank: dump([*done(5 if rank < 2 else 9, group="5")], {"5": [0, 1] if rank < 2 else [2, 3]})
        for rank in range(4)
    }
    found = diagnosed(dumps)
    assert found.state is HangState.NO_HANG
    assert sorted(group.ranks for group in found.groups) == [(0, 1), (2, 3)]


def test_nothing_at_all_is_no_hang() -> None:
    assert diagnosed({0: dump([], {})}).state is HangState.NO_HANG


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(5)), odd=st.integers(0, 4))
def test_renumbering_ranks_renumbers_the_answer(order: list[int], odd: int) -> None:
    ranks = {rank: [*done(5), waiting(6)] for rank in range(5)} | {odd: done(5)}
    renumbered = {order[rank]: entries for rank, entries in ranks.items()}
    assert diagnosed(job(renumbered)).culprits == (order[odd],)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_order_of_entries_and_dumps_does_not_matter(data: st.DataObject) -> None:
    dumps = job({0: [*done(9), waiting(10)], 1: [*done(9), waiting(10)], 2: done(9)})
    expected = diagnosed(dumps)
    for content in dumps.values():
        content["entries"] = data.draw(st.permutations(content["entries"]))
    shuffled = dict(data.draw(st.permutations(sorted(dumps.items()))))
    assert diagnosed(shuffled) == expected


@settings(max_examples=25, deadline=None)
@given(lost=st.sets(st.sampled_from([8, 10, 11, 12, 13, 15, *range(8)]), max_size=12))
def test_losing_dumps_of_others_does_not_change_who_is_missing(lost: set[int]) -> None:
    """As long as one of those that wait in the group is left."""
    left = tuple(item for item in published(LOCK_GIL) if item.rank not in lost)
    if not {8, 10, 11, 12, 13, 15} - lost:
        return
    found = of(left)
    assert found.state is HangState.STUCK
    assert set(found.culprits) & {9, 14}


@settings(max_examples=25, deadline=None)
@given(shift=st.lists(st.integers(-(10**9), 10**9), min_size=3, max_size=3))
def test_clocks_of_ranks_may_differ(shift: list[int]) -> None:
    ranks = {0: [*done(5), waiting(6)], 1: [*done(5), waiting(6)], 2: done(5)}
    dumps = job(ranks)
    for rank, content in dumps.items():
        for entry in content["entries"]:
            entry["time_created_ns"] += shift[rank]
    found = diagnosed(dumps)
    assert (found.culprits, found.operation and found.operation.seq) == ((2,), 6)


def test_sentences_end_and_are_no_format_strings() -> None:
    found = of(published(GPU_ERROR))
    for text in (found.verdict, *found.why, *found.alternatives, *found.next_steps):
        assert re.match(r"[A-Z].*\.$", text), text
        assert "{" not in text


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_damaged_dumps_still_give_an_answer(data: st.DataObject) -> None:
    """Any field may hold anything: what is left is used, and the answer can be written."""
    odd = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5)
    odd |= st.sampled_from(["nccl:send 0->9", "nccl:recv 1<-0", "[0]", [[2**62, 2**62]], []])
    dumps = job({rank: [*done(3), waiting(4)] for rank in range(3)} | {1: done(3)})
    for _ in range(data.draw(st.integers(1, 5))):
        content = dumps[data.draw(st.integers(0, 2))]
        entry = data.draw(st.sampled_from(content["entries"]))
        part = data.draw(st.sampled_from([entry, content["pg_config"]["0"]]))
        part[data.draw(st.sampled_from(sorted(part)))] = data.draw(odd)
    found = diagnosed(dumps)
    assert msgspec.json.decode(msgspec.json.encode(found), type=HangReport) == found
