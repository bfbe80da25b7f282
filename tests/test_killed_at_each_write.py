"""A process killed at each of its writes: nothing recorded is lost, and the next call cleans up.

An audit hook in a forked process kills it at the n-th event that changes a file, for every n up to
its end. The product knows nothing of it.
"""

import io
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distprof.artefacts.files import write_atomically
from distprof.ingest import cache as entries
from distprof.ingest.cache import CacheKey, EntryWriter, find_entry
from distprof.ingest.tables_file import open_tables
from distprof.verbs.history.dataset import Store

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
DAYS_S = 200_000
MOST_WRITES = 200
KEY = CacheKey.of(io.BytesIO(b"trace"), {})


def is_change(event, arguments):
    """Whether an audit event changes a file; an ``open`` does if it is for writing."""
    if event != "open":
        return event in CHANGES
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def killed_at(number, action, folder):
    """Whether a process that does ``action`` was killed at its ``number``-th change."""
    pid = os.fork()
    if pid == 0:
        left = [number]

        def hook(event, arguments):
            if is_change(event, arguments):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            action(folder)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def age(folder):
    """All files are as old as they are when somebody comes back."""
    old = time.time() - DAYS_S
    for path in folder.rglob("*"):
        os.utime(path, (old, old), follow_symlinks=False)


def write_entry(root):
    with EntryWriter(root, KEY) as entry:
        entry.tables.write_rank(b"{}")
        entry.commit()


def replace_entry(root):
    """Make an entry again whose file is damaged."""
    write_entry(root)


def write_report(folder):
    write_atomically(folder / "report.json", b"new" * 1_000)


def add_to_history(folder):
    store = Store.at(str(folder))
    store.put(f"{1:020}-{'a' * 24}.parquet", b"row")


def damaged_entry(root):
    write_entry(root)
    KEY.path(root).write_text("damaged")


def old_report(folder):
    (folder / "report.json").write_bytes(b"old")


def check_entry(root):
    assert find_entry(root, KEY) is not None


def check_report(folder):
    assert (folder / "report.json").read_bytes() == b"new" * 1_000


def check_history(folder):
    mine, others = Store.at(str(folder)).names()
    assert [Store.at(str(folder)).get(name) for name in mine] == [b"row"]
    assert others == []


def report_is_whole(folder):
    assert (folder / "report.json").read_bytes() in (b"old", b"new" * 1_000)


def rank_of(entry):
    with open_tables(entry) as file:
        return file.rank()


def entry_is_whole_or_not_found(root):
    found = find_entry(root, KEY)
    assert found is None or rank_of(found) == b"{}"


def history_is_whole(folder):
    names, _ = Store.at(str(folder)).names()
    assert all(Store.at(str(folder)).get(name) == b"row" for name in names)


def nothing(_):
    return None


CASES = {
    "a new cache entry": (nothing, write_entry, entry_is_whole_or_not_found, check_entry),
    "a damaged one": (damaged_entry, replace_entry, entry_is_whole_or_not_found, check_entry),
    "a report": (old_report, write_report, report_is_whole, check_report),
    "a history": (nothing, add_to_history, history_is_whole, check_history),
}


@pytest.mark.parametrize("name", CASES)
def test_a_writer_killed_at_each_write_loses_nothing_and_leaves_nothing(name, tmp_path):
    prepare, action, holds, check = CASES[name]
    for number in range(1, MOST_WRITES):
        folder = tmp_path / str(number)
        folder.mkdir()
        prepare(folder)
        was_killed = killed_at(number, action, folder)
        holds(folder)
        age(folder)
        action(folder)
        check(folder)
        hidden = [path.name for path in folder.rglob(".*")]
        assert hidden == [], f"after write {number}"
        if not was_killed:
            break
    else:
        pytest.fail("the action has no end")
    assert number > 2


def test_a_file_that_another_process_is_writing_is_left_alone(tmp_path):
    other = tmp_path / ".report.json.0123abcd.part"
    other.write_bytes(b"half")
    write_report(tmp_path)
    assert other.exists()


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_cache_that_cannot_be_written_costs_the_cache_only(mode, tmp_path, monkeypatch):
    """Of the superuser, whom modes do not stop, the place is a file."""
    root = tmp_path / "cache"
    if os.geteuid():
        root.mkdir()
        root.chmod(mode)
    else:
        root.write_bytes(b"")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with EntryWriter(root, KEY) as entry:
        entry.tables.write_rank(b"{}")
        made = entry.commit()
    assert rank_of(made) == b"{}"
    assert "this run is not cached" in entry.note


@pytest.mark.parametrize(
    ("num_ranks", "num_files"), [(120, 48), pytest.param(2_000, 256, marks=pytest.mark.nightly)]
)
def test_many_ranks_need_few_open_files(num_ranks, num_files, tmp_path):
    sample = Path(__file__).parent / "golden/kineto/mi210-gpu-only/gpu_only_trace.json.gz"
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in range(num_ranks):
        (traces / f"rank{rank}.json.gz").symlink_to(sample)

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, num_files))

    words = ["analyze", str(traces), "--cache-dir", str(tmp_path / "cache"), "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "distprof", *words, "--executor", "process:2"],
        preexec_fn=limit,
        timeout=600,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Too many open files" not in done.stdout + done.stderr


def test_a_full_disk_is_said_and_leaves_no_half_file(tmp_path):
    """A limit on the size of files stands for a disk without space."""
    words = ["plan", "--model", "llama2-7b", "--gpus", "8", "--format", "json"]

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    done = subprocess.run(
        [sys.executable, "-m", "distprof", *words, "-o", str(tmp_path / "plan.json")],
        preexec_fn=limit,
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_constants_of_the_product_fit_the_age_in_these_tests():
    assert entries._STALE_S < DAYS_S
