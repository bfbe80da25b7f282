"""Jobs as their Flight Recorders would show them, in a few lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from distprof.ingest.flight.recorder import parse_flight
from distprof.run.records import FlightDump
from distprof.verbs.hang import HangEvidence, HangReport
from distprof.verbs.hang.measure import diagnose

GOLDEN = Path(__file__).parent / "golden" / "flight"
GPU_ERROR = GOLDEN / "megatron-moe-16gpu-gpu_error_1st"
LOCK_GIL = GOLDEN / "megatron-moe-16gpu-lock_gil_1st"

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000

Entry = dict[str, Any]


def op(
    seq: int,
    *,
    group: str = "0",
    kind: str = "all_reduce",
    elements: int = 1024,
    dtype: str = "Float",
    state: str = "completed",
    at_ms: float | None = None,
    library: str = "nccl",
    **fields: Any,
) -> Entry:
    """One collective; by default one that completed, a millisecond after the one before."""
    description = {"0": "default_pg"}.get(group, f"GROUP_{group}")
    return {
        "pg_id": int(group),
        "process_group": [group, description],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"{library}:{kind}",
        "time_created_ns": START_NS + int((seq if at_ms is None else at_ms) * MS),
        "input_sizes": [[elements]],
        "input_dtypes": [dtype],
        "output_sizes": [[elements]],
        "output_dtypes": [dtype],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        **fields,
    }


def message(text: str, *, group: str = "0", at_ms: float = 0) -> Entry:
    """A send or receive under way, such as ``send 0->1``, between ranks of the group."""
    return op(0, group=group, kind=text, at_ms=at_ms, state="scheduled", is_p2p=True, p2p_seq_id=1)


def dump(
    entries: list[Entry], groups: dict[str, list[int]], *, version: str = "2.9", **fields: Any
) -> dict[str, Any]:
    """A dump; entries are numbered in the order given."""
    config = {
        name: {
            "name": name,
            "desc": "default_pg" if name == "0" else f"GROUP_{name}",
            "ranks": str(ranks),
        }
        for name, ranks in groups.items()
    }
    numbered = [{"record_id": number, **entry} for number, entry in enumerate(entries)]
    return {"version": version, "pg_config": config, "entries": numbered, **fields}


def job(
    ranks: dict[int, list[Entry]], *, world: int | None = None, **fields: Any
) -> dict[int, Any]:
    """Dumps of ranks that share one group of ``world`` ranks, all of ``ranks`` by default."""
    members = list(range(world or max(ranks) + 1))
    return {rank: dump(entries, {"0": members}, **fields) for rank, entries in ranks.items()}


def parsed(dumps: dict[int, Any]) -> tuple[FlightDump, ...]:
    """Dumps as read back from JSON."""
    return tuple(
        parse_flight(json.dumps(content).encode(), rank=rank, source=f"_dump_{rank}")
        for rank, content in sorted(dumps.items())
    )


def diagnosed(dumps: dict[int, Any], **evidence: Any) -> HangReport:
    """What is concluded of dumps."""
    found = HangEvidence(source="dumps", dumps=parsed(dumps), **evidence)
    return diagnose(found, version="0")


def written(folder: Path, dumps: dict[int, Any]) -> Path:
    """The dumps as files, as torch names them."""
    for rank, content in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_text(json.dumps(content))
    return folder
