"""Rules on changes of the program that would save computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, Rule, rule
from distprof.sections.computation import NO_OPERATORS, NO_SHAPES, ComputationResult, Saves, Saving
from distprof.sections.shares import MeanStep, StepTimes
from distprof.terms import Confidence, Severity
from distprof.units import format_ratio


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What a change saves of a step."""

    saving: Saving
    step: MeanStep
    computation: ComputationResult

    @property
    def spent(self) -> str:
        """What its kernels take, with the step."""
        return self.step.amount(self.computation.per_step(self.saving.spent_ns))

    @property
    def between_ns(self) -> int:
        """Idle time between them that it saves, per step."""
        return self.computation.per_step(self.saving.idle_ns)

    def draft(self, headline: str, message: str, fix: str) -> Draft:
        """The finding; the headline ends with the share of the step."""
        concerned_ns = self.computation.per_step(self.saving.spent_ns) + self.between_ns
        return Draft(
            headline=f"{headline} {self.step.part(concerned_ns)}",
            message=message,
            fix=fix,
            cost_ns_per_step=self.computation.saved_ns_per_step(self.saving.what),
            confidence=Confidence.MODELLED,
            evidence=("computation.savings", "computation.operators"),
            without=self.saving.what,
        )


def _saving(
    code: str,
    what: str,
    least: float,
    change: str,
    *,
    severity: Severity = Severity.INFO,
    needs_sizes: bool = True,
) -> Callable[[Callable[[Worth], Draft]], Rule]:
    """A rule on a change that saves at least a share of the step; the function words its finding.

    Without sizes of inputs, nothing can be known of a change that needs them.
    """

    def decorate(worded: Callable[[Worth], Draft]) -> Rule:
        def check(
            computation: ComputationResult, times: StepTimes, limits: Limits
        ) -> Iterator[Draft]:
            missing = [why for why in computation.unavailable if why in (NO_OPERATORS, NO_SHAPES)]
            if missing and needs_sizes:
                raise InsufficientEvidenceError(missing[0])
            found, saved_ns = computation.saving(what), computation.saved_ns_per_step(what)
            step = times.mean_step()
            if found is not None and step.ratio(saved_ns) >= limits["saved_ratio"]:
                yield worded(Worth(saving=found, step=step, computation=computation))

        check.__name__, check.__doc__ = worded.__name__, worded.__doc__
        limit = Limit(least, f"share of the step that {change} must save")
        return rule(code, severity, saved_ratio=limit)(check)

    return decorate


@_saving("CMP101", Saves.FUSED_ATTENTION, 0.02, "fused attention", severity=Severity.WARNING)
def unfused_attention(found: Worth) -> Draft:
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
    return found.draft(
        headline="Attention without a fused kernel takes",
        message=f"It writes scores of size {found.saving.size} to memory; {found.spent}.",
        fix=(
            "Use torch.nn.functional.scaled_dot_product_attention in bf16 or fp16, with "
            "is_causal=True instead of a mask if it is causal."
        ),
    )


@_saving("CMP102", Saves.FUSED_LOSS, 0.05, "a fused loss")
def unfused_loss(found: Worth) -> Draft:
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
    kept = format_ratio(1 - found.saving.saved_ns / found.saving.spent_ns)
    return found.draft(
        headline="A loss without a fused kernel takes",
        message=(
            f"Softmax, loss and casts of {found.saving.size} logits take {found.spent}; a fused"
            f" loss would read and write {kept} of their bytes."
        ),
        fix=(
            "Fuse the last projection with the loss (LigerFusedLinearCrossEntropyLoss, "
            "cut_cross_entropy), or compile both in chunks of tokens."
        ),
    )


@_saving("CMP103", Saves.MERGED_KERNELS, 0.05, "merged kernels")
def unmerged_kernels(found: Worth) -> Draft:
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
    return found.draft(
        headline="Kernels that could be merged with their predecessors take",
        message=(
            f"{found.spent} goes to kernels that read again what the kernel before them"
            " wrote and compute next to nothing."
        ),
        fix="Compile the blocks of the model with torch.compile, or use fused layers.",
    )


