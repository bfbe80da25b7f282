"""``distprof bench`` for real: two CPU ranks, launched in each way, and a link of known speed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from distprof_runs.bench.plan import KINDS
from distprof_runs.launching.emulated_nodes import EmulatedNodes, Link, why_not

from distprof.artefacts.fabric_file import ComputeRate, FabricCurve, FabricFile, FabricFit
from distprof.errors import UsageError
from distprof.ingest.fabric import read_fabric
from tests.optional import optional
from tests.processes import ended
from tests.warm import Starter, WarmPython

pytestmark = pytest.mark.distributed
REASON = why_not()
BENCH = (sys.executable, "-m", "distprof", "bench", "--device", "cpu")
QUICK = ("--rounds", "3", "--round-s", "0.004")
LIMIT_S = 120
Ran = Callable[..., "subprocess.CompletedProcess[str]"]


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.fixture
def ran_warm(started_warm: Starter) -> Ran:
    """The same, without importing torch in each process anew."""
    return lambda *command: started_warm(command, os.environ)


def test_two_ranks_measure_every_collective_and_keep_the_profile(
    tmp_path: Path, ran_warm: Ran
) -> None:
    file = tmp_path / "fabric.json"
    sizes = ("--min-bytes", "1K", "--max-bytes", "1M", "--factor", "4")
    done = ran_warm(*BENCH, "--ranks", "2", *sizes, *QUICK, "-o", str(file), "--width", "80")
    assert done.returncode == 0, done.stderr
    profile = read_fabric(str(file))
    assert (profile.backend, profile.device, profile.world_size) == ("gloo", "cpu", 2)
    assert [curve.kind for curve in profile.curves] == list(KINDS)
    for curve in profile.curves:
        assert [p.bytes for p in curve.points] == [1 << k for k in range(10, 21, 2)]
        assert (curve.group_size, curve.num_nodes, curve.tier) == (2, 1, "node")
        for each in curve.points:
            assert each.num_rounds == 3
            assert each.low_ns is not None
            assert each.high_ns is not None
            assert each.low_ns <= each.time_ns <= each.high_ns
    assert "Bus bandwidth over 2 ranks in one node" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_a_profile_that_is_not_kept_names_no_file(ran_warm: Ran) -> None:
    what = ("--collectives", "all_reduce", "--max-bytes", "256", *QUICK)
    done = ran_warm(*BENCH, "--ranks", "2", *what, "--format", "json", "-q")
    assert done.returncode == 0, done.stderr
    profile = msgspec.json.decode(done.stdout, type=FabricFile)
    assert (profile.source, len(profile.curves)) == ("", 1)


def test_under_torchrun_the_processes_are_the_ranks(tmp_path: Path, ran_warm: Ran) -> None:
    file = tmp_path / "fabric.json"
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    bench = ("-m", "distprof", "bench", "--device", "cpu", "--collectives", "all_reduce")
    done = ran_warm(*torchrun, *bench, "--max-bytes", "256", *QUICK, "-o", str(file), "-q")
    assert done.returncode == 0, done.stderr
    (curve,) = read_fabric(str(file)).curves
    assert (curve.kind, curve.group_size, len(curve.points)) == ("all_reduce", 2, 2)
    assert done.stdout.count("show the latency: measure larger ones") == 1


def test_wrong_usage_is_told_before_any_rank_starts(tmp_path: Path, ran_warm: Ran) -> None:
    (tmp_path / "there.json").write_text("x")
    cases = [
        (("--ranks", "1"), "needs at least 2 ranks"),
        (("--collectives", "all_redo"), "choose from all_reduce"),
        (("--min-bytes", "1X"), "is not a size"),
        (("--min-bytes", "2M", "--max-bytes", "1M"), "swap them"),
        (("-o", str(tmp_path / "there.json")), "--force"),
    ]
    for arguments, says in cases:
        done = ran_warm(*BENCH, *arguments)
        assert done.returncode == 2
        assert says in done.stderr


def test_ranks_that_fail_are_a_failed_job_that_says_where_to_look(ran_warm: Ran) -> None:
    done = ran_warm(*BENCH, "--ranks", "2", "--max-bytes", "64", "--timeout-s", "0.001")
    assert done.returncode == 4
    assert "The job failed" in done.stderr
    folder = Path(done.stderr.strip().rpartition("Output of the ranks: ")[2])
    try:
        assert (folder / "rank00000" / "output.log").stat().st_size > 0
    finally:
        if folder.name.startswith("distprof-bench-"):
            shutil.rmtree(folder)


def quick_speeds(monkeypatch: pytest.MonkeyPatch) -> FabricFile:
    """What this CPU reaches, measured hastily."""
    torch = optional("torch")
    from distprof_runs.bench import compute

    monkeypatch.setattr(compute, "_SIZES", {"cpu": (16, 64)})
    monkeypatch.setattr(compute, "_MEMORY_BYTES", {"cpu": 1 << 16})
    monkeypatch.setattr(compute, "_ROUND_S", 0.002)
    monkeypatch.setattr(compute, "_WARM_UP_S", 0.001)
    return compute.measure(torch.device("cpu"))


def test_speeds_of_a_device_become_limits_of_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = quick_speeds(monkeypatch)
    assert [rate.dtype for rate in profile.rates] == ["bf16", "fp16", "fp32"]
    assert all(rate.size in (16, 64) and rate.flops > 0 for rate in profile.rates)
    assert (profile.device, profile.curves) == ("cpu", ())
    file = tmp_path / "fabric.json"
    file.write_bytes(msgspec.json.encode(profile))
    assert read_fabric(str(file)).rates == profile.rates
    done = ran(*BENCH, "--show", str(file))
    assert done.stdout.startswith("cpu reaches ")
    assert "Matrix products" in done.stdout


def test_a_type_that_the_device_cannot_multiply_is_left_out_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from distprof_runs.bench import compute

    def refuse(kind: str, size: int, device: object) -> Callable[[], object]:
        if kind == "fp16":
            raise RuntimeError("not implemented for 'Half'")
        return lambda: None

    monkeypatch.setattr(compute, "_product", refuse)
    profile = quick_speeds(monkeypatch)
    assert [rate.dtype for rate in profile.rates] == ["bf16", "fp32"]
    assert profile.notes == ("No product of 16 rows in fp16: not implemented for 'Half'.",)


def test_speeds_join_the_collectives_of_a_profile_of_the_same_device(tmp_path: Path) -> None:
    from distprof_runs.bench.job import _add_speeds

    curve = FabricCurve(kind="all_reduce", group_size=2, points=())
    before = FabricFile(origin="distprof bench", device="cpu", curves=(curve,))
    rate = ComputeRate(dtype="bf16", flops=1e9, size=64)
    found = FabricFile(origin="distprof bench", device="cpu", curves=(), rates=(rate,))
    file = tmp_path / "result.json"
    file.write_bytes(msgspec.json.encode(found))
    with pytest.raises(UsageError, match="measured on NVIDIA A100, this device is cpu"):
        _add_speeds(file, msgspec.structs.replace(before, device="NVIDIA A100"))
    _add_speeds(file, before)
    whole = read_fabric(str(file))
    assert (whole.curves, whole.rates) == ((curve,), (rate,))


def test_a_file_that_is_no_profile_gets_no_speeds(tmp_path: Path, ran_warm: Ran) -> None:
    file = tmp_path / "fabric.json"
    file.write_text("{}")
    done = ran_warm(*BENCH, "--compute", "-o", str(file), "--force")
    assert done.returncode == 3
    assert "expected: a fabric profile" in done.stderr
    assert file.read_text() == "{}"


def test_showing_a_log_of_nccl_tests_needs_no_ranks(ran_warm: Ran) -> None:
    log = Path(__file__).parents[1] / "golden/nccl-tests/superbench-a100-40gb-8gpu-allreduce.log"
    done = ran_warm(*BENCH, "--show", str(log), "--format", "md")
    assert done.returncode == 0
    assert done.stdout.startswith("### all\\_reduce over 8 ranks in one node reaches 235 GB/s")


def between_nodes(warm: WarmPython, folder: Path, link: Link, *options: str) -> FabricFile:
    """send_recv between one rank on each of two nodes that ``link`` joins."""
    file = folder / f"{link.delay_ms}-{link.mbit_per_s}.json"
    with EmulatedNodes(2, link) as nodes:
        meet = ("--nodes", "2", "--rdzv-endpoint", f"{nodes.address(0)}:29500", "--ranks", "1")
        what = ("--collectives", "send_recv", *options, "-q")
        environment = {**os.environ, **nodes.environment, "TORCH_CPP_LOG_LEVEL": "ERROR"}
        children = [
            warm.popen(
                nodes.command(
                    node,
                    [*BENCH, *meet, "--node-rank", str(node), *what]
                    + (["-o", str(file), "--force"] if node == 0 else []),
                ),
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for node in range(2)
        ]
        try:
            said = [child.communicate(timeout=LIMIT_S)[1] for child in children]
        finally:
            for child in children:  # a node whose peer has failed waits for it in vain
                if child.poll() is None:
                    child.kill()
                    child.communicate()
    assert [child.returncode for child in children] == [0, 0], said
    return read_fabric(str(file))


ECHO = """
import socket
listener = socket.create_server(("0.0.0.0", 29600))
print("ready", flush=True)
peer, _ = listener.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := peer.recv(64):
    peer.sendall(data)
