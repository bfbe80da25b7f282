"""Tables of other tools: small ones by hand, then published ones with their known facts."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distprof.api import analyze, open_run
from distprof.errors import InputError
from distprof.ingest.kinds.small_tables import (
    fits_collective_summary,
    fits_input_readiness,
    read_collective_summary,
    read_input_readiness,
)
from distprof.sections.shows import judge

US = 1_000
GOLDEN = Path(__file__).parents[1] / "golden"
SUMMARY = str(GOLDEN / "summaries" / "llama70b-fsdp-mi300x-8gpu.csv")
READINESS = str(GOLDEN / "summaries" / "data_readiness_8ranks.json")
HEADER = (
    "rank,Process Group Name,Process Group Ranks,Collective name,dtype,In msg nelems,"
    "Out msg nelems,dur_mean,operation_count\n"
)


def table(folder: Path, *rows: str) -> str:
    path = folder / "nccl.csv"
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    assert fits_collective_summary(str(path))
    return str(path)


@pytest.mark.parametrize(("unit", "scale"), [("ns", 1_000), ("us", 1)])
def test_htas_table_of_kernels_tells_who_comes_last(unit, scale, tmp_path):
    rows = [
        f"{i},ncclDevKernel_AllReduce_Sum_f32_RING_LL,{10 * mean * scale},1,1,{mean * scale},0,"
        f"COMMUNICATION,{rank}\n{i},gemm,5,1,1,5,0,COMPUTATION,{rank}\n"
        f"{i},others,5,1,1,5,0,COMMUNICATION,{rank}\n"
        for i, (rank, mean) in enumerate([(0, 90), (1, 30), (2, 90)])
    ]
    path = tmp_path / "hta.csv"
    head = f",name,sum ({unit}),max ({unit}),min ({unit}),mean ({unit}),stddev,kernel_type,rank\n"
    path.write_text(head + "".join(rows))
    assert fits_collective_summary(str(path))
    result = analyze(str(path)).collective_summary
    (one,) = result.classes
    assert (one.kind, one.num_calls, one.shortest_ns) == ("all_reduce", 10, 30 * US)
    assert (one.last_rank, result.late_rank) == (1, 1)
    assert one.wait_ns == 40 * US


def test_the_last_to_come_is_the_one_with_the_shortest_call(tmp_path):
    path = table(
        tmp_path,
        '0,tp,"[0, 1]",allreduce,BFloat16,500,500,30,10',
        '1,tp,"[0, 1]",allreduce,BFloat16,500,500,10,10',
    )
    result = analyze(path).collective_summary
    (one,) = result.classes
    assert (one.kind, one.num_bytes, one.num_calls) == ("all_reduce", 1_000, 10)
    assert (one.mean_ns, one.shortest_ns, one.wait_ns) == (20 * US, 10 * US, 10 * US)
    assert (one.last_rank, one.first_rank) == (1, 0)
    assert result.late_rank == 1
    assert result.wait_ratio == pytest.approx(200 / 400)
    assert result.blamed_ratio == 1
    assert [rank.wait_ns for rank in result.ranks] == [200 * US, 0]


@pytest.mark.parametrize(
    "rows",
    [
        ('0,tp,"[0, 1]",allreduce,Float,1,1,30,10',),
        ('0,tp,"[0, 1]",broadcast,Float,1,1,30,10', '1,tp,"[0, 1]",broadcast,Float,1,1,10,10'),
    ],
)
def test_nobody_is_blamed_where_members_lack_or_need_not_wait(tmp_path, rows):
    result = analyze(table(tmp_path, *rows)).collective_summary
    assert result.late_rank is None
    assert result.wait_ratio is None
    assert result.unavailable


def test_a_table_cut_to_rows_without_time_says_so(tmp_path):
    table = tmp_path / "collectives.log"
    table.write_text(
        "Comm. Op            Message Size        Count               Total Latency(ms)   Avg\n"
        "AvgAvgAv     0.00                0.00\n"
        "                    4.0 KB              100                 8."
    )
    report = analyze(str(table))
    assert judge(report).headline == "The table of collectives has no times other than 0"


def test_several_rows_of_a_rank_are_one(tmp_path):
    path = table(
        tmp_path,
        "0,tp,,allreduce,Float,1,1,10,3",
        "0,tp,,allreduce,Float,1,1,50,1",
        "1,tp,,allreduce,Float,1,1,20,4",
    )
    (one,) = analyze(path).collective_summary.classes
    assert one.num_ranks == 2
    assert (one.mean_ns, one.wait_ns) == (20 * US, 0)


def test_rows_that_cannot_be_read_are_counted(tmp_path):
    path = table(tmp_path, "0,tp,,allreduce,Float,1,1,10,3", "x,tp,,allreduce,Float,1,1,10,3", ",")
    log = read_collective_summary(path)
    assert len(log.rank) == 1
    assert log.notes == ("Unreadable rows, skipped: 2.",)


def test_rank_4_of_the_published_table_comes_last_and_rank_0_waits_longest():
    report = analyze(SUMMARY)
    one = report.collective_summary.classes[0]
    assert one.kind == "reduce_scatter"
    assert one.num_bytes == 855_654_400 * 4  # 3,264 MiB
    assert (one.last_rank, one.first_rank) == (4, 0)
    assert one.shortest_ns == pytest.approx(11.7e6, abs=0.05e6)
    log = read_collective_summary(SUMMARY)
    means = log.mean_ns[log.class_index == 0] / 1e6
    by_rank = dict(zip(log.rank[log.class_index == 0].tolist(), means.round(1), strict=True))
    assert by_rank == {0: 71.8, 1: 49.9, 2: 31.4, 3: 39.1, 4: 11.7, 5: 26.2, 6: 54.1, 7: 52.2}
    even = next(c for c in report.collective_summary.classes if c.num_bytes == 2_101_354_496 * 4)
    assert even.mean_ns == pytest.approx(23e6, abs=0.1e6)
    assert even.wait_ns < 0.1e6
    assert report.collective_summary.late_rank == 4
    assert [finding.code for finding in report.findings] == ["STR109"]
    assert judge(report).headline.startswith("Rank 4 holds the others up")


def readiness(folder: Path, **columns: list) -> str:
    path = folder / "ready.json"
    path.write_text(json.dumps(columns), encoding="utf-8")
    assert fits_input_readiness(str(path))
    return str(path)


def test_a_job_is_as_ready_as_its_least_ready_rank(tmp_path):
    path = readiness(tmp_path, event_time=["60", "120"], **{"0": ["1", "0.5"], "1": ["0.2", ""]})
    result = analyze(path).input_readiness
    assert result.job_ratio == pytest.approx((0.2 + 0.5) / 2)
    assert [rank.mean_ratio for rank in result.ranks] == [0.75, 0.2]
    assert [rank.least_ratio for rank in result.ranks] == [0.5, 0.5]
    assert [rank.num_missing for rank in result.ranks] == [0, 1]
    assert result.interval_s == 60


def test_periods_name_the_late_rank_of_each_time(tmp_path):
    first = ["0.1"] * 50 + ["1"] * 50
    second = ["1"] * 50 + ["0.1"] * 50
    times = [str(60 * n) for n in range(100)]
    path = readiness(tmp_path, event_time=times, **{"3": first, "5": second})
    periods = analyze(path).input_readiness.periods
    assert [(p.rank, p.num_samples) for p in periods] == [(3, 50), (5, 50)]


def test_ready_ranks_are_no_finding(tmp_path):
    path = readiness(tmp_path, event_time=["1", "2"], **{"0": [1, 1], "1": [1, 0.95]})
    report = analyze(path)
    assert report.findings == ()
    assert report.input_readiness.periods == ()
    assert "ready" in judge(report).headline


def test_the_published_readiness_wanders_from_rank_4_to_rank_0():
    report = analyze(READINESS)
    result = report.input_readiness
    assert (result.num_samples, len(result.ranks)) == (173, 8)
    order = [period.rank for period in result.periods]
    assert order[0] == 4
    assert order[-1] == 0
    assert [finding.code for finding in report.findings] == ["INP108"]


def test_tables_go_with_traces():
    run = open_run(GOLDEN / "kineto" / "gloo-ddp-2ranks", evidence=[SUMMARY, READINESS])
    report = analyze(run)
    assert report.collective_summary.late_rank == 4
    assert report.input_readiness.num_samples == 173
    assert "STR109" not in {finding.code for finding in report.findings}  # traces tell better


@pytest.mark.parametrize(
    "text",
    ["{", '{"event_time": 5}', '{"event_time": ["1"], "0": []}', '{"event_time": [], "0": []}'],
)
def test_broken_readiness_is_refused_with_a_sentence(tmp_path, text):
    path = tmp_path / "ready.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        read_input_readiness(str(path))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cuts=st.lists(st.tuples(st.integers(0, 7_000), st.integers(0, 255)), max_size=30))
@pytest.mark.parametrize("source", [SUMMARY, READINESS])
def test_mutated_tables_give_a_result_or_a_sentence(tmp_path, source, cuts):
    data = bytearray(Path(source).read_bytes())
    for place, value in cuts:
        data[place] = value
    path = tmp_path / Path(source).name
    path.write_bytes(bytes(data))
    with suppress(InputError):
        assert analyze(str(path)).run.source == str(path)
