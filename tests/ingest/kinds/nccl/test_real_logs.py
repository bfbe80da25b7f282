"""Logs of real clusters: the facts that their collection lists, counted by other means."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from distprof import open_run
from distprof.cli import main
from distprof.ingest.kinds import with_evidence
from distprof.ingest.kinds.logs import fits_nccl_log, read_nccl_log
from distprof.run.logs import NcclLog

GOLDEN = Path(__file__).parents[3] / "golden" / "nccl"

ONE_NODE_V100 = "2.7.8-v100-1node-4gpu.txt"
FOUR_NODES_A100 = "2.10.3-a100-4node-32gpu.txt"
MEGATRON = "2.7.8-v100-16node-64gpu-megatron-tp4-pp16.out.gz"
EFA = "2.9.9-a100-p4d-efa-2node-16gpu.log"
PCIE = "2.11.4-a100-pcie-1node-8gpu.txt"
SHARP = "2.12.10-a100-8node-64gpu-sharp-fail.txt.gz"
TWO_NODES_H100 = "2.18.5-h100-2node-8gpu.txt.gz"
FORCED = "2.18.5-h200-2node-16gpu-forced-ring.txt.gz"
SFT = "2.20.5-h100-4node-32gpu-sft.txt.gz"
TEARDOWN = "2.22.3-h200-1node-8gpu-teardown-warn.txt"
INTERLEAVED = "2.25.1-b200-1node-8gpu-interleaved.txt.gz"
LORA = "2.27.7-b200-2node-16gpu-llama70b-lora.txt.gz"
RCCL = "rccl-2.22.3-mi300x-2node-16gpu-socket.txt.gz"

TEXTS = {  # INFO, WARN: occurrences in the file
    ONE_NODE_V100: (149, 0),
    FOUR_NODES_A100: (507, 0),
    MEGATRON: (8485, 0),
    EFA: (529, 0),
    PCIE: (331, 0),
    SHARP: (10226, 144),
    TWO_NODES_H100: (1520, 0),
    FORCED: (2884, 0),
    SFT: (872, 0),
    TEARDOWN: (0, 48),
    INTERLEAVED: (3449, 0),
    LORA: (8314, 0),
    RCCL: (7026, 56),
}

EDGES = {  # transport and GPUDirect to lines
    ONE_NODE_V100: {("P2P/IPC", False): 100},
    FOUR_NODES_A100: {("P2P/IPC/read", False): 112, ("NET/IB", False): 40},
    MEGATRON: {("P2P/IPC", False): 2432, ("NET/IB", False): 1400},
    EFA: {("P2P/IPC/read", False): 256, ("NET/AWS Libfabric", True): 64},
    PCIE: {("SHM", False): 42, ("P2P/IPC", False): 48},
    SHARP: {
        ("P2P/IPC/read", False): 5760,
        ("NET/IBext", True): 2048,
        ("COLLNET/SHARP", True): 128,
    },
    TWO_NODES_H100: {("P2P/IPC", False): 872, ("NET/IBext", True): 256},
    FORCED: {("P2P/IPC", False): 1752, ("NET/IBext", True): 256},
    SFT: {("P2P/CUMEM", False): 464, ("NET/IB", True): 128},
    TEARDOWN: {},
    INTERLEAVED: {("P2P/CUMEM", False): 252},
    LORA: {("P2P/CUMEM", False): 4096, ("NET/IBext_v10", True): 768},
    RCCL: {("P2P/IPC", False): 2528, ("NET/Socket", False): 640},
}

COMMUNICATORS = {  # size to number
    ONE_NODE_V100: {4: 1},
    FOUR_NODES_A100: {32: 1},
    MEGATRON: {64: 2, 16: 1, 4: 16, 2: 64, 1: 64},
    EFA: {16: 1},
    PCIE: {8: 3},
    SHARP: {64: 2},
    TWO_NODES_H100: {8: 2, 4: 2},
    FORCED: {16: 2, 8: 2},
    SFT: {32: 2},
    TEARDOWN: {},
    INTERLEAVED: {8: 2},
}

PROCESSES = {
    ONE_NODE_V100: 4, FOUR_NODES_A100: 32, MEGATRON: 64, EFA: 16, PCIE: 8, SHARP: 64,
    TWO_NODES_H100: 8, FORCED: 16, SFT: 8, TEARDOWN: 8, LORA: 16, RCCL: 8,
}  # fmt: skip


def path_of(name: str) -> Path:
    if (GOLDEN / name).exists():
        return GOLDEN / name
    folder = os.environ.get("DISTPROF_CORPUS")
    path = Path(folder or "/nowhere").parent / "logs" / "nccl" / name
    if not path.exists():
        pytest.skip("DISTPROF_CORPUS does not name a folder of traces with logs beside it")
    return path


@cache
def log_of(name: str) -> NcclLog:
    return read_nccl_log(str(path_of(name)))


def marked(names: object) -> list[object]:
    """Names of files; those that are not in the tree are of the corpus."""
    return [
        pytest.param(name, marks=[] if (GOLDEN / name).exists() else pytest.mark.corpus)
        for name in names  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize("name", marked(TEXTS))
def test_a_log_is_told_by_its_content(name):
    assert fits_nccl_log(str(path_of(name)))


@pytest.mark.parametrize("name", marked(TEXTS))
def test_every_text_is_counted_and_hardly_any_is_unknown(name):
    log = log_of(name)
    assert (log.num_info, log.num_warn) == TEXTS[name]
    assert log.num_unknown == 0
    assert log.num_cut == (9 if name == INTERLEAVED else 0)


@pytest.mark.parametrize("name", marked(EDGES))
def test_every_connection_is_counted_by_its_transport(name):
    found: Counter[tuple[str, bool]] = Counter()
    for edge in log_of(name).edges:
        found[edge.transport, edge.has_gdr] += edge.num_lines
    assert found == EDGES[name]


@pytest.mark.parametrize("name", marked(COMMUNICATORS))
def test_communicators_are_found_by_size(name):
    assert Counter(c.num_ranks for c in log_of(name).communicators) == COMMUNICATORS[name]


@pytest.mark.parametrize("name", marked(PROCESSES))
def test_processes_are_told_apart_also_where_lines_are_glued(name):
    assert len(log_of(name).processes) == PROCESSES[name]


@pytest.mark.parametrize("name", marked(n for n in EDGES if n not in (TEARDOWN,)))
def test_every_connection_finds_its_communicator(name):
    assert all(edge.communicator is not None for edge in log_of(name).edges)


def test_a_setting_limits_peer_access_on_a_pcie_machine():
    log = log_of(PCIE)
    assert log.settings == {"NCCL_P2P_LEVEL": {"PIX": tuple(range(8))}}
    assert set(log.missing_networks) == {"IB"}
    assert set(log.networks) == {"Socket"}
    assert [c.tree_depths for c in log.communicators] == [(7, 7)] * 3


def test_settings_forced_by_environment_are_known_of_every_process():
    log = log_of(FORCED)
    everyone = tuple(range(16))
    assert log.settings == {
        "NCCL_ALGO": {"RING": everyone},
        "NCCL_BUFFSIZE": {"67108864": everyone},
        "NCCL_NET_GDR_LEVEL": {"PIX": everyone},
        "NCCL_NVLS_ENABLE": {"0": everyone},
        "NCCL_SOCKET_IFNAME": {"eno8303": everyone},
    }
    assert [len(c.rings) for c in log.communicators if c.num_ranks == 16] == [16, 16]


def test_a_card_with_a_rank_in_brackets_is_that_card():
    cards = Counter(edge.card for edge in log_of(FORCED).edges if edge.transport == "NET/IBext")
    assert None not in cards
    assert len(cards) == 8
    names = {c.index: c.name for c in log_of(FORCED).cards}
    assert names[5] == "mlx5_7:1"
    assert {c.link for c in log_of(FORCED).cards} == {"RoCE"}


def test_ranks_of_the_largest_communicator_are_the_ranks_of_the_job():
    assert sorted(p.rank for p in log_of(EFA).processes) == list(range(16))
    assert {p.host for p in log_of(EFA).processes} == {
        "nccl-tests-efa-16-worker-0",
        "nccl-tests-efa-16-worker-1",
    }


def test_versions_cut_by_other_output_are_kept_as_they_stand():
    assert set(log_of(INTERLEAVED).versions) == {"2.25.1", "2.25.1+cuda12.9"}
    assert set(log_of(RCCL).versions) == {"2.22.3-HEAD:271856d"}
    assert set(log_of(ONE_NODE_V100).versions) == {"2.7.8+cuda10.2"}


def test_initialisation_is_timed_where_the_log_tells():
    (first, _) = log_of(INTERLEAVED).communicators
    assert first.init_ns == 2_950_000_000
    assert (first.num_channels, first.num_nvls_channels, first.num_nodes) == (32, 32, 1)


def test_warnings_of_mscclpp_are_no_problem():
    (warning,) = log_of(RCCL).warnings
    assert (warning.num_lines, warning.about) == (56, "fallback")


@pytest.mark.corpus
def test_processes_that_end_warn_without_a_problem():
    assert {w.about for w in log_of(TEARDOWN).warnings} == {"teardown"}
    assert sum(w.num_lines for w in log_of(TEARDOWN).warnings) == 48


@pytest.mark.corpus
def test_sharp_that_fails_is_a_way_around_and_no_problem():
    warnings = log_of(SHARP).warnings
    assert {(w.num_lines, w.about) for w in warnings} == {(128, "fallback"), (16, "fallback")}


@pytest.mark.corpus
def test_initialisations_of_single_ranks_are_communicators_too():
    sizes = Counter(c.num_ranks for c in log_of(LORA).communicators)
    assert sum(size * n for size, n in sizes.items()) == 96
    assert set(sizes) == {16, 1}


def test_a_log_of_more_ranks_than_the_recorded_job_has_is_of_another_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(GOLDEN)  # a long path would be wrapped
    traces, others, own = "../kineto/dlrm-v100-8gpu", EFA, PCIE
    assert main(["analyze", traces, "--with", others, "--no-cache"]) == 0
    assert "1 log of another job" in capsys.readouterr().out
    assert main(["analyze", traces, "--with", others, "--no-cache", "--full"]) == 0
    first_screen = " ".join(capsys.readouterr().out.split())
    assert f"Another job wrote {others}, so it is not used: it had 16 ranks, the" in first_screen
    assert "4 of 8 ranks · 1 step · 1 log of another job · nccl" in first_screen
    assert open_run(traces, evidence=[others], use_cache=False).get(NcclLog) is None
    same_size = open_run(traces, evidence=[own], use_cache=False)
    assert same_size.get(NcclLog) is not None
    assert [gap for gap in same_size.gaps if gap.what == "another-job"] == []


@pytest.mark.parametrize(
    ("rank", "differs"),
    [
        ({"host": "gpu07.cluster"}, "it ran on node071, the recorded job on gpu07.cluster"),
        ({"host": "node071.cluster"}, ""),
        ({"versions": {"nccl": "2.20.5"}}, "it used NCCL 2.11.4, the recorded job 2.20.5"),
        ({"versions": {"nccl": "2.11.4"}}, ""),
        ({"host": None, "versions": {"nccl": "2.11"}}, ""),
    ],
)
def test_hosts_and_versions_show_that_a_log_is_of_another_job(rank, differs):
    """A log of as many ranks may still be of another day's job."""
    recorded = open_run(str(GOLDEN.parent / "kineto" / "dlrm-v100-8gpu"), use_cache=False)
    ranks = tuple(replace(one, **rank) for one in recorded.ranks)
    run = with_evidence(replace(recorded, ranks=ranks), [str(GOLDEN / PCIE)])
    told = [gap.message for gap in run.gaps if gap.what == "another-job"]
    assert told == (
        [f"Another job wrote {GOLDEN / PCIE}, so it is not used: {differs}."] if differs else []
    )
