"""The table of expressions, and the reader that applies it to what jobs print."""

from __future__ import annotations

import gzip
import random
import re
import time
import tomllib
from pathlib import Path

import pytest

from distprof.ingest.kinds.logs import fits_job_output, read_job_output
from distprof.ingest.output.expressions import SHORTEST_SIGN, Expression, expressions, signs
from distprof.ingest.output.read import MAX_CALLS, Reader, kinds_in, prefix_rank
from distprof.sections.ending.measure import diagnose_output

GOLDEN = Path(__file__).parents[2] / "golden" / "logs"
EXPECTED = tomllib.loads((GOLDEN / "expected.toml").read_text())
TIMEOUT = (GOLDEN / "watchdog-22-never-launched.log").read_bytes()
KILLED = (GOLDEN / "torchrun-sigkill.log").read_bytes()


@pytest.mark.parametrize("row", expressions(), ids=lambda row: row.name)
def test_each_row_reads_its_example(row: Expression) -> None:
    reader = Reader()
    reader.take_blocks([row.example.encode()], "job.out", None)
    assert all(len(sign.encode()) >= SHORTEST_SIGN for sign in row.signs)
    assert row.source or row.yields
    if row.yields == "stack":
        assert row.search(row.example) is not None
    elif row.yields == "world":
        assert reader.result(["job.out"]).world_size == int(row.fields["world"])
    else:
        (event,) = [one for one in reader.events.values() if one.name == row.name]
        assert event.fields == row.fields


def test_names_of_rows_are_unique() -> None:
    names = [row.name for row in expressions()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", EXPECTED)
def test_each_sample_gets_the_verdict_of_an_expert(name: str) -> None:
    wanted, path = EXPECTED[name], str(GOLDEN / name)
    assert fits_job_output(path)
    found = diagnose_output(read_job_output(path))
    assert (found.state, found.cause, list(found.ranks)) == (
        wanted["state"], wanted["cause"], wanted["ranks"])  # fmt: skip
    assert wanted["says"] in " ".join((found.verdict, *found.why, *found.alternatives))
    assert found.next_steps
    assert wanted.get("step", "") in " ".join(found.next_steps)


def test_files_of_a_series_that_say_nothing_of_a_wait_are_named(tmp_path: Path) -> None:
    (tmp_path / "node0.log").write_bytes(TIMEOUT.split(b"\n", 1)[0])
    (tmp_path / "node0.out").write_text("step 4\n")
    (tmp_path / "node1.log").write_text("step 4\n")
    verdict = diagnose_output(read_job_output(str(tmp_path))).verdict
    assert "Nothing about it is in node1.log" in verdict
    assert "node0.out" not in verdict


def test_only_a_file_with_several_runs_is_said_to_hold_several() -> None:
    several = {"jobs-appended.log", "earlier-run-not-started.log", "tries-with-the-same-error.log",
               "finished-then-failed.log", "begun-again.log", "begun-at-a-prompt.log",
               "run-after-a-failed-one.log", "hangs-again-after-a-restart.log",
               "next-job-in-the-same-file.log", "second-job-in-one-file.log"}  # fmt: skip
    told = {
        name
        for name in EXPECTED
        if any("holds earlier failures" in why
               for why in diagnose_output(read_job_output(str(GOLDEN / name))).why)
    }  # fmt: skip
    assert told == several


def test_every_sample_has_a_verdict_and_there_are_enough() -> None:
    assert {path.name for path in GOLDEN.iterdir()} - {"expected.toml"} == set(EXPECTED)
    assert len(EXPECTED) >= 60


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank3]: text", 3),
        ("[rank3]:[E ProcessGroupNCCL.cpp:1] text", 3),
        ("12: text", 12),
        ("12:30:01 text", None),
        ("[1,7]<stderr>:text", 7),
        ("[default2]:text", 2),
        ("[trainer5|1]:text", 5),
        ("(TrainWorker pid=12, ip=10.0.0.1, rank=4) text", 4),
        ("2024-05-01 10:00:00,123 [rank9]: text", 9),
        ("node-7: [rank17]:[E ProcessGroupNCCL.cpp:1] [Rank 1] text", 17),
        ("text of rank 5", None),
    ],
)
def test_a_launcher_names_the_rank_before_a_line(line: str, rank: int | None) -> None:
    assert prefix_rank(line) == rank


