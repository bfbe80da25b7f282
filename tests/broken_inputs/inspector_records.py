"""Records of NCCL Inspector that are cut, absurd or made to harm."""

from __future__ import annotations

import json
from typing import Any

from tests.broken_inputs.device_logs import EVIL, log
from tests.broken_inputs.intact import EITHER, REFUSED, Cases
from tests.inspector_records import Job

CASES = Cases()
LINES = [json.loads(line) for line in Job(steps=5).lines(0)]


def changed(part: str, **fields: Any) -> bytes:
    """A record with other values, and an intact one."""
    line = {**LINES[0], part: {**LINES[0][part], **fields}}
    return f"{json.dumps(line)}\n{json.dumps(LINES[1])}\n".encode()


def add(name: str, data: bytes, outcome: Any = EITHER) -> None:
    CASES.add(f"inspector {name}", outcome, log(data, "node-1-pid1.log"))


WHOLE = "".join(f"{json.dumps(line)}\n" for line in LINES).encode()
add("cut in a record", WHOLE[:-50])
add("with only the start of a record", WHOLE[:300], REFUSED)
add("of absurd ranks", changed("header", rank=-5, n_ranks=1 << 40))
add("of absurd sizes", changed("coll_perf", coll_msg_size_bytes=1 << 62))
add("of absurd times", changed("coll_perf", coll_exec_time_us=1e300))
add("of absurd moments", changed("metadata", dump_timestamp_us=1 << 62))
add("with other types", changed("header", rank="0", id=[{}]))
add("with control characters", changed("header", id=EVIL.decode(), comm_name=EVIL.decode()))
add("with hosts of control characters", changed("metadata", hostname=EVIL.decode()))
add("with deep values", b'{"inspector_output_format_version":"coll_perf"' + b"[" * 90_000)
add("with deep values in a record", WHOLE + b'{"coll_perf":' + b"[" * 90_000)
