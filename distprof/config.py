"""``distprof.toml``: the settings of a project.

The structs below define the file completely: they validate it, and the JSON Schema for editors is
generated from them. Unknown keys are errors, because a misspelt limit must not be ignored silently.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from distprof.bounds import Bound, read_plain
from distprof.errors import UsageError
from distprof.installed import is_web_address, published_site
from distprof.options import convert, option, parse_toml
from distprof.terms import CollectiveKind

CONFIG_FILE = "distprof.toml"
_KINDS = {kind.label: kind for kind in CollectiveKind}


def _count(text: str) -> msgspec.Meta:
    """Metadata of a count of parts of a model, for example its layers."""
    return option(text, ge=1, le=10**9, metavar="N")


class NamePattern(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pattern for names of communication."""

    match: Annotated[
        str,
        option(
            "Regular expression to search for in the name.",
            min_length=1,
            expects="a regular expression",
        ),
    ]
    library: Annotated[str, option("The library that runs it, for example nccl.")] = ""
    kind: Annotated[
        str, option("The operation; empty to read it from the name.", choices=["", *_KINDS])
    ] = ""

    def __post_init__(self) -> None:
        """Reject an invalid regular expression."""
        _check_regex(self.match)

    @property
    def operation(self) -> CollectiveKind | None:
        """The operation; None to read it from the name."""
        return _KINDS.get(self.kind)


class CommunicationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of communication, and names that only look like communication."""

    patterns: Annotated[
        tuple[NamePattern, ...], option("Patterns, tried in order; the first match decides.")
    ] = ()
    exclude: Annotated[
        tuple[Annotated[str, option("A name.", min_length=1, expects="a regular expression")], ...],
        option("Regular expressions for names that are computation."),
    ] = ()

    def __post_init__(self) -> None:
        """Reject invalid regular expressions."""
        for text in self.exclude:
            _check_regex(text)


class TopologyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scale-up domains: sets of GPUs connected by a fast fabric such as NVLink."""

    gpus_per_domain: (
        Annotated[
            int, option("GPUs per domain, in rank order; by default from the GPU's name.", ge=1)
        ]
        | None
    ) = None
    domains: Annotated[
        Mapping[str, tuple[str, ...]],
        option("Name of a domain to its nodes, as names or patterns (rack1-*)."),
    ] = {}


class CheckConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the gate ``distprof check``."""

    metrics: Annotated[
        tuple[str, ...], option("Gated metrics; by default step time and scaling efficiency.")
    ] = ()
    tolerance: Annotated[
        Mapping[str, Annotated[float, option("Accepted loss.", ge=0, lt=1)]],
        option("Metric to its accepted loss: 0.03 is 3 % of a time, or 3 points of a share."),
    ] = {}
    inconclusive_fails: Annotated[
        bool, option("Whether the check fails if there are too few repeats to decide.")
    ] = False
    session_noise: (
        Annotated[
            float,
            option(
                "Standard deviation of step time and efficiency between sessions on this machine:"
                " 0.03 is 3 %.",
                ge=0,
                lt=1,
            ),
        ]
        | None
    ) = None
    window: Annotated[int, option("Number of sessions that a baseline keeps.", ge=1, le=100)] = 8
    history: Annotated[
        str,
        option(
            "Folder or URL to add every checked run to; a folder is relative to this file.",
            expects="a folder or URL",
        ),
    ] = ""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for the shape of a transformer, in addition to its number of parameters.

    They are the same on the command line of ``distprof plan`` and in the table ``[model]``.
    """

    layers: Annotated[int, _count("Blocks.")] | None = None
    hidden: Annotated[int, _count("Hidden size.")] | None = None
    heads: Annotated[int, _count("Query heads.")] | None = None
    kv_heads: (
        Annotated[int, _count("Key and value heads; as many as query heads by default.")] | None
    ) = None
    ffn: (
        Annotated[
            int, _count("Width of the MLP; by default 8/3 of hidden, or derived from parameters.")
        ]
        | None
    ) = None
    vocabulary: Annotated[int, _count("Vocabulary size; 32000 by default.")] | None = None
    experts: Annotated[int, _count("Routed experts per layer.")] | None = None
    top_k: Annotated[int, _count("Experts per token.")] | None = None
    expert_ffn: Annotated[int, _count("Width of an expert; by default that of the MLP.")] | None = (
        None
    )