@pytest.mark.parametrize("size", [700, 1_000, 4_096, 20_000])
def test_blocks_may_end_anywhere_between_lines(size: int) -> None:
    """The events are the same, whichever lines a block ends with."""
    text = (b"step 1 loss 2.0\n" * 700 + TIMEOUT + KILLED) * 2
    lines = text.splitlines(keepends=True)
    whole, cut = Reader(), Reader()
    whole.take_blocks([text], "job.out", None)
    blocks, block = [], b""
    for line in lines:
        block += line
        if len(block) >= size:
            blocks.append(block)
            block = b""
    cut.take_blocks([*blocks, block], "job.out", None)
    assert whole.result(["job.out"]) == cut.result(["job.out"])


@pytest.mark.parametrize("before", range(4))
def test_line_numbers_do_not_depend_on_where_signs_are_found(before: int) -> None:
    """A sign may begin with the end of the line before."""
    reader = Reader()
    reader.take_blocks([b"#" * before + b"\nKilled\n\nnohup: ignoring input\n"], "job.out", None)
    lines = {event.name: event.line for event in reader.events.values()}
    assert lines == {"shell-killed": 2, "begun": 4}


def test_a_bar_of_progress_is_one_line(tmp_path: Path) -> None:
    """Editors, grep -n and sed count lines so; a line that a bar tore is read nevertheless."""
    bar = "\r".join(f"{n}%|#   | {n}/99 [00:0{n}<09:00, 1.0it/s]" for n in range(9))
    (path := tmp_path / "job.out").write_bytes(
        f"begin\r\n{bar}\rKilled\nnohup: ignoring input".encode()
    )
    output = read_job_output(str(path))
    assert {event.name: event.line for event in output.events} == {"shell-killed": 2, "begun": 3}
    assert output.num_lines == 3


def test_signs_are_found_where_they_are() -> None:
    rng = random.Random(1)
    words = [sign.encode() for row in expressions() for sign in row.signs]
    parts = [rng.choice(words) + rng.randbytes(rng.randrange(9)) for _ in range(2_000)]
    text = b"".join(parts)
    found = {(at, row.name) for at, row in signs().find(text)}
    wanted = {
        (match.start(), row.name)
        for row in expressions()
        for sign in row.signs
        for match in re.finditer(b"(?=" + re.escape(sign.encode()) + b")", text)
    }
    assert found == {(at, name) for at, name in wanted if at + SHORTEST_SIGN <= len(text)}


def test_escapes_and_controls_never_leave_the_reader(tmp_path: Path) -> None:
    file = tmp_path / "rank1.log"
    file.write_bytes(
        b"\x1b[31m\x1b]0;title\x07\xc2\x9bValueError: \x1b[2Jb\x00ad\xe2\x80\xae\n" * 3
    )
    (event,) = read_job_output_events(file)
    assert re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e]", event) is None


def read_job_output_events(file: Path) -> list[str]:
    reader = Reader()
    reader.take_file(str(file), file.name, 1)
    return [event.text for event in reader.events.values()]


def test_archives_globs_and_folders_are_read(tmp_path: Path) -> None:
    (tmp_path / "a_rank0.log.gz").write_bytes(gzip.compress(TIMEOUT.splitlines(keepends=True)[0]))
    (tmp_path / "b_rank1.log").write_bytes(b"".join(TIMEOUT.splitlines(keepends=True)[1:]))
    for source in (str(tmp_path), f"{tmp_path}/*rank*"):
        assert fits_job_output(source)
        assert diagnose_output(read_job_output(source)).ranks == (1,)


