import gzip
import io
import json
from pathlib import Path

import pytest

from distprof.errors import InputError
from distprof.ingest.kineto.decode import _BLOCKS
from distprof.ingest.kineto.reader import read_trace
from distprof.schema import ABSENT
from distprof.terms import ActivityKind
from tests.ingest.kineto.traces import (
    BASE_NS,
    COPY,
    EVENTS,
    KERNEL,
    LAUNCH,
    LAYOUTS,
    OPERATOR,
    PARAMS,
    REDUCE,
    STEP,
    read_text,
    rows_of,
    same_tables,
)

KINETO = LAYOUTS["kineto"]


class Sink:
    def __init__(self):
        self.tables = []
        self.base_ns = None

    def write(self, rows):
        self.tables.append(rows)

    def shift(self, base_ns):
        self.base_ns = base_ns


def test_device_rows_have_exact_times_and_what_their_arguments_say():
    activity = read_text(KINETO(EVENTS)).activity

    assert rows_of(activity) == [
        (BASE_NS + 130_999, BASE_NS + 171_000, "gemm<float, 1>", 0, 7, 0, 77, ABSENT, 6),
        (
            BASE_NS + 180_000,
            BASE_NS + 182_002,
            "Memcpy HtoD",
            ActivityKind.COPY,
            22,
            0,
            78,
            4096,
            ABSENT,
        ),
        (
            BASE_NS + 190_500,
            BASE_NS + 200_000,
            "ncclDevKernel_AllReduce",
            0,
            24,
            0,
            79,
            ABSENT,
            ABSENT,
        ),
    ]


@pytest.mark.parametrize("rows", ["all", "device"])
@pytest.mark.parametrize(
    ("grid", "blocks"),
    [
        ([128, 1, 1], 128),
        ([2, 3, 5], 30),
        ([7], 7),
        ([0, 1, 1], ABSENT),
        ([-4, 2, 1], ABSENT),
        ([2**31 - 1, 65535, 65535], ABSENT),  # more than the column holds
        ([10**30, 1, 1], ABSENT),
        ([1, 2, 3, 4], ABSENT),
        ([], ABSENT),
        (None, ABSENT),
        ("[1, 2, 3]", ABSENT),
        ([1, "many", None], ABSENT),
        ({"x": 1}, ABSENT),
    ],
)
def test_the_blocks_of_a_grid_are_counted_where_it_can_be_one(rows, grid, blocks):
    kernel = {**KERNEL, "args": {**KERNEL["args"], "grid": grid}}
    activity = read_text(KINETO([LAUNCH, kernel, COPY]), rows=rows).activity

    assert activity["blocks"].tolist() == [blocks, ABSENT]
    assert activity["stream"].tolist() == [7, 22]


def test_grids_without_end_do_not_fill_the_memory():
    kernels = [{**KERNEL, "args": {"grid": [place + 1, 1, 1]}} for place in range(70_000)]
    activity = read_text(KINETO(kernels)).activity

    assert activity["blocks"].tolist() == list(range(1, 70_001))
    assert len(_BLOCKS) <= 1 << 16


def test_of_python_frames_only_calls_of_modules_are_rows_and_none_is_kept_beside_a_sink():
    frame = {**OPERATOR, "cat": "python_function", "name": "nn.Module: MLP_3", "ts": 50.0}
    function = {**frame, "name": "model.py(3): forward"}
    given = KINETO([*EVENTS, frame, function])

    (row,) = [row for row in rows_of(read_text(given).host) if row[3] == "python_function"]
    assert row[2] == "nn.Module: MLP_3"
    assert read_text(given).first_ns == read_text(KINETO(EVENTS)).first_ns
    assert "python_function" not in read_text(given, host_sink=Rows()).host.coded("category").values


class Rows:
    """A sink that forgets the rows."""

    def write(self, table):
        pass

    def shift(self, base_ns):
        pass


def test_host_rows_are_all_but_flows_python_frames_and_metadata():
    host = read_text(KINETO(EVENTS)).host

    assert [(row[2], row[3], row[4], row[5]) for row in rows_of(host)] == [
        ("ProfilerStep#4", "annotation", "10/11", ABSENT),
        ("aten::mm", "cpu_op", "10/11", ABSENT),
        ("cudaLaunchKernel", "runtime", "10/11", 77),
        ("record_param_comms", "cpu_op", "10/11", ABSENT),
    ]


def test_collective_arguments_are_read_whatever_their_types():
    table = read_text(KINETO([REDUCE, PARAMS])).comm_args
    host, device = (dict(zip(table.schema.names, row, strict=True)) for row in rows_of(table))

    assert device["collective"] == host["collective"] == "allreduce"
    assert device["in_nelems"] == host["in_nelems"] == 1024
    assert (device["group"], device["group_size"], device["group_ranks"]) == ("0", 2, "[0, 1]")
    assert host["group_ranks"] == "[0,1]"
    assert host["comms_id"] == "98765432109876543210"
    assert (host["seq"], device["seq"]) == (3, ABSENT)
    assert (host["input_dims"], device["input_dims"]) == ("[[1024]]", "")
    assert (host["stream"], device["stream"]) == (ABSENT, 24)
    assert (host["external_id"], device["external_id"]) == (5, 5)
    assert device["category"] == "kernel"


