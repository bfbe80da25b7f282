"""``distprof export perfetto``, as its user calls it."""

import os
import resource
import socket
from pathlib import Path

import click
import pytest

from distprof.cli.app import main
from distprof.cli.export import perfetto
from distprof.verbs import export

GOLDEN = Path(__file__).parents[1] / "golden"
TRACES = str(GOLDEN / "kineto" / "gloo-ddp-2ranks")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Away from this project's own configuration."""
    monkeypatch.chdir(tmp_path)


def test_it_says_what_it_wrote(capsys):
    assert main(["export", "perfetto", TRACES, "-o", "job.pftrace"]) == 0
    out, err = capsys.readouterr()
    size = Path("job.pftrace").stat().st_size
    assert f"Wrote job.pftrace: ranks 0-1, 2,316 slices, {size / 1000:.0f} kB" in err
    assert out == ""


def test_on_request_it_hands_the_file_to_the_page(capsys, monkeypatch):
    served = []
    monkeypatch.setattr(export, "serve", lambda file, tell: served.append((file, tell("ADDRESS"))))
    assert main(["export", "perfetto", TRACES, "-o", "job.pftrace", "--open"]) == 0
    assert served[0][0] == Path("job.pftrace")
    out, _ = capsys.readouterr()
    assert "ADDRESS" in out
    assert "uploads nothing" in out


def test_a_taken_port_leaves_the_file_and_says_what_to_do(capsys):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((export.HOST, export.PORT))
        except OSError:
            pytest.skip("something else listens on the port")
        taken.listen()
        assert main(["export", "perfetto", TRACES, "-o", "job.pftrace", "--open"]) == 3
    err = capsys.readouterr().err
    assert "127.0.0.1:9001" in err
    assert "such as another --open, or drag the file into https://ui.perfetto.dev" in err
    assert Path("job.pftrace").exists()


def test_without_the_question_stdout_is_empty(capsys):
    assert main(["export", "perfetto", TRACES, "-o", "job.pftrace", "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_same_run_gives_the_same_file():
    for name in ("a.pftrace", "b.pftrace"):
        assert main(["export", "perfetto", TRACES, "-o", name, "-q"]) == 0
    assert Path("a.pftrace").read_bytes() == Path("b.pftrace").read_bytes()


def test_an_existing_file_is_replaced_only_by_force(capsys):
    file = Path("job.pftrace")
    file.write_text("mine")
    assert main(["export", "perfetto", TRACES, "-o", "job.pftrace"]) == 2
    assert "job.pftrace exists: add --force to replace it" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert main(["export", "perfetto", TRACES, "-o", "job.pftrace", "--force"]) == 0
    assert file.stat().st_size > 10_000


def test_a_folder_that_does_not_exist_is_named_before_any_work(capsys):
    assert main(["export", "perfetto", TRACES, "-o", "nowhere/job.pftrace"]) == 2
    assert "nowhere is not a folder: create it first" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert main(["export", "perfetto", TRACES, "-o", "locked/job.pftrace"]) == 2
    assert "locked cannot be written" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_an_error_that_names_the_file_and_what_to_do(capsys):
    assert main(["export", "perfetto", TRACES, "-o", "/dev/full"]) == 3
    err = capsys.readouterr().err
    assert "/dev/full" in err
    assert "No space left on device" in err
    assert "--only collectives" in err


def test_a_disk_that_is_full_in_between_leaves_nothing(capsys, tmp_path):
    """The file appears when it is whole, and an earlier one stays."""
    (tmp_path / "job.pftrace").write_text("mine")
    cache = ["--cache-dir", str(tmp_path / "cache")]
    assert main(["export", "perfetto", TRACES, "-o", "whole.pftrace", *cache]) == 0
    Path("whole.pftrace").unlink()
    capsys.readouterr()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        code = main(["export", "perfetto", TRACES, "-o", "job.pftrace", "--force", *cache])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 3
    err = capsys.readouterr().err
    assert "job.pftrace:" in err
    assert "found: File too large" in err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cache", "job.pftrace"]
    assert (tmp_path / "job.pftrace").read_text() == "mine"


def test_a_recording_without_traces_says_what_is_needed(capsys):
    table = str(GOLDEN / "straggler" / "bytedance-ST" / "trace-ST.parquet")
    assert main(["export", "perfetto", table, "-o", "job.pftrace"]) == 3
    err = capsys.readouterr().err
    assert "expected: torch.profiler traces of at least one rank" in err
    assert "found: operation table" in err
    assert not Path("job.pftrace").exists()


def test_a_trace_without_device_rows_shows_its_cpu(capsys):
    edge = str(GOLDEN / "kineto" / "edge-metadata")
    assert main(["export", "perfetto", edge, "-o", "job.pftrace"]) == 0
    assert "Wrote job.pftrace: rank 0, 2,468 slices" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ranks", "5"], "--ranks 5: the run has traces of ranks 0-1"),
        (["--steps", "77"], "--steps 77: the ranks recorded steps 2-4"),
        (["--steps", "4-2"], "'4-2' is neither a step nor a range such as 0-3"),
        (["--only", "everything"], "'everything' is not one of 'collectives', 'gpu'"),
    ],
)
def test_wrong_choices(capsys, options, said):
    assert main(["export", "perfetto", TRACES, "-o", "job.pftrace", *options]) == 2
    assert said in capsys.readouterr().err
    assert not Path("job.pftrace").exists()


def test_several_sources_are_refused(capsys):
    assert main(["export", "perfetto", TRACES, "elsewhere", "-o", "x.pftrace"]) == 2
    assert "one run at a time" in capsys.readouterr().err


def test_help_fits_80_columns():
    context = click.Context(perfetto, info_name="distprof export perfetto", terminal_width=80)
    lines = perfetto.get_help(context).splitlines()
    assert max(map(len, lines)) <= 80


def test_choices_make_the_file_smaller():
    sizes = []
    for number, more in enumerate(([], ["--only", "gpu"], ["--only", "collectives"])):
        name = f"{number}.pftrace"
        assert main(["export", "perfetto", TRACES, "-o", name, "-q", *more]) == 0
        sizes.append(Path(name).stat().st_size)
    assert sizes[0] > 3 * sizes[1] > 3 * sizes[2]
