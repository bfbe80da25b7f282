"""Fabric profiles: nccl-tests output with its known figures, our own files, nonsense refused."""

from __future__ import annotations

import gzip
import json
import os
import random
from importlib.resources import files
from pathlib import Path

import jsonschema
import msgspec
import pytest

from distprof.artefacts.fabric_file import FabricFile
from distprof.costs.fabric import expected_busbw
from distprof.errors import InputError
from distprof.ingest.fabric import BOUND, read_fabric
from distprof.terms import CollectiveKind
from distprof.verbs.fabric import fabric_verdict

GOLDEN = Path(__file__).parents[2] / "golden" / "nccl-tests"


def busbw(profile: FabricFile, size: int, *, in_place: bool = False) -> float:
    """GB/s."""
    curve = next(c for c in profile.curves if c.in_place == in_place)
    return next(p.busbw_bytes_per_s for p in curve.points if p.bytes == size) / 1e9


@pytest.mark.parametrize(
    ("name", "kind", "ranks", "nodes", "device", "sizes"),
    [
        ("aks-ndv4-16gpu-allreduce-rdma.log", "all_reduce", 16, None, "", 16),
        ("mlperf-v4.0-h100-8gpu-allreduce.log", "all_reduce", 8, 1, "NVIDIA H100 80GB HBM3", 6),
        ("mlperf-v5.0-b200-8gpu-allreduce.txt", "all_reduce", 8, 1, "NVIDIA B200", 1),
        ("mlperf-v5.0-b200-8gpu-alltoall-uint32.txt", "all_to_all", 8, 1, "NVIDIA B200", 3),
        ("superbench-a100-40gb-8gpu-allgather.log", "all_gather", 8, 1, "A100-SXM4-40GB", 29),
        ("superbench-a100-40gb-8gpu-allreduce.log", "all_reduce", 8, 1, "A100-SXM4-40GB", 32),
        ("superbench-a100-40gb-8gpu-broadcast.log", "broadcast", 8, 1, "A100-SXM4-40GB", 32),
    ],
)
def test_every_published_output_is_read_whole(name, kind, ranks, nodes, device, sizes):
    profile = read_fabric(str(GOLDEN / name))
    assert profile.origin == "nccl-tests"
    assert profile.device == device
    assert [c.in_place for c in profile.curves] == [False, True]
    for curve in profile.curves:
        assert (curve.kind, curve.group_size, curve.num_nodes) == (kind, ranks, nodes)
        assert len(curve.points) == sizes


def test_every_bandwidth_is_the_one_printed():
    """Ours come from times, sizes and bus factors; the printed ones are rounded to 0.01 GB/s."""
    for path in sorted(GOLDEN.iterdir()):
        profile = read_fabric(str(path))
        rows = [line.split() for line in path.read_text().splitlines()]
        rows = [row for row in rows if len(row) >= 11 and row[0].isdigit() and row[0] != "0"]
        assert rows
        for row in rows:
            for in_place, cell in ((False, row[-6]), (True, row[-2])):
                ours = busbw(profile, int(row[0]), in_place=in_place)
                assert ours == pytest.approx(float(cell), rel=2e-3, abs=0.0051)


def test_the_facts_known_of_each():
    aks = read_fabric(str(GOLDEN / "aks-ndv4-16gpu-allreduce-rdma.log"))
    assert round(busbw(aks, 8589934592)) == 187
    assert round(busbw(aks, 134217728, in_place=True)) == 114
    assert any("number of nodes is unknown" in note for note in aks.notes)
    h100 = read_fabric(str(GOLDEN / "mlperf-v4.0-h100-8gpu-allreduce.log"))
    assert round(busbw(h100, 704643072), 1) == 458.5
    assert h100.curves[0].points[0].num_iterations == 20
    assert "are too large for a fit" in h100.curves[0].refusal
    a100 = read_fabric(str(GOLDEN / "superbench-a100-40gb-8gpu-allreduce.log"))
    assert round(busbw(a100, 8589934592)) == 235
    assert a100.notes == ("2 rows without bytes or time were skipped.",)


