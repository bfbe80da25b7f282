"""What pages, terminals and runtimes put around lines changes no verdict."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.api import analyze, open_run
from distprof.errors import DistprofError
from distprof.ingest.wrapped import without_wrapping
from distprof.sections.shows import judge

GOLDEN = Path(__file__).parents[1] / "golden"
SAMPLES = (
    "logs/watchdog-22-never-launched.log",
    "logs/torchrun-sigkill.log",
    "logs/rich-breaks-the-message.log",
    "logs/stacks-outermost-first.log",
    "pasted/a-busy-disk.log",
    "pasted/columns-in-microseconds.log",
    "pasted/kernels-of-unknown-names.log",
    "pasted/interface-of-one-gigabit.log",
    "pasted/range-around-rows-of-kernels.log",
)


def each(before: str = "", after: str = "") -> Callable[[str], str]:
    return lambda text: "".join(f"{before}{line}{after}\n" for line in text.splitlines())


def object_of(line: str) -> str:
    return json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-01-02T03:04:05.6Z"})


WRAPPINGS: dict[str, Callable[[str], str]] = {
    "quotation": each("> "),
    "indentation": each("\t"),
    "padding": each(after="     "),
    "colour": each("\x1b[1;31m", "\x1b[0m"),
    "colour without escape": each("[33m", "[0m"),
    "line ends": each(after="\r"),
    "spaces": lambda text: text.replace("  ", " \xa0"),
    "mark": lambda text: f"\ufeff{text}",
    "entities": lambda text: text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;"),
    "docker": each("2026-01-02T03:04:05.678901234Z "),
    "cri": each("2026-01-02T03:04:05.678901234+01:00 stderr F "),
    "journal": each("Jan 02 03:04:05 node-7 python3[4242]: "),
    "journal in ISO": each("2026-01-02T03:04:05+0100 node-7 python3[4242]: "),
    "numbers": lambda text: "".join(
        f"{number:6d}  {line}\n" for number, line in enumerate(text.splitlines(), 1)
    ),
    "json-file": lambda text: "".join(f"{object_of(line)}\n" for line in text.splitlines()),
    "kubectl": each("[pod/trainer-0/pytorch] "),
    "stern": each("trainer-0 pytorch "),
    "compose": each("trainer-0  | "),
    "ray": each("(Worker pid=4242, ip=10.0.0.7) "),
    "pdsh": each("gpu-node-07: "),
    "quoted docker": each("> 2026-01-02T03:04:05.678901234Z "),
}

RANKED: dict[str, Callable[[str], str]] = {
    "torch": each("[rank0]: "),
    "torchrun": each("[default0]:"),
    "srun": each("0: "),
    "mpirun": each("[1,0]<stderr>:"),
}
"""What launchers put before the lines of a rank."""

OF_ONE_RANK = (
    *SAMPLES[6:],
    "pasted/a-checkpoint-in-one-step-of-nemo-rl.log",
    "pasted/checkpoints-in-a-profile.log",
    "pasted/actions-by-their-totals.log",
    "pasted/epochs-in-a-table-of-elapsed-time.log",
)

FORMS: dict[str, Callable[[str], str]] = {
    "lines apart": each(after="\n"),
    "code": lambda text: "".join(f"`{line}`\n" for line in text.splitlines() if line.strip()),
    "Markdown": lambda text: re.sub(r"([_*\[\]<>|])", r"\\\1", text),
    "noformat": lambda text: f"{{noformat}}\n{text}{{noformat}}\n",
    "quotation marks": lambda text: text.replace("'", "’"),
    "JSON string": lambda text: f"{json.dumps(text)}\n",
    "list of texts": lambda text: json.dumps({"logs": text.splitlines()}, indent=2),
    "list of a service": lambda text: json.dumps(
        [{"insertId": "a", "textPayload": line} for line in text.splitlines()], indent=2
    ),
    "objects within": lambda text: "".join(
        json.dumps({"_id": "a", "_source": {"message": line}}) + "\n" for line in text.splitlines()
    ),
    "numbers": lambda text: "".join(
        f"{number:6}\t{line}\n" for number, line in enumerate(text.splitlines(), 1)
    ),
    "table of a viewer": lambda text: (
        "Date,Host,Message\n"
        + "".join(
            '2026-01-02T03:04:05Z,node-7,"{}"\n'.format(line.replace('"', '""'))
            for line in text.splitlines()
        )
    ),
}
"""What changes more than the begin and the end of lines."""


def headline(path: Path) -> str:
    try:
        return judge(analyze(open_run(str(path)))).headline
    except DistprofError as error:
        return str(error).replace(str(path), "")


def verdicts(sample: str, folder: Path, wraps: dict[str, Callable[[str], str]]) -> dict[str, str]:
    """The headline of a sample as it is, and as wrapped in each way."""
    path, text = folder / Path(sample).name, (GOLDEN / sample).read_text("utf-8")
    texts = {"": text.encode()} | {name: wrap(text).encode() for name, wrap in wraps.items()}
    texts["PowerShell"] = text.replace("\n", "\r\n").encode("utf-16")
    heads = {}
    for name, data in texts.items():
        path.write_bytes(data)
        heads[name] = headline(path)
    return heads


@pytest.mark.parametrize("sample", SAMPLES)
def test_wrapping_changes_no_verdict(sample: str, tmp_path: Path) -> None:
    heads = verdicts(sample, tmp_path, WRAPPINGS)
    assert heads == dict.fromkeys(heads, heads[""])


@pytest.mark.parametrize("sample", OF_ONE_RANK)
def test_the_rank_before_all_lines_changes_no_verdict_on_their_times(
    sample: str, tmp_path: Path
) -> None:
    heads = verdicts(sample, tmp_path, RANKED)
    assert heads == dict.fromkeys(heads, heads[""])


@pytest.mark.parametrize("name", RANKED)
def test_the_rank_before_an_error_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(RANKED[name]("step 1\nRuntimeError: bad shape\n"))
    assert headline(tmp_path / "job.log").startswith("Rank 0 ")


@pytest.mark.parametrize("sample", [*SAMPLES[:2], SAMPLES[4], *SAMPLES[6:]])
def test_what_pages_and_services_make_of_a_text_changes_no_verdict(
    sample: str, tmp_path: Path
) -> None:
    heads = verdicts(sample, tmp_path, FORMS)
    assert heads == dict.fromkeys(heads, heads[""])


@pytest.mark.parametrize("ending", [".md", ".json", ".jsonl", ".csv"])
def test_a_log_that_is_named_itself_is_read_whatever_its_ending(
    ending: str, tmp_path: Path
) -> None:
    text = (GOLDEN / SAMPLES[0]).read_text("utf-8")
    for name in (f"log{ending}", "job.log"):
        (tmp_path / name).write_text(FORMS["list of a service"](text) if "js" in ending else text)
    assert headline(tmp_path / f"log{ending}") == headline(tmp_path / "job.log")


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"step {n:3}  loss 1.2345  time 0.5000  lr 0.0100  epoch 1 of 20  mem 12345MiB\n"
                f"valid {n:3}  loss 1.2345  time 0.5000  lr 0.0100\n" for n in range(9)),
        "".join(f"{name:<60}12.345ms 4\n" for name in ("aten::mm", "aten::add", "nccl", "mul")),
        "C:\\new\\_cache is not a folder, see my_log\n",
        "".join(f"worker-{n}: Traceback\nworker-{n}:   File \"a\"\n" for n in range(4)),
        "one\n\ntwo\n\nthree\n\nfour\n\nfive\n\nsix\n\nseven\n\neight\n",
    ],
)  # fmt: skip
def test_what_only_looks_wrapped_stays(text: str) -> None:
    assert read(text.encode()) == text.encode()


def read(data: bytes, size: int = -1, *, keeps_labels: bool = False) -> bytes:
    start = data[: 1 << 16]
    stream = without_wrapping(io.BytesIO(data), start, keeps_labels=keeps_labels, keeps_ranks=True)
    stream.read(7)
    stream.seek(0)
    parts = iter(lambda: stream.read(size), b"")
    return b"".join(parts) if size > 0 else stream.read()


@pytest.mark.parametrize(
    "text",
    [
        '  File "train.py", line 3, in main\n    step()\n  File "train.py", line 9, in f\n    x\n',
        "    wait (threading.py:359)\n    get (queue.py:180)\n",
        "0: step 1\n0: step 2\n0: step 3\n",
        "[rank3]: a\n[rank3]: b\n[rank3]: c\n",
        "gpu0: 31 C\ngpu0: 32 C\ngpu0: 33 C\n",
        "RuntimeError: a\nRuntimeError: b\nRuntimeError: c\n",
        "node1: a\nnode2: b\nnode3: c\n",
        "h100 | 8 | 3.2\nh100 | 16 | 6.1\nh100 | 32 | 12.0\n",
        ">>> import torch\n>>> torch.cuda.is_available()\n",
        '{"step": 1, "note": "&lt;"}\n{"step": 2}\n',
        "a\0> b\n> c\n",
        "> one line\n",
        "",
    ],
)
def test_what_belongs_to_a_line_stays(text: str) -> None:
    assert read(text.encode()) == text.encode()


def test_dates_of_a_runtime_stay_where_they_are_wanted() -> None:
    text = each("2026-01-02T03:04:05.678901234Z ")("step 1\nstep 2\n").encode()
    assert read(text, keeps_labels=True) == text
    assert read(text) == b"step 1\nstep 2\n"


@given(
    lines=st.lists(st.text("ab \t>|\x1b[0m&lt;é\xa0:-1", max_size=30), max_size=40),
    name=st.sampled_from((*WRAPPINGS, "")),
    size=st.integers(1, 50),
)
def test_it_does_not_matter_how_much_is_read_at_once(
    lines: list[str], name: str, size: int
) -> None:
    data = WRAPPINGS.get(name, str)("".join(f"{line}\n" for line in lines)).encode()
    assert read(data, size) == read(data)
    assert read(data).count(b"\n") == data.count(b"\n") or name == "json-file"


def test_powershell_breaks_errors_but_not_the_lines_of_a_program(tmp_path: Path) -> None:
    """It redirects the first as it shows them, in a console that may be narrow."""
    error = (
        'Traceback (most recent call last):\n  File "G:\\run\\train.py", line 9, in <module>\n'
        "    raise TritonMissing(inspect.currentframe())\ntorch._inductor.exc.TritonMissing: "
        "Cannot find a working triton installation. Either the package is not installed or it is "
        "too old\n"
        "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace, which a report of an error needs\n"
    )
    shell = f"python.exe : {error}    + FullyQualifiedErrorId : NativeCommandError\n"
    lines = [line[at : at + 58] for line in shell.split("\n") for at in range(0, len(line), 58)]
    file = tmp_path / "log.txt"
    file.write_bytes("\r\n".join((f"config {'x' * 200}", *lines)).encode("utf-16"))
    assert "triton is missing" in headline(file)


@pytest.mark.parametrize("before", [b"", b"nohup: ignoring input\n"])
def test_a_log_that_was_emptied_while_it_was_written_has_a_hole(
    tmp_path: Path, before: bytes
) -> None:
    file = tmp_path / "nohup.out"
    error = b"DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined."
    file.write_bytes(before + bytes(200_000) + error)
    assert "only 3 of 4 processes joined" in headline(file)


def test_other_bytes_keep_their_zeros() -> None:
    data = bytes(5_000) + bytes(range(256))
    assert read(data) == data


def test_a_long_line_without_an_end_is_read_in_pieces() -> None:
    data = b"> a\n> b\n> c\n> " + b"x" * 3_000_000
    assert read(data) == b"a\nb\nc\n" + b"x" * 3_000_000
