from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest
from distprof_probes.job.directory import (
    new_run_directory,
    rank_directory,
    read_run_file,
    write_run_file,
)
from distprof_probes.job.evidence import RankEvidence
from distprof_probes.job.finish import conclude
from distprof_probes.job.messages import plain
from distprof_probes.job.other_hosts import agreed_directory, evidence_of_others, report_endings

from distprof.artefacts.run_file import Exit, Failure, RankFile, RunFile
from distprof.errors import InputError, SchemaError, UsageError

RUN = RunFile(
    distprof_version="1", kind="run", command=("distprof", "run", "ddp"), started_ns=1, world_size=2
)


def test_a_new_directory_has_the_name_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = new_run_directory(None, "ddp"), new_run_directory(None, "ddp")
    assert first != second
    assert first.parent == tmp_path / "runs"
    assert first.name.startswith("ddp-20")


@pytest.mark.parametrize(
    ("name", "begins"), [("../../etc/train.py", "train-"), ("a b;c.py", "a-b-c-"), ("", "job-")]
)
def test_a_name_makes_one_plain_folder(
    name: str, begins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = new_run_directory(None, name)
    assert made.parent == tmp_path / "runs"
    assert made.name.startswith(begins)


def test_an_empty_folder_may_be_asked_for_and_a_full_one_not(tmp_path: Path) -> None:
    assert new_run_directory(tmp_path / "a" / "b", "x") == tmp_path / "a" / "b"
    (tmp_path / "a" / "b" / "file").touch()
    with pytest.raises(UsageError, match="is not empty"):
        new_run_directory(tmp_path / "a" / "b", "x")
    with pytest.raises(UsageError, match="is not a folder"):
        new_run_directory(tmp_path / "a" / "b" / "file", "x")


def test_run_json_comes_back_as_written_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_run_file(tmp_path, RUN)
    assert read_run_file(tmp_path) == RUN
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("has_links", [True, False])
def test_of_two_jobs_that_found_a_folder_empty_one_begins(
    tmp_path: Path, has_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:

        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
    first, second = new_run_directory(tmp_path, "x"), new_run_directory(tmp_path, "x")
    write_run_file(first, RUN, is_new=True)
    with pytest.raises(UsageError, match="another job has begun"):
        write_run_file(second, msgspec.structs.replace(RUN, started_ns=7), is_new=True)
    assert read_run_file(tmp_path) == RUN
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", InputError),
        (b"\xff\xfe", InputError),
        (b"{}", InputError),
        (
            b'{"schema":"distprof.run/2","distprof_version":"2","kind":"run","command":[],'
            b'"started_ns":0}',
            SchemaError,
        ),
    ],
)
def test_a_broken_run_json_is_said(tmp_path: Path, content: bytes, error: type[Exception]) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(error, match=r"run\.json"):
        read_run_file(tmp_path)


def test_the_end_joins_what_launcher_and_ranks_know(tmp_path: Path) -> None:
    write_run_file(tmp_path, RUN)
    rank_directory(tmp_path, 0).mkdir()
    (rank_directory(tmp_path, 0) / "rank.json").write_bytes(
        b'{"rank":0,"pid":42,"host":"node7","started_ns":1,"mesh":{"dp_shard":2}}'
    )
    rank_directory(tmp_path, 1).mkdir()
    (rank_directory(tmp_path, 1) / "rank.json").write_bytes(b'{"rank":1')
    failure = Failure(rank=1, kind="killed", message="rank 1 was killed")
    conclude(
        tmp_path,
        outcome="failed",
        exits={0: Exit(code=1), 1: Exit(signal="SIGKILL")},
        failure=failure,
        ended_ns=9,
    )
    run = read_run_file(tmp_path)
    assert (run.outcome, run.failure, run.ended_ns) == ("failed", failure, 9)
    assert [(entry.rank, entry.host, entry.pid) for entry in run.ranks] == [
        (0, "node7", 42),
        (1, "", None),
    ]
    assert [entry.exit.signal for entry in run.ranks if entry.exit] == ["", "SIGKILL"]
    assert run.mesh == {"dp_shard": 2}
    assert run.notes == ("1 rank.json could not be read: rank00001/rank.json.",)


def test_a_second_host_takes_the_description_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert agreed_directory(folder, is_first=True, describe=lambda: RUN) == folder

    def never() -> RunFile:
        raise AssertionError

    assert agreed_directory(folder, is_first=False, describe=never) == folder


def test_a_host_that_shares_no_folder_describes_the_run_itself(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    agreed_directory(folder, is_first=False, describe=lambda: RUN, patience_s=0)
    assert read_run_file(folder) == RUN


def test_the_first_host_hears_how_ranks_elsewhere_ended(tmp_path: Path) -> None:
    told = [
        RankEvidence(rank=2, exit=Exit(code=0, ended_ns=5), alive_until_ns=4),
        RankEvidence(rank=3, exit=Exit(signal="SIGKILL", ended_ns=6), struck_by="group"),
        RankEvidence(rank=4, exit=Exit(code=143, by_launcher=True), told_to_end_ns=7, state="T"),
        RankEvidence(rank=5, state="S"),
    ]
    report_endings(tmp_path, told)
    assert evidence_of_others(tmp_path, [2, 3, 4], patience_s=0.1) == told[:3]


def test_a_rank_that_wrote_here_and_whose_launcher_says_nothing_is_lost(tmp_path: Path) -> None:
    (tmp_path / "rank00001").mkdir()
    found = evidence_of_others(tmp_path, [1, 2], patience_s=0.1)
    assert [(each.rank, each.exit, each.is_lost) for each in found] == [
        (1, None, True),
        (2, None, False),  # or its folder is on another file system
    ]


def test_what_ranks_print_cannot_command_the_terminal() -> None:
    assert plain("\x1b[31mred\x07\u202e") == "\\x1b[31mred\\x07\\u202e"


def test_rank_files_of_the_contract_are_read(tmp_path: Path) -> None:
    assert RankFile(rank=0, pid=1, started_ns=0).schema == "distprof.rank/1"
