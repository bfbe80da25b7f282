"""Convert a run to an object of Holistic Trace Analysis (HTA) from distprof's tables.

HTA's analyses then run without HTA's parser. Each rank's frame has the columns, units and event
order that HTA's loader produces, and HTA's own functions link launches, align ranks and drop the
last step. The frames differ from those of HTA's loader as follows:

- They omit Python frames (``python_function``) and arguments that no supported HTA analysis reads
  (shapes, external ids, collective arguments).
- Event indices count distprof's rows, not the events of the file. Analyses that overwrite events of
  the original file are therefore refused (:data:`REFUSED`).
- Activities on stream 0 get the step of their launch; HTA leaves them without a step.
- The bandwidth of a copy is its bytes over its duration. Kineto wrote the same quotient, but used
  the duration before rounding in traces with whole microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from distprof.errors import InputError, MissingExtraError, UsageError
from distprof.run.tables import RankTables
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.terms import ActivityKind

if TYPE_CHECKING:
    import pandas as pd

    from distprof.run.run import Rank, Run

REFUSED = {
    "generate_trace_with_counters": "it overwrites the events of the original file",
    "overlay_critical_path_analysis": "it overwrites the events of the original file",
    "get_frequent_cuda_kernel_sequences": "it overwrites the events of the original file",
    "get_cupti_counter_data_with_operators": "distprof's tables do not keep CUPTI counters",
}
"""HTA analyses that distprof's tables do not support, with the reason."""

_NEED_DEVICE = (
    "get_temporal_breakdown",
    "get_idle_time_breakdown",
    "get_potential_stragglers",
    "critical_path_analysis",
    "get_aten_op_kernels_and_delay",
)
_KINETO_CATEGORY = {
    "runtime": "cuda_runtime",
    "driver": "cuda_driver",
    "annotation": "user_annotation",
    "sync": "cuda_sync",
}
_UNKNOWN_STREAM = 2**32 - 1  # CUPTI's value; for HTA, any stream but -1 is device work
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")


def to_hta(run: Run, *, ranks: Sequence[int] | None, include_last_step: bool, exact: bool) -> Any:
    """:meth:`Run.to_hta`; methods of the result in :data:`REFUSED` raise UsageError."""
    try:
        from hta.common.trace import Trace
        from hta.trace_analysis import TraceAnalysis
    except ImportError as error:
        raise MissingExtraError("run.to_hta()", "hta") from error

    chosen = run.ranks if ranks is None else tuple(run.rank(rank) for rank in ranks)
    tables = [rank.tables.load(every_host_row=True) for rank in chosen]
    for rank, loaded in zip(chosen, tables, strict=True):
        if not loaded.has_host:
            raise InputError(
                rank.path,
                expected="host rows, which HTA needs for steps and kernel launches",
                found="device rows only",
                fix="open the run without the device-only option",
            )
    origin_ns = min((rank.capture_start_ns for rank in chosen), default=0) if exact else 0
    trace = Trace(trace_files={}, trace_dir="")
    for rank, loaded in zip(chosen, tables, strict=True):
        _add_rank(trace, rank, loaded, origin_ns, exact)
    trace.align_and_filter_trace(include_last_step)
    for number, frame in trace.traces.items():
        trace.traces[number] = frame.set_index("index", drop=False).rename_axis(None)
    trace.is_parsed = True
    analysis = TraceAnalysis.__new__(TraceAnalysis)  # its constructor parses files
    analysis.t = trace
    for method, reason in _refused(chosen, tables).items():
        setattr(analysis, method, partial(_refuse, method, reason))
    original = "get_raw_trace_for_one_rank"
    setattr(trace, original, partial(_refuse, original, "it reads the original file"))
    return analysis


