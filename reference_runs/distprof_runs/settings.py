"""The user's settings from a TOML file and the command line, and back. Does not import torch."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from distprof_probes.options import ProbeOptions

from distprof.artefacts.run_file import Fault
from distprof.errors import InputError, UsageError
from distprof.options import check_known, convert, option, parse_toml
from distprof.units import MOST_RANKS
from distprof_runs.configuration import Configuration
from distprof_runs.faults.orders import SLOW_LINK, parse_fault
from distprof_runs.options import TrainingOptions

Sections = Mapping[str, Mapping[str, Any]]
MOST_ON_NODE = 1_024
"""Most ranks on one node, each of which is a process."""

_FIXED = ("model", "training", "launch", "probes", "faults")
"""Sections of every workload's file, in addition to the one with its name."""


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number and placement of ranks. 0 means not given."""

    ranks: Annotated[
        int, option("Ranks on each node (2 if neither this nor --gpus is given).", le=MOST_ON_NODE)
    ] = 0
    gpus: Annotated[int, option("GPUs on each node, one rank per GPU.", le=MOST_ON_NODE)] = 0
    nodes: Annotated[int, option("Nodes; run the same command on each.", le=MOST_RANKS)] = 1
    node_rank: Annotated[
        int, option("Number of this node, from 0 (-1: from SLURM).", le=MOST_RANKS)
    ] = -1
    rdzv_endpoint: Annotated[str, option("HOST:PORT on the first node, where nodes meet.")] = ""
    emulate_nodes: Annotated[
        int, option("Emulate this many nodes here with network namespaces (needs root).", le=256)
    ] = 0

    @property
    def ranks_per_node(self) -> int:
        """Ranks to start on this host."""
        return self.gpus or self.ranks or 2

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return max(self.nodes, self.emulate_nodes) * self.ranks_per_node

    @property
    def is_emulating(self) -> bool:
        """Whether this process creates the nodes; the created ones have a number."""
        return self.emulate_nodes > 0 and self.node_rank < 0

    @property
    def this_node(self) -> int | None:
        """Number of this node, as given or as SLURM counts; None when unknown."""
        if self.nodes == 1:
            return 0
        if self.node_rank >= 0:
            return self.node_rank
        text = os.environ.get("SLURM_NODEID", "")
        return int(text) if text.isdecimal() else None

    def check(self) -> None:
        """Reject contradictory options.

        Raises:
            UsageError: With a fix.
        """
        if min(self.ranks, self.gpus) < 0 or self.nodes < 1 or self.node_rank < -1:
            raise UsageError("--ranks, --gpus and --nodes count from 1, --node-rank from 0")
        if self.gpus and self.ranks and self.gpus != self.ranks:
            raise UsageError("--gpus starts one rank on each GPU: remove --ranks")
        if self.is_emulating and self.nodes > 1:
            raise UsageError("--emulate-nodes creates the nodes: remove --nodes")
        if self.node_rank >= self.nodes:
            raise UsageError(
                f"--node-rank {self.node_rank}: nodes count from 0 to {self.nodes - 1}"
            )
        if self.nodes > 1 and not self.rdzv_endpoint:
            raise UsageError(
                f"--nodes {self.nodes}: give their meeting point, --rdzv-endpoint FIRST_NODE:29500"
            )
        if self.nodes > 1 and self.this_node is None:
            raise UsageError(
                f"--nodes {self.nodes}: number this one, --node-rank 0 to {self.nodes - 1}"
            )
        if self.nodes > 1 and self.node_rank < 0:
            _check_one_per_node(self.nodes)
        if self.rdzv_endpoint and not _is_endpoint(self.rdzv_endpoint):
            raise UsageError(
                f"--rdzv-endpoint {self.rdzv_endpoint}: write HOST:PORT, for example node0:29500"
            )


class FaultOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Faults to inject."""

    inject: Annotated[tuple[str, ...], option("Faults, for example slow-rank=1:1.5.")] = ()