"""
ASK = """
import socket, statistics, sys, time
peer = socket.create_connection((sys.argv[1], 29600))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
trips = []
for _ in range(100):
    asked = time.perf_counter_ns()
    peer.sendall(b"x")
    peer.recv(64)
    trips.append(time.perf_counter_ns() - asked)
print(statistics.median(trips) / 2)
"""


def half_round_trip_ns(link: Link) -> float:
    """What one byte takes over ``link`` here and now: the emulated delay itself can be late."""
    with EmulatedNodes(2, link) as nodes:
        command = nodes.command(0, [sys.executable, "-c", ECHO])
        with ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as echo:
            assert echo.stdout is not None
            assert echo.stdout.readline() == "ready\n"
            asked = command_output(nodes.command(1, [sys.executable, "-c", ASK, nodes.address(0)]))
    return float(asked)


def command_output(command: list[str]) -> str:
    """Stdout of a command that must succeed."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout


def only(profile: FabricFile) -> FabricCurve:
    (curve,) = profile.curves
    return curve


@pytest.mark.slow
@pytest.mark.skipif(bool(REASON), reason=f"nodes cannot be emulated here: {REASON}")
def test_a_link_of_known_rate_and_delay_is_measured_as_such(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    """What else the machine does disturbs single ones: one of four measurements must be near."""
    for milliseconds, most_ns in ((1, 2e6), (4, 5.5e6)):
        link = Link(mbit_per_s=200, delay_ms=milliseconds)
        fits = []
        for _ in range(4):
            fits.append(fit_of(link, warm_python, tmp_path))
            excess_ns = half_round_trip_ns(link) - milliseconds * 1e6
            # the shaper lets bursts of 128 KiB pass
            is_near = fits[-1].bandwidth_bytes_per_s == pytest.approx(25e6, rel=0.05)
            if is_near and fits[-1].alpha_low_ns < most_ns + excess_ns:
                break
        else:
            if taken_cpu() > BUSY_PERCENT:
                pytest.skip(f"other processes take the CPUs for {taken_cpu():.0f} % of the time")
            pytest.fail(f"{link}: {fits}")
        assert fits[-1].alpha_ns > milliseconds * 0.95e6


BUSY_PERCENT = 5.0
"""Share of the last ten seconds in which some process waited for a CPU."""


def taken_cpu() -> float:
    """That share, by the kernel's pressure-stall information; 0 where it has none."""
    try:
        pressure = Path("/proc/pressure/cpu").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    return float(pressure.split("avg10=")[1].split()[0])


def fit_of(link: Link, warm: WarmPython, folder: Path) -> FabricFit:
    """What ``bench`` fits to transfers between two nodes."""
    sizes = ("--min-bytes", "512", "--max-bytes", "8M", "--factor", "4", "--rounds", "3")
    curve = only(between_nodes(warm, folder, link, *sizes))
    assert curve.tier == "across"
    assert curve.fit is not None
    return curve.fit
