"""Who looks for requests, and that nothing which happens to the run directory reaches training."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from distprof_probes.attach.requests.poller import Poller, Turn
from distprof_probes.attach.requests.serving import Serving

from distprof.artefacts.run_file import ReplyFile, RequestFile
from tests.probes.attach.requests.fake_ranks import served_ranks, written_rank
from tests.small_disk import fill, needs_mounts, small_disk

ID = "stacks-20260101-120000-0a1b2c3d"
LIMIT_S = 30.0
S = 10**9


def ask(run_dir: Path, kind: str = "stacks", **fields: object) -> str:
    """Write a request and its folder, as another process does."""
    now_ns = time.time_ns()
    name = f"{kind}-20260101-120000-{len(list((run_dir / 'requests').iterdir())):08x}"
    request = RequestFile(
        id=name, kind=kind, asked_ns=now_ns, start_ns=now_ns, deadline_ns=now_ns + 20 * S
    )
    request = msgspec.structs.replace(request, **fields)
    (run_dir / "requests" / name / "replies").mkdir(parents=True, mode=0o700)
    for folder in (run_dir / "requests" / name, run_dir / "requests" / name / "replies"):
        folder.chmod(0o700)
    file = run_dir / "requests" / f"{name}.json"
    file.write_bytes(msgspec.json.encode(request))
    file.chmod(0o600)
    return name


def replies(run_dir: Path, name: str) -> list[ReplyFile]:
    folder = run_dir / "requests" / name / "replies"
    return [msgspec.json.decode(each.read_bytes(), type=ReplyFile) for each in folder.iterdir()]


def wait_for(holds: object) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < limit_s
        time.sleep(0.01)


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


class Looking:
    """A poller whose looks the test makes."""

    def __init__(self, run_dir: Path, local_rank: int = 0) -> None:
        self.notes: list[str] = []
        run_dir.mkdir(exist_ok=True)
        self.poller = Poller(run_dir, local_rank, note=self.notes.append)

    def look(self) -> None:
        self.poller.look()
        for thread in threads("distprof-request"):
            thread.join(LIMIT_S)


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory, and a folder for sockets that no other test has."""
    place = tmp_path / "t"
    place.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def looking(run_dir: Path) -> Iterator[Looking]:
    looking = Looking(run_dir)
    yield looking
    looking.poller._turn.give_back()


def test_ranks_of_the_node_are_asked_and_their_answers_written(
    run_dir: Path, looking: Looking
) -> None:
    looking.look()
    with served_ranks(run_dir, 0, 1, 3) as asked:
        name = ask(run_dir)
        looking.look()
    assert sorted(asked) == ["/handler/dump_traceback"] * 3
    (reply,) = replies(run_dir, name)
    assert reply.is_final
    assert [(each.rank, each.state) for each in reply.ranks] == [
        (0, "done"),
        (1, "done"),
        (3, "done"),
    ]
    text = (run_dir / "requests" / name / "rank00003" / "stacks.txt").read_text()
    assert "in average" in text
    assert looking.notes == []


def test_only_the_ranks_that_are_named_are_asked(run_dir: Path, looking: Looking) -> None:
    looking.look()
    with served_ranks(run_dir, 0, 1) as asked:
        name = ask(run_dir, ranks=(1, 7))
        looking.look()
    assert len(asked) == 1
    assert [each.rank for each in replies(run_dir, name)[0].ranks] == [1]


def test_a_node_without_any_of_them_says_nothing(run_dir: Path, looking: Looking) -> None:
    looking.look()
    with served_ranks(run_dir, 0):
        name = ask(run_dir, ranks=(7,))
        looking.look()
    assert replies(run_dir, name) == []


def test_two_that_look_at_once_ask_each_rank_once(run_dir: Path) -> None:
    one, other = Looking(run_dir), Looking(run_dir)
    one.poller._turn._take()
    with served_ranks(run_dir, 0, 1) as asked:
        one.poller._inbox.make()
        name = ask(run_dir)
        for each in (one, other):
            each.poller._turn._take()  # each believes that it is its turn
            each.poller.look()
        for thread in threads("distprof-request"):
            thread.join(LIMIT_S)
    assert len(asked) == 2
    states = [each.state for reply in replies(run_dir, name) for each in reply.ranks]
    assert states == ["done", "done"]
    one.poller._turn.give_back()
    other.poller._turn.give_back()


def test_a_rank_that_is_gone_is_answered_for(run_dir: Path, looking: Looking) -> None:
    looking.look()
    with served_ranks(run_dir, 0, 1):
        written_rank(run_dir, 1, pid=2**22 - 1, socket="/nowhere/s")
        name = ask(run_dir)
        looking.look()
    answers = {each.rank: each for each in replies(run_dir, name)[0].ranks}
    assert answers[0].state == "done"
    assert (answers[1].state, answers[1].reason) == ("failed", "its process is gone")


