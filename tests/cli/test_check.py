"""``distprof check``, as its user calls it."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest

from distprof.artefacts.summary_file import Fingerprint, SummaryFile
from distprof.cli.app import main
from distprof.verbs.gate.baseline import BASELINE
from distprof.verbs.gate.show import CHECK
from distprof.verbs.sweep import running
from distprof.verbs.sweep.running import load_sweep
from distprof.verbs.sweep.runs import SUMMARY
from docs.schemas import schema_of

ROOT = Path(__file__).parents[2]
CALM = (100.0, 100.4, 99.7, 100.1, 99.9, 100.2, 99.8, 100.3)

STAND_IN = """
import json, pathlib, sys
import msgspec
from tests.job_folders import JobFolder, START_NS

words, here = sys.argv[1:], pathlib.Path(__file__).parent
plan = json.loads((here / "plan.json").read_text())
if "--dry-run" in words:
    print("[training]\\nbatch = 4")
    sys.exit()
out = pathlib.Path(words[words.index("-o") + 1])
made = sorted(path.name for path in out.parent.glob("ranks*"))
with (here / "calls.txt").open("a") as stream:
    stream.write(out.name + "\\n")
if plan.get("fails_at") == len(made):
    sys.exit("the disk is full")
ranks = int(words[words.index("--ranks") + 1])
step_ms = plan["step_ms"][len(made) % len(plan["step_ms"])]
step_ms *= plan.get("by_ranks", {}).get(str(ranks), 1)
job = JobFolder(out, mesh={"dp_replicate": ranks}, ended_ns=START_NS + len(made))
for rank in range(ranks):
    job.steps(rank, [step_ms] * 8)
job.write()
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Replaces distprof run: makes each run from the step times in the plan."""
    folder = tmp_path / "program"
    folder.mkdir()
    script = folder / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(running, "_DISTPROF", (sys.executable, str(script)))

    def plan(step_ms, **fields):
        (folder / "plan.json").write_text(json.dumps({"step_ms": step_ms, **fields}))
        (folder / "calls.txt").write_text("")
        return lambda: (folder / "calls.txt").read_text().split()

    return plan


def table(name, factor=1.0, ranks=2, values=CALM):
    """Measurements of one size."""
    rows = "".join(f"{ranks},{factor * value}\n" for value in values)
    Path(name).write_text(f"ranks,step_ms\n{rows}")
    return name


def summaries(name, step_ms, *, every_ns, first_ns=0, **of):
    fingerprint = Fingerprint(**{"world_size": 2, "device": "H200", **of})
    kept = [
        SummaryFile(
            distprof_version="1",
            source=f"{name}-{number}",
            created_ns=first_ns + every_ns * number,
            fingerprint=fingerprint,
            step_ns=(int(step * 1e6),),
        )
        for number, step in enumerate(step_ms)
    ]
    Path(name).write_bytes(msgspec.json.encode(kept))
    return name


@pytest.fixture
def baseline():
    """Of three sessions, from which on a change can be told from a session's."""
    for factor in (1.0, 1.001, 1.002):
        assert accept(table("run.csv", factor)) == 0
    return "perf.json"


def accept(*sources):
    return main(["check", *sources, "--baseline", "perf.json", "--update-baseline", "-q"])


@pytest.mark.parametrize(
    ("factor", "code", "verdict"),
    [(1.0, 0, "Passed: step time"), (1.1, 1, "Regressed: step time +9"), (0.8, 0, "Improved")],
)
def test_the_verdict_is_the_first_line_and_the_exit_code(baseline, capsys, factor, code, verdict):
    assert main(["check", table("new.csv", factor), "--baseline", baseline]) == code
    assert capsys.readouterr().out.startswith(verdict)


def test_too_few_repeats_pass_unless_told(baseline, capsys):
    few = table("new.csv", 1.1, values=CALM[:1])
    assert main(["check", few, "--baseline", baseline]) == 0
    assert "more repeat" in capsys.readouterr().out
    assert main(["check", few, "--baseline", baseline, "--fail-on-inconclusive"]) == 1


