"""What a CPU did instead of launching, on time lines whose answers are evident. Times in ms."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.intervals import EMPTY, Intervals
from distprof.run.tables import join_launches
from distprof.sections.context import PauseStats
from distprof.sections.idle.cpu_pauses import PauseKind, callers_of, cpu_pauses
from tests.builders import RankBuilder

MS = 1_000_000
WORKER = "100/200"


def busy(*spans: tuple[int, int]) -> RankBuilder:
    """A CPU that launches one kernel per millisecond in each span, and nothing else."""
    rank = RankBuilder()
    for first, last in spans:
        for at in range(first, last):
            start = at * MS
            rank.kernel("gemm", start + 100, start + MS, launched=(start, start + 900_000))
    return rank


def pauses(
    rank: RankBuilder, *, collections: Intervals = EMPTY, window: tuple[int, int] = (0, 100)
) -> Sequence[tuple[str, str, float, float]]:
    """Kind, name, start and end of each pause."""
    tables = rank.tables()
    launches = join_launches(tables.activity["correlation"], tables.host)
    windows = Intervals.of((window[0] * MS, window[1] * MS))
    found = cpu_pauses(tables, launches, collections, windows)
    return [
        (PauseKind(kind).name, found.names[name], round(start / MS), round(end / MS))
        for kind, name, start, end in zip(
            found.kind, found.name, found.start, found.end, strict=True
        )
    ]


def test_a_cpu_that_launches_all_the_time_has_no_pause():
    assert pauses(busy((0, 100))) == []


def test_a_call_that_waits_for_the_gpu_is_a_pause_of_that_name():
    rank = busy((0, 40), (60, 100)).sync("cudaStreamSynchronize", 40 * MS, 60 * MS)
    assert pauses(rank) == [("SYNC", "cudaStreamSynchronize", 40, 60)]


def test_freeing_memory_is_a_pause_of_memory_although_it_waits_for_the_gpu():
    rank = busy((0, 40), (60, 100)).sync("cudaFree", 40 * MS, 60 * MS)
    assert pauses(rank) == [("MEMORY", "cudaFree", 40, 60)]


def test_a_pause_that_begins_a_rounding_error_before_the_one_before_it_ended_is_a_pause():
    rank = busy((0, 40), (60, 100)).sync("cudaStreamSynchronize", 40 * MS, 44 * MS)
    rank.annotation("enumerate(DataLoader)#_Iter.__next__", 44 * MS - 20, 60 * MS)
    assert pauses(rank) == [("SYNC", "cudaStreamSynchronize", 40, 44), ("INPUT", "input", 44, 60)]


def test_a_collection_that_only_the_probes_saw_is_a_pause():
    found = pauses(busy((0, 40), (60, 100)), collections=Intervals.of((40 * MS, 60 * MS)))
    assert found == [("COLLECTION", "garbage collection", 40, 60)]


def test_a_range_of_the_program_names_a_stretch_without_launches():
    rank = busy((0, 40), (60, 100)).annotation("save_checkpoint", 39 * MS, 61 * MS)
    assert [one[:2] for one in pauses(rank)] == [("RANGE", "save_checkpoint")]


def test_the_shortest_range_that_covers_the_stretch_names_it():
    rank = busy((0, 40), (60, 100)).annotation("epoch_end", 30 * MS, 70 * MS)
    rank.annotation("write_metrics", 40 * MS, 60 * MS)
    assert [one[1] for one in pauses(rank)] == ["write_metrics"]


def test_a_range_that_is_the_whole_step_names_nothing():
    rank = busy((0, 40), (60, 100)).annotation("my_training_code", 0, 100 * MS)
    assert [one[0] for one in pauses(rank)] == ["PYTHON"]


def test_ranges_that_divide_each_step_name_nothing():
    rank = busy((0, 40), (60, 100)).annotation("ProfilerStep#3", 39 * MS, 61 * MS)
    assert [one[0] for one in pauses(rank)] == ["PYTHON"]


def test_a_short_stretch_without_a_name_is_no_pause():
    assert pauses(busy((0, 40), (45, 100))) == []


def test_what_another_thread_does_is_no_pause_of_the_launching_one():
    rank = busy((0, 100)).sync("cudaStreamSynchronize", 40 * MS, 60 * MS, thread=WORKER)
    assert pauses(rank) == []


def test_a_range_leaves_what_is_known_otherwise_to_it():
    rank = busy((0, 40), (60, 100)).annotation("evaluate", 39 * MS, 61 * MS)
    rank.sync("cudaDeviceSynchronize", 40 * MS, 50 * MS)
    assert [(one[0], one[2], one[3]) for one in pauses(rank)] == [
        ("SYNC", 40, 50),
        ("RANGE", 50, 60),
    ]


def named(rank: RankBuilder) -> str:
    """What ran while the CPU launched nothing from 40 to 60 ms."""
    tables = rank.tables()
    launches = join_launches(tables.activity["correlation"], tables.host)
    window = Intervals.of((0, 100 * MS))
    found = cpu_pauses(tables, launches, EMPTY, window)
    stats = PauseStats(kind="python", name="Python", count=1, blocked_ns=20 * MS, idle_ns=20 * MS)
    (one,) = callers_of((stats,), found, window, lambda: tables.host)
    return one.caller


def test_code_outside_of_pytorch_has_no_name():
    assert named(busy((0, 40), (60, 100))) == ""


def test_an_operator_that_runs_on_the_cpu_meanwhile_names_the_pause():
    rank = busy((0, 40), (60, 100)).operator("aten::_fused_adamw_", 41 * MS, 59 * MS)
    assert named(rank) == "aten::_fused_adamw_"


def test_the_innermost_operator_names_it():
    rank = busy((0, 40), (60, 100)).operator("aten::to", 40 * MS, 60 * MS)
    assert named(rank.operator("aten::copy_", 41 * MS, 58 * MS)) == "aten::copy_"


def test_an_operator_that_runs_for_a_part_only_does_not():
    assert named(busy((0, 40), (60, 100)).operator("aten::sort", 41 * MS, 50 * MS)) == ""


def test_an_operator_that_mostly_launches_does_not():
    assert named(busy((0, 40), (60, 100)).operator("aten::linear", 0, 100 * MS)) == ""


def test_compiling_is_named_whatever_its_phases_are_called():
    rank = busy((0, 40), (60, 100)).operator("entire_frame_compile", 40 * MS, 60 * MS)
    rank.operator("backend_compile", 41 * MS, 59 * MS)
    assert named(rank) == "torch.compile"
