"""Files of rocprofv3: the same times as from torch.profiler, processes, and what is refused."""

import contextlib
import io
import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import distprof
from distprof.cli import main
from distprof.errors import InputError
from distprof.ingest.discovery import discover
from distprof.ingest.rocprof import json_file, perfetto
from distprof.ingest.rocprof.wire import fields
from tests.optional import optional
from tests.rocprof_traces import Perfetto, perfetto_of, tool_of, write

KINETO = Path(__file__).parents[1] / "golden" / "kineto"
MI250 = KINETO / "mi250-1gpu" / "mi250_minitoy_train_ROCm6_2_kineto.json.gz"
DDP = KINETO / "ddp-a100-2gpu-rank0" / "nccl_data.json.gz"


def analyzed(path, tmp_path):
    return distprof.analyze(distprof.open_run(str(path), cache_dir=tmp_path / "cache"))


@pytest.mark.parametrize("trace", [MI250, DDP], ids=["mi250", "a100"])
def test_the_times_are_those_of_torch_profiler(trace, tmp_path):
    own = analyzed(write(tmp_path / "77_results.json", tool_of(trace)), tmp_path)
    known = analyzed(trace, tmp_path)
    assert [row.computation_ns for row in own.breakdown.ranks] == [
        row.computation_ns for row in known.breakdown.ranks
    ]
    assert own.overlap.ranks == known.overlap.ranks
    assert own.findings[0].code == known.findings[0].code


def test_what_the_file_says_of_itself_and_its_steps(tmp_path):
    path = write(tmp_path / "rank3_results.json", tool_of(MI250, host="gpu-7"))
    (rank,) = distprof.open_run(str(path), cache_dir=tmp_path / "cache").ranks
    assert (rank.rank, rank.host, rank.has_epoch) == (3, "gpu-7", False)
    assert (rank.device.name, rank.device.count) == ("AMD Instinct MI250X", 8)
    assert rank.steps["step"].tolist() == [1, 2]


def test_processes_of_a_file_and_files_of_a_folder_are_ranks(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    write(folder / "a_results.json", tool_of(MI250), tool_of(DDP, pid=78))
    write(folder / "b_results.json", {"metadata": {"pid": 1}})
    found = discover(str(folder))
    assert [trace.process for trace in found.traces] == [0, 1]
    assert "without kernels" in found.gaps[0].message


@pytest.mark.parametrize(
    "change",
    [
        lambda tool: tool["buffer_records"]["kernel_dispatch"][0].update(start_timestamp="now"),
        lambda tool: tool.update(buffer_records=[1, 2]),
        lambda tool: tool["buffer_records"].update(kernel_dispatch=[]),
    ],
    ids=["text as time", "another structure", "no kernel"],
)
def test_what_cannot_be_read_is_refused_with_a_sentence(change, tmp_path):
    tool = tool_of(MI250)
    change(tool)
    with pytest.raises(InputError, match="--output-format json"):
        discover(str(write(tmp_path / "r.json", tool)))


def test_times_and_numbers_that_make_no_sense_cost_their_rows(tmp_path):
    tool = tool_of(MI250)
    records = tool["buffer_records"]
    records["kernel_dispatch"][0]["end_timestamp"] = -5
    records["kernel_dispatch"][1]["dispatch_info"]["kernel_id"] = 999
    records["hip_api"][0]["operation"] = -3
    records["memory_copy"][0]["kind"] = 99
    report = analyzed(write(tmp_path / "r.json", tool), tmp_path)
    assert len(report.breakdown.ranks) == 1


def test_a_cut_file_is_refused(tmp_path, capsys):
    path = write(tmp_path / "r.json", tool_of(MI250))
    path.write_text(path.read_text()[:-40])
    assert main(["analyze", str(path)]) == 3
    assert "rocprofv3" in capsys.readouterr().err


def test_a_packed_file_is_read(tmp_path):
    import gzip

    path = write(tmp_path / "r.json", tool_of(MI250))
    packed = tmp_path / "r.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert analyzed(packed, tmp_path).breakdown == analyzed(path, tmp_path).breakdown


def test_a_file_above_the_bound_is_refused(tmp_path, monkeypatch):
    from msgspec.structs import replace

    path = write(tmp_path / "r.json", tool_of(MI250))
    monkeypatch.setattr(json_file, "BOUND", replace(json_file.BOUND, num_bytes=1_000))
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        discover(str(path))
    monkeypatch.setattr(json_file, "BOUND", replace(json_file.BOUND, rows=10, num_bytes=1 << 20))
    with pytest.raises(InputError, match="more than 10 values"):
        discover(str(path))


def test_names_with_control_characters_reach_no_terminal(tmp_path, capsys):
    tool = json.loads(json.dumps(tool_of(MI250, host="\x1b[2J")).replace("gfx90a", "\\u001b[31m"))
    for symbol in tool["kernel_symbols"]:
        symbol["formatted_kernel_name"] = "\x1b]0;owned\x07"
    path = write(tmp_path / "r.json", tool)
    assert main(["analyze", str(path), "--full", "--cache-dir", str(tmp_path / "cache")]) in (0, 1)
    assert "\x1b" not in capsys.readouterr().out


# Perfetto -----------------------------------------------------------------------------------------


@pytest.fixture
def definitions():
    optional("perfetto", reason="the package perfetto is not installed")
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    return perfetto_trace_pb2


def saved(path, written):
    path.write_bytes(written.trace.SerializeToString())
    return path


@pytest.mark.parametrize("by_queue", [False, True], ids=["by stream", "by queue"])
@pytest.mark.parametrize("trace", [MI250, DDP], ids=["mi250", "a100"])
def test_a_perfetto_trace_says_what_the_json_says(trace, by_queue, definitions, tmp_path):
    tool = tool_of(trace)
    path = saved(tmp_path / "77.pftrace", perfetto_of(tool, definitions, by_queue=by_queue))
    own = analyzed(path, tmp_path)
    known = analyzed(write(tmp_path / "77_results.json", tool), tmp_path)
    assert own.breakdown == known.breakdown
    assert own.overlap.ranks == known.overlap.ranks
    assert own.kernels.kernels == known.kernels.kernels
    assert [found.code for found in own.findings] == [found.code for found in known.findings]


def test_perfetto_traces_of_a_folder_are_ranks_and_one_of_ours_is_none(definitions, tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in (0, 1):
        saved(folder / f"rank{rank}_results.pftrace", perfetto_of(tool_of(MI250), definitions))
    assert main(["export", "perfetto", str(DDP), "-o", str(folder / "job.pftrace")]) == 0
    found = discover(str(folder))
    assert [(trace.name_rank, trace.process) for trace in found.traces] == [(0, 0), (1, 0)]
    assert found.gaps == ()
    assert main(["analyze", str(folder / "job.pftrace")]) == 3


def test_names_may_be_interned_again_and_sequences_have_their_own(definitions, tmp_path):
    one = Perfetto(definitions)
    one.track(5, "COMPUTE AGENT [4] STREAM [0] (GPU)")
    one.slice("kernel_dispatch", "first", 5, 10_000, 20_000, corr_id=1)
    one.forget()
    one.slice("kernel_dispatch", "second", 5, 30_000, 40_000, corr_id=2)
    other = Perfetto(definitions, sequence=2)
    other.slice("kernel_dispatch", "third", 5, 50_000, 60_000, corr_id=3)
    one.trace.MergeFrom(other.trace)
    with perfetto.opened_slices(saved(tmp_path / "a.pftrace", one)) as (head, events):
        made = [json.loads(event) for event in events]
    assert head["deviceProperties"] == [{"id": 0}]
    assert [event["name"] for event in made] == ["first", "second", "third"]
    assert [event["ts"] for event in made] == [10, 30, 50]
    assert {event["args"]["device"] for event in made} == {0}


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.999])
def test_a_cut_perfetto_trace_is_refused(kept, definitions, tmp_path, capsys):
    path = saved(tmp_path / "r.pftrace", perfetto_of(tool_of(MI250), definitions))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    assert main(["analyze", str(path)]) == 3
    assert "rocprofv3" in capsys.readouterr().err