def test_metadata_thread_names_span_and_counts():
    parsed = read_text(KINETO(EVENTS))

    assert parsed.metadata["distributedInfo"] == {"backend": "nccl", "rank": 0, "world_size": 2}
    assert "traceEvents" not in parsed.metadata
    assert parsed.thread_names == {"10/11": "thread 11 (python)"}
    assert (parsed.first_ns, parsed.last_ns) == (BASE_NS + 99_000, BASE_NS + 249_000)
    assert parsed.has_epoch
    assert parsed.quality.num_events == len(EVENTS)
    assert parsed.quality.num_unlaunched == 2  # all but the one with correlation 77
    assert not parsed.quality.truncated


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", ["all", "device"])
def test_every_layout_gives_the_same_tables(layout, rows):
    expected = read_text(KINETO(EVENTS), rows=rows)
    parsed = read_text(LAYOUTS[layout](EVENTS), rows=rows)

    assert same_tables(parsed, expected)
    assert parsed.metadata["baseTimeNanoseconds"] == BASE_NS
    assert parsed.quality.notes == ()


@pytest.mark.parametrize("rows", ["all", "device"])
@pytest.mark.parametrize("window", [64, 200, 1000])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_windows_of_any_size_give_the_same_tables(layout, window, rows, monkeypatch):
    expected = read_text(KINETO(EVENTS * 5), rows=rows)
    monkeypatch.setattr("distprof.ingest.kineto.framing.WINDOW_BYTES", window)
    monkeypatch.setattr("distprof.ingest.kineto.framing.SEARCHED_WINDOW_BYTES", window)
    monkeypatch.setattr("distprof.ingest.kineto.framing._BLOCK", 50)

    text = LAYOUTS[layout](EVENTS * 5)
    assert same_tables(read_text(text, rows=rows), expected)
    monkeypatch.setattr("distprof.ingest.kineto.source._LONG", -1)  # a thread unpacks ahead
    assert same_tables(read_text(gzip.compress(text.encode()), rows=rows), expected)


def test_a_bare_list_of_events_is_a_trace_without_metadata():
    parsed = read_text(json.dumps([KERNEL, STEP], indent=2))

    assert len(parsed.activity) == 1
    assert parsed.metadata == {}
    assert not parsed.has_epoch


def test_words_of_old_writers_become_ours():
    events = [
        {**KERNEL, "cat": "Kernel", "tid": "stream 7"},
        {**COPY, "cat": "Memcpy"},
        {**OPERATOR, "cat": "Operator"},
        {**LAUNCH, "cat": "Runtime"},
        {**LAUNCH, "cat": "cuda_driver"},
        {**LAUNCH, "cat": "cuda_sync", "name": "Stream Sync"},
    ]
    parsed = read_text(KINETO(events))

    assert parsed.activity["kind"].tolist() == [ActivityKind.COMPUTATION, ActivityKind.COPY]
    assert parsed.host.coded("category").decode() == ["cpu_op", "runtime", "driver", "sync"]


def test_an_operator_that_names_a_stream_is_not_device_work():
    triton = {**OPERATOR, "name": "triton_poi_fused_add_0", "args": {"stream": 0, "device": 0}}
    parsed = read_text(KINETO([triton, KERNEL]))

    assert parsed.activity.coded("name").decode() == ["gemm<float, 1>"]


def test_stream_and_device_come_from_the_row_where_arguments_are_silent():
    mark = {**KERNEL, "cat": "gpu_user_annotation", "pid": 3, "tid": 9, "args": {}}
    activity = read_text(KINETO([mark])).activity

    assert (activity["stream"][0], activity["device"][0]) == (9, 3)
    assert activity["kind"][0] == ActivityKind.ANNOTATION


@pytest.mark.parametrize("stream", [4294967295, "0x0", "0x55674ecd4180"])
def test_streams_that_are_no_stream_are_absent(stream):
    runtime = {**LAUNCH, "args": {"stream": stream, "correlation": 5}}
    kernel = {**KERNEL, "tid": "x", "args": {**KERNEL["args"], "stream": stream}}
    parsed = read_text(KINETO([runtime, kernel]))

    assert parsed.activity["stream"].tolist() == [ABSENT]
    assert parsed.host["correlation"].tolist() == [5]


def test_integers_beyond_int64_are_absent_and_text_is_read():
    kernel = {**KERNEL, "args": {**KERNEL["args"], "correlation": 2**64, "bytes": "2560"}}
    activity = read_text(KINETO([kernel, COPY])).activity

    assert activity["correlation"].tolist() == [ABSENT, 78]
    assert activity["bytes"].tolist() == [2560, 4096]


