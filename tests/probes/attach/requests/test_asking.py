"""The process that asks: what it writes, how long it waits, and what it says of silent ranks."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from distprof_probes.attach.ranks import look
from distprof_probes.attach.requests import asking
from distprof_probes.attach.requests.asking import Progress, RanksEverywhere
from distprof_probes.attach.requests.poller import Poller

from distprof.artefacts.run_file import RequestFile, RunFile
from distprof.errors import InputError, UsageError
from tests.probes.attach.requests.fake_ranks import served_ranks, written_rank

HERE = socket.gethostname()


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory; waits are short, because everything is on this machine."""
    monkeypatch.setattr(asking, "_TAKEOVER_S", 0.5)
    monkeypatch.setattr(asking, "_LOOK_S", 0.01)
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@contextmanager
def looked_at(run_dir: Path) -> Iterator[list[str]]:
    """A rank of this node looks for requests, fifty times a second."""
    notes: list[str] = []
    ended = threading.Event()
    poller = Poller(run_dir, 0, note=notes.append)

    def look_often() -> None:
        while not ended.wait(0.02):
            poller.look()

    thread = threading.Thread(target=look_often)
    thread.start()
    try:
        yield notes
    finally:
        poller.end()
        ended.set()
        thread.join()
        poller._turn.give_back()


def everywhere(run_dir: Path, **options: object) -> RanksEverywhere:
    return RanksEverywhere(run_dir, look(run_dir), **{"notice_s": 0.3, **options})  # type: ignore[arg-type]


def left_in(run_dir: Path) -> list[str]:
    return sorted(each.name for each in (run_dir / "requests").iterdir())


def test_stacks_of_all_come_back_and_are_kept_where_asked(run_dir: Path) -> None:
    with served_ranks(run_dir, 0, 1), looked_at(run_dir):
        asked = everywhere(run_dir)
        answers = asked.stacks(save=False)
        assert not (run_dir / "rank00000" / "stacks.txt").exists()
        asked.stacks(save=True)
    assert {rank: stack.frames[0].name for rank, stack in answers.given.items()} == {
        0: "average",
        1: "average",
    }
    assert answers.missing == {}
    assert asked.is_reached
    assert "in average" in (run_dir / "rank00001" / "stacks.txt").read_text()
    assert left_in(run_dir) == [], "nothing is left of a request"


def test_flight_recorders_are_saved(run_dir: Path) -> None:
    with served_ranks(run_dir, 0, 1), looked_at(run_dir):
        answers = everywhere(run_dir).flight()
    assert answers.given == {0: 3, 1: 3}
    assert (run_dir / "rank00001" / "flight.json").is_file()
    assert left_in(run_dir) == []


def test_a_trace_is_a_run_directory_below_the_requests(run_dir: Path) -> None:
    said: list[Progress] = []
    with served_ranks(run_dir, 0, 1) as asked, looked_at(run_dir):
        (run_dir / "rank00001" / "rank.json").write_text("{}")
        written_rank(run_dir, 2, pid=2**22 - 1, socket="/nowhere/s")
        ranks = everywhere(run_dir, tell=said.append)
        folder, answers = ranks.profile(0.5, None)
    assert asked.count("/handler/torch_profile?duration=0.5") == 2
    assert folder.parent == run_dir / "requests"
    assert left_in(run_dir) == [folder.name]
    assert sorted(each.name for each in folder.iterdir()) == ["rank00000", "rank00001", "run.json"]
    assert sorted(each.name for each in (folder / "rank00001").iterdir()) == [
        "flight.json",
        "rank.json",
        "trace.json.gz",
    ]
    assert answers.given.keys() == {0, 1}
    assert answers.missing == {2: "its process is gone"}
    run = msgspec.json.decode((folder / "run.json").read_bytes(), type=RunFile)
    assert run.notes[-1] == "Rank 2 was not traced: its process is gone."
    assert ranks.spread_s is not None
    assert (said[0].asked, said[0].answered) == (2, 0)
    assert said[-1].answered == 2


