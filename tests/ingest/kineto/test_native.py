"""The compiled kernel reads a chunk as Python does, or leaves it to Python."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fuzzing.chunks import (
    answer_of,
    answers_of,
    is_declined,
    mutated_chunk,
    switched,
)
from distprof import kernel as switch
from distprof.errors import InputError
from distprof.ingest.kineto import native, reader, source
from distprof.ingest.kineto.decode import DecodeState, find_events
from distprof.ingest.kineto.framing import Boundary, DeviceSearch
from distprof.ingest.kineto.native import NativeReader
from distprof.ingest.kineto.parsed import SymbolTable
from distprof.ingest.kineto.reader import read_trace
from distprof.schema import ABSENT
from tests.built_kernel import built_kernel
from tests.ingest.kineto.traces import (
    COPY,
    FLOW,
    KERNEL,
    LAUNCH,
    OPERATOR,
    PARAMS,
    REDUCE,
    STEP,
)

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "kineto"
TRACES = sorted(GOLDEN.glob("*/*.json.gz"))
NAMED = {"ph": "M", "name": "thread_name", "pid": 10, "tid": 11, "args": {"name": 'main "1"'}}
FRAME = {**OPERATOR, "cat": "python_function", "name": "frame.py(1): f"}
MODULE = {**FRAME, "name": "nn.Module: Linear_0", "ts": 99.5, "args": {}}
VIEW = {**OPERATOR, "name": "aten::view", "ts": 120.0}
EVENTS = [NAMED, STEP, OPERATOR, LAUNCH, FLOW, FRAME, PARAMS, KERNEL, COPY, REDUCE, MODULE, VIEW]


@pytest.fixture(autouse=True)
def _built(monkeypatch):
    monkeypatch.setattr(switch, "_compiled", built_kernel())


def chunk_of(*events, **layout) -> bytes:
    return json.dumps(list(events), **layout).encode()


def changed(event, **fields):
    return chunk_of({**event, **fields})


def without(event, *names):
    return {name: value for name, value in event.items() if name not in names}


def read(chunk, symbols=None, *, exact=False):
    native_reader = NativeReader(symbols or SymbolTable())
    with switched(True):
        found = native_reader.find(chunk, len(chunk), exact=exact, device_only=False)
    return native_reader.with_codes(found)


def test_columns_of_known_events():
    symbols = SymbolTable()
    found = read(chunk_of(*EVENTS), symbols)
    assert found.num_events == 12
    device, host = found.device, found.host
    assert device["start_ns"].tolist() == [130_999, 180_000, 190_500]
    assert device["end_ns"].tolist() == [171_000, 182_002, 200_000]
    assert device["stream"].tolist() == [7, 22, 24]
    assert device["correlation"].tolist() == [77, 78, 79]
    assert device["bytes"].tolist() == [ABSENT, 4096, ABSENT]
    assert device["blocks"].tolist() == [6, ABSENT, ABSENT]
    assert host["start_ns"].tolist() == [99_000, 100_001, 105_250, 110_000, 99_500, 120_000]
    assert host["correlation"].tolist() == [ABSENT, ABSENT, 77, ABSENT, ABSENT, ABSENT]
    texts = [symbols.inputs.texts[code] for code in host["inputs"].tolist()]
    assert texts == ["", "[[[2,3],[]],[],[]]", "", "[[[1024]],[],[]]", "", ""]
    comm = found.comm
    assert comm.integers["in_nelems"].tolist() == [1024, 1024]
    assert comm.integers["seq"].tolist() == [3, ABSENT]
    texts = symbols.arguments["group_ranks"].texts
    assert [texts[code] for code in comm.codes["group_ranks"]] == ["[0,1]", "[0, 1]"]
    assert [event.args.name for event in found.metadata] == ['main "1"']


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"indent": 4}, {"separators": (",", ":")}])
@pytest.mark.parametrize("device_only", [False, True])
def test_it_says_what_python_says_in_every_layout(layout, device_only):
    chunk = chunk_of(*EVENTS, **layout)
    assert not is_declined(chunk, device_only=device_only)
    how = {"device_only": device_only}
    assert answer_of(chunk, kernel=True, **how) == answer_of(chunk, kernel=False, **how)


def chunks_of(chance, count):
    """Chunks of one trace, whose events repeat, with a rare one that the kernel declines."""
    names = [f"aten::op{number}" for number in range(9)] + ["nccl:all_reduce", 'a "name"', "é"]
    for number in range(count):
        events = [dict(chance.choice(EVENTS)) for _ in range(chance.randint(1, 12))]
        for event in events:
            if event["ph"] == "X" and event is not STEP:
                event["name"] = chance.choice(names)
                event["tid"] = chance.choice([11, 12, "thread 7"])
        if number % 5 == 3:
            events.append({**OPERATOR, "ts": 1e300, "name": chance.choice(names)})
        layout = chance.choice([{}, {"indent": 2}, {"separators": (",", ":")}])
        yield chunk_of(*events, **layout)


@pytest.mark.parametrize("seed", range(40))
def test_the_chunks_of_a_trace_get_the_same_codes_as_in_python(seed):
    chunks = list(chunks_of(Random(seed), 12))
    how = {"device_only": seed % 4 == 0}
    assert sum(is_declined(chunk, **how) for chunk in chunks) == 2
    assert answers_of(chunks, kernel=True, **how) == answers_of(chunks, kernel=False, **how)


def test_a_trace_in_which_every_name_is_new_is_read_in_bounded_memory():
    """The kernel forgets its texts from time to time, Python's dictionary keeps its codes."""
    rounds = [range(start, start + 20_000) for start in (0, 15_000, 30_000, 45_000)]
    chunks = [chunk_of(*[{**OPERATOR, "name": f"op {n}"} for n in numbers]) for numbers in rounds]
    state = DecodeState()
    firsts = []
    for chunk in chunks:
        found = state.native.find(chunk, len(chunk), exact=False, device_only=False)
        firsts.append(found.columns["names"][0])
        state.native.with_codes(found)
    assert firsts == [0, 20_000, 0, 20_000]
    assert answers_of(chunks, kernel=True) == answers_of(chunks, kernel=False)