def test_a_whole_sweep_of_a_node_gives_latency_and_bandwidth():
    curve = read_fabric(str(GOLDEN / "superbench-a100-40gb-8gpu-allreduce.log")).curves[0]
    assert curve.fit is not None
    assert curve.fit.alpha_ns * curve.fit.num_steps == pytest.approx(35_000, rel=0.1)
    assert curve.fit.bandwidth_bytes_per_s == pytest.approx(230e9, rel=0.05)
    assert curve.fit.worst_ratio > 0.5  # between 0.5 and 10 MB NCCL changes protocol


def test_the_better_half_is_what_is_expected():
    profile = read_fabric(str(GOLDEN / "mlperf-v5.0-b200-8gpu-allreduce.txt"))
    speed = expected_busbw(
        profile, CollectiveKind.ALL_REDUCE, group_size=8, num_nodes=1, num_bytes=40160460
    )
    assert speed == pytest.approx(406.3e9, rel=1e-3)


def test_a_profile_fits_the_shipped_schema_and_nonsense_does_not():
    schema = json.loads((files("distprof.artefacts") / "schema" / "fabric.schema.json").read_text())
    profile = read_fabric(str(GOLDEN / "superbench-a100-40gb-8gpu-broadcast.log"))
    document = json.loads(msgspec.json.encode(profile))
    jsonschema.validate(document, schema)
    document["curves"][0]["points"][0]["time_ns"] = "soon"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_our_own_profile_comes_back_as_it_was(tmp_path):
    profile = read_fabric(str(GOLDEN / "superbench-a100-40gb-8gpu-broadcast.log"))
    file = tmp_path / "fabric.json"
    file.write_bytes(msgspec.json.encode(profile))
    again = read_fabric(str(file))
    assert msgspec.structs.replace(again, source=profile.source) == profile


@pytest.mark.parametrize("name", ["log.txt", "all_gather_and_more.txt"])
def test_a_launcher_s_prefixes_and_other_words_do_no_harm(tmp_path, name):
    text = (GOLDEN / "superbench-a100-40gb-8gpu-broadcast.log").read_text()
    lines = [f"[1,0]<stdout>:{line}" for line in ["mpirun ./broadcast_perf", *text.splitlines()]]
    file = tmp_path / name
    file.write_text("NCCL INFO x\r\n".join(f"{line}\r\n" for line in lines))
    curve = read_fabric(str(file)).curves[0]
    assert (curve.kind, len(curve.points)) == ("broadcast", 32)


def test_several_tests_of_one_log_are_several_curves(tmp_path):
    text = (GOLDEN / "mlperf-v4.0-h100-8gpu-allreduce.log").read_text()
    other = (GOLDEN / "mlperf-v5.0-b200-8gpu-alltoall-uint32.txt").read_text()
    file = tmp_path / "all.log"
    file.write_text(text + other)
    kinds = [curve.kind for curve in read_fabric(str(file)).curves]
    assert kinds == ["all_reduce", "all_reduce", "all_to_all", "all_to_all"]


def test_values_that_nccl_tests_does_not_count_are_not_wrong(tmp_path):
    file = tmp_path / "alltoall.log"
    file.write_text(
        "  134217728  524288  float  191739  0.70  0.69  0e+00  190650  0.70  0.69  1e+00\n"
        "# Out of bounds values : 0 OK\n"
    )
    assert fabric_verdict(read_fabric(str(file))).startswith("all_to_all reaches 0.69 GB/s")


def test_wrong_values_are_told(tmp_path):
    file = tmp_path / "all_reduce.log"
    text = (GOLDEN / "mlperf-v5.0-b200-8gpu-allreduce.txt").read_text()
    text = text.replace("389.23      0", "389.23     17").replace(
        "values : 0 OK", "values : 1 FAILED"
    )
    file.write_text(text)
    profile = read_fabric(str(file))
    assert [curve.num_wrong for curve in profile.curves] == [1, 0]
    assert fabric_verdict(profile).startswith(
        "Results are wrong: nccl-tests found wrong values in 1 measurement of all_reduce."
    )


