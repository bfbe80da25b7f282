"""Kernel logs in every form that dmesg and journalctl print: errors, crashes, the OOM killer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import distprof
from distprof.artefacts.run_file import RankEntry, RunFile
from distprof.ingest.kinds.logs import fits_device_log, read_device_log
from distprof.ingest.sensors.collect import Collector
from distprof.ingest.sensors.join import with_device_log
from distprof.ingest.sensors.messages import is_kernel_log, take_journal, take_kernel
from distprof.run.logs import DeviceLog
from tests.ingest.kinds.sensors.test_join import simulated, span_of

SEGFAULT = (
    "python3[4242]: segfault at 0 ip 00007f1c2a3b4c5d sp 00007ffd8e9f0a10 error 4 in "
    "libtorch_cuda.so[7f1c29000000+4000000] likely on CPU 12 (core 12, socket 0)"
)
CGROUP = (
    "Memory cgroup out of memory: Killed process 5151 (pt_data_worker) total-vm:98765432kB, "
    "anon-rss:61234567kB, file-rss:12345kB, shmem-rss:0kB, UID:1000 pgtables:120000kB "
    "oom_score_adj:0"
)
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4242, name=python3, GPU has fallen off the bus."
PREFIXES = {
    "dmesg": ("[12345.678901] ", "", None),
    "dmesg -T": ("[Sun Feb 23 16:24:18 2025] ", "", 1_740_327_858),
    "dmesg --time-format iso": ("2025-02-23T16:24:18,000000+00:00 ", "", 1_740_327_858),
    "short": ("Feb 23 16:24:18 node-1 kernel: ", "node-1", None),
    "short-precise": ("Feb 23 16:24:18.123456 node-1 kernel: ", "node-1", None),
    "short-iso": ("2025-02-23T16:24:18+0000 node-1 kernel: ", "node-1", 1_740_327_858),
    "short-full": ("Sun 2025-02-23 16:24:18 UTC node-1 kernel: ", "node-1", 1_740_327_858),
    "short-unix": ("1740327858.000000 node-1 kernel: ", "node-1", 1_740_327_858),
    "short-monotonic": ("[12345.678901] node-1 kernel: ", "node-1", None),
    "kern.log": ("Feb 23 16:24:18 node-1 kernel: [12345.678901] ", "node-1", None),
    "bracketed iso": ("[2025-02-23T16:24:18+00:00] ", "", 1_740_327_858),
    "spaced iso": ("2025-02-23 16:24:18 node-1 kernel: ", "node-1", 1_740_327_858),
    "syslog": ("2025-02-23T16:24:18.000000Z node-1 kernel - - - ", "node-1", 1_740_327_858),
    "dmesg -x": ("kern  :err   : [Sun Feb 23 16:24:18 2025] ", "", 1_740_327_858),
    "dmesg -x iso": ("kern  :warn  : 2025-02-23T16:24:18,000000+00:00 ", "", 1_740_327_858),
    "pdsh": ("node-1: [Sun Feb 23 16:24:18 2025] ", "node-1", 1_740_327_858),
    "srun --label": ("3: [Sun Feb 23 16:24:18 2025] ", "", 1_740_327_858),
}


def log_of(tmp_path, text, name="kernel.log"):
    path = tmp_path / name
    path.write_text(text)
    assert fits_device_log(str(path))
    return read_device_log(str(path))


@pytest.mark.parametrize("form", PREFIXES)
def test_each_form_tells_the_same(form, tmp_path):
    prefix, host, seconds = PREFIXES[form]
    text = "".join(f"{prefix}{line}\n" for line in ("usb 1-1: new", XID, SEGFAULT, CGROUP))
    log = log_of(tmp_path, text)
    xid, crash, killed = log.events
    assert (xid.kind, xid.number, xid.bus_id) == ("xid", 79, "00000000:9b:00.0")
    assert (xid.process, xid.pid, xid.text) == ("python3", 4242, "GPU has fallen off the bus.")
    assert (crash.kind, crash.process, crash.pid) == ("crash", "python3", 4242)
    assert crash.text == SEGFAULT.partition("]: ")[2]
    assert (killed.kind, killed.process, killed.pid) == ("oom", "pt_data_worker", 5151)
    assert killed.memory_bytes == (61_234_567 + 12_345) * 1024
    for event in log.events:
        assert event.host == host
        assert event.t_ns == (None if seconds is None else seconds * 10**9)
        assert event.time
    assert log.kernel_logs == ("kernel.log",)
    assert log.notes == ()


@pytest.mark.parametrize(
    ("line", "kind", "process", "pid"),
    [
        ("traps: python[77] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f+1]",
         "crash", "python", 77),
        ("traps: pt_autograd_0[8] trap invalid opcode ip:7f sp:7f error:0 in x.so[7f+1]",
         "crash", "pt_autograd_0", 8),
        ("ray::IDLE worker[9]: segfault at 10 ip 0 sp 0 error 6", "crash", "ray::IDLE worker", 9),
        ("python[123]: unhandled exception: DABT (lower EL), ESR 0x92000006, level 2 translation",
         "crash", "python", 123),
        ("Out of memory: Killed process 11 (python3) total-vm:1kB, anon-rss:2kB", "oom",
         "python3", 11),
        ("Killed process 12 (python), UID 0, total-vm:1kB, anon-rss:2kB", "oom", "python", 12),
    ],
)  # fmt: skip
def test_what_kernels_say_of_processes(line, kind, process, pid):
    collector = Collector("k.log")
    take_kernel(f"[1.000000] {line}", collector)
    (event,) = collector.events
    assert (event.kind, event.process, event.pid) == (kind, process, pid)


@pytest.mark.parametrize(
    "line",
    [
        "oom_reaper: reaped process 11 (python3), now anon-rss:0kB",
        "python3 invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0",
        "Out of memory: Kill process 11 (python3) score 900 or sacrifice child",
        "oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=11,uid=0",
        "audit: someone wrote Killed process into a file",
    ],
)
def test_lines_around_a_kill_count_for_nothing(line):
    collector = Collector("k.log")
    take_kernel(f"[1.000000] {line}", collector)
    assert collector.events == []


def entry(message, **changes):
    said = {
        "__REALTIME_TIMESTAMP": "1740327858123456",
        "_HOSTNAME": "node-1",
        "SYSLOG_IDENTIFIER": "kernel",
        "MESSAGE": message,
    }
    return json.dumps({**said, **changes})


def test_the_journal_as_json(tmp_path):
    lines = [entry("usb"), entry(XID), entry(SEGFAULT), entry(CGROUP), entry(XID)[:-9]]
    lines.append(entry(CGROUP, SYSLOG_IDENTIFIER="k3s"))  # a program that quotes the kernel
    log = log_of(tmp_path, "\n".join(lines), "journal.json")
    assert [event.kind for event in log.events] == ["xid", "crash", "oom"]
    assert {event.host for event in log.events} == {"node-1"}
    assert {event.t_ns for event in log.events} == {1_740_327_858_123_456_000}
    assert {event.clock for event in log.events} == {"epoch"}
    assert log.events[0].time == "2025-02-23T16:24:18Z"
    assert log.notes == ("journal.json: 1 unreadable entries of the journal skipped.",)


@given(st.text(max_size=300))
@settings(max_examples=200)
def test_any_text_is_read_without_an_error(text):
    collector = Collector("k.log")
    take_kernel(text, collector)
    take_journal(text, collector)
    take_journal(json.dumps({"MESSAGE": f"Killed process {text}"}), collector)
    assert is_kernel_log(text) in (True, False)


def test_a_kernel_log_without_an_error_says_so(tmp_path):
    text = "".join(f"[{n}.000001] usb 1-{n}: new high-speed USB device\n" for n in range(20))
    log_of(tmp_path, text)
    report = distprof.analyze(str(tmp_path / "kernel.log"))
    assert report.telemetry.kernel_logs == ("kernel.log",)
    assert report.verdict.headline.startswith("1 kernel log without GPU errors")


@pytest.mark.parametrize(
    "prefix",
    [
        "2025-02-23T16:24:18,000000+00:00 ",
        "2025-02-23 16:24:18 node-1 kernel: ",
        "kern  :info  : 2025-02-23T16:24:18,000000+00:00 ",
    ],
)
def test_a_dated_kernel_log_without_an_error_is_one(prefix, tmp_path):
    text = "".join(f"{prefix}usb 1-{n}: new high-speed USB device\n" for n in range(5))
    assert log_of(tmp_path, text).kernel_logs == ("kernel.log",)


@pytest.mark.parametrize(
    "text",
    [
        "[2025-02-23 16:24:18] step 1\n" * 9,
        "[2025-02-23T16:24:18+00:00] step 1\n" * 9,
        "info :warn : step 1\n" * 9,
        "2025-02-23 16:24:18 step 1\n" * 9,
        "2025-02-23T16:24:18+0000 step 1\n" * 9,
        "[1.5] one line\n",
        "iteration 1\n" * 9,
    ],
)
def test_a_log_of_a_program_is_no_kernel_log(text):
    assert not is_kernel_log(text)


def test_a_killed_process_is_first_on_the_page(tmp_path):
    (tmp_path / "kernel.log").write_text(f"Feb 23 16:24:18 node-1 kernel: {CGROUP}\n")
    report = distprof.analyze(str(tmp_path / "kernel.log"))
    assert report.verdict.headline == "The kernel killed pt_data_worker once: no memory was left"
    assert report.verdict.detail == (
        "pt_data_worker (pid 5151 on node-1) was killed at Feb 23 16:24:18, when it held 62.7 GB: "
        "its memory cgroup (container or job) was full."
    )
    assert [finding.code for finding in report.findings] == ["TEL109"]


def test_a_process_is_the_rank_that_run_json_names(tmp_path):
    run = simulated(seed=1)
    entries = tuple(RankEntry(rank=r, host="node-1", pid=4_240 + r) for r in range(4))
    job = RunFile(distprof_version="0", kind="run", command=(), started_ns=0, ranks=entries)
    run = replace(run, job=job)
    seconds = span_of(run)[0] // 10**9
    lines = [f"{seconds}.000000 node-1 kernel: {line}\n" for line in (SEGFAULT, CGROUP, XID)]
    joined = with_device_log(run, log_of(tmp_path, "".join(lines)))
    assert [event.rank for event in joined.get(DeviceLog).events] == [2, None, 2]
    elsewhere = "".join(lines).replace("node-1", "node-9")
    joined = with_device_log(run, log_of(tmp_path, elsewhere))
    assert [event.rank for event in joined.get(DeviceLog).events] == [None, None, None]


def test_many_crashes_of_one_program_are_one_row(tmp_path):
    text = "".join(
        f"Feb 23 16:24:{n:02d} node-1 kernel: {SEGFAULT.replace('4242', str(n))}\n"
        for n in range(30)
    )
    log_of(tmp_path, text)
    (row,) = distprof.analyze(str(tmp_path / "kernel.log")).telemetry.errors
    assert (row.kind, row.count, row.device, row.pid) == ("crash", 30, "node-1", 0)


def test_a_gpu_that_the_driver_did_not_find_again_is_xid_79(tmp_path):
    text = (
        "[  100.1] NVRM: The NVIDIA GPU 0000:3b:00.0\n"
        "               NVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    (event,) = log_of(tmp_path, text).events
    assert (event.kind, event.number, event.bus_id) == ("xid", 79, "")


def test_a_training_log_with_dates_and_brackets_is_no_kernel_log():
    line = (
        "2020-11-11 18:27:52,420 - mmdet - INFO - Epoch [1][{}/29317]\tlr: 2.000e-02, time: 0.391"
    )
    assert not is_kernel_log("".join(f"{line.format(number)}\n" for number in range(50, 500, 50)))
