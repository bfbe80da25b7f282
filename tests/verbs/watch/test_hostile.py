"""Run directories with anything in them: no exception, and nothing that a terminal would obey."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from distprof.artefacts.records import (
    CollectivesRecord,
    GroupTimes,
    MemoryRecord,
    NvmlRecord,
    Pause,
)
from distprof.formats import RenderOptions
from distprof.ingest.job.growing import GrowingRun
from distprof.verbs.watch.alerts import default_levels
from distprof.verbs.watch.follow import report_on
from distprof.verbs.watch.show import ALERT, WATCH, one_line
from distprof.verbs.watch.state import JobWatch
from tests.cli.test_watch import job
from tests.job_folders import JobFolder

VALUES = (
    *(b"-1", b"0", b"1e308", b"18446744073709551615", b"9223372036854775807", b"null", b'"x"'),
    *(b"[]", b"{}", b"true", b'"\\u001b[2J\\u202e"', b"99999999999999999999999999", b"NaN"),
)


def collectives(step: int, waited_ns: int) -> CollectivesRecord:
    """Of three ranks, with a name that a terminal would obey."""
    text = "a\x1b[2J\u202e"
    times = {"num_ranks": 3, "first": 1 + 2 * step, "num": 2, "total_ns": (waited_ns, 5)}
    groups = (
        GroupTimes(group=text, kind="all", **times),
        GroupTimes(group="m", kind="messages", num=1, total_ns=(7,)),
    )
    return CollectivesRecord(step=step, groups=groups)


def run_folder(folder: Path, *, on_gpus: bool = False) -> Path:
    """Three ranks with every kind of file that is watched."""
    job(folder, late_ms=20, outcome="running", num=60)
    made = JobFolder(folder, mesh={"dp_replicate": 3})
    for rank in range(3):
        made.memory(rank, *(MemoryRecord(step=n, t_ns=n, rss_bytes=10**9) for n in range(9)))
        made.pauses(rank, *(Pause(kind="input", start_ns=1, end_ns=9, step=n) for n in range(9)))
        hot = ("hw_thermal_slowdown",)
        made.nvml(rank, *(NvmlRecord(t_ns=n, throttle_reasons=hot) for n in range(40)))
        made.collectives(rank, *(collectives(n, 10**8 if rank else 0) for n in range(60)))
        if on_gpus:
            made.rank_file(rank, device="NVIDIA H100")
    made.error(1, "no memory")
    (made.rank_dir(2) / "exit.json").write_bytes(b'{"code": 1}')
    (made.rank_dir(2) / "attach.json").write_bytes(b'{"rank": 2, "host": "h", "pid": 5}')
    return folder


def disturb(data: bytes, draw: random.Random) -> bytes:
    """Replace a value, cut, repeat, or damage bytes."""
    if not data:
        return data
    at = draw.randrange(len(data))
    match draw.randrange(4):
        case 0:
            start = data.find(b":", at) + 1
            end = min((i for i in (data.find(c, start) for c in (b",", b"}")) if i > 0), default=at)
            return data[:start] + draw.choice(VALUES) + data[end:] if start else data[:at]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[draw.randrange(len(data)) :] + data[at:]
        case _:
            return data[:at] + draw.randbytes(draw.randrange(1, 50)) + data[at:]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_run_directory_holds(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    folder = run_folder(tmp_path / "run", on_gpus=seed % 2 == 1)
    levels = {**default_levels(), "memory": 1e8}
    live, watched = GrowingRun(folder), JobWatch(str(folder), levels)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for look in range(6):
        for path in draw.sample(files, draw.randrange(1, 6)):
            path.write_bytes(disturb(path.read_bytes(), draw))
        now_s, now_ns = float(10 * look), 1_795_000_000 * 10**9
        alerts = watched.take(live.look(), now_s=now_s, now_ns=now_ns)
        report = report_on(watched, now_s=now_s, now_ns=now_ns)
        shown = [WATCH.reporter(name)(report, RenderOptions(width=80)) for name in ("text", "json")]
        shown += [one_line(report), *(ALERT.encode(alert).decode() for alert in alerts)]
        for text in shown:
            assert not {"\x1b", "\u202e"} & set(text)
        assert msgspec.json.decode(shown[1], type=type(report)) == report