def test_a_trace_goes_where_the_user_wants_it(run_dir: Path) -> None:
    with served_ranks(run_dir, 0), looked_at(run_dir):
        folder, _ = everywhere(run_dir).profile(0.1, run_dir.with_name("mine"))
    assert folder == run_dir.with_name("mine")
    assert (folder / "rank00000" / "trace.json.gz").is_file()
    assert left_in(run_dir) == []


def test_a_place_that_is_taken_is_refused_before_anybody_is_asked(run_dir: Path) -> None:
    with served_ranks(run_dir, 0) as asked, looked_at(run_dir):
        with pytest.raises(UsageError, match="is not empty"):
            everywhere(run_dir).profile(0.1, run_dir)
        assert asked == []


def test_only_some_ranks_are_asked(run_dir: Path) -> None:
    with served_ranks(run_dir, 0, 1) as asked, looked_at(run_dir):
        some = [rank for rank in look(run_dir) if rank.rank == 1]
        answers = RanksEverywhere(run_dir, some, chosen=True, notice_s=0.3).flight()
    assert answers.given == {1: 3}
    assert len(asked) == 1


# What is written ----------------------------------------------------------------------------------


def test_a_request_can_be_read_by_its_user_alone(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the usual permissions let a group write."""
    written_rank(run_dir, 0)
    seen: list[tuple[int, int, RequestFile]] = []

    def during(_: Progress) -> None:
        (file,) = (run_dir / "requests").glob("*.json")
        modes = (stat.S_IMODE(each.stat().st_mode) for each in (file, file.with_suffix("")))
        request = msgspec.json.decode(file.read_bytes(), type=RequestFile)
        seen.append((*modes, request))  # type: ignore[arg-type]

    before = os.umask(0o002)
    try:
        everywhere(run_dir, tell=during).flight()
    finally:
        os.umask(before)
    file_mode, folder_mode, request = seen[0]
    assert (file_mode, folder_mode) == (0o600, 0o700)
    assert (request.kind, request.ranks, request.pid) == ("flight", None, os.getpid())
    assert request.asked_ns <= request.start_ns < request.deadline_ns


def test_a_trace_starts_later_than_it_is_asked_for(run_dir: Path) -> None:
    written_rank(run_dir, 0)
    request = everywhere(run_dir, notice_s=7.0)._request("profile", 2.0)
    assert request.start_ns - request.asked_ns == 7 * 10**9
    assert everywhere(run_dir)._request("stacks", 0.0).start_ns == pytest.approx(
        time.time_ns(), abs=60e9
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_asks_belongs_to_the_user_of_the_job(run_dir: Path) -> None:
    written_rank(run_dir, 0)
    (run_dir / "requests").mkdir(0o700)
    os.chown(run_dir / "requests", 12345, 12345)
    owners: set[int] = set()

    def during(_: Progress) -> None:
        owners.update(each.stat().st_uid for each in (run_dir / "requests").rglob("*"))

    everywhere(run_dir, tell=during).flight()
    assert owners == {12345}


def test_a_folder_that_cannot_be_written_says_who_may_ask(run_dir: Path) -> None:
    written_rank(run_dir, 0)
    (run_dir / "requests").write_text("a file")
    with pytest.raises(InputError, match="ask as the user who runs the job"):
        everywhere(run_dir).flight()


def test_ctrl_c_withdraws_the_request(run_dir: Path) -> None:
    def interrupted(_: Progress) -> None:
        assert len(left_in(run_dir)) == 2
        raise KeyboardInterrupt

    written_rank(run_dir, 0)
    with pytest.raises(KeyboardInterrupt):
        everywhere(run_dir, tell=interrupted).profile(2.0, None)
    assert left_in(run_dir) == []


def test_a_second_request_is_refused_in_a_sentence(run_dir: Path) -> None:
    def second(_: Progress) -> None:
        with pytest.raises(UsageError, match=r"another request is being served \(flight-.* from"):
            everywhere(run_dir).stacks(save=False)
        raise KeyboardInterrupt

    written_rank(run_dir, 0)
    with pytest.raises(KeyboardInterrupt):
        everywhere(run_dir, tell=second).flight()


def test_requests_that_are_over_are_removed(run_dir: Path) -> None:
    """Of processes that were killed; what nobody obeys counts as over."""
    written_rank(run_dir, 0)
    place = run_dir / "requests"
    place.mkdir(0o700)
    name = "flight-20260101-120000-0a1b2c3d"
    old = RequestFile(id=name, kind="flight", asked_ns=1, start_ns=1, deadline_ns=2)
    for number, content in enumerate((msgspec.json.encode(old), b"{", b"")):
        (place / f"{name[:-1]}{number}.json").write_bytes(content)
    (place / "notes.json").write_text("the user's own")
    everywhere(run_dir).flight()
    assert left_in(run_dir) == ["notes.json"]


# Ranks that do not answer -------------------------------------------------------------------------


def missing(run_dir: Path) -> dict[int, str]:
    ranks = everywhere(run_dir)
    return ranks.flight().missing


def test_a_host_that_does_not_see_the_request_is_named(run_dir: Path) -> None:
    with served_ranks(run_dir, 0), looked_at(run_dir):
        written_rank(run_dir, 1, host="gpu-7", socket="/tmp/x/s")
        written_rank(run_dir, 2, host="gpu-7", socket="/tmp/y/s")
        ranks = everywhere(run_dir)
        answers = ranks.flight()
    assert answers.given == {0: 3}
    assert set(answers.missing.values()) == {"gpu-7 has not seen the request"}
    assert ranks.unseen_hosts == ["gpu-7"]


def test_ranks_of_older_probes_are_not_waited_for(run_dir: Path) -> None:
    written_rank(run_dir, 0, host="gpu-7", takes_requests=False, socket="/tmp/x/s")
    written_rank(run_dir, 1, host="gpu-7", takes_requests=False, reason="install 2.10 or newer")
    (run_dir / "rank00002").mkdir()
    assert missing(run_dir) == {
        0: "its probes are of an older version and take no requests",
        1: "install 2.10 or newer",
        2: "its process is gone",
    }


def test_a_rank_that_reported_its_end_is_not_waited_for(run_dir: Path) -> None:
    folder = written_rank(run_dir, 0, host="gpu-7")
    (folder / "rank.json").write_text('{"rank": 0, "pid": 1, "started_ns": 1, "ended_ns": 2}')
    assert missing(run_dir) == {0: "it has ended"}


def test_a_node_that_refuses_is_quoted(run_dir: Path) -> None:
    with served_ranks(run_dir, 0), looked_at(run_dir):
        later = everywhere(run_dir)
        later._request = lambda kind, seconds: msgspec.structs.replace(  # type: ignore[method-assign]
            RanksEverywhere._request(later, kind, seconds), start_ns=time.time_ns() + 3600 * 10**9
        )
        answers = later.flight()
    assert answers.missing == {0: "its node refused: the request has times that are out of order"}


def test_ranks_without_a_folder_are_named(run_dir: Path) -> None:
    folder = written_rank(run_dir, 1)
    (folder / "rank.json").write_text('{"rank": 1, "world_size": 4, "pid": 1, "started_ns": 1}')
    assert everywhere(run_dir).absent_ranks == [0, 2, 3]
    assert everywhere(run_dir, chosen=True).absent_ranks == ()


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"id": 1}'])
def test_a_broken_reply_counts_as_none(run_dir: Path, content: bytes) -> None:
    written_rank(run_dir, 0, host="gpu-7")

    def during(_: Progress) -> None:
        for folder in (run_dir / "requests").glob("*/replies"):
            (folder / "gpu-7.json").write_bytes(content)
            if not (folder / "pipe.json").exists():
                os.mkfifo(folder / "pipe.json")

    answers = everywhere(run_dir, tell=during).flight()
    assert answers.missing == {0: "gpu-7 has not seen the request"}
    assert HERE != "gpu-7"
