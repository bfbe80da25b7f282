"""Lines written out by hand: prefixes, glue, colours, versions; damage and malice."""

from __future__ import annotations

import gzip
import random
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.errors import InputError
from distprof.ingest.kinds.logs import (
    fits_nccl_log,
    fits_nccl_settings,
    read_nccl_log,
    read_nccl_settings,
)
from distprof.ingest.nccl.lines import MAX_LINE_BYTES, Splitter
from distprof.ingest.nccl.messages import (
    CUT,
    KNOWN,
    UNKNOWN,
    Cards,
    Channels,
    Choice,
    Connection,
    Fact,
    Initialised,
    Timing,
    Trees,
    parse,
)
from distprof.run.logs import NcclLog

INIT = "comm 0x7f01 rank {rank} nranks 2 cudaDev {rank} busId {rank}000 - Init COMPLETE"


def read(folder: Path, *lines: str | bytes, name: str = "job.log") -> NcclLog:
    data = b"\n".join(line.encode() if isinstance(line, str) else line for line in lines)
    path = folder / name
    path.write_bytes(gzip.compress(data + b"\n") if name.endswith(".gz") else data + b"\n")
    return read_nccl_log(str(path))


def said(text: str, rank: int = 0, host: str = "node-1", level: str = "INFO") -> str:
    return f"{host}:{100 + rank}:{200 + rank} [{rank}] NCCL {level} {text}"


@pytest.mark.parametrize(
    ("text", "transport", "card", "has_gdr"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM/read", None, False),
        ("Channel 00 : 0[1c] -> 1[1d] via P2P/direct pointer", "P2P/direct pointer", None, False),
        ("Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct", "SHM", None, False),
        ("Channel 00 : 0[0] -> 1[1] via direct shared memory", "SHM", None, False),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/3(1)/GDRDMA/Shared", "NET/IB", 3, True),
        ("Channel 00/0 : 0[0] -> 1[1] [receive] via NET/Socket/0", "NET/Socket", 0, False),
        ("Channel 00 : 0[0] -> 1[1] [send] via NET/AWS Libfabric/2", "NET/AWS Libfabric", 2, False),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL", "P2P/MNNVL", None, False),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/3[3]", "P2P/indirect/3[3]", None, False),
        ("Ring 00 : 0 -> 1 [send] via NET/Socket/0", "NET/Socket", 0, False),
        ("Ring 00 : 0[0] -> 1[1] via P2P/IPC", "P2P/IPC", None, False),
    ],
)  # fmt: skip
def test_transports_of_all_versions(text, transport, card, has_gdr):
    event = parse(text)
    assert isinstance(event, Connection)
    assert (event.transport, event.card, event.has_gdr) == (transport, card, has_gdr)
    assert (event.source, event.target) == (0, 1)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("NCCL version 2.4.8+cuda10.1", Fact("versions", "", "2.4.8+cuda10.1")),
        ("NCCL_ALGO set by environment to RING.", Fact("settings", "NCCL_ALGO", "RING")),
        ("AllReduce: 4096 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..3}",
         Choice("AllReduce", 4096, "RING", "LL128")),
        ("262144 Bytes -> Algo 0 proto 1 time 54.707825", Choice("", 262144, "TREE", "LL128")),
        ("AllGather: opCount 1f sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0 comm 0x3 "
         "[nranks=8] stream 0x4", Choice("AllGather")),
        ("NET/IB : No device found.", Cards("IB", ())),
        ("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/IB/SHARP [RO]; OOB eth0:10.0.0.1<0>",
         Cards("IB", ((0, "mlx5_0:1", "RoCE"), (1, "mlx5_1:1", "IB/SHARP")))),
        ("NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:fe80::1%eth1<0>",
         Cards("Socket", ((0, "eth0", ""), (1, "eth1", "")))),
        ("24 coll channels, 0 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels"
         " per peer", Channels(24, 16)),
        ("2 coll channels, 2 p2p channels, 1 p2p channels per peer", Channels(2, None)),
        ("Init timings: rank 1 nranks 2 total 0.57 (kernels 0.15, bootstrap 0.25)",
         Timing(1, 2, 570_000_000)),
        ("Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1", Trees(((0, 0, -1), (1, 0, 1)))),
        ("Trees [0] 2/-1/-1->1->0|0->1->2/-1/-1", Trees(((0, 1, 0),))),
        ("comm 0x7f rank 0 nranks 2 cudaDev 0 nvmlDev 0 - Init COMPLETE",
         Initialised("0x7f", 0, 2, 0, "", "", "Init COMPLETE")),
        ("ncclCommInitRank comm 0x7f rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId c1000 commId 0xab - "
         "Init START", Initialised("0x7f", 1, 2, 1, "c1000", "0xab", "Init START")),
        ("Connected all rings", KNOWN),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CU MEM|", CUT),
        ("", CUT),
        ("Words that nobody has written before", UNKNOWN),
    ],
)  # fmt: skip
def test_texts(text, event):
    assert parse(text) == event


