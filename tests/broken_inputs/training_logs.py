"""Logs of training programs and tables of other tools, cut, mixed, absurd or made to harm."""

from __future__ import annotations

import gzip
import random

from tests.broken_inputs.intact import EITHER, REFUSED, Cases
from tests.broken_inputs.nccl_logs import EVIL, log

CASES = Cases()
ITERATION = (
    b" iteration       20/    1000 | consumed samples: 80 | elapsed time per iteration (ms): 1354.9"
    b" | global batch size:     4 | lm loss: 1.2E+01 |\n"
)
TIMERS = b"time (ms) | forward-compute: 306.62 | forward-recv: 527.58 | backward-compute: 575.17\n"
READY = b'{"event_time": ["60", "120"], "0": ["1", ""], "1": ["0.5", "nan"]}'
SUMMARY = (
    b"rank,Process Group Name,Process Group Ranks,Collective name,dtype,In msg nelems,"
    b'Out msg nelems,dur_mean,operation_count\n0,0,"[0, 1]",allreduce,Float,5,5,30,10\n'
)


def random_log(seed: int) -> bytes:
    """Pieces of lines in any order."""
    chance = random.Random(seed)
    pieces = (ITERATION, TIMERS, EVIL, ITERATION[:40], b" | ", b"1e999", b"\r", b"\xff" * 9)
    return ITERATION + b"".join(chance.choices(pieces, k=2_000))


CASES.add("training log without an end of line", EITHER, log(ITERATION + TIMERS[:-1] * 9_000))
CASES.add("training log cut in a gzip", EITHER, log(gzip.compress(ITERATION * 9_000)[:-9], "a.gz"))
CASES.add(
    "timer with control characters",
    EITHER,
    log(ITERATION * 3 + TIMERS + b"time (ms) | a" + EVIL + b": 1.0\n"),
)
CASES.add(
    "pipeline of a billion stages",
    EITHER,
    log(
        b"using world size: 999999999, pipeline-model-parallel size: 999999999\n"
        b"setting number of micro-batches to constant 1\n" + (ITERATION + TIMERS) * 3
    ),
)
CASES.add("iteration of no time", EITHER, log(ITERATION.replace(b"1354.9", b"0.0") * 9 + TIMERS))
CASES.add("iteration of endless time", EITHER, log(ITERATION.replace(b"1354.9", b"9e99") * 9))
CASES.add("event of MLPerf with absurd values", EITHER, log(
    b':::MLLOG {"time_ms": 1e308, "key": "global_batch_size", "value": 1e308, "metadata": 7}\n' * 9
))  # fmt: skip
CASES.add(
    "group with control characters",
    EITHER,
    log(SUMMARY.replace(b"\n0,0,", b"\n0," + EVIL.replace(b"\n", b"") + b","), "a.csv"),
)
CASES.add("collective of a negative time", REFUSED, log(SUMMARY.replace(b",30,", b",-3,"), "a.csv"))
CASES.add("table of collectives with one rank", EITHER, log(SUMMARY, "a.csv"))
CASES.add("readiness that is no number", EITHER, log(READY, "a.json"))
CASES.add("readiness of unlike lengths", REFUSED, log(READY.replace(b', "nan"', b""), "a.json"))
CASES.add("readiness without samples", REFUSED, log(b'{"event_time": [], "0": []}', "a.json"))
CASES.add(
    "series without times", REFUSED, log(b'{"x": {"step_interval": 5, "values": {}}}', "a.json")
)
for seed in range(5):
    CASES.add(f"random training log {seed}", EITHER, log(random_log(seed)))
