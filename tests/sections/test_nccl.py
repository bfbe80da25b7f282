"""Logs of NCCL as results: where connections go, cards, settings; from logs alone and in runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distprof import analyze
from distprof.cli import main
from distprof.rules.engine import run_rules
from distprof.run.logs import NcclCommunicator, NcclLog, NcclProcess
from distprof.sections.nccl import BETWEEN, INSIDE, NcclResult
from distprof.sections.nccl.measure import _limits
from distprof.sections.shows import judge
from tests.job_folders import JobFolder
from tests.rules.samples import healthy, nccl, transport

GOLDEN = Path(__file__).parents[1] / "golden"
H100 = GOLDEN / "nccl" / "2.18.5-h100-2node-8gpu.txt.gz"
RCCL = GOLDEN / "nccl" / "rccl-2.22.3-mi300x-2node-16gpu-socket.txt.gz"


def start(rank: int, size: int = 4) -> str:
    return (
        f"comm 0x{rank + 1} rank {rank} nranks {size} cudaDev {rank % 2} busId 1000 "
        "commId 0xab - Init START"
    )


def line(rank: int, text: str) -> str:
    """Of four ranks, two on each host."""
    return f"node-{rank // 2 + 1}:{100 + rank}:{200 + rank} [{rank % 2}] NCCL INFO {text}\n"


def result_of(folder: Path, *lines: str) -> NcclResult:
    path = folder / "job.log"
    path.write_text("".join(lines))
    return analyze(path).nccl


def ways(result: NcclResult) -> list[tuple[str, str, int]]:
    return [(way.where, way.transport, way.num_lines) for way in result.transports]


def test_where_a_connection_goes_is_told_by_the_hosts_of_its_ends(tmp_path):
    result = result_of(
        tmp_path,
        *(line(rank, start(rank)) for rank in range(4)),
        line(0, "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"),
        line(1, "Channel 00/0 : 1[1] -> 2[0] via P2P/MNNVL"),
        line(2, "Channel 00/0 : 2[0] -> 3[1] [send] via NET/IB/0"),
    )
    assert ways(result) == [
        (BETWEEN, "P2P/MNNVL", 1),
        (INSIDE, "NET/IB", 1),
        (INSIDE, "P2P/CUMEM", 1),
    ]


def test_where_an_end_is_not_known_the_transport_tells(tmp_path):
    result = result_of(
        tmp_path,
        line(0, start(0)),
        line(0, "Channel 00/0 : 0[0] -> 3[1] [send] via NET/IB/0/GDRDMA"),
        line(0, "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct"),
    )
    assert ways(result) == [(BETWEEN, "NET/IB", 1), (INSIDE, "SHM", 1)]
    assert "The log covers 1 of 4 ranks." in result.unavailable


@pytest.mark.parametrize(("ring", "crossings"), [((0, 1, 2, 3), 2.0), ((0, 2, 1, 3), 4.0)])
def test_a_ring_is_as_good_as_it_seldom_leaves_a_node(tmp_path, ring, crossings):
    order = " ".join(map(str, ring))
    result = result_of(
        tmp_path,
        *(line(rank, start(rank)) for rank in range(4)),
        line(0, f"Channel 00/01 :    {order}"),
        *(line(r, f"Trees [0] -1/-1/-1->{r}->{r - 1}") for r in range(4)),
    )
    (group,) = result.groups
    assert (group.num_ranks, group.num_hosts, group.num_rings) == (4, 2, 1)
    assert (group.crossings, group.tree_depth) == (crossings, 3)


def test_cards_that_no_connection_uses_are_told_from_those_that_one_does(tmp_path):
    result = result_of(
        tmp_path,
        line(0, "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"),
        line(0, start(0)),
        line(0, "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/1/GDRDMA"),
    )
    (host,) = result.hosts
    assert (host.cards, host.used_cards) == (("mlx5_0:1", "mlx5_1:1"), ("mlx5_1:1",))
    assert (host.host, host.ranks, host.links) == ("node-1", (0,), ("IB",))


def test_choices_are_gathered_by_algorithm_and_protocol(tmp_path):
    sizes = (1024, 2048, 2048)
    lines = [line(0, f"AllReduce: {size} Bytes -> Algo TREE proto LL time 1.0") for size in sizes]
    (choice,) = result_of(tmp_path, *lines).choices
    assert (choice.min_bytes, choice.max_bytes, choice.num_calls) == (1024, 2048, 3)


def test_a_log_alone_has_a_verdict_and_says_what_it_lacks():
    report = analyze(H100)
    assert judge(report).headline == "An iteration takes 105 ms"
    assert judge(report).detail == (
        "Between nodes all connections use NET/IBext with GPUDirect RDMA; inside nodes all "
        "connections use P2P/IPC."
    )
    assert report.findings == ()
    assert report.run.world_size == 8
    assert report.run.versions == {"nccl": "2.18.5+cuda12.2"}
    assert {skipped.code[:3] for skipped in report.not_checked} & {"NET"} == set()


def test_sockets_between_nodes_are_found_and_no_cost_is_made_up():
    (finding,) = analyze(RCCL).findings
    assert finding.code == "NET101"
    assert finding.cost_ns_per_step is None
    assert "640 of 640" in finding.headline


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("2.7.8-v100-1node-4gpu.txt", []),
        ("2.9.9-a100-p4d-efa-2node-16gpu.log", []),
        ("2.11.4-a100-pcie-1node-8gpu.txt", ["NET103"]),
        ("2.18.5-h200-2node-16gpu-forced-ring.txt.gz", ["COM122"]),
        ("2.25.1-b200-1node-8gpu-interleaved.txt.gz", ["CAP106"]),
    ],
)
def test_findings_on_logs_of_real_clusters(name, codes):
    assert [finding.code for finding in analyze(GOLDEN / "nccl" / name).findings] == codes


def test_logs_of_a_run_directory_join_its_report_by_rank(tmp_path):
    folder = JobFolder(tmp_path / "run", mesh={"dp": 4})
    for rank in range(4):
        folder.steps(rank, [10, 10, 12])
        text = line(rank, start(rank)) + line(rank, "NCCL_ALGO set by environment to RING")
        edge = line(rank, f"Channel 00/0 : {rank}[0] -> {(rank + 1) % 4}[0] via P2P/IPC")
        (folder.rank_dir(rank) / "nccl.log").write_text(text + edge)
    report = analyze(folder.write())
    assert [rank.rank for rank in report.step_log.ranks] == [0, 1, 2, 3]
    assert report.nccl.num_files == 4
    assert [(s.name, s.ranks) for s in report.nccl.settings] == [("NCCL_ALGO", (0, 1, 2, 3))]
    assert sum(way.num_lines for way in report.nccl.transports) == 4


def test_a_run_over_gloo_lacks_no_log_of_nccl():
    report = analyze(GOLDEN / "job" / "gloo-hsdp-4ranks")
    assert not report.nccl.is_missing
    assert {skipped.code[:3] for skipped in report.not_checked} & {"NET"} == set()


def test_a_run_over_nccl_without_a_log_says_that_rules_were_not_checked():
    report = analyze(GOLDEN / "kineto" / "ddp-a100-2gpu-rank0")
    assert report.nccl.is_missing
    assert [s.code for s in report.not_checked if s.code[:3] == "NET"] == [
        *(f"NET10{number}" for number in range(1, 6)),
        "NET112",
    ]


@pytest.mark.parametrize("form", ["text", "json", "md"])
def test_hostile_words_of_a_log_do_not_reach_the_terminal(tmp_path, capfd, form):
    path = tmp_path / "job.log"
    evil = "\x1b]0;owned\x07\x1b[2J[bold]| `x` \u202e\0"
    path.write_text(
        line(0, f"NCCL_ALGO set by environment to {evil}")
        + f"node-1:100:200 [0] a.cc:1 NCCL WARN {evil}\n"
        + line(0, f"Using network {evil}")
        + line(0, f"{evil} unheard of")
    )
    assert main(["analyze", str(path), "--format", form, "--all"]) in (0, 1)
    out = capfd.readouterr().out
    assert not set(out) & {"\x1b", "\x07", "\0", "\u202e"}
    if form == "json":
        assert json.loads(out)["nccl"]["num_files"] == 1


def test_processes_without_a_rank_count_as_covered():
    """All processes wrote, but no line names a rank: the log covers the whole job."""
    processes = tuple(NcclProcess(host="a", pid=pid) for pid in range(8))
    group = NcclCommunicator(name="w", num_ranks=8)
    log = NcclLog(processes=processes, communicators=(group,))
    limits = _limits(log)
    assert not any("covers" in text for text in limits)
    assert "The log does not name the rank of 8 processes." in limits


@pytest.mark.parametrize("with_gdr", [0, 772])
def test_gpudirect_that_works_elsewhere_needs_no_driver(with_gdr):
    ways = [transport(BETWEEN, "NET/IB", num_lines=252)]
    if with_gdr:
        ways.append(transport(BETWEEN, "NET/IB", has_gdr=True, num_lines=with_gdr))
    results = {**healthy(), NcclResult: nccl(transports=tuple(ways))}
    (found,) = (one for one in run_rules(results.values()).findings if one.code == "NET102")
    assert ("GPUDirect RDMA works on the other connections" in found.fix) == bool(with_gdr)
    assert ("nvidia-peermem" in found.fix) != bool(with_gdr)
    assert "NCCL_NET_GDR_LEVEL" in found.fix


ONE = "node-1:100:100 [0] NCCL INFO "
UNCONNECTED = {
    "GPUDirect off": (
        ["NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "Using network IB"],
        "NET102",
        "NCCL says so on 1 of 8 processes for mlx5_0",
    ),
    "GPUDirect off, old words": (
        ["NET/IB : GPU Direct RDMA Disabled for GPU 1b000 / HCA 0 (distance 5 > 4)"],
        "NET102",
        "every byte between nodes goes through CPU memory",
    ),
    "peers off by a setting": (
        [
            "NCCL_P2P_DISABLE set by environment to 1.",
            "P2P is disabled between connected GPUs 1 and 0. You can repair this by",
        ],
        "NET103",
        "access by PCIe is disabled",
    ),
    "one card": (
        ["NCCL_IB_HCA set by environment to mlx5_0."],
        "NET104",
        "only mlx5_0:1 is left",
    ),
}


@pytest.mark.parametrize(("texts", "code", "words"), UNCONNECTED.values(), ids=UNCONNECTED)
def test_a_log_without_connections_shows_what_nccl_cannot_use(tmp_path, texts, code, words):
    cards = [
        f"node-1:{100 + gpu}:100 [{gpu}] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]"
        for gpu in range(8)
    ]
    path = tmp_path / "job.log"
    path.write_text("\n".join([*cards, *(ONE + text for text in texts)]) + "\n")
    found = {one.code: f"{one.headline}. {one.message}" for one in analyze(path).findings}
    assert words in found[code]


def test_links_of_nvlink_that_nccl_refuses_are_found_in_a_warning(tmp_path):
    path = tmp_path / "job.log"
    path.write_text(
        f"{ONE}Using network IB\nnode-1:100:130 [0] NCCL WARN P2P is disabled between NVLINK "
        "connected GPUs 1 and 0. This should not be the case given their connectivity.\n"
    )
    (found,) = [one for one in analyze(path).findings if one.code == "NET103"]
    assert "access by NVLink is disabled" in found.message
    assert "nvidia-smi topo" in found.fix


def test_far_cards_without_gpudirect_are_normal_where_near_ones_have_it(tmp_path):
    path = tmp_path / "job.log"
    path.write_text(
        f"{ONE}NET/IB : GPU Direct RDMA Disabled for GPU 1b000 / HCA 1 (distance 5 > 4)\n"
        f"{ONE}NET/IB : GPU Direct RDMA Enabled for GPU 1b000 / HCA 0 (distance 3 <= 4), read 0\n"
    )
    assert analyze(path).findings == ()


def test_gpus_without_nvlink_are_said(tmp_path):
    path = tmp_path / "job.log"
    path.write_text(
        f"{ONE}Pattern 4, crossNic 0, nChannels 2, bw 6.0/6.0, type PHB/PIX, sameChannels 1\n"
    )
    assert "no NVLink" in judge(analyze(path)).headline


def test_hosts_that_chose_different_networks_cannot_connect(tmp_path):
    path = tmp_path / "nccl.log"
    path.write_text(
        "x1:870:870 [1] NCCL INFO Using network IB\n"
        "x0:26:26 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
        "x0:26:26 [0] NCCL INFO Using internal Network Socket\n"
    )
    report = analyze(path)
    assert judge(report).headline == "Hosts chose 2 networks, and NCCL cannot connect them"
    assert judge(report).detail == "TCP sockets on x0, IB on x1."
    (found,) = report.findings
    assert found.code == "NET101"
    assert "in every container" in found.fix


def test_what_is_pasted_next_to_the_lines_begins_as_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["analyze", str(GOLDEN / "pasted" / "port-down-next-to-nccl.log")])
    assert capsys.readouterr().out.startswith("A port of an RDMA card is down")
