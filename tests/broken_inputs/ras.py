"""Output of ncclras that is cut, absurd or made to harm."""

from __future__ import annotations

from pathlib import Path

from tests.broken_inputs.device_logs import EVIL, log
from tests.broken_inputs.intact import EITHER, REFUSED, Cases

CASES = Cases()
GOLDEN = Path(__file__).parents[1] / "golden" / "ras"
TEXT = (GOLDEN / "ncclras-dead-rank.txt").read_bytes()
JSON = (GOLDEN / "ncclras-4ranks.json").read_bytes()

CASES.add("ncclras cut in its table", EITHER, log(TEXT[: TEXT.index(b"RUNNING")], "ras.txt"))
CASES.add("ncclras of many ranks", EITHER, log(TEXT.replace(b"32", b"9" * 40), "ras.txt"))
CASES.add("ncclras of an evil node", EITHER, log(TEXT.replace(b"172.16.64.213", EVIL), "ras.txt"))
CASES.add("ncclras as json, cut", REFUSED, log(JSON[:-300], "ras.json"))
CASES.add("ncclras as json of an evil host", EITHER, log(JSON.replace(b"172.", EVIL), "ras.json"))
CASES.add(
    "ncclras as json with absurd numbers", EITHER, log(JSON.replace(b"6650", b"-6650"), "ras.json")
)
CASES.add(
    "ncclras as json with other types",
    REFUSED,
    log(JSON.replace(b'"rank": 1', b'"rank": "one"'), "ras.json"),
)
