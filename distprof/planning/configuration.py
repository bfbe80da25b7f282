"""What is wrong with a layout that somebody is about to launch."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from distprof.planning.estimate import estimate
from distprof.planning.footprint import footprint
from distprof.planning.job_file import JobFile
from distprof.planning.layout import Layout, objections
from distprof.planning.question import Question, assumptions
from distprof.planning.result import Estimate
from distprof.terms import Severity
from distprof.units import format_bytes, format_duration, format_ratio

__all__ = ["LINT_SCHEMA", "ConfigurationFinding", "Lint", "check_layout"]

LINT_SCHEMA = "distprof.plan-lint/1"
_BUBBLE = 0.10
_EXPOSED = 0.20
_ROOM = 0.9

_OBJECTIONS = {
    "ranks do not add up": ("CFG101", Severity.ERROR, "Make dp · tp · pp · cp the number of GPUs."),
    "heads not divisible": ("CFG102", Severity.ERROR, "Choose a tp that divides the heads."),
    "tensor parallelism leaves the fast domain": (
        "CFG103",
        Severity.WARNING,
        "Keep tp within a node; use pp or sharding across nodes.",
    ),
    "more stages than layers": ("CFG104", Severity.ERROR, "Lower pp, or stages a rank."),
    "sequence too short to share": (
        "CFG105",
        Severity.WARNING,
        "Context parallelism is for long sequences: use tp or sharding.",
    ),
    "experts not divisible": (
        "CFG106",
        Severity.ERROR,
        "Choose an ep that divides both experts and dp.",
    ),
    "shards not divisible": ("CFG107", Severity.ERROR, "Choose shards that divide dp · cp."),
    "batch not divisible": (
        "CFG108",
        Severity.ERROR,
        "Make the batch a multiple of dp times the micro-batch; with fewer sequences than dp,"
        " use fewer data-parallel ranks.",
    ),
    "too few micro-batches": (
        "CFG109",
        Severity.WARNING,
        "Use 4 micro-batches per pipeline rank, by a smaller micro-batch or fewer stages.",
    ),
    "micro-batches not divisible": (
        "CFG110",
        Severity.ERROR,
        "Interleaving needs micro-batches in multiples of pp.",
    ),
}


class ConfigurationFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One problem of a configuration; modelled, since nothing has run.

    Args:
        code: Never reused, for example ``CFG111``.
        severity: An error cannot run.
        message: With the numbers.
        fix: What to do.
    """

    code: str
    severity: Severity
    message: str
    fix: str


class Lint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was found in a configuration.

    Args:
        schema: Of this document.
        version: Of distprof.
        source: The file.
        kind: Whose configuration it is.
        layout: That it means.
        findings: Errors first.
        estimate: What the layout costs; None where it cannot run.
        not_read: Keys of which nothing was taken.
        assumptions: What the estimate rests on.
    """

    schema: str = LINT_SCHEMA
    version: str
    source: str
    kind: str
    layout: Layout
    findings: tuple[ConfigurationFinding, ...]
    estimate: Estimate | None
    not_read: tuple[str, ...]
    assumptions: tuple[str, ...]


def check_layout(question: Question, layout: Layout, file: JobFile, *, version: str = "") -> Lint:
    """Hold a layout against the rules of configurations."""
    found = list(_refusals(question, layout))
    costs = None
    if not any(finding.severity is Severity.ERROR for finding in found):
        costs = estimate(question, layout)
        found += [*_memory(question, layout), *_slow(costs), *_needless(question, layout)]
    found.sort(key=lambda finding: (-finding.severity.rank, finding.code))
    return Lint(
        version=version,
        source=file.source,
        kind=file.kind,
        layout=layout,
        findings=tuple(found),
        estimate=costs,
        not_read=file.not_read,
        assumptions=assumptions(question),
    )


def _refusals(question: Question, layout: Layout) -> Iterator[ConfigurationFinding]:
    where = {"batch": question.batch, "sequence": question.sequence}
    for objection in objections(layout, question.model, question.cluster, **where):
        code, severity, fix = _OBJECTIONS[objection.kind]
        message = f"{objection.kind}: {objection.message}"
        yield _finding(code, severity, message[0].upper() + message[1:], fix)


def _memory(question: Question, layout: Layout) -> Iterator[ConfigurationFinding]:
    memory, usable = footprint(question, layout), question.usable_bytes
    if memory.total_bytes <= usable:
        return
    state = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    if state <= usable:
        fix = "Use a smaller micro-batch, full recomputation, or more tp."
    elif layout.sharding == "ddp":
        fix = "Shard the state: zero-1, or fsdp."
    else:
        fix = "Shard more of the state, or divide the model by tp and pp."
    message = (
        f"Does not fit: {format_bytes(memory.total_bytes)} a GPU, of which"
        f" {format_bytes(state)} are state; {format_bytes(usable)} are usable"
    )
    yield _finding("CFG111", Severity.ERROR, message, fix)


def _slow(costs: Estimate) -> Iterator[ConfigurationFinding]:
    layout = costs.layout
    if costs.bubble_fraction > _BUBBLE and layout.micro_batches >= layout.pp:
        message = (
            f"{format_ratio(costs.bubble_fraction)} of the pipeline is bubble with"
            f" {layout.micro_batches} micro-batches on {layout.pp} ranks"
        )
        fix = "Use more micro-batches, several stages a rank, or fewer ranks."
        yield _finding("CFG112", Severity.WARNING, message, fix)
    exposed = sum(axis.exposed_ns for axis in costs.axes if axis.axis.startswith("dp"))
    if exposed > _EXPOSED * costs.step_ns:
        message = (
            f"Data parallelism is exposed for {format_duration(exposed)} of"
            f" {format_duration(costs.step_ns)}: too little is computed per rank"
        )
        fix = "Use a larger batch, fewer data-parallel ranks, or hsdp within nodes."
        yield _finding("CFG113", Severity.WARNING, message, fix)


def _needless(question: Question, layout: Layout) -> Iterator[ConfigurationFinding]:
    """Accumulation and sharding that memory does not ask for."""
    from msgspec.structs import replace

    room = _ROOM * question.usable_bytes
    if layout.pp == 1 and layout.micro_batches > 1 and layout.micro_batches % 2 == 0:
        larger = replace(
            layout, micro_batch=2 * layout.micro_batch, micro_batches=layout.micro_batches // 2
        )
        if footprint(question, larger).total_bytes <= room:
            message = (
                f"Gradients are accumulated although micro-batches of {larger.micro_batch} fit"
            )
            yield _finding("CFG114", Severity.INFO, message, "Double the micro-batch.")
    plain = replace(layout, sharding="ddp", shards=0)
    if layout.zero_stage == 3 and footprint(question, plain).total_bytes <= room:
        message = "Weights are sharded although the whole state fits"
        yield _finding("CFG115", Severity.INFO, message, "Use ddp or zero-1: a third less is sent.")


def _finding(code: str, severity: Severity, message: str, fix: str) -> ConfigurationFinding:
    return ConfigurationFinding(code=code, severity=severity, message=f"{message}.", fix=fix)
