"""Rules on work of the GPU that training does not need."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.computation import ComputationResult, Saves
from distprof.sections.computation.rules import worth_of
from distprof.sections.shares import StepTimes
from distprof.terms import Severity


@rule(
    "CMP104",
    Severity.WARNING,
    saved_ratio=Limit(0.02, "share of the step that a fused optimizer must save"),
)
def unfused_optimizer(
    computation: ComputationResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
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
    for found in worth_of(computation, times, limits, Saves.FUSED_OPTIMIZER):
        idle = found.step.amount(found.between_ns)
        between = f", and {idle} passes between them" if found.between_ns else ""
        yield found.draft(
            headline="The optimizer runs tensor by tensor, and takes",
            message=(
                f"Its kernels take {found.spent}{between}. A fused one reads and writes each "
                "tensor once, in a few launches."
            ),
            fix="Pass fused=True, or foreach=True, to the optimizer.",
        )


@rule("CMP105", Severity.INFO, saved_ratio=Limit(0.02, "share of the step that padding must save"))
def misaligned_products(
    computation: ComputationResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
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
    for found in worth_of(computation, times, limits, Saves.PADDED_PRODUCTS):
        yield found.draft(
            headline="Matrix products of unaligned sizes take",
            message=f"A dimension of {found.size} is no multiple of 8; {found.spent}.",
            fix="Pad the dimension to a multiple of 64.",
        )


@rule(
    "CMP106", Severity.INFO, saved_ratio=Limit(0.02, "share of the step that one layout must save")
)
def converted_layouts(
    computation: ComputationResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
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
    for found in worth_of(computation, times, limits, Saves.ONE_LAYOUT, needs_sizes=False):
        yield found.draft(
            headline="Conversions of the layout around convolutions take",
            message=f"Tensors change from NCHW to NHWC and back; {found.spent}.",
            fix="Use channels last: model.to(memory_format=torch.channels_last), inputs as well.",
        )


@rule(
    "CMP107",
    Severity.INFO,
    saved_ratio=Limit(0.01, "share of the step that dropped gradients must save"),
)
def zeroed_gradients(
    computation: ComputationResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
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
    for found in worth_of(computation, times, limits, Saves.UNSET_GRADIENTS):
        yield found.draft(
            headline="Gradients set to zero and added to take",
            message=f"The backward pass adds to the zeros; {found.spent}.",
            fix="Call optimizer.zero_grad(set_to_none=True).",
        )


@rule(
    "CMP108",
    Severity.INFO,
    saved_ratio=Limit(0.03, "share of the step that faster indexing must save"),
)
def slow_indexing(
    computation: ComputationResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
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
    for found in worth_of(computation, times, limits, Saves.SPREAD_INDICES):
        yield found.draft(
            headline="Indexing far below the speed of memory takes",
            message=f"Most of it is {found.size}; {found.spent}.",
            fix=(
                "Set padding_idx for padding tokens, or use a fused embedding; avoid repeated "
                "indices."
            ),
        )


@rule(
    "CMP109",
    Severity.INFO,
    saved_ratio=Limit(0.02, "share of the step that fused dropout must save"),
)
def unfused_dropout(
    computation: ComputationResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
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
    for found in worth_of(computation, times, limits, Saves.FUSED_DROPOUT):
        yield found.draft(
            headline="Dropout in several kernels takes",
            message=f"Random numbers pass through memory before they are a mask; {found.spent}.",
            fix="Use torch.nn.functional.dropout, or compile this part of the model.",
        )


@rule(
    "CMP110", Severity.INFO, saved_ratio=Limit(0.02, "share of the step that fewer casts must save")
)
def needless_casts(
    computation: ComputationResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
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
    for found in worth_of(computation, times, limits, Saves.NARROW_CASTS):
        yield found.draft(
            headline="Casts to fp32 and back around small kernels take",
            message=f"The kernels between them only move memory; {found.spent}.",
            fix="Run them in 16 bits outside of autocast, or compile the blocks of the model.",
        )
