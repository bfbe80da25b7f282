"""Text and gz streams as killed jobs, full disks and bad memory leave them."""

from __future__ import annotations

import gzip
import json
import random

from tests.broken_inputs.intact import (
    EITHER,
    FINE,
    GZ,
    INTACT,
    NOISE,
    PRETTY,
    REFUSED,
    SALVAGED,
    TOLD,
    Build,
    Cases,
    Outcome,
    content,
    dumped,
    intact,
    text,
)

CASES = Cases()


BROKEN_TEXT: dict[str, tuple[Outcome, Build]] = {
    "an unescaped quote in a name": (TOLD, text(b'"relu"', b'"re"lu"')),
    "a lone backslash in a name": (TOLD, text(b'"relu"', b'"re\\lu"')),
    "a raw newline in a name": (TOLD, text(b'"relu"', b'"re\nlu"')),
    "a raw escape code in a name": (TOLD, text(b'"relu"', b'"\x1b[31mrelu"')),
    "bytes that are not UTF-8 in a name": (TOLD, text(b'"relu"', b'"re\xff\xfelu"')),
    "nan as printf writes it": (TOLD, text(b'"dur": 80.5', b'"dur": nan')),
    "-inf as printf writes it": (TOLD, text(b'"dur": 80.5', b'"dur": -inf')),
    "a missing value": (TOLD, text(b'"dur": 80.5', b'"dur": ')),
    "a missing colon": (TOLD, text(b'"dur": 80.5', b'"dur" 80.5')),
    "a comma too many in an event": (TOLD, text(b'"dur": 80.5,', b'"dur": 80.5,,')),
    "single quotes": (REFUSED, content(INTACT.replace(b'"', b"'"))),
    "comments": (EITHER, content(b"// trace of rank 0\n" + INTACT)),
    "a comma after the last event": (
        EITHER,
        content(INTACT.replace(b'}}], "traceN', b'}},], "traceN')),
    ),
    "a duplicate key in an event": (EITHER, text(b'"dur": 80.5', b'"dur": 1.0, "dur": 80.5')),
    "traceEvents one level down": (EITHER, content(b'{"a": ' + INTACT + b"}")),
    "traceEvents twice": (EITHER, content(INTACT[:-1] + b', "traceEvents": []}')),
    "a second document behind the first": (EITHER, content(INTACT + b"\n" + INTACT)),
    "a closing brace too many": (EITHER, content(INTACT + b"}")),
    "a closing brace too few": (SALVAGED, content(INTACT[:-1])),
    "noise behind the end": (EITHER, content(INTACT + NOISE)),
    "zeros in the middle": (SALVAGED, content(PRETTY[:2000] + bytes(512) + PRETTY[2512:])),
    "a piece missing in the middle": (SALVAGED, content(PRETTY[:2000] + PRETTY[2777:])),
    "a piece twice": (EITHER, content(PRETTY[:3000] + PRETTY[2000:])),
    "halves swapped": (SALVAGED, content(INTACT[2000:] + INTACT[:2000])),
    "a byte order mark": (FINE, content(b"\xef\xbb\xbf" + INTACT)),
    "Windows line ends": (FINE, content(PRETTY.replace(b"\n", b"\r\n"))),
    "no white space": (FINE, content(json.dumps(intact(), separators=(",", ":")).encode())),
    "white space in front": (FINE, content(b"\n" * 5000 + INTACT)),
    "a bare list of events": (EITHER, content(dumped(intact()["traceEvents"]))),
    "one event a line": (EITHER, content(b"\n".join(map(dumped, intact()["traceEvents"])))),
    "an open bracket ten thousand times": (REFUSED, content(b"[" * 10_000)),
    "objects in objects ten thousand deep": (REFUSED, content(b'{"a":' * 10_000)),
    "arguments nested ten thousand deep": (
        EITHER,
        text(b'"stream": 7', b'"x": ' + b"[" * 10_000 + b"]" * 10_000 + b', "stream": 7'),
    ),
    "metadata nested ten thousand deep": (
        EITHER,
        text(b'"schemaVersion": 1', b'"schemaVersion": ' + b"[" * 10_000 + b"]" * 10_000),
    ),
}
for _name, (_outcome, _build) in BROKEN_TEXT.items():
    CASES.add(_name, _outcome, _build)

for _part in range(1, 16):
    CASES.add(f"cut after {_part}/16", SALVAGED, content(INTACT[: len(INTACT) * _part // 16]))
    CASES.add(
        f"pretty-printed, cut after {_part}/16",
        SALVAGED,
        content(PRETTY[: len(PRETTY) * _part // 16]),
    )
    CASES.add(
        f"gz cut after {_part}/16", SALVAGED, content(GZ[: len(GZ) * _part // 16], "trace.json.gz")
    )


def flipped(data: bytes, seed: int, num_bits: int, name: str) -> Build:
    """``data`` with a few bits turned, chosen by ``seed``."""
    chance = random.Random(seed)
    damaged = bytearray(data)
    for _ in range(num_bits):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return content(bytes(damaged), name)


for _seed in range(24):
    CASES.add(
        f"bits flipped, seed {_seed}", EITHER, flipped(INTACT, _seed, 1 + _seed, "trace.json")
    )
    CASES.add(f"bits flipped in gz, seed {_seed}", SALVAGED, flipped(GZ, _seed, 1, "trace.json.gz"))


# gz ----------------------------------------------------------------------------------------------

_HALF = len(INTACT) // 2
_MEMBERS = gzip.compress(INTACT[:_HALF], mtime=0) + gzip.compress(INTACT[_HALF:], mtime=0)
BAD_CRC = GZ[:-8] + b"\0\0\0\0" + GZ[-4:]
CASES.add("gz of two members", FINE, content(_MEMBERS, "trace.json.gz"))
CASES.add("gz named json", FINE, content(GZ, "trace.json"))
CASES.add("plain JSON named gz", FINE, content(INTACT, "trace.json.gz"))
CASES.add("gz with a wrong checksum", SALVAGED, content(BAD_CRC, "trace.json.gz"))
CASES.add("gz with zeros behind it", EITHER, content(GZ + bytes(512), "trace.json.gz"))
CASES.add("gz with noise behind it", EITHER, content(GZ + NOISE, "trace.json.gz"))