def test_a_crossover_is_not_named_if_no_line_fits():
    """The page says that no straight line fits, so the measured half is what counts."""
    profile = read_fabric(str(GOLDEN / "aks-ndv4-16gpu-allreduce-rdma.log"))
    curve = profile.curves[0]
    speed = {p.bytes: p.busbw_bytes_per_s for p in curve.points}
    best = max(speed.values())
    assert curve.fit is not None
    assert fabric_verdict(profile).endswith("but less than half of that up to 8.39 MB.")
    assert 2 * speed[8_388_608] < best <= 2 * min(v for k, v in speed.items() if k > 8_388_608)


def test_a_size_that_is_slow_is_named(tmp_path):
    """Small messages are slow by their latency, one in the middle is not."""
    times = {2**23: 1301, 2**24: 1880, 2**25: 1940, 2**26: 6580, 2**27: 8190, 2**28: 11820}
    speeds = {size: size / us / 1e3 for size, us in times.items()}
    rows = "\n".join(
        f"{size} {size // 4} float sum -1 {us} {speeds[size]:.2f} {1.875 * speeds[size]:.2f} 0"
        for size, us in times.items()
    )
    (tmp_path / "all_reduce.log").write_text(f"# nThread 1 nGpus 8 iters: 20\n{rows}\n")
    said = fabric_verdict(read_fabric(str(tmp_path / "all_reduce.log")))
    assert "reaches 42.6 GB/s" in said
    assert "only 19.1 GB/s at 67.1 MB, where smaller messages reach 32.4 GB/s" in said
    assert "less than half" not in said


def test_a_gzipped_log_is_read_like_the_log(tmp_path):
    log = GOLDEN / "superbench-a100-40gb-8gpu-allreduce.log"
    packed = tmp_path / "all_reduce.log.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    assert read_fabric(str(packed)).curves == read_fabric(str(log)).curves
    packed.write_bytes(gzip.compress(log.read_bytes())[:900])
    with pytest.raises(InputError, match="ended before"):
        read_fabric(str(packed))


def test_a_gzip_bomb_is_refused(tmp_path):
    packed = tmp_path / "bomb.log.gz"
    packed.write_bytes(gzip.compress(bytes(BOUND.num_bytes + 1), 9))
    with pytest.raises(InputError, match="a larger file"):
        read_fabric(str(packed))


def test_a_nameless_table_is_told_by_its_ratio_or_is_unknown(tmp_path):
    text = (GOLDEN / "superbench-a100-40gb-8gpu-allreduce.log").read_text()
    file = tmp_path / "log.txt"
    file.write_text(text)
    assert read_fabric(str(file)).curves[0].kind == "all_reduce"
    text = (GOLDEN / "superbench-a100-40gb-8gpu-allgather.log").read_text()
    file.write_text(text)
    assert read_fabric(str(file)).curves[0].kind == "all_gather"
    assert "all_gather and alltoall" in read_fabric(str(file)).notes[0]
    file.write_text(text.replace(" float ", " float none 0 "))  # of gather or scatter
    assert {curve.kind for curve in read_fabric(str(file)).curves} == {"unknown"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no row"),
        (b"\xff\xfe\x00garbage", "no row"),
        (b'{"schema": "distprof.run/1"}', "missing required field"),
        (b'{"schema": "distprof.fabric/9", "origin": "x", "curves": []}', "distprof.fabric/9"),
        (b"{" * 100_000, "malformed"),
        (
            b'{"schema":"distprof.fabric/1","origin":"x","curves":[{"kind":"os.system",'
            b'"group_size":2,"points":[]}]}',
            "an impossible bandwidth curve",
        ),
        (
            b'{"schema":"distprof.fabric/1","origin":"x","curves":[{"kind":"reduce","group_size":2,'
            b'"points":[{"bytes":0,"time_ns":1,"algbw_bytes_per_s":1,"busbw_bytes_per_s":1}]}]}',
            "an impossible bandwidth curve",
        ),
        (
            b'{"schema":"distprof.fabric/1","origin":"x","curves":[{"kind":"reduce","group_size":2,'
            b'"points":[{"bytes":1' + b"0" * 400 + b',"time_ns":1,"algbw_bytes_per_s":1,'
            b'"busbw_bytes_per_s":1}]}]}',
            "more than 64 bits",
        ),
    ],
)
def test_what_is_no_profile_is_refused_with_a_sentence(tmp_path, content, says):
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_fabric(str(file))


