"""Timelines of the operations of pipeline stages, as a straggler study and Primus write them.

ByteDance-Seed/StragglerAnalysis renders its operation tables (:mod:`.operation_table`) as a list of
Chrome events, gzipped or not: the process is the data-parallel index, the name of the thread is
``PP rank 3, TP rank 0, compute``, and ``args`` hold ``step``, ``model_chunk``, ``mb_id`` and
``seq_id``.

Primus for Megatron writes a folder with ``pp_rank_N.json`` per pipeline rank, and ``config.json``
next to them. A rank's file maps an iteration to ``total`` and the lists ``fwd_start``, ``fwd_end``,
``bwd_start`` and ``bwd_end``, all in ms since the rank began the iteration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.bounds import Bound, expanded
from distprof.ingest.files import beginning, decoded, refusing
from distprof.ingest.kinds import Source
from distprof.ingest.kinds.operation_table import JobSizes, log_of_columns
from distprof.run.evidence import OPERATIONS, OperationLog
from distprof.run.topology import MAX_WORLD_SIZE
from distprof.schema import Coded, Int64Array, Table

OPERATIONS_ORIGIN = "operation timeline"
OPERATIONS_BOUND = Bound(
    reads=f"an {OPERATIONS_ORIGIN}", num_bytes=500_000_000, rows=1_000_000, depth=1_000
)
_MOST_PARTS = 20  # values per event
_SNIFFED_BYTES = 1 << 13
_SIGNS = (b'"model_chunk"', b'"mb_id"', b'"seq_id"', b'"step"')
_STAGE = re.compile(r"PP rank (\d{1,4}), TP rank (\d{1,4}),")
# Columns of an operation table, and the arguments that hold their values.
_LABELS = {"step": "step", "mc": "model_chunk", "mb_id": "mb_id", "seq_id": "seq_id"}


_refuse = refusing(
    expected="a list of Chrome events, one per operation, on threads named after their stage",
    fix="analyse the operation table behind the timeline instead",
)


class _Event(msgspec.Struct):
    """The fields of an event that are read."""

    ph: str
    name: str
    pid: int
    tid: int = -1
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


def fits_operation_timeline(source: str) -> bool:
    """Whether a file begins like such a timeline; never raises for other files."""
    start = beginning(source, _SNIFFED_BYTES, endings=(".json", ".json.gz"))
    return start.lstrip().startswith(b"[") and all(sign in start for sign in _SIGNS)


def read_operation_timeline(source: str) -> OperationLog:
    """Read an operation timeline."""
    events = decoded(source, OPERATIONS_BOUND, list[_Event], _refuse, _MOST_PARTS)
    if OPERATIONS_BOUND.rows is not None and len(events) > OPERATIONS_BOUND.rows:
        _refuse(source, f"{len(events):,} events, more than {OPERATIONS_BOUND.rows:,}")
    if any(not 0 <= event.pid < 1 << 20 for event in events):
        _refuse(source, "a process id that is not a data-parallel index")
    stages = _stages(source, events)
    operations = [event for event in events if event.ph == "X"]
    if not operations:
        _refuse(source, "no operation")
    unnamed = sum((event.pid, event.tid) not in stages for event in operations)
    if unnamed:
        _refuse(source, f"{unnamed:,} operations on threads without a stage in their names")
    return log_of_columns(
        source, _columns(operations, stages), OPERATIONS_ORIGIN, JobSizes(mesh={})
    )


def _columns(operations: Sequence[_Event], stages: Mapping[tuple[int, int], int]) -> dict[str, Any]:
    """The columns of an operation table; times in seconds."""
    stage = np.array([stages[event.pid, event.tid] for event in operations], np.int64)
    dp_rank = np.array([event.pid for event in operations], np.int64)
    labels = {
        column: np.array([_label(event.args.get(name)) for event in operations], np.int64)
        for column, name in _LABELS.items()
    }
    return {
        "dp_rank": dp_rank,
        "stage": stage,
        "rank": stage * (int(dp_rank.max()) + 1) + dp_rank,
        "optype": Coded.encode([event.name[:200] for event in operations]),
        "start_ts": np.array([event.ts for event in operations], np.float64) / 1e6,
        "duration": np.array([event.dur for event in operations], np.float64) / 1e6,
        **labels,
    }


def _label(value: Any) -> int:
    """A number of an operation; -1 if it has none."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and -1 <= value < 1 << 31 else -1


