import contextlib
import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import InputError
from distprof.ingest.kineto.source import ByteSource
from distprof.ingest.metadata import parse_metadata
from tests.ingest.kineto.traces import (
    BASE_NS,
    COPY,
    EVENTS,
    KERNEL,
    LAYOUTS,
    METADATA,
    OPERATOR,
    REDUCE,
    read_text,
    rows_of,
    same_tables,
)

KINETO = LAYOUTS["kineto"]
BASE_FIRST = LAYOUTS["one key a line"]
MANY = [{**KERNEL, "ts": 100 + 50.5 * number} for number in range(40)]


@pytest.mark.parametrize("layout", ["kineto", "one key a line", "compact", "indent 4"])
def test_every_truncation_keeps_every_complete_event(layout):
    text = LAYOUTS[layout](MANY[:4])
    ends = [
        text.index('"ts": ' + repr(e["ts"]) if layout != "compact" else f'"ts":{e["ts"]}')
        for e in MANY[:4]
    ]
    for cut in range(len(text)):
        complete = sum(_event_end(text, start) <= cut for start in ends)
        if complete == 0:
            with pytest.raises(InputError):
                read_text(text[:cut])
            continue
        parsed = read_text(text[:cut])
        assert len(parsed.activity) == complete, cut
        whole = not text[cut:].strip()
        assert parsed.quality.truncated != whole, cut


def _event_end(text: str, inside: int) -> int:
    """Where the event around ``inside`` ends: its second closing brace after the arguments."""
    return text.index("}", text.index("}", inside) + 1) + 1


