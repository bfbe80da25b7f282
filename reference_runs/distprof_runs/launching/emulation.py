"""A run on nodes that are emulated on this machine: one ``distprof run`` in each namespace.

Each node runs the same command as on a real cluster
(``--nodes N --node-rank I --rdzv-endpoint …``), so the run itself is unaware of the emulation. The
first node reports.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import msgspec
from distprof_probes.job.directory import new_run_directory
from distprof_probes.job.ending import ReportOptions

from distprof.artefacts.files import scratch
from distprof.artefacts.run_file import Fault
from distprof.errors import UsageError
from distprof_runs.faults.orders import SLOW_LINK, link_of
from distprof_runs.launching.emulated_nodes import EmulatedNodes, Link
from distprof_runs.launching.preparation import COMMAND_VARIABLE, check
from distprof_runs.settings import LaunchOptions, Settings, to_toml

_QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # the addresses have no names, and torch warns about it
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PORT = 29500  # each node has all ports of its own


def run_on_emulated_nodes(settings: Settings, report_options: ReportOptions) -> int:
    """Create the nodes, run the job on them, remove them; return the first node's exit code."""
    launch = settings.launch
    check(settings, launch.world_size)
    link = _link(settings.configuration.faults)
    run_dir = new_run_directory(report_options.out, settings.configuration.workload.name)
    with (
        EmulatedNodes(launch.emulate_nodes, link) as nodes,
        scratch("nodes") as folder,
    ):
        file = folder / "run.toml"
        file.write_text(to_toml(replace(settings, launch=_of_a_node(settings, nodes))))
        commands = [
            nodes.command(node, _command(settings, report_options, file, run_dir, node))
            for node in range(nodes.num_nodes)
        ]
        environment = {**os.environ, **nodes.environment, **_QUIET, COMMAND_VARIABLE: _typed()}
        children = [
            subprocess.Popen(command, env=environment, start_new_session=True)
            for command in commands
        ]
        with _signals_forwarded(children):
            exit_codes = [child.wait() for child in children]
    return exit_codes[0]


def _link(faults: tuple[Fault, ...]) -> Link:
    """The link of a ``slow-link`` fault; without one, as fast as the machine."""
    slow = [fault for fault in faults if fault.kind == SLOW_LINK]
    if len(slow) > 1:
        raise UsageError(
            f"--fault {slow[1].text}: all nodes share one link; give slow-link only once"
        )
    if not slow:
        return Link()
    mbit_per_s, delay_ms = link_of(slow[0])
    return Link(delay_ms=delay_ms, mbit_per_s=mbit_per_s)


def _of_a_node(settings: Settings, nodes: EmulatedNodes) -> LaunchOptions:
    endpoint = f"{nodes.address(0)}:{_PORT}"
    return msgspec.structs.replace(settings.launch, nodes=nodes.num_nodes, rdzv_endpoint=endpoint)


def _command(
    settings: Settings, report_options: ReportOptions, file: Path, run_dir: Path, node: int
) -> list[str]:
    workload = settings.configuration.workload.name
    command = [sys.executable, "-m", "distprof", "run", workload, "--config", str(file)]
    command += ["--node-rank", str(node), "-o", str(run_dir), *report_options.arguments]
    return command if node == 0 else [*command, "--quiet"]


def _typed() -> str:
    return json.dumps(["distprof", *sys.argv[1:]])


@contextmanager
def _signals_forwarded(children: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Forward each interruption to the nodes once: they end cleanly, and this process with them."""

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        for child in children:
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