def _stages(source: str, events: Sequence[_Event]) -> dict[tuple[int, int], int]:
    """Process and thread to the stage in the thread's name."""
    stages: dict[tuple[int, int], int] = {}
    for event in events:
        if event.ph != "M" or event.name != "thread_name":
            continue
        if match := _STAGE.match(str(event.args.get("name", ""))[:200]):
            if int(match[2]):
                _refuse(source, "operations of several tensor-parallel ranks")
            stages[event.pid, event.tid] = int(match[1])
    return stages


OPERATION_TIMELINE = Source(
    bound=OPERATIONS_BOUND,
    place=30,
    origin=OPERATIONS_ORIGIN,
    fits=fits_operation_timeline,
    read=read_operation_timeline,
    notes="assumed",
)


PIPELINE_ORIGIN = "pipeline timeline"
MAX_RANKS = 4_096
PIPELINE_BOUND = Bound(
    reads=f"a file of a {PIPELINE_ORIGIN}",
    num_bytes=64_000_000,
    rows=4_000_000,
    names=MAX_RANKS,
    depth=1_000,
)
MAX_MS = 1e9
_FILE = re.compile(r"^pp_rank_(\d{1,5})\.json$")
_CONFIG = "config.json"
_KINDS = ("forward-compute", "backward-compute")
_CLOCK_SHARE = 0.1  # clocks that differ by at most this share of a slot count as one


class _Iteration(msgspec.Struct):
    """One iteration of one rank; times in ms."""

    fwd_start: list[float]
    fwd_end: list[float]
    bwd_start: list[float]
    bwd_end: list[float]
    total: float | None = None


_Size = Annotated[int, msgspec.Meta(le=MAX_WORLD_SIZE)]
# Stages and chunks are laid out one by one, so their number is limited to bound memory.
_Places = Annotated[int, msgspec.Meta(le=MAX_RANKS)]


class _Config(msgspec.Struct):
    """Sizes of the job in ``config.json``; absent fields are unknown."""

    world_size: _Size | None = None
    dp_size: _Size | None = None
    tp_size: _Size | None = None
    ep_size: _Size | None = None
    pp_size: _Places | None = None
    vp_size: _Places | None = None


_Rank = dict[int, _Iteration]
_T = TypeVar("_T")


class _Times(msgspec.Struct, frozen=True, kw_only=True):
    """Times of all ranks in all complete iterations, ns."""

    ranks: tuple[int, ...]  # Pipeline ranks, ascending.
    steps: tuple[int, ...]  # Iterations, ascending.
    # Shape ``(ranks, steps, 2, slots)``: forward and backward passes in the order listed.
    start_ns: Int64Array
    end_ns: Int64Array  # The same.
    total_ns: Int64Array  # Shape ``(ranks, steps)``.


def fits_pipeline_timeline(source: str) -> bool:
    """Whether ``source`` is a folder with files ``pp_rank_N.json``."""
    return bool(_rank_files(source))