def test_one_stored_session_condemns_only_what_no_session_explains(capsys):
    accept(table("run.csv"))
    assert main(["check", table("new.csv", 1.1), "--baseline", "perf.json"]) == 0
    assert "so may any two sessions" in " ".join(capsys.readouterr().out.split())
    assert main(["check", table("new.csv", 2.0), "--baseline", "perf.json"]) == 1
    calm = ["--session-noise", "0.01"]
    assert main(["check", table("new.csv", 1.1), "--baseline", "perf.json", *calm]) == 1


def test_runs_in_turns_need_no_baseline(capsys):
    drifting = [100 + 2 * number for number in range(8)]
    old = summaries("old.json", drifting, every_ns=10)
    new = summaries("new.json", [1.06 * step for step in drifting], every_ns=10, first_ns=1)
    assert main(["check", new, "--against", old]) == 1
    assert "did not alternate" not in capsys.readouterr().out


def test_runs_after_each_other_are_not_taken_for_pairs(capsys):
    old = summaries("old.json", CALM, every_ns=10)
    new = summaries("new.json", [1.06 * step for step in CALM], every_ns=10, first_ns=1_000)
    assert main(["check", new, "--against", old]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "did not alternate" in out
    assert out.startswith("Inconclusive")


def test_names_that_a_shell_put_after_against_are_not_checked_as_new(capsys):
    for name in ("old", "new"):
        Path(name).mkdir()
        for number in "12":
            table(f"{name}/{number}.csv")
    words = ["check", "new/1.csv", "new/2.csv", "--against", "old/1.csv", "old/2.csv"]
    assert main(words) == 2
    assert "old/2.csv belong to --against" in capsys.readouterr().err


def test_two_sizes_guard_the_efficiency(capsys):
    accept(table("one.csv", ranks=1), table("two.csv", 1.1))
    words = ["check", "one.csv", table("two.csv", 1.5), "--baseline", "perf.json"]
    assert main([*words, "--session-noise", "0.01"]) == 1
    assert "scaling efficiency −26.7 %" in " ".join(capsys.readouterr().out.split())
    other = ["check", table("four.csv", ranks=4), "two.csv", "--baseline", "perf.json"]
    assert main(other) == 3


def test_the_smaller_size_must_be_the_same(capsys):
    accept(table("one.csv", ranks=1), table("four.csv", ranks=4))
    assert main(["check", table("two.csv"), "four.csv", "--baseline", "perf.json"]) == 3
    assert "the smaller size is 1 in one and 2 in the other" in capsys.readouterr().err


def test_another_machine_is_refused_and_compared_only_if_told(capsys):
    accept(summaries("old.json", CALM, every_ns=1))
    new = summaries("new.json", CALM, every_ns=1, device="B200")
    assert main(["check", new, "--baseline", "perf.json"]) == 3
    assert "device is H200 in one and B200 in the other" in capsys.readouterr().err
    assert main(["check", new, "--baseline", "perf.json", "--allow-unlike"]) == 0
    assert "Not like for like, but allowed: device" in capsys.readouterr().out


def test_accepting_runs_of_another_machine_begins_anew(capsys):
    accept(summaries("old.json", CALM, every_ns=1))
    new = summaries("new.json", CALM, every_ns=1, device="B200")
    assert main(["check", new, "--baseline", "perf.json", "--update-baseline"]) == 0
    assert "started again because device is H200" in capsys.readouterr().err
    assert len(json.loads(Path("perf.json").read_text())["sessions"]) == 1


def test_a_baseline_keeps_the_sessions_that_the_configuration_says():
    Path("distprof.toml").write_text("[check]\nwindow = 2\n")
    for factor in (1.0, 1.1, 1.2):
        accept(table("run.csv", factor))
    sessions = json.loads(Path("perf.json").read_text())["sessions"]
    assert [session["values"]["step_time"][0] for session in sessions] == [110e6, 120e6]


def test_the_configuration_says_what_decides(baseline, capsys):
    Path("distprof.toml").write_text("[check]\ntolerance = { step_time = 0.2 }\n")
    slower = table("new.csv", 1.1)
    assert main(["check", slower, "--baseline", baseline]) == 0
    assert main(["check", slower, "--baseline", baseline, "--tolerance", "step_time=0.03"]) == 1


def test_an_acknowledged_loss_passes_until_it_runs_out(baseline, capsys):
    words = ["check", "--baseline", baseline, "--acknowledge", "step_time=0.12"]
    slower = ["check", table("new.csv", 1.1), "--baseline", baseline]
    assert main([*words, "--reason", "new encoder", "--until", "2999-01-31"]) == 0
    capsys.readouterr()
    assert main(slower) == 0
    out = capsys.readouterr().out
    assert out.startswith("Passed with an acknowledged loss")
    assert "new encoder" in out
    for past in ("1999-01-31", "0001-01-01"):
        assert main([*words, "--reason", "new encoder", "--until", past]) == 0
        assert main(slower) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.csv"], "what to compare with"),
        (["a.csv", "--baseline", "perf.json", "--against", "a.csv"], "what to compare with"),
        (["--baseline", "perf.json"], "name the runs"),
        (["a.csv", "--run", "ddp --ranks 2", "--baseline", "perf.json"], "name the runs"),
        (["a.csv", "--against", "a.csv", "--update-baseline"], "needs --baseline"),
        (["a.csv", "--baseline", "perf.json", "--repeats", "3"], "--repeats needs --run"),
        (["a.csv", "--baseline", "perf.json", "--reason", "x"], "belong to --acknowledge"),
        (["a.csv", "--baseline", "perf.json", "--metrics", "speed"], "no metric 'speed'"),
        (["a.csv", "--baseline", "perf.json", "--tolerance", "step_time=2"], "below 1"),
        (
            ["a.csv", "--baseline", "perf.json", "--tolerance", "step_time"],
            "not of the form METRIC=VALUE",
        ),
        (["a.csv", "--baseline", "perf.json", "--format", "pdf"], "is not one of text"),
        (["a.csv", "--baseline", "no/perf.json", "--update-baseline"], "is not a folder"),
        (["a.csv", "--baseline", ".", "--update-baseline"], "cannot be written"),
        (["--run", "nope --ranks 2", "--baseline", "perf.json"], "does not begin with a workload"),
        (["--run", "ddp", "--baseline", "perf.json"], "lacks the number of ranks"),
        (["--run", "ddp --ranks '2", "--baseline", "perf.json"], "quotation"),
        (
            ["--run", "ddp --ranks 2", "--baseline", "perf.json", "--max-repeats", "2"],
            "is less than --repeats",
        ),
        (["--baseline", "perf.json", "--acknowledge", "step_time=0.1"], "needs a reason"),
        (["--baseline", "perf.json", "--acknowledge", "step_time=2", "--reason", "x"], "below 1"),
        (["--baseline", "perf.json", "--acknowledge", "speed=0.1", "--reason", "x"], "no metric"),
    ],
)
def test_wrong_use_is_said_before_any_work(capsys, words, said):
    accept(table("a.csv"))
    before = Path("perf.json").read_bytes()
    assert main(["check", *words]) == 2
    assert said in capsys.readouterr().err
    assert Path("perf.json").read_bytes() == before
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "--update-baseline"),
        (b"", "an empty file"),
        (b'{"schema": "distprof.baseline/1", ', "damaged or unrelated JSON"),
        (b'{"schema": "distprof.baseline/2"}', "distprof.baseline/2"),
        (b'{"schema": "distprof.report/2"}', "distprof.report/2"),
    ],
)
@pytest.mark.parametrize("source", [["a.csv"], ["--run", "ddp --ranks 2"]])
def test_a_baseline_that_cannot_be_read_costs_no_runs(capsys, content, said, source):
    table("a.csv")
    if content is not None:
        Path("perf.json").write_bytes(content)
    assert main(["check", *source, "--baseline", "perf.json"]) == 3
    assert said in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("2,0\n2,100\n", "a positive number in step_ms of row 1"),
        ("2,-5\n2,100\n", "a positive number in step_ms of row 1"),
        ("1,100\n2,100\n4,100\n", "runs on 1, 2, 4 ranks"),
    ],
)
def test_runs_that_cannot_be_compared_are_named(baseline, capsys, rows, said):
    Path("new.csv").write_text(f"ranks,step_ms\n{rows}")
    assert main(["check", "new.csv", "--baseline", baseline]) == 3
    assert said in capsys.readouterr().err


