"""Who failed first: tables of evidence with the answer written out."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from distprof_probes.job.evidence import RankEvidence, where_it_is
from distprof_probes.job.failure import first_cause
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.run_file import ErrorFile, Exit

S = 10**9
RESET = "[third_party/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242"
TIMEOUT = "[third_party/gloo/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation"


def rank(number: int, **known: Any) -> RankEvidence:
    known.setdefault("last_step", 5)
    known.setdefault("progressed_ns", 90 * S)
    return RankEvidence(rank=number, **known)


def error(number: int, time_s: float, kind: str, message: str, peer: bool = False) -> ErrorFile:
    return ErrorFile(
        rank=number,
        time_ns=int(time_s * S),
        kind=kind,
        message=message,
        traceback="",
        is_peer_loss=peer,
    )


def victim(number: int, time_s: float = 100.01, message: str = RESET) -> RankEvidence:
    """A rank that lost another and said so."""
    return rank(
        number,
        error=error(number, time_s, "RuntimeError", message, peer=True),
        exit=Exit(code=1, ended_ns=int((time_s + 0.1) * S)),
        alive_until_ns=int(time_s * S),
    )


def test_nothing_is_wrong_when_all_leave_with_0_after_their_steps() -> None:
    done = [rank(r, last_step=9, exit=Exit(code=0, ended_ns=100 * S)) for r in range(3)]
    assert first_cause(done, num_steps=10) is None


def test_an_exception_that_is_not_about_peers_is_the_cause() -> None:
    raised = rank(
        1,
        error=error(1, 100, "ValueError", "bad batch"),
        exit=Exit(code=1, ended_ns=101 * S),
    )
    found = first_cause([victim(0), raised, victim(2)], detected_ns=101 * S)
    assert found is not None
    assert (found.rank, found.kind, found.step) == (1, "exception", 5)
    assert found.message == "rank 1 raised ValueError after step 5: bad batch"
    assert found.detected_ns == 101 * S


def test_of_two_exceptions_the_earlier_is_the_cause() -> None:
    late = rank(0, error=error(0, 100.4, "KeyError", "'x'"), exit=Exit(code=1, ended_ns=101 * S))
    early = rank(1, error=error(1, 100.1, "ValueError", "y"), exit=Exit(code=1, ended_ns=101 * S))
    found = first_cause([late, early])
    assert found is not None
    assert found.rank == 1


def test_a_killed_rank_is_the_cause_though_its_peers_ended_first_in_the_launchers_eyes() -> None:
    """The launcher looks from time to time: it may see a victim's end before the killed rank's."""
    killed = rank(
        2, exit=Exit(signal="SIGKILL", ended_ns=int(100.2 * S)), alive_until_ns=int(99.95 * S)
    )
    found = first_cause([victim(0), victim(1, 100.001), killed])
    assert found is not None
    assert (found.rank, found.kind) == (2, "killed")
    assert found.message == "rank 2 was killed (SIGKILL); its last recorded step is 5"


def test_a_killed_rank_precedes_an_error_of_unknown_words_that_followed_within_one_look() -> None:
    killed = rank(
        1, exit=Exit(signal="SIGKILL", ended_ns=int(100.05 * S)), alive_until_ns=int(99.99 * S)
    )
    other = rank(0, error=error(0, 100.01, "OSError", "strange words"), exit=Exit(code=1))
    found = first_cause([other, killed])
    assert found is not None
    assert found.rank == 1


@pytest.mark.parametrize(
    ("struck_by", "words"),
    [("group", "in this job's control group"), ("machine", "probably by the kernel's")],
)
def test_a_kill_while_the_memory_killer_struck_is_out_of_memory(struck_by: Any, words: str) -> None:
    killed = rank(
        1,
        exit=Exit(signal="SIGKILL", ended_ns=100 * S),
        alive_until_ns=99 * S,
        struck_by=struck_by,
    )
    found = first_cause([victim(0), killed])
    assert found is not None
    assert (found.rank, found.kind) == (1, "out_of_memory")
    assert words in found.message


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB"),
        ("MemoryError", ""),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B"),
    ],
)
def test_exceptions_that_speak_of_memory_are_out_of_memory(kind: str, message: str) -> None:
    raised = rank(0, error=error(0, 100, kind, message), exit=Exit(code=1, ended_ns=101 * S))
    found = first_cause([raised, victim(1)])
    assert found is not None
    assert (found.rank, found.kind) == (0, "out_of_memory")


def test_an_abort_that_follows_the_loss_of_a_peer_is_not_the_cause() -> None:
    """NCCL's watchdog aborts the process that waited in vain."""
    aborted = rank(
        0,
        exit=Exit(signal="SIGABRT", ended_ns=100 * S),
        alive_until_ns=99 * S,
        output="Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, ...)",
    )
    hung = rank(1, state="S", told_to_end_ns=101 * S, exit=Exit(code=143, by_launcher=True))
    found = first_cause([aborted, hung], detected_ns=100 * S)
    assert found is not None
    assert (found.rank, found.kind) == (1, "hung")