@_saving("CMP104", Saves.FUSED_OPTIMIZER, 0.02, "a fused optimizer", severity=Severity.WARNING)
def unfused_optimizer(found: Worth) -> Draft:
    """The optimizer launches several kernels per parameter tensor instead of one for many tensors.

    ## Why it costs time
    Each of these kernels reads and writes whole tensors again, and on small tensors they are hardly
    more than launches. A fused optimizer reads gradients, and reads and writes parameters and
    states, once.

    ## Evidence needed
    Traces with sizes of inputs (`record_shapes=True`), and `Optimizer.step` in them.

    ## How the cost is computed
    Time of the elementwise kernels of the optimizer, less the time for the bytes of a fused one at
    the rate that the largest transfers of the same trace reach. In recordings with untraced steps,
    the time that the GPU idles between them as well, because they are launched one by one. The step
    is simulated without this time.

    ## How to fix
    Pass `fused=True` (or `foreach=True`) to the optimizer, or compile its step.

    ## When it is wrong
    Optimizers without a fused form, and `foreach` needs memory for temporary copies.

    ## Sources
    PyTorch documentation, `torch.optim` (for-loop, foreach and fused implementations).
    """
    idle = found.step.amount(found.between_ns)
    between = f", and {idle} passes between them" if found.between_ns else ""
    return found.draft(
        headline="The optimizer runs tensor by tensor, and takes",
        message=(
            f"Its kernels take {found.spent}{between}. A fused one reads and writes each "
            "tensor once, in a few launches."
        ),
        fix="Pass fused=True, or foreach=True, to the optimizer.",
    )


@_saving("CMP105", Saves.PADDED_PRODUCTS, 0.02, "padding")
def misaligned_products(found: Worth) -> Draft:
    """Matrix products in 16 bits have dimensions that are not multiples of 8.

    ## Why it costs time
    Tensor cores read 16 bytes at once. Where rows do not begin at multiples of 16 bytes, cuBLAS has
    only slower kernels. A vocabulary of 50,257 is the usual case.

    ## Evidence needed
    Traces with sizes of inputs (`record_shapes=True`), and aligned products in the same trace.

    ## How the cost is computed
    Time of these products, less that of products with dimensions padded to multiples of 64 at the
    rate of the aligned ones of at least 1/32 of their FLOP in the same trace. The step is
    simulated without this time. Dimensions below 128 do not count: they are slow in any case.

    ## How to fix
    Pad the dimension to a multiple of 64, for example the vocabulary from 50,257 to 50,304.

    ## When it is wrong
    A dimension that a checkpoint or an interface prescribes.

    ## Sources
    NVIDIA, "Matrix Multiplication Background User's Guide" (tensor core requirements).
    """
    return found.draft(
        headline="Matrix products of unaligned sizes take",
        message=f"A dimension of {found.saving.size} is no multiple of 8; {found.spent}.",
        fix="Pad the dimension to a multiple of 64.",
    )


@_saving("CMP106", Saves.ONE_LAYOUT, 0.02, "one layout", needs_sizes=False)
def converted_layouts(found: Worth) -> Draft:
    """Tensors change between NCHW and NHWC around convolutions.

    ## Why it costs time
    Convolutions on tensor cores want channels last. cuDNN and MIOpen convert other tensors first,
    and the result back, which reads and writes all of them.

    ## Evidence needed
    Traces of GPUs. Names of kernels of cuDNN and MIOpen show the conversions.

    ## How the cost is computed
    Time of these kernels. The step is simulated without it.

    ## How to fix
    `model.to(memory_format=torch.channels_last)`, and the same for its inputs.

    ## When it is wrong
    Operators without a kernel for channels last convert at other places.

    ## Sources
    PyTorch tutorial, "Channels Last Memory Format".
    """
    return found.draft(
        headline="Conversions of the layout around convolutions take",
        message=f"Tensors change from NCHW to NHWC and back; {found.spent}.",
        fix="Use channels last: model.to(memory_format=torch.channels_last), inputs as well.",
    )