def test_a_file_of_summaries_without_steps_is_refused(baseline, capsys):
    Path("new.json").write_bytes(
        msgspec.json.encode([SummaryFile(distprof_version="1", created_ns=1)])
    )
    assert main(["check", "new.json", "--baseline", baseline]) == 3
    assert "without steps" in capsys.readouterr().err


def test_machines_get_files_and_the_page_of_a_step(baseline, monkeypatch, capsys):
    page = Path("summary.md")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    words = ["check", table("new.csv", 1.1), "--baseline", baseline, "-q"]
    assert main([*words, "--format", "junit", "-o", "gate.xml"]) == 1
    assert main([*words, "--format", "benchmark", "-o", "gate.json"]) == 1
    assert ElementTree.parse("gate.xml").find("*/testcase/failure") is not None
    (entry,) = json.loads(Path("gate.json").read_text())
    assert {"name", "unit", "value"} <= set(entry)
    assert page.read_text().count("### Regressed") == 2
    assert capsys.readouterr().out == ""


def test_a_page_that_cannot_be_written_changes_no_verdict(baseline, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "missing/summary.md")
    assert main(["check", table("new.csv"), "--baseline", baseline]) == 0
    assert "step summary was not written" in capsys.readouterr().err


def made(*words):
    return main(["check", "--run", "ddp --ranks 2", "--baseline", "perf.json", "-q", *words])


