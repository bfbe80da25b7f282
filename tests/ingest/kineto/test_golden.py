"""Real traces: exact to the nanosecond against decimal arithmetic over a plain JSON parse."""

import gzip
import json
import os
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest

from distprof.ingest.kineto.damage import repair_event
from distprof.ingest.kineto.events import DEVICE_KINDS, PYTHON_FRAME, normalise
from distprof.ingest.kineto.reader import read_trace
from tests.ingest.kineto.traces import rows_of, total_ns

GOLDEN = Path(__file__).parents[2] / "golden" / "kineto"
TRACES = sorted(GOLDEN.glob("*/*.json.gz"))
VALID_TRACES = [path for path in TRACES if "bad-quote" not in path.parent.name]
CORPUS = os.environ.get("DISTPROF_CORPUS")
CORPUS_TRACES = sorted(Path(CORPUS).glob("kineto/*/*.json*")) if CORPUS else []


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.name[:24]}"


@cache
def decimals(path: Path) -> tuple[int, list[dict]]:
    """Base and complete events, numbers with a fraction as Decimal."""
    data = path.read_bytes()
    trace = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data, parse_float=Decimal)
    if isinstance(trace, list):
        return 0, trace
    return trace.get("baseTimeNanoseconds", 0), trace["traceEvents"]


def check_exact(path: Path) -> None:
    base, events = decimals(path)
    parsed = read_trace(path)
    rows = {True: [], False: []}
    for event in events:
        category = normalise(event.get("cat", ""))
        is_module = event["name"].startswith("nn.Module: ")
        if event.get("ph") == "X" and (category != PYTHON_FRAME or is_module):
            start = base + int(Decimal(event["ts"]) * 1000)
            duration = int(Decimal(event["dur"]) * 1000)
            rows[category in DEVICE_KINDS].append((start, start + duration, event["name"]))

    for on_device, table in ((True, parsed.activity), (False, parsed.host)):
        mine = Counter((row[0], row[1], row[2]) for row in rows_of(table))
        assert mine == Counter(rows[on_device])
        assert total_ns(table) == sum(end - start for start, end, _ in rows[on_device])
    assert parsed.quality.num_events == len(events)
    assert parsed.quality.notes == ()


def check_comm(path: Path) -> None:
    _, events = decimals(path)
    parsed = read_trace(path)
    expected = Counter(
        (event["name"], str(event["args"]["In msg nelems"]), event["args"]["Collective name"])
        for event in events
        if "Collective name" in event.get("args", {}) and "In msg nelems" in event["args"]
    )
    table = parsed.comm_args
    with_name = table.take(table["in_nelems"] >= 0)
    mine = Counter(
        zip(
            with_name.coded("name").decode(),
            map(str, with_name["in_nelems"].tolist()),
            with_name.coded("collective").decode(),
            strict=True,
        )
    )
    assert mine == expected


def check_device(path: Path) -> None:
    full = read_trace(path)
    if not len(full.activity):
        pytest.skip("no device rows")
    device = read_trace(path, rows="device")
    steps = [row for row in rows_of(full.host) if row[2].startswith("ProfilerStep#")]
    kernels = full.comm_args.take(full.comm_args.coded("category").equals("kernel"))

    assert rows_of(device.activity) == rows_of(full.activity)
    assert rows_of(device.host) == steps
    assert rows_of(device.comm_args) == rows_of(kernels)
    assert device.metadata == full.metadata


@pytest.mark.parametrize("path", VALID_TRACES, ids=named)
def test_times_names_and_rows_are_exact(path):
    check_exact(path)


@pytest.mark.parametrize("path", VALID_TRACES, ids=named)
def test_collective_arguments_of_every_event_are_found(path):
    check_comm(path)


@pytest.mark.parametrize("path", TRACES, ids=named)
def test_device_rows_alone_are_the_device_rows_of_all(path):
    check_device(path)


@pytest.mark.parametrize("path", VALID_TRACES, ids=named)
def test_small_windows_change_nothing(path, monkeypatch):
    whole = read_trace(path)
    monkeypatch.setattr("distprof.ingest.kineto.framing.WINDOW_BYTES", 50_000)
    monkeypatch.setattr("distprof.ingest.kineto.framing._BLOCK", 20_000)
    cut = read_trace(path)

    assert rows_of(cut.activity) == rows_of(whole.activity)
    assert rows_of(cut.host) == rows_of(whole.host)
    assert rows_of(cut.comm_args) == rows_of(whole.comm_args)
    assert cut.metadata == whole.metadata
    assert cut.quality == whole.quality


def test_a_quote_that_torch_did_not_escape_is_mended():
    path = GOLDEN / "torch213-bad-quote" / "quote.pt.trace.json.gz"
    with gzip.open(path) as file, pytest.raises(ValueError, match=r"delimiter|Expecting"):
        json.load(file)
    parsed = read_trace(path)

    assert parsed.quality.num_repaired > 0
    assert parsed.quality.num_quarantined == 0
    assert any('"' in name for name in parsed.host.coded("name").values)


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS, reason="set DISTPROF_CORPUS to a folder of traces")
def test_every_trace_of_the_corpus_is_exact():
    assert CORPUS_TRACES
    for path in CORPUS_TRACES:
        check_exact(path)
        check_comm(path)
        decimals.cache_clear()


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS, reason="set DISTPROF_CORPUS to a folder of traces")
@pytest.mark.parametrize("path", CORPUS_TRACES, ids=named)
def test_device_rows_alone_are_the_device_rows_of_all_in_the_corpus(path):
    check_device(path)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'{"name": "say "hi"", "pid": 1}', 'say "hi"'),
        (b'{"name": "a\\"b "c" \\\\", "pid": 1}', 'a"b "c" \\'),
        (b'{"args": {"x": ["p"q", "r"]}, "name": "n"}', "n"),
        (b'{"name": ""quoted"", "args": {"k": "v"w"}}', '"quoted"'),
    ],
)
def test_quotes_are_mended_by_what_may_follow_a_string(text, name):
    event = repair_event(text)

    assert event is not None
    assert event["name"] == name


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        b"[1]",
        b'{"a"',
        b'{"name": "x',
        b'{"name": "a", "b": c", "pid": 1}',  # two readings
        b"{" * 5000,
    ],
)
def test_what_cannot_be_mended_is_given_up(text):
    assert repair_event(text) is None