def test_a_table_of_an_unknown_test_has_the_bandwidth_that_it_prints(tmp_path):
    log = tmp_path / "test.log"
    log.write_text("1048576 131072 float 47.38 11.06 11.06 0e+00 46.84 11.19 11.19 0e+00\n")
    profile = read_fabric(str(log))
    assert fabric_verdict(profile).startswith("This test reaches 11.2 GB/s")
    assert profile.world_size is None


SIZES = """Before:
| Message Size | Time (us) | BusBW (Gbps) |
|---|---|---|
| 1 MB | 100 | 80 |
| 4 MB | 200 | {slow} |
After:
| Message Size | Time (us) | BusBW (Gbps) |
|---|---|---|
| 1 MB | 100 | 88 |
| 4 MB | 200 | 160 |
"""
OSU = "# OSU MPI-CUDA Bandwidth Test\n# Size      Bandwidth (MB/s)\n1    1.5\n4194304   11200.25\n"
LOG = "0: size(MB)   tavg(usec)  avgbw(GB/sec)\n0: 1.00   100.0   10.5\n0: 64.00   800.0   84.0\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SIZES.format(slow=40), "at 4.00 MB: After reaches 20.0 GB/s, Before 5.00 GB/s, 25.0 %"),
        (SIZES.format(slow=159), "at 1.00 MB: After reaches 11.0 GB/s, and Before differs little"),
        (OSU, "This test reaches 11.2 GB/s at 4.19 MB"),
        (LOG, "This test reaches 84.0 GB/s at 64.0 MB"),
    ],
)
def test_tables_of_other_programs_are_read_by_their_columns(tmp_path, text, says):
    log = tmp_path / "post.txt"
    log.write_text(text)
    assert says in fabric_verdict(read_fabric(str(log)))


def test_a_bandwidth_that_falls_in_the_largest_sizes_is_said(tmp_path):
    log = tmp_path / "post.txt"
    rows = (f" {4**n} 1 float none -1 9.0 {s} {s} 0\n" for n, s in BENT)
    log.write_text("".join(rows))
    assert "falls to 1.00 GB/s from 1.07 GB on" in fabric_verdict(read_fabric(str(log)))


BENT = ((13, 20.0), (14, 14.0), (15, 1.0))


def test_tests_that_did_not_join_are_named_even_without_rows(tmp_path):
    log = tmp_path / "test.log"
    rank = "#   Rank  0 Pid   {} on {} device  0 [0x00] Tesla V100-SXM2-16GB\n"
    start = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20\n"
    log.write_text(start * 2 + rank.format(1, "a") + rank.format(2, "b"))
    with pytest.raises(InputError, match=r"2 tests that ran each by itself[\s\S]*MPI=1"):
        read_fabric(str(log))
    log.write_text(start + rank.format(1, "a"))
    with pytest.raises(InputError, match=r"a single rank[\s\S]*MPI=1"):
        read_fabric(str(log))


def test_the_mean_is_shown_where_prints_break_the_rows(tmp_path):
    path = tmp_path / "all_reduce.log"
    start = "# nThread 1 nGpus 1 minBytes 536870912 maxBytes 536870912 step: 1048576(bytes)\n"
    path.write_text(
        f"{start}#   Rank  0 Pid  4100 on  alpha device  0 [0x00] Tesla V100-SXM2-32GB\n"
        "#   Rank  1 Pid  1800 on   beta device  0 [0x00] Tesla V100-SXM2-32GB\n"
        "  536870912     134217728   float     sumelapsed_a: 0.238\n"
        "   238609    2.25    2.25    N/Aelapsed_b: 0.238\n"
        "   238609    2.25    2.25    N/A\n"
        "# Avg bus bandwidth    : 2.25\n"
    )
    with pytest.raises(InputError, match=r"the mean bus bandwidth is 2\.25 GB/s"):
        read_fabric(str(path))
    path.write_text(start)
    with pytest.raises(InputError, match="cut before the rows of its table"):
        read_fabric(str(path))


