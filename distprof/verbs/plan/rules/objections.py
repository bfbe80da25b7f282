"""Rules on layouts that cannot or should not run: one row for each kind of objection.

:func:`distprof.verbs.plan.layout.objections` finds the objections. A row defines the code, the page
and the fix of one kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import fitting
from distprof.rules.base import HEADINGS, Draft, Limits, Page, Rule, parse_page
from distprof.terms import Confidence, Severity
from distprof.units import capitalized
from distprof.verbs.plan import ConfigurationResult

_SHARED = """
## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line).

## How the cost is computed
No cost is computed: the job would not start, so no step loses time. The finding is *modelled*.
"""
"""Sections that every page has unless it writes them itself."""


def _row(*, code: str, name: str, severity: Severity, kind: str, fix: str, page: str) -> Rule:
    """Build the rule on one kind of objection."""

    def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
        for objection in configuration.objections:
            if objection.kind == kind:
                yield Draft(
                    headline=fitting(
                        f"{capitalized(kind)}: {objection.message}", f"Layout: {objection.message}"
                    ),
                    message="The configuration alone shows it.",
                    fix=fix,
                    confidence=Confidence.MODELLED,
                    evidence=("configuration.objections",),
                )

    sections = {**parse_page(_SHARED).sections, **parse_page(page).sections}
    return Rule(
        code=code,
        name=name,
        severity=severity,
        since="0.1.0",
        needs=(ConfigurationResult,),
        costs_time=False,
        doc=Page({heading: sections[heading] for heading in HEADINGS}),
        check=check,
    )


RULES = (
    _row(
        code="CFG101",
        name="ranks-not-all-used",
        severity=Severity.ERROR,
        kind="ranks do not add up",
        fix="Choose degrees whose product dp · tp · pp · cp is the number of GPUs.",
        page="""
## What it detects
The product of the degrees of parallelism differs from the number of GPUs.

## Why it costs time
The launcher rejects it, or starts ranks that belong to no group and hang in the first collective.

## How to fix
Choose dp so that dp · tp · pp · cp is the number of GPUs. Most programs do this if you leave out
the degree of data parallelism.

## When it is wrong
If the file is for a different number of GPUs than you gave: `--gpus` overrides the file.

## Sources
Formula sheet, "Choosing a strategy".
""",
    ),
    _row(
        code="CFG102",
        name="heads-not-divisible",
        severity=Severity.ERROR,
        kind="heads not divisible",
        fix="Choose a tp that divides the heads.",
        page="""
## What it detects
The degree of tensor parallelism does not divide the attention heads, or does not fit the key/value
heads.

## Why it costs time
Each rank computes whole heads. If the heads do not divide evenly, the program stops while it builds
the model, after the job has waited for its GPUs.

## How to fix
Choose a tp that divides the heads. With grouped-query attention, choose one that also divides the
number of key/value heads, or is a multiple of it.

## When it is wrong
If the program pads heads, or repeats key/value heads by itself.

## Sources
Formula sheet, "Choosing a strategy" (T divides heads) and "Anti-patterns".
""",
    ),
    _row(
        code="CFG103",
        name="tensor-parallelism-beyond-node",
        severity=Severity.WARNING,
        kind="tensor parallelism leaves the fast domain",
        fix="Keep tp within a node, and use pp or sharding across nodes.",
        page="""
## What it detects
Tensor-parallel groups extend beyond one domain of fast links.

## Why it costs time
Tensor parallelism sends activations four times per layer and micro-batch, and computation waits
each time. Over a network ten times slower than NVLink, ranks wait for most of the step.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line). `--gpus-per-node` is the size of a fast domain.

## How the cost is computed
No cost is computed: `distprof plan --layout` shows the exposed time of the tensor axis for this
layout and for others.

## How to fix
Choose a tp that divides the number of GPUs in a node. If the model then does not fit, divide it
into pipeline stages, or shard it across nodes.

## When it is wrong
If the fast domain is larger than a node, as with NVL72: set `--gpus-per-node 72`.

## Sources
Formula sheet, "Choosing a strategy" and "Anti-patterns" (TP across nodes).
""",
    ),
    _row(
        code="CFG104",
        name="more-stages-than-layers",
        severity=Severity.ERROR,
        kind="more stages than layers",
        fix="Use fewer pipeline ranks, or fewer stages per rank.",
        page="""
## What it detects
A pipeline has more stages than the model has layers.

## Why it costs time
Some stages would be empty. Programs refuse to start, or those ranks only forward activations.

## How to fix
Use fewer pipeline ranks, or fewer stages per rank (interleaving).

## When it is wrong
If the program counts embedding and output as layers: then two more stages can be filled.

## Sources
Formula sheet, "Pipeline bubble".
""",
    ),
    _row(
        code="CFG105",
        name="sequence-too-short-to-share",
        severity=Severity.WARNING,
        kind="sequence too short to share",
        fix="Use tp or sharding instead: context parallelism is for long sequences.",
        page="""
