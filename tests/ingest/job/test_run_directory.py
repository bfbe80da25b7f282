"""run.json and what ranks say: found, merged, and lived without."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distprof
from distprof.artefacts import RUN_FILE
from distprof.errors import InputError, SchemaError
from distprof.ingest.job import find_run_directory, open_run_directory
from tests.ingest.job.recorded import job_folder
from tests.job_folders import START_NS, JobFolder


def job_of(path, **fields):
    return JobFolder(path, mesh={"dp_replicate": 2}, **fields)


def test_a_run_is_named_by_its_folder_its_file_or_the_folder_around_it(tmp_path):
    path = job_of(tmp_path / "runs" / "ddp").write()
    for source in (path, path / RUN_FILE, tmp_path / "runs", f"{path}/"):
        assert find_run_directory(str(source)) == str(path)


def test_bare_traces_are_no_run(tmp_path):
    (tmp_path / "rank00000").mkdir()
    (tmp_path / "rank00000" / "trace.json").write_text("{}")
    assert find_run_directory(str(tmp_path)) is None
    assert find_run_directory(str(tmp_path / "*.json")) is None
    assert find_run_directory(str(tmp_path / "nowhere")) is None


def test_of_several_runs_one_is_to_be_named(tmp_path):
    for name, started in (("old", START_NS), ("new", START_NS + 9)):
        job_of(tmp_path / name, started_ns=started).write()
    with pytest.raises(InputError, match="2 run directories: new, old") as raised:
        find_run_directory(str(tmp_path))
    assert raised.value.fix == f"name one; the newest is {tmp_path / 'new'}"


def test_a_newer_version_is_refused_with_the_way_out(tmp_path):
    path = job_of(tmp_path).write()
    told = json.loads((path / RUN_FILE).read_text()) | {"schema": "distprof.run/2"}
    (path / RUN_FILE).write_text(json.dumps(told))
    with pytest.raises(SchemaError, match="pip install --upgrade distprof"):
        open_run_directory(str(path))


def test_fields_of_later_versions_are_no_trouble(tmp_path):
    path = job_of(tmp_path).write()
    told = json.loads((path / RUN_FILE).read_text()) | {"weather": "fine"}
    (path / RUN_FILE).write_text(json.dumps(told))
    assert open_run_directory(str(path)).job.workload == "ddp"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema":"distprof.run/1"}', "\x00" * 50, '{"schema":3}']
)
def test_a_broken_run_file_is_a_gap_and_ranks_speak_for_it(tmp_path, content):
    job = job_of(tmp_path).rank_file(0, world_size=2, device="cpu").rank_file(1, world_size=2)
    job.write().joinpath(RUN_FILE).write_text(content)
    found = open_run_directory(str(tmp_path))
    assert [gap.what for gap in found.gaps] == ["run-file"]
    assert (found.job.kind, found.job.world_size) == ("session", 2)
    assert [entry.rank for entry in found.job.ranks] == [0, 1]


def test_without_run_file_a_session_is_what_its_ranks_say(tmp_path):
    job_of(tmp_path).rank_file(0, world_size=1, mesh={"dp": 1})
    assert find_run_directory(str(tmp_path)) == str(tmp_path)
    assert open_run_directory(str(tmp_path)).job.mesh == {"dp": 1}


def test_ranks_speak_where_the_launcher_was_killed(tmp_path):
    job = job_of(tmp_path, ended_ns=None, outcome="running")
    job.rank(1, device="", pid=None).rank_file(1, device="H100", coordinates={"dp_replicate": 1})
    found = open_run_directory(str(job.write())).job
    assert found.ranks[1].device == "H100"
    assert found.ranks[1].coordinates == {"dp_replicate": 1}


def test_a_launcher_that_lived_to_the_end_has_the_last_word(tmp_path):
    job = job_of(tmp_path).rank(1, device="H100").rank_file(1, device="stale")
    assert open_run_directory(str(job.write())).job.ranks[1].device == "H100"


def test_damaged_files_of_ranks_are_a_gap(tmp_path):
    job = job_of(tmp_path)
    (job.rank_dir(1) / "rank.json").write_text("{")
    found = open_run_directory(str(job.write()))
    assert [(gap.what, gap.ranks) for gap in found.gaps] == [("rank-file", (1,))]


def test_errors_come_in_order_of_time(tmp_path):
    job = job_of(tmp_path).error(0, "later", time_ns=START_NS + 5).error(1, "first")
    assert [e.message for e in open_run_directory(str(job.write())).errors] == ["first", "later"]


def test_a_run_is_read_with_its_traces(tmp_path):
    job = job_folder("gloo-hsdp-4ranks", tmp_path / "run", strategy="HSDP")
    for rank in range(4):
        job.rank(rank, node=rank // 2, host="vm")
    run = distprof.open_run(job.write(), use_cache=False)
    assert run.run_dir == str(tmp_path / "run")
    assert {rank.rank_origin for rank in run} == {"run.json"}
    assert run.topology.nodes == {"node0": (0, 1), "node1": (2, 3)}
    assert run.topology.node_origin == "run.json"
    assert run.gaps == ()
    assert sorted(run.records) == [0, 1, 2, 3]
    report = distprof.analyze(run)
    assert report.run.strategy == "HSDP"
    assert report.run.mesh == {"dp_replicate": 2, "dp_shard": 2}
    assert (report.job.kind, report.job.workload, report.job.outcome) == ("run", "ddp", "completed")


def test_the_folder_tells_the_rank_of_a_trace_that_says_nothing(tmp_path):
    job = job_of(tmp_path / "run")
    job.trace(1, job_folder("gloo-pp-4ranks", tmp_path / "x").rank_dir(0) / "trace.json.gz")
    run = distprof.open_run(job.write(), use_cache=False)
    assert [rank.rank for rank in run] == [1]


def test_a_run_without_traces_is_still_a_run(tmp_path):
    job = job_of(tmp_path / "run").probe("profiler", "off", "always-on mode")
    job.steps(0, [10, 10, 10]).steps(1, [10, 11, 10])
    run = distprof.open_run(job.write())
    assert len(run) == 0
    assert [gap.what for gap in run.gaps] == ["no-traces"]
    assert "always-on mode" in run.gaps[0].message
    report = distprof.analyze(run)
    assert report.step_log.num_steps == 3
    assert report.run.world_size == 2
    assert report.findings == ()


def test_ranks_that_were_not_to_be_traced_are_not_missing(tmp_path):
    from distprof.artefacts.run_file import Coverage

    job = job_folder(
        "gloo-hsdp-4ranks",
        tmp_path / "run",
        coverage=Coverage(profiled_ranks=(0, 1), text="replica"),
    )
    for rank in (2, 3):
        (job.rank_dir(rank) / "trace.json.gz").unlink()
    report = distprof.analyze(distprof.open_run(job.write(), use_cache=False))
    gap = next(gap for gap in report.capture.gaps if gap.what == "chosen-ranks")
    assert "replica" in gap.message
    assert "CAP101" not in {finding.code for finding in report.findings}


def test_a_rank_that_should_have_been_traced_is_missing_with_the_reason(tmp_path):
    job = job_folder("gloo-hsdp-4ranks", tmp_path / "run")
    (job.rank_dir(3) / "trace.json.gz").unlink()
    from distprof.artefacts.run_file import ProbeStatus

    status = ProbeStatus(name="profiler", state="yielded", reason="the script profiles itself")
    run = distprof.open_run(job.rank(3, probes=(status,)).write(), use_cache=False)
    gap = next(gap for gap in run.gaps if gap.what == "missing-ranks")
    assert gap.ranks == (3,)
    assert "the script profiles itself" in gap.message


def test_only_chosen_ranks_are_read(tmp_path):
    job = job_folder("gloo-hsdp-4ranks", tmp_path / "run")
    run = distprof.open_run(job.write(), ranks=[1, 2], use_cache=False)
    assert [rank.rank for rank in run] == [1, 2]
    assert sorted(run.records) == [1, 2]
    with pytest.raises(InputError, match="none of them"):
        distprof.open_run(tmp_path / "run", ranks=[7])


def test_unreadable_traces_leave_the_log(tmp_path):
    job = job_of(tmp_path / "run").steps(0, [10, 10])
    (job.rank_dir(0) / "trace.json.gz").write_bytes(b"\x1f\x8b\x08\x00 broken")
    run = distprof.open_run(job.write(), use_cache=False)
    assert len(run) == 0
    assert distprof.analyze(run).step_log.num_steps == 2


@given(st.binary(max_size=200))
def test_no_run_file_stops_the_reading(tmp_path_factory, noise):
    folder = tmp_path_factory.mktemp("run")
    (folder / RUN_FILE).write_bytes(noise)
    assert open_run_directory(str(folder)).job.kind == "session"


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5) | st.booleans() | st.floats(),
        lambda children: (
            st.lists(children, max_size=3)
            | st.dictionaries(st.sampled_from(["ranks", "mesh", "failure", "rank"]), children)
        ),
        max_leaves=8,
    ),
    st.sampled_from(["ranks", "mesh", "world_size", "failure", "faults", "coverage", "versions"]),
)
def test_fields_of_any_type_leave_a_run_or_a_gap(tmp_path_factory, value, name):
    job = job_of(tmp_path_factory.mktemp("run"))
    told = msgspec.to_builtins(job.run_file()) | {name: value}
    (job.path / RUN_FILE).write_bytes(msgspec.json.encode(told))
    report = distprof.analyze(distprof.open_run(job.path, use_cache=False))
    assert str(report)


def test_a_job_that_ended_before_the_window_says_so(tmp_path):
    """The profiler was on and had nothing to record."""
    why = "the job ended before step 14"
    job = job_of(tmp_path / "run").probe("profiler", "on", f"nothing was traced: {why}")
    job.steps(0, [10, 10, 10]).steps(1, [10, 11, 10])
    run = distprof.open_run(job.write())
    assert run.gaps[0].message == f"No rank was traced ({why})."
