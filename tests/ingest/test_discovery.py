import gzip
import json

import fsspec
import pytest

from distprof.errors import InputError
from distprof.ingest.discovery import discover, open_trace, rank_in_name, ranks_in_names

TRACE = json.dumps({"schemaVersion": 1, "traceEvents": []}).encode()


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank-0.json", 0),
        ("run/rank00003/trace.json.gz", 3),
        ("rank3_trace.json", 3),
        ("worker12.pt.trace.json", 12),
        ("worker0_step_12.1694128201545.pt.trace.json.gz", 0),
        ("traces/rank_7.json.gz", 7),
        ("rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", 0),
        ("rank4/worker5.json", 5),
        ("node1_4242.1694128201545.pt.trace.json", None),
        ("trace.json", None),
        ("frank3.json", None),
    ],
)
def test_rank_is_read_from_names(path, rank):
    assert rank_in_name(path) == rank


@pytest.mark.parametrize(
    ("paths", "ranks"),
    [
        (["job/attempt_0/1/stderr.log", "job/attempt_0/0/stderr.log"], [1, 0]),
        (["0/stdout.log", "0/stderr.log", "1/stdout.log", "1/stderr.log"], [0, 0, 1, 1]),
        (["out/2.log", "out/0.log", "out/1.log.gz"], [2, 0, 1]),
        (["log.0.txt", "log.1.txt"], [0, 1]),
        (["rank3.log", "0.log"], [3, None]),
        (["seed0.log", "seed1.log"], [None, None]),
        (["1.log", "2.log"], [None, None]),
        (["0.log"], [None]),
        (["0.log", "1.log", "launcher.log"], [None, None, None]),
        ([], []),
    ],
)
def test_numbers_of_files_are_ranks_if_all_have_one_from_0_on(paths, ranks):
    assert ranks_in_names(paths) == ranks


def put(path, content=TRACE):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_a_nested_run_directory_gives_its_traces_in_order_of_rank(tmp_path):
    for rank in (10, 2):
        put(tmp_path / f"rank{rank:05d}" / "trace.json.gz")
        put(tmp_path / f"rank{rank:05d}" / "steps.jsonl", b"{}")
    for name in (
        "run.json",
        "report.json",
        "cache/ab/rank.json",
        "cache/ab/0f.tables",
        ".hidden/rank0.json",
    ):
        put(tmp_path / name)
    found = discover(str(tmp_path))
    assert [trace.name_rank for trace in found.traces] == [2, 10]
    assert found.folder == tmp_path
    assert found.gaps == ()


def test_traces_on_demand_of_a_run_directory_are_runs_of_their_own(tmp_path):
    """``distprof attach --all-nodes`` writes them below the job's own run directory."""
    asked = tmp_path / "requests" / "profile-20260101-120000-0a1b2c3d"
    for folder in (tmp_path, asked):
        put(folder / "rank00000" / "trace.json.gz")
        put(folder / "run.json", b"{}")
    assert [t.path for t in discover(str(tmp_path)).traces] == [
        str(tmp_path / "rank00000" / "trace.json.gz")
    ]
    assert [t.path for t in discover(str(asked)).traces] == [
        str(asked / "rank00000" / "trace.json.gz")
    ]


def test_a_folder_called_requests_that_is_not_of_a_run_directory_is_searched(tmp_path):
    put(tmp_path / "requests" / "rank0.json")
    assert len(discover(str(tmp_path)).traces) == 1


def test_traces_on_demand_behind_a_url_are_left_out_too():
    memory = fsspec.filesystem("memory")
    on_demand = "/job/requests/profile-20260101-120000-0a1b2c3d"
    memory.pipe({f"{at}/rank00000/trace.json": TRACE for at in ("/job", on_demand)})
    memory.pipe({f"{at}/run.json": b"{}" for at in ("/job", on_demand)})
    try:
        assert [t.path for t in discover("memory://job").traces] == [
            "memory:///job/rank00000/trace.json"
        ]
        assert len(discover(f"memory:/{on_demand}").traces) == 1
    finally:
        memory.rm("/job", recursive=True)


