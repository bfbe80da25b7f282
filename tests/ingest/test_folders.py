"""A folder of files that are read one by one works as the file does, and two jobs are not mixed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from distprof.api import open_run as open_run_with
from distprof.cli.app import main
from distprof.errors import InputError
from distprof.ingest.open import open_run
from distprof.run.evidence import CollectiveSummary, OperationLog
from distprof.run.logs import TrainingLog

GOLDEN = Path(__file__).parents[1] / "golden"
LINE = " iteration {step}/ 10 | elapsed time per iteration (ms): {ms} | lm loss: {loss} |\n"


def write_log(path: Path, losses: list[float], ms: float = 100.0) -> None:
    """A log as Megatron-LM prints it, an iteration a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [LINE.format(step=i, ms=ms, loss=loss) for i, loss in enumerate(losses, start=1)]
    path.write_text("starting\n" + "".join(lines))


def copy_table(folder: Path) -> None:
    """A folder with an operation table."""
    folder.mkdir()
    shutil.copy(GOLDEN / "straggler" / "bytedance-ST" / "trace-ST.parquet", folder)


def test_a_folder_with_one_training_log_is_read_as_the_log(tmp_path: Path) -> None:
    write_log(tmp_path / "out/train.log", [3.0, 2.5, 2.25])
    (tmp_path / "README.txt").write_text("how it was started")
    log = open_run(str(tmp_path)).get(TrainingLog)
    assert log is not None
    assert log.files == (str(tmp_path / "out/train.log"),)
    assert log.num_reports == 3


def test_logs_of_ranks_that_report_the_same_are_one_job(tmp_path: Path) -> None:
    for rank in range(3):
        write_log(tmp_path / f"{rank}/stdout.log", [3.0, 2.5, 2.25][: 3 - rank])
    run = open_run(str(tmp_path))
    log = run.get(TrainingLog)
    assert log is not None
    assert log.files == (str(tmp_path / "0/stdout.log"),)
    assert [gap.message for gap in run.gaps] == [
        f"2 more logs report the same iterations: distprof reads {log.files[0]}."
    ]


@pytest.mark.parametrize("names", [("before.log", "after.log"), ("rank0.log", "rank1.log")])
def test_logs_with_different_losses_are_of_two_jobs(names: tuple[str, str], tmp_path: Path) -> None:
    write_log(tmp_path / names[0], [3.0, 2.5, 2.25])
    write_log(tmp_path / names[1], [3.0, 2.6, 2.41])
    with pytest.raises(InputError) as caught:
        open_run(str(tmp_path))
    assert all(name in caught.value.found for name in names)
    assert str(tmp_path) in caught.value.fix


def test_one_file_of_each_kind_goes_together(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "summaries" / "llama70b-fsdp-mi300x-8gpu.csv", tmp_path)
    write_log(tmp_path / "train.log", [3.0, 2.5])
    run = open_run(str(tmp_path))
    assert run.get(CollectiveSummary) is not None
    assert run.get(TrainingLog) is not None


def test_a_folder_with_a_folder_of_one_job_is_read_as_it(tmp_path: Path) -> None:
    copy_table(tmp_path / "job")
    assert open_run(str(tmp_path)).get(OperationLog) is not None


def test_folders_of_two_jobs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_table(tmp_path / "one")
    copy_table(tmp_path / "two")
    assert main(["analyze", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert "2 sources of one kind (operation table): one, two" in said


def test_nccl_logs_of_two_jobs_are_not_summed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = GOLDEN / "nccl" / "2.11.4-a100-pcie-1node-8gpu.txt"
    second = GOLDEN / "nccl" / "2.18.5-h200-2node-16gpu-forced-ring.txt.gz"
    shutil.copy(first, tmp_path)
    assert main(["analyze", str(tmp_path)]) == 0
    assert "share no communicator" not in capsys.readouterr().out
    shutil.copy(second, tmp_path)
    assert main(["analyze", str(tmp_path)]) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "2 jobs that share no communicator, with NCCL 2.11.4" in said
    assert f"distprof analyze {tmp_path / first.name}" in said


def test_nccl_logs_that_may_be_of_one_job_are_counted_in_the_line_of_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logs without the communicators that join them: the same version may be one job."""
    log = (GOLDEN / "nccl" / "2.11.4-a100-pcie-1node-8gpu.txt").read_text()
    (tmp_path / "a.log").write_text(log)
    (tmp_path / "b.log").write_text(log.replace("node071", "node072"))
    assert main(["analyze", str(tmp_path)]) == 0
    assert "2 jobs that share no communicator" in capsys.readouterr().out


def test_traces_of_two_jobs_are_named_in_the_line_of_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers are of one job: who mixed two folders has to see it before them."""
    shutil.copytree(GOLDEN / "kineto" / "dlrm-v100-8gpu", tmp_path / "one")
    assert main(["analyze", str(tmp_path)]) == 0
    assert "left out" not in capsys.readouterr().out
    shutil.copytree(GOLDEN / "kineto" / "tp8-b200-rank0", tmp_path / "two")
    assert main(["analyze", str(tmp_path)]) == 0
    assert "4 of 8 ranks · 1 step · 1 file of other runs left out" in capsys.readouterr().out


def test_a_folder_goes_with_a_recording_as_its_files_do(tmp_path: Path) -> None:
    write_log(tmp_path / "logs/train.log", [3.0, 2.5])
    traces = GOLDEN / "kineto" / "dlrm-v100-8gpu"
    run = open_run_with(traces, evidence=[tmp_path / "logs"])
    log = run.get(TrainingLog)
    assert log is not None
    assert log.files == (str(tmp_path / "logs/train.log"),)
    write_log(tmp_path / "logs/other.log", [3.0, 2.6])
    with pytest.raises(InputError, match=r"other\.log, train\.log"):
        open_run_with(traces, evidence=[tmp_path / "logs"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="another kind of file"):
        open_run_with(traces, evidence=[tmp_path / "empty"])


def test_a_file_that_was_cut_is_in_the_line_of_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers are of the part that is left, whatever they say."""
    log = GOLDEN / "nccl" / "2.18.5-h200-2node-16gpu-forced-ring.txt.gz"
    trace = GOLDEN / "kineto" / "tp8-b200-rank0" / "eager_trace.json.gz"
    for whole, told in (
        (log, "NCCL logs from 1 file · no timings · partly damaged"),
        (trace, "1 trace truncated"),
    ):
        assert main(["analyze", str(whole)]) == 0
        assert told not in " ".join(capsys.readouterr().out.split())
        part = tmp_path / whole.name
        part.write_bytes(whole.read_bytes()[: whole.stat().st_size * 9 // 10])
        assert main(["analyze", str(part)]) == 0
        assert told in " ".join(capsys.readouterr().out.split())