def test_a_rank_that_cannot_answer_says_why(run_dir: Path, looking: Looking) -> None:
    looking.look()
    with served_ranks(run_dir, 0, answers={"torch_profile": b"{}"}):
        name = ask(run_dir)
        looking.look()
        other = ask(run_dir, "profile", seconds=0.1)
        looking.look()
    assert replies(run_dir, name)[0].ranks[0].reason == "it answered with status 404: unknown"
    reason = replies(run_dir, other)[0].ranks[0].reason
    assert reason == "it returned something other than a trace"
    assert not list(run_dir.glob("requests/*/rank00000/*"))


def test_a_request_that_is_not_obeyed_is_answered_and_noted(
    run_dir: Path, looking: Looking
) -> None:
    looking.look()
    with served_ranks(run_dir, 0) as asked:
        now_ns = time.time_ns()
        name = ask(
            run_dir, asked_ns=now_ns - 9 * S, start_ns=now_ns - 9 * S, deadline_ns=now_ns - 7 * S
        )
        looking.look()
    assert asked == []
    (reply,) = replies(run_dir, name)
    assert reply.refusal == "the request expired 7 s ago, by the clock of this node"
    assert looking.notes == [
        "a request was not obeyed: it expired 7 s ago, by the clock of this node"
    ]


def test_a_second_request_while_one_is_served_is_refused_in_a_sentence(
    run_dir: Path, looking: Looking
) -> None:
    looking.look()
    with served_ranks(run_dir, 0):
        start_ns = time.time_ns() + 3600 * S
        first = ask(run_dir, "profile", seconds=1.0, start_ns=start_ns, deadline_ns=start_ns)
        looking.poller.look()
        second = ask(run_dir)
        looking.poller.look()
        (reply,) = replies(run_dir, second)
        assert reply.refusal == (
            f"the request came while {first} was being served: ask again later"
        )
        (run_dir / "requests" / f"{first}.json").unlink()
        looking.poller.end()
        for thread in threads("distprof-request"):
            thread.join(LIMIT_S)


def test_a_request_that_is_withdrawn_before_its_start_is_not_served(
    run_dir: Path, looking: Looking
) -> None:
    looking.look()
    with served_ranks(run_dir, 0) as asked:
        start_ns = time.time_ns() + S
        name = ask(run_dir, "profile", seconds=0.1, start_ns=start_ns)
        looking.poller.look()
        (run_dir / "requests" / f"{name}.json").unlink()
        for thread in threads("distprof-request"):
            thread.join(LIMIT_S)
    assert asked == []


def test_answers_to_a_request_whose_folder_was_removed_are_lost(
    run_dir: Path, looking: Looking
) -> None:
    looking.look()
    with served_ranks(run_dir, 0) as asked:
        name = ask(run_dir)
        (run_dir / "requests" / name / "replies").rmdir()
        (run_dir / "requests" / name).rmdir()
        looking.look()
    assert asked == []
    assert [each.name for each in (run_dir / "requests").iterdir()] == [f"{name}.json"]


def test_a_request_in_a_folder_of_others_is_not_answered(run_dir: Path, looking: Looking) -> None:
    looking.look()
    with served_ranks(run_dir, 0) as asked:
        name = ask(run_dir)
        (run_dir / "requests" / name).chmod(0o777)
        looking.look()
    assert asked == []
    assert replies(run_dir, name) == []


# Whose turn it is -----------------------------------------------------------------------------


def test_the_first_rank_that_looks_keeps_the_turn(tmp_path: Path) -> None:
    first, second = Turn(tmp_path / "turn", 0), Turn(tmp_path / "turn", 1)
    assert first.is_ours()
    assert not second.is_ours()
    assert first.is_ours()


def test_another_takes_over_from_one_that_is_silent(tmp_path: Path) -> None:
    """Gone, stopped, or stuck with the interpreter lock: its time grows old in each case."""
    file = tmp_path / "turn"
    first, second, third = (Turn(file, rank) for rank in range(3))
    assert first.is_ours()
    old_s = time.time() - 6.6
    os.utime(file, (old_s, old_s))
    assert not third.is_ours()
    assert second.is_ours()
    assert not third.is_ours()
    assert not first.is_ours()


def test_a_clock_that_was_set_back_blocks_nobody(tmp_path: Path) -> None:
    first, second = Turn(tmp_path / "turn", 0), Turn(tmp_path / "turn", 1)
    assert first.is_ours()
    later_s = time.time() + 3600
    os.utime(tmp_path / "turn", (later_s, later_s))
    assert second.is_ours()


