"""Output of ncclras, as text and as JSON: who is dead, in error or behind, and joined into hang."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distprof
from distprof.errors import InputError
from distprof.ingest.kinds.nccl import fits_nccl_ras, read_nccl_ras
from distprof.ingest.nccl.ras import is_ras, parse_ras
from distprof.join.nccl import in_trouble
from distprof.verbs.hang.evidence import read_evidence

RAS = Path(__file__).parents[3] / "golden" / "ras"
TEXT = (RAS / "ncclras-dead-rank.txt").read_text()
JSON = (RAS / "ncclras-4ranks.json").read_text()
MISMATCH = """\
#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different status
  30 ranks have status RUNNING
  2 ranks have status FINALIZE
  Rank 3 -- GPU 3 managed by process 1486 on node 172.16.64.210
  Rank 4 -- GPU 4 (NVML 6) managed by process 1487 on node 172.16.64.210
  Communicator ranks have different AllGather operation counts
  26 ranks have launched up to operation 6650
  4 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 1483 on node 172.16.64.210
  Rank 1 -- [process information not found]
  2 ranks have not launched any operations
"""


def told(status):
    return [(one.kind, one.rank, one.text) for one in in_trouble(status)]


def test_the_text_tells_who_is_dead_and_who_is_behind():
    status = read_nccl_ras(str(RAS / "ncclras-dead-rank.txt"))
    assert (status.version, status.num_nodes, status.num_processes, status.num_gpus) == (
        "2.28.3", 4, 32, 32,
    )  # fmt: skip
    assert [(g.num_communicators, g.size, g.errors) for g in status.groups] == [
        (1, 32, ("INCOMPLETE", "MISMATCH")),
        (4, 8, ()),
    ]
    assert status.num_timeouts == 1
    assert told(status) == [("dead", 21, ""), ("behind", 7, "6,649 of 6,650 AllReduce launched")]
    assert status.stands is None


def test_json_tells_the_same_kinds_of_things():
    status = read_nccl_ras(str(RAS / "ncclras-4ranks.json"))
    assert (status.version, status.world_size, status.num_timeouts) == ("2.28.9", 4, 1)
    assert told(status) == [
        ("dead", 3, ""),
        ("error", 2, "Remote process error"),
        ("behind", 1, "6,649 of 6,650 AllReduce launched"),
    ]


def test_status_and_counts_of_several_ranks_in_text():
    status = parse_ras(TEXT.replace("Warnings\n========\n", f"Warnings\n========\n\n{MISMATCH}"))
    found = told(status)
    assert ("status", 3, "FINALIZE") in found
    assert ("status", 4, "FINALIZE") in found
    assert ("behind", 0, "6,649 of 6,650 AllGather launched") in found
    assert ("behind", 1, "6,649 of 6,650 AllGather launched") in found
    gathers = [one for one in status.launches if one.operation == "AllGather"]
    assert [(one.launched, one.num_ranks) for one in gathers] == [(6650, 26), (6649, 4), (0, 2)]


@pytest.mark.parametrize("text", [TEXT, JSON], ids=["text", "json"])
def test_two_snapshots_tell_whether_the_job_goes_on(text):
    assert parse_ras(f"{text}\n{text}").stands is True
    assert parse_ras(f"{text}\n{text}").num_snapshots == 2
    later = text.replace("6649", "6700").replace("6650", "6701")
    assert parse_ras(f"{text}\n{later}").stands is False


def test_a_job_that_goes_on_is_not_accused_and_one_that_stands_is(tmp_path):
    def codes(text):
        (tmp_path / "ras.txt").write_text(text)
        findings = distprof.analyze(str(tmp_path / "ras.txt")).findings
        return [(f.ranks, f.severity.value) for f in findings if f.code == "NET111"]

    mild = TEXT[: TEXT.index("DEAD")] + TEXT[TEXT.index("#0-0 (cf264af53edbe986) MISMATCH") :]
    later = mild.replace("6649", "6700").replace("6650", "6701")
    assert codes(mild) == [((7,), "warning")]
    assert codes(f"{mild}\n{mild}") == [((7,), "error")]
    assert codes(f"{mild}\n{later}") == []


def test_a_healthy_job_says_so(tmp_path):
    clean = TEXT[: TEXT.index("DEAD")].replace("INCOMPLETE,MISMATCH", "OK")
    (tmp_path / "ras.txt").write_text(f"{clean}Warnings\n========\n\n")
    report = distprof.analyze(str(tmp_path / "ras.txt"))
    assert report.findings == ()
    assert report.verdict.headline == "NCCL reports 5 communicators"
    assert report.verdict.detail.startswith("Every rank answers")


def test_counts_that_name_nobody_are_still_told(tmp_path):
    many = TEXT[: TEXT.index("DEAD")] + (
        "#0-0 (cf264af53edbe986) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        "  20 ranks have launched up to operation 7\n  12 ranks have launched up to operation 6\n"
    )
    (tmp_path / "ras.txt").write_text(many)
    (finding,) = distprof.analyze(str(tmp_path / "ras.txt")).findings
    assert finding.headline.startswith("12 ranks launched fewer collectives")


def test_hang_joins_what_ncclras_says(tmp_path):
    golden = RAS.parent / "flight" / "gloo-ddp-3ranks-hang"
    for source in golden.rglob("*.gz"):
        copy = tmp_path / source.relative_to(golden)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    said = json.loads(JSON)
    said["communicators"][0]["size"] = 3
    said["communicators"][0]["missing_ranks"][0]["rank"] = 1
    (tmp_path / "ncclras.json").write_text(json.dumps(said))
    evidence = read_evidence(str(tmp_path))
    assert evidence.failed == {1: "NCCL considers its process dead"}
    assert [(line.rank, line.about) for line in evidence.log_lines][:1] == [(1, "ras")]
    (tmp_path / "ncclras.json").write_text(JSON[:-300])
    assert any("ncclras.json cannot be read" in note for note in read_evidence(str(tmp_path)).notes)


def test_what_is_cut_is_refused_with_a_sentence(tmp_path):
    path = tmp_path / "ras.json"
    path.write_text(JSON[: len(JSON) // 2])
    assert fits_nccl_ras(str(path))
    with pytest.raises(InputError, match="expected: output of ncclras -v"):
        read_nccl_ras(str(path))


def test_a_number_beyond_64_bits_is_refused_with_a_sentence(tmp_path):
    path = tmp_path / "ras.json"
    path.write_text(JSON.replace('"size": ', f'"size": {10**300}', 1))
    with pytest.raises(InputError, match="expected: output of ncclras -v"):
        read_nccl_ras(str(path))


@given(st.lists(st.sampled_from([*TEXT.split("\n"), *MISMATCH.split("\n"), "#9-9 (0) ERROR", ""])))
@settings(max_examples=100)
def test_lines_in_any_order_are_read_without_an_error(lines):
    text = "\n".join(["Job summary", "===========", "Communicators...", *lines])
    assert is_ras(text)
    in_trouble(parse_ras(text))


_BEHIND = """  #0-0 (27a079b828ff1a75) MISMATCH
    Communicator ranks have different collective operation counts
    6 ranks have launched up to operation 6650
    2 ranks have launched up to operation 6649
    Rank 0 -- GPU 0 managed by process 4830 on node 10.0.0.2
    Rank 3 -- GPU 3 managed by process 4833 on node 10.0.0.2
"""
_COUNTS = """Warnings: Communicator ranks have different AllReduce operation counts
  14 ranks have launched up to operation 1234
   2 ranks have launched up to operation 1233
"""
_DEAD = """DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487 on node 10.0.0.3 managing GPU 5
"""


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (_BEHIND, "ranks 0,3 behind: 6,649 of 6,650 collective launched."),
        (_COUNTS, "2 ranks launched fewer collectives than others"),
        (_DEAD, "dead (process 3487, GPU 5, node 10.0.0.3)"),
    ],
)
def test_a_part_of_the_output_in_other_text_is_read(tmp_path, part, says):
    path = tmp_path / "pasted.txt"
    path.write_text(f"While the job hangs:\n```\n{part}```\n")
    assert says in distprof.hang(str(path)).verdict


def test_other_text_about_communicators_is_not_output_of_ncclras():
    assert not is_ras("DEAD code is removed. Communicators... are made by ncclCommInitRank.\n")