def test_texts_that_python_cannot_read_are_numbered_again(monkeypatch):
    """A chunk whose result is not used leaves no texts behind."""
    chunk = chunk_of(*EVENTS)
    state = DecodeState()
    with monkeypatch.context() as patch:
        patch.setattr(native, "as_text", lambda _: "\ud800".encode().decode())
        assert state.native.find(chunk, len(chunk), exact=False, device_only=False) is None
    found = state.native.find(chunk, len(chunk), exact=False, device_only=False)
    first, names = found.columns["names"]
    assert (first, len(names)) == (0, 9)


def test_a_decoder_is_used_by_one_thread_at_a_time():
    decoder = built_kernel().Decoder(**native._settings())
    chunk = chunk_of(*EVENTS * 2000)
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(decoder.decode, chunk, len(chunk), False, False) for _ in range(60)]
    problems = [str(call.exception()) for call in calls if call.exception()]
    assert set(problems) <= {"another thread uses this decoder"}
    assert {len(call.result()["device"]["kind"]) for call in calls if not call.exception()} == {
        6000
    }


ODD = {
    "no ph": chunk_of(without(OPERATOR, "ph")),
    "a first event without members": chunk_of({}, OPERATOR, FLOW),
    "a later event without members": chunk_of(OPERATOR, {}, FLOW),
    "a last event without members": chunk_of(OPERATOR, {}),
    "a first event without members, indented": b"[{\n  },\n" + chunk_of(OPERATOR)[1:],
    "an unknown phase": changed(OPERATOR, ph="Q"),
    "a phase of two letters": changed(OPERATOR, ph="XX"),
    "no name": chunk_of(without(OPERATOR, "name")),
    "no time": chunk_of(without(OPERATOR, "ts")),
    "a time as text": changed(OPERATOR, ts="100.5"),
    "a time with an exponent": b'[{"ph":"X","name":"a","ts":1e3}]',
    "a time beyond int64": b'[{"ph":"X","name":"a","ts":99999999999999999999}]',
    "a duration as text": changed(OPERATOR, dur="5"),
    "a null duration": changed(OPERATOR, dur=None),
    "arguments that are no object": changed(OPERATOR, args=[]),
    "a float correlation": changed(KERNEL, args={"correlation": 1.5}),
    "a correlation as text": changed(KERNEL, args={"correlation": "1"}),
    "a negative stream": changed(KERNEL, args={"stream": -7}),
    "a stream with a sign": changed(KERNEL, args={"stream": "+7"}),
    "a grid of texts": changed(KERNEL, args={"grid": ["1"]}),
    "a duplicate key": b'[{"ph":"X","name":"a","name":"b","ts":1}]',
    "a duplicate phase": b'[{"ph":"s","ph":"X","name":"b","ts":1}]',
    "a duplicate argument": b'[{"ph":"X","name":"a","ts":1,"args":{"stream":1,"stream":2}}]',
    "an escape in a key": b'[{"ph":"X","n\\u0061me":"a","ts":1}]',
    "an escaped letter in a name": b'[{"ph":"X","name":"\\u006310d::a","ts":1}]',
    "half a surrogate pair": b'[{"ph":"X","name":"\\ud800","ts":1}]',
    "an unknown escape": b'[{"ph":"X","name":"\\x","ts":1}]',
    "a name that is not UTF-8": b'[{"ph":"X","name":"\xff","ts":1}]',
    "a raw control character": b'[{"ph":"X","name":"a\tb","ts":1}]',
    "not a number": b'[{"ph":"X","name":"a","ts":1,"dur":NaN}]',
    "a leading zero": b'[{"ph":"X","name":"a","ts":01}]',
    "a missing comma": b'[{"ph":"X" "name":"a","ts":1}]',
    "a trailing comma": b'[{"ph":"X","name":"a","ts":1},]',
    "a trailing comma in an event": b'[{"ph":"X","name":"a","ts":1,}]',
    "more after the array": b'[{"ph":"X","name":"a","ts":1}]]',
    "an array that does not end": b'[{"ph":"X","name":"a","ts":1}',
    "a string that does not end": b'[{"ph":"X","name":"a]',
    "an event that is no object": b"[1]",
    "nesting": b'[{"ph":"s","x":' + b"[" * 100 + b"]" * 100 + b"}]",
    "nothing": b"",
    "a communication argument with an exponent": changed(REDUCE, args={
        "Collective name": "a", "Seq": 1, "rate": 1.5e300}),
    "a communication argument that is not UTF-8": chunk_of(REDUCE).replace(b"Float", b"\xff"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_is_unusual_is_left_to_python(name):
    assert is_declined(ODD[name])
    assert answer_of(ODD[name], kernel=True) == answer_of(ODD[name], kernel=False)


USUAL = {
    "no events": b"[ \n]",
    "missing fields": b'[{"ph":"X","name":"a","ts":1}]',
    "arguments before the phase": chunk_of(KERNEL, sort_keys=True),
    "texts as threads": changed(OPERATOR, pid="Spans", tid="PyTorch Profiler"),
    "a stream as text": changed(KERNEL, args={"stream": "22", "bytes": "7"}),
    "a stream that is a pointer": changed(KERNEL, args={"stream": "0x0"}),
    "stream -1 of an unsigned writer": changed(KERNEL, args={"stream": 4294967295}),
    "a device beyond int32": changed(KERNEL, args={"device": 2**31}),
    "a correlation beyond int64": changed(KERNEL, args={"correlation": 2**63}),
    "a grid without blocks": changed(KERNEL, args={"grid": [1, 0, 3]}),
    "a grid of four": changed(KERNEL, args={"grid": [1, 1, 1, 1]}),
    "a huge grid": changed(KERNEL, args={"grid": [2147483647, 2, 1]}),
    "a null grid": changed(KERNEL, args={"grid": None}),
    "a negative time": changed(OPERATOR, ts=-0.5),
    "a negative duration": changed(OPERATOR, dur=-1),
    "a duration of weeks": changed(OPERATOR, dur=604_800_000_001),
    "many decimals": b'[{"ph":"X","name":"a","ts":100.12345,"dur":0.0005},'
    b'{"ph":"X","name":"a","ts":7.0015,"dur":2.00150}]',
    "a large time with decimals": changed(OPERATOR, ts=8796093022208.25),
    "large whole microseconds": changed(OPERATOR, ts=1_760_000_000_000_000),
    "their decimals are zeros": b'[{"ph":"X","name":"a","ts":1760000000000000.000,"dur":1.000}]',
    "escapes in a name": changed(OPERATOR, name='a"b\\c\né'),
    "UTF-8 in a name": chunk_of({**OPERATOR, "name": "é😀"}, ensure_ascii=False),
    "a category of its own": chunk_of({**OPERATOR, "cat": "Ünusual"}, ensure_ascii=False),
    "a name that only flows have": changed(FLOW, name=5, args=None),
    "not UTF-8 where nothing is read": chunk_of(FLOW).replace(b"ac2g", b"\xff"),
    "null arguments of a collective": changed(REDUCE, args={"Collective name": None, "Seq": 1}),
    "arguments of another spelling": changed(PARAMS, args={"external id": 4, "Input dims": [[1]]}),
    "both spellings": changed(PARAMS, args={"External id": None, "external id": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", USUAL)
@pytest.mark.parametrize("device_only", [False, True])
def test_what_real_traces_hold_is_read(name, device_only):
    assert not is_declined(USUAL[name], device_only=device_only)
    how = {"device_only": device_only}
    assert answer_of(USUAL[name], kernel=True, **how) == answer_of(USUAL[name], kernel=False, **how)


def test_times_since_1970_with_decimals_are_read_by_the_kernel_from_the_first_chunk_on():
    times = (b"1760000000000000.123", b"1760000000000007.000")
    first, second = (b'[{"ph":"X","name":"a","ts":%b,"dur":2}]' % ts for ts in times)
    state = DecodeState()
    with switched(True):
        assert find_events(first, len(first), state) is not None
        assert state.exact
        assert find_events(second, len(second), state) is not None
    assert answers_of([first, second], kernel=True) == answers_of([first, second], kernel=False)


@pytest.mark.parametrize("ts", ["1760000000000000.123", "1760000000000000", "5.5", "-3.25", "7"])
def test_times_from_their_text_are_exact(ts):
    chunk = b'[{"ph":"X","name":"a","ts":%b,"dur":2}]' % ts.encode()
    assert not is_declined(chunk, exact=True)
    found = read(chunk, exact=True)
    whole, _, decimals = ts.partition(".")
    sign = -1 if ts.startswith("-") else 1
    expected = int(whole) * 1000 + sign * int(decimals.ljust(3, "0") or 0)
    assert found.host["start_ns"].tolist() == [expected]
    assert answer_of(chunk, kernel=True, exact=True) == answer_of(chunk, kernel=False, exact=True)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}/{path.name[:20]}")
@pytest.mark.parametrize("rows", ["all", "device"])
@pytest.mark.parametrize("longer_than", [reader._LONG, -1], ids=["short", "long"])
def test_real_traces_give_equal_tables(path, rows, longer_than, monkeypatch):
    for module in (reader, source):  # threads unpack a long file and gather its columns
        monkeypatch.setattr(module, "_LONG", longer_than)
    mine, theirs = result_of(path, rows, kernel=True), result_of(path, rows, kernel=False)
    if isinstance(mine, str):
        assert mine == theirs
        return
    for name in mine.__struct_fields__:
        one, other = getattr(mine, name), getattr(theirs, name)
        if hasattr(one, "schema"):
            assert plain(one) == plain(other), name
        else:
            assert one == other, name


def test_damage_in_the_middle_of_a_long_trace_changes_nothing_else(tmp_path, monkeypatch):
    """Windows that Python reads lie between such as the kernel reads."""
    events = [dict(OPERATOR, ts=number, name=f"op {number % 7}") for number in range(4_000)]
    text = json.dumps({"traceEvents": [*events, KERNEL]}, indent=1).replace('"op 3"', '"a"b"', 2)
    path = tmp_path / "trace.json"
    path.write_text(text.replace('"op 5"', '"o\\ud800p"', 3))
    monkeypatch.setattr("distprof.ingest.kineto.framing.WINDOW_BYTES", 1 << 14)
    monkeypatch.setattr("distprof.ingest.kineto.source._LONG", 1 << 14)
    monkeypatch.setattr(reader, "_LONG", -1)
    mine, theirs = result_of(path, "all", kernel=True), result_of(path, "all", kernel=False)
    assert mine.quality == theirs.quality
    assert mine.quality.num_repaired > 0
    assert plain(mine.host) == plain(theirs.host)
    assert len(mine.host) == 4_000


def test_an_error_while_columns_are_gathered_is_raised_and_leaves_no_thread(monkeypatch):
    def add(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(reader, "_LONG", -1)
    monkeypatch.setattr(reader.Collector, "add", add)
    (path,) = (path for path in TRACES if "a100" in path.parent.name)
    with switched(True), pytest.raises(OSError, match="No space"):
        read_trace(path)
    assert not [t for t in threading.enumerate() if t.name.startswith("distprof-")]


def result_of(path, rows, *, kernel):
    with switched(kernel):
        try:
            return read_trace(path, rows=rows)
        except InputError as error:
            return str(error)


def plain(table):
    return {
        column.name: (table.coded(column.name).values, table.coded(column.name).codes.tolist())
        if column.dtype == "category"
        else (str(table[column.name].dtype), table[column.name].tolist())
        for column in table.schema
    }


def test_real_traces_are_seldom_left_to_python():
    declined = [path.parent.name for path in TRACES if is_declined(chunk_in(path))]
    assert set(declined) <= {"torch213-bad-quote"}


@cache
def chunk_in(path: Path, count: int = 400) -> bytes:
    """The first events of a trace, in its own text form as far as that is JSON."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    start = text.index("[", text.index('"traceEvents"')) + 1
    decoder = json.JSONDecoder(strict=False)
    events = []
    position = start
    while len(events) < count:
        while text[position] in " \n\r\t,":
            position += 1
        if text[position] != "{":
            break
        try:
            _, end = decoder.raw_decode(text, position)
        except ValueError:
            break
        events.append(text[position:end])
        position = end
    return b"[" + ",\n".join(events).encode() + b"]"


SEEDS = (chunk_of(*EVENTS), chunk_of(*EVENTS, indent=2))


@given(st.integers(0, 2**63), st.sampled_from([*SEEDS, *TRACES]), st.booleans(), st.booleans())
def test_a_damaged_chunk_is_read_as_python_reads_it_or_not_at_all(seed, source, exact, device_only):
    whole = source if isinstance(source, bytes) else chunk_in(source, 12)
    chunk = mutated_chunk(whole, Random(seed))
    how = {"exact": exact, "device_only": device_only}
    assert answer_of(chunk, kernel=True, **how) == answer_of(chunk, kernel=False, **how)


OF_KEY = {"ph": '"X"', "name": '"b"', "ts": "2", "cat": '"cpu_op"', "dur": "1.5"}
OTHER_KEYS = ("tid", "n", "id", f"a key of {'very ' * 6}many letters")
GAPS = st.sampled_from(["", " ", "\n    ", " " * 40])
ARGUMENTS = st.lists(
    st.tuples(st.sampled_from(["stream", *OTHER_KEYS]), GAPS, GAPS), unique_by=lambda each: each[0]
)


@st.composite
def kinds_of_events(draw):
    """Members with the space before and after each key, and those of the arguments."""
    keys = draw(st.permutations([*OF_KEY, *OTHER_KEYS[: draw(st.integers(0, 4))]]))
    return [(key, draw(GAPS), draw(GAPS)) for key in keys], draw(st.lists(ARGUMENTS, max_size=1))


def laid_out(members, arguments, gap) -> str:
    """An event with exactly this space between its members."""
    parts = [f'{before}"{key}":{after}{OF_KEY.get(key, 7)}' for key, before, after in members]
    parts += [f'"args":{laid_out(inside, [], gap)}' for inside in arguments]
    return f"{{{','.join(parts)}{gap}}}"


@given(st.lists(kinds_of_events(), max_size=6), st.lists(st.integers(0, 5)), GAPS)
def test_members_in_any_order_and_layout_are_read_as_python_reads_them(kinds, order, gap):
    events = [laid_out(*kinds[number], gap) for number in order if number < len(kinds)]
    chunk = f"[{','.join(events)}]".encode()
    assert not is_declined(chunk)
    for data in (chunk, chunk.replace(b'"ts":', b'"ph":', 1)):
        assert answer_of(data, kernel=True) == answer_of(data, kernel=False)


def test_a_member_with_more_space_than_the_one_before_is_not_left_to_python():
    event = json.dumps(OPERATOR)
    wider = event.replace('": ', '":\n   ').replace(', "', ' ,\n "')
    chunk = f"[{event}, {wider}, {event}]".encode()
    assert not is_declined(chunk)
    assert answer_of(chunk, kernel=True) == answer_of(chunk, kernel=False)


def test_more_keys_than_are_remembered_are_read_all_the_same():
    events = [{**OPERATOR, "ts": 5 + n % 7, f"key {n % 150}": n} for n in range(900)]
    chunk = chunk_of(*events, KERNEL, *events)
    assert not is_declined(chunk)
    assert answer_of(chunk, kernel=True) == answer_of(chunk, kernel=False)


@pytest.mark.parametrize("behind", ["", " ", "\n", "0", ".5", ".", "e1", "E", "-", '"', ":"])
@pytest.mark.parametrize("first", ["", "-", "0", "."])
def test_integers_of_any_length_are_read_as_python_reads_them(first, behind):
    for count in range(26):
        number = f"{first}{'1234567890' * 3}"[: len(first) + count] + behind
        for text in (
            f'[{{"ph":"X","name":"a","ts":1,"x":{number}}}]',
            f'[{{"ph":"X","name":"a","ts":1,"args":{{"correlation":{number},"y":[{number}]}}}}]',
            f'[{{"ph":"s","x":{number},"y":2}}, {{"ph":"X","name":"a","ts":{number},"y":2}}]',
        ):
            chunk = text.encode()
            assert answer_of(chunk, kernel=True) == answer_of(chunk, kernel=False), text


@given(st.integers(0, 10**16), st.integers(0, 8), st.booleans())
def test_every_decimal_number_becomes_the_same_time(digits, decimals, negative):
    text = f"{digits:0{decimals + 1}d}"
    number = text[: len(text) - decimals] + ("." + text[len(text) - decimals :]) * (decimals > 0)
    sign = b"-" * negative
    chunk = b'[{"ph":"X","name":"a","ts":%b%b,"dur":%b}]' % (sign, *[number.encode()] * 2)
    for exact in (False, True):
        assert answer_of(chunk, kernel=True, exact=exact) == answer_of(
            chunk, kernel=False, exact=exact
        )


def selected(chunk, *, kernel):
    search = DeviceSearch(Boundary.learn(chunk))
    search.usable = True  # wherever it finds something: a compact trace is searched in another way
    with switched(kernel):
        return search.select(bytearray(chunk) + b"kernel", len(chunk)), search.usable


@given(st.integers(0, 2**63), st.sampled_from([*SEEDS, *TRACES]))
def test_a_search_finds_what_python_finds(seed, source):
    whole = source if isinstance(source, bytes) else chunk_in(source, 40)
    chunk = mutated_chunk(whole, Random(seed))
    assert selected(chunk, kernel=True) == selected(chunk, kernel=False)


@pytest.mark.parametrize("word", ["Kernel", "Memcpy", "Memset", "concurrent_kernel", "kernels"])
def test_a_search_without_hits_knows_old_spellings(word):
    chunk = chunk_of({"ph": "X", "cat": "cpu_op", "name": "a", "note": word})
    found = selected(chunk, kernel=True)
    assert found == selected(chunk, kernel=False)
    assert found[1] == (word == "kernels")


@given(st.binary(max_size=60), st.lists(st.binary(min_size=1, max_size=12), max_size=3), st.data())
def test_a_word_is_held_where_python_finds_it(text, words, data):
    place = data.draw(st.integers(0, len(text)))
    text = text[:place] + b"".join(words[:1]) + text[place:]
    stop = data.draw(st.integers(0, len(text)))
    found = built_kernel().holds_any(text, stop, tuple(words))
    assert found == any(word in text[:stop] for word in words)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.parent.name)
def test_a_search_finds_every_device_row_of_a_trace(path):
    chunk = chunk_in(path)
    assert selected(chunk, kernel=True) == selected(chunk, kernel=False)


def test_threads_read_at_once_as_one_after_another():
    chunk = chunk_of(*EVENTS * 50)
    expected = answer_of(chunk, kernel=True)
    with switched(True), ThreadPoolExecutor(4) as threads:
        found = [threads.submit(read, chunk) for _ in range(40)]
    assert all(f.result().num_events == expected[2][0] for f in found)


def test_a_stop_outside_the_data_is_an_error():
    decoder = built_kernel().Decoder(**native._settings())
    for stop in (-1, 3):
        with pytest.raises(ValueError, match="outside"):
            decoder.decode(b"[]", stop, False, False)
    with pytest.raises(TypeError):
        decoder.decode("[]", 2, False, False)


def test_it_can_be_switched_off_and_says_so(monkeypatch):
    monkeypatch.setenv(switch.KERNEL_ENVIRONMENT, "off")
    assert switch.kernel() is None
    is_used, found = switch.explain()
    assert (is_used, "DISTPROF_KERNEL" in found) == (False, True)
    monkeypatch.delenv(switch.KERNEL_ENVIRONMENT)
    assert switch.kernel() is built_kernel()
    assert switch.explain()[0]


def test_an_installation_without_it_reads_all_the_same(monkeypatch):
    monkeypatch.setattr(switch, "_compiled", None)
    assert switch.kernel() is None
    assert not switch.explain()[0]
    assert is_declined(chunk_of(*EVENTS))


@pytest.mark.nightly
def test_sanitizers_find_nothing_in_damaged_chunks():
    built_kernel()  # skips where nothing can compile
    program = ROOT / "benchmarks" / "fuzz_kernel.py"
    asked = [sys.executable, program, "--chunks", "200000", "--compared", "2000"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200000 chunks" in done.stdout
    assert "equal to Python's" in done.stdout
