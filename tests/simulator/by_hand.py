"""Ranks written out by hand, for tests that check single rules of matching and alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distprof.run.run import Device, Quality, Rank
from distprof.run.tables import ACTIVITY, COLLECTIVES, HOST, STEPS, RankTables
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Table
from distprof.terms import CollectiveKind, Origin, StepSource
from tests.simulator.tables import InMemory, table

__all__ = ["collective", "group", "rank_by_hand", "rows_of"]


def collective(start: int, end: int, **fields: Any) -> dict[str, Any]:
    """A COLLECTIVES row: an all-reduce of 1,024 bytes without group and number, unless told."""
    row: dict[str, Any] = {
        "start_ns": start,
        "end_ns": end,
        "enqueue_ns": start,
        "kind": CollectiveKind.ALL_REDUCE,
        "kind_origin": Origin.MEASURED,
        "group": "",
        "group_desc": "",
        "group_ranks": "",
        "group_size": ABSENT,
        "group_origin": Origin.ABSENT,
        "seq": ABSENT,
        "dtype": "Float",
        "bytes": 1024,
        "bytes_origin": Origin.MEASURED,
        "peer": ABSENT,
        "in_splits": "",
        "out_splits": "",
        "stream": 20,
        "correlation": ABSENT,
        "name": "ncclDevKernel_AllReduce",
    }
    return row | fields


def group(name: str, *ranks: int, description: str = "") -> ProcessGroup:
    """A process group."""
    return ProcessGroup(
        name=name,
        description=description,
        ranks=ranks,
        size=len(ranks),
        backend="nccl",
        axis=None,
    )


def rank_by_hand(
    rank: int,
    rows: Sequence[dict[str, Any]],
    steps: Sequence[tuple[int, int, int]] = (),
    *,
    incomplete: Sequence[int] = (),
    **fields: Any,
) -> Rank:
    """A rank of a world of two, with these collectives and (number, start, end) steps."""
    start = min([row["start_ns"] for row in rows] + [s for _, s, _ in steps], default=0)
    end = max([row["end_ns"] for row in rows] + [e for _, _, e in steps], default=0)
    step_rows = [
        {"step": n, "start_ns": s, "end_ns": e, "complete": n not in incomplete}
        for n, s, e in steps or [(0, start, end)]
    ]
    collectives = table(COLLECTIVES, rows)
    tables = RankTables(
        activity=Table.empty(ACTIVITY),
        host=Table.empty(HOST),
        collectives=collectives,
        steps=table(STEPS, step_rows),
        has_host=False,
    )
    known: dict[str, Any] = {
        "rank": rank,
        "path": f"rank{rank}.json",
        "rank_origin": "trace",
        "world_size": 2,
        "host": None,
        "backend": "nccl",
        "device": Device(name="GPU"),
        "groups": (),
        "versions": {},
        "capture_start_ns": start,
        "capture_end_ns": end,
        "has_epoch": True,
        "step_source": StepSource.PROFILER_STEP if steps else StepSource.CAPTURE,
        "step_note": "",
        "steps": tables.steps,
        "collectives": collectives,
        "quality": Quality(),
        "tables": InMemory(tables),
    }
    return Rank(**(known | fields))


def rows_of(table: Table) -> list[dict[str, Any]]:
    """The rows of a table as :func:`rank_by_hand` takes them."""
    columns = {
        column.name: table.coded(column.name).decode()
        if column.dtype == "category"
        else table[column.name].tolist()
        for column in table.schema
    }
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