def test_healthy_output_is_none_of_a_failed_job(tmp_path: Path) -> None:
    file = tmp_path / "job.out"
    file.write_text(
        "step: 1  loss: 7.1\nSaving model checkpoint to out\nWARNING: Error: retry 1\n" * 400
        + "host:1:1 [0] NCCL INFO Connected all rings\n"
    )
    assert not fits_job_output(str(file))


@pytest.mark.parametrize(
    "text",
    [
        "Time: 12.2 s\nError: 4.472510\nFinal Error: 12.5%\n",
        "If the pod exits with code 137, raise its limit.\n[Solved] Nothing happens after it.\n",
        "12:00:01 INFO [file_pusher.py:join():181] waiting for file pusher\n",
        "INFO:     Waiting for application startup.\nINFO:     Uvicorn running on port 10000\n",
        "Loss weights: adaptive during Adam, frozen during BFGS\nIts layers are frozen.\n",
    ],
)
def test_what_programs_print_at_their_end_is_no_failure_and_no_wait(text: str) -> None:
    assert kinds_in(text.encode()) == set()


def test_a_rendezvous_that_is_shut_down_last_is_no_lost_one() -> None:
    said = "The node 'n1_7_0' has failed to {} the rendezvous 'job' due to an error of type E\n"
    for word, state in (("shutdown", ""), ("send a keep-alive heartbeat to", "stuck")):
        reader = Reader()
        reader.take_blocks([f"test 9 took 3 s\n{said.format(word)}".encode()], "job.out", None)
        assert diagnose_output(reader.result(["job.out"])).state == state


@pytest.mark.parametrize(("after", "is_said"), [(10, True), (1_500, False), (2_990, True)])
def test_what_a_program_prints_within_a_long_log_is_no_complaint(
    after: int, *, is_said: bool
) -> None:
    lines = [f"Sample {n} : a cat in a tree" for n in range(3_000)]
    lines[after] = "When I use four GPUs, the program gets stuck as following:"
    assert ("complaint" in kinds_in("\n".join(lines).encode())) is is_said


def test_an_exception_that_the_job_survived_is_no_end() -> None:
    caught = b'Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: x\n'
    reader = Reader()
    reader.take_blocks([caught + b"step 1 loss 2\n" * 3_000], "job.out", None)
    assert diagnose_output(reader.result(["job.out"])).state == ""


STEPS = "".join(f"step {n}0/90 loss {9 - n}.5\n" for n in range(1, 5))
CAUGHT = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: x\n'
MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.65 GiB total capacity)\n"
LAUNCHED = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
WAITS = "(EngineCore pid=3) INFO No available shared memory broadcast block found in 60 seconds.\n"


@pytest.mark.parametrize(
    "text",
    [
        f"try 1 of 3\n{CAUGHT}try 2 of 3\n{STEPS}",
        f"{MEMORY}Reducing the batch from 16 to 8\n{STEPS}",
        f"{MEMORY}ERROR:torch.distributed.elastic:failed (exitcode: 1) local_rank: 0 (pid: 8) of "
        f"binary: python\n{LAUNCHED}{STEPS}",
        "WARNING 06-25 [x.py:4] Traceback (most recent call last):\nWARNING 06-25 [x.py:4] "
        f"ImportError: libnvrtc.so.13: cannot open shared object file\n{STEPS * 2}",
        f"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-06T13:31:01 ***\n{STEPS * 110}",
        f"{WAITS}{WAITS}(APIServer pid=1) INFO:     Application startup complete.\n",
    ],
    ids=["retry", "smaller-batch", "next-launch", "warning", "next-job", "engine"],
)
def test_what_a_job_left_behind_is_no_end(text: str) -> None:
    reader = Reader()
    reader.take_blocks([text.encode()], "job.out", None)
    assert diagnose_output(reader.result(["job.out"])).state == ""


@pytest.mark.parametrize("written", ["", "After that I only see this:\n"])
def test_an_error_over_a_log_that_someone_shows_is_an_end(written: str) -> None:
    reader = Reader()
    steps = STEPS if written else "step 10/90 loss 8.5\n"
    reader.take_blocks([f"{MEMORY}{written}{steps}".encode()], "job.out", None)
    assert diagnose_output(reader.result(["job.out"])).cause == "memory"