@_saving("CMP107", Saves.UNSET_GRADIENTS, 0.01, "dropped gradients")
def zeroed_gradients(found: Worth) -> Draft:
    """Gradients are filled with zeros, and the backward pass adds to the zeros.

    ## Why it costs time
    Filling writes all gradients, and adding reads the zeros and the new gradients, and writes them.
    Without zeros the backward pass keeps the new gradient.

    ## Evidence needed
    Traces with sizes of inputs (`record_shapes=True`), and `Optimizer.zero_grad` in them.

    ## How the cost is computed
    Time of the fills, and of the backward pass's additions to tensors of the same sizes, as many as
    fills. The step is simulated without it.

    ## How to fix
    Call `optimizer.zero_grad()` with `set_to_none=True`, the default since PyTorch 2.0.

    ## When it is wrong
    Code that reads gradients of parameters that took no part, and captured CUDA graphs.

    ## Sources
    PyTorch documentation, `torch.optim.Optimizer.zero_grad`; PyTorch tuning guide.
    """
    return found.draft(
        headline="Gradients set to zero and added to take",
        message=f"The backward pass adds to the zeros; {found.spent}.",
        fix="Call optimizer.zero_grad(set_to_none=True).",
    )


@_saving("CMP108", Saves.SPREAD_INDICES, 0.03, "faster indexing")
def slow_indexing(found: Worth) -> Draft:
    """Gradients of embeddings, scattering or gathering take much longer than their traffic.

    ## Why it costs time
    Where many indices meet in one row, its additions follow each other, or indices are sorted
    first. Padding tokens and popular entries do that.

    ## Evidence needed
    Traces with sizes of inputs (`record_shapes=True`).

    ## How the cost is computed
    Time of kernels that take twice as long as their bytes at the rate of the largest transfers of
    the same trace, less that time. The step is simulated without it.

    ## How to fix
    `padding_idx` for padding tokens, a fused or sparse embedding (FBGEMM), or indices without
    repetition: `index_select` and `gather` rather than `index_put_` with accumulation.

    ## When it is wrong
    Small rows, of which a memory transaction carries more than is used, are always slower.

    ## Sources
    Formula sheet, "Computation". PyTorch documentation, `torch.nn.Embedding`.
    """
    return found.draft(
        headline="Indexing far below the speed of memory takes",
        message=f"Most of it is {found.saving.size}; {found.spent}.",
        fix=(
            "Set padding_idx for padding tokens, or use a fused embedding; avoid repeated indices."
        ),
    )


@_saving("CMP109", Saves.FUSED_DROPOUT, 0.02, "fused dropout")
def unfused_dropout(found: Worth) -> Draft:
    """A kernel makes random numbers, and others turn them into a mask and apply it.

    ## Why it costs time
    Random numbers, their comparison, the product and the scaling each read and write a whole
    tensor. Dropout does all of it in one kernel.

    ## Evidence needed
    Traces with sizes of inputs (`record_shapes=True`).

    ## How the cost is computed
    Time of these kernels, less the share of their bytes that remains if one kernel reads the input,
    and writes the output and a mask. The step is simulated without this time.

    ## How to fix
    Use `torch.nn.functional.dropout`, the dropout of fused attention, or `torch.compile`.

    ## When it is wrong
    Noise of another kind that the method needs.

    ## Sources
    Formula sheet, "Computation". PyTorch documentation, `torch.nn.functional.dropout`.
    """
    return found.draft(
        headline="Dropout in several kernels takes",
        message=f"Random numbers pass through memory before they are a mask; {found.spent}.",
        fix="Use torch.nn.functional.dropout, or compile this part of the model.",
    )


@_saving("CMP110", Saves.NARROW_CASTS, 0.02, "fewer casts")
def needless_casts(found: Worth) -> Draft:
    """Tensors are cast to fp32 for small kernels, and back.

    ## Why it costs time
    Autocast runs normalisation, sums and other operators in fp32. Around kernels that only move
    memory, casts take as long as the work, and fp32 doubles its bytes.

    ## Evidence needed
    Traces with sizes of inputs (`record_shapes=True`).

    ## How the cost is computed
    Time of both casts, and half of that of kernels between them. Only casts of the same tensor
    count, at most four kernels apart and without a product between them. The step is simulated
    without this time.

    ## How to fix
    Let a kernel with sums in fp32 read and write 16 bits: `torch.nn.functional.layer_norm` or
    `rms_norm` outside of autocast, a fused layer, or `torch.compile`.

    ## When it is wrong
    Operators whose results need more than 16 bits.

    ## Sources
    PyTorch documentation, "Automatic Mixed Precision" (ops that autocast to float32).
    """
    return found.draft(
        headline="Casts to fp32 and back around small kernels take",
        message=f"The kernels between them only move memory; {found.spent}.",
        fix="Run them in 16 bits outside of autocast, or compile the blocks of the model.",
    )