@pytest.mark.parametrize(
    ("name", "words"), [("SIGSEGV", "crashed (SIGSEGV)"), ("SIGABRT", "aborted (SIGABRT)")]
)
def test_a_crash_is_the_cause(name: str, words: str) -> None:
    crashed = rank(1, exit=Exit(signal=name, ended_ns=100 * S), alive_until_ns=100 * S)
    found = first_cause([victim(0), crashed])
    assert found is not None
    assert (found.rank, found.kind) == (1, "killed")
    assert words in found.message


def test_an_exit_code_without_a_word_is_told_with_the_last_line_printed() -> None:
    gone = rank(
        1,
        exit=Exit(code=3, ended_ns=100 * S),
        alive_until_ns=99 * S,
        output="epoch 1\nlicence server says no\n\n",
    )
    found = first_cause([victim(0), gone])
    assert found is not None
    assert (found.rank, found.kind) == (1, "exited")
    assert found.message.endswith("exited with code 3 after step 5: licence server says no")


def test_a_traceback_before_probes_were_open_is_an_exception() -> None:
    output = (
        "Traceback (most recent call last):\n  File ...\nModuleNotFoundError: No module named 'x'"
    )
    gone = rank(0, last_step=None, exit=Exit(code=1, ended_ns=9 * S), output=output)
    found = first_cause([gone])
    assert found is not None
    assert (found.kind, found.step) == ("exception", None)
    assert "before its first step: ModuleNotFoundError" in found.message


def test_leaving_with_0_before_the_work_is_done_is_a_failure() -> None:
    left = rank(1, exit=Exit(code=0, ended_ns=100 * S), alive_until_ns=99 * S)
    found = first_cause([victim(0), left, victim(2)], num_steps=30)
    assert found is not None
    assert (found.rank, found.kind) == (1, "exited")
    assert "exited with code 0 after step 5 of 30" in found.message


def test_leaving_with_0_is_suspicious_without_a_known_goal_only_if_others_came_to_harm() -> None:
    left = rank(1, exit=Exit(code=0, ended_ns=100 * S), alive_until_ns=99 * S)
    found = first_cause([victim(0), left])
    assert found is not None
    assert (found.rank, found.kind) == (1, "exited")
    assert first_cause([left, rank(0, exit=Exit(code=0, ended_ns=101 * S))]) is None


def test_without_a_goal_an_exception_outweighs_an_earlier_exit_with_0() -> None:
    """Ranks may finish at different times; the one that raised afterwards is to blame."""
    left = rank(0, exit=Exit(code=0, ended_ns=90 * S), alive_until_ns=89 * S)
    raised = rank(1, error=error(1, 100, "ValueError", "x"), exit=Exit(code=1, ended_ns=100 * S))
    found = first_cause([left, raised])
    assert found is not None
    assert (found.rank, found.kind) == (1, "exception")


