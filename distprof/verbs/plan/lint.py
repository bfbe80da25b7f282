"""Checks a configuration with rules before the job is launched, and shows the result."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from distprof.artefacts.record import made_from
from distprof.bounds import Bound, read_plain, table_beside
from distprof.documents.ci import Case, Cases
from distprof.documents.document import Document
from distprof.documents.page import Page
from distprof.errors import InputError
from distprof.formats import RenderOptions
from distprof.options import parse_toml
from distprof.rules import all_rules
from distprof.rules.engine import run_rules
from distprof.sections.efficiency.models import SHAPE_KEYS
from distprof.sections.table import counted
from distprof.terms import Severity
from distprof.verbs.plan import ConfigurationFinding, ConfigurationResult, Lint
from distprof.verbs.plan.estimate import estimate, footprint
from distprof.verbs.plan.layout import (
    KINDS,
    LAYOUT_KEYS,
    Layout,
    Question,
    assumptions,
    objections,
    parse_layout,
    says,
)
from distprof.version import __version__

_MOST_BYTES = 4_000_000

BOUND = Bound(
    reads="a layout for distprof plan --lint", num_bytes=_MOST_BYTES, depth=100, seconds_per_mb=30
)

_FLAGS = frozenset({"zero-1", "fsdp", "recompute", "gated"})

_ZERO = {0: "ddp", 1: "zero-1", 2: "zero-2", 3: "fsdp"}
_WORDS = frozenset({"model", "gpu", "inter_node", "sharding", "recomputation", "family", "flavor"})
_MEGATRON = "Megatron arguments"


@cache
def _names() -> dict[str, dict[str, str]]:
    """What distprof calls the values of each kind of configuration, by key."""
    table = table_beside(__package__, "configurations.toml")
    own = {f"model.{key}": f"shape.{key}" for key in SHAPE_KEYS}
    own |= {f"layout.{key}": key for key in LAYOUT_KEYS}
    return {**table, "distprof": own | table["distprof"]}


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """Values that distprof uses from a configuration."""

    source: str  # The configuration file.
    kind: str  # Program that the configuration is for.
    # Values by distprof's names: layout keys, ``batch``, ``sequence``, ``gpus``, ``shape.*``.
    values: Mapping[str, Any] = msgspec.field(default_factory=dict)
    not_read: tuple[str, ...] = ()  # Keys that distprof does not use.

    def number(self, name: str) -> int | None:
        """An integer value; None if the file does not have it."""
        value = self.values.get(name)
        return value if isinstance(value, int) else None


MOST_CHARACTERS = 1 << 16
"""Of a script: the time for which ``shlex`` reads a word grows with the square of its length."""


def read_job_file(path: Path) -> JobFile:
    """Read a configuration, whose kind is detected from its content."""
    source = str(path)
    try:
        kind, found = _parse(read_plain(path, _MOST_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            source,
            expected=says("layout"),
            found=str(error)[:200],
        ) from error
    values: dict[str, Any] = {}
    not_read: list[str] = []
    for key, value in found.items():
        name = _names()[kind].get(key)
        if name is None or not _is_sound(name, value):
            not_read.append(key if name is None else f"{key} ({str(value)[:40]})")
        elif value != -1:
            values[name] = value
    return JobFile(source=source, kind=kind, values=_ours(kind, values), not_read=tuple(not_read))


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """The program and the values by its keys; ValueError if it is none of the known."""
    if re.search(r"--[a-z]+-model-parallel-size|--num-layers|--hidden-size", text):
        return _MEGATRON, _arguments(text)
    is_json = text.lstrip().startswith("{")
    load: Callable[[str], Any] = json.loads if is_json else parse_toml
    try:
        found = _flat(load(text))
    except ValueError as error:
        raise ValueError(f"neither Megatron arguments nor JSON nor TOML: {error}") from error
    if any(key.startswith("parallelism.") for key in found):
        # Name and flavor identify the model: its tree of modules is not needed
        kept = {key: v for key, v in found.items() if not key.startswith("model_spec.model.")}
        return "torchtitan", kept
    if is_json:
        return "DeepSpeed", found
    if any(key.startswith("layout.") for key in found):
        return "distprof", found
    raise ValueError("TOML with neither [layout] nor [parallelism]")


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Values of nested tables by dotted name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found


def _arguments(text: str) -> dict[str, Any]:
    """Options of a command line; the last occurrence wins, and a flag is True."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"a script of more than {MOST_CHARACTERS:,} characters")
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    found: dict[str, Any] = {}
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        if not word.startswith("--") or word == "--":
            continue
        typed, has_value, value = word[2:].partition("=")
        if not has_value and not after.startswith("--"):
            value = after
        name = typed.replace("_", "-")
        is_number = re.fullmatch(r"-?[0-9]{1,18}", value)
        is_flag = _names()[_MEGATRON].get(name) in _FLAGS or not value
        found[name] = True if is_flag else int(value) if is_number else value
    return found