def _check_one_per_node(nodes: int) -> None:
    """If SLURM numbers the nodes, check that it started one launcher on each."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    if tasks.isdecimal() and int(tasks) != nodes:
        raise UsageError(
            f"--nodes {nodes}: srun started {tasks} copies of this command; start one on each node:"
            f" srun --nodes {nodes} --ntasks {nodes}"
        )


def _is_endpoint(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon and port.isdecimal() and int(port) < 2**16)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about one reference run, checked."""

    configuration: Configuration  # The configuration, as in run.json.
    probes: ProbeOptions  # Options of its probes.
    launch: LaunchOptions  # Number and placement of the ranks.

    def on_device(self, device: Literal["cuda", "cpu"]) -> Settings:
        """The same with ``auto`` resolved."""
        training = msgspec.structs.replace(self.configuration.training, device=device)
        return replace(self, configuration=replace(self.configuration, training=training))


def read_settings_file(file: Path) -> dict[str, dict[str, Any]]:
    """Sections of a TOML file."""
    try:
        content = parse_toml(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(str(file), expected="a TOML file", found=found or str(error)) from error
    except ValueError as error:
        raise InputError(str(file), expected="TOML", found=str(error)) from error
    loose = [name for name, value in content.items() if not isinstance(value, dict)]
    if loose:
        raise InputError(
            str(file),
            expected="options in sections, for example [training]",
            found=f"{loose[0]} outside any section",
            fix="distprof run WORKLOAD --dry-run prints a complete file",
        )
    return content


def resolve(workload: str, file: Sections, given: Sections) -> Settings:
    """One set of options from the file and the command line, which overrides the file."""
    sections = (*_FIXED, workload)
    for name in file:
        check_known(f"section [{name}]", name, sections)
    merged = {name: {**file.get(name, {}), **given.get(name, {})} for name in sections}
    ordered = convert(merged.pop("faults"), FaultOptions, "[faults] ")
    faults = tuple(parse_fault(text) for text in ordered.inject)
    launch = convert(merged.pop("launch"), LaunchOptions, "[launch] ")
    launch.check()
    _check_link(faults, launch)
    steps = convert(merged["training"], TrainingOptions, "[training] ").steps
    asked = {"total_steps": steps, "num_steps": traced_steps(steps), **merged["probes"]}
    probes = convert(asked, ProbeOptions, "[probes] ")
    merged["probes"] = msgspec.to_builtins(probes)
    configuration = Configuration.from_sections(workload, merged, faults)
    configuration.model.resolved()
    return Settings(configuration=configuration, probes=probes, launch=launch)


def traced_steps(steps: int) -> int:
    """Steps to trace: ten, if available, to distinguish a straggler of two ranks from chance."""
    return min(10, max(4, steps // 3))


def _check_link(faults: Collection[Fault], launch: LaunchOptions) -> None:
    for fault in faults:
        if fault.kind == SLOW_LINK and not launch.emulate_nodes:
            raise UsageError(
                f"--fault {fault.text}: a slow link needs emulated nodes; add --emulate-nodes 2"
            )


def to_toml(settings: Settings) -> str:
    """A TOML file that describes exactly this run, with every default."""
    sections: dict[str, Mapping[str, Any]] = {
        **settings.configuration.to_sections(),
        "launch": msgspec.structs.asdict(settings.launch),
        "faults": {"inject": [fault.text for fault in settings.configuration.faults]},
    }
    blocks = (
        "\n".join([f"[{name}]", *(f"{key} = {_literal(value)}" for key, value in values.items())])
        for name, values in sections.items()
    )
    return "\n\n".join(blocks) + "\n"


def _literal(value: Any) -> str:
    """A TOML value; JSON's strings, numbers and lists are valid TOML."""
    return json.dumps(value, ensure_ascii=False)
