"""Stacks of faulthandler: what the main thread did before it was asked to end."""

from distprof.artefacts.records import main_stack

WAITING = """Thread 0x00007f00000000a1 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/site/distprof_probes/records.py", line 226 in run

Current thread 0x00007f00000000ff (most recent call first):
  File "/home/user/train.py", line 12 in read_batch
  File "/home/user/train.py", line 40 in main
"""
ENDING = """Thread 0x00007f00000000a1 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/site/distprof_probes/records.py", line 226 in run

Thread 0x00007f00000000ff (most recent call first):
  File "/site/distprof_probes/probes/flight_recorder.py", line 72 in _save
  File "/site/distprof_probes/session.py", line 489 in _end
  File "/home/user/train.py", line 40 in main
"""


def innermost(text: str) -> str:
    return main_stack(text.splitlines())[0].strip()


def test_the_last_dump_counts() -> None:
    later = WAITING.replace("12 in read_batch", "99 in all_reduce")
    assert innermost(WAITING + later) == 'File "/home/user/train.py", line 99 in all_reduce'


def test_a_rank_that_saves_its_records_is_not_where_it_was_stuck() -> None:
    assert innermost(WAITING + ENDING) == 'File "/home/user/train.py", line 12 in read_batch'


def test_an_ending_rank_without_an_earlier_dump_is_shown_as_it_is() -> None:
    assert innermost(ENDING).endswith("in _save")


def test_nothing_is_known_from_a_file_without_frames() -> None:
    assert (
        main_stack(["Thread 0x00007f00000000a1 (most recent call first):", "  <no Python frame>"])
        == []
    )