def test_a_perfetto_trace_above_a_bound_is_refused(definitions, tmp_path, monkeypatch):
    from msgspec.structs import replace

    path = saved(tmp_path / "r.pftrace", perfetto_of(tool_of(MI250), definitions))
    monkeypatch.setattr(perfetto, "BOUND", replace(perfetto.BOUND, num_bytes=1_000))
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        discover(str(path))
    monkeypatch.setattr(perfetto, "BOUND", replace(perfetto.BOUND, num_bytes=1 << 29, names=10))
    with pytest.raises(InputError, match="more than 10 names"):
        discover(str(path))


@cache
def _small_trace():
    optional("perfetto", reason="the package perfetto is not installed")
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    written = Perfetto(perfetto_trace_pb2)
    written.track(5, "COMPUTE AGENT [4] STREAM [0] (GPU)")
    for number in range(4):
        start = 1_000 * number
        written.slice("kernel_dispatch", f"k{number}", 5, start, start + 9, agent="Agent-4")
    return written.trace.SerializeToString()


@given(st.data())
def test_damaged_packets_are_read_or_refused(data):
    trace = _small_trace()
    place = data.draw(st.integers(0, len(trace) - 1))
    size = data.draw(st.integers(0, 9))
    new = data.draw(st.binary(max_size=9))
    damaged = trace[:place] + new + trace[place + size :]
    with contextlib.suppress(ValueError):
        for found in perfetto._Reader(io.BytesIO(damaged)).slices():
            assert len(found.name) <= 2_000


@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), st.integers(0, 2**64 - 1) | st.binary())))
def test_fields_are_read_as_they_were_written(known):
    def varint(number):
        return (
            b""
            if number < 0
            else bytes(
                (number >> shift & 127) | (128 if number >> shift + 7 else 0)
                for shift in range(0, max(number.bit_length(), 1), 7)
            )
        )

    data = b"".join(
        varint(which << 3) + varint(value)
        if isinstance(value, int)
        else varint(which << 3 | 2) + varint(len(value)) + value
        for which, value in known
    )
    assert list(fields(data)) == known
