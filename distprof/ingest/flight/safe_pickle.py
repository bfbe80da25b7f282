"""Read the pickles of torch's Flight Recorder without executing anything.

A pickle is a program. This interpreter supports only the instructions that create plain data: None,
booleans, integers, floats, text, lists, tuples and dicts. It refuses, by name, any instruction that
names a class or calls a function. It has no code to import, look up or call anything. Time and
memory are bounded by the size of the file: only scalars and short flat tuples may be reused, so no
value contains itself, and none is larger than its representation in the file.

Source:
    The instructions: comments in CPython's ``pickletools``. What the recorder writes:
    ``torch/csrc/jit/serialization/pickler.cpp`` (protocol 2).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import msgspec

_SCALAR = rb"(?>h.|[N\x88\x89]|K.|M..|J....|\x8a\x08.{8}|j....)"

_LIST = rb"\](?:\((?:" + _SCALAR + rb"|\](?:\(" + _SCALAR + rb"*+e)?)*+e)?"

_VALUE = rb"(" + _SCALAR + rb"(?:" + _SCALAR + rb"\x86)?|" + _LIST + rb")"

_KEY = re.compile(rb"h.|j....", re.DOTALL)

_ONE_VALUE = re.compile(_VALUE, re.DOTALL)

_from_bytes = int.from_bytes

MOST_KEYS = 64

LONGEST = 4096


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a dict."""

    # Match method of a compiled expression with a group for each value.
    match: Callable[[bytes, int], re.Match[bytes] | None]
    keys: tuple[Any, ...]  # The keys, in order.


class Values(dict[bytes, Any]):
    """Maps the instructions for a value to the value; each distinct spelling is evaluated once."""

    def __init__(self, evaluate: Callable[[bytes], Any]) -> None:
        super().__init__()
        self._evaluate = evaluate

    def __missing__(self, spelling: bytes) -> Any:
        first = spelling[0]
        if first == 0x8A and len(spelling) == 10:  # LONG1: a time, which rarely repeats
            return _from_bytes(spelling[2:], "little", signed=True)
        if first == 0x4D and len(spelling) == 3:  # BININT2
            value: Any = _from_bytes(spelling[1:], "little")
        elif first == 0x4A and len(spelling) == 5:  # BININT
            value = _from_bytes(spelling[1:], "little", signed=True)
        else:
            value = self._evaluate(spelling)
        self[spelling] = value
        return value


def template_of(spelling: bytes, keys: tuple[Any, ...]) -> Template | None:
    """The shape of a dict read from ``spelling``; None if it has parts of other kinds."""
    if not spelling.startswith(b"}(") or len(keys) > MOST_KEYS or len(spelling) > LONGEST:
        return None
    at, pattern = 2, [rb"\("]  # EMPTY_DICT has been read when the template is tried
    for _ in keys:
        key = _KEY.match(spelling, at)
        value = _ONE_VALUE.match(spelling, key.end()) if key else None
        if key is None or value is None:
            return None
        pattern += [re.escape(key[0]), _VALUE]
        at = value.end()
    if spelling[at:] != b"u":
        return None
    compiled = re.compile(b"".join(pattern) + b"u", re.DOTALL)
    return Template(match=compiled.match, keys=keys)


# The interpreter ----------------------------------------------------------------------------------

MAX_BYTES = 1 << 28

MAX_CONTAINERS = 4_000_000  # about ten per entry; an empty list takes 1 byte in the file, 64 here

MAX_TEXT = 1 << 20

MAX_INTEGER_BYTES = 16

MAX_SHARED_TUPLE = 16

_RUNS_CODE = {
    0x52: "REDUCE",
    0x62: "BUILD",
    0x63: "GLOBAL",
    0x69: "INST",
    0x6F: "OBJ",
    0x50: "PERSID",
    0x51: "BINPERSID",
    0x81: "NEWOBJ",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x92: "NEWOBJ_EX",
    0x93: "STACK_GLOBAL",
    0x97: "NEXT_BUFFER",
}

_SCALARS = frozenset((str, int, float, bool, type(None)))

_uint32 = struct.Struct("<I").unpack_from

_int32 = struct.Struct("<i").unpack_from

_uint16 = struct.Struct("<H").unpack_from

_uint64 = struct.Struct("<Q").unpack_from

_float64 = struct.Struct(">d").unpack_from