def test_a_turn_that_is_given_back_is_free_at_once(tmp_path: Path) -> None:
    first, second = Turn(tmp_path / "turn", 0), Turn(tmp_path / "turn", 1)
    assert first.is_ours()
    second.give_back()  # not its own
    assert not second.is_ours()
    first.give_back()
    assert second.is_ours()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "nowhere"])
def test_where_ranks_cannot_agree_each_looks(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "turn"
    if kind == "link":
        file.symlink_to(tmp_path / "kept")
        (tmp_path / "kept").write_text("kept")
    elif kind == "folder":
        (file / "x").mkdir(parents=True)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file = tmp_path / "absent" / "turn"
    assert Turn(file, 0).is_ours()
    if kind == "link":
        assert (tmp_path / "kept").read_text() == "kept"


# What may happen to the run directory -------------------------------------------------------------


def started(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Looking:
    monkeypatch.setattr("distprof_probes.attach.requests.poller.PERIOD_S", 0.02)
    looking = Looking(run_dir)
    looking.poller.start()
    return looking


def end(looking: Looking) -> None:
    looking.poller.end()
    looking.poller.join(LIMIT_S)
    assert not looking.poller.is_alive()


def test_a_vanished_run_directory_ends_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = started(run_dir, monkeypatch)
    wait_for((run_dir / "requests").is_dir)
    run_dir.rename(run_dir.with_name("moved"))
    time.sleep(0.2)
    assert looking.poller.is_alive()
    run_dir.with_name("moved").rename(run_dir)
    with served_ranks(run_dir, 0):
        name = ask(run_dir)
        wait_for(lambda: any(reply.is_final for reply in replies(run_dir, name)))
    end(looking)
    assert not run_dir.with_name("moved").exists()


@needs_mounts
def test_a_full_disk_loses_the_answer_alone(tmp_path: Path, looking: Looking) -> None:
    with small_disk(tmp_path / "full") as disk:
        (disk / "run").mkdir()
        full = Looking(disk / "run")
        full.look()
        with served_ranks(disk / "run", 0) as asked:
            name = ask(disk / "run")
            fill(disk)
            full.look()
        assert len(asked) == 1
        assert not list((disk / "run" / "requests" / name / "rank00000").iterdir())
        full.poller._turn.give_back()


@needs_mounts
def test_a_read_only_disk_is_looked_at_in_vain(tmp_path: Path) -> None:
    with small_disk(tmp_path / "fixed", read_only=True) as disk:
        looking = Looking(disk)
        looking.look()
        assert looking.notes == []
        looking.poller._turn.give_back()


def test_a_file_system_that_hangs_holds_up_only_this_thread(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server that is away: the call returns when it is back, or never."""
    away, back = threading.Event(), threading.Event()

    def hangs(self: object) -> list[str]:
        away.set()
        back.wait(LIMIT_S)
        return []

    monkeypatch.setattr("distprof_probes.attach.requests.inbox.Inbox.news", hangs)
    looking = started(run_dir, monkeypatch)
    assert away.wait(LIMIT_S)
    looking.poller.pause()
    looking.poller.resume()
    looking.poller.end()  # returns although the thread cannot
    assert looking.poller.is_alive()
    assert looking.poller.daemon
    back.set()
    looking.poller.join(LIMIT_S)


def test_an_error_costs_one_look(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def fails(self: object) -> list[str]:
        looks.append(1)
        raise ValueError("unexpected")

    monkeypatch.setattr("distprof_probes.attach.requests.inbox.Inbox.news", fails)
    looking = started(run_dir, monkeypatch)
    wait_for(lambda: len(looks) > 3)
    end(looking)
    assert set(looking.notes) == {"requests: ValueError: unexpected"}


def test_a_pause_stops_looks_but_not_for_ever(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = Looking(run_dir)
    assert not looking.poller._is_paused()
    looking.poller.pause()
    assert looking.poller._is_paused()
    looking.poller._paused_s = time.monotonic() - 31
    assert not looking.poller._is_paused(), "a job that hangs in a pause takes requests"
    looking.poller.pause()
    looking.poller.resume()
    assert not looking.poller._is_paused()


def test_a_rank_that_ends_gives_up_what_it_serves(run_dir: Path, looking: Looking) -> None:
    looking.look()
    with served_ranks(run_dir, 0) as asked:
        start_ns = time.time_ns() + 3600 * S
        ask(run_dir, "profile", seconds=1.0, start_ns=start_ns, deadline_ns=start_ns)
        looking.poller.look()
        (serving,) = [thread for thread in threading.enumerate() if isinstance(thread, Serving)]
        assert serving.daemon
        looking.poller.end()
        serving.join(LIMIT_S)
        assert not serving.is_alive()
    assert asked == []
