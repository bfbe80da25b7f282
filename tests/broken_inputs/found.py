"""Inputs that the fuzzer (``benchmarks/fuzz.py``) found, as small as it made them."""

from __future__ import annotations

from typing import Any

from tests.broken_inputs.fields import argument, info, kernel, top
from tests.broken_inputs.intact import EITHER, INTACT, Cases, content, text
from tests.broken_inputs.nccl_logs import log

CASES = Cases()

HALF = "a\udc9bb"
PLACES: dict[str, Any] = {
    "trace_id": HALF,
    "host_name": HALF,
    "pytorch_version": HALF,
    HALF: HALF,
    "deviceProperties": [{"id": 0, "name": HALF, HALF: HALF}],
}
for _key, _value in PLACES.items():
    CASES.add(f"half a surrogate pair in {_key!a}", EITHER, top(_key, _value))
for _key in ("backend", "nccl_version", HALF):
    CASES.add(f"half a surrogate pair in distributedInfo, {_key!a}", EITHER, info(_key, HALF))
CASES.add(
    "half a surrogate pair in a group",
    EITHER,
    info("pg_config", [{"pg_name": HALF, "pg_desc": HALF, "ranks": [0]}]),
)
for _key in ("name", "cat", "pid", "tid", "ts", "dur"):
    CASES.add(f"half a surrogate pair as an event's {_key}", EITHER, kernel(**{_key: HALF}))
for _key in ("stream", "Collective name", "dtype", "Process Group Ranks", "Input Dims", HALF):
    CASES.add(f"half a surrogate pair in argument {_key!a}", EITHER, argument(_key, HALF))
CASES.add("half a surrogate pair in a list", EITHER, argument("Input Dims", [[HALF], {HALF: HALF}]))
CASES.add("base time in superscript", EITHER, top("baseTimeNanoseconds", "²"))

for _number in ("1e999999999", "-1e999999999", "1e9999999999999999999", "1e-999999999", "1E+400"):
    _new = _number.encode()
    CASES.add(f"dur is the number {_number}", EITHER, text(b'"dur": 80.5', b'"dur": ' + _new))
    CASES.add(f"ts is the number {_number}", EITHER, text(b'"ts": 18.125', b'"ts": ' + _new))
    CASES.add(
        f"ts is the number {_number}, in a damaged trace",
        EITHER,
        content(INTACT.replace(b'"ts": 18.125', b'"ts": ' + _new).replace(b'"relu"', b'"re"lu"')),
    )

SAMPLE = b'{"time": "2021-12-06 04:19:35", "gpu_usage:0": %b}\n'
for _name, _bytes in {"400 digits": b"9" * 400, "NaN": b"NaN", "1e308": b"1e308"}.items():
    CASES.add(
        f"sensors as JSON with {_name}",
        EITHER,
        log(SAMPLE % b"5" + SAMPLE % _bytes, "monitor.jsonl"),
    )
