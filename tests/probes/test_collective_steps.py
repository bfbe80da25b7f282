"""Which operations belong to which step, and which of them have a time at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from distprof_probes.probes.collective_steps import (
    MOST_PARTS,
    PATIENCE,
    CollectiveSteps,
    Dump,
    Window,
)
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.records import CollectivesRecord, GroupTimes

GOLDEN = Path(__file__).parents[1] / "golden" / "job" / "nccl-fsdp-2ranks-h100"
STEP_NS = 1_000
CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def entry(number: int, at_ns: int, **more: Any) -> dict[str, Any]:
    return {
        "record_id": number,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": at_ns,
        "duration_ms": 0.5,
        "retired": True,
        "is_p2p": False,
        "state": "completed",
        **more,
    }


def dump(entries: Sequence[dict[str, Any]]) -> Dump:
    text = json.dumps({"version": "2.10", "pg_config": CONFIG, "entries": entries})
    return msgspec.json.decode(text, type=Dump)


def taken(
    entries: Sequence[dict[str, Any]],
    steps: int = 1,
    *,
    asked_ns: int = 1 << 60,
    sorter: CollectiveSteps | None = None,
) -> list[CollectivesRecord]:
    sorter = sorter or CollectiveSteps()
    for step in range(steps):
        sorter.windows.append(Window(step, step * STEP_NS, (step + 1) * STEP_NS))
    return sorter.take(dump(entries), asked_ns=asked_ns)


def rows(entries: Sequence[dict[str, Any]]) -> tuple[GroupTimes, ...]:
    (record,) = taken(entries)
    return record.groups


def test_operations_belong_to_the_step_that_enqueued_them() -> None:
    entries = [entry(0, 0), entry(1, 999, duration_ms=0.25), entry(2, 1_000), entry(3, 2_500)]
    found = taken(entries, 2)
    assert [[group.total_ns for group in record.groups] for record in found] == [
        [(500_000, 250_000)],
        [(500_000,)],
    ]
    (group,) = found[0].groups
    assert (group.kind, group.num_ranks, group.first, group.num) == ("all", 4, 1, 2)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nccl:all_reduce", "all"),
        ("nccl:allreduce_coalesced", "all"),
        ("nccl:all_reduce_barrier", "all"),
        ("nccl:_all_gather_base", "all"),
        ("nccl:all_gather_into_tensor_coalesced", "all"),
        ("nccl:_reduce_scatter_base", "all"),
        ("nccl:reduce_scatter_tensor_coalesced", "all"),
        ("nccl:broadcast", "some"),
        ("nccl:reduce", "some"),
        ("nccl:all_to_all", "some"),
        ("nccl:gather", "some"),
        ("nccl:all_reduce_sparse", "some"),
        ("", "some"),
    ],
)
def test_only_collectives_that_all_members_leave_together_are_called_so(
    name: str, kind: str
) -> None:
    (group,) = rows([entry(0, 0, profiling_name=name)])
    assert group.kind == kind


def test_the_same_group_has_the_same_name_on_all_its_members_only() -> None:
    groups = {
        (name, ranks): _identity(name, ranks)
        for name in ("0", "tp")
        for ranks in ("[0, 1]", "[2, 3]")
    }
    assert len(set(groups.values())) == 4
    assert _identity("tp", "[0, 1]") == groups["tp", "[0, 1]"]


def _identity(name: str, ranks: str) -> str:
    sorter = CollectiveSteps()
    sorter.windows.append(Window(0, 0, STEP_NS))
    config = {name: {"ranks": ranks}}
    found = {"pg_config": config, "entries": [entry(0, 0, process_group=[name, "x"])]}
    (record,) = sorter.take(msgspec.convert(found, Dump), asked_ns=STEP_NS)
    return record.groups[0].group


def test_a_step_waits_until_its_operations_have_ended() -> None:
    sorter = CollectiveSteps()
    running = {"retired": False, "duration_ms": None}
    assert taken([entry(0, 0), entry(1, 10, **running)], sorter=sorter) == []
    (found,) = sorter.take(dump([entry(0, 0), entry(1, 10)]), asked_ns=1 << 60)
    assert (found.step, found.groups[0].num) == (0, 2)
    assert sorter.take(dump([entry(0, 0), entry(1, 10)]), asked_ns=1 << 60) == []


def test_a_step_that_ended_after_the_recorder_was_asked_waits() -> None:
    sorter = CollectiveSteps()
    entries = [entry(0, 0), entry(1, 1_500)]
    assert [found.step for found in taken(entries, 2, asked_ns=1_600, sorter=sorter)] == [0]
    assert [found.step for found in sorter.take(dump(entries), asked_ns=2_000)] == [1]


def test_an_operation_that_never_ends_does_not_hold_up_the_steps_after_it() -> None:
    stuck = entry(0, 5, retired=False, duration_ms=None)
    others = [entry(step, step * STEP_NS + 1) for step in range(1, PATIENCE + 1)]
    assert [found.step for found in taken([stuck, *others], PATIENCE)] == list(range(1, PATIENCE))
    found = taken([stuck, *others], PATIENCE + 1)
    assert [record.step for record in found] == list(range(PATIENCE + 1))
    assert (found[0].groups[0].num_untimed, found[0].groups[0].total_ns) == (1, ())


def test_a_step_that_the_ring_has_overwritten_in_part_is_lost_and_counted() -> None:
    sorter = CollectiveSteps()
    entries = [entry(number, 200 * number) for number in range(3, 15)]
    assert [found.step for found in taken(entries, 3, sorter=sorter)] == [1, 2]
    assert sorter.num_lost == 1


def test_without_timing_operations_are_counted_as_untimed() -> None:
    sorter = CollectiveSteps()
    (record,) = taken([entry(0, 0, duration_ms=None)], sorter=sorter)
    assert (record.groups[0].num_untimed, sorter.has_times) == (1, False)
    assert taken([]) == [CollectivesRecord(step=0)]


@pytest.mark.parametrize("broken", [-1.0, 1e30])
def test_a_duration_that_makes_no_sense_is_none(broken: float) -> None:
    (group,) = rows([entry(0, 0, duration_ms=broken), entry(1, 1)])
    assert (group.num_untimed, group.total_ns) == (1, (500_000,))


def test_messages_of_a_batch_have_the_time_of_the_batch() -> None:
    """torch records the messages without events, then the batch with them."""
    batch = {"p2p_seq_id": 7, "collective_seq_id": 3}
    inside = {**batch, "is_p2p": True, "retired": False, "duration_ms": None}
    (group,) = rows(
        [
            entry(0, 0, profiling_name="nccl:send 0->1", **inside),
            entry(1, 1, profiling_name="nccl:recv 0<-1", **inside),
            entry(2, 2, profiling_name="nccl:coalesced", **batch),
        ]
    )
    assert (group.kind, group.num, group.total_ns) == ("messages", 1, (500_000,))


def test_the_time_of_a_batch_of_collectives_is_not_believed() -> None:
    batch = {"collective_seq_id": 3}
    inside = {**batch, "retired": False, "duration_ms": None}
    (group,) = rows(
        [entry(0, 0, **inside), entry(1, 1, profiling_name="nccl:ALLREDUCE_coalesced", **batch)]
    )
    assert (group.kind, group.num_untimed) == ("some", 1)


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=500))
def test_no_time_is_lost_where_many_operations_share_a_part(durations_us: list[int]) -> None:
    (group,) = rows(
        [entry(number, number, duration_ms=us / 1e3) for number, us in enumerate(durations_us)]
    )
    assert sum(group.total_ns) == 1_000 * sum(durations_us)
    assert len(group.total_ns) <= MOST_PARTS
    assert group.num == len(durations_us)
    if len(durations_us) > MOST_PARTS:
        assert group.last_ns[-1] == 1_000 * durations_us[-1]
        assert len(group.last_ns) == len(group.total_ns)
    else:
        assert group.last_ns == ()


def test_a_real_recording_of_nccl_is_sorted_into_its_steps() -> None:
    """Of FSDP on two H100, without timing: steps from the step log, by the same clock."""
    text = (GOLDEN / "rank00000" / "flight.json").read_bytes()
    real = msgspec.json.decode(text, type=Dump)
    lines = (GOLDEN / "rank00000" / "steps.jsonl").read_text().splitlines()[1:]
    sorter = CollectiveSteps()
    for line in map(json.loads, lines):
        sorter.windows.append(Window(line["step"], line["start_ns"], line["end_ns"]))
    retired = [each for each in real.entries if each.retired]
    found = sorter.take(Dump(retired, real.pg_config), asked_ns=1 << 62)
    nums = [sum(group.num for group in record.groups) for record in found]
    assert sum(nums) > 20
    assert {group.num_ranks for record in found for group in record.groups} == {2}
    assert {group.kind for record in found for group in record.groups} <= {"all", "some"}
    assert sorter.has_times is False
