"""Text that people paste when a job is slow: the first lines say what an expert reads in it."""

import re
import tomllib
from pathlib import Path

import pytest

from distprof.api import analyze, open_run
from distprof.cli.app import main
from distprof.errors import InputError
from distprof.ingest.fabric import read_fabric
from distprof.sections.shows import judge
from distprof.verbs.fabric import fabric_verdict

GOLDEN = Path(__file__).parents[1] / "golden" / "pasted"
EXPECTED = tomllib.loads((GOLDEN / "expected.toml").read_text("utf-8"))


def first_lines(path: Path) -> str:
    try:
        report = analyze(open_run(str(path)))
    except InputError as error:
        return str(error)
    verdict = judge(report)
    return " ".join(
        (
            *(verdict.headline, verdict.detail, *verdict.why),
            *(f"{one.headline}. {one.message} {one.fix}" for one in report.findings),
        )
    )


def plain(text: str) -> str:
    """A statement may be cut into a headline and its detail: case and punctuation do not count."""
    return re.sub(r"[.:;,](?= |$)", "", text).lower()


def test_each_sample_has_an_expectation():
    assert {path.name for path in GOLDEN.iterdir()} == {"expected.toml", *EXPECTED}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_first_lines_say_what_an_expert_says(name):
    text, at = plain(first_lines(GOLDEN / name)), 0
    for phrase in map(plain, EXPECTED[name]["says"]):
        at = text.find(phrase, at)
        assert at >= 0, (phrase, text)
    assert not [phrase for phrase in EXPECTED[name].get("never", ()) if plain(phrase) in text]


def test_a_test_of_a_link_is_compared_with_the_rates_of_links():
    verdict = fabric_verdict(read_fabric(str(GOLDEN / "half-of-a-link.log")))
    assert "104 Gb/s, 52.0 % of 200 Gb/s, or less of a faster link" in verdict


def test_memory_of_a_gpu_and_of_the_host_are_different_tests_of_a_link():
    verdict = fabric_verdict(read_fabric(str(GOLDEN / "bandwidth-from-gpu-and-host.log")))
    assert "From GPU memory, the link reaches only 50.4 Gb/s, from host memory 98.3 Gb/s" in verdict


def test_small_messages_of_two_ranks_are_no_tests_of_one_rank():
    with pytest.raises(InputError, match="messages of up to 64 B show the latency"):
        read_fabric(str(GOLDEN / "small-messages-of-two-gpus.log"))


