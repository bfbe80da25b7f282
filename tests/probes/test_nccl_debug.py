"""NCCL's log: asked for where the user has not spoken, and never claimed where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from distprof_probes.options import ProbeOptions
from distprof_probes.probes.nccl_debug import SUBSYSTEMS, NcclDebugProbe
from distprof_probes.session import Session

from distprof.artefacts.run_file import ProbeStatus

OPTIONS = ProbeOptions(measure_overhead=False)


def _session(folder: Path, environment: dict[str, str]) -> Session:
    return Session(folder, options=OPTIONS, probes=[NcclDebugProbe(environment)])


def _status(session: Session) -> ProbeStatus:
    (status,) = [status for status in session.status() if status.name == "nccl_debug"]
    return status


def test_nccl_is_asked_to_write_a_file_per_rank(tmp_path: Path) -> None:
    environment: dict[str, str] = {"PATH": "/bin"}
    session = _session(tmp_path, environment)
    assert environment == {
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,NET,TUNING",
        "NCCL_DEBUG_FILE": str(tmp_path / "rank00000" / "nccl.log"),
    }
    (tmp_path / "rank00000" / "nccl.log").write_text("host:1:2 [0] NCCL INFO Bootstrap\n")
    session.close()
    assert environment == {"PATH": "/bin"}
    assert _status(session).state == "on"


def test_each_call_of_a_collective_is_not_logged() -> None:
    assert "COLL" not in SUBSYSTEMS.split(",")


def test_a_percent_sign_in_the_folders_name_is_no_placeholder(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    session = _session(tmp_path / "50%h", environment)
    assert environment["NCCL_DEBUG_FILE"].endswith("/50%%h/rank00000/nccl.log")
    session.close()


@pytest.mark.parametrize(
    ("own", "target"),
    [
        ({"NCCL_DEBUG": "WARN"}, "to standard output"),
        ({"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_FILE": "/logs/%h.txt"}, "to /logs/%h.txt"),
    ],
)
def test_the_users_own_level_is_left_alone(
    tmp_path: Path, own: dict[str, str], target: str
) -> None:
    environment = dict(own)
    session = _session(tmp_path, environment)
    assert environment == own
    status = _status(session)
    session.close()
    assert environment == own
    assert status.state == "yielded"
    assert target in status.reason


def test_the_users_own_file_is_kept_and_named(tmp_path: Path) -> None:
    environment = {"NCCL_DEBUG_FILE": "/logs/mine"}
    session = _session(tmp_path, environment)
    assert environment["NCCL_DEBUG"] == "INFO"
    assert environment["NCCL_DEBUG_FILE"] == "/logs/mine"
    session.close()
    assert environment == {"NCCL_DEBUG_FILE": "/logs/mine"}
    assert _status(session).reason == "NCCL_DEBUG_FILE is set: NCCL writes to /logs/mine"


def test_the_users_own_subsystems_are_kept(tmp_path: Path) -> None:
    environment = {"NCCL_DEBUG_SUBSYS": "ALL"}
    session = _session(tmp_path, environment)
    assert environment["NCCL_DEBUG_SUBSYS"] == "ALL"
    session.close()
    assert environment == {"NCCL_DEBUG_SUBSYS": "ALL"}


def test_what_the_user_changes_meanwhile_stays(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    session = _session(tmp_path, environment)
    environment["NCCL_DEBUG"] = "VERSION"
    session.close()
    assert environment == {"NCCL_DEBUG": "VERSION"}


def test_a_log_that_never_came_is_unavailable(tmp_path: Path) -> None:
    session = _session(tmp_path, {})
    session.close()
    status = _status(session)
    assert status.state == "unavailable"
    assert status.reason == "there was no process group: NCCL was not used"


def test_gloo_writes_no_nccl_log(tmp_path: Path) -> None:
    """The group may come before the session or after it: both are usual."""
    distributed = pytest.importorskip("torch.distributed")
    environment: dict[str, str] = {}
    late = _session(tmp_path / "late", environment)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        late.step()
        assert environment == {}
        late.close()
        early = _session(tmp_path / "early", environment)
        assert environment == {}
        early.close()
    finally:
        distributed.destroy_process_group()
    for session in (late, early):
        assert _status(session).state == "unavailable"
        assert _status(session).reason == "backend gloo writes no NCCL log"


def test_the_process_itself_is_what_nccl_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    session = Session(tmp_path, options=OPTIONS, probes=[NcclDebugProbe()])
    assert os.environ["NCCL_DEBUG"] == "INFO"
    session.close()
    assert "NCCL_DEBUG" not in os.environ
