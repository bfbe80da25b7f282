"""Traces in an S3 server of its own process: each byte comes once, and never from two versions."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distprof import remote
from distprof.cli import main
from distprof.errors import InputError
from distprof.ingest.discovery import discover
from distprof.ingest.open import open_run
from distprof.ingest.rank import IngestOptions
from distprof.remote import ChangedError, StoreError, download
from distprof.remote.download import BLOCK_BYTES, Stored, find, stat
from tests.remote.s3_server import environment

GLOO = Path(__file__).parents[1] / "golden" / "kineto" / "gloo-ddp-2ranks"
RANKS = [(GLOO / f"rank-{number}.pt.trace.json.gz").read_bytes() for number in range(2)]
SNIFFED = 1 << 14
LONG = os.urandom(3 * BLOCK_BYTES + 5)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(download, "PAUSE_S", 0.01)
    remote._unusable.clear()


@pytest.fixture
def options(tmp_path):
    return IngestOptions(cache_dir=str(tmp_path / "cache"))


def put(s3, key, data):
    s3.client.put_object(Bucket="bucket", Key=key, Body=data)
    s3.reset()


def put_ranks(s3, prefix="run"):
    for number, data in enumerate(RANKS):
        put(s3, f"{prefix}/rank{number}.json.gz", data)


def gets(s3, key):
    return [ranged for verb, path, ranged in s3.asked if verb == "GET" and path == f"/bucket/{key}"]


def read_all(stored):
    with download.download(stored) as stream:
        return stream.read()


def test_a_folder_a_pattern_and_a_file_are_read_as_local_ones(s3, options):
    put_ranks(s3)
    put(s3, "run/cache/ab/rank9.json.gz", RANKS[0])
    local = [len(rank.collectives) for rank in open_run(str(GLOO), options)]
    for url in ("s3://bucket/run", "s3://bucket/run/", "s3://bucket/run/rank?.json.gz"):
        run = open_run(url, options)
        assert [len(rank.collectives) for rank in run] == local
        assert [rank.path for rank in run] == [
            f"s3://bucket/run/rank{number}.json.gz" for number in range(2)
        ]
    (only,) = open_run("s3://bucket/run/rank1.json.gz", options)
    assert only.rank == 1


def test_nothing_is_downloaded_twice_but_the_beginning(s3, options):
    put_ranks(s3)
    open_run("s3://bucket/run", options)
    for number, data in enumerate(RANKS):
        assert s3.bodies(f"/bucket/run/rank{number}.json.gz") <= len(data) + SNIFFED
    s3.reset()
    open_run("s3://bucket/run", options)  # now from the cache, found by the tags in the listing
    for number in range(2):
        assert gets(s3, f"run/rank{number}.json.gz") == [f"bytes=0-{SNIFFED - 1}"]


def test_a_long_object_comes_in_ranges_of_one_version(s3):
    put(s3, "long", LONG)
    stored = find("s3://bucket/long")
    assert isinstance(stored, Stored)
    assert (stored.size, bool(stored.tag)) == (len(LONG), True)
    with download.download(stored) as stream:
        assert stream.read(10) == LONG[:10]
        assert stream.seek(0) == 0
        assert stream.read() == LONG
        assert stream.seek(-5, os.SEEK_END) == len(LONG) - 5
        assert stream.read() == LONG[-5:]
    ranges = [
        f"bytes={at}-{min(at + BLOCK_BYTES, len(LONG)) - 1}"
        for at in range(0, len(LONG), BLOCK_BYTES)
    ]
    assert sorted(gets(s3, "long")) == sorted(ranges)


def test_an_empty_object_is_empty(s3):
    put(s3, "empty", b"")
    assert read_all(stat("s3://bucket/empty")) == b""


# Objects that change ------------------------------------------------------------------------------


def test_an_object_that_changed_after_it_was_listed_is_refused(s3):
    put(s3, "long", LONG)
    stored = stat("s3://bucket/long")
    put(s3, "long", LONG[::-1])
    with pytest.raises(ChangedError, match="another version than was listed"):
        read_all(stored)


@pytest.mark.parametrize("change", [LONG[::-1], LONG[: BLOCK_BYTES + 1]], ids=["other", "shorter"])
def test_an_object_that_changes_while_it_is_read_is_never_mixed(s3, change):
    put(s3, "long", LONG)
    stored = stat("s3://bucket/long")
    last = f"bytes={3 * BLOCK_BYTES}-{len(LONG) - 1}"

    def overwrite():
        if s3.asked[-1][2] == last:
            s3.client.put_object(Bucket="bucket", Key="long", Body=change)

    s3.before["/bucket/long"] = overwrite
    with pytest.raises(ChangedError):
        read_all(stored)


def test_a_changed_trace_costs_its_rank_only_and_leaves_nothing_in_the_cache(s3, options, tmp_path):
    put_ranks(s3)
    key = "/bucket/run/rank1.json.gz"

    def overwrite():
        if s3.asked[-1][2] != f"bytes=0-{SNIFFED - 1}":
            s3.client.put_object(Bucket="bucket", Key="run/rank1.json.gz", Body=RANKS[0])

    s3.before[key] = overwrite
    run = open_run("s3://bucket/run", options)
    assert [rank.rank for rank in run] == [0]
    (gap,) = [gap for gap in run.gaps if gap.what == "unreadable"]
    assert gap.ranks == (1,)
    assert "another version than was listed" in gap.message
    assert len(list((tmp_path / "cache").glob("*/*"))) == 1
    s3.reset()
    put_ranks(s3)
    assert len(open_run("s3://bucket/run", options)) == 2


def test_an_object_that_vanishes_costs_its_rank_only(s3, options):
    put_ranks(s3)

    def delete():
        if s3.asked[-1][2] != f"bytes=0-{SNIFFED - 1}":
            s3.client.delete_object(Bucket="bucket", Key="run/rank1.json.gz")

    s3.before["/bucket/run/rank1.json.gz"] = delete
    run = open_run("s3://bucket/run", options)
    (gap,) = [gap for gap in run.gaps if gap.what == "unreadable"]
    assert gap.ranks == (1,)
    assert "no object with this name" in gap.message


# Answers ------------------------------------------------------------------------------------------


def denied(front, handler, data):
    body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    handler.send_response_only(403)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
    return True


def truncated(front, handler, data):
    """A whole answer is announced, half of it comes."""
    if handler.command != "GET":
        return False
    handler.send_response_only(206)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2])
    handler.wfile.flush()
    handler.close_connection = True
    return True


def short(front, handler, data):
    """Less than was asked for, without saying so."""
    if handler.command != "GET":
        return False
    handler.send_response_only(206)
    handler.send_header("Content-Length", str(len(data) // 2))
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2])
    return True


def endless(front, handler, data):
    """A store that takes no notice of ranges."""
    if handler.command != "GET":
        return False
    handler.send_response_only(200)
    handler.end_headers()
    handler.close_connection = True
    while True:
        handler.wfile.write(bytes(1 << 16))


def slow(front, handler, data):
    if handler.command != "GET":
        return False
    handler.send_response_only(206)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    for byte in data[:40]:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        time.sleep(0.1)
    handler.close_connection = True
    return True


def once(fault):
    done = []

    def answer(front, handler, data):
        if done or handler.command != "GET":
            return False
        done.append(1)
        return fault(front, handler, data)

    return answer


@pytest.mark.parametrize("fault", [truncated, short])
def test_what_fails_once_is_asked_for_again(s3, fault):
    put(s3, "long", LONG)
    stored = stat("s3://bucket/long")
    s3.faults["/bucket/long"] = once(fault)
    assert read_all(stored) == LONG


def test_short_answers_are_refused_in_the_end(s3, monkeypatch):
    put(s3, "long", LONG)
    stored = stat("s3://bucket/long")
    s3.faults["/bucket/long"] = short
    with pytest.raises(StoreError, match="a response that ends after"):
        read_all(stored)
    first = [ranged for ranged in gets(s3, "long") if ranged.startswith("bytes=0-")]
    assert len(first) == download.TRIES


def test_an_endless_answer_ends(s3):
    put(s3, "long", LONG)
    stored = stat("s3://bucket/long")
    s3.faults["/bucket/long"] = endless
    with pytest.raises(StoreError, match="a response that continues after"):
        read_all(stored)


def test_a_slow_answer_ends(s3, monkeypatch):
    put(s3, "long", LONG)
    stored = stat("s3://bucket/long")
    monkeypatch.setattr(download, "LIMIT_S", 0.3)
    s3.faults["/bucket/long"] = slow
    with pytest.raises(StoreError, match="no answer"):
        read_all(stored)


def test_a_truncated_trace_is_no_damaged_one_in_the_cache(s3, options, tmp_path, monkeypatch):
    """A damaged file would be salvaged; half of a download is not taken for one."""
    put_ranks(s3)

    def later(front, handler, data):
        is_sniff = handler.headers.get("Range") == f"bytes=0-{SNIFFED - 1}"
        return False if is_sniff else short(front, handler, data)

    s3.faults["/bucket/run/rank1.json.gz"] = later
    run = open_run("s3://bucket/run", options)
    assert [rank.rank for rank in run] == [0]
    s3.reset()
    assert len(open_run("s3://bucket/run", options)) == 2


def test_a_rank_without_permission_is_named_and_the_others_are_analysed(s3, options):
    put_ranks(s3)
    s3.faults["/bucket/run/rank1.json.gz"] = denied
    run = open_run("s3://bucket/run", options)
    assert [rank.rank for rank in run] == [0]
    (gap,) = [gap for gap in run.gaps if gap.what == "unreadable"]
    assert gap.ranks == (1,)
    assert "access denied" in gap.message


def test_where_all_is_denied_the_sentence_says_what_to_check(s3):
    put_ranks(s3)
    for number in range(2):
        s3.faults[f"/bucket/run/rank{number}.json.gz"] = denied
    with pytest.raises(InputError) as caught:
        discover("s3://bucket/run")
    assert "access denied" in caught.value.found
    assert "credentials" in caught.value.fix


# Names and numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "rank 1 of 2.json",
        "rank1+a%20b&c=d;e.json",
        "rank1#2.json",
        "rank1?x=1.json",
        "rank[1]*.json",
        "räñk1 ☃.json",
        "rank1::http://127.0.0.1:1/x.json",
        "rank1'\"$(x).json",
    ],
)
def test_odd_names_are_read(s3, options, name):
    put(s3, f"run/{name}", gzip.decompress(RANKS[1]))
    (rank,) = open_run("s3://bucket/run", options)
    assert rank.path == f"s3://bucket/run/{name}"
    assert rank.rank == 1


@pytest.mark.slow
def test_a_thousand_objects_are_found_with_few_requests(s3):
    start = json.dumps({"schemaVersion": 1, "traceEvents": []}).encode()
    for number in range(1_000):
        s3.client.put_object(Bucket="bucket", Key=f"run/rank{number}.json", Body=start)
    s3.client.put_object(Bucket="bucket", Key="run/notes.txt", Body=b"x")
    s3.reset()
    found = discover("s3://bucket/run")
    assert [trace.name_rank for trace in found.traces] == list(range(1_000))
    assert {trace.size_bytes for trace in found.traces} == {len(start)}
    assert all(trace.tag for trace in found.traces)
    assert sum("rank" in path for _, path, _ in s3.asked) == 1_000  # its beginning, each
    assert len(s3.asked) < 1_020


# The command line ---------------------------------------------------------------------------------


def test_analyze_reads_a_bucket(s3, tmp_path, capsys):
    put_ranks(s3)
    report = tmp_path / "report.json"
    arguments = ["analyze", "s3://bucket/run", "--cache-dir", str(tmp_path / "cache")]
    assert main([*arguments, "--format", "json", "-o", str(report)]) in (0, 1)
    assert json.loads(report.read_text())["run"]["source"] == "s3://bucket/run"


@pytest.mark.parametrize(
    ("source", "words"),
    [("s3://bucket/nothing", "no file with a matching name"), ("s3://nobucket/run", "no object")],
)
def test_what_is_not_there_is_a_sentence(s3, source, words, capsys):
    assert main(["analyze", source]) == 3
    assert words in capsys.readouterr().err


def test_without_credentials_the_way_out_is_named(s3, tmp_path):
    bare = {name: value for name, value in environment(s3).items() if "ACCESS_KEY" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "distprof", "analyze", "s3://bucket/run"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**bare, "HOME": str(tmp_path)},
    )
    assert done.returncode == 3
    assert "no credentials for s3://" in done.stderr
    assert "AWS_PROFILE" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_that_is_not_there_is_a_sentence_at_once(s3, tmp_path):
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "distprof", "analyze", "s3://bucket/run"],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
        env={**environment(s3), "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
    )
    assert done.returncode == 3
    assert "no answer" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - started < 60
