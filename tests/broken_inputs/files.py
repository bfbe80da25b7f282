"""Odd files and folders."""

from __future__ import annotations

import os
from pathlib import Path

from tests.broken_inputs.intact import (
    EITHER,
    GZ,
    INTACT,
    NOISE,
    REFUSED,
    TOLD,
    Build,
    Cases,
    Outcome,
    content,
    dumped,
    intact,
)

CASES = Cases()


def missing(folder: Path) -> Path:
    return folder / "no-such-trace.json"


def nothing(folder: Path) -> Path:
    return folder


def unrelated_files(folder: Path) -> Path:
    (folder / "README.md").write_text("results")
    (folder / "loss.csv").write_text("step,loss\n")
    return folder


def only_bad_traces(folder: Path) -> Path:
    for number in range(3):
        (folder / f"rank{number}.json").write_bytes(NOISE)
    return folder


def one_good_among_bad(folder: Path) -> Path:
    only_bad_traces(folder)
    (folder / "rank7.json").write_bytes(dumped(intact()))
    return folder


def folder_named_as_a_trace(folder: Path) -> Path:
    path = folder / "trace.json.gz"
    path.mkdir()
    return path


def dangling_link(folder: Path) -> Path:
    path = folder / "trace.json"
    path.symlink_to(folder / "gone.json")
    return path


def link_to_itself(folder: Path) -> Path:
    path = folder / "trace.json"
    path.symlink_to(path)
    return path


def folder_that_contains_itself(folder: Path) -> Path:
    (folder / "rank0.json").write_bytes(INTACT)
    (folder / "again").symlink_to(folder, target_is_directory=True)
    return folder


def folder_with_special_files(folder: Path) -> Path:
    (folder / "rank0.json").write_bytes(INTACT)
    os.mkfifo(folder / "rank1.json")
    (folder / "rank2.json").symlink_to("/dev/zero")
    (folder / "rank3.json").mkdir()
    return folder


def same_rank_twice(folder: Path) -> Path:
    (folder / "a.json").write_bytes(INTACT)
    (folder / "b.json").write_bytes(INTACT)
    return folder


def different_jobs(folder: Path) -> Path:
    (folder / "a.json").write_bytes(dumped(intact(0, 2)))
    (folder / "b.json").write_bytes(dumped(intact(1, 16)))
    return folder


def rank_of_a_billion(folder: Path) -> Path:
    (folder / "a.json").write_bytes(dumped(intact(0, 2)))
    (folder / "b.json").write_bytes(
        dumped(intact(1, 2)).replace(b'"rank": 1', b'"rank": 999999999')
    )
    return folder


def world_of_a_billion(folder: Path) -> Path:
    trace = dumped(intact()).replace(b'"world_size": 1', b'"world_size": 1000000000')
    return content(trace)(folder)


def named(name: bytes) -> Build:
    """A folder with the intact trace under an odd file name."""

    def build(folder: Path) -> Path:
        path = os.fsencode(folder) + b"/" + name
        with open(path, "wb") as file:  # noqa: PTH123  # Path takes no bytes
            file.write(INTACT)
        return Path(os.fsdecode(path))

    return build


def run_folder_of_rubbish(folder: Path) -> Path:
    (folder / "run.json").write_bytes(NOISE)
    (folder / "report.json").write_bytes(NOISE)
    (folder / "rank00000").mkdir()
    (folder / "rank00000" / "trace.json.gz").write_bytes(GZ)
    return folder


FILES: dict[str, tuple[Outcome, Build]] = {
    "a file that does not exist": (REFUSED, missing),
    "an empty folder": (REFUSED, nothing),
    "a folder of other files": (REFUSED, unrelated_files),
    "a folder of rubbish under trace names": (REFUSED, only_bad_traces),
    "one good trace among bad ones": (TOLD, one_good_among_bad),
    "an empty folder named as a trace": (REFUSED, folder_named_as_a_trace),
    "a dangling link": (REFUSED, dangling_link),
    "a link to itself": (REFUSED, link_to_itself),
    "a folder that contains itself": (EITHER, folder_that_contains_itself),
    "the same rank twice": (TOLD, same_rank_twice),
    "traces of different jobs": (TOLD, different_jobs),
    "a rank of a billion": (EITHER, rank_of_a_billion),
    "a world of a billion ranks": (EITHER, world_of_a_billion),
    "a file name with escape codes": (EITHER, named(b"\x1b[31mtrace.json")),
    "a file name with a newline": (EITHER, named(b"a\nb.json")),
    "a file name that is not UTF-8": (EITHER, named(b"tr\xff\xfeace.json")),
    "a file name with markup": (EITHER, named(b"[bold]trace[].json")),
    "a file name that looks like an option": (EITHER, named(b"--help.json")),
    "a run folder with a rubbish run.json": (EITHER, run_folder_of_rubbish),
}
for _name, (_outcome, _build) in FILES.items():
    CASES.add(_name, _outcome, _build)