def test_it_makes_its_own_runs(program, capsys):
    program(CALM)
    assert made("--update-baseline") == 0
    assert len(json.loads(Path("perf.json").read_text())["sessions"][0]["values"]["step_time"]) == 5
    program([2 * step for step in CALM])
    assert made("--sweep", "slow") == 1
    assert capsys.readouterr().out.startswith("Regressed: step time +100 %")


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("fsdp --ranks 2", "workload is ddp in one and fsdp in the other"),
        ("ddp --ranks 4", "world size is 2 in one and 4 in the other"),
    ],
)
def test_runs_that_would_be_unlike_are_not_made(program, capsys, job, said):
    program(CALM)
    assert made("--update-baseline") == 0
    calls = program(CALM)
    again = ("check", "--run", job, "--baseline", "perf.json", "-q", "--sweep", "second")
    assert main([*again]) == 3
    assert said in capsys.readouterr().err
    assert calls() == []
    assert not Path("second").exists()
    assert main([*again, "--allow-unlike"]) in (0, 1)
    assert len(calls()) == 5


def test_an_option_that_differs_is_named_before_the_first_run(tmp_path, monkeypatch, capsys):
    """With the real program: what it would do comes from its own dry run."""
    of = {"device": "cpu", "workload": "ddp", "config": {"model.layers": "4", "new.option": "1"}}
    summaries("old.json", CALM, every_ns=10**9, **of)
    assert accept("old.json") == 0
    again = ["check", "--run", "ddp --ranks 2 --device cpu --layers 2", "--baseline", "perf.json"]
    assert main(again) == 3
    error = capsys.readouterr().err
    assert "config model.layers is 4 in one and 2 in the other" in error
    assert "new.option" not in error
    assert not Path("runs").exists()


