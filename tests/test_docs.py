"""The documentation does what it says: commands and snippets run, outputs are real, links resolve.

Each page runs in a folder of its own, from top to bottom, in which ``traces/`` is a real recording,
``runs/`` holds run directories and ``tests/`` leads to the samples. Every command of every shell
block runs. ``<!-- not run: why -->`` before a block excepts it, ``<!-- nightly: why -->`` leaves it
to the nightly run; ``<!-- exits with 3 -->`` tells an exit code. A line of output that is only
``⋮`` or ``…`` stands for lines left out.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from distprof.cli import main
from distprof.cli.app import app
from distprof.config import parse_config
from distprof.rules import find_rule
from distprof.rules.engine import run_rules
from docs.build import REFERENCE, rule_page
from tests.job_folders import START_NS, JobFolder

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
INDEX = DOCS / "index.md"
SAMPLE = ROOT / "tests" / "golden" / "kineto" / "dlrm-v100-8gpu"
WRITTEN = sorted(page for page in DOCS.rglob("*.md") if REFERENCE not in page.parents)
PAGES = [ROOT / "README.md", *WRITTEN]
NCCL_TESTS = ROOT / "tests" / "golden" / "nccl-tests" / "superbench-a100-40gb-8gpu-allreduce.log"
SENSORS = "timestamp, index, clocks.sm [MHz]\n2026/11/23 10:00:00.000, 0, 1980 MHz\n"
TRAINING = """
import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    optimizer.zero_grad()
    model(torch.ones(32, 64)).sum().backward()
    optimizer.step()
"""
SHELL = ("", "sh", "bash", "console")
LEFT_OUT = ("⋮", "…", "...")

_FENCE = re.compile(
    r"^(?P<ticks>`{3,})(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=ticks)$", re.M | re.S
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`(distprof [^`]+)`")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@dataclass(frozen=True)
class Block:
    """A fenced block and the comment before it."""

    language: str
    text: str
    comment: str

    @property
    def is_run(self) -> bool:
        return not self.comment.startswith(("not run: ", "nightly: "))

    @property
    def is_nightly(self) -> bool:
        return self.comment.startswith("nightly: ")

    @property
    def exit_code(self) -> int | None:
        told = re.fullmatch(r"exits with (\d+)", self.comment)
        return int(told[1]) if told else None

    @property
    def commands(self) -> list[str]:
        """What a reader types, without prompts and remarks; what follows a prompt is output."""
        if self.language not in SHELL:
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        typed = [line for line in lines if line.startswith("$ ")] or lines
        found = (line.removeprefix("$ ").split("  #")[0].strip() for line in typed)
        return [command for command in found if command and not command.startswith("#")]

    @property
    def output(self) -> list[str]:
        """The lines it shows as output."""
        if self.language not in SHELL or not self.text.startswith("$ "):
            return []
        return self.text.splitlines()[1:]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    found = []
    for match in _FENCE.finditer(text):
        before = re.search(r"<!-- (.*?) -->\n\Z", text[: match.start()])
        comment = before[1] if before else ""
        found.append(Block(match["language"], match["text"], comment))
    return found


def prose_of(page: Path) -> str:
    return _FENCE.sub("", page.read_text("utf-8"))


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def make_runs(folder: Path) -> None:
    """Two runs to compare, one of the reader's own, and eight of a series, on two ranks."""
    series = [f"{number:02}" for number in range(1, 9)]
    for number, name in enumerate(("before", "after", "mine", *series)):
        job = JobFolder(
            folder / name, mesh={"dp_replicate": 2}, ended_ns=START_NS + number * 10**12
        )
        for rank in range(2):
            job.steps(rank, [100 + (number * 7 + step * 3) % 5 for step in range(12)])
        job.write()


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder to run a page in, with what its readers have: traces, runs, tables."""
    (tmp_path / "traces").symlink_to(SAMPLE)
    make_runs(tmp_path / "runs")
    (tmp_path / "fabric.json").symlink_to(NCCL_TESTS)
    (tmp_path / "gpu.csv").write_text(SENSORS)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # what a page writes there is not for this machine
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def one_cache(tmp_path_factory):
    """All pages share a cache, which is nobody's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTPROF_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def run(command: str, capsys) -> tuple[int, str]:
    """Exit code and stdout of a command; a shell runs what only a shell can."""
    if not command.startswith("distprof ") or any(sign in command for sign in "|>$;"):
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout
    capsys.readouterr()
    code = main(shlex.split(command)[1:])
    return code, capsys.readouterr().out


def assert_shown(output: Sequence[str], printed: str) -> None:
    """Each line shown is printed, in that order, and nothing is left out unless marked."""
    lines: Iterator[tuple[int, str]] = enumerate(printed.splitlines())
    last, may_skip = -1, False
    for shown in output:
        if shown.strip() in LEFT_OUT:
            may_skip = True
            continue
        for number, line in lines:
            if line == shown:
                assert may_skip or number == last + 1, f"not marked as shortened: {shown!r}"
                last, may_skip = number, False
                break
        else:
            pytest.fail(f"not printed, or not in this order: {shown!r}")


