"""Small archives that unpack to a gigabyte, and archives of nothing: bounded by what goes in."""

import gzip
import time

import pytest

from distprof.errors import InputError
from distprof.ingest.files import beginning
from distprof.ingest.kinds import known_sources
from distprof.ingest.kinds.logs import TRAINING_LOG
from distprof.ingest.kineto import parsed, reader
from distprof.ingest.kineto.reader import read_trace

MIB = 1 << 20
HEAD = b'{"schemaVersion":1,"traceEvents":[\n'
EVENT = (
    b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1700000000000000.0,"dur":1.5,'
    b'"args":{"stream":7,"correlation":3,"device":0}},\n'
)
LIMIT_S = 60  # of CPU time; most take one or two


def bomb(path, head, unit, *, mib=1024):
    """An archive that unpacks to ``mib`` MiB of one thing, of members of a MiB."""
    block = gzip.compress(unit * (MIB // len(unit)), 9, mtime=0)
    path.write_bytes(gzip.compress(head) + block * mib)
    return path


@pytest.fixture(autouse=True)
def in_time():
    began = time.process_time()
    yield
    assert time.process_time() - began < LIMIT_S


def test_a_repeated_event_is_read_up_to_the_ratio(tmp_path):
    found = read_trace(bomb(tmp_path / "a.json.gz", HEAD, EVENT))
    assert found.quality.truncated
    assert "unpacks to more than 100 times its size" in found.quality.notes[0]
    assert 100_000 < len(found.activity) < 2_000_000


@pytest.mark.parametrize("unit", [b"{},\n", b"[" * 8, b" ", b"\0", b'{"a":', b"1,"])
def test_what_is_no_event_is_refused(unit, tmp_path):
    """Millions of empty events take the most time for their bytes: half a second a MB."""
    mib = 16 if unit.startswith(b"{}") else 1024
    with pytest.raises(InputError, match="expected: a PyTorch profiler trace"):
        read_trace(bomb(tmp_path / "a.json.gz", HEAD, unit, mib=mib))


@pytest.mark.parametrize("unit", [b"[" * 8, b" ", b"\0"])
def test_what_is_no_trace_from_its_start_is_refused(unit, tmp_path):
    with pytest.raises(InputError, match="expected: a PyTorch profiler trace"):
        read_trace(bomb(tmp_path / "a.json.gz", b"", unit))


def test_an_archive_in_an_archive_is_no_trace(tmp_path):
    inner = bomb(tmp_path / "inner.gz", HEAD, EVENT, mib=64).read_bytes()
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(inner))
    with pytest.raises(InputError, match="begins with"):
        read_trace(tmp_path / "a.json.gz")


def test_millions_of_empty_members_are_no_trace_and_of_no_kind(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"") * 1_000_000)
    with pytest.raises(InputError, match="holds next to nothing"):
        read_trace(path)
    for source in known_sources():
        assert source.fits(str(path)) is False
    assert beginning(str(path), MIB) == b""


def test_a_log_of_one_line_is_read_up_to_the_ratio(tmp_path, monkeypatch):
    monkeypatch.setattr("distprof.ingest.files._LOG_SLACK_BYTES", 32 * MIB)
    line = b"[2024-01-01 00:00:00] iteration 1/ 100 | elapsed time per iteration (ms): 100.0 |\n"
    log = TRAINING_LOG.read(str(bomb(tmp_path / "a.log.gz", line, line)))
    assert any("unpacks to more than 250 times its size" in note for note in log.notes)


def test_more_rows_than_are_kept_are_left_out_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAX_ROWS", 1_000)
    (tmp_path / "a.json").write_bytes(HEAD + EVENT * 100_000 + EVENT.rstrip(b",\n") + b"]}")
    found = read_trace(tmp_path / "a.json")
    assert 1_000 <= len(found.activity) < 100_001
    assert "more than 1,000 rows" in found.quality.notes[0]
    assert found.quality.truncated


def test_more_names_than_are_kept_share_one(tmp_path, monkeypatch):
    monkeypatch.setattr(parsed, "MAX_NAMES", 100)
    monkeypatch.setattr(reader, "MAX_NAMES", 100)
    events = b"".join(EVENT.replace(b'"k"', b'"k%d"' % number) for number in range(1_000))
    (tmp_path / "a.json").write_bytes(HEAD + events.rstrip(b",\n") + b"]}")
    found = read_trace(tmp_path / "a.json")
    assert len(found.activity) == 1_000
    names = found.activity.coded("name").decode()
    assert names[:99] == [f"k{number}" for number in range(99)]
    assert names[-1] == parsed.OTHER_NAMES
    assert any("More than 100 different names" in note for note in found.quality.notes)


def test_a_plain_trace_of_any_ratio_is_read_whole(tmp_path):
    """What is not packed cannot be a bomb; what is packed a hundredfold and small is none."""
    whole = HEAD + EVENT * 1_000 + EVENT.rstrip(b",\n") + b"]}"
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(whole))
    found = read_trace(tmp_path / "a.json.gz")
    assert len(found.activity) == 1_001
    assert not found.quality.truncated