def read_pipeline_timeline(source: str) -> OperationLog:
    """Read a folder of pipeline ranks' timelines.

    Micro-batches are numbered in the order in which Megatron runs them. The first iteration is left
    out if there are more, because it contains the warm-up.
    """
    path = Path(expanded(source)) / _CONFIG
    sizes = "sizes of the job such as pp_size"
    config = _decoded(path, _Config, sizes) if path.is_file() else _Config()
    what = "iterations with fwd_start, fwd_end, bwd_start and bwd_end in ms"
    ranks = {rank: _decoded(path, _Rank, what) for rank, path in _rank_files(source).items()}
    times, notes = _times(source, ranks)
    size = max(config.pp_size or 0, times.ranks[-1] + 1)
    virtual = max(config.vp_size or 1, 1)
    slots = times.start_ns.shape[-1]
    if slots % virtual:
        virtual = 1
        notes.append(f"{slots} slots are not divisible by the number of stages in {_CONFIG}.")
    shares, clock_note = _clock(times, virtual)
    longest = times.total_ns.max(axis=0)
    mesh = {"pp": size, "dp": config.dp_size, "tp": config.tp_size, "ep": config.ep_size}
    return OperationLog(
        operations=_operations(times, size, virtual),
        origin=PIPELINE_ORIGIN,
        world_size=config.world_size,
        mesh={axis: number for axis, number in mesh.items() if number is not None and number > 0},
        num_micro_batches=slots // virtual,
        shares_clock=shares,
        step_ns=dict(zip(times.steps, longest.tolist(), strict=True)),
        notes=(*notes, clock_note),
    )


# Files --------------------------------------------------------------------------------------------


def _rank_files(source: str) -> dict[int, Path]:
    """Files by pipeline rank, ascending; empty if ``source`` is not a folder of timelines."""
    if "://" in source:
        return {}
    folder = Path(expanded(source))
    try:
        if not folder.is_dir() or (folder / "run.json").exists():
            return {}
        names = [(_FILE.match(child.name), child) for child in folder.iterdir()]
        found = {int(name[1]): path for name, path in names if name and path.is_file()}
    except (OSError, ValueError):
        return {}
    return dict(sorted(found.items())[:MAX_RANKS])


def _decoded(path: Path, kind: type[_T], what: str) -> _T:
    refuse = refusing(expected=f"JSON with {what}", fix="copy the file again")
    return decoded(str(path), PIPELINE_BOUND, kind, refuse)


_refuse_ranks = refusing(
    expected="an iteration with as many forward as backward passes on every pipeline rank",
    fix="copy the files of all ranks of one run again",
)

# Times --------------------------------------------------------------------------------------------


def _times(source: str, ranks: Mapping[int, _Rank]) -> tuple[_Times, list[str]]:
    """Iterations that are complete on every rank, with the same number of slots."""
    common = sorted(set.intersection(*(set(rank) for rank in ranks.values())))
    shapes = {step: _shape([rank[step] for rank in ranks.values()]) for step in common}
    usual = max((shape for shape in shapes.values() if shape), default=0)
    whole = [step for step in common if usual and shapes[step] == usual]
    if not whole:
        count = f"{len(common)} iterations shared by all {len(ranks)} files"
        _refuse_ranks(source, f"{count}, none of them complete")
    every = set().union(*(set(rank) for rank in ranks.values()))
    notes = [f"{len(every) - len(whole)} iterations are incomplete on some ranks and were skipped."]
    notes *= len(every) > len(whole)
    if len(whole) > 1:
        notes.append(f"Iteration {whole[0]}, the first, contains the warm-up and was skipped.")
        whole = whole[1:]
    parts = [[rank[step] for step in whole] for rank in ranks.values()]
    start = _ns([[(part.fwd_start, part.bwd_start) for part in rank] for rank in parts])
    end = _ns([[(part.fwd_end, part.bwd_end) for part in rank] for rank in parts])
    end = np.maximum(end, start)
    last = end.max(axis=(2, 3))
    total = [[-1.0 if part.total is None else part.total for part in rank] for rank in parts]
    return _Times(
        ranks=tuple(ranks),
        steps=tuple(whole),
        start_ns=start,
        end_ns=end,
        total_ns=np.maximum(_ns(total), last),
    ), notes


