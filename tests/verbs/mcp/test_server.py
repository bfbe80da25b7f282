"""``distprof mcp`` as clients see it: through the SDK's own client, in process and over stdio."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import pytest

from distprof.cli import main
from distprof.documents.brief import MAX_TOKENS, most_tokens
from distprof.documents.saved import load_report
from distprof.verbs.mcp import MAX_CHARACTERS, Root, Tools, make_server
from tests.documents.job_samples import hostile_job
from tests.documents.samples import finding, healthy, straggler
from tests.flight_jobs import GPU_ERROR
from tests.optional import optional

mcp = optional("mcp")

ROOT = Path(__file__).parents[3]
JOB = ROOT / "tests" / "golden" / "job" / "nccl-fsdp-2ranks-h100"
TOOLS = {"analyze", "list_findings", "explain_rule", "compare", "hang"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A root with two reports, a run directory without a report, and dumps."""
    monkeypatch.setenv("DISTPROF_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "root"
    root.mkdir()
    healthy().save(root / "fast.json")
    straggler().save(root / "slow.json")
    shutil.copytree(JOB, root / "run", ignore=shutil.ignore_patterns("cache", "report.json"))
    shutil.copytree(GPU_ERROR, root / "dumps")
    return root


def talk(target, *calls: tuple[str, dict]) -> list:
    """What one client gets for its calls, one after the other."""

    async def asked():
        async with mcp.Client(target, read_timeout_seconds=120) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return anyio.run(asked)


def in_process(root: Path):
    return make_server(Root(root))


def over_stdio(root: Path):
    names = ("PYTHONPATH", "DISTPROF_CACHE_DIR", "COVERAGE_PROCESS_START")
    return mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "distprof", "mcp", "--root", str(root)],
        env={
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "probes")]),
            **{name: os.environ[name] for name in names if name in os.environ},
        },
    )


def text_of(result) -> str:
    assert not result.is_error, result.content[0].text
    (content,) = result.content
    return content.text


def contents(folder: Path) -> dict[str, tuple]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("serve", [in_process, over_stdio])
def test_each_tool_answers_and_nothing_below_the_root_changes(
    place: Path, serve: Callable[[Path], object]
):
    before = contents(place)
    brief, found, page, change, stuck = talk(
        serve(place),
        ("analyze", {"path": "run"}),
        ("list_findings", {"path": "slow.json", "severity": "warning"}),
        ("explain_rule", {"rule": "persistent-straggler"}),
        ("compare", {"first": "fast.json", "second": "slow.json"}),
        ("hang", {"path": "dumps"}),
    )
    assert contents(place) == before
    assert any((place.parent / "cache").iterdir())
    assert most_tokens(text_of(brief)) <= MAX_TOKENS
    assert text_of(brief).startswith("Ranks 0-1 share a GPU")
    listed = json.loads(text_of(found))
    assert [one["code"] for one in listed["findings"]] == ["STR101", "COM102"]
    assert listed["findings"][0]["cost_ns_per_step"] == 6_910_000
    assert (listed["num_findings"], listed["next_offset"]) == (2, None)
    assert text_of(page).startswith("# persistent-straggler\n")
    assert text_of(change).startswith(
        "Not like for like: nodes 1 → 2\nBoth runs take 22.3 ms per step"
    )
    assert text_of(stuck).startswith("Stuck: rank 12 never launched all_to_all 20537")


