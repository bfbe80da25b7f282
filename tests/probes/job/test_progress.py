from __future__ import annotations

import json
from pathlib import Path

import pytest
from distprof_probes.job import memory_killer
from distprof_probes.job.memory_killer import KillCounts, who_struck
from distprof_probes.job.progress import StepTail
from hypothesis import given
from hypothesis import strategies as st


def line(step: int, start_ns: int, end_ns: int, tokens: int | None = None) -> str:
    known = {} if tokens is None else {"tokens": tokens}
    return json.dumps({"step": step, "start_ns": start_ns, "end_ns": end_ns, **known}) + "\n"


def test_before_the_file_there_is_no_progress(tmp_path: Path) -> None:
    tail = StepTail(tmp_path / "steps.jsonl")
    assert not tail.read()
    assert (tail.last_step, tail.tokens_per_s) == (None, None)


def test_the_header_is_no_step(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text('{"schema": "distprof.steps/1", "rank": 0}\n')
    tail = StepTail(file)
    assert not tail.read()
    assert (tail.last_step, tail.num_broken) == (None, 0)


def test_each_read_takes_what_was_added(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text(line(0, 0, 2_000_000_000, tokens=100))
    tail = StepTail(file)
    assert tail.read()
    assert (tail.last_step, tail.ended_ns, tail.tokens_per_s) == (0, 2_000_000_000, 50.0)
    assert not tail.read()
    with file.open("a") as stream:
        stream.write(line(1, 2_000_000_000, 2_500_000_000))
    assert tail.read()
    assert (tail.last_step, tail.longest_ns, tail.tokens_per_s) == (1, 2_000_000_000, None)


@given(st.lists(st.integers(1, 40), max_size=30))
def test_progress_is_the_same_however_the_lines_arrive(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    content = "".join(line(n, n * 10, n * 10 + 10) for n in range(8)) + "not json\n" + '{"step": 8'
    file = tmp_path_factory.mktemp("tail") / "steps.jsonl"
    file.touch()
    tail = StepTail(file)
    done = 0
    for size in [*cuts, len(content)]:
        with file.open("a") as stream:
            stream.write(content[done : done + size])
        done = min(done + size, len(content))
        tail.read()
    assert (tail.last_step, tail.num_broken, tail.longest_ns) == (7, 1, 10)


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        (KillCounts(group=1, machine=5), KillCounts(group=2, machine=6), "group"),
        (KillCounts(group=1, machine=5), KillCounts(group=1, machine=6), ""),
        (KillCounts(machine=5), KillCounts(machine=6), "machine"),
        (KillCounts(), KillCounts(), ""),
        (KillCounts(group=1), KillCounts(), ""),
    ],
)
def test_where_the_memory_killer_struck(before: KillCounts, after: KillCounts, where: str) -> None:
    assert who_struck(before, after) == where


@pytest.mark.parametrize(
    "content",
    [
        "low 0\nhigh 0\nmax 3\noom 3\noom_kill 3\noom_group_kill 0\n",  # version 2
        "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",  # version 1
    ],
)
def test_the_counter_is_read_in_both_versions_of_control_groups(
    tmp_path: Path, content: str
) -> None:
    file = tmp_path / "counter"
    file.write_text(content)
    assert memory_killer._counter(file) == 3