def _shape(parts: list[_Iteration]) -> int:
    """Slots of each kind if all ranks have the same number, with finite times; else 0."""
    lists = [times for p in parts for times in (p.fwd_start, p.fwd_end, p.bwd_start, p.bwd_end)]
    lengths = {len(times) for times in lists}
    if len(lengths) != 1 or not all(-MAX_MS < time < MAX_MS for times in lists for time in times):
        return 0
    return lengths.pop()


def _ns(milliseconds: object) -> Int64Array:
    values = np.nan_to_num(np.array(milliseconds, np.float64), nan=-1.0)
    return np.rint(np.clip(values, -MAX_MS, MAX_MS) * 1e6).astype(np.int64)


def _clock(times: _Times, virtual: int) -> tuple[bool, str]:
    """Whether the ranks started at the same moment, and a sentence for the report.

    A rank cannot start a forward pass before the previous rank has finished that of the same
    micro-batch, nor a backward pass before the next rank has. Both bounds together leave clocks
    little room to differ.
    """
    own = "The times of each rank count from its own start"
    neighbours = np.flatnonzero(np.diff(times.ranks) == 1)
    if virtual > 1 or len(neighbours) < len(times.ranks) - 1 or not len(neighbours):
        return False, f"{own}: distprof does not compare times between ranks."
    before, after = neighbours, neighbours + 1
    forward = times.start_ns[after, :, 0] - times.end_ns[before, :, 0]
    backward = times.start_ns[before, :, 1] - times.end_ns[after, :, 1]
    room = int(np.abs((forward.min(axis=2), backward.min(axis=2))).max())
    slot = int(np.median(times.end_ns - times.start_ns))
    if room > _CLOCK_SHARE * slot:
        return False, (
            f"{own}, and messages do not show how far apart these starts are: distprof does not "
            "compare times between ranks."
        )
    return True, (
        f"{own}. A rank cannot work on data that was not sent, so these starts are at most "
        f"{room / 1e6:.2g} ms apart: distprof treats them as simultaneous."
    )


# Table --------------------------------------------------------------------------------------------


def _operations(times: _Times, num_ranks: int, virtual: int) -> Table:
    """One row per slot, by rank, step and start."""
    shape = times.start_ns.shape
    place, step, kind, slot = (part.ravel() for part in np.indices(shape))
    chunk, batch = _chunks(shape[-1], num_ranks, virtual)
    rank = np.array(times.ranks, np.int32)[place]
    start, end = times.start_ns.ravel(), times.end_ns.ravel()
    order = np.lexsort((end, start, step, place))
    of_chunk = np.where(kind == 0, chunk[slot], virtual - 1 - chunk[slot])
    columns: dict[str, NDArray[Any]] = {
        "rank": rank,
        "dp_rank": np.zeros(len(rank), np.int32),
        "stage": rank,
        "step": np.array(times.steps, np.int64)[step],
        "start_ns": start,
        "end_ns": end,
        "seq": slot.astype(np.int64),
        "chunk": of_chunk.astype(np.int32),
        "micro_batch": batch[slot].astype(np.int32),
    }
    table = {name: values[order] for name, values in columns.items()}
    kinds = Coded(kind[order].astype(np.int32), _KINDS)
    return Table(OPERATIONS, {**table, "kind": kinds})


def _chunks(slots: int, num_ranks: int, virtual: int) -> tuple[Int64Array, Int64Array]:
    """Chunk and micro-batch of the k-th forward: groups of P micro-batches, chunk after chunk."""
    k = np.arange(slots, dtype=np.int64)
    if virtual == 1:
        return np.zeros(slots, np.int64), k
    of_round = k % (num_ranks * virtual)
    return of_round // num_ranks, k // (num_ranks * virtual) * num_ranks + of_round % num_ranks


PIPELINE_TIMELINE = Source(
    bound=PIPELINE_BOUND,
    place=40,
    origin=PIPELINE_ORIGIN,
    fits=fits_pipeline_timeline,
    read=read_pipeline_timeline,
    notes="assumed",
)

SOURCES = (OPERATION_TIMELINE, PIPELINE_TIMELINE)