def test_tools_are_said_to_read_only_and_describe_their_arguments(place):
    async def listed():
        async with mcp.Client(in_process(place)) as client:
            return (await client.list_tools()).tools

    tools = anyio.run(listed)
    assert {tool.name for tool in tools} == TOOLS
    for tool in tools:
        assert tool.annotations.read_only_hint
        assert not tool.annotations.destructive_hint
        assert not tool.annotations.open_world_hint
        for argument in tool.input_schema["properties"]:
            assert f"\n    {argument}: " in tool.description


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        (
            "analyze",
            {"path": "absent"},
            "absent: expected a path inside ROOT, found no file or folder with",
        ),
        ("analyze", {"path": "../secret"}, "found a path that leads out of it"),
        ("hang", {"path": "/etc"}, "found a path that leads out of it"),
        ("compare", {"first": "fast.json", "second": "s3://b/x"}, "found a URL; try: copy the"),
        ("analyze", {"path": "broken.json"}, "broken.json: expected "),
        ("explain_rule", {"rule": "nothing\n\x1b[31m"}, "no rule 'nothing"),
        ("list_findings", {"path": "slow.json", "severity": "fatal"}, "not one of info, warning"),
        ("list_findings", {"path": "slow.json", "limit": 0}, "limit from 1 to 50"),
        ("list_findings", {"path": "slow.json", "offset": -1}, "offset must be at least 0"),
    ],
)
def test_an_error_is_one_sentence_and_the_server_goes_on(place, name, arguments, said):
    (place / "broken.json").write_text('{"schema": "distprof.report/2", ')
    failed, after = talk(in_process(place), (name, arguments), ("analyze", {"path": "fast.json"}))
    assert failed.is_error
    text = failed.content[0].text.replace(str(place), "ROOT")
    assert said in text
    assert text.isprintable()
    assert "Traceback" not in text
    assert not after.is_error


def test_an_unexpected_error_is_a_sentence_too(place, monkeypatch, capfd):
    def broken(self, path: str) -> str:
        raise RuntimeError("one\ntwo")

    monkeypatch.setattr(Tools, "analyze", broken)
    (failed,) = talk(in_process(place), ("broken", {"path": "x"}))
    assert failed.is_error
    assert "unexpected error in distprof (RuntimeError: one two)" in failed.content[0].text
    assert "Traceback" not in capfd.readouterr().err


def test_calls_at_once_are_all_answered(place):
    async def asked() -> list[bool]:
        answers: list[bool] = []

        async def one(client, path: str) -> None:
            answers.append((await client.call_tool("analyze", {"path": path})).is_error)

        async with mcp.Client(in_process(place)) as client, anyio.create_task_group() as group:
            for path in ("fast.json", "slow.json", "run", "absent"):
                group.start_soon(one, client, path)
        return answers

    assert sorted(anyio.run(asked)) == [False, False, False, True]


def test_a_report_of_hostile_names_brings_no_control_character(place):
    hostile_job().save(place / "hostile.json")
    calls = [(name, {"path": "hostile.json"}) for name in ("analyze", "list_findings")]
    for result in talk(in_process(place), *calls):
        assert all(line.isprintable() for line in text_of(result).split("\n"))


def test_thousands_of_long_findings_come_in_bounded_answers_and_none_is_lost(place):
    made = tuple(finding(f"STR{i}", message="long " * 2_000) for i in range(120))
    msgspec.structs.replace(healthy(), findings=made).save(place / "many.json")
    tools, codes, offset = Tools(Root(place)), [], 0
    while offset is not None:
        answer = tools.list_findings("many.json", offset=offset, limit=50)
        assert len(answer) <= MAX_CHARACTERS
        page = json.loads(answer)
        codes += [one["code"] for one in page["findings"]]
        offset = page["next_offset"]
    assert codes == [f"STR{i}" for i in range(120)]


def test_every_rules_page_fits_into_an_answer():
    from distprof.rules import all_rules

    assert max(len(rule.page) for rule in all_rules()) <= MAX_CHARACTERS


def test_a_run_with_a_fresh_report_is_not_analysed_again(place):
    report = msgspec.structs.replace(straggler(), distprof_version="0.0.kept")
    report.save(place / "run" / "report.json")
    assert load_report(place / "run").distprof_version == "0.0.kept"
    (result,) = talk(in_process(place), ("analyze", {"path": "run"}))
    assert text_of(result).startswith("Rank 2 holds the others up")


def test_without_the_package_the_extra_is_named(place, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert main(["mcp", "--root", str(place)]) == 2
    assert "distprof mcp needs an extra: pip install 'distprof[mcp]'" in capsys.readouterr().err


def test_a_root_is_required_and_must_exist(tmp_path, capsys):
    assert main(["mcp"]) == 2
    assert "Missing option '--root'" in capsys.readouterr().err
    assert main(["mcp", "--root", str(tmp_path / "absent")]) == 2
    assert "No such file or directory" in capsys.readouterr().err


def test_the_end_of_stdin_ends_the_server_and_nothing_else_is_on_stdout(place):
    done = subprocess.run(
        [sys.executable, "-m", "distprof", "mcp", "--root", str(place)],
        input="this is no message\n",
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in done.stdout.splitlines())
