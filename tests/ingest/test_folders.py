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
    assert log.files == tuple(str(tmp_path / f"{rank}/stdout.log") for rank in range(3))
    assert log.whose == "rank 0"
    assert run.source == str(tmp_path)


def said(source: Path | str, capsys: pytest.CaptureFixture[str]) -> str:
    """What analyze says of a source, in one line."""
    assert main(["analyze", str(source)]) == 0
    return " ".join(capsys.readouterr().out.split())


def write_image_log(path: Path, data_s: float, num_reports: int = 12) -> None:
    """A log as PyTorch's ImageNet example prints it, with iterations of 1.3 s."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = "Epoch: [0][{}/500]\tTime {:6.3f} ({:6.3f})\tData {:6.3f} ({:6.3f})\tLoss {:.4e} (6.9)\n"
    times = [1.3 + 0.04 * (i % 2) for i in range(num_reports)]
    loss = 7 + data_s + len(path.as_posix()) / 1000  # each rank prints its own
    lines = (
        line.format(10 * i, time, sum(times[: i + 1]) / (i + 1), data_s, data_s, loss - i / 100)
        for i, time in enumerate(times)
    )
    path.write_text("".join(lines))


@pytest.mark.parametrize(
    "name", ["rank{}.log", "train-4711007.{}.out", "none_x1/attempt_1/{}/stdout.log"]
)
def test_the_rank_that_waits_for_its_input_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(4):
        write_image_log(tmp_path / name.format(rank), data_s=0.9 if rank == 3 else 0.006)
        write_image_log(tmp_path / f"none_x1/attempt_0/{rank}/stdout.log", data_s=0.7)
    if "attempt" not in name:
        shutil.rmtree(tmp_path / "none_x1")
    text = said(tmp_path, capsys)
    assert text.startswith("Rank 3 waits 68.")
    assert "of each iteration for input, and the others wait for it" in text
    assert "Rank 3 takes 900 ms for data, the 3 others at most 6.00 ms" in text
    assert "4 files · 12 reports" in text


def test_several_late_ranks_are_named_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(8):
        write_image_log(tmp_path / f"rank_{rank}.log", data_s=0.9 if rank > 5 else 0.01)
    assert said(tmp_path, capsys).startswith("Ranks 6-7 wait 68.")


def test_local_ranks_of_hosts_are_named_by_their_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for host in "ab":
        for rank in range(2):
            is_late = (host, rank) == ("b", 1)
            write_image_log(tmp_path / host / f"{rank}/out.log", data_s=0.9 if is_late else 0.01)
    assert said(tmp_path, capsys).startswith("File b/1/out.log waits 68.")


def test_the_rank_whose_log_ends_first_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(5):
        write_image_log(tmp_path / f"rank{rank}.log", 0.01, num_reports=9 if rank == 2 else 12)
    (tmp_path / "rank3.log").write_text("")
    text = said(tmp_path, capsys)
    assert text.startswith("In the logs, rank 2 ends 30 iterations before 3 others An iteration")
    assert "dump the stacks of rank 2 first" in text
    assert "does not say what rank 3 does" in text
    write_image_log(tmp_path / "rank1.log", 0.01, num_reports=8)
    text = said(tmp_path, capsys)
    assert text.startswith("In the logs, ranks 1-2 end 30 to 40 iterations before 2 others")


def test_ranks_whose_logs_were_copied_between_reports_are_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(4):
        write_image_log(tmp_path / f"rank{rank}.log", 0.01, num_reports=11 + rank % 2)
    assert said(tmp_path, capsys).startswith("An iteration takes 1.32 s")


def test_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path / "before.log", [3.0, 2.5, 2.25, 2.0], ms=130)
    write_log(tmp_path / "after.log", [3.0, 2.6, 2.41, 2.0], ms=100)
    head = "“before.log” takes 130 ms per iteration, 1.30 times as long as “after.log”"
    assert said(tmp_path, capsys).startswith(head)
    assert said(f"{tmp_path}/*.log", capsys).startswith(head)
    write_log(tmp_path / "later.log", [3.0, 2.7, 2.42, 2.0], ms=110)
    each = "before.log 130 ms, later.log 110 ms, after.log 100 ms"
    assert f"The runs take 100 ms to 130 ms per iteration: {each}" in said(tmp_path, capsys)


def test_runs_that_are_alike_or_of_other_programs_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "a.log", [3.0, 2.5, 2.25, 2.0], ms=101)
    write_log(tmp_path / "b.log", [3.0, 2.6, 2.41, 2.0], ms=100)
    assert said(tmp_path, capsys).startswith("The runs take 100 ms to 101 ms per iteration: a.log")
    write_image_log(tmp_path / "b.log", 0.01)
    assert said(tmp_path, capsys).startswith("The runs take 101 ms to 1.32 s per iteration: b.log")


def test_runs_on_numbers_of_gpus_are_a_scaling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "Train: 0 [{:4d}/1000 (  0%)]  Loss: 6.95 (6.9)  Time: {t}s, {r}/s  ({t}s, {r}/s)"
    for num, times in ((1, ("0.300", "426.67")), (8, ("0.600", "1706.67"))):
        lines = (line.format(50 * i, t=times[0], r=times[1]) for i in range(8))
        text = "".join(f"{each}  LR: 1.0e-05  Data: 0.006 (0.012)\n" for each in lines)
        (tmp_path / f"{num}gpu.log").write_text(text)
    text = said(tmp_path, capsys)
    assert text.startswith("Scaling is 50.0 % efficient from 1 to 8 GPUs")
    assert "“1gpu.log” takes 2.34 ms per sample, 4.00 times as long as “8gpu.log”" in text


def test_a_thousand_ranks_are_all_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(1_000):
        write_log(tmp_path / f"rank{rank:04d}.log", [3.0, 2.5, 2.25], ms=100)
    assert "1,000 files · 3 reports" in said(tmp_path, capsys)


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
