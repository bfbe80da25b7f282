"""Rules on kernels that fewer ones could replace."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.computation import ComputationResult, Saves
from distprof.sections.computation.rules import worth_of
from distprof.sections.shares import StepTimes
from distprof.terms import Severity
from distprof.units import format_ratio


@rule(
    "CMP101",
    Severity.WARNING,
    saved_ratio=Limit(0.02, "share of the step that fused attention must save"),
)
def unfused_attention(
    computation: ComputationResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Attention writes its scores to memory instead of running in a fused kernel.

    ## Why it costs time
    Scores have as many elements as pairs of tokens. Written out, they are scaled, masked,
    normalised and multiplied by kernels that each read and write all of them. A fused kernel keeps
    them on the chip, and needs less memory as well.

    ## Evidence needed
    Traces with sizes of inputs (`record_shapes=True`). Attention is recognised by a softmax over a
    tensor that a batched matrix product made.

    ## How the cost is computed
    Time of all kernels on tensors of this size, and half of that of the two products and their
    gradients, which a fused kernel computes as well. The step is simulated without this time.

    ## How to fix
    Call `torch.nn.functional.scaled_dot_product_attention` with `is_causal=True` instead of a mask
    where that is what the mask says, in bf16 or fp16. Masks of other shapes: `flex_attention`.

    ## When it is wrong
    A score modification that no fused kernel supports, or attention weights that the model returns.

    ## Sources
    Formula sheet, "Computation". Dao et al., "FlashAttention". PyTorch documentation,
    `scaled_dot_product_attention`.
    """
    for found in worth_of(computation, times, limits, Saves.FUSED_ATTENTION):
        yield found.draft(
            headline="Attention without a fused kernel takes",
            message=f"It writes scores of size {found.size} to memory; {found.spent}.",
            fix=(
                "Use torch.nn.functional.scaled_dot_product_attention in bf16 or fp16, with "
                "is_causal=True instead of a mask if it is causal."
            ),
        )


@rule(
    "CMP102",
    Severity.INFO,
    saved_ratio=Limit(0.05, "share of the step that a fused loss must save"),
)
def unfused_loss(
    computation: ComputationResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """The loss reads and writes logits over the whole vocabulary again and again.

    ## Why it costs time
    Logits are often the largest tensor of a model. A cast to fp32, the softmax, its gradient, the
    loss and a cast back each read and write all of them.

    ## Evidence needed
    Traces with sizes of inputs (`record_shapes=True`): a softmax over at least 8,192 classes of a
    matrix product's result.

    ## How the cost is computed
    Time of all kernels on tensors of this size other than products, less the share of their bytes
    that remains if logits are read twice and their gradient is written once in 16 bits. The step is
    simulated without this time.

    ## How to fix
    Fuse the last projection with the loss: Liger's `LigerFusedLinearCrossEntropyLoss`, Apple's
    `cut_cross_entropy`, or `torch.compile` on projection and loss, in chunks of tokens. It frees
    the memory of the logits as well.

    ## When it is wrong
    A program that needs all logits, for distillation for example.

    ## Sources
    Formula sheet, "Computation". Wijmans et al., "Cut Your Losses in Large-Vocabulary Language
    Models".
    """
    for found in worth_of(computation, times, limits, Saves.FUSED_LOSS):
        kept = format_ratio(1 - found.saving.saved_ns / found.saving.spent_ns)
        yield found.draft(
            headline="A loss without a fused kernel takes",
            message=(
                f"Softmax, loss and casts of {found.size} logits take {found.spent}; a fused"
                f" loss would read and write {kept} of their bytes."
            ),
            fix=(
                "Fuse the last projection with the loss (LigerFusedLinearCrossEntropyLoss, "
                "cut_cross_entropy), or compile both in chunks of tokens."
            ),
        )


@rule(
    "CMP103",
    Severity.INFO,
    saved_ratio=Limit(0.05, "share of the step that merged kernels must save"),
)
def unmerged_kernels(
    computation: ComputationResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Kernels that only move memory hand tensors to each other through memory.

    ## Why it costs time
    Elementwise operators, casts and normalisations compute next to nothing: reading and writing
    their tensors is all of their time. One kernel for several of them reads its input once.

    ## Evidence needed
    Traces with sizes of inputs (`record_shapes=True`).

    ## How the cost is computed
    Where a kernel reads a tensor of the size that the kernel right before it wrote, in the same
    pass and stream, this share of its bytes is saved, and the same share of its time. What both
    write still counts in full, because the backward pass may need it: the true gain is often
    larger. The step is simulated without this time.

    ## How to fix
    Compile the blocks of the model with `torch.compile`, or use fused layers.

    ## When it is wrong
    Sizes that change from step to step make compilation cost more than it gains.

    ## Sources
    Formula sheet, "Computation". PyTorch documentation, `torch.compile`.
    """
    for found in worth_of(computation, times, limits, Saves.MERGED_KERNELS):
        yield found.draft(
            headline="Kernels that could be merged with their predecessors take",
            message=(
                f"{found.spent} goes to kernels that read again what the kernel before them"
                " wrote and compute next to nothing."
            ),
            fix="Compile the blocks of the model with torch.compile, or use fused layers.",
        )
