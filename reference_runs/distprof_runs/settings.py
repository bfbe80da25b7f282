"""What the user asked for: a TOML file, the command line over it, and back. Free of torch."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from distprof_probes.options import ProbeOptions

from distprof.artefacts.run_file import Fault
from distprof.errors import InputError, UsageError
from distprof_runs.configuration import Configuration
from distprof_runs.faults.orders import SLOW_LINK, parse_fault
from distprof_runs.options import ModelOptions, TrainingOptions
from distprof_runs.registry import WORKLOADS

__all__ = ["LaunchOptions", "Settings", "read_settings_file", "resolve", "to_toml"]

Sections = Mapping[str, Mapping[str, Any]]
T = TypeVar("T")


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How many ranks, and where. 0 means: not given."""

    ranks: int = _option(0, "ranks on each node (2 if neither this nor --gpus is given)")
    gpus: int = _option(0, "GPUs on each node, one rank on each")
    nodes: int = _option(1, "nodes; run the same command on each")
    node_rank: int = _option(-1, "number of this node, from 0 (-1: as SLURM counts)")
    rdzv_endpoint: str = _option("", "HOST:PORT on the first node, where nodes meet")
    emulate_nodes: int = _option(
        0, "make so many nodes on this machine, out of network namespaces (needs root)"
    )

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
        """Whether this process makes the nodes; those it makes have a number."""
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
        """Refuse what contradicts itself.

        Raises:
            UsageError: With the way out.
        """
        if min(self.ranks, self.gpus) < 0 or self.nodes < 1 or self.node_rank < -1:
            raise UsageError("--ranks, --gpus and --nodes count from 1, --node-rank from 0")
        if self.gpus and self.ranks and self.gpus != self.ranks:
            raise UsageError("--gpus starts one rank on each GPU: leave --ranks out")
        if self.is_emulating and self.nodes > 1:
            raise UsageError("--emulate-nodes makes nodes here: leave --nodes out")
        if self.node_rank >= self.nodes:
            raise UsageError(
                f"--node-rank {self.node_rank}: nodes count from 0 to {self.nodes - 1}"
            )
        if self.nodes > 1 and not self.rdzv_endpoint:
            raise UsageError(
                f"--nodes {self.nodes}: say where they meet, --rdzv-endpoint FIRST_NODE:29500"
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


def _check_one_per_node(nodes: int) -> None:
    """Where SLURM numbers the nodes, it must have started as many launchers.

    Raises:
        UsageError: If it has started others.
    """
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    if tasks.isdecimal() and int(tasks) != nodes:
        raise UsageError(
            f"--nodes {nodes}: srun has started {tasks} of this command, and it takes one on each"
            f" node: srun --nodes {nodes} --ntasks {nodes}"
        )


def _is_endpoint(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon and port.isdecimal() and int(port) < 2**16)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about one reference run, checked.

    Args:
        configuration: What it does; goes to run.json.
        probes: What watches it.
        launch: How many ranks, and where.
    """

    configuration: Configuration
    probes: ProbeOptions
    launch: LaunchOptions

    def on_device(self, device: Literal["cuda", "cpu"]) -> Settings:
        """The same with ``auto`` decided."""
        training = replace(self.configuration.training, device=device)
        return replace(self, configuration=replace(self.configuration, training=training))


def read_settings_file(file: Path) -> dict[str, dict[str, Any]]:
    """Sections of a TOML file.

    Raises:
        InputError: If it cannot be read or is no TOML.
    """
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "no text in UTF-8"
        raise InputError(str(file), expected="a TOML file", found=found or str(error)) from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(str(file), expected="TOML", found=str(error)) from error
    loose = [name for name, value in content.items() if not isinstance(value, dict)]
    if loose:
        raise InputError(
            str(file),
            expected="options in sections, for example [training]",
            found=f"{loose[0]} outside of any section",
            fix="distprof run WORKLOAD --dry-run prints a whole file",
        )
    return content


def resolve(workload: str, file: Sections, given: Sections) -> Settings:
    """One set of options out of the file and the command line, which wins.

    Args:
        workload: Name of the reference run.
        file: Sections of the TOML file.
        given: The same from the command line, only what was typed.

    Raises:
        UsageError: If something is unknown, contradicts itself or cannot run.
    """
    names = known_names(workload)
    for section, options in file.items():
        _check_known(f"section [{section}]", section, names)
        for name in options:
            _check_known(f"[{section}] {name}", name, names[section])
    merged = {name: {**file.get(name, {}), **given.get(name, {})} for name in names}
    faults = tuple(parse_fault(str(text)) for text in merged.pop("faults").get("inject", ()))
    launch = _convert("launch", merged.pop("launch"), LaunchOptions)
    launch.check()
    _check_link(faults, launch)
    training = _convert("training", merged["training"], TrainingOptions)
    _convert("model", merged["model"], ModelOptions).resolved()
    merged["probes"].setdefault("total_steps", training.steps)
    merged["probes"].setdefault("num_steps", traced_steps(training.steps))
    probes = _convert("probes", merged["probes"], ProbeOptions)
    merged["probes"] = msgspec.to_builtins(probes)
    configuration = Configuration.from_sections(workload, merged, faults)
    return Settings(configuration=configuration, probes=probes, launch=launch)


def traced_steps(steps: int) -> int:
    """Steps to trace of a run: ten tell a straggler among two ranks from chance, if it has them."""
    return min(10, max(4, steps // 3))


def _check_link(faults: Collection[Fault], launch: LaunchOptions) -> None:
    for fault in faults:
        if fault.kind == SLOW_LINK and not launch.emulate_nodes:
            raise UsageError(
                f"--fault {fault.text}: a slow link lies between emulated nodes; add"
                " --emulate-nodes 2"
            )


def known_names(workload: str) -> dict[str, tuple[str, ...]]:
    """Section to the names of its options."""
    dataclasses = {
        "model": ModelOptions,
        "training": TrainingOptions,
        workload: WORKLOADS[workload].options,
        "launch": LaunchOptions,
    }
    names = {section: tuple(f.name for f in fields(c)) for section, c in dataclasses.items()}
    return {**names, "probes": ProbeOptions.__struct_fields__, "faults": ("inject",)}


def _check_known(what: str, name: str, known: Collection[str]) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    way_out = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    raise UsageError(f"{what} is unknown: {way_out}")


def _convert(section: str, values: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(dict(values), kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"[{section}] {error}") from error


def to_toml(settings: Settings) -> str:
    """A file that asks for exactly this run, every default spelled out."""
    sections: dict[str, Mapping[str, Any]] = {
        **settings.configuration.to_sections(),
        "launch": {f.name: getattr(settings.launch, f.name) for f in fields(LaunchOptions)},
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
