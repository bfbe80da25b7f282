"""Rules on what speaks against a layout before anything runs: one row for each kind of objection.

:func:`distprof.verbs.plan.layout.objections` finds them; a row gives a kind its code, its page and
its fix.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, Rule
from distprof.rules.page import HEADINGS, Page, parse_page
from distprof.terms import Confidence, Severity
from distprof.verbs.plan.configuration import ConfigurationResult

__all__ = ["RULES"]

_SHARED = """
## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line).

## How the cost is computed
It is not: the job would not start, so no step is lost to it. The finding is *modelled*.
"""
"""Sections of every page that does not write its own."""


def _row(*, code: str, name: str, severity: Severity, kind: str, fix: str, page: str) -> Rule:
    """The rule on one kind of objection.

    Args:
        code: Of the rule, never reused.
        name: The problem.
        severity: An error cannot run.
        kind: As :func:`distprof.verbs.plan.layout.objections` calls it.
        fix: What to do.
        page: Sections of the page, without those of ``_SHARED`` that fit.
    """

    def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
        for objection in configuration.objections:
            if objection.kind == kind:
                message = f"{kind}: {objection.message}."
                yield Draft(
                    message=message[0].upper() + message[1:],
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
        doc=Page(name, {heading: sections[heading] for heading in HEADINGS}),
        check=check,
    )


RULES = (
    _row(
        code="CFG101",
        name="ranks-not-all-used",
        severity=Severity.ERROR,
        kind="ranks do not add up",
        fix="Make dp · tp · pp · cp the number of GPUs.",
        page="""
## What it detects
The degrees of parallelism of a configuration multiply to another number than there are GPUs.

## Why it costs time
The launcher refuses it, or starts ranks that have no part in any group and hang in the first
collective.

## How to fix
Choose dp so that dp · tp · pp · cp is the number of GPUs; most programs do so by themselves if the
degree of data parallelism is left out.

## When it is wrong
Where the file is meant for another number of GPUs than was typed: `--gpus` wins over the file.

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
The degree of tensor parallelism divides neither the attention heads, nor suits the heads of keys
and values.

## Why it costs time
Each rank computes whole heads. Where they do not divide the program stops while it builds the
model, after the job has waited for its GPUs.

## How to fix
A tp that divides the heads; with grouped queries one that divides the heads of keys and values, or
is a multiple of their number.

## When it is wrong
Where a program pads heads, or repeats those of keys and values by itself.

## Sources
Formula sheet, "Choosing a strategy" (T divides heads) and "Anti-patterns".
""",
    ),
    _row(
        code="CFG103",
        name="tensor-parallelism-beyond-node",
        severity=Severity.WARNING,
        kind="tensor parallelism leaves the fast domain",
        fix="Keep tp within a node; use pp or sharding across nodes.",
        page="""
## What it detects
Groups of tensor parallelism do not lie within one domain of fast links.

## Why it costs time
Tensor parallelism sends activations four times a layer and micro-batch, and computation waits for
each. Over a network that is ten times slower than NVLink most of the step is waiting.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line). GPUs of one fast domain are `--gpus-per-node`.

## How the cost is computed
It is not by itself: `distprof plan --layout` shows the exposed time of the tensor axis for this
layout and for others.

## How to fix
A tp of at most the GPUs of a node, and a divisor of them. What does not fit then is divided by
pipeline stages or sharding across nodes.

## When it is wrong
Where the fast domain is larger than a host, as with NVL72: say so with `--gpus-per-node 72`.

## Sources
Formula sheet, "Choosing a strategy" and "Anti-patterns" (TP across nodes).
""",
    ),
    _row(
        code="CFG104",
        name="more-stages-than-layers",
        severity=Severity.ERROR,
        kind="more stages than layers",
        fix="Lower pp, or stages a rank.",
        page="""
## What it detects
A pipeline has more stages than the model has layers.

## Why it costs time
Some stages would hold nothing; programs refuse to start so, or ranks only pass on what they get.

## How to fix
Fewer pipeline ranks, or fewer stages a rank (interleaving).

## When it is wrong
Where embedding and output are counted as layers of their own, two stages more may be filled.

## Sources
Formula sheet, "Pipeline bubble".
""",
    ),
    _row(
        code="CFG105",
        name="sequence-too-short-to-share",
        severity=Severity.WARNING,
        kind="sequence too short to share",
        fix="Context parallelism is for long sequences: use tp or sharding.",
        page="""