## What it detects
Context parallelism leaves each rank fewer than 8,192 tokens of a sequence, or does not divide the
sequence evenly.

## Why it costs time
Blocks of keys and values travel around the ring while each rank computes attention with its current
block. With few tokens, this computation ends before the next block arrives, and the communication
is exposed in every layer.

## How the cost is computed
No cost is computed: `distprof plan --layout` shows the exposed time of the context axis for this
layout and for others.

## How to fix
Use a smaller cp, or none. For short sequences, tensor parallelism within the node and sharding are
better ways to divide a model.

## When it is wrong
If the activations of a whole sequence do not fit without cp: then cp saves memory, not time.

## Sources
Formula sheet, "Choosing a strategy" (context parallelism from 64 k tokens on).
""",
    ),
    _row(
        code="CFG106",
        name="experts-not-divisible",
        severity=Severity.ERROR,
        kind="experts not divisible",
        fix="Choose an ep that divides both the number of experts and dp.",
        page="""
## What it detects
The degree of expert parallelism does not divide the number of experts or of data-parallel ranks, or
the model has no experts.

## Why it costs time
All ranks of an expert group hold the same number of whole experts, and data-parallel ranks form
these groups. Otherwise programs stop while they build the model.

## How to fix
Choose an ep that divides both the number of experts per layer and dp.

## When it is wrong
If the program places redundant copies of experts: then the number of copies counts.

## Sources
Formula sheet, "Mixture of experts".
""",
    ),
    _row(
        code="CFG107",
        name="shards-not-divisible",
        severity=Severity.ERROR,
        kind="shards not divisible",
        fix="Choose shards that divide dp · cp.",
        page="""
## What it detects
Hybrid sharding divides the model into a number of shards that does not divide dp · cp.

## Why it costs time
No mesh of replicas × shards has this shape: the program stops while it builds the mesh.

## How to fix
Choose shards that divide dp · cp. One shard per GPU of a node keeps all-gathers inside nodes.

## When it is wrong
Almost never: no program that distprof supports has replicas of different sizes.

## Sources
Formula sheet, "Volume per training step" (HSDP).
""",
    ),
    _row(
        code="CFG108",
        name="batch-not-divisible",
        severity=Severity.ERROR,
        kind="batch not divisible",
        fix=(
            "Make the batch a multiple of dp times the micro-batch. With fewer sequences than dp, "
            "use fewer data-parallel ranks."
        ),
        page="""
## What it detects
The batch of a step is not a multiple of dp times the micro-batch, or has fewer sequences than there
are data-parallel ranks.

## Why it costs time
Ranks would have different numbers of micro-batches, or none, and wait for each other in every
collective. Most programs reject it.

## How to fix
Make the batch dp times the micro-batch times the number of micro-batches. If there are fewer
sequences than data-parallel ranks, use fewer of these ranks and divide the model instead.

## When it is wrong
If the program accepts a last micro-batch that is smaller than the others.

## Sources
Formula sheet, "Anti-patterns" (64 samples on 128 GPUs).
""",
    ),
    _row(
        code="CFG109",
        name="pipeline-hardly-filled",
        severity=Severity.WARNING,
        kind="too few micro-batches",
        fix="Use 4 micro-batches per pipeline rank: reduce the micro-batch or the stages.",
        page="""
## What it detects
A pipeline has fewer micro-batches per step than ranks.

## Why it costs time
The stages are never all busy at the same time. With M micro-batches on P ranks, the bubble fraction
is (P − 1)/(M + P − 1): at least half if M is below P.

## How the cost is computed
No cost is computed: `distprof plan --layout` shows the time of the bubble for this layout and for
others. For pipelines that are filled but have a large bubble, `planned-bubble` reports the time.

## How to fix
Use at least four micro-batches per rank: choose a smaller micro-batch, a larger batch, or fewer
stages and more sharding.

## When it is wrong
If the model does not fit otherwise and the batch cannot grow.

## Sources
Formula sheet, "Pipeline bubble" and "Anti-patterns" (16 stages with 4 micro-batches).
""",
    ),
    _row(
        code="CFG110",
        name="micro-batches-not-interleavable",
        severity=Severity.ERROR,
        kind="micro-batches not divisible",
        fix="Make the number of micro-batches a multiple of pp, or use one stage per rank.",
        page="""
## What it detects
The layout has several stages per rank, but the number of micro-batches is not a multiple of the
pipeline's ranks, or there is no pipeline.

## Why it costs time
Interleaved schedules process micro-batches in groups of one per pipeline rank. Programs refuse to
start if the groups do not come out even.

## How to fix
Make the number of micro-batches a multiple of pp, or use one stage per rank.

## When it is wrong
With schedules that take any number of micro-batches (torch's looped breadth-first, zero bubble with
its own groups): distprof does not distinguish them.

## Sources
Formula sheet, "Pipeline bubble" (interleaved).
""",
    ),
)
