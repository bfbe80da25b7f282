"""Files of rocprofv3: the same times as from torch.profiler, processes, and what is refused."""

import json
from pathlib import Path

import pytest

import distprof
from distprof.cli import main
from distprof.errors import InputError
from distprof.ingest import rocprof
from distprof.ingest.discovery import discover
from tests.rocprof_traces import tool_of, write

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
    monkeypatch.setattr(rocprof, "BOUND", replace(rocprof.BOUND, num_bytes=1_000))
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        discover(str(path))
    monkeypatch.setattr(rocprof, "BOUND", replace(rocprof.BOUND, rows=10, num_bytes=1 << 20))
    with pytest.raises(InputError, match="more than 10 values"):
        discover(str(path))


def test_names_with_control_characters_reach_no_terminal(tmp_path, capsys):
    tool = json.loads(json.dumps(tool_of(MI250, host="\x1b[2J")).replace("gfx90a", "\\u001b[31m"))
    for symbol in tool["kernel_symbols"]:
        symbol["formatted_kernel_name"] = "\x1b]0;owned\x07"
    path = write(tmp_path / "r.json", tool)
    assert main(["analyze", str(path), "--full", "--cache-dir", str(tmp_path / "cache")]) in (0, 1)
    assert "\x1b" not in capsys.readouterr().out


def test_a_perfetto_trace_is_refused_with_the_way_to_json(tmp_path):
    path = tmp_path / "rank0_results.pftrace"
    path.write_bytes(b"\n\x10")
    for source in (path, tmp_path):
        with pytest.raises(InputError, match=r"(?s)a Perfetto trace.*--output-format json"):
            discover(str(source))
