"""``distprof.toml``: what a user may set for a project.

::

    fabric = "fabric.json"

    [communication]
    patterns = [{ match = "acme_ring_sum", library = "acme", kind = "all_reduce" }]
    exclude = ["my_local_all_reduce"]

    [limits.COM101]
    overlap_ratio = 0.6

    [check]
    metrics = ["step_time", "efficiency"]
    tolerance = { step_time = 0.03 }

    [topology]
    gpus_per_domain = 72

    [model]
    preset = "llama3-8b"
    batch = 512

Unknown keys are errors: a misspelt limit must not be ignored in silence.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distprof.errors import UsageError
from distprof.terms import CollectiveKind

__all__ = [
    "CONFIG_FILE",
    "MODEL_KEYS",
    "CheckConfig",
    "CommunicationConfig",
    "Config",
    "NamePattern",
    "TopologyConfig",
    "find_config",
    "load_config",
    "parse_communication",
    "parse_config",
]

CONFIG_FILE = "distprof.toml"

_COUNTS = (
    "layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "experts", "top_k", "expert_ffn",
    "sequence", "batch",
)  # fmt: skip
_CHOICES = {
    "precision": ("bf16", "fp16", "fp8", "fp32"),
    "recomputation": ("none", "selective", "full"),
}
MODEL_KEYS = ("preset", "parameters", *_COUNTS, "gated", *_CHOICES)
"""What the table ``[model]`` may hold."""

_MOST = 10**15


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePattern:
    """Names that are communication.

    Args:
        match: Regular expression, searched for in the name.
        library: Who runs it, for example ``nccl``.
        kind: The operation; None to read it from the name.
    """

    match: str
    library: str = ""
    kind: CollectiveKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationConfig:
    """Names that are communication, and names that only look like it.

    Args:
        patterns: Tried in order, the first match decides.
        exclude: Regular expressions of names that are computation.
    """

    patterns: tuple[NamePattern, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyConfig:
    """Scale-up domains: sets of GPUs that a fast fabric such as NVLink joins.

    Args:
        gpus_per_domain: GPUs of one domain, in order of ranks; None to go by the device's name.
        domains: Name of a domain to its nodes, by name or pattern (``rack1-*``); empty for none.
    """

    gpus_per_domain: int | None = None
    domains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig:
    """What ``distprof check`` guards.

    Args:
        metrics: Those that decide; empty for step time and scaling efficiency.
        tolerance: Metric to the loss that is accepted: 0.03 is 3 % of a time, or 3 points of a
            share.
        inconclusive_fails: Whether too few repeats for a conclusion fail the check.
        session_noise: How much step time and efficiency differ from session to session of the
            machine, as a standard deviation: 0.03 is 3 %. None if unknown.
        window: Sessions that a baseline keeps.
        history: Folder or URL to which every checked run is added, a folder relative to the
            configuration's; empty for none.
    """

    metrics: tuple[str, ...] = ()
    tolerance: Mapping[str, float] = field(default_factory=dict)
    inconclusive_fails: bool = False
    session_noise: float | None = None
    window: int = 8
    history: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What ``distprof.toml`` says.

    Args:
        communication: How communication is recognised, beyond what ships with distprof.
        limits: Rule code to the limits it overrides, by name.
        hardware: GPUs and links that the hardware sheet lacks, as written; the sheet reads them
            (:func:`distprof.hardware.load_sheet`).
        fabric: File of the fabric profile that runs are held against; empty for none.
        model: What is trained, for FLOP and MFU: keys of :data:`MODEL_KEYS`, each of its type
            (:mod:`distprof.sections.efficiency.models` makes a shape of them).
        topology: Scale-up domains of the cluster.
        check: What ``distprof check`` guards.
        source: The file it was read from, empty for the defaults.
    """

    communication: CommunicationConfig = field(default_factory=CommunicationConfig)
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    fabric: str = ""
    model: Mapping[str, Any] = field(default_factory=dict)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    check: CheckConfig = field(default_factory=CheckConfig)
    source: str = ""