def _is_sound(name: str, value: object) -> bool:
    """Whether a value has the expected type; ``auto`` and shell variables do not."""
    if name in _WORDS:
        return isinstance(value, str) and "$" not in value
    if name in _FLAGS:
        return isinstance(value, bool)
    if name == "params":
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return value == -1 or (0 if name == "stage" else 1) <= value <= 10**9


def _ours(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """Translate the values of another program into those of distprof's layouts."""
    if kind == "torchtitan":
        return _of_torchtitan(values)
    if kind == _MEGATRON:
        return _of_megatron(values)
    if kind == "DeepSpeed" and "stage" in values:
        stage = values.pop("stage")
        if stage in _ZERO:
            values["sharding"] = _ZERO[stage]
    return values


def _of_torchtitan(values: dict[str, Any]) -> dict[str, Any]:
    ours = dict(values)
    family, flavor = ours.pop("family", None), ours.pop("flavor", None)
    if family and flavor:
        ours["model"] = f"{family}-{flavor}".lower()
    if ours.get("recomputation") == "none":
        ours["recomputation"] = "selective"  # flash attention does not keep scores
    local = ours.get("local_batch")
    if ours.get("pp", 1) == 1:
        ours.pop("micro-batch", None)
        if local:
            ours["micro-batch"] = local
    return ours


def _of_megatron(values: dict[str, Any]) -> dict[str, Any]:
    ours = {key: value for key, value in values.items() if key not in _FLAGS}
    ours["gated"] = bool(values.get("gated"))
    ours["sharding"] = "fsdp" if "fsdp" in values else "zero-1" if "zero-1" in values else "ddp"
    per_stage = ours.pop("layers_per_stage", None)
    layers = ours.get("shape.layers")
    if per_stage and layers and "stages" not in ours:
        ours["stages"] = max(1, layers // (ours.get("pp", 1) * per_stage))
    if "nodes" in ours and "gpus_per_node" in ours:
        ours["gpus"] = ours["nodes"] * ours["gpus_per_node"]
    return ours


# The layout that a configuration file describes on a cluster of a given size --------------------


def num_gpus_of(file: JobFile) -> int | None:
    """World size that the file sets or implies; None if the launcher decides."""
    gpus = file.number("gpus")
    batch, micro = file.number("batch"), file.number("micro-batch")
    if gpus is not None or batch is None or micro is None or file.kind != "DeepSpeed":
        return gpus
    steps = file.number("micro-batches")
    if steps is None or batch % (micro * steps):
        return None
    return batch // (micro * steps) * (file.number("tp") or 1)


def layout_of(file: JobFile, *, num_gpus: int, batch: int | None = None) -> tuple[Layout, int]:
    """The layout, and the sequences per step, from ``batch`` or the file or its micro-batches."""
    values = {key: file.values[key] for key in LAYOUT_KEYS if key in file.values}
    others = math.prod(file.number(axis) or 1 for axis in ("tp", "pp", "cp"))
    if file.kind == "torchtitan":
        values |= _torchtitan(file, max(1, num_gpus // others))
    values.setdefault("dp", max(1, num_gpus // others))
    each = (file.number("micro-batch") or 1) * (file.number("micro-batches") or 1)
    of_rank = file.number("local_batch") or each
    sequences = batch or file.number("batch") or int(values["dp"]) * of_rank
    text = ",".join(f"{key}={value}" for key, value in values.items())
    return parse_layout(text, num_gpus=num_gpus, batch=sequences), sequences


def _torchtitan(file: JobFile, rest: int) -> dict[str, int | str]:
    """Sharding of a mesh of replicas × shards: DDP for one shard, HSDP for several replicas."""
    replicas = file.number("replicate") or 1
    shards = file.number("shard") or max(1, rest // replicas)
    divided = shards * (file.number("cp") or 1)
    mesh: dict[str, int | str] = {"dp": replicas * shards}
    if divided == 1:
        return {**mesh, "sharding": "ddp"}
    if replicas == 1:
        return {**mesh, "sharding": "fsdp"}
    return {**mesh, "sharding": "hsdp", "shards": divided}


def check_layout(
    question: Question,
    layout: Layout,
    file: JobFile,
    *,
    limits: Mapping[str, Mapping[str, float]] | None = None,
) -> Lint:
    """Check a layout with the rules on configurations; errors first, then by code."""
    result = configured(question, layout)
    findings = sorted(
        run_rules([result], limits).findings,
        key=lambda finding: (-finding.severity.rank, finding.code),
    )
    return made_from(
        file,
        Lint,
        version=__version__,
        layout=layout,
        findings=tuple(made_from(finding, ConfigurationFinding) for finding in findings),
        estimate=result.estimate,
        assumptions=assumptions(question),
    )


def configured(question: Question, layout: Layout) -> ConfigurationResult:
    """The evidence by which the rules judge a layout; no memory and times if it cannot run."""
    batch, sequence = question.batch, question.sequence
    found = objections(layout, question.model, question.cluster, batch=batch, sequence=sequence)
    result = ConfigurationResult(
        layout=layout, objections=tuple(found), usable_bytes=question.usable_bytes
    )
    if any(objection.kind not in KINDS["can run"] for objection in found):
        return result
    larger = None
    if layout.pp == 1 and layout.micro_batches % 2 == 0:
        size, number = 2 * layout.micro_batch, layout.micro_batches // 2
        larger = msgspec.structs.replace(layout, micro_batch=size, micro_batches=number)
    plain = msgspec.structs.replace(layout, sharding="ddp", shards=0)
    return msgspec.structs.replace(
        result,
        memory=footprint(question, layout),
        estimate=estimate(question, layout),
        larger=larger,
        larger_bytes=None if larger is None else footprint(question, larger).total_bytes,
        plain_bytes=footprint(question, plain).total_bytes if layout.zero_stage == 3 else None,
    )


_FEW = 12


def _verdict(lint: Lint) -> str:
    errors = sum(finding.severity is Severity.ERROR for finding in lint.findings)
    others = len(lint.findings) - errors
    if errors:
        return f"This configuration cannot run as it is: {counted(errors, 'error')}."
    if others:
        return f"This configuration can run: {counted(others, 'remark')}."
    return "This configuration can run. No problems found."


def _facts(lint: Lint, *, show_all: bool) -> Iterator[str]:
    yield f"{lint.kind} · {lint.layout.text.replace(',', ', ')} · modelled"
    if lint.estimate is not None:
        yield says("costs", costs=lint.estimate)
    if lint.not_read:
        chosen = lint.not_read if show_all else lint.not_read[:_FEW]
        left = len(lint.not_read) - len(chosen)
        more = f" and {left:,} more (--all)" if left else ""
        yield f"Keys not read: {', '.join(chosen)}{more}."


def _page(lint: Lint, options: RenderOptions) -> Page:
    origin, *facts = _facts(lint, show_all=options.show_all)
    return Page(
        verdict=_verdict(lint),
        origin=origin,
        facts=tuple(facts),
        points=tuple(
            f"{finding.severity.value} {finding.code}: {finding.headline}. {finding.message} "
            f"{finding.fix}"
            for finding in lint.findings
        ),
    )


def _cases(lint: Lint, _: RenderOptions) -> Cases:
    """A test case per problem; a case fails if the problem keeps the configuration from running."""
    names = {rule.code: rule.name for rule in all_rules()}
    return Cases(
        command="distprof plan --lint",
        version=lint.version,
        source=lint.source,
        verdict=_verdict(lint),
        cases=tuple(
            made_from(
                finding,
                Case,
                name=names.get(finding.code, ""),
                message=finding.headline,
                detail=finding.message,
                outcome="failed" if finding.severity is Severity.ERROR else "passed",
            )
            for finding in lint.findings
        ),
        is_source_file=True,
    )


LINT = Document(
    kind=Lint,
    noun="a plan",
    fix="make it again with: distprof plan --lint FILE --format json",
    page=_page,
    cases=_cases,
)