def test_a_stopped_rank_is_the_cause_although_the_others_timed_out_first() -> None:
    stopped = rank(
        1,
        state="T",
        last_step=4,
        progressed_ns=88 * S,
        told_to_end_ns=101 * S,
        exit=Exit(code=143, ended_ns=102 * S, by_launcher=True),
    )
    found = first_cause(
        [victim(0, 100, TIMEOUT), stopped, victim(2, 100, TIMEOUT)], detected_ns=100 * S
    )
    assert found is not None
    assert (found.rank, found.kind, found.step) == (1, "stopped", 4)
    assert found.message == (
        "rank 1 was stopped (by SIGSTOP or a debugger) for 12 s after step 4 while the others"
        " waited for it"
    )


def test_a_rank_that_waits_in_a_collective_is_not_the_one_that_hung() -> None:
    """Stages launch different numbers of operations, so these do not show who is behind."""
    waits = rank(3, last_collective=80, waits=True, progressed_ns=80 * S)
    hung = rank(1, last_collective=90)
    lost = [victim(0, 100, TIMEOUT), victim(2, 100, TIMEOUT)]
    found = first_cause([*lost, hung, waits], detected_ns=100 * S)
    assert found is not None
    assert (found.rank, found.kind) == (1, "hung")


@pytest.mark.parametrize(
    ("innermost", "expected"),
    [
        ("/venv/torch/distributed/pipelining/schedules.py", ("step (train.py:7)", True)),
        ("/venv/torch/nn/modules/module.py", ("step (train.py:7)", False)),
        ("/home/me/train.py", ("frame (train.py:5)", False)),
    ],
)
def test_a_stack_shows_whether_its_rank_waits(
    innermost: str, expected: tuple[str, bool], tmp_path: Path
) -> None:
    file = tmp_path / "stacks.txt"
    file.write_text(
        "Current thread 0x00007f872dc7cb80 (most recent call first):\n"
        f'  File "{innermost}", line 5 in frame\n'
        '  File "/home/me/train.py", line 7 in step\n'
        '  File "/venv/torch/distributed/run.py", line 9 in main\n'
    )
    assert where_it_is(file) == expected


def test_the_one_rank_that_did_not_time_out_hung() -> None:
    hung = rank(
        2,
        state="S",
        where="load_batch (train.py:33)",
        told_to_end_ns=101 * S,
        exit=Exit(signal="SIGKILL", ended_ns=109 * S, by_launcher=True),
    )
    found = first_cause(
        [victim(0, 100, TIMEOUT), victim(1, 100, TIMEOUT), hung], detected_ns=100 * S
    )
    assert found is not None
    assert (found.rank, found.kind) == (2, "hung")
    assert found.message.endswith("waited for it; it was in load_batch (train.py:33)")


def test_what_a_rank_says_after_it_was_told_to_end_counts_for_nothing() -> None:
    hung = rank(
        1,
        state="S",
        told_to_end_ns=101 * S,
        error=error(1, 101.5, "Stopped", "SIGTERM"),
        exit=Exit(code=1, ended_ns=102 * S, by_launcher=True),
    )
    found = first_cause([victim(0, 100, TIMEOUT), hung], detected_ns=100 * S)
    assert found is not None
    assert (found.rank, found.kind) == (1, "hung")


def test_when_all_stand_still_the_one_with_fewest_collectives_hung() -> None:
    """By the Flight Recorder, where all ranks were ended by the launcher."""
    ended = {"told_to_end_ns": 100 * S, "exit": Exit(code=143, by_launcher=True), "state": "S"}
    found = first_cause(
        [
            rank(0, last_collective=22, **ended),
            rank(1, last_collective=21, **ended),
            rank(2, last_collective=22, **ended),
        ]
    )
    assert found is not None
    assert (found.rank, found.kind) == (1, "hung")