class PickleRefused(ValueError):  # noqa: N818 - the name says what happened
    """The pickle is damaged or not plain data; the message is one clause without a full stop."""


def read_pickle(data: bytes) -> Any:
    """The plain data of a pickle; PickleRefused if it would run code or is damaged."""
    if len(data) > MAX_BYTES:
        raise PickleRefused(f"it is larger than {MAX_BYTES:,} bytes")
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, struct.error):
        raise PickleRefused(f"it ends early or is damaged near byte {machine.at:,}") from None
    except UnicodeDecodeError:
        raise PickleRefused(f"text before byte {machine.at:,} is not UTF-8") from None


class _Machine:
    """Stack, marks and memo of one pickle."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.scalars: dict[int, Any] = {}
        self.memo_size = 0
        self.containers = 0
        self.template: Template | None = None
        self.dict_at = 0
        self.values = Values(self._value_of)

    def run(self) -> Any:
        """Interpret up to STOP. The most frequent instructions come first."""
        data, stack, marks, scalars = self.data, self.stack, self.marks, self.scalars
        push = stack.append
        at = 0
        while True:
            code = data[at]
            at += 1
            if code == 0x68:  # BINGET
                index = data[at]
                at += 1
                push(scalars[index] if index in scalars else self._missing(index, at))
            elif code == 0x28:  # MARK
                marks.append(len(stack))
            elif code == 0x4B:  # BININT1
                push(data[at])
                at += 1
            elif code == 0x4D:  # BININT2
                push(_uint16(data, at)[0])
                at += 2
            elif code == 0x4A:  # BININT
                push(_int32(data, at)[0])
                at += 4
            elif code == 0x5D:  # EMPTY_LIST
                self._count(at)
                push([])
            elif code == 0x65:  # APPENDS
                self.at = at
                self._append(marks.pop())
            elif code == 0x4E:  # NONE
                push(None)
            elif code == 0x89:  # NEWFALSE
                push(False)
            elif code == 0x88:  # NEWTRUE
                push(True)
            elif code == 0x8A:  # LONG1
                end = at + 1 + data[at]
                if end - at - 1 > MAX_INTEGER_BYTES:
                    raise PickleRefused(f"an integer before byte {at:,} is too long")
                if end > len(data):
                    raise IndexError
                push(int.from_bytes(data[at + 1 : end], "little", signed=True))
                at = end
            elif code == 0x86:  # TUPLE2
                self._tuple(len(stack) - 2, at)
            elif code == 0x7D:  # EMPTY_DICT
                self._count(at)
                shape = self.template
                found = shape.match(data, at) if shape else None
                if shape is None or found is None:
                    self.dict_at = at - 1
                    push({})
                else:
                    values = map(self.values.__getitem__, found.groups())
                    push(dict(zip(shape.keys, values)))  # noqa: B905
                    at = found.end()
            elif code == 0x75:  # SETITEMS
                self.at = at
                self._set_items(marks.pop())
                self._learn(stack[-1], at)
            elif code == 0x58:  # BINUNICODE
                at = self._text(at + 4, _uint32(data, at)[0])
            elif code == 0x71:  # BINPUT
                self._put(data[at], at)
                at += 1
            elif code == 0x6A:  # LONG_BINGET
                index = _uint32(data, at)[0]
                push(scalars[index] if index in scalars else self._missing(index, at))
                at += 4
            elif code == 0x72:  # LONG_BINPUT
                self._put(_uint32(data, at)[0], at)
                at += 4
            elif code == 0x2E:  # STOP
                self.at = at
                if len(self.stack) != 1 or self.marks:
                    raise PickleRefused(f"it stops at byte {at:,} with unused values")
                return self.stack[0]
            else:
                self.at = at
                at = self._rare(code, at)

    def _rare(self, code: int, at: int) -> int:
        """Run an opcode that only Python's pickler writes; returns the next position."""
        data = self.data
        if code == 0x94:  # MEMOIZE
            self._put(self.memo_size, at)
        elif code == 0x8C:  # SHORT_BINUNICODE
            return self._text(at + 1, data[at])
        elif code == 0x8D:  # BINUNICODE8
            return self._text(at + 8, _uint64(data, at)[0])
        elif code == 0x47:  # BINFLOAT
            self.stack.append(_float64(data, at)[0])
            return at + 8
        elif code == 0x61:  # APPEND
            self._append(len(self.stack) - 1)
        elif code == 0x73:  # SETITEM
            self._set_items(len(self.stack) - 2)
        elif code == 0x29:  # EMPTY_TUPLE
            self.stack.append(())
        elif code == 0x85:  # TUPLE1
            self._tuple(len(self.stack) - 1, at)
        elif code == 0x87:  # TUPLE3
            self._tuple(len(self.stack) - 3, at)
        elif code == 0x74:  # TUPLE
            self._tuple(self.marks.pop(), at)
        elif code == 0x80:  # PROTO
            if not 2 <= data[at] <= 5:
                raise PickleRefused(f"its protocol is {data[at]}; distprof reads 2 to 5")
            return at + 1
        elif code == 0x95:  # FRAME: only a hint for readers of streams
            return at + 8
        else:
            self._refuse(code, at)
        return at

    def _refuse(self, code: int, at: int) -> None:
        if code in _RUNS_CODE:
            name = _RUNS_CODE[code]
            raise PickleRefused(
                f"it asks to run code (instruction {name} at byte {at - 1:,}), which distprof "
                "refuses"
            )
        raise PickleRefused(f"instruction {code:#04x} at byte {at - 1:,} does not make plain data")

    def _text(self, at: int, length: int) -> int:
        end = at + length
        if length > MAX_TEXT:
            raise PickleRefused(f"text at byte {at:,} has more than {MAX_TEXT:,} bytes")
        if end > len(self.data):
            raise IndexError
        self.at = end
        self.stack.append(self.data[at:end].decode("utf-8"))
        return end

    def _count(self, at: int) -> None:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise PickleRefused(f"more than {MAX_CONTAINERS:,} lists and dicts by byte {at:,}")

    def _append(self, start: int) -> None:
        stack = self.stack
        self._check_floor(start)
        target = stack[start - 1]
        if type(target) is not list:
            raise PickleRefused(
                f"an item is appended to something other than a list before byte {self.at:,}"
            )
        target.extend(stack[start:])
        del stack[start:]

    def _set_items(self, start: int) -> None:
        stack = self.stack
        self._check_floor(start)
        target = stack[start - 1]
        keys, values = stack[start::2], stack[start + 1 :: 2]
        if type(target) is not dict or len(keys) != len(values):
            raise PickleRefused(
                f"items are set in something other than a dict before byte {self.at:,}"
            )
        if not {type(key) for key in keys} <= {str, int}:  # others may take forever to hash
            raise PickleRefused(f"a key before byte {self.at:,} is neither text nor an integer")
        target.update(zip(keys, values, strict=True))
        del stack[start:]

    def _learn(self, made: dict[Any, Any], at: int) -> None:
        """Use the dict just read as the template for the following ones."""
        start, self.dict_at = self.dict_at, -1  # do not learn a dict around this one
        if start >= 0 and (self.template is None or self.template.keys != tuple(made)):
            self.template = template_of(self.data[start:at], tuple(made)) or self.template

    def _value_of(self, spelling: bytes) -> Any:
        """Evaluate one value, which adds nothing to the memo, with the same interpreter."""
        machine = _Machine(spelling + b".")
        machine.scalars = self.scalars
        value = machine.run()
        self.containers += machine.containers
        self._count(self.at)
        return value

    def _tuple(self, start: int, at: int) -> None:
        stack = self.stack
        self.at = at
        if start < (self.marks[-1] if self.marks else 0):
            raise IndexError
        self._count(at)
        made = tuple(stack[start:])
        del stack[start:]
        stack.append(made)

    def _check_floor(self, start: int) -> None:
        """Require that the container to change is above the latest mark."""
        if start - 1 < (self.marks[-1] if self.marks else 0) or start > len(self.stack):
            raise IndexError

    def _put(self, index: int, at: int) -> None:
        """Store the newest value, unless it is a container: reusing those makes pickles explode."""
        self.at = at
        value = self.stack[-1]
        self.memo_size += 1
        if index in self.scalars:  # the meaning of cached spellings has changed
            self.values.clear()
            self.template = None
        kind = type(value)
        is_flat = (
            kind is tuple
            and len(value) <= MAX_SHARED_TUPLE
            and all(type(item) in _SCALARS for item in value)
        )
        if kind in _SCALARS or is_flat:
            self.scalars[index] = value
        else:
            self.scalars.pop(index, None)

    def _missing(self, index: int, at: int) -> Any:
        raise PickleRefused(
            f"before byte {at:,} it reuses value {index:,}, which is unknown or a container"
        )