def test_a_sink_gets_all_host_rows_and_the_result_keeps_what_analyses_need():
    sink = Sink()
    events = [*EVENTS, {**OPERATOR, "name": "c10d::allreduce_"}, {**OPERATOR, "name": "aten::add"}]
    parsed = read_text(KINETO(events), host_sink=sink)
    names = [name for table in sink.tables for name in table.coded("name").decode()]

    assert {"aten::mm", "aten::add", "c10d::allreduce_", "cudaLaunchKernel"} <= set(names)
    assert {row[2] for row in rows_of(parsed.host)} == {
        "ProfilerStep#4", "cudaLaunchKernel", "record_param_comms", "c10d::allreduce_",
    }  # fmt: skip
    assert sink.base_ns == BASE_NS


def test_absolute_times_beyond_a_double_stay_exact():
    events = [{**KERNEL, "ts": 0, "dur": 0.007}, {**COPY, "ts": 1, "dur": 1}]
    text = KINETO(events).replace('"ts": 0', '"ts": 1711964646123456.789')
    text = text.replace('"ts": 1,', '"ts": 1711964646123457.08,')
    text = text.replace(str(BASE_NS), "0")
    activity = read_text(text).activity

    assert activity["start_ns"].tolist() == [1711964646123456789, 1711964646123457080]
    assert activity["end_ns"].tolist() == [1711964646123456796, 1711964646123458080]


def test_absolute_whole_microseconds_and_times_as_text_are_read():
    whole = read_text(json.dumps([{**KERNEL, "ts": 1694128201435418, "dur": 52}]))
    text = read_text(json.dumps([{**KERNEL, "ts": "1711964646123456.789", "dur": "0.5"}]))

    assert whole.activity["start_ns"].tolist() == [1694128201435418000]
    assert whole.has_epoch
    assert text.activity["start_ns"].tolist() == [1711964646123456789]
    assert text.activity["end_ns"].tolist() == [1711964646123457289]


@pytest.mark.parametrize("duration", [-5, -0.001, 8 * 24 * 3600 * 1_000_000, 1e300])
def test_absurd_durations_become_none_and_are_counted(duration):
    parsed = read_text(KINETO([KERNEL, {**COPY, "dur": duration}]))

    assert (parsed.activity["end_ns"] - parsed.activity["start_ns"]).tolist() == [40_001, 0]
    assert parsed.quality.num_clamped == 1
    assert "missing, negative or absurd: 1 event." in parsed.quality.notes[0]


def test_absurd_times_are_left_out():
    parsed = read_text(KINETO([KERNEL, {**COPY, "ts": 1e19}]))

    assert len(parsed.activity) == 1
    assert parsed.quality.num_quarantined == 1


def test_several_gzip_members_and_plain_text_read_alike(tmp_path: Path):
    data = KINETO(EVENTS).encode()
    path = tmp_path / "no-suffix"
    path.write_bytes(gzip.compress(data[:300]) + gzip.compress(data[300:]) + b"\0" * 512)

    assert same_tables(read_trace(path), read_text(data))
    assert not read_trace(path).quality.truncated


def test_the_standard_library_decompresses_where_isal_is_absent(tmp_path: Path, monkeypatch):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(KINETO(EVENTS).encode()))
    fast = read_trace(path)
    monkeypatch.setattr("distprof.ingest.kineto.source._GzipFile", gzip.GzipFile)

    assert same_tables(read_trace(path), fast)


def test_an_open_file_is_read_and_left_open(tmp_path: Path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(KINETO(EVENTS).encode()))
    with path.open("rb") as file:
        parsed = read_trace(file)
        assert not file.closed

    assert len(parsed.activity) == 3


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "the file is empty"),
        (b"   \n ", "without traceEvents"),
        (b"\x7fELF\x02\x01", "a program"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"hello world", "it begins with"),
        (b'{"a": 1}', "JSON without traceEvents ('a')"),
        (b'{"a": 1, "traceEv', "without traceEvents"),
        (b'{"traceEvents": {"ph": "X"}}', "traceEvents is not a list"),
        (b'{"traceEvents": null}', "traceEvents is not a list"),
        (b"[1, 2, 3]", "not a single event"),
        (b'{"traceEvents": [{"a": 1}]}', "not a single event"),
        (b'{"traceEvents": []}', "not a single event"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (gzip.compress(b'{"traceEvents": [', mtime=0)[:9], "the compressed data ends early"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_way_out(data, found):
    with pytest.raises(InputError) as caught:
        read_text(data, source="bad.json")

    assert caught.value.source == "bad.json"
    assert found in caught.value.found
    assert caught.value.fix


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="a directory"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match="no file with this name"):
        read_trace(tmp_path / "none.json")


def test_reading_leaves_the_collector_as_it_was():
    import gc

    assert gc.isenabled()
    read_trace(io.BytesIO(KINETO(EVENTS).encode()))
    assert gc.isenabled()