class ModelConfig(ModelShape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The trained model, for FLOP and MFU."""

    preset: (
        Annotated[str, option("Name of a published model.", expects="a model's name")] | None
    ) = None
    parameters: Annotated[float, option("Number of parameters.", ge=1, le=10**15)] | None = None
    sequence: Annotated[int, _count("Tokens per sequence.")] | None = None
    batch: Annotated[int, _count("Sequences per step, over all ranks.")] | None = None
    gated: Annotated[bool, option("Whether MLPs have a gate.")] = True
    precision: Annotated[
        Literal["bf16", "fp16", "fp8", "fp32"], option("Precision of matrix products.")
    ] = "bf16"
    recomputation: Annotated[
        Literal["none", "selective", "full"], option("Activations recomputed in the backward pass.")
    ] = "none"


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of ``distprof.toml``."""

    communication: Annotated[
        CommunicationConfig,
        option("How to recognise communication, in addition to distprof's own patterns."),
    ] = CommunicationConfig()
    limits: Annotated[
        Mapping[str, Mapping[str, int | float]],
        option("Rule code to overridden limits by name; distprof rule CODE lists them."),
    ] = {}
    hardware: Annotated[
        Mapping[str, Any],
        option("GPUs and links missing in the hardware sheet: [hardware.gpus.NAME], .links.NAME."),
    ] = {}
    fabric: Annotated[
        str,
        option(
            "Fabric profile to compare runs with, relative to this file.", expects="a file name"
        ),
    ] = ""
    model: Annotated[ModelConfig, option("The trained model, for FLOP and MFU.")] | None = None
    topology: Annotated[TopologyConfig, option("Scale-up domains of the cluster.")] = (
        TopologyConfig()
    )
    check: Annotated[CheckConfig, option("Settings of the gate distprof check.")] = CheckConfig()
    documentation: Annotated[
        str,
        option(
            "Documentation site that findings link to; by default the site of the package.",
            expects="an http or https address",
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Reject an invalid documentation address."""
        if self.documentation and not is_web_address(self.documentation):
            raise ValueError(f"documentation = {self.documentation[:80]!r} is not a web address")


class Config(ConfigFile, frozen=True, kw_only=True):
    """The configuration, with file names relative to the working directory."""

    source: str = ""  # The file that it was read from; empty for the defaults.

    @property
    def site(self) -> str:
        """The documentation site that findings link to; empty if unknown."""
        return self.documentation or published_site()


BOUND = Bound(
    reads=CONFIG_FILE, num_bytes=4_000_000, depth=100, beyond="refused", seconds_per_mb=30
)
"""Python's TOML parser is slow."""


def find_config(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """The nearest ``distprof.toml``: in ``folder`` (default: the working directory) or above it."""
    start = Path(folder or ".").absolute()
    candidates = (parent / CONFIG_FILE for parent in (start, *start.parents))
    return next((path for path in candidates if path.is_file()), None)


def load_config(path: str | os.PathLike[str] | None = None) -> Config:
    """Read a configuration file."""
    found = Path(path) if path is not None else find_config()
    if found is None:
        return Config()
    try:
        values = parse_toml(read_plain(found, BOUND.num_bytes).decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{found}: cannot read this configuration: {error}") from error
    except ValueError as error:
        raise UsageError(f"{found}: {error}") from error
    return parse_config(values, str(found))


def parse_config(values: Mapping[str, Any], source: str) -> Config:
    """The configuration in a parsed TOML document; a UsageError names a wrong key and its value."""
    file = convert(values, ConfigFile, f"{source}: ")
    history = file.check.history
    relative = {
        "fabric": _relative_to(file.fabric, source),
        "check": msgspec.structs.replace(
            file.check, history=history if "://" in history else _relative_to(history, source)
        ),
    }
    return Config(**{**msgspec.structs.asdict(file), **relative}, source=source)


def parse_communication(values: Mapping[str, Any], source: str) -> CommunicationConfig:
    """Parse the ``patterns`` and ``exclude`` of a ``[communication]`` table."""
    return convert(values, CommunicationConfig, f"{source}: ")


def _relative_to(file: str, source: str) -> str:
    """The path of a file that the configuration names relative to its own folder."""
    return str(Path(source).parent / file) if file else ""


def _check_regex(text: str) -> None:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:  # deep nesting, large repeats
        raise ValueError(f"{text[:80]!r} is not a regular expression: {error}") from None