def test_other_files_become_one_gap_that_names_them(tmp_path):
    put(tmp_path / "rank0.json")
    put(tmp_path / "config.json", b'{"lr": 0.1}')
    put(tmp_path / "empty.json", b"")
    (tmp_path / "broken.json.gz").write_bytes(b"\x1f\x8bnot gzip")
    found = discover(str(tmp_path))
    assert [trace.name_rank for trace in found.traces] == [0]
    (gap,) = found.gaps
    assert gap.what == "not-a-trace"
    for words in ("config.json (another kind", "empty.json (empty", "broken.json.gz (damaged"):
        assert words in gap.message


@pytest.mark.parametrize(
    "content",
    [
        TRACE,
        b"\xef\xbb\xbf" + TRACE,
        b'[{"ph": "X", "name": "a"}]',
        b'\n {"deviceProperties": [' + b" " * 100 + b'], "traceEvents": [',
    ],
    ids=["object", "byte order mark", "list", "cut off"],
)
def test_traces_are_told_by_their_beginning(tmp_path, content):
    put(tmp_path / "a.json", content)
    put(tmp_path / "b.json.gz", content)
    assert len(discover(str(tmp_path)).traces) == 2


def test_installed_packages_and_environments_are_left_out(tmp_path):
    put(tmp_path / "env" / "pyvenv.cfg", b"")
    put(tmp_path / "env" / "share" / "rank0.json")
    put(tmp_path / "lib" / "site-packages" / "rank1.json")
    put(tmp_path / "README.md", b"Training is slow: 3 it/s with 1 GPU, 2 it/s with 8.")
    with pytest.raises(InputError, match="no file with a matching name"):
        discover(str(tmp_path))
    put(tmp_path / "out" / "rank2.json")
    assert [trace.name_rank for trace in discover(str(tmp_path)).traces] == [2]


def test_a_single_file_is_taken_at_its_word(tmp_path):
    path = put(tmp_path / "notes.txt", b'{"traceEvents": []}')
    (trace,) = discover(str(path)).traces
    assert trace.path == str(path)


def test_a_glob_gives_files_and_folders(tmp_path):
    put(tmp_path / "a" / "rank1.json")
    put(tmp_path / "b" / "rank0.json")
    put(tmp_path / "c" / "rank2.json")
    found = discover(str(tmp_path / "[ab]*"))
    assert [trace.name_rank for trace in found.traces] == [0, 1]
    assert [t.name_rank for t in discover(str(tmp_path / "*" / "rank2.json")).traces] == [2]


def test_urls_of_a_file_a_folder_and_a_glob():
    memory = fsspec.filesystem("memory")
    memory.pipe({"/run/rank0/trace.json": TRACE, "/run/rank1/trace.json": TRACE})
    memory.pipe({"/run/cache/ab/trace.json": TRACE, "/run/run.json": b"{}"})
    try:
        folder = discover("memory://run")
        assert [trace.path for trace in folder.traces] == [
            "memory:///run/rank0/trace.json",
            "memory:///run/rank1/trace.json",
        ]
        assert [t.name_rank for t in discover("memory://run/*/trace.json").traces] == [0, 1]
        (single,) = discover("memory://run/rank1/trace.json").traces
        with open_trace(single) as stream:
            assert stream.read() == TRACE
    finally:
        memory.rm("/run", recursive=True)


def test_a_file_url_is_a_path(tmp_path):
    put(tmp_path / "rank0.json")
    (trace,) = discover(f"file://{tmp_path}").traces
    with open_trace(trace) as stream:
        assert stream.read() == TRACE


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", "nothing of that name"),
        ("empty", "no file with a matching name"),
        ("others", "config.json (another kind of JSON)"),
    ],
)
def test_a_source_without_traces_says_what_was_found(tmp_path, name, words):
    (tmp_path / "empty").mkdir()
    put(tmp_path / "others" / "config.json", b"{}")
    with pytest.raises(InputError) as caught:
        discover(str(tmp_path / name))
    assert words in caught.value.found
    assert caught.value.fix


@pytest.mark.parametrize("url", ["nosuch://bucket/run", "memory://nowhere"])
def test_a_url_that_leads_nowhere_is_an_error_of_ours(url):
    with pytest.raises(InputError):
        discover(url)


@pytest.mark.parametrize(("name", "rank"), [("r7.txt", None), ("rank7.txt", 7), ("worker-7", None)])
def test_a_single_log_is_of_a_rank_that_its_name_says_in_full(name, rank):
    assert ranks_in_names([f"/home/frank/{name}"]) == [rank]
    assert ranks_in_names(["r6.txt", "r7.txt"]) == [6, 7]