def test_tests_of_one_size_each_are_one_of_all_sizes(tmp_path):
    log = tmp_path / "sweep.log"
    rank = "#   Rank  {0} Pid   {1} on node-a device  {0} [0x0{0}] NVIDIA GeForce RTX 4090\n"
    start = "# nThread 2 nGpus 1 minBytes {0} maxBytes {0} step: 2(factor)\n"
    row = "  {} 1 float sum {} {s} {s} N/A\n"
    log.write_text(
        "".join(
            start.format(size)
            + "".join(rank.format(rank_of, 7000 + size) for rank_of in (0, 1))
            + row.format(size, us, s=speed)
            for size, us, speed in (
                (64, 20.9, 0.01),
                (1 << 20, 149.1, 7.03),
                (1 << 26, 7369.7, 9.11),
            )
        )
    )
    (curve,) = read_fabric(str(log)).curves
    assert [point.bytes for point in curve.points] == [64, 1 << 20, 1 << 26]


def test_tags_of_mpirun_inside_of_rows_do_no_harm(tmp_path):
    log = tmp_path / "test.log"
    tag = "[1,0]<stdout>:"
    rows = (
        f"{tag}  {4**n}  1  float  sum  -1{tag}  9.0 {n}.0 {n}.5 0{tag}  9.0 1.0 1.0 0\n"
        for n in (5, 13)
    )
    log.write_text("".join(rows))
    assert [point.bytes for point in read_fabric(str(log)).curves[0].points] == [4**5, 4**13]


def test_rows_behind_a_word_in_brackets_need_no_blank(tmp_path):
    log = tmp_path / "post.txt"
    rows = (f"[STAT]:{4**n}   1   float   sum  -1  9.0 {n}.0 {n}.0 0\n" for n in (5, 9, 13))
    log.write_text("".join(rows))
    (curve,) = read_fabric(str(log)).curves
    assert len(curve.points) == 3


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_fabric(str(tmp_path / "absent.json"))


