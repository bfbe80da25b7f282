"""The task runner installs once per set of pins."""

import pytest

import tasks


def make_venv(folder):
    python = folder / tasks.BIN.name / "python"
    python.parent.mkdir(parents=True)  # a second time would fail
    python.touch()


@pytest.fixture
def installing(tmp_path, monkeypatch):
    """Installs into a folder, and gives the commands that this takes."""
    commands = []
    monkeypatch.setattr(tasks, "call", commands.append)
    monkeypatch.setattr(tasks, "make_venv", make_venv)
    monkeypatch.setattr(tasks, "hash_of", lambda *names: "pins")

    def install(*packages, what=("dev",)):
        commands.clear()
        tasks.into(tmp_path / "venv", *packages, what=what)
        return [command[command.index("install") :] for command in commands]

    return install


def test_packages_are_installed_with_pins_and_only_once(installing):
    first = installing(".[run]", "--group=dev")
    assert first[-1][-3:] == ["--editable", ".[run]", "--group=dev"]
    assert all(tuple(command[2:4]) == ("-c", "constraints.txt") for command in first)
    assert installing(".[run]", "--group=dev") == []


def test_other_packages_and_other_pins_are_installed_again(installing, monkeypatch):
    installing(".[run]")
    assert installing(".[run]", what=("dev", "audit")) != []
    monkeypatch.setattr(tasks, "hash_of", lambda *names: "other pins")
    assert installing(".[run]") != []


def test_what_was_installed_together_is_there_for_each(installing):
    assert installing(".[run]", what=("dev", "audit")) != []
    assert installing(".[run]", what=("dev",)) == []
    assert installing(".[run]", what=("audit",)) == []


def test_an_installation_that_fails_is_tried_again(installing, monkeypatch):
    def fails(command):
        raise SystemExit(1)

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "call", fails)
        with pytest.raises(SystemExit):
            installing(".[run]")
    assert installing(".[run]") != []


def test_every_task_says_what_it_does():
    assert all(tasks.summary(task).endswith(".") for task in tasks.TASKS)


@pytest.fixture
def apt(monkeypatch):
    """Commands given to apt-get, on a machine of CI where nothing is installed."""
    commands = []

    def ran(command, **_):
        commands.append(command)
        return tasks.subprocess.CompletedProcess(command, 0)

    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(tasks.os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        tasks.shutil, "which", lambda name: name if name.startswith("apt") else None
    )
    monkeypatch.setattr(tasks.subprocess, "run", ran)
    return commands


def test_ci_installs_what_tests_need_each_alone_so_that_one_cannot_spoil_the_others(apt):
    tasks.install_system_packages()
    assert apt[0][-1] == "update"
    installed = [command[-1] for command in apt[1:]]
    assert installed == ["chromium", "iproute2", "prometheus", "prometheus-node-exporter"]


def test_system_packages_are_left_alone_outside_ci(apt, monkeypatch):
    monkeypatch.delenv("CI")
    tasks.install_system_packages()
    assert apt == []


def test_nothing_is_installed_that_is_there(apt, monkeypatch):
    monkeypatch.setattr(tasks.shutil, "which", lambda name: name)
    tasks.install_system_packages()
    assert apt == []
