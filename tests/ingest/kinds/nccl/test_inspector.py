"""Records of NCCL Inspector: every version of the format, damage, sampling, who is late when."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distprof
from distprof.errors import InputError
from distprof.ingest.kinds.nccl import fits_nccl_inspector, read_nccl_inspector
from distprof.ingest.nccl import inspector
from distprof.ingest.nccl.inspector import Inspection
from distprof.join.nccl import compared
from distprof.terms import CollectiveKind
from tests.inspector_records import MB, START_US, Job


def late(step, rank):
    return 20_000.0 if rank == 3 and 50 <= step < 100 else 0.0


@pytest.mark.parametrize("form", ["v4.0", "v4.3"])
def test_known_facts_of_a_generated_job(form, tmp_path):
    folder = Job(steps=30, form=form).write(tmp_path / "records")
    assert fits_nccl_inspector(str(folder))
    log = read_nccl_inspector(str(folder))
    assert log.num_records == 4 * 30 * 2
    assert log.formats == (form,)
    assert log.num_dropped == (8 if form == "v4.3" else 0)
    assert log.world_size == 4
    assert set(log.hosts) == {"node-1", "node-2"}
    assert log.first_ns == START_US * 1_000
    world = [one for one in log.classes if one.num_ranks == 4]
    assert [(one.kind, one.num_bytes, one.num_nodes) for one in world] == [
        (CollectiveKind.ALL_REDUCE, 64 * MB, 2)
    ]
    assert sorted(m.rank for m in log.members) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert log.notes == ()


def test_waiting_is_what_exceeds_the_last_ranks_duration(tmp_path):
    folder = Job(steps=150, late_us=late).write(tmp_path / "records")
    log = read_nccl_inspector(str(folder))
    found = compared(log)
    assert len(found) == 150 * 3  # an all-reduce and two all-gathers a step
    waiting = found.wait_ns > 1_000_000
    assert waiting.sum() == 50
    assert set(found.last_rank[waiting].tolist()) == {3}
    assert np.all(found.wait_ns[waiting] == 3 * 20_000_000)
    assert np.all(np.diff(found.t_ns) >= 0)


def test_the_report_names_the_rank_and_the_time(tmp_path):
    folder = Job(steps=150, late_us=late).write(tmp_path / "records")
    report = distprof.analyze(str(folder))
    result = report.collective_log
    (spell,) = result.spells
    assert spell.rank == 3
    start_s, end_s = ((t / 1e9 - START_US / 1e6) for t in (spell.start_ns, spell.end_ns))
    assert round(start_s) == 50
    assert round(end_s) == 99
    assert spell.blamed_ratio > 0.99
    all_reduce = next(one for one in result.operations if one.kind == "all_reduce")
    assert all_reduce.busbw_bytes_per_s == pytest.approx(100e9, rel=0.02)
    assert "STR111" in {finding.code for finding in report.findings}
    assert result.falls == ()


def test_the_report_names_a_fall_of_bandwidth(tmp_path):
    slow = Job(steps=300, gb_per_s=lambda step: 100.0 if step < 200 else 40.0)
    report = distprof.analyze(str(slow.write(tmp_path / "records")))
    fall = next(one for one in report.collective_log.falls if one.kind == "all_reduce")
    assert fall.is_last
    assert fall.usual_bytes_per_s == pytest.approx(100e9, rel=0.02)
    assert fall.bytes_per_s == pytest.approx(40e9, rel=0.02)
    assert report.findings[0].code == "COM125"
    assert report.collective_log.spells == ()


def test_healthy_records_give_no_finding(tmp_path):
    for seed in range(5):
        folder = Job(steps=300, seed=seed).write(tmp_path / str(seed))
        report = distprof.analyze(str(folder))
        assert [finding.code for finding in report.findings] == []
        assert report.verdict.headline.startswith(("0 %", "0.0"))


def test_a_job_of_one_late_rank_all_the_time_is_said_once(tmp_path):
    always = Job(steps=100, late_us=lambda step, rank: 20_000.0 * (rank == 2))
    report = distprof.analyze(str(always.write(tmp_path / "records")))
    assert [finding.code for finding in report.findings] == ["STR109"]
    assert report.findings[0].ranks == (2,)


def test_a_part_of_the_collectives_tells_the_same(tmp_path, monkeypatch):
    folder = Job(steps=400, late_us=late).write(tmp_path / "records")
    whole = compared(read_nccl_inspector(str(folder)))
    monkeypatch.setattr(inspector, "MAX_ROWS", 1_000)
    log = read_nccl_inspector(str(folder))
    assert log.sampled_one_in == 4
    assert len(log.table) <= 1_000
    assert log.num_records == 3_200
    some = compared(log)
    assert 200 < len(some) < 400  # of 1,200, each with all of its members
    assert set(some.last_rank[some.wait_ns > 1_000_000].tolist()) == {3}
    ratio = [found.wait_ns.sum() / found.total_ns.sum() for found in (some, whole)]
    assert ratio[0] == pytest.approx(ratio[1], abs=0.1)
    report = distprof.analyze(str(folder))
    assert any("one of 4 collectives" in why for why in report.collective_log.unavailable)


def test_a_folder_that_lacks_a_rank_is_not_compared_and_says_so(tmp_path):
    folder = Job(steps=30).write(tmp_path / "records")
    (folder / "node-2-pid4003.log").unlink()
    result = distprof.analyze(str(folder)).collective_log
    assert {one.kind for one in result.operations if one.num_compared} == {"all_gather"}
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "a.log").write_text("\n".join(Job(steps=30).lines(0)))
    result = distprof.analyze(str(folder)).collective_log
    assert result.num_compared == 0
    assert any("No collective has a record of every member" in why for why in result.unavailable)


def test_a_broken_line_costs_only_itself(tmp_path):
    lines = list(Job(steps=20).lines(0))
    lines[5] = lines[5][:-30]
    lines[7] = "garbage \x1b[2J"
    lines[9] = lines[9].replace('"coll_exec_time_us":', '"coll_exec_time_us":-')
    lines.append(lines[0][:100])  # the writer was killed
    path = tmp_path / "node-1-pid1.log"
    path.write_text("\n".join(lines))
    log = read_nccl_inspector(str(path))
    assert log.num_records == 40 - 3
    assert sorted(log.notes) == [
        "Skipped operations with implausible numbers: 1.",
        "Skipped unreadable lines: 3.",
    ]


def test_payloads_without_a_header_are_counted(tmp_path):
    lines = list(Job(steps=3, form="v4.3").lines(0))
    path = tmp_path / "cut.jsonl"
    path.write_text("\n".join([lines[1], *lines[2:]]))
    log = read_nccl_inspector(str(path))
    assert log.notes == ("Skipped operations without a header: 1.",)


def test_a_file_without_an_operation_is_refused(tmp_path):
    path = tmp_path / "empty.log"
    stats = next(Job(form="v4.3").lines(0))
    path.write_text(stats)
    with pytest.raises(InputError, match="no record of an operation"):
        read_nccl_inspector(str(path))


def test_messages_are_counted_and_not_compared(tmp_path):
    line = json.loads(next(Job().lines(0)))
    del line["coll_perf"]
    line["p2p_perf"] = {
        "p2p": "Send", "p2p_sn": 1, "p2p_peer": 1, "p2p_msg_size_bytes": 100,
        "p2p_exec_time_us": 7,
    }  # fmt: skip
    (tmp_path / "p2p.log").write_text(json.dumps(line))
    report = distprof.analyze(str(tmp_path / "p2p.log"))
    (one,) = report.collective_log.operations
    assert (one.kind, one.num_records, one.mean_ns, one.num_compared) == ("send", 1, 7_000, 0)


@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
@settings(max_examples=200)
def test_any_block_is_read_without_an_error(block):
    inspection = Inspection()
    inspection.take(b'{"coll_perf": ' + block + b"}\n")
    inspection.take(block)
    assert inspection.num_records == 0


def test_memory_stays_bounded_whatever_names_come(tmp_path, monkeypatch):
    monkeypatch.setattr(inspector, "MAX_MEMBERS", 3)
    monkeypatch.setattr(inspector, "MAX_CLASSES", 2)
    folder = Job(ranks=8, steps=10).write(tmp_path / "records")
    log = read_nccl_inspector(str(folder))
    assert len(log.members) == 3
    assert len(log.classes) == 2
    assert any("communicator members" in note for note in log.notes)


def test_records_go_with_a_recording_of_the_same_job(tmp_path):
    from distprof.run.evidence import InspectorLog

    folder = Job(steps=30).write(tmp_path / "records")
    log = tmp_path / "kernel.log"
    log.write_text("[1.0] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n")
    run = distprof.open_run(str(log), evidence=[str(folder)])
    assert run.get(InspectorLog).num_records == 240