@pytest.mark.parametrize(
    "line",
    [
        '    raise RuntimeError("{}")',
        '        if "{}" in str(error):',
        '        logger.error(f"rank 3: {}")',
        'print("{}", rank)',
        '    LOG(ERROR) << "{}"',
        '    "{} "',
        "    # {}",
        ">>> # {}",
        "    timeout = 30  # {}",
    ],
)
@pytest.mark.parametrize("error", ["Connection refused", "CUDA out of memory", "loss is nan"])
def test_what_the_source_of_a_program_may_say_is_no_error(line: str, error: str) -> None:
    reader = Reader()
    reader.take_blocks([f"{line.format(error)}\n".encode()], "post.md", None)
    assert not reader.events
    reader.take_blocks([f"RuntimeError: {error}\n".encode()], "post.md", None)
    assert reader.events


def test_a_store_that_is_lost_after_the_end_is_none_of_a_failure() -> None:
    reader = Reader()
    text = ("{'train_runtime': 51.1, 'train_loss': 0.61}\n[rank1]:[W1109 03:10:12 TCPStore.cpp:9]"
            " [c10d] recvValue failed on SocketImpl(fd=8, addr=[localhost]:41026,"
            " remote=[localhost]:29500): Connection reset by peer\n")  # fmt: skip
    reader.take_blocks([text.encode()], "job.out", None)
    assert diagnose_output(reader.result(["job.out"])).cause == "finished"


ERRORS = ("ValueError: bad shape", "KeyError: 'tokens'")


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "stamp", ["[2026-01-31 12:00:{:02d},500] step", "[E0131 12:00:{:02d}.5 x.cpp:1]"]
)
def test_of_several_files_the_first_failure_in_time_is_the_root(
    tmp_path: Path, first: int, stamp: str
) -> None:
    for rank in (0, 1):
        second = 5 if rank == first else 40
        (tmp_path / f"rank{rank}.log").write_text(
            f"{stamp.format(second)} ok\nTraceback (most recent call last):\n"
            f'  File "/home/me/train.py", line 9, in main\n    run()\n{ERRORS[rank]}\n'
        )
    output = read_job_output(str(tmp_path))
    found = diagnose_output(output)
    assert found.ranks == (first,)
    assert ERRORS[first] in found.verdict