def test_no_damage_causes_anything_but_a_refusal(tmp_path):
    chance = random.Random(5)
    file = tmp_path / "all_reduce.log"
    texts = [path.read_bytes() for path in sorted(GOLDEN.iterdir())]
    texts.append(
        msgspec.json.encode(read_fabric(str(GOLDEN / "mlperf-v5.0-b200-8gpu-allreduce.txt")))
    )
    for _ in range(300):
        data = bytearray(chance.choice(texts))
        for _ in range(chance.randint(1, 30)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        file.write_bytes(bytes(data[: chance.randint(1, len(data))]))
        try:
            profile = read_fabric(str(file))
        except InputError:
            continue
        assert all(p.time_ns > 0 for curve in profile.curves for p in curve.points)


@pytest.mark.corpus
def test_the_tables_of_real_logs_with_prefixes_are_read():
    folder = os.environ.get("DISTPROF_CORPUS")
    if not folder:
        pytest.skip("DISTPROF_CORPUS names no folder")
    log = Path(folder).parent / "logs" / "nccl" / "2.9.9-a100-p4d-efa-2node-16gpu.log"
    if not log.is_file():
        pytest.skip(f"{log} is not there")
    curve = read_fabric(str(log)).curves[0]
    assert (curve.kind, curve.group_size, curve.num_nodes, curve.tier) == (
        "all_reduce", 16, 2, "across",
    )  # fmt: skip
    assert len(curve.points) == 30


VERBS = """                    RDMA_Write BW Test
 #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]
{rows}
---------------------------------------------------------------------------------------
"""


@pytest.mark.parametrize(("unit", "speed", "gbytes"), [("Gb", 96.0, 12.0), ("MB", 11444.0, 12.0)])
def test_bandwidths_of_perftest_are_those_of_a_link(tmp_path, unit, speed, gbytes):
    path = tmp_path / "ib_write_bw.log"
    path.write_text(VERBS.format(unit=unit, rows=f" 65536   5000   0.00    {speed}   0.18"))
    profile = read_fabric(str(path))
    assert profile.origin == "perftest"
    assert busbw(profile, 65536) == pytest.approx(gbytes, rel=1e-3)
    assert "message rate" not in fabric_verdict(profile)


def test_small_messages_of_perftest_decide_no_bandwidth(tmp_path):
    path = tmp_path / "ib_send_bw.log"
    path.write_text(VERBS.format(unit="MB", rows=" 1024   1000   0.00   **5544.28**   5.67"))
    assert "the bandwidth is not decided" in fabric_verdict(read_fabric(str(path)))


ROW = "  {size}  {count}  float  sum  -1  {time}  {alg}  {bus}  0\n"
LAST = "#  Rank {rank} Group  0 Pid  1 on host-{rank} device  3 [0x01] NVIDIA GB200\n"


def test_the_last_of_the_listed_gpus_gives_the_number_of_ranks(tmp_path):
    path = tmp_path / "all_reduce.log"
    row = ROW.format(size=1 << 30, count=1 << 28, time="3108.8", alg="345.38", bus="681.17")
    path.write_text(LAST.format(rank=71) + row + LAST.format(rank=143))
    profile = read_fabric(str(path))
    assert (profile.world_size, profile.hosts) == (72, ())
    assert profile.curves[0].num_nodes is None
    assert busbw(profile, 1 << 30) == pytest.approx(681.17, rel=1e-3)


def test_sizes_without_a_bandwidth_are_not_taken_for_a_single_rank(tmp_path):
    path = tmp_path / "all_reduce.log"
    path.write_text(ROW.format(size=8, count=2, time="12.9", alg="0.00", bus="0.00"))
    with pytest.raises(InputError, match="not decided, because messages of up to 8 B"):
        read_fabric(str(path))


TWO_RUNS = """
| Size | NCCL busbw (GB/s) | MSCCL busbw (GB/s) | gain (%) |
|------|-------------------|--------------------|----------|
| 1MB  | 20.1 | 35.2 | 75 |
| 1GB  | 230.5 | 180.1 | -22 |
"""
PARTS = """
Collective:             Alltoall
       Count        Size                Time, us                           Bandwidth, GB/s
                                 avg         min         max         avg         min         max
       65536      262144       76.00       72.00       82.00       24.00       25.00       22.00
     8388608    33554432     5000.00     4900.00     5100.00       46.50       47.00       46.00
"""
UNNAMED_PARTS = """
# OSU MPI-CUDA Allreduce Latency Test v7.3
# Size       Avg Latency(us)
8                      20.20             18.37             88.23        1000
33554432            8388.608          8300.000          8400.000         100
"""
GBIT = """
| size/MB | rate/Gbps | algbw | busbw |
|---|---|---|---|
|50|16.1|10.8|16.0|
"""


@pytest.mark.parametrize(
    ("text", "speeds", "says"),
    [
        (TWO_RUNS, {"NCCL": 230.5, "MSCCL": 180.1}, "NCCL reaches 230 GB/s, MSCCL 180 GB/s"),
        (PARTS, {"": 46.5}, "all_to_all reaches 46.5 GB/s at 33.6 MB"),
        (UNNAMED_PARTS, {"": 4.0}, "reaches 4.00 GB/s at 33.6 MB"),
        (GBIT, {"": 2.0}, "reaches 2.00 GB/s bus bandwidth at 50.0 MB"),
    ],
    ids=["runs", "parts", "unnamed parts", "a unit in one column"],
)
def test_columns_after_the_size_are_of_runs_or_have_parts(tmp_path, text, speeds, says):
    (tmp_path / "table.txt").write_text(text)
    profile = read_fabric(str(tmp_path / "table.txt"))
    best = {c.label: max(p.busbw_bytes_per_s for p in c.points) / 1e9 for c in profile.curves}
    assert best == pytest.approx(speeds)
    assert says in fabric_verdict(profile)