def test_tests_of_one_rank_have_no_bandwidth():
    with pytest.raises(InputError, match="a single rank"):
        read_fabric(str(GOLDEN / "tests-of-one-rank.log"))
    with pytest.raises(InputError, match="a single rank"):
        read_fabric(str(GOLDEN / "tests-of-one-rank-that-ended.log"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "runs-of-one-size.log",
            "all_reduce at 537 MB: over 8 ranks it reaches 229 GB/s, over 24 ranks 31.1 GB/s, "
            "13.6 % of it: the network between nodes is probably the limit",
        ),
        (
            "wrong-values-cut.log",
            "Results are wrong: nccl-tests found wrong values in 2 measurements of bandwidth.",
        ),
        ("nvlink-is-not-used.log", "6.56 GB/s bus bandwidth at 134 MB: that is the speed of PCIe"),
        (
            "tests-below-a-topology.log",
            "3.08 GB/s bus bandwidth at 134 MB: that is the speed of slow",
        ),
        (
            "sockets-between-two-nodes.log",
            "1.12 GB/s bus bandwidth at 537 MB: that is the speed of",
        ),
        (
            "labels-between-numbers.log",
            "over 16 ranks reaches 28.9 GB/s bus bandwidth at 33.6 MB, and falls to 4.00 GB/s from "
            "67.1 MB on",
        ),
        ("sizes-by-length.log", "This test reaches 19.8 GB/s at 4.19 MB"),
        (
            "ranks-left-out-of-a-list.log",
            "all_reduce over 8 ranks reaches 337 GB/s bus bandwidth at 4.29 GB",
        ),
        (
            "one-of-two-collectives.log",
            "all_gather or all_to_all over 4 ranks in one node reaches",
        ),
        ("a-card-sends-to-itself.log", "202 Gb/s, 101 % of 200 Gb/s: a link of that rate gives no"),
        (
            "rccl-through-host-memory.log",
            "32.0 GB/s bus bandwidth at 1.07 GB: that is the speed of PCIe or host memory",
        ),
        (
            "sockets-of-a-test-by-a-setting.log",
            "NCCL uses TCP sockets between nodes, because NCCL_IB_DISABLE=1 is set.",
        ),
        (
            "less-than-a-card-between-nodes.log",
            "2 ranks across 2 nodes reaches 4.33 GB/s bus bandwidth at 1.07 GB, as "
            "much as a link of 34.6 Gb/s carries",
        ),
        ("one-link-of-a-pair.log", "reaches 21.2 GB/s bus bandwidth at 268 MB."),
        (
            "each-rank-sends-to-all.log",
            "all_to_all over 16 ranks across 4 nodes reaches 2.52 GB/s bus bandwidth at 268 MB.",
        ),
        ("bits-of-deepspeeds-benchmark.log", "all_reduce reaches 179 GB/s bus bandwidth at 1.00"),
        ("latency-of-allreduce-by-osu.log", "all_reduce reaches 2.95 GB/s at 4.19 MB"),
        ("payloads-of-a-benchmark.md", "all_reduce over 8 ranks reaches 434 GB/s bus bandwidth at"),
        ("sizes-with-underscores.log", "reaches 237 GB/s bus bandwidth at 1.07 GB"),
        ("runs-that-share-small-sizes.log", "This test reaches 6.12 GB/s at 1.05 MB"),
        (
            "a-test-below-an-idle-sample.log",
            "all_reduce over 2 ranks in one node reaches 4.07 GB/s bus bandwidth at 268 MB",
        ),
        ("falls-inside-a-node.log", "and falls to 59.9 GB/s from 537 MB on: repeat it, look for"),
        (
            "links-at-half-their-speed.log",
            "230 GB/s bus bandwidth at 8.59 GB: 51.1 % of what its links carry (450 GB/s in each",
        ),
        (
            "pcie-at-its-usual-speed.log",
            "20.0 GB/s bus bandwidth at 8.59 GB, as usual for PCIe without NVLink (4.0 ×16 carries",
        ),
        ("pcie-of-a-narrow-slot.log", "less than PCIe usually gives (4.0 ×16 carries 32.0 GB/s"),
        (
            "network-of-two-nodes.log",
            "380 GB/s bus bandwidth at 8.59 GB, 3,040 Gb/s between nodes (a healthy network gives",
        ),
        ("gigabytes-called-megabytes.log", "Test 1: Unidirectional reaches 24.5 GB/s, Test 2: Pi"),
        ("latency-with-a-greek-letter.md", "reaches 4.00 GB/s at 8.39 MB"),
        (
            "tests-that-did-not-join.log",
            "2 tests ran at a time, each by itself over 2 ranks in one node: nothing was measured "
            "between them",
        ),
    ],
)
def test_a_bandwidth_is_judged(name, says):
    assert says in fabric_verdict(read_fabric(str(GOLDEN / name)))


def test_analyze_shows_what_fabric_shows(capsys):
    path = str(GOLDEN / "nvlink-is-not-used.log")
    assert main(["analyze", path]) == 0
    shown = capsys.readouterr().out
    assert main(["fabric", path]) == 0
    assert shown == capsys.readouterr().out
    assert main(["analyze", path, "--with", path]) == 3


def test_a_time_of_next_to_nothing_compares_nothing(tmp_path):
    path = tmp_path / "speeds.log"
    path.write_text("before  5e-324s/it\nafter: 5/it\n")
    with pytest.raises(InputError, match="A speed of"):
        analyze(open_run(str(path)))


def test_times_beyond_all_ages_compare_nothing(tmp_path):
    path = tmp_path / "speeds.log"
    path.write_text("DP: 2μs per step\nFSDP: 1e308μs per step\n")
    with pytest.raises(InputError, match="text with none of them"):
        analyze(open_run(str(path)))