def test_a_truncated_file_says_where_and_how_much_is_lost():
    text = KINETO(MANY)
    cut = text.index('"name"', len(text) // 2)
    parsed = read_text(text[:cut])
    end = text.rindex("}", 0, cut) + 1

    assert parsed.quality.lost_bytes == len(text[end:cut].strip(", \n"))
    assert f"byte {end + 1}" in parsed.quality.notes[0]


def test_metadata_before_the_events_survives_truncation():
    text = BASE_FIRST(MANY)
    parsed = read_text(text[: len(text) // 2])

    assert parsed.metadata == METADATA
    assert parsed.has_epoch


def test_values_of_damaged_metadata_are_tried_a_limited_number_of_times():
    tries = Counter()

    class Counted(json.JSONDecoder):
        def raw_decode(self, text, start=0):
            tries["all"] += 1
            return super().raw_decode(text, start)

    broken = b"".join(b', "broken %d": }' % number for number in range(100_000))
    with mock.patch.object(json, "JSONDecoder", Counted):
        keys, complete = parse_metadata(
            b'{"world_size": 8, "traceEvents": ', b', "rank": 3' + broken, ended=True
        )
    assert keys == {"world_size": 8, "rank": 3}
    assert not complete
    assert tries["all"] < 100


def test_a_base_at_the_lost_end_means_no_epoch():
    text = KINETO(MANY)

    assert not read_text(text[: len(text) // 2]).has_epoch


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
def test_a_truncated_gzip_file_keeps_what_was_there(keep):
    packed = gzip.compress(KINETO(MANY * 20).encode())
    parsed = read_text(packed[: int(len(packed) * keep)])

    assert parsed.quality.truncated
    assert "compressed data ends early" in parsed.quality.notes[0]
    assert len(parsed.activity) >= 1


def test_damaged_compression_keeps_the_rows_before_the_damage():
    noise = random.Random(7)
    events = [{**k, "name": f"{noise.random()}"} for k in MANY * 20]
    packed = bytearray(gzip.compress(KINETO(events).encode()))
    packed[len(packed) // 2 : len(packed) // 2 + 8] = b"\0" * 8
    parsed = read_text(bytes(packed))

    assert parsed.quality.truncated
    assert 0.3 * len(events) < len(parsed.activity) < 0.7 * len(events)


def test_a_wrong_checksum_loses_no_row():
    packed = bytearray(gzip.compress(KINETO(MANY).encode()))
    packed[-6] ^= 255
    parsed = read_text(bytes(packed))

    assert len(parsed.activity) == len(MANY)
    assert parsed.quality.truncated


BROKEN = {
    "unescaped quote": (b'"gemm<float, 1>"', b'"forward "x" of y"', 'forward "x" of y'),
    "quote before a comma": (b'"gemm<float, 1>"', b'"a", b"', 'a", b'),
    "raw newline": (b'"gemm<float, 1>"', b'"ge\nmm"', "ge\nmm"),
    "control character": (b'"gemm<float, 1>"', b'"ge\x01mm"', "ge\x01mm"),
    "bad utf-8": (b'"gemm<float, 1>"', b'"ge\xffmm"', "ge\ufffdmm"),
    "lone backslash": (b'"gemm<float, 1>"', b'"C:\\path"', "C:\\path"),
    "lone surrogate": (b'"gemm<float, 1>"', b'"ge\\ud800mm"', "ge?mm"),
    "nan": (b'"queued": 0', b'"queued": NaN', "gemm<float, 1>"),
    "printf nan": (b'"queued": 0', b'"queued": -nan', "gemm<float, 1>"),
    "infinity": (b'"queued": 0', b'"queued": -Infinity', "gemm<float, 1>"),
    "printf inf": (b'"queued": 0', b'"queued": inf', "gemm<float, 1>"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_event_is_mended_and_counted_and_its_neighbours_are_untouched(what, layout):
    old, new, name = BROKEN[what]
    events = [OPERATOR, KERNEL, COPY, REDUCE]
    text = LAYOUTS[layout](events).encode()
    if layout == "compact":
        old, new = old.replace(b'": ', b'":'), new.replace(b'": ', b'":')
    broken = text.replace(old, new)
    assert broken != text
    parsed = read_text(broken)
    expected = read_text(text)

    assert parsed.quality.num_repaired == 1
    assert parsed.quality.num_quarantined == 0
    assert name in parsed.activity.coded("name").decode()
    assert rows_of(parsed.host) == rows_of(expected.host)
    assert rows_of(parsed.comm_args) == rows_of(expected.comm_args)
    assert parsed.activity["start_ns"].tolist() == expected.activity["start_ns"].tolist()
    assert not parsed.quality.truncated


@pytest.mark.parametrize("what", BROKEN)
def test_strict_reading_names_the_byte_of_the_broken_event(what):
    old, new, _ = BROKEN[what]
    text = KINETO([OPERATOR, KERNEL, COPY]).encode().replace(old, new)
    with pytest.raises(InputError) as caught:
        read_text(text, strict=True)
    place = int(caught.value.found.rpartition(" ")[2])

    assert text[place : place + 1] == b"{"
    assert place < text.index(new) < place + 200


def test_strict_reading_accepts_what_is_whole_and_refuses_what_is_cut_or_absurd():
    text = KINETO(EVENTS)
    read_text(text, strict=True)

    with pytest.raises(InputError, match="ends early, at byte"):
        read_text(text[:-200], strict=True)
    with pytest.raises(InputError, match="duration"):
        read_text(KINETO([KERNEL, {**COPY, "dur": -1}]), strict=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_garbage_between_events_costs_only_itself(layout):
    text = LAYOUTS[layout]([OPERATOR, KERNEL, {**COPY, "name": "@@@"}, REDUCE])
    parsed = read_text(text.replace('"@@@"', "@@@"))

    assert len(parsed.activity) == 2
    assert parsed.quality.num_quarantined == 1
    assert parsed.metadata["baseTimeNanoseconds"] == BASE_NS


def test_events_of_unusual_types_are_read_without_being_counted_as_broken():
    odd = {**KERNEL, "name": 5, "pid": None, "args": {**KERNEL["args"], "device": "0"}}
    parsed = read_text(
        KINETO([KERNEL, odd, {"ph": "?", "name": [], "ts": 1}, {"ph": "X", "ts": 1}])
    )

    assert parsed.activity.coded("name").decode() == ["gemm<float, 1>", "5"]
    assert (parsed.quality.num_repaired, parsed.quality.num_quarantined) == (0, 0)


def test_a_boundary_inside_an_event_does_not_mislead():
    nested = {**KERNEL, "args": {**KERNEL["args"], "list": [{"ph": 1}, {"ph": 2}, {"ph": 3}]}}
    text_like = {**KERNEL, "name": '}, {"ph": "X"'}
    events = [nested, text_like, COPY, nested]
    for layout in LAYOUTS.values():
        parsed = read_text(layout(events))
        assert len(parsed.activity) == 4
        assert parsed.quality.num_repaired == parsed.quality.num_quarantined == 0


def test_many_broken_events_among_many_are_all_mended(monkeypatch):
    monkeypatch.setattr("distprof.ingest.kineto.framing.WINDOW_BYTES", 4096)
    events = [{**k, "name": "BAD" if i % 7 == 0 else "fine"} for i, k in enumerate(MANY * 10)]
    text = KINETO(events).replace('"BAD"', '"a "quoted" name"')
    parsed = read_text(text)

    assert (
        parsed.activity["start_ns"].tolist()
        == read_text(KINETO(events)).activity["start_ns"].tolist()
    )
    assert parsed.quality.num_repaired == sum(e["name"] == "BAD" for e in events)


def test_an_event_too_large_is_left_out_and_its_neighbours_are_kept(monkeypatch):
    monkeypatch.setattr("distprof.ingest.kineto.framing.WINDOW_BYTES", 1000)
    monkeypatch.setattr("distprof.ingest.kineto.framing._BLOCK", 500)
    monkeypatch.setattr("distprof.ingest.kineto.framing._FIRST_READ", 500)
    monkeypatch.setattr("distprof.ingest.kineto.framing.LARGEST_EVENT_BYTES", 4000)
    giant = {**OPERATOR, "name": "x" * 50_000}
    parsed = read_text(KINETO([*MANY, giant, *MANY]))

    assert parsed.quality.num_quarantined == 1
    assert len(parsed.host) == 0
    assert 2 * len(MANY) - 1 <= len(parsed.activity) <= 2 * len(MANY)


def test_metadata_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("distprof.ingest.kineto.framing.LARGEST_METADATA_BYTES", 1 << 20)
    with pytest.raises(InputError, match="without traceEvents"):
        read_text(b'{"x": "' + b" " * (3 << 20) + b'", "traceEvents": [{"ph": "X"}]}')


def test_a_compression_bomb_is_read_in_bounded_memory(monkeypatch):
    import tracemalloc

    monkeypatch.setattr("distprof.ingest.kineto.framing.LARGEST_METADATA_BYTES", 1 << 22)
    bomb = gzip.compress(b'{"x": "' + b"a" * (80 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            read_text(bomb)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_absurd_nesting_is_one_broken_event(depth):
    deep = KINETO([KERNEL, COPY]).replace('"queued": 0', '"queued": ' + "[" * depth + "]" * depth)
    parsed = read_text(deep)

    assert "Memcpy HtoD" in parsed.activity.coded("name").decode()


@given(seed=st.integers(0, 2**32), count=st.integers(1, 6), layout=st.sampled_from(list(LAYOUTS)))
def test_flipped_bits_give_a_result_or_an_input_error(seed, count, layout):
    chance = random.Random(seed)
    data = bytearray(LAYOUTS[layout](EVENTS).encode())
    for _ in range(count):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    for rows in ("all", "device"):
        try:
            parsed = read_text(bytes(data), rows=rows)
        except InputError:
            continue
        assert (parsed.activity["end_ns"] >= parsed.activity["start_ns"]).all()
        assert len(parsed.activity) <= len(EVENTS) + 1


@given(seed=st.integers(0, 2**32))
def test_flipped_bits_under_gzip_give_a_result_or_an_input_error(seed):
    chance = random.Random(seed)
    data = bytearray(gzip.compress(KINETO(MANY).encode()))
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    with contextlib.suppress(InputError):
        read_text(bytes(data))


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    st.sampled_from(sorted({key for event in EVENTS for key in event})),
)
def test_any_json_value_in_any_field_gives_a_result_or_an_input_error(value, key):
    events = [{**event, key: value} for event in EVENTS]
    try:
        parsed = read_text(json.dumps(events))
    except InputError:
        return
    assert parsed.quality.num_events + parsed.quality.num_quarantined == len(EVENTS)


def test_one_bad_event_leaves_the_whole_rest_identical():
    events = [*EVENTS, {**OPERATOR, "name": "BAD"}]
    parsed = read_text(KINETO(events).replace('"BAD"', "nonsense"))

    assert same_tables(parsed, read_text(KINETO(EVENTS)))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="Linux lists open files")
@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x1f\x8b"])
def test_a_file_that_is_refused_is_closed(tmp_path, data):
    file = tmp_path / "trace.json"
    file.write_bytes(data)
    with pytest.raises(InputError) as refused:
        ByteSource(file, "trace.json")
    opened = {os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()}
    assert str(file) not in opened, refused
