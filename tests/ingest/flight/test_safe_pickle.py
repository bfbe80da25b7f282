"""Pickles are read without running them: as Python reads data, and refused otherwise."""

from __future__ import annotations

import os
import pickle
import struct
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.ingest.flight import safe_pickle
from distprof.ingest.flight.safe_pickle import PickleRefused, read_pickle
from tests.flight_jobs import GOLDEN, dump, op

STOP = b"."


class Runs:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.open, (str(self.path), os.O_CREAT | os.O_WRONLY)


class Built:
    """Is made by NEWOBJ and BUILD."""

    def __init__(self) -> None:
        self.state = 1


HOSTILE = {
    "REDUCE": b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00trueq\x00\x85R.",
    "GLOBAL": b"\x80\x02cos\nsystem\n.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "INST": b"\x80\x02(X\x04\x00\x00\x00trueios\nsystem\n.",
    "OBJ": b"\x80\x02(cos\nsystem\nX\x04\x00\x00\x00trueo.",
    "NEWOBJ": b"\x80\x02)\x81.",
    "NEWOBJ_EX": b"\x80\x04))}\x92.",
    "EXT1": b"\x80\x02\x82\x01.",
    "EXT2": b"\x80\x02\x83\x01\x00.",
    "EXT4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "BUILD": b"\x80\x02}}b.",
    "PERSID": b"\x80\x02Pname\n.",
    "BINPERSID": b"\x80\x02X\x04\x00\x00\x00nameQ.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
}
BROKEN = {
    "nothing": b"",
    "no end": b"\x80\x02}",
    "cut text": b"\x80\x02X\xff\x00\x00\x00ab",
    "text of 4 GB": b"\x80\x02X\xff\xff\xff\xffab.",
    "text of 2^63 bytes": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.",
    "bytes of 2^63 bytes": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.",
    "LONG4 of 2 GB": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a long integer": b"\x80\x02\x8a\xff" + b"\xff" * 255 + STOP,
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "a dict in itself": b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.",
    "laughs": b"\x80\x02]q\x00K\x01a"
    + b"".join(b"](h%ch%cEq%c" % (i, i, i + 1) for i in range(30)),
    "tuples twice as long each": b"\x80\x02)" + b"q\x00h\x00\x86" * 64 + STOP,
    "a key that is a tuple": b"\x80\x02}(K\x01K\x02\x86K\x03u.",
    "a key that is a list": b"\x80\x02}(]K\x03u.",
    "a value without a key": b"\x80\x02}(K\x01u.",
    "APPENDS to a dict": b"\x80\x02}(K\x01e.",
    "SETITEMS in a list": b"\x80\x02](K\x01K\x02u.",
    "no mark": b"\x80\x02]K\x01e.",
    "below the mark": b"\x80\x02K\x01(\x86.",
    "appending below the mark": b"\x80\x02](a.",
    "an empty stack": b"\x80\x02.",
    "two results": b"\x80\x02K\x01K\x02.",
    "unknown memo": b"\x80\x02h\x07.",
    "POP": b"\x80\x02K\x01K\x020.",
    "DUP": b"\x80\x02]2.",
    "protocol 0": b"(lp0\nI1\na.",
    "protocol 99": b"\x80\x63K\x01.",
    "not UTF-8": b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
    "half a character of UTF-16": b"\x80\x02X\x03\x00\x00\x00\xed\xa0\x80.",
    "no instruction": b"\x80\x02\xf7.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_instruction_that_could_run_code_is_refused_by_name(name: str) -> None:
    with pytest.raises(PickleRefused, match="run code"):
        read_pickle(HOSTILE[name])


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("where", ["alone", "within a dump", "after a thousand entries"])
def test_nothing_is_executed(tmp_path: Path, protocol: int, where: str) -> None:
    trap: object = Runs(tmp_path / "ran")
    if where != "alone":
        count = 1000 if where.startswith("after") else 1
        trap = {**dump([op(seq) for seq in range(count)], {"0": [0]}), "extra": trap}
    with pytest.raises(PickleRefused):
        read_pickle(pickle.dumps(trap, protocol=protocol))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", range(2, 6))
def test_objects_are_refused(protocol: int) -> None:
    with pytest.raises(PickleRefused):
        read_pickle(pickle.dumps(Built(), protocol=protocol))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_or_exploding_pickle_is_refused_at_once(name: str) -> None:
    tracemalloc.start()
    before = time.process_time()
    try:
        with pytest.raises(PickleRefused):
            read_pickle(BROKEN[name])
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert time.process_time() - before < 1


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x02" + b"K\x01r\xff\xff\xff\xff" + STOP,
        b"\x80\x02" + b"(" * 100_000 + STOP,
        b"\x80\x02" + b"](" * 50_000 + b"]" + b"e" * 50_000 + STOP,
    ],
    ids=["memo at 2^32", "marks", "depth"],
)
def test_bombs_stay_within_bounds(bomb: bytes) -> None:
    tracemalloc.start()
    try:
        with suppress(PickleRefused):
            read_pickle(bomb)
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()