@pytest.mark.parametrize(
    "prefix",
    ["", "0: ", "[rank0]:", "[1,0]<stdout>:", "node-1: ", "2024-08-12T01:02:03.45Z ", "\x1b[32m",
     "[2025-01-01 10:00:00] ", "pod-a/worker "],
)  # fmt: skip
def test_launchers_words_before_a_line_are_no_part_of_it(prefix, tmp_path):
    lines = (prefix + said("NCCL_ALGO set by environment to RING", rank) for rank in range(3))
    log = read(tmp_path, *lines)
    assert [(p.host, p.pid) for p in log.processes] == [("node-1", 100 + r) for r in range(3)]
    assert log.settings == {"NCCL_ALGO": {"RING": (0, 1, 2)}}


def test_several_texts_on_a_line_are_told_apart():
    clean = said("Connected all rings", 1).encode()
    glued = said("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC").encode() + clean
    splitter = Splitter()
    list(splitter.split(clean))
    assert [(who, text) for who, _, text in splitter.split(glued)] == [
        ((b"node-1", 100), b"Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"),
        ((b"node-1", 101), b"Connected all rings"),
    ]


def test_a_version_glued_to_the_next_is_two():
    found = Splitter().split(b"NCCL version 2.7.8+cuda10.2NCCL version 2.7.8+cuda10.2")
    assert [parse(text.decode()) for _, _, text in found] == [
        Fact("versions", "", "2.7.8+cuda10.2")
    ] * 2


@pytest.mark.parametrize("name", ["job.log", "job.log.gz"])
@pytest.mark.parametrize("end", ["", "\r"])
def test_ends_of_lines_and_compression_change_nothing(tmp_path, name, end):
    lines = [said(INIT.format(rank=rank), rank) + end for rank in range(2)]
    edge = said("Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct") + end
    log = read(tmp_path, edge, edge, *lines, name=name)
    (edge_found,) = log.edges
    assert (edge_found.num_lines, edge_found.communicator, edge_found.transport) == (2, 0, "SHM")
    assert [p.rank for p in log.processes] == [0, 1]
    assert (log.num_lines, log.num_info) == (4, 4)


def test_warnings_that_differ_in_numbers_are_one(tmp_path):
    where = "node-1:100:200 [0] transport/net_ib.cc:12 NCCL WARN NET/IB : Got completion {} error"
    log = read(tmp_path, where.format(12), where.format(13), said("Connected all rings"))
    (warning,) = log.warnings
    assert (warning.num_lines, warning.about, warning.processes) == (2, "problem", (0,))
    assert warning.text == "NET/IB : Got completion 12 error"


def test_members_of_several_communicators_of_a_size_are_said_not_to_be_known(tmp_path):
    lines = [said(INIT.format(rank=rank % 2), rank) for rank in range(4)]
    log = read(tmp_path, *lines)
    assert [c.is_certain for c in log.communicators] == [False, False]
    assert [p.rank for p in log.processes] == [None] * 4


def test_unknown_texts_are_counted_and_some_are_kept(tmp_path):
    log = read(tmp_path, *(said(f"Quuxes {'x' * n}") for n in range(200)))
    assert log.num_unknown == 200
    assert len(log.unknown) == 50


def test_a_folder_of_files_per_process_is_one_log(tmp_path):
    for rank in range(2):
        read(tmp_path, said(INIT.format(rank=rank), rank), name=f"nccl.{rank}.log")
    (tmp_path / "notes.txt").write_text("nothing of it")
    assert fits_nccl_log(str(tmp_path))
    log = read_nccl_log(str(tmp_path))
    assert len(log.files) == 2
    assert [len(c.members) for c in log.communicators] == [2]


def test_a_folder_with_a_trace_is_a_folder_of_traces(tmp_path):
    read(tmp_path, said("Connected all rings"))
    (tmp_path / "trace.json").write_text("{}")
    assert not fits_nccl_log(str(tmp_path))


def test_a_text_file_without_nccl_is_no_log(tmp_path):
    (tmp_path / "job.log").write_text("loss 2.0\n")
    assert not fits_nccl_log(str(tmp_path / "job.log"))
    with pytest.raises(InputError, match="none of them from NCCL"):
        read_nccl_log(str(tmp_path / "job.log"))


def test_a_truncated_gzip_is_read_up_to_its_damage(tmp_path):
    lines = "\n".join(said(f"Quux {random.random()}") for _ in range(20_000))
    path = tmp_path / "job.log.gz"
    path.write_bytes(gzip.compress(lines.encode())[:-1000])
    log = read_nccl_log(str(path))
    assert 1_000 < log.num_info < 20_000
    assert any("damage" in note for note in log.notes)


def test_a_line_without_end_is_cut_and_the_next_is_read(tmp_path):
    log = read(tmp_path, said("Channel " + "9" * 40 * MAX_LINE_BYTES), said("Connected all rings"))
    assert log.num_info == 2
    assert log.num_cut == 1
    assert any("above 64 KiB, truncated" in note for note in log.notes)