## What it detects
Context parallelism leaves less than 8,192 tokens of a sequence to each rank, or does not divide it
evenly.

## Why it costs time
Blocks of keys and values go round the ring while a rank computes attention with those it has. With
few tokens a block is computed sooner than the next arrives, and the ring is exposed in every layer.

## How the cost is computed
It is not by itself: `distprof plan --layout` shows the exposed time of the context axis for this
layout and for others.

## How to fix
A smaller cp, or none: tensor parallelism within the node and sharding divide a model with short
sequences better.

## When it is wrong
Where activations of a whole sequence do not fit otherwise, time is not what cp is for.

## Sources
Formula sheet, "Choosing a strategy" (context parallelism from 64 k tokens on).
""",
    ),
    _row(
        code="CFG106",
        name="experts-not-divisible",
        severity=Severity.ERROR,
        kind="experts not divisible",
        fix="Choose an ep that divides both experts and dp.",
        page="""
## What it detects
The degree of expert parallelism divides the number of experts or of data-parallel ranks not evenly,
or the model has no experts.

## Why it costs time
Each rank of an expert group holds as many whole experts as the others, and groups are made of
data-parallel ranks. Otherwise programs stop while they build the model.

## How to fix
An ep that divides both the experts of a layer and dp.

## When it is wrong
Where a program places redundant copies of experts, their number counts rather than the model's.

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
Hybrid sharding divides the model by a number that does not divide the data-parallel ranks.

## Why it costs time
A mesh of replicas times shards has no such shape: the program stops while it builds the mesh.

## How to fix
Shards that divide dp · cp; as many as a node has GPUs keeps gathering inside nodes.

## When it is wrong
Hardly ever: replicas of unlike sizes are not known to any program read here.

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
            "Make the batch a multiple of dp times the micro-batch; with fewer sequences than dp, "
            "use fewer data-parallel ranks."
        ),
        page="""
## What it detects
The batch of a step is no multiple of what all data-parallel ranks take at once, or is smaller than
their number.

## Why it costs time
Ranks would have unlike numbers of micro-batches, or none at all, and wait for each other in every
collective; most programs refuse it.

## How to fix
A batch that is dp times the micro-batch times the number of micro-batches. With fewer sequences
than data-parallel ranks, use fewer of them, and divide the model instead.

## When it is wrong
Where the last micro-batch of a step may be smaller than the others.

## Sources
Formula sheet, "Anti-patterns" (64 samples on 128 GPUs).
""",
    ),
    _row(
        code="CFG109",
        name="pipeline-hardly-filled",
        severity=Severity.WARNING,
        kind="too few micro-batches",
        fix="Use 4 micro-batches per pipeline rank, by a smaller micro-batch or fewer stages.",
        page="""
## What it detects
A pipeline has fewer micro-batches in a step than ranks.

## Why it costs time
At no time do all stages work: with M micro-batches on P ranks, (P − 1)/(M + P − 1) of the time is
bubble, more than half of it if M is below P.

## How the cost is computed
It is not by itself: `distprof plan --layout` shows the bubble in time for this layout and for
others. Where a pipeline is filled but idles much, `planned-bubble` names the time.

## How to fix
Four micro-batches per rank or more: a smaller micro-batch, a larger batch, or fewer stages and more
sharding.

## When it is wrong
Where the model fits in no other way and the batch cannot grow.

## Sources
Formula sheet, "Pipeline bubble" and "Anti-patterns" (16 stages with 4 micro-batches).
""",
    ),
    _row(
        code="CFG110",
        name="micro-batches-not-interleavable",
        severity=Severity.ERROR,
        kind="micro-batches not divisible",
        fix="Interleaving needs micro-batches in multiples of pp.",
        page="""
## What it detects
Several stages a rank are asked for, but micro-batches come in no multiple of the pipeline's ranks,
or there is no pipeline.

## Why it costs time
Interleaved schedules go through groups of as many micro-batches as there are ranks. Otherwise
programs refuse to start.

## How to fix
Micro-batches in multiples of pp, or one stage a rank.

## When it is wrong
Schedules that take any number (torch's looped breadth-first, zero bubble with groups of its own)
are not told apart here.

## Sources
Formula sheet, "Pipeline bubble" (interleaved).
""",
    ),
)