@pytest.mark.parametrize("row", expressions(), ids=lambda row: row.name)
def test_no_text_keeps_an_expression_busy(row: Expression) -> None:
    """Parts of its own example, repeated: 16 kB take at most 300 ms of CPU time."""
    parts = {*re.findall(r"\S+", row.example), *row.signs, row.example}
    parts |= {row.example[:end] for end in range(5, len(row.example), 7)}
    for part in sorted(parts):
        for between in ("", ":", "\n", " "):
            text = ((part + between) * (16_384 // len(part + between) + 1))[:16_384]
            begin = time.process_time()
            row.search(text)
            assert time.process_time() - begin < 0.3, part


def test_the_line_of_an_error_alone_counts_in_a_file_that_is_named_itself(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("ValueError: bad shape\n")
    assert fits_job_output(str(tmp_path / "job.log"))
    assert not fits_job_output(str(tmp_path))


def test_a_first_collective_that_never_ends_asks_whether_ranks_reach_each_other() -> None:
    line = (
        "[Rank {}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={}, OpType=ALLREDUCE)"
    )
    for number, is_asked in ((1, True), (2, False)):
        reader = Reader()
        text = "\n".join(line.format(rank, number) for rank in range(2))
        reader.take_blocks([text.encode()], "job.log", None)
        steps = diagnose_output(reader.result(["job.log"])).next_steps
        assert any("first collective" in step for step in steps) is is_asked


@pytest.mark.parametrize(
    ("first", "cause"),
    [
        ("[pair.cc:553] Connection closed by peer [10.0.0.2]:9135.", "peer"),
        ("shape mismatch", "exception"),
    ],
)
def test_what_a_program_raises_from_a_lost_peer_is_no_error_of_its_own(
    first: str, cause: str
) -> None:
    text = f"""Traceback (most recent call last):
  File "stage.py", line 895, in forward_one_chunk
RuntimeError: {first}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "stage.py", line 900, in forward_one_chunk
    raise RuntimeError(exc_msg) from e
RuntimeError: [Stage 0] failed to run forward
"""
    reader = Reader()
    reader.take_blocks([text.encode()], "job.log", 0)
    assert diagnose_output(reader.result(["job.log"])).cause == cause


def test_a_proxy_that_cannot_close_at_the_end_of_a_healthy_job_is_no_failure():
    line = "gpu-1:7:9 [7] proxy.cc:1521 NCCL WARN [Proxy Service 1] Failed to execute operation {} "
    line += "from rank 1, retcode 3\n"
    assert kinds_in(line.format("Close").encode()) == set()
    assert kinds_in(line.format("Connect").encode()) == {"nccl"}


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        (("Bootstrap : Using eth0:10.0.0.1<0>",) * 2, "no process came to"),
        (
            (
                "comm 0x1 rank {0} nranks 2 cudaDev 0 - Init COMPLETE",
                "comm 0x1 rank {0} nranks 2 cudaDev 0 - Init COMPLETE\nnode1:41:4 [1] NCCL INFO "
                "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\nnode1:41:4 [1] NCCL INFO Connected all",
            ),
            "2 of 2 ranks, so what",
        ),
        (("Using network Socket", "Bootstrap : Using eth0:10.0.0.1<0>"), "some stand after"),
        (("Using network IB", "comm 0x1 rank 1 nranks 2 - Init COMPLETE"), "1 of 2 processes came"),
        (("comm 0x1 rank {0} nranks 4 cudaDev 0 - Init COMPLETE",) * 2, "2 of 4 ranks, the others"),
        (("comm 0x1 rank {0} nranks 2 cudaDev 0 - Init COMPLETE",) * 2, "2 of 2 ranks, so what"),
    ],
)
def test_lines_of_nccl_alone_show_how_far_it_came(stages: tuple[str, ...], says: str) -> None:
    lines = (f"node1:4{i}:4 [{i}] NCCL INFO {line.format(i)}\n" for i, line in enumerate(stages))
    text = "".join(lines).encode()
    reader = Reader()
    reader.take_blocks([text], "job.log", None)
    found = diagnose_output(reader.result(["job.log"]))
    assert (found.state, says in found.verdict) == ("", True)
    assert found.next_steps
    assert kinds_in(text) == {"setup"}


_CALL = "node1:4{0}:4 [{0}] NCCL INFO AllReduce: opCount {1:x} sendbuff 0x1 recvbuff 0x1 count 4 "
_CALL += "datatype 7 op 0 root 0 comm 0x{0} [nranks=2] stream 0x2\n"
_MEMBER = "node1:4{0}:4 [{0}] NCCL INFO comm 0x{0} rank {0} nranks 2 cudaDev 0 - Init COMPLETE\n"
_ADDED = "INFO:c10d:Added key: store_based_barrier_key:{1} to store for rank: {0}\n"
_COMPLETED = "Completed store-based barrier for key:store_based_barrier_key:1 with 3 nodes.\n"
_FINGERPRINT = (
    "[I ProcessGroupWrapper.cpp:562] [Rank {0}] Running collective: CollectiveFingerPrint("
)
_FINGERPRINT += "SequenceNumber={1}, OpType=ALLREDUCE, TensorShape=[8], TensorDtypes=Float\n"


@pytest.mark.parametrize(
    ("head", "call", "numbers", "late"),
    [
        (_MEMBER, _CALL, ((0, 16), (1, 16), (1, 17)), "rank 0 launched nothing after number 16"),
        (_MEMBER, _CALL, ((0, 17), (1, 17)), "2 of 2 ranks"),
        (_MEMBER, _CALL, ((1, 16), (1, 17)), "2 of 2 ranks"),
        ("", _FINGERPRINT, ((0, 9), (1, 9), (1, 10)), "rank 0 launched nothing after number 9"),
        ("", _FINGERPRINT, ((0, 9), (1, 10), (0, 10)), ""),
        (_COMPLETED, _ADDED, ((0, 2), (2, 2)), "rank 1 printed nothing"),
        (_COMPLETED, _ADDED, ((0, 2), (2, 2), (1, 2)), "all 3 ranks began to join"),
        ("", _FINGERPRINT, ((0, 9), *(((1, 10),) * (MAX_CALLS + 1))), ""),
    ],
)
def test_the_last_calls_of_all_members_show_who_is_behind(
    head: str, call: str, numbers: tuple[tuple[int, int], ...], late: str
) -> None:
    text = "".join(head.format(rank) for rank in (0, 1) if head)
    text += "".join(call.format(rank, number) for rank, number in numbers)
    reader = Reader()
    reader.take_blocks([text.encode()], "job.log", None)
    verdict = diagnose_output(reader.result(["job.log"])).verdict
    assert late in verdict if late else not verdict


def test_a_wait_that_went_by_is_none() -> None:
    line = "srun: job 7 queued and waiting for resources\n"
    for rest, is_told in (("", True), ("step 1\n" * 9, False)):
        reader = Reader()
        reader.take_blocks([(line + rest).encode()], "job.log", None)
        assert bool(diagnose_output(reader.result(["job.log"])).state) is is_told


@pytest.mark.parametrize(
    ("places", "says"),
    [
        (("ens32:10.10.5.16", "docker0:172.17.0.1"), "docker0 (172.17.0.1) on node1"),
        (("docker0:172.17.0.2", "docker0:172.17.0.3"), "the hosts' interface is local"),
        (("ens32:10.10.5.16", "eth1:192.168.1.9"), "hosts use different networks"),
        (("ens32:10.10.5.16", "eno1:10.10.7.1"), "no process came to"),
    ],
)
def test_hosts_that_meet_over_different_networks_do_not_end_their_set_up(
    places: tuple[str, ...], says: str
) -> None:
    text = "".join(
        f"node{i}:4{i}:4 [0] NCCL INFO Bootstrap : Using {place}<0>\n"
        for i, place in enumerate(places)
    )
    reader = Reader()
    reader.take_blocks([text.encode()], "job.log", None)
    assert says in diagnose_output(reader.result(["job.log"])).verdict


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("Training time 3:25:45\n{}Abort COMPLETE\n", "The job finished."),
        ("{}Destroy COMPLETE\n", "No hang is shown, because the processes closed NCCL or ended."),
        ("{}Destroy COMPLETE\n" + "more\n" * 500, "so what stands came after it"),
        ("{}Destroy COMPLETE\nAssertionError: no\n", "AssertionError: no"),
    ],
)
def test_a_job_that_came_to_its_end_does_not_stand_after_its_set_up(end: str, says: str) -> None:
    line = "node1:41:4 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 - "
    reader = Reader()
    reader.take_blocks([f"{line}Init COMPLETE\n{end.format(line)}".encode()], "job.log", None)
    assert says in diagnose_output(reader.result(["job.log"])).verdict


def test_ranks_of_lightning_that_wait_for_others_are_named() -> None:
    line = "initializing distributed: GLOBAL_RANK: {}, MEMBER: {}/4\n"
    for ranks, after, says in (
        (2, 0, "Ranks 0-1 of 4 wait"),
        (4, 0, "all 4 ranks began to join"),
        (4, 40, ""),
    ):
        reader = Reader()
        text = "".join(line.format(rank, rank + 1) for rank in range(ranks)) + "step\n" * after
        reader.take_blocks([text.encode()], "job.log", None)
        found = diagnose_output(reader.result(["job.log"]))
        assert (found.state, says in found.verdict, bool(found.verdict)) == ("", True, bool(says))


def test_the_port_of_nccls_ras_is_no_port_of_the_job() -> None:
    line = "node1:2:2 [0] ras/client_support.cc:160 NCCL WARN Call to bind failed: Address already "
    assert "port" not in kinds_in(f"{line}in use\n".encode())