def test_clean_lines_count_the_same_as_lines_in_full(tmp_path):
    edges = [said(f"Channel {c:02}/0 : 0[0] -> 1[1] via P2P/IPC") for c in range(32)]
    calls = [said("AllReduce: opCount 0 sendbuff 0x1 comm 0x2 [nranks=2] stream 0x3")] * 5
    clean = read(tmp_path, *edges, *calls, said(INIT.format(rank=0)))
    coloured = (line + "\x1b[0m" for line in (*edges, *calls, said(INIT.format(rank=0))))
    full = read(tmp_path, *coloured)
    assert clean.edges == full.edges
    assert (clean.num_info, clean.choices) == (full.num_info, full.choices)
    assert clean.num_info == 38


transports = st.sampled_from(["P2P/IPC", "SHM", "NET/IB/0", "NET/IB/1/GDRDMA", "NET/Socket/0"])
edges_of_a_log = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 63), transports), min_size=1, max_size=60
)


@given(edges_of_a_log, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_however_ranks_are_mixed(tmp_path_factory, edges, chance):
    lines = [
        said(f"Channel {channel:02}/0 : {rank}[0] -> {(rank + 1) % 8}[0] via {way}", rank)
        for rank, channel, way in edges
    ]
    chance.shuffle(lines)
    starts = [
        said(f"comm 0x1 rank {rank} nranks 8 cudaDev 0 busId 1 commId 0xab - Init START", rank)
        for rank in range(8)
    ]
    log = read(tmp_path_factory.mktemp("log"), *starts, *lines)
    assert sum(edge.num_lines for edge in log.edges) == len(edges)
    assert {edge.source for edge in log.edges} == {rank for rank, _, _ in edges}
    assert all(edge.communicator == 0 for edge in log.edges)
    assert (log.num_info, log.num_unknown, log.num_cut) == (8 + len(edges), 0, 0)


PIECES = [
    b"NCCL INFO ", b"NCCL WARN ", b"NCCL version ", b"\x1b[31m", b"\x1b]0;x\x07", b"\0", b"\r",
    b"\n", b"node:1:2 [0] ", b"Channel 00/0 : 0[0] -> 1[1] via ", b"NET/IB/0/GDRDMA", b"Trees [0] ",
    b"1/-1/-1->0->-1 ", b"comm 0x1 rank 0 nranks 2 - Init COMPLETE", b"9" * 30, b"\xff\xfe",
    b" set by environment to ", b"AllReduce: opCount 0 ", b"99 Bytes -> Algo 99 proto 9",
    b"CollNet 00/1 : 0 [send] via ",
    b"comm 0x1 rank 5 nranks 2 - Init START", b" stream", b"Channel 00/2 : 0 1",
    b"Init timings: rank 0 nranks 2 total 1.5 (",
    b"comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0",
]  # fmt: skip


def test_a_hundred_thousand_hostile_lines_cause_no_exception(tmp_path):
    chance = random.Random(5)
    data = b"\n".join(
        b"node:1:2 [0] NCCL INFO " * (chance.random() < 0.5)
        + b"".join(chance.choices(PIECES, k=chance.randrange(8)))
        for _ in range(100_000)
    )
    (tmp_path / "job.log").write_bytes(data)
    log = read_nccl_log(str(tmp_path / "job.log"))
    assert log.num_info > 50_000
    assert len(log.unknown) <= 50


@given(st.text(alphabet=string.printable, max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_text_is_an_event(text):
    for begin in ("", "Channel 00/0 : 0[0] -> 1[1] via ", "Trees [0] ", "NET/IB : Using [0]"):
        parse(begin + text)


def test_a_warning_glued_to_a_clean_line_is_a_warning(tmp_path):
    edge = said("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC")
    glued = edge + "node-1:101:9 [1] a.cc:1 NCCL WARN Something is wrong"
    log = read(
        tmp_path, said(INIT.format(rank=1), 1), said(INIT.format(rank=0)), edge, glued, glued
    )
    assert [(edge.transport, edge.num_lines) for edge in log.edges] == [("P2P/IPC", 3)]
    assert [(w.text, w.num_lines) for w in log.warnings] == [("Something is wrong", 2)]
    assert (log.num_info, log.num_warn, log.num_cut) == (5, 2, 0)


def test_a_log_that_is_cut_inside_its_archive_keeps_what_comes_before(tmp_path):
    lines = b"".join(
        b"node-1:%d:2 [0] NCCL INFO Channel 00/0 : %d[0] -> %d[0] via P2P/IPC\n" % (n, n, n + 1)
        for n in range(5_000)
    )
    path = tmp_path / "cut.log.gz"
    path.write_bytes(gzip.compress(lines)[:-2_000])
    log = read_nccl_log(str(path))
    assert 2_000 < log.num_info < 5_000
    assert any("up to the damage" in note for note in log.notes)


def test_a_command_that_only_logs_sets_nothing(tmp_path: Path):
    command = tmp_path / "run.sh"
    command.write_text("mpirun -np 4 -x NCCL_DEBUG=INFO -x NCCL_DEBUG_SUBSYS=NET python train.py\n")
    assert not fits_nccl_settings(str(command))
    command.write_text("NCCL_DEBUG=INFO NCCL_IB_DISABLE=1 python train.py\n")
    assert read_nccl_settings(str(command)).settings == {"NCCL_IB_DISABLE": {"1": ()}}
