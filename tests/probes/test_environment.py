"""Where a process stands, by each launcher's variables; and what is never written down."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from distprof_probes.environment import allowed_environment, git_commit, placement, versions
from distprof_probes.peer_loss import has_lost_a_peer, is_peer_loss

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "6",
    "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS_PER_NODE": "8",  # what the job was to have; this step has fewer
    "SLURM_STEP_TASKS_PER_NODE": "5,4(x2),3",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, None, None, None, "alone")),
        (TORCHRUN, (5, 8, 1, 4, 1, "torchrun")),
        (SLURM, (6, 16, 2, 4, 1, "slurm")),
        ({**SLURM, **TORCHRUN}, (5, 8, 1, 4, 1, "torchrun")),
        (OPEN_MPI, (3, 4, 1, 2, None, "mpi")),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, None, None, None, "mpi")),
        ({"RANK": "one", "WORLD_SIZE": "8"}, (0, 1, None, None, None, "alone")),
        ({"RANK": "8", "WORLD_SIZE": "8"}, (0, 1, None, None, None, "alone")),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4(x"}, (6, 16, 2, None, 1, "slurm")),
    ],
)
def test_placement(environment: dict[str, str], expected: tuple[object, ...]) -> None:
    found = placement(environment)

    assert (
        found.rank,
        found.world_size,
        found.local_rank,
        found.local_world_size,
        found.node,
        found.origin,
    ) == expected


def test_a_batch_script_outside_srun_is_no_rank() -> None:
    environment = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}

    assert placement(environment).origin == "alone"


def test_the_environment_holds_what_explains_performance_and_no_secrets() -> None:
    environment = {
        "NCCL_DEBUG": "INFO",
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "4",
        "RANK": "1",
        "NCCL_SECRET_KEY": "x",
        "SLURM_JOB_ID": "7",
        "SLURM_JWT": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HF_TOKEN": "x",
        "PATH": "/bin",
        "RANKING": "x",
    }

    assert sorted(allowed_environment(environment)) == [
        "NCCL_ALGO",
        "NCCL_DEBUG",
        "OMP_NUM_THREADS",
        "RANK",
        "SLURM_JOB_ID",
    ]


def test_a_long_value_is_cut() -> None:
    assert len(allowed_environment({"NCCL_X": "y" * 10_000})["NCCL_X"]) == 500


def test_the_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    assert git_commit(tmp_path) == ""
    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "m")
    clean = git_commit(tmp_path)
    (tmp_path / "a").write_text("2")

    assert len(clean) == 40
    assert git_commit(tmp_path) == f"{clean}+dirty"
    assert git_commit(tmp_path / "missing") == ""


def test_versions_name_python_and_leave_out_what_is_unknown() -> None:
    found = versions()

    assert found["python"].startswith("3.")
    assert all(found.values())


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error"
        " [127.0.0.1]:34235: Connection reset by peer",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by"
        " peer [127.0.0.1]:4711",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81]"
        " Timed out waiting 12000ms for recv operation to complete",
        "RuntimeError: Timed out waiting 60000ms for send operation to complete",
        "DistBackendError: NCCL error: remote process exited or there was a network error, NCCL"
        " version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a"
        " remote process exiting prematurely.",
        "DistBackendError: [Rank 1] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum=21, OpType=ALLREDUCE) ran for 60000 milliseconds before timing out.",
        "DistStoreError: wait timeout after 60000ms, keys: /default_pg/0//0",
    ],
)
def test_errors_of_those_left_behind_are_known(text: str) -> None:
    assert is_peer_loss(text)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "URLError: <urlopen error [Errno 110] Connection timed out>",
        "ValueError: timeout must be positive",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'",
        "KeyError: 'store'",
    ],
)
def test_errors_of_their_own_are_not_taken_for_the_loss_of_a_peer(text: str) -> None:
    assert not is_peer_loss(text)


def test_variables_that_tell_nodes_are_kept():
    wanted = {
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_DISTRIBUTION": "block",
        "PET_NPROC_PER_NODE": "8",
        "PET_NNODES": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_MCA_rmaps_base_mapping_policy": "node",
        "LOCAL_WORLD_SIZE": "8",
    }
    others = {"SLURM_JWT": "x", "PET_RDZV_ENDPOINT": "h:1", "OMPI_MCA_orte_hnp_uri": "x"}
    assert allowed_environment({**wanted, **others}) == wanted


def chained(*errors: Exception) -> BaseException:
    """The last error, each raised from the one before."""
    for first, then in pairwise(errors):
        then.__cause__ = first
    return errors[-1]


def test_what_is_raised_from_the_loss_of_a_peer_is_one() -> None:
    lost = RuntimeError("Timed out waiting 10000ms for send operation to complete")
    stage = RuntimeError("[Stage 0] failed to run forward")
    assert has_lost_a_peer(chained(lost, stage, ValueError("step")))
    assert not has_lost_a_peer(chained(KeyError("label"), RuntimeError("[Stage 0] failed")))
    endless = ValueError("a")
    endless.__cause__ = endless
    assert not has_lost_a_peer(endless)