def test_all_ranks_that_stand_still_are_named() -> None:
    def told(*ranks: int) -> str:
        still = [rank(one, state="S", exit=Exit(code=143, by_launcher=True)) for one in ranks]
        found = first_cause([victim(0, 100, TIMEOUT), *still], detected_ns=100 * S)
        assert found is not None
        return found.message

    assert told(1, 2).endswith("; so was rank 2")
    assert told(1, 2, 3).endswith("; so were ranks 2, 3")


def test_when_all_stand_still_alike_nobody_is_blamed() -> None:
    ended = {"told_to_end_ns": 100 * S, "exit": Exit(code=143, by_launcher=True), "state": "S"}
    found = first_cause(
        [rank(0, last_collective=22, **ended), rank(1, last_collective=22, **ended)]
    )
    assert found is not None
    assert (found.rank, found.kind, found.step) == (None, "hung", 5)


def test_a_rank_that_came_back_after_all_had_given_up_hung() -> None:
    came_back = victim(1, 107.5, RESET)
    found = first_cause(
        [victim(0, 100, TIMEOUT), came_back, victim(2, 100.01, RESET)], detected_ns=100 * S
    )
    assert found is not None
    assert (found.rank, found.kind) == (1, "hung")


def test_ranks_that_lost_one_another_without_more_evidence_blame_nobody() -> None:
    found = first_cause([victim(0, 100), victim(1, 100.1)], detected_ns=100 * S)
    assert found is not None
    assert (found.rank, found.kind) == (None, "unknown")


def test_an_interrupted_job_blames_nobody_for_not_finishing() -> None:
    ended = {"told_to_end_ns": 100 * S, "exit": Exit(code=143, by_launcher=True)}
    assert first_cause([rank(0, **ended), rank(1, **ended)], is_interrupted=True) is None


def test_a_rank_that_failed_before_the_interruption_is_still_blamed() -> None:
    raised = rank(0, error=error(0, 99, "ValueError", "x"), exit=Exit(code=1, ended_ns=99 * S))
    ended = rank(1, told_to_end_ns=100 * S, exit=Exit(code=143, by_launcher=True))
    found = first_cause([raised, ended], is_interrupted=True)
    assert found is not None
    assert found.rank == 0


def test_a_message_is_one_line_of_bounded_length() -> None:
    raised = rank(0, error=error(0, 99, "ValueError", "\n\n" + "x" * 5000 + "\nmore"))
    found = first_cause([raised])
    assert found is not None
    assert len(found.message) < 300
    assert "\n" not in found.message


@given(st.integers(2, 12), st.data())
def test_one_rank_that_raised_is_found_among_victims_in_any_order(
    num_ranks: int, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(0, num_ranks - 1))
    evidence = [
        rank(r, error=error(r, 100, "ValueError", "x"), exit=Exit(code=1, ended_ns=101 * S))
        if r == culprit
        else victim(r, 100 + data.draw(st.floats(0.001, 5)))
        for r in range(num_ranks)
    ]
    random.Random(data.draw(st.integers())).shuffle(evidence)
    found = first_cause(evidence, num_steps=30, detected_ns=101 * S)
    assert found is not None
    assert (found.rank, found.kind) == (culprit, "exception")


def test_a_rank_lost_together_with_its_launcher_is_the_cause() -> None:
    found = first_cause([victim(0), rank(1, is_lost=True), victim(2)])
    assert found is not None
    assert (found.rank, found.kind, found.step) == (1, "killed", 5)
    assert "their node went down; its last recorded step is 5" in found.message


def test_own_trouble_elsewhere_counts_more_than_silence() -> None:
    raised = rank(0, error=error(0, 100, "ValueError", "bad batch"), exit=Exit(code=1))
    found = first_cause([raised, rank(1, is_lost=True)])
    assert found is not None
    assert found.rank == 0