def test_the_number_of_containers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_pickle, "MAX_CONTAINERS", 1_000)
    with pytest.raises(PickleRefused, match="more than 1,000 lists"):
        read_pickle(b"\x80\x02(" + b"]" * 1_001 + b"l" + STOP)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5)
    | st.dictionaries(st.text(max_size=5), inner, max_size=5)
    | st.tuples(inner, inner),
    max_leaves=40,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_data_is_read_as_python_reads_it(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol=protocol)
    try:
        found = read_pickle(data)
    except PickleRefused:  # Python wrote two equal containers as one
        return
    assert found == pickle.loads(data)


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*/_dump_*")), ids=lambda file: file.name)
def test_dumps_of_torch_are_read_as_python_reads_them(file: Path) -> None:
    data = file.read_bytes()
    assert read_pickle(data) == pickle.loads(data)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_shape_that_repeats_is_read_as_python_reads_it(data: st.DataObject) -> None:
    """Entries are recognised by a shape learned before; what differs must not be lost."""
    sizes = st.lists(st.lists(st.integers(0, 2**40), max_size=3), max_size=2)
    value = st.fixed_dictionaries(
        {"time": st.integers(0, 2**62), "sizes": sizes, "done": st.booleans() | st.none()},
        optional={"name": st.sampled_from(["a", "b", "c"])},
    )
    entries = data.draw(st.lists(value, min_size=2, max_size=20))
    encoded = torch_pickle({"entries": entries})
    assert read_pickle(encoded) == pickle.loads(encoded) == {"entries": entries}


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damaged_dumps_are_refused_or_read_never_more(data: st.DataObject) -> None:
    good = (GOLDEN / "megatron-moe-16gpu-gpu_error_1st" / "_dump_13").read_bytes()
    broken = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(good) - 1))
        broken[at] = data.draw(st.integers(0, 255))
    with suppress(PickleRefused):
        read_pickle(bytes(broken[: data.draw(st.integers(0, len(good)))]))


def torch_pickle(value: object) -> bytes:
    """As torch's pickler spells it: text remembered, containers not."""
    known: dict[str, int] = {}

    def spelled(item: object) -> bytes:
        if item is None or isinstance(item, bool):
            return {None: b"N", True: b"\x88", False: b"\x89"}[item]
        if isinstance(item, int):
            small = b"K" + bytes([item]) if item < 256 else b"\x8a\x08" + struct.pack("<q", item)
            return b"M" + struct.pack("<H", item) if 256 <= item < 65536 else small
        if isinstance(item, str):
            if item in known:
                return b"h" + bytes([known[item]])
            known[item] = len(known)
            raw = item.encode()
            return b"X" + struct.pack("<I", len(raw)) + raw + b"q" + bytes([known[item]])
        if isinstance(item, list):
            return b"](" + b"".join(map(spelled, item)) + b"e"
        assert isinstance(item, dict)
        return b"}(" + b"".join(spelled(k) + spelled(v) for k, v in item.items()) + b"u"

    return b"\x80\x02" + spelled(value) + STOP