def find_config(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """The nearest ``distprof.toml``: in ``folder`` (default: the working directory) or above it."""
    start = Path(folder or ".").absolute()
    candidates = (parent / CONFIG_FILE for parent in (start, *start.parents))
    return next((path for path in candidates if path.is_file()), None)


def load_config(path: str | os.PathLike[str] | None = None) -> Config:
    """Read a configuration file.

    Args:
        path: The file; None for the nearest ``distprof.toml``, or the defaults without one.

    Raises:
        UsageError: If the file cannot be read or says something that distprof does not know.
    """
    found = Path(path) if path is not None else find_config()
    if found is None:
        return Config()
    try:
        values = tomllib.loads(found.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{found}: cannot read this configuration: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{found}: not valid TOML: {error}") from error
    return parse_config(values, str(found))


def parse_config(values: Mapping[str, Any], source: str) -> Config:
    """The configuration that a parsed TOML document says.

    Raises:
        UsageError: If a key is unknown or a value has the wrong type; the message names both.
    """
    known = ("communication", "limits", "hardware", "fabric", "model", "topology", "check")
    _refuse_unknown(values, known, source, "")
    return Config(
        communication=parse_communication(
            _table(values.get("communication", {}), source, "communication"), source
        ),
        limits=_limits(_table(values.get("limits", {}), source, "limits"), source),
        hardware=_table(values.get("hardware", {}), source, "hardware"),
        fabric=_beside(values.get("fabric", ""), source),
        model=_model(_table(values.get("model", {}), source, "model"), source),
        topology=_topology(_table(values.get("topology", {}), source, "topology"), source),
        check=_check(_table(values.get("check", {}), source, "check"), source),
        source=source,
    )


def _topology(values: Mapping[str, Any], source: str) -> TopologyConfig:
    _refuse_unknown(values, ("gpus_per_domain", "domains"), source, "topology")
    size = values.get("gpus_per_domain")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise UsageError(f"{source}: topology.gpus_per_domain must be a whole number above 0")
    domains = _table(values.get("domains", {}), source, "topology.domains")
    for name, nodes in domains.items():
        if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
            raise UsageError(f"{source}: topology.domains.{name} must be a list of nodes' names")
    return TopologyConfig(
        gpus_per_domain=size, domains={name: tuple(nodes) for name, nodes in domains.items()}
    )


def _check(values: Mapping[str, Any], source: str) -> CheckConfig:
    """The table ``[check]``; names of metrics are checked by the gate, which knows them."""
    known = ("metrics", "tolerance", "inconclusive_fails", "session_noise", "window", "history")
    _refuse_unknown(values, known, source, "check")
    metrics = values.get("metrics", [])
    if not isinstance(metrics, list) or not all(isinstance(name, str) for name in metrics):
        raise UsageError(f"{source}: check.metrics must be a list of names")
    tolerance = _table(values.get("tolerance", {}), source, "check.tolerance")
    for name, value in tolerance.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise UsageError(f"{source}: check.tolerance.{name} must be from 0 up and below 1")
    fails, history = values.get("inconclusive_fails", False), values.get("history", "")
    if not isinstance(fails, bool) or not isinstance(history, str):
        raise UsageError(
            f"{source}: check.inconclusive_fails is true or false, check.history a folder or URL"
        )
    noise, window = values.get("session_noise"), values.get("window", 8)
    if noise is not None:
        noise = float(_number(noise, source, "check.session_noise"))
        if not 0 <= noise < 1:
            raise UsageError(f"{source}: check.session_noise must be from 0 up and below 1")
    if isinstance(window, bool) or not isinstance(window, int) or not 1 <= window <= 100:
        raise UsageError(f"{source}: check.window must be a whole number from 1 to 100")
    return CheckConfig(
        metrics=tuple(metrics),
        tolerance={name: float(value) for name, value in tolerance.items()},
        inconclusive_fails=fails,
        session_noise=noise,
        window=window,
        history=history if "://" in history else _beside(history, source),
    )


def _beside(value: object, source: str) -> str:
    """A file named in the configuration: relative to it."""
    if not isinstance(value, str):
        raise UsageError(f"{source}: fabric must be the name of a file, not {value!r}")
    return str(Path(source).parent / value) if value else ""


def parse_communication(values: Mapping[str, Any], source: str) -> CommunicationConfig:
    """The ``patterns`` and ``exclude`` of a ``[communication]`` table.

    Raises:
        UsageError: If a key is unknown, a regular expression is invalid or a kind does not exist.
    """
    where = "communication"
    _refuse_unknown(values, ("patterns", "exclude"), source, where)
    patterns = values.get("patterns", [])
    exclude = values.get("exclude", [])
    if not isinstance(patterns, list) or not isinstance(exclude, list):
        raise UsageError(f"{source}: {where}.patterns and {where}.exclude must be lists")
    return CommunicationConfig(
        patterns=tuple(_pattern(pattern, source) for pattern in patterns),
        exclude=tuple(_regex(text, source, f"{where}.exclude") for text in exclude),
    )


def _pattern(value: object, source: str) -> NamePattern:
    where = "communication.patterns"
    table = _table(value, source, where)
    _refuse_unknown(table, ("match", "library", "kind"), source, where)
    library = table.get("library", "")
    if not isinstance(library, str):
        raise UsageError(f"{source}: {where}: library must be text, not {library!r}")
    return NamePattern(
        match=_regex(table.get("match"), source, where),
        library=library,
        kind=_kind(table.get("kind", ""), source, where),
    )


def _kind(value: object, source: str, where: str) -> CollectiveKind | None:
    if value == "":
        return None
    labels = {kind.label: kind for kind in CollectiveKind}
    if not isinstance(value, str) or value not in labels:
        raise UsageError(f"{source}: {where}: kind {value!r} is none of {', '.join(labels)}")
    return labels[value]


def _regex(value: object, source: str, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{source}: {where}: expected a regular expression, found {value!r}")
    try:
        re.compile(value)
    except re.error as error:
        raise UsageError(
            f"{source}: {where}: {value!r} is no regular expression: {error}"
        ) from None
    return value


def _model(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The table ``[model]``, every value of its type; counts are whole numbers above 0."""
    _refuse_unknown(values, MODEL_KEYS, source, "model")
    for key, value in values.items():
        where = f"{source}: [model] {key}"
        if key in _CHOICES:
            if value not in _CHOICES[key]:
                raise UsageError(f"{where}: {value!r} is none of {', '.join(_CHOICES[key])}")
        elif key == "preset":
            if not isinstance(value, str):
                raise UsageError(f"{where} must be the name of a model, not {value!r}")
        elif key == "gated":
            if not isinstance(value, bool):
                raise UsageError(f"{where} must be true or false, not {value!r}")
        elif not _is_count(value, whole=key in _COUNTS):
            raise UsageError(f"{where} must be a number above 0, not {value!r}")
    return dict(values)


def _is_count(value: object, *, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return False
    return 0 < value <= _MOST


def _limits(values: Mapping[str, Any], source: str) -> dict[str, dict[str, float]]:
    limits: dict[str, dict[str, float]] = {}
    for code, table in values.items():
        where = f"limits.{code}"
        limits[code] = {
            name: _number(value, source, f"{where}.{name}")
            for name, value in _table(table, source, where).items()
        }
    return limits


def _number(value: object, source: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{source}: {where} must be a number, not {value!r}")
    return value


def _table(value: object, source: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{source}: {where} must be a table, not {value!r}")
    return value


def _refuse_unknown(
    values: Mapping[str, Any], known: tuple[str, ...], source: str, where: str
) -> None:
    unknown = [key for key in values if key not in known]
    if unknown:
        place = f"[{where}] " if where else ""
        raise UsageError(
            f"{source}: {place}unknown key {unknown[0]!r}; known are {', '.join(known)}"
        )
