"""``hang``: exit codes, formats, what is shown, and nothing hostile on the terminal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from distprof.cli.app import main
from distprof.verbs.hang.show import HANG
from docs.schemas import schema_of
from tests.flight_jobs import GOLDEN, GPU_ERROR, LOCK_GIL, job, op, written


def stuck(folder: Path) -> Path:
    ranks = {rank: [op(1), op(2, state="scheduled")] for rank in range(4)} | {2: [op(1)]}
    return written(folder, job(ranks))


def test_a_stuck_job_is_exit_code_1_and_named_in_the_first_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hang", str(stuck(tmp_path))]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "Stuck: rank 2 never launched all_reduce 2 of default_pg, and ranks 0-1,3 wait"


@pytest.mark.parametrize(
    ("state", "fail_on", "code"),
    [
        ("scheduled", "stuck", 0), ("scheduled", "in_flight", 1), ("scheduled", "never", 0),
        ("completed", "stuck", 0), ("completed", "in_flight", 0),
    ],
)  # fmt: skip
def test_exit_codes(tmp_path: Path, state: str, fail_on: str, code: int) -> None:
    written(tmp_path, job({rank: [op(1, state=state)] for rank in range(2)}))
    assert main(["hang", str(tmp_path), "--fail-on", fail_on]) == code


def test_never_failing_is_a_choice(tmp_path: Path) -> None:
    assert main(["hang", str(stuck(tmp_path)), "--fail-on", "never"]) == 0


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("folder", [GPU_ERROR, LOCK_GIL], ids=lambda folder: folder.name)
def test_text_fits_the_terminal(
    folder: Path, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hang", str(folder), "--width", str(width), "--full"]) == 1
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= width
    for heading in (
        "Alternatives",
        "Next steps",
        "First divergent operation",
        "Process groups",
        "Ranks",
    ):
        assert f"\n{heading}" in text


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("folder", [GPU_ERROR, LOCK_GIL], ids=lambda folder: folder.name)
def test_the_first_screen_says_what_to_do(
    folder: Path, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables of 65 groups went past the verdict and the steps to take."""
    assert main(["hang", str(folder), "--width", str(width)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("Stuck: rank")
    assert "Next steps" in lines
    assert any("16 dumps (0-15)" in line for line in lines)
    assert any("--full" in line for line in lines)
    assert "Process groups" not in "".join(lines)


def test_a_hang_whose_page_is_short_is_shown_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, job({rank: [op(1)] for rank in range(2)}))
    assert main(["hang", str(tmp_path)]) == 0
    short = capsys.readouterr().out
    assert main(["hang", str(tmp_path), "--full"]) == 0
    assert capsys.readouterr().out == short


def test_however_much_there_is_to_say_it_is_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """64 ranks that wait for 8 others in 8 groups, and lines of trouble in every log."""
    ranks = {
        rank: [op(1), *([] if rank % 8 == 0 else [op(2, state="scheduled")])] for rank in range(64)
    }
    written(tmp_path, job(ranks))
    for rank in range(64):
        (tmp_path / f"rank{rank}.log").write_text("NCCL WARN Call to ibv_modify_qp failed\n" * 20)
    assert main(["hang", str(tmp_path), "--width", "80"]) == 1
    assert capsys.readouterr().out.count("\n") <= 30


def test_older_dumps_are_counted_in_the_line_of_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may be another job's: who mixed two has to see it."""
    for name in ("one", "two"):
        shutil.copytree(LOCK_GIL, tmp_path / name)
    assert main(["hang", str(tmp_path)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "16 older dumps of these ranks left out" in shown


def test_json_is_as_its_schema_says_and_can_be_read_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["hang", str(GPU_ERROR), "--format", "json"]) == 1
    text = capsys.readouterr().out
    content = json.loads(text)
    jsonschema.validate(content, schema_of(HANG))
    assert content["schema"] == "distprof.hang/1"
    assert content["operation"]["missing"] == [12]
    assert HANG.decode(text.encode(), "x").culprits == (12, 14)


def test_markdown_goes_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hang.md"
    assert main(["hang", str(LOCK_GIL), "-o", str(file), "-q"]) == 1
    assert file.read_text().startswith("### Stuck: ranks 9,14 never launched all\\_to\\_all 45265")


def test_a_format_it_does_not_have_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hang", str(LOCK_GIL), "--format", "pdf"]) == 2
    assert "text" in capsys.readouterr().err


@pytest.mark.parametrize("output_format", ["text", "md"])
def test_names_from_dumps_are_harmless(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output_format: str
) -> None:
    evil = "\x1b[31m[bold]<b>|\u202e" * 40
    entries = {"process_group": [evil, evil], "profiling_name": evil, "input_dtypes": [evil]}
    ranks = {0: [op(1), op(2, state="scheduled")], 1: [op(1)]}
    dumps = job(ranks)
    for content in dumps.values():
        content["pg_config"] = {evil: {"name": evil, "desc": evil, "ranks": "[0, 1]"}}
        content["entries"] = [entry | entries for entry in content["entries"]]
    (tmp_path / "rank0.log").write_text(f"NCCL WARN {evil}\n")
    assert main(["hang", str(written(tmp_path, dumps)), "--format", output_format]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_no_dump_is_exit_code_3_with_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hang", str(tmp_path)]) == 3
    error = capsys.readouterr().err
    assert "expected: " in error
    assert "try: " in error


def test_text_without_evidence_of_a_hang_is_undecided_and_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job.out"
    log.write_text("epoch 1\nepoch 2\n")
    assert main(["hang", str(log)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("Not decided: distprof finds neither an end nor an error in 2 lines")
    assert "py-spy dump" in text
    assert "inferred" not in text
    assert main(["hang", str(log), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "undecided"


@pytest.mark.parametrize(
    ("name", "found"), [("empty.out", "an empty file"), ("none.out", "no file")]
)
def test_no_text_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, found: str
) -> None:
    (tmp_path / "empty.out").touch()
    assert main(["hang", str(tmp_path / name)]) == 3
    assert f"found: {found}" in capsys.readouterr().err


def test_a_real_hang_over_gloo_names_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 1 never came out of step 5 on purpose; gloo's entries all say scheduled."""
    assert main(["hang", str(GOLDEN / "gloo-ddp-3ranks-hang")]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "Stuck: rank 1 never launched all_reduce 79 of default_pg, and ranks 0,2 wait"


def test_analyze_answers_for_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of dumps has no traces, and still it says what the job waits for."""
    folder = str(stuck(tmp_path))
    main(["hang", folder])
    answer = capsys.readouterr().out
    assert main(["analyze", folder]) == 0
    assert capsys.readouterr().out == answer
    assert main(["analyze", folder, "--fail-on", "error"]) == 1
    file = next(path for path in Path(folder).iterdir() if path.is_file())
    capsys.readouterr()
    assert main(["analyze", str(file)]) == 0
    assert capsys.readouterr().out.startswith("Stuck")


def test_dumps_make_no_report_to_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(stuck(tmp_path)), "--save-report", str(tmp_path / "r.json")]) == 3
    assert "try: distprof hang " in capsys.readouterr().err
