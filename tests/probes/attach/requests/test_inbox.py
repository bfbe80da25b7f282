"""Which requests a rank obeys: those of its own user, whole, and of today."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest
from distprof_probes.attach.requests.inbox import (
    Inbox,
    RefusedError,
    check_start,
    is_our_folder,
    read_request,
)
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.run_file import MAX_REQUEST_BYTES, RequestFile

ID = "profile-20260101-120000-0a1b2c3d"
S = 10**9
NOW = 1_000_000 * S
REQUEST = RequestFile(
    id=ID, kind="profile", seconds=2.0, asked_ns=NOW, start_ns=NOW + 5 * S, deadline_ns=NOW + 60 * S
)
OTHER_USER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def written(folder: Path, request: RequestFile = REQUEST, *, mode: int = 0o600) -> Path:
    file = folder / f"{ID}.json"
    file.write_bytes(msgspec.json.encode(request))
    file.chmod(mode)
    return file


def changed(**fields: object) -> RequestFile:
    return msgspec.structs.replace(REQUEST, **fields)


def test_a_request_of_this_user_is_obeyed(tmp_path: Path) -> None:
    assert read_request(written(tmp_path), now_ns=NOW + S) == REQUEST


@needs_root
def test_one_of_root_is_obeyed_by_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    assert read_request(file, now_ns=NOW) == REQUEST


@needs_root
def test_one_of_another_user_is_not(tmp_path: Path) -> None:
    file = written(tmp_path)
    os.chown(file, OTHER_USER, OTHER_USER)
    with pytest.raises(RefusedError, match=f"belongs to user {OTHER_USER}, and the job to 0"):
        read_request(file, now_ns=NOW)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_one_that_others_may_write_is_not(tmp_path: Path, mode: int) -> None:
    with pytest.raises(RefusedError, match="can be written by other users"):
        read_request(written(tmp_path, mode=mode), now_ns=NOW)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = written(tmp_path).rename(tmp_path / "elsewhere.json")
    (tmp_path / f"{ID}.json").symlink_to(target)
    with pytest.raises(RefusedError, match="is a link"):
        read_request(tmp_path / f"{ID}.json", now_ns=NOW)


def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{ID}.json", 0o600)
    with pytest.raises(RefusedError, match="is not a file"):
        read_request(tmp_path / f"{ID}.json", now_ns=NOW)


def test_a_socket_is_an_error_like_a_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    place = Path(f"{ID}.json")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        with pytest.raises(OSError, match="No such device"):
            read_request(place, now_ns=NOW)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = written(tmp_path)
    os.truncate(file, MAX_REQUEST_BYTES + 1)
    with pytest.raises(RefusedError, match="more than 1,048,576 bytes"):
        read_request(file, now_ns=NOW)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (changed(schema="distprof.request/2"), "is in the format 'distprof.request/2', not"),
        (changed(id="stacks-20260101-120000-0a1b2c3d"), "has the name of another"),
        (changed(seconds=601.0), "asks for 601 s, of 600 at most"),
        (changed(seconds=0.0), "asks for 0 s"),
        (changed(seconds=-1.0), "asks for -1 s"),
        (changed(start_ns=NOW - S), "times that are out of order"),
        (changed(deadline_ns=NOW + S), "times that are out of order"),
        (changed(deadline_ns=NOW + 5 * 3600 * S), "valid for more than four hours"),
        (
            changed(asked_ns=NOW - 100 * S, start_ns=NOW - 90 * S, deadline_ns=NOW - S),
            "expired 1 s",
        ),
        (
            changed(
                asked_ns=NOW + 5 * 3600 * S,
                start_ns=NOW + 5 * 3600 * S,
                deadline_ns=NOW + 5 * 3600 * S,
            ),
            "hours in the future",
        ),
    ],
)
def test_what_is_not_obeyed_says_why(tmp_path: Path, request_: RequestFile, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        read_request(written(tmp_path, request_), now_ns=NOW)


@given(content=st.binary(max_size=400))
def test_any_bytes_are_refused(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("any") / f"{ID}.json"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(RefusedError):
        read_request(file, now_ns=NOW)


@given(cut=st.integers(0, len(msgspec.json.encode(REQUEST)) - 1))
def test_half_a_request_is_refused(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("half") / f"{ID}.json"
    file.write_bytes(msgspec.json.encode(REQUEST)[:cut])
    file.chmod(0o600)
    with pytest.raises(RefusedError, match="is no request"):
        read_request(file, now_ns=NOW)


def test_a_rank_that_would_trace_another_time_does_not_begin() -> None:
    check_start(REQUEST, now_ns=REQUEST.start_ns + 2 * S)
    with pytest.raises(
        RefusedError, match=r"seen 2\.1 s after the start, when the trace had ended"
    ):
        check_start(REQUEST, now_ns=REQUEST.start_ns + 2_100_000_000)
    check_start(changed(kind="stacks"), now_ns=REQUEST.start_ns + 50 * S)


# The folder ---------------------------------------------------------------------------------------


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    inbox = Inbox(tmp_path)
    inbox.make()
    return inbox


def test_each_request_is_news_once(inbox: Inbox) -> None:
    assert inbox.news() == []
    written(inbox.folder)
    assert inbox.news() == [ID]
    assert inbox.news() == []
    assert inbox.news() == []


def test_a_change_within_the_same_tick_is_seen_by_the_next_look(inbox: Inbox) -> None:
    """Some file systems count in seconds, and a look may fall between two changes."""
    inbox.news()
    inbox.news()
    (inbox.folder / "first").touch()
    changed_ns = inbox.folder.stat().st_mtime_ns
    assert inbox.news() == []
    written(inbox.folder)
    os.utime(inbox.folder, ns=(changed_ns, changed_ns))
    assert inbox.news() == [ID]


def test_an_unchanged_folder_is_not_listed(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        inbox.news()
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", lambda _: pytest.fail("listed"))
        assert inbox.news() == []


def test_other_files_are_no_requests(inbox: Inbox) -> None:
    for name in (f".{ID}.json.12.part", "notes.json", f"{ID}.txt", f"run-{ID}.json", "a\nb.json"):
        (inbox.folder / name).touch()
    (inbox.folder / ID).mkdir()
    assert inbox.news() == []


def test_a_folder_that_is_gone_has_no_news(inbox: Inbox) -> None:
    inbox.folder.rmdir()
    assert inbox.news() == []
    inbox.make()
    written(inbox.folder)
    assert inbox.news() == [ID]


def test_a_run_directory_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "gone")
    inbox.make()
    assert inbox.news() == []
    assert not (tmp_path / "gone").exists()


def test_a_link_in_place_of_the_folder_has_no_news(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    written(elsewhere)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "requests").symlink_to(elsewhere)
    assert Inbox(tmp_path / "run").news() == []


def test_requests_in_a_folder_that_others_may_write_count_for_nothing(inbox: Inbox) -> None:
    inbox.folder.chmod(0o777)
    written(inbox.folder)
    with pytest.raises(RefusedError, match="can be written by other users"):
        inbox.news()


def test_answers_go_only_into_folders_of_this_user(tmp_path: Path) -> None:
    ours, open_to_all, link = tmp_path / "ours", tmp_path / "open", tmp_path / "link"
    ours.mkdir(0o700)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link.symlink_to(ours)
    assert is_our_folder(ours)
    assert not is_our_folder(open_to_all)
    assert not is_our_folder(link)
    assert not is_our_folder(tmp_path / "absent")
