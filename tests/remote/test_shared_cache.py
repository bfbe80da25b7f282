"""A cache in an S3 server: one machine fills it, another uses what is whole."""

import io
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from distprof import remote
from distprof.artefacts import files
from distprof.cli import main
from distprof.ingest import cache as shared_cache
from distprof.ingest.cache import CacheKey, SharedCache
from distprof.ingest.open import open_run
from distprof.ingest.rank import IngestOptions
from distprof.ingest.tables_file import Part, TablesReader, TablesWriter
from distprof.remote import download
from tests.remote.test_s3 import GLOO, denied, put_ranks

URL = "s3://bucket/team"
OPTIONS = IngestOptions(cache_dir=URL)


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine without anything in its own cache; a call makes it another such machine."""
    monkeypatch.setattr(download, "PAUSE_S", 0.01)
    remote._unusable.clear()
    count = iter(range(9))

    def another():
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"machine{next(count)}"))

    another()
    return another


def entries(s3):
    found = s3.client.list_objects_v2(Bucket="bucket", Prefix="team/").get("Contents", ())
    return [one["Key"] for one in found]


def tables(run):
    return [
        getattr(rank.tables.load(every_host_row=True), name).to_pandas()
        for rank in run
        for name in ("activity", "host", "collectives", "steps")
    ]


def same(one, other):
    return all(a.equals(b) for a, b in zip(tables(one), tables(other), strict=True))


def gets(s3, start):
    return [path for verb, path, _ in s3.asked if verb == "GET" and path.startswith(start)]


def test_another_machine_reads_no_trace(s3, machine):
    put_ranks(s3)
    here = open_run("s3://bucket/run", OPTIONS)
    assert len(entries(s3)) == 2
    machine()
    s3.reset()
    there = open_run("s3://bucket/run", OPTIONS)
    assert same(here, there)
    assert len(gets(s3, "/bucket/run/")) == 2  # the beginning of each, to see that it is a trace
    assert len(gets(s3, "/bucket/team/")) == 2
    s3.reset()
    open_run("s3://bucket/run", OPTIONS)
    assert gets(s3, "/bucket/team/") == []  # this machine has copies by now


def test_local_traces_share_tables_by_their_content(s3, machine, tmp_path):
    here = open_run(str(GLOO), OPTIONS)
    shutil.copytree(GLOO, tmp_path / "elsewhere")
    machine()
    there = open_run(str(tmp_path / "elsewhere"), OPTIONS)
    assert len(entries(s3)) == 2
    assert same(here, there)


def test_the_environment_names_it_too(s3, monkeypatch):
    monkeypatch.setenv(files.CACHE_ENVIRONMENT, URL)
    open_run(str(GLOO), IngestOptions())
    assert len(entries(s3)) == 2


def test_a_run_directory_keeps_its_own_cache_unless_a_shared_one_is_named(tmp_path, monkeypatch):
    (tmp_path / "run.json").write_text("{}")
    monkeypatch.setenv(files.CACHE_ENVIRONMENT, URL)
    assert files.shared_url(tmp_path, None) == ""
    assert files.cache_root(tmp_path, None) == tmp_path / "cache"
    assert files.shared_url(tmp_path, URL) == URL
    assert files.cache_root(tmp_path, URL).parent.name == "distprof"


def test_without_a_cache_nothing_is_stored(s3, monkeypatch):
    monkeypatch.setenv(files.CACHE_ENVIRONMENT, URL)
    open_run(str(GLOO), IngestOptions(use_cache=False))
    assert entries(s3) == []


# What is not believed -----------------------------------------------------------------------------


def flipped(data):
    content = bytearray(data)
    content[len(content) // 2] ^= 1
    return bytes(content)


def of_another_key(data):
    """A whole entry that was made from another trace."""
    made = io.BytesIO()
    writer = TablesWriter(made, "0" * 40)
    reader = TablesReader(io.BytesIO(data), "")
    for part in Part:
        if part is not Part.RANK:
            writer.write_table(part, reader.table(part))
    writer.write_rank(reader.rank())
    writer.finish()
    return made.getvalue()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"no tables",
        lambda data: data[: len(data) // 2],
        lambda data: data + b"more",
        flipped,
        of_another_key,
    ],
    ids=["empty", "no tables", "cut", "longer", "flipped", "of another key"],
)
def test_a_damaged_entry_is_made_again(s3, machine, damage):
    here = open_run(str(GLOO), OPTIONS)
    for key in entries(s3):
        data = s3.client.get_object(Bucket="bucket", Key=key)["Body"].read()
        s3.client.put_object(Bucket="bucket", Key=key, Body=damage(data))
    machine()
    assert same(here, open_run(str(GLOO), OPTIONS))
    machine()
    s3.reset()
    assert same(here, open_run(str(GLOO), OPTIONS))  # what was made again was stored again
    assert {verb for verb, _, _ in s3.asked} <= {"GET", "HEAD"}


def test_an_object_above_the_limit_is_not_downloaded(s3, machine, monkeypatch):
    here = open_run(str(GLOO), OPTIONS)
    machine()
    s3.reset()
    monkeypatch.setattr(shared_cache, "BOUND", replace(shared_cache.BOUND, num_bytes=1_000))
    assert same(here, open_run(str(GLOO), OPTIONS))
    assert gets(s3, "/bucket/team/") == []


# Access -------------------------------------------------------------------------------------------


def test_who_may_not_write_reads_the_traces_all_the_same(s3):
    key = CacheKey("ab" + "0" * 38)
    entry = Path(open_run(str(GLOO), OPTIONS).rank(0).tables.path)
    s3.faults[f"/bucket/team/ab/{key.digest}.tables"] = denied
    note = SharedCache(URL).store(key, entry)
    assert note.startswith(f"Cannot write to the shared cache {URL} (access denied")


def test_a_place_that_cannot_be_used_is_a_note(s3):
    run = open_run(str(GLOO), IngestOptions(cache_dir="s3://nobucket/team"))
    assert len(run) == 2
    assert any("shared cache s3://nobucket/team" in note for note in run.rank(0).quality.notes)


def test_analyze_takes_it(s3, machine, tmp_path):
    made = []
    for _ in range(2):
        report = tmp_path / f"report{len(made)}.json"
        arguments = ["analyze", str(GLOO), "--cache-dir", URL, "--format", "json"]
        assert main([*arguments, "-o", str(report)]) in (0, 1)
        made.append(report.read_bytes())
        machine()
    assert made[0] == made[1]
    assert len(entries(s3)) == 2


def test_two_that_store_the_same_entry_store_the_same_bytes(s3, machine):
    bodies = []
    for _ in range(2):
        open_run(str(GLOO), OPTIONS)
        bodies.append(
            [s3.client.get_object(Bucket="bucket", Key=k)["Body"].read() for k in entries(s3)]
        )
        for key in entries(s3):
            s3.client.delete_object(Bucket="bucket", Key=key)
        machine()
    assert bodies[0] == bodies[1]
    assert all(bodies[0])