def test_a_run_counts_once(program, capsys):
    program(CALM)
    assert made("--update-baseline", "--sweep", "first") == 0
    for again in ("first", "first/ranks00002-repeat01"):
        assert main(["check", "first", again, "--baseline", "perf.json"]) == 3
        assert "every run once" in capsys.readouterr().err


def test_more_repeats_are_made_only_while_they_may_decide(program, capsys):
    program(CALM)
    assert made("--update-baseline", "--sweep", "first", "--repeats", "8") == 0
    noisy = program([100, 104, 97, 101, 99, 103, 98, 100, 102, 100, 99, 101])
    assert made("--sweep", "noisy", "--repeats", "3", "--max-repeats", "12") == 0
    assert 3 < len(noisy()) <= 12
    calm = program(CALM)
    assert made("--sweep", "calm", "--repeats", "5", "--max-repeats", "12") == 0
    assert len(calm()) == 5
    clear = program([2 * step for step in CALM])
    assert made("--sweep", "clear", "--repeats", "6", "--max-repeats", "12") == 1
    assert len(clear()) == 6


def test_runs_of_two_sizes_take_turns_and_guard_the_efficiency(program, capsys):
    words = ["check", "--run", "ddp --ranks 1,2", "--baseline", "perf.json", "-q"]
    calls = program(CALM)
    assert main([*words, "--update-baseline"]) == 0
    assert "".join(name[9] for name in calls()[:4]) in ("1221", "2112")
    program(CALM, by_ranks={"2": 2.0})
    assert main([*words, "--sweep", "slow"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "scaling efficiency −50 %" in said
    assert "step time +100 %" in said


def test_a_run_that_fails_is_said_and_the_others_are_kept(program, capsys):
    program(CALM, fails_at=2)
    assert made("--update-baseline", "--sweep", "begun") == 4
    err = capsys.readouterr().err
    assert "the disk is full" in err
    assert "--sweep begun" in err
    goes_on(program, done=2)


def test_what_was_interrupted_goes_on_where_it_stopped(program, capsys):
    program(CALM)
    real, calls = running.run_child, []

    def child(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "run_child", child)
        assert made("--update-baseline", "--sweep", "begun") == 130
    assert "3 of 5 runs are done" in capsys.readouterr().err
    goes_on(program, done=3)


def goes_on(program, *, done):
    assert sum(run.state == "done" for run in load_sweep(Path("begun")).runs) == done
    assert not Path("perf.json").exists()
    calls = program(CALM)
    assert made("--update-baseline", "--sweep", "begun") == 0
    assert len(calls()) == 5 - done


def test_a_folder_with_other_runs_is_not_touched(program, capsys):
    program(CALM)
    assert made("--update-baseline", "--sweep", "begun", "--repeats", "2") == 0
    other = ["check", "--run", "fsdp --ranks 2", "--baseline", "perf.json", "--sweep", "begun"]
    assert main(other) == 2
    assert "another workload" in capsys.readouterr().err
    Path("letters").mkdir()
    Path("letters/mine.txt").touch()
    assert made("--sweep", "letters") == 2
    assert "contains files that are not runs" in capsys.readouterr().err


def test_what_is_written_fits_its_schema_and_nothing_else_does(baseline, capsys):
    main(["check", "--baseline", baseline, "--acknowledge", "memory=0.1", "--reason", "x"])
    capsys.readouterr()
    summaries("new.json", CALM, every_ns=1)
    main(["check", table("new.csv", 1.1), "--baseline", baseline, "--format", "json"])
    written = (
        json.loads(capsys.readouterr().out),
        json.loads(Path(baseline).read_text()),
        json.loads(Path("new.json").read_text())[0],
    )
    for kind, document in zip((CHECK, BASELINE, SUMMARY), written, strict=True):
        validator = jsonschema.Draft202012Validator(schema_of(kind))
        assert list(validator.iter_errors(document)) == []
        assert list(validator.iter_errors({**document, "schema": "distprof.other/2"}))
        assert list(validator.iter_errors({"schema": document["schema"]}))