@each_page
def test_commands_run_and_their_output_is_as_shown(page, workplace, capsys):
    for block in blocks_of(page):
        for command in block.commands if block.is_run else ():
            code, printed = run(command, capsys)
            allowed = {0, 1} if "--fail-on" in command else {0}
            assert code in ({block.exit_code} if block.exit_code is not None else allowed), command
            if block.output:
                assert_shown(block.output, printed)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "<!-- nightly: " in page.read_text("utf-8")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_commands_that_train_run_too(page, workplace):
    """Trainings on CPUs take a minute each; their times differ, so their output is not compared."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'distprof[run]'")
    (workplace / "train.py").write_text(TRAINING)
    for block in blocks_of(page):
        for command in block.commands if block.is_nightly else ():
            done = subprocess.run(
                ["sh", "-c", command], capture_output=True, text=True, check=False, timeout=600
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"


@each_page
def test_a_block_of_the_shell_holds_commands(page):
    """Output alone, or a table, has another language: nothing in it could be run."""
    empty = [b.text for b in blocks_of(page) if b.language in SHELL and not b.commands]
    assert empty == []


@each_page
def test_python_snippets_run_one_after_the_other(page, workplace):
    names = {}
    for number, block in enumerate(b for b in blocks_of(page) if b.language == "python"):
        code = compile(block.text, f"{page.name}, Python block {number + 1}", "exec")
        if block.is_run:
            exec(code, names)


@each_page
def test_configuration_is_accepted(page):
    for block in blocks_of(page):
        if block.language == "toml":
            run_rules([], parse_config(tomllib.loads(block.text), page.name).limits)


def passed_on_to(context: click.Context, verb: str, words: Sequence[str]) -> list[click.Parameter]:
    """Options of the workload, which ``distprof scale`` passes on to ``distprof run``."""
    run = app.get_command(context, "run")
    is_sweep = verb == "scale" and words and words[0] in run.list_commands(context)
    return run.get_command(context, words[0]).params if is_sweep else []


@each_page
def test_commands_in_the_text_have_options_that_exist(page):
    blocks = blocks_of(page)
    excepted = [
        command
        for block in blocks
        if not block.is_run
        for command in block.commands
        if command.startswith("distprof ")
    ]
    in_recipes = [
        command
        for block in blocks
        if block.language == "yaml"
        for command in re.findall(r"(?<![\w/])distprof [a-z].*", block.text.replace("\\\n", " "))
    ]
    excepted += in_recipes
    for command in (*_INLINE.findall(prose_of(page)), *excepted):
        verb, *words = shlex.split(re.split(r" [|>;]", command)[0])[1:]
        with click.Context(app) as context:
            found = app.get_command(context, verb)
            passed_on = passed_on_to(context, verb, words)
            if isinstance(found, click.Group) and words:
                found = found.get_command(context, words.pop(0))
        assert found is not None, command
        if "--" in words:  # what follows is another program's
            words = words[: words.index("--")]
        parameters = [*found.params, *passed_on]
        known = {name for parameter in parameters for name in parameter.opts}
        assert {word.split("=")[0] for word in words if word.startswith("-")} <= known, command


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *sorted(REFERENCE.rglob("*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_relative_links_lead_somewhere(page):
    for target in _LINK.findall(prose_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors_of(linked), f"{target}: no such heading"


def test_every_page_is_reached_from_the_index():
    reached: set[Path] = set()
    waiting = [INDEX]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or DOCS not in page.parents:
            continue
        reached.add(page)
        links = (link.partition("#")[0] for link in _LINK.findall(prose_of(page)))
        waiting += [(page.parent / link).resolve() for link in links if link and ":" not in link]
    assert sorted(set(DOCS.rglob("*.md")) - reached) == []


def test_sources_of_a_rule_lead_to_the_formula_sheet():
    page = rule_page(find_rule("COM105"), ("An example.",))
    assert '["Collectives"](../../concepts/formulas.md#collectives)' in page
    assert '["Anti-patterns"](../../concepts/formulas.md#anti-patterns)' in page


def test_every_section_that_is_cited_is_on_the_formula_sheet():
    text = "\n".join(p.read_text("utf-8") for p in (ROOT / "distprof").rglob("*.py"))
    cited = set()
    for citation in re.findall(r"[Ff]ormula sheet, ((?:\"[^\"]+\"[^\".]*)+)", text):
        cited |= set(re.findall(r'"([^"\n]+)"', citation))
    headings = set(
        re.findall(r"^## (.+)$", (DOCS / "concepts/formulas.md").read_text("utf-8"), re.M)
    )
    assert cited
    assert cited <= headings


def test_output_that_is_not_printed_is_noticed():
    printed = "one\ntwo\nthree\n"
    assert_shown(["one", "⋮", "three"], printed)
    for wrong in (["two"], ["one", "three"], ["three", "⋮", "one"], ["⋮", "four"]):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            assert_shown(wrong, printed)


def test_an_exception_names_its_reason():
    reasons = [block.comment for page in PAGES for block in blocks_of(page) if not block.is_run]
    assert reasons
    assert all(len(reason.partition(": ")[2]) > 8 for reason in reasons)


def test_every_command_of_a_block_is_found():
    """A command that is not found is never run: here is each way to write one."""
    block = Block("sh", "# once\npip install x  # why\ndistprof a \\\n  --b\n\n", "")
    assert block.commands == ["pip install x", "distprof a    --b"]
    shown = Block("console", "$ distprof a\ndistprof is its output\n$ sed s/a/b/ c\n", "")
    assert shown.commands == ["distprof a", "sed s/a/b/ c"]
    assert Block("toml", "distprof = 1", "").commands == []
