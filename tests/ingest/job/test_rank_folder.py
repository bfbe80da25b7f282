"""Records of one rank as tables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts import MOE_FILE, NVML_FILE, STEPS_FILE
from distprof.artefacts.records import ClockStamp, MemoryRecord, MoeRecord, NvmlRecord, Pause
from distprof.ingest.job.rank_folder import RankFolder, read_clock_stamps
from distprof.schema import ABSENT
from tests.job_folders import MS, START_NS, JobFolder


@pytest.fixture
def job(tmp_path):
    return JobFolder(tmp_path / "run", mesh={"dp": 1})


def load(job):
    return RankFolder(0, str(job.rank_dir(0))).load()


def test_steps_and_their_phases(job):
    job.steps(0, [10, 20], traced=(1,), phases={"input": 0.1, "forward": 0.5}, tokens=64)
    records = load(job)
    log = records.step_log
    assert (log["end_ns"] - log["start_ns"]).tolist() == [10 * MS, 20 * MS]
    assert log["is_traced"].tolist() == [False, True]
    assert log["is_probed"].tolist() == [True, True]
    assert log["tokens"].tolist() == [64, 64]
    assert log["samples"].tolist() == [ABSENT, ABSENT]
    assert np.isnan(log["loss"]).all()
    assert records.phases.coded("name").decode() == ["input", "forward"] * 2
    spans = (records.phases["end_ns"] - records.phases["start_ns"]).tolist()
    assert spans == [MS, 5 * MS, 2 * MS, 10 * MS]


def test_what_is_not_measurable_is_absent_and_never_zero(job):
    job.memory(0, MemoryRecord(step=0, t_ns=START_NS, rss_bytes=5))
    job.nvml(0, NvmlRecord(t_ns=START_NS, power_w=300.5, throttle_reasons=()))
    records = load(job)
    assert records.memory["allocated_bytes"].tolist() == [ABSENT]
    assert records.memory["rss_bytes"].tolist() == [5]
    assert records.telemetry["sm_clock_mhz"].tolist() == [ABSENT]
    assert np.isnan(records.telemetry["energy_j"]).all()
    assert records.telemetry["power_w"].tolist() == [300.5]
    assert records.telemetry.coded("throttle_reasons").decode() == ["none"]


def test_reasons_and_errors_are_joined_by_commas(job):
    job.nvml(
        0,
        NvmlRecord(t_ns=START_NS, throttle_reasons=("sw_power_cap", "hw_slowdown"), xid=(79, 31)),
        NvmlRecord(t_ns=START_NS + 1),
    )
    table = load(job).telemetry
    assert table.coded("throttle_reasons").decode() == ["sw_power_cap,hw_slowdown", ""]
    assert table.coded("xid").decode() == ["79,31", ""]


def test_counts_per_expert_lie_one_after_another(job):
    routing = {"step": 0, "micro_batch": 0, "num_tokens": 3, "top_k": 2}
    job.moe(
        0,
        MoeRecord(layer="a", tokens_per_expert=(1, 5), **routing),
        MoeRecord(layer="b", tokens_per_expert=(2, 2, 2), capacity=2, dropped=1, **routing),
    )
    records = load(job)
    assert records.expert_tokens.tolist() == [1, 5, 2, 2, 2]
    assert records.routing["first"].tolist() == [0, 2]
    assert records.routing["num_experts"].tolist() == [2, 3]
    assert records.routing["capacity"].tolist() == [ABSENT, 2]


def test_pauses(job):
    job.pauses(
        0,
        Pause(kind="gc", start_ns=START_NS, end_ns=START_NS + 5, step=0, generation=2),
        Pause(kind="input", start_ns=START_NS + 9, end_ns=START_NS + 9),
    )
    table = load(job).pauses
    assert table.coded("kind").decode() == ["gc", "input"]
    assert table["step"].tolist() == [0, ABSENT]


@pytest.mark.parametrize(
    ("name", "schema", "line"),
    [
        (STEPS_FILE, "steps", '{"step":0,"start_ns":9,"end_ns":3}'),
        (STEPS_FILE, "steps", '{"step":-1,"start_ns":1,"end_ns":3}'),
        (STEPS_FILE, "steps", '{"step":0,"start_ns":1,"end_ns":99999999999999999999999}'),
        (STEPS_FILE, "steps", '{"step":"0","start_ns":1,"end_ns":3}'),
        (STEPS_FILE, "steps", '{"step":0,"start_ns":1,"end_ns":3,"phases":[["f",1]]}'),
        (MOE_FILE, "moe", '{"step":0,"layer":"a","micro_batch":0,"tokens_per_expert":[],'
         '"num_tokens":1,"top_k":1}'),
        (MOE_FILE, "moe", '{"step":0,"layer":"a","micro_batch":0,"tokens_per_expert":[-4],'
         '"num_tokens":1,"top_k":1}'),
        (NVML_FILE, "nvml", '{"t_ns":1,"power_w":"hot"}'),
        (NVML_FILE, "nvml", '{"t_ns":null}'),
    ],
)  # fmt: skip
def test_nonsense_is_left_out_and_counted(job, name, schema, line):
    header = f'{{"schema":"distprof.{schema}/1","rank":0}}\n'
    (job.rank_dir(0) / name).write_text(f"{header}{line}\n")
    records = load(job)
    tables = (records.step_log, records.routing, records.telemetry)
    assert [len(table) for table in tables] == [0, 0, 0]
    assert records.notes == (f"Skipped 1 damaged line in {name}.",)


def test_steps_of_a_restarted_session_are_in_order_of_time(job):
    job.steps(0, [10, 10])
    path = job.rank_dir(0) / STEPS_FILE
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *rows[::-1]]) + "\n")
    assert load(job).step_log["step"].tolist() == [0, 1]


def test_an_empty_folder_has_empty_tables(job):
    records = load(job)
    assert len(records.step_log) == len(records.telemetry) == len(records.expert_tokens) == 0
    assert (records.nccl_log_bytes, records.notes) == (None, ())


def test_the_nccl_log_is_told_by_its_size(job):
    (job.rank_dir(0) / "nccl.log").write_bytes(b"12345")
    assert load(job).nccl_log_bytes == 5


def test_clock_stamps_that_go_backwards_are_left_out(job):
    good = ClockStamp(t_sent_ns=START_NS, t_server_ns=START_NS, t_received_ns=START_NS + 4)
    bad = ClockStamp(t_sent_ns=START_NS, t_server_ns=START_NS, t_received_ns=START_NS - 4)
    job.clock(0, good, bad)
    stamps, notes = read_clock_stamps(0, str(job.rank_dir(0)))
    assert len(stamps) == 1
    assert notes == ("Rank 0: Skipped 1 damaged line in clock.jsonl.",)


@given(st.binary(max_size=300), st.sampled_from([STEPS_FILE, MOE_FILE, NVML_FILE]))
def test_no_file_stops_the_reading(tmp_path_factory, noise, name):
    folder = tmp_path_factory.mktemp("rank")
    (folder / name).write_bytes(noise)
    records = RankFolder(0, str(folder)).load()
    assert all(isinstance(note, str) for note in records.notes)
