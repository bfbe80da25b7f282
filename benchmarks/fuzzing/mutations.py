"""One random change of a set of files, by content: JSON, CSV, lines, pickle, Parquet, bytes.

A change is drawn from one number, so an input is a list of numbers: they reproduce the input, and
leaving some of them out minimises it.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import zlib
from collections.abc import Callable
from random import Random
from typing import Any, Final

from distprof.ingest.flight.safe_pickle import PickleRefused, read_pickle

__all__ = ["GZIP", "HOSTILE", "PARQUET", "Files", "is_long", "mutated", "unpacked"]

Files = dict[str, bytes]
"""Path within the input's folder to content."""

GZIP: Final = b"\x1f\x8b"
PARQUET: Final = b"PAR1"
MAX_BYTES: Final = 4 << 20
"""Size limit of a mutated file: heavy inputs are cases of ``tests/broken_inputs/heavy.py``."""

HOSTILE: Final = (
    "",
    "\x00",
    "\x1b]0;owned\x07\x1b[2J",
    "\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\",
    "\x9b31mred\x9d0;t\x9c\x85",
    "a\u202egpj\u2066\u2069.exe",
    "\ud800",
    "x\udfff\ud800y",
    "\udc9b",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</code></td>```\n<img src=x>",
    "]]>&quot;&#0;&nbsp;",
    "[bold red]x[/bold red]",
    "| a | **b** | `c` |\n\n# d",
    "\r\nverdict: all is well\n",
    "../../../../etc/passwd",
    "%s%n{0}{__class__}${HOME}",
    "NaN",
    "1e999",
    "9" * 5_000,
    "-" + "9" * 400,
    "0x" + "f" * 40,
    "\u0661\u0662\u0663",
    "²",
    "\u2028\u2029\ufeff\u200b",
    "k" * 3_000,
    "0,1,2,,",
    "[0, 1, ",
    "0-99999999",
    "rank0",
    "1970-01-01T00:00:00Z",
    "9999-12-31T23:59:59+99:99",
)
"""Texts that no output may contain."""

NUMBERS: Final = (
    *("0", "-0", "-1", "1", "255", "65536", "2147483647", "2147483648", "4294967295"),
    *("9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775809"),
    *("18446744073709551615", "18446744073709551616", "1e18", "1e19", "1e300", "1e999", "-1e308"),
    *("5e-324", "0.1", "-0.5", "nan", "NaN", "inf", "-Infinity", "9" * 400, "9" * 5_000, "0x1F"),
    *("1_000", "00012", "+7", "1,000", "1e", "--1"),
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][\w./-]*")


class _Key(str):
    """A key of JSON that may occur twice in one object."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def mutated(files: Files, number: int, others: list[bytes]) -> Files:
    """The files after the change drawn from a number.

    Args:
        files: The input so far.
        number: The seed of the change.
        others: Contents of other inputs, as a source of pieces.
    """
    chance = Random(number)
    if not files:
        return {"empty": b""}
    drawn = chance.random()
    if drawn > 1 - LONG:
        name = chance.choice(sorted(files))
        return {**files, name: _lengthened(files[name], chance)}
    if drawn < 0.06:
        return _changed_folder(files, chance, others)
    name = chance.choice(sorted(files))
    data = _changed_file(files[name], chance, others)
    return {**files, name: data[:MAX_BYTES]}


LONG: Final = 0.05
"""Share of changes that make something long."""

SIZES: Final = (5_000, 300_000, 3_000_000)


def is_long(number: int) -> bool:
    """Whether a change makes something long, so that its memory is worth measuring alone."""
    return Random(number).random() > 1 - LONG


def _lengthened(data: bytes, chance: Random) -> bytes:
    """One text of a file, or many different ones, become long: names, hosts, paths, keys, lines."""
    is_packed = data.startswith(GZIP)
    inner = unpacked(data)
    found = list(_WORD.finditer(inner[:400_000]))
    if not found:
        return data
    many = chance.random() < 0.4
    size = 5_000 if many else chance.choice(SIZES)
    chosen = sorted(chance.sample(range(len(found)), min(len(found), 400 if many else 1)))
    parts, at = [], 0
    for number in chosen:
        word = found[number]
        long = word.group() * (size // len(word.group()) + 1) + str(number).encode()
        parts += [inner[at : word.start()], long]
        at = word.end()
    long_data = b"".join((*parts, inner[at:]))
    return gzip.compress(long_data, 1, mtime=0) if is_packed else long_data


def unpacked(data: bytes) -> bytes:
    """The readable content of a gzip file; other bytes unchanged."""
    if not data.startswith(GZIP):
        return data
    stream = zlib.decompressobj(wbits=31)
    try:
        return stream.decompress(data, MAX_BYTES)
    except zlib.error:
        return data


# Folders ------------------------------------------------------------------------------------------


def _changed_folder(files: Files, chance: Random, others: list[bytes]) -> Files:
    name = chance.choice(sorted(files))
    kept = {key: value for key, value in files.items() if key != name}
    return chance.choice(
        (
            lambda: kept,
            lambda: {**files, name: b""},
            lambda: {**files, name: chance.choice(others)},
            lambda: {**files, name: files[chance.choice(sorted(files))]},
            lambda: {**kept, _other_name(name, chance): files[name]},
            lambda: {**files, _other_name(name, chance): files[name]},
            lambda: {**kept, f"{name}/{name.rpartition('/')[2]}": files[name]},
            lambda: {**files, f"{name}.d/{chance.choice(('.hidden', 'a b', 'ü'))}": files[name]},
        )
    )()


def _other_name(name: str, chance: Random) -> str:
    parent, slash, last = name.rpartition("/")
    digits = re.sub(r"\d+", lambda _: str(chance.choice((0, 1, 7, 99_999, 10**12))), last)
    ending = f"{last.partition('.')[0]}.{chance.choice(('json', 'gz', 'csv', 'log', 'parquet'))}"
    odd = f"{last[:3]}\x1b[31m\u202e<b>{last[3:]}"
    return f"{parent}{slash}{chance.choice((digits, digits, ending, odd, last.upper()))}"


# Files --------------------------------------------------------------------------------------------


def _changed_file(data: bytes, chance: Random, others: list[bytes]) -> bytes:
    is_packed = data.startswith(GZIP)
    if is_packed and chance.random() < 0.1:
        return _of_bytes(data, chance, others)
    inner = unpacked(data)
    changed = chance.choice(_ways(inner))(inner, chance, others)
    return gzip.compress(changed[:MAX_BYTES], 1, mtime=0) if is_packed else changed


Way = Callable[[bytes, Random, list[bytes]], bytes]


def _ways(data: bytes) -> tuple[Way, ...]:
    """Possible changes of a file, structural ones more often."""
    start = data[:64].lstrip()
    if start.startswith(PARQUET):
        return (_of_parquet, _of_parquet, _of_parquet, _of_bytes)
    if start.startswith(b"\x80"):
        return (_of_pickle, _of_pickle, _of_pickle, _of_bytes)
    if start.startswith((b"{", b"[")):
        return (_of_json, _of_json, _of_json, _of_json, _of_tokens, _of_lines, _of_bytes)
    if data[:4_000].count(b",") > 3 * data[:4_000].count(b"\n") > 0:
        return (_of_cells, _of_cells, _of_tokens, _of_lines, _of_bytes)
    return (_of_tokens, _of_tokens, _of_lines, _of_bytes)


# Bytes --------------------------------------------------------------------------------------------


def _of_bytes(data: bytes, chance: Random, others: list[bytes]) -> bytes:
    at = chance.randrange(len(data) + 1)
    size = min(chance.choice((1, 2, 8, 64, 1_000, 20_000)), len(data) or 1)
    piece = data[at : at + size]
    return chance.choice(
        (
            lambda: data[:at],
            lambda: data[at:],
            lambda: data[:at] + data[at + size :],
            lambda: data[:at] + piece * chance.choice((2, 3, 50)) + data[at + size :],
            lambda: data[:at] + bytes(size) + data[at + size :],
            lambda: data[:at] + chance.randbytes(size) + data[at + size :],
            lambda: _flipped(data, chance),
            lambda: data[:at] + _raw_text(chance) + data[at:],
            lambda: data[:at] + _part_of(chance.choice(others), chance) + data[at:],
            lambda: data.replace(b"\n", chance.choice((b"\r\n", b"\r", b"\0", b" "))),
            lambda: b"\xef\xbb\xbf" + data,
        )
    )()


def _flipped(data: bytes, chance: Random) -> bytes:
    turned = bytearray(data)
    for _ in range(chance.choice((1, 2, 8, 30)) if turned else 0):
        turned[chance.randrange(len(turned))] ^= 1 << chance.randrange(8)
    return bytes(turned)


def _raw_text(chance: Random) -> bytes:
    return chance.choice(HOSTILE).encode("utf-8", "surrogatepass")


def _part_of(data: bytes, chance: Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[start : start + chance.choice((10, 300, 3_000))]


def _of_tokens(data: bytes, chance: Random, others: list[bytes]) -> bytes:
    """Replace a number or word, once or at every occurrence."""
    pattern = chance.choice((_NUMBER, _NUMBER, _WORD))
    found = list(pattern.finditer(data[:100_000]))
    if not found:
        return _of_bytes(data, chance, others)
    match = chance.choice(found)
    new = chance.choice(NUMBERS).encode() if chance.random() < 0.6 else _raw_text(chance)
    if chance.random() < 0.25:
        return data.replace(match.group(), new, 200)
    if chance.random() < 0.15:
        new = match.group() * 2
    return data[: match.start()] + new + data[match.end() :]


# Lines and cells ----------------------------------------------------------------------------------


def _of_lines(data: bytes, chance: Random, others: list[bytes]) -> bytes:
    lines = data.split(b"\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    line = lines[at]
    low, high = sorted((at, other))
    return b"\n".join(
        chance.choice(
            (
                lambda: lines[:at] + lines[at + 1 :],
                lambda: [*lines[:at], *[line] * chance.choice((2, 3, 200)), *lines[at + 1 :]],
                lambda: [*lines[:low], lines[high], *lines[low:high], *lines[high + 1 :]],
                lambda: [*lines[:at], line[: chance.randrange(len(line) + 1)], *lines[at + 1 :]],
                lambda: [*lines[:at], line + lines[other], *lines[at + 1 :]],
                lambda: lines[:low] + lines[high:],
                lambda: chance.sample(lines, len(lines)),
                lambda: lines[::-1],
                lambda: [*lines[:at], _changed_line(line, chance, others), *lines[at + 1 :]],
                lambda: [_raw_text(chance) + each for each in lines],
            )
        )()
    )


def _changed_line(line: bytes, chance: Random, others: list[bytes]) -> bytes:
    if line.startswith((b"{", b"[")):
        return _of_json(line, chance, others)
    return _of_bytes(line, chance, others)


def _of_cells(data: bytes, chance: Random, others: list[bytes]) -> bytes:  # noqa: ARG001
    rows = [line.split(b",") for line in data.split(b"\n")]
    row, column = chance.randrange(len(rows)), chance.randrange(max(map(len, rows)))
    new = chance.choice(NUMBERS).encode() if chance.random() < 0.5 else _raw_text(chance)
    action = chance.randrange(6)
    for number, cells in enumerate(rows):
        if column >= len(cells) or (action < 3 and number != row):
            continue
        if action in (0, 1):
            cells[column] = new
        elif action == 2:
            cells.insert(column, new)
        elif action == 3:
            del cells[column]
        elif action == 4:
            cells.insert(column, cells[column])
        elif number:
            cells[column] = new
    return b"\n".join(b",".join(cells) for cells in rows)


# JSON and pickles ---------------------------------------------------------------------------------


def _of_json(data: bytes, chance: Random, others: list[bytes]) -> bytes:
    try:
        value = json.loads(data)
        text = json.dumps(_changed_value(value, chance), ensure_ascii=chance.random() < 0.7)
        return text.encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError, TypeError):
        return _of_tokens(data, chance, others)


def _of_pickle(data: bytes, chance: Random, others: list[bytes]) -> bytes:
    try:
        value = _changed_value(read_pickle(data), chance)
        return pickle.dumps(value, protocol=chance.choice((2, 3, 4, 5)))
    except (PickleRefused, ValueError, TypeError, RecursionError, pickle.PicklingError):
        return _of_bytes(data, chance, others)


def _changed_value(value: Any, chance: Random) -> Any:
    """The value with one of its parts changed, each level of nesting equally likely."""
    where = _places(value, chance)
    if not where:
        return _odd_value(value, chance)
    holder, key = where[min(chance.randrange(len(where) + 1), len(where) - 1)]
    if isinstance(holder, dict):
        _change_in_dict(holder, key, chance)
    else:
        _change_in_list(holder, key, chance)
    return value


def _places(value: Any, chance: Random) -> list[tuple[Any, Any]]:
    """A random path from the outside to the inside: containers and the keys into them."""
    way: list[tuple[Any, Any]] = []
    while isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = chance.choice(keys)
        way.append((value, key))
        value = value[key]
    return way


def _change_in_dict(holder: dict[Any, Any], key: Any, chance: Random) -> None:
    value = holder[key]
    action = chance.randrange(12)
    if action == 0:
        del holder[key]
    elif action == 1:
        holder[chance.choice(HOSTILE)] = holder.pop(key)
    elif action == 2 and isinstance(key, str):
        holder[_Key(key)] = _odd_value(value, chance)
    elif action == 3:
        other = chance.choice(list(holder))
        holder[key], holder[other] = holder[other], value
    else:
        holder[key] = _odd_value(value, chance)


def _change_in_list(holder: list[Any], key: int, chance: Random) -> None:
    action = chance.randrange(12)
    if action == 0:
        del holder[key]
    elif action == 1:
        holder[key:key] = [holder[key]] * chance.choice((1, 2, 100))
    elif action == 2:
        holder.reverse()
    elif action == 3:
        del holder[key:]
    elif action == 4:
        chance.shuffle(holder)
    else:
        holder[key] = _odd_value(holder[key], chance)


def _odd_value(value: Any, chance: Random) -> Any:
    draw = chance.random()
    if draw < 0.3 and isinstance(value, int | float):
        value = min(max(value, -(10**300)), 10**300)  # it may already be one of these
        return chance.choice(
            (0, -1, 1, -value, value * 1e9, value + 0.5, 2**31, 2**53 + 1, 2**63 - 1, 2**63,
             -(2**63), 2**64, 2**100, 10**400, 1e18, 1e300, -1e300, 5e-324, float("nan"),
             float("inf"), str(value), f"{value}.0", True)
        )  # fmt: skip
    if draw < 0.5:
        text = chance.choice(HOSTILE)
        return value + text if isinstance(value, str) and chance.random() < 0.5 else text
    if draw < 0.55:
        return _nested(value, chance.choice((1, 3, 60, 300)), chance)
    return chance.choice(
        (None, True, False, 0, -1, 3.5, "", "0", [], {}, [value], {"a": value}, [None], [value] * 3,
         2**63, -(2**70), 1e308, float("nan"), {"": ""}, [[]], [1, "x", None], 2**31, [-1], 1e15)
    )  # fmt: skip


def _nested(value: Any, depth: int, chance: Random) -> Any:
    key = chance.choice(("", "args", None))
    for _ in range(depth):
        value = [value] if key is None else {key: value}
    return value


# Parquet ------------------------------------------------------------------------------------------


def _of_parquet(data: bytes, chance: Random, others: list[bytes]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(data))
        out = io.BytesIO()
        pq.write_table(_changed_table(table, chance), out, compression="none")
        return out.getvalue()
    except (pa.ArrowException, OSError, ValueError, OverflowError, TypeError, KeyError):
        return _of_bytes(data, chance, others)


def _changed_table(table: Any, chance: Random) -> Any:
    import pyarrow as pa

    if not table.num_columns:
        return table
    at = chance.randrange(table.num_columns)
    name, column = table.column_names[at], table.column(at)
    action = chance.randrange(7)
    if action == 0:
        return table.drop([name])
    if action == 1:
        others = [*table.column_names]
        others[at] = chance.choice([*others, "x", "\x1b[2J"])
        return table.rename_columns(others)
    if action == 2:
        return table.slice(0, chance.choice((0, 1, 7)))
    if action == 3:
        return pa.concat_tables([table, table.slice(0, 50)])
    if action == 4:
        kinds = (pa.string(), pa.float32(), pa.int8(), pa.uint64(), pa.bool_(), pa.null())
        kind = chance.choice((*kinds, pa.large_string(), pa.decimal128(38, 3), pa.date32()))
        return table.set_column(at, name, _cast(column, kind))
    values = column.to_pylist()
    for _ in range(chance.choice((1, 3, len(values))) if values else 0):
        values[chance.randrange(len(values))] = _odd_cell(values[0], chance)
    return table.set_column(at, name, pa.array(values, from_pandas=False))


def _cast(column: Any, kind: Any) -> Any:
    import pyarrow as pa

    try:
        return column.cast(kind, safe=False)
    except pa.ArrowException:
        return pa.nulls(len(column), kind)


def _odd_cell(value: Any, chance: Random) -> Any:
    if isinstance(value, str):
        return chance.choice([text for text in HOSTILE if text.isascii()] + [None, value * 100])
    if isinstance(value, float):
        return chance.choice((float("nan"), float("inf"), -1.0, 1e300, 1e18, 0.0, None, -1e-9))
    return chance.choice((0, -1, 2**31, 2**53, 2**63 - 1, -(2**63), None, 7))