def _add_rank(trace: Any, rank: Rank, tables: RankTables, origin_ns: int, exact: bool) -> None:
    """Store one rank's frame, metadata and path as HTA's parser does."""
    from hta.common.trace import transform_correlation_to_index
    from hta.common.trace_parser import infer_gpu_type

    is_cpu = rank.device.name == "cpu"  # then ACTIVITY repeats host rows
    activity = Table.empty(tables.activity.schema) if is_cpu else tables.activity
    host = tables.host.take(~tables.host.coded("category").equals("Trace"))
    frame = _frame(host, activity, trace.symbol_table)
    start = np.concatenate([host["start_ns"], activity["start_ns"]])
    end = np.concatenate([host["end_ns"], activity["end_ns"]])
    if exact:  # a float keeps nanoseconds only if times are relative to a nearby origin
        frame["ts"] = (start - origin_ns) / 1000
        frame["dur"] = (end - start) / 1000
    else:
        frame["ts"] = -(-start // 1000)
        frame["dur"] = end // 1000 - frame["ts"]
    frame["end"] = frame["ts"] + frame["dur"]
    frame = transform_correlation_to_index(frame, trace.symbol_table)
    frame["iteration"] = _iterations(frame, trace.symbol_table.get_sym_table())
    of_job = {"backend": rank.backend, "rank": rank.rank, "world_size": rank.world_size}
    meta: dict[str, Any] = {"distributedInfo": of_job}
    if rank.has_epoch:
        meta["baseTimeNanoseconds"] = origin_ns  # 0 if times count from the epoch
    meta["device_type"] = infer_gpu_type(meta, dict.fromkeys(_used(host.coded("name")), 0))
    trace.traces[rank.rank] = frame
    trace.meta_data[rank.rank] = meta
    trace.trace_files[rank.rank] = rank.path


def _frame(host: Table, activity: Table, symbols: Any) -> pd.DataFrame:
    """Host rows, then device rows, with HTA's column names but without times."""
    import pandas as pd

    on_device = activity["kind"] != ActivityKind.ANNOTATION
    stream = np.where(activity["stream"] == ABSENT, _UNKNOWN_STREAM, activity["stream"])
    pid, tid = _threads(host.coded("thread"))
    index = np.arange(1, len(host) + len(activity) + 1)  # HTA reads index 0 as "no launch"
    minus_one = np.full(len(host), ABSENT, np.int64)
    # GB/s, which is bytes per ns; 0 if unknown, as in HTA
    duration = activity["end_ns"] - activity["start_ns"]
    moved = np.where((activity["bytes"] >= 0) & (duration > 0), activity["bytes"], 0)
    columns = {
        "index": index,
        "cat": _codes(_categories(host, activity), symbols),
        "name": np.concatenate(
            [_codes(host.coded("name"), symbols), _codes(activity.coded("name"), symbols)]
        ),
        "pid": np.concatenate([pid, np.maximum(activity["device"], 0).astype(object)]),
        "tid": np.concatenate([tid, stream.astype(object)]),
        "stream": np.concatenate([minus_one, np.where(on_device, stream, ABSENT)]),
        "correlation": np.concatenate([host["correlation"], activity["correlation"]]),
        "bytes": np.concatenate([minus_one, activity["bytes"]]),
        "memory_bw_gbps": np.concatenate([np.zeros(len(host)), moved / np.maximum(duration, 1)]),
        "wait_on_stream": ABSENT,
        "wait_on_cuda_event_record_corr_id": ABSENT,
    }
    return pd.DataFrame(columns, index=index)


def _categories(host: Table, activity: Table) -> Coded:
    """Kineto's categories of all rows, in the spelling of current versions."""
    category = host.coded("category")
    values = tuple(_KINETO_CATEGORY.get(value, value) for value in category.values)
    name = activity.coded("name")
    is_set = name.where(["memset" in value.lower() for value in name.values])
    copies = np.where(is_set, 1, 2)
    choices = np.select(
        [activity["kind"] == ActivityKind.COPY, activity["kind"] == ActivityKind.ANNOTATION],
        [copies, np.full(len(activity), 3)],
        default=0,
    )
    device_values = ("kernel", "gpu_memset", "gpu_memcpy", "gpu_user_annotation")
    codes = np.concatenate([category.codes, choices.astype(np.int32) + len(values)])
    return Coded(codes.astype(np.int32), values + device_values)


def _used(column: Coded) -> list[str]:
    """The values that occur in the column: HTA counts the step names of its symbol table."""
    return [column.values[code] for code in np.unique(column.codes).tolist()]


def _codes(column: Coded, symbols: Any) -> Int64Array:
    """The column in codes of HTA's symbol table; adds missing symbols to it."""
    symbols.add_symbols(_used(column))
    ids = symbols.get_sym_id_map()
    table = np.array([ids.get(value, ABSENT) for value in column.values] or [ABSENT], np.int64)
    return table[column.codes]


def _threads(thread: Coded) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
    """Process and thread ids, as integers if they are numeric."""
    pairs = [value.partition("/")[::2] for value in thread.values] or [("", "")]
    pid, tid = (
        np.array([int(word) if word.isdecimal() else word for word in words], dtype=object)
        for words in zip(*pairs, strict=True)
    )
    return pid[thread.codes], tid[thread.codes]


def _iterations(frame: pd.DataFrame, names: Sequence[str]) -> Int64Array:
    """The profiler step of each row: by time on the CPU, by launch on the GPU, -1 if unknown."""
    numbers = {code: int(m[1]) for code, name in enumerate(names) if (m := _STEP.match(name))}
    ts, index_of_launch = frame["ts"].to_numpy(), frame["index_correlation"].to_numpy()
    order = np.argsort(ts, kind="stable")
    in_order = ts[order]
    steps = frame.loc[frame["name"].isin(list(numbers)), ["ts", "dur", "name"]]
    result = np.full(len(frame), ABSENT, np.int64)
    for begin, length, code in steps.itertuples(index=False):  # the last step that matches wins
        low, high = np.searchsorted(in_order, (begin, begin + length))
        result[order[low:high]] = numbers[code]
    on_device = frame["stream"].to_numpy() >= 0
    launch = np.maximum(index_of_launch - 1, 0)  # indices count from 1
    of_launch = np.where(index_of_launch > 0, result[launch], ABSENT)
    return np.where(on_device, of_launch, result)


def _refused(ranks: Sequence[Rank], tables: Sequence[RankTables]) -> dict[str, str]:
    """Methods that would fail or mislead inside HTA, with the reason."""
    why = dict(REFUSED)
    pairs = zip(ranks, tables, strict=True)
    if not any(rank.device.name != "cpu" and len(each.activity) for rank, each in pairs):
        why.update(dict.fromkeys(_NEED_DEVICE, "the recording has no device activity"))
    elif any(each.host.coded("category").equals("sync").any() for each in tables):
        why["critical_path_analysis"] = (
            "the recording has synchronisation events, and distprof does not keep their arguments"
        )
    return why


def _refuse(method: str, reason: str, *_: object, **__: object) -> NoReturn:
    raise UsageError(
        f"HTA's {method} cannot run on the result of run.to_hta(): {reason}. Open the files with "
        "hta.trace_analysis.TraceAnalysis instead"
    )
