"""Stacks as Python's fault handler prints them."""

from __future__ import annotations

from distprof_probes.attach.stacks import (
    Frame,
    Stack,
    fold,
    own_frame,
    parse_stacks,
    training_stack,
)
from hypothesis import given
from hypothesis import strategies as st

DUMP = """\
Current thread 0x00007faabb7fe6c0 (most recent call first):
  <no Python frame>

Thread 0x00007faabc7fe6c0 [distprof-writer] (most recent call first):
  File "/usr/lib/python3.14/threading.py", line 331 in wait
  File "/usr/lib/python3.14/threading.py", line ??? in run

Thread 0x00007faae701bb80 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d.py", line 3252 in all_reduce
  File "/home/me/train.py", line 40 in average
  File "/home/me/train.py", line 61 in <module>
"""


def test_every_thread_and_call_is_read() -> None:
    nowhere, writer, main = parse_stacks(DUMP)
    assert nowhere.frames == ()
    assert (writer.thread, writer.name) == ("0x00007faabc7fe6c0", "distprof-writer")
    assert [frame.line for frame in writer.frames] == [331, None]
    assert main.frames[1] == Frame(file="/home/me/train.py", line=40, name="average")


def test_the_training_thread_is_the_last_that_runs_python() -> None:
    found = training_stack(parse_stacks(DUMP))
    assert found is not None
    assert found.thread == "0x00007faae701bb80"


def test_the_innermost_call_of_the_users_own_code_is_shown() -> None:
    main = parse_stacks(DUMP)[-1]
    assert str(own_frame(main)) == "average (train.py:40)"


def test_without_own_code_the_innermost_call_is_shown() -> None:
    writer = parse_stacks(DUMP)[1]
    assert str(own_frame(writer)) == "wait (threading.py:331)"


def test_alike_ranks_are_folded_and_the_odd_one_comes_first() -> None:
    waiting = Stack(thread="0x1", frames=(Frame(file="a.py", line=1, name="all_reduce"),))
    also = Stack(thread="0x2", frames=waiting.frames)
    stuck = Stack(thread="0x3", frames=(Frame(file="a.py", line=9, name="stuck"),))
    groups = fold({0: waiting, 1: stuck, 2: also})
    assert [(ranks, stack.frames) for ranks, stack in groups] == [
        ((1,), stuck.frames),
        ((0, 2), waiting.frames),
    ]


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    parse_stacks(text)
    parse_stacks(f"Thread 0x1 (most recent call first):\n{text}")
