"""What computation consists of: by category and pass, and by operator with its FLOP and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from distprof.artefacts.record import Record
from distprof.bounds import table_beside
from distprof.sections.base import Result
from distprof.terms import Labelled

FP32_KERNELS = r"(?<![a-z])(?:sgemm|scudnn)(?![a-z])"
"""Matches names of kernels that multiply fp32 without tensor cores."""

PRODUCTS = ("gemm", "attention", "convolution")
"""Categories that compute rather than move memory."""

REST = "(other operators)"
"""Name of the row that sums up what a list leaves out."""

LEAST_COUNTED = 0.9
"""Share of the time of products whose FLOP must be known, so that they stand for all."""

NO_OPERATORS = "the trace holds no operators, so only names of kernels say what they compute"

OUTSIDE_MODULES = "(outside modules)"

NO_SHAPES = "no sizes of inputs were recorded: capture with record_shapes=True for FLOP and bytes"


class Saves:
    """Keys of changes of the program, and of their scenarios."""

    TENSOR_CORES = "tensor-cores"
    FUSED_ATTENTION = "fused-attention"
    FUSED_LOSS = "fused-loss"
    NO_RECOMPUTATION = "no-recomputation"
    MERGED_KERNELS = "merged-kernels"
    PADDED_PRODUCTS = "padded-products"
    ONE_LAYOUT = "one-layout"
    FUSED_OPTIMIZER = "fused-optimizer"
    UNSET_GRADIENTS = "unset-gradients"
    SPREAD_INDICES = "spread-indices"
    FUSED_DROPOUT = "fused-dropout"
    NARROW_CASTS = "no-round-trips"


SAVING_TITLES: Mapping[str, str] = table_beside(__package__, "titles.toml")


class Pass(Labelled):
    """What part of a step an operator belongs to."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    RECOMPUTATION = 3
    OPTIMIZER = 4


class OperatorStats(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one operator with the same inputs on one rank, inside the analysed windows."""

    name: str  # Operator, or kernel if no operator launched it.
    inputs: str  # Column ``inputs`` of HOST; empty if unknown.
    category: int  # Number among the categories.
    part: int  # A Pass.
    num_calls: int
    total_ns: int  # Time of its kernels; where kernels overlap, of the one that started first.
    kernel: str  # Its longest kernel.
    blocks: int = 0  # Thread blocks of this kernel; not positive if unknown.


_Row = TypeVar("_Row", bound=msgspec.Struct)


def added(one: _Row, other: _Row, *fields: str) -> _Row:
    """The first row with the sums of both in some fields."""
    return replace(one, **{field: getattr(one, field) + getattr(other, field) for field in fields})


class Saving(Record, frozen=True, kw_only=True):
    """What one change of the program would save, on one rank or on all explained ones together."""

    what: str  # Key of the change, and of its scenario.
    spent_ns: int  # Time of the kernels that it changes.
    saved_ns: int  # Part of it that it saves.
    idle_ns: int = 0  # Time between these kernels, which it saves as well as far as it is idle.
    num_bytes: int | None = None  # Memory that it needs on one rank; null if unknown.
    # Size of the tensors that it is about, or the operator to begin with; empty if unknown.
    size: str = ""


class Region(Record, frozen=True, kw_only=True):
    """Forward work that one node of the backward pass repeats, such as a checkpointed layer."""

    name: str  # Module that it calls; empty if none was recorded.
    place: int  # Its position among those of one forward pass, from 1.
    # Bytes that its operators write, in all micro-batches that would be kept at once; 0 if unknown.
    num_bytes: int
    total_ns: int  # Time of one repetition, mean over regions with the same operators and inputs.

    @property
    def ns_per_byte(self) -> float:
        """Time that each kept byte saves; 0 if unknown."""
        return self.total_ns / self.num_bytes if self.num_bytes else 0.0


class ModuleStats(msgspec.Struct, frozen=True, kw_only=True):
    """Modules of one class under the same ones on one rank, inside the analysed windows."""

    path: tuple[str, ...]  # Its class and those around it, outermost first.
    num_modules: int
    num_calls: int  # Calls that started kernels, themselves or through other modules.
    self_ns: int  # Time of kernels outside the modules that it calls, backward included.
    backward_ns: int  # Part of it in the backward pass.


class CompiledCode(Record, frozen=True, kw_only=True):
    """What ``torch.compile`` ran and compiled, on one rank or on all explained ones together."""

    num_regions: int  # Calls of compiled functions, code after a graph break included.
    # Those of them that a graph break ended: another one ran inside. There may be more breaks, if
    # nothing was compiled after them.
    num_breaks: int
    num_functions: int  # Different functions, most of any rank; 0 if they were not numbered.
    num_compiles: int  # Times that a function was compiled in these steps.
    # Versions of the function that was compiled most often, from the start of the process, at
    # least; 0 if they were not numbered.
    most_versions: int

    def and_of(self, other: CompiledCode) -> CompiledCode:
        """Both ranks together."""
        return replace(
            added(self, other, "num_regions", "num_breaks", "num_compiles"),
            num_functions=max(self.num_functions, other.num_functions),
            most_versions=max(self.most_versions, other.most_versions),
        )


class RankComputation(msgspec.Struct, frozen=True, kw_only=True):
    """The computation of one rank: ``total_ns`` of all rows is the computation of its waterfall."""

    rows: tuple[OperatorStats, ...]
    has_operators: bool  # Whether operators around launches were recorded.
    savings: tuple[Saving, ...] = ()  # What changes of the program would save.
    regions: tuple[Region, ...] = ()  # What one backward pass repeats, the first to keep first.
    modules: tuple[ModuleStats, ...] = ()  # Time by module; empty if the trace shows none.
    graph_ns: int = 0  # Time of kernels that CUDA graphs launched.
    compiled: CompiledCode | None = None  # Code of ``torch.compile``; None without any.


class CategoryRow(Record, frozen=True, kw_only=True):
    """One category of computation, all explained ranks and steps together."""

    name: str  # Name, such as ``gemm``.
    title: str  # Name in the report.
    total_ns: int  # Time of its kernels: the sum of the five passes.
    counted_ns: int  # Part of it whose FLOP are known.
    forward_ns: int  # Time in the forward pass.
    backward_ns: int  # Time in the backward pass.
    recomputation_ns: int  # Time in which the backward pass repeats the forward pass.
    optimizer_ns: int  # Time in the optimizer.
    other_ns: int  # Time elsewhere, or where no operator shows the pass.
    flop: float | None = None  # FLOP that sizes of inputs show; null if none do.


class OperatorRow(Record, frozen=True, kw_only=True):
    """Calls of one operator with the same inputs, all explained ranks and steps together."""

    name: str  # Operator, or kernel if no operator launched it.
    category: str  # Name of its category.
    part: str  # ``forward``, ``backward``, ``recomputation``, ``optimizer`` or ``other``.
    num_calls: int  # Number of calls.
    total_ns: int  # Time of its kernels.
    inputs: str = ""  # Types and sizes of its tensors; empty if unknown.
    kernel: str = ""  # Its longest kernel.
    flop: int | None = None  # FLOP of one call; null if unknown.
    bytes: int | None = None  # Bytes that one call reads and writes; null if unknown.
    flops: float | None = None  # FLOP per second that it reaches.
    bytes_per_s: float | None = None  # Bytes per second that it reaches.
    # What limits it on this GPU: ``computation`` or ``memory``; empty if unknown.
    bound: str = ""
    # Time at that limit over its time; null if unknown.
    peak_ratio: float | None = None
    # Multiprocessors of the GPU for which its longest kernel has a thread block, as a share of all;
    # null if unknown.
    filled_ratio: float | None = None


class ModuleRow(Record, frozen=True, kw_only=True):
    """Modules of one class under the same ones, all explained ranks and steps together.

    In the order of the tree: what a row calls follows it, one level deeper, longest first.
    """

    name: str  # Class of the module, or name of an annotation that stands for one.
    depth: int  # Number of modules around it.
    num_modules: int  # Number of modules of this class here; 0 outside modules.
    num_calls: int  # Calls that started kernels, themselves or through other modules.
    total_ns: int  # Time of its kernels, forward and backward, those of modules inside included.
    self_ns: int  # Part of it outside the modules that it calls.
    backward_ns: int  # Part of the total in the backward pass.


class Roof(Record, frozen=True, kw_only=True):
    """How fast the GPU multiplies one type."""

    dtype: str  # ``bf16``, ``fp16``, ``fp8``, ``tf32`` or ``fp32``.
    flops: float  # FLOP per second.


class ComputationResult(Result, frozen=True, kw_only=True):
    """Computation of up to eight ranks by category and operator, over all analysed steps."""

    needs_traces = True

    ranks: tuple[int, ...] = ()  # Ranks whose operators were read, evenly spaced over the job.
    num_steps: int = 0  # Analysed steps of each.
    # Computation of these ranks in the waterfall: the sum of the categories, and of the operators.
    total_ns: int = 0
    categories: tuple[CategoryRow, ...] = ()  # Categories, longest first.
    operators: tuple[OperatorRow, ...] = ()  # Operators, longest first; the last sums up the rest.
    # Tree of modules; the last row is what no module called. ``self_ns`` of all rows is the total.
    modules: tuple[ModuleRow, ...] = ()
    # Share of the time in kernels that CUDA graphs launched, whose operators are unknown.
    graph_ratio: float = 0.0
    # Share of the time in operators whose longest kernel has thread blocks for less than half of
    # the GPU's multiprocessors; null if unknown.
    small_ratio: float | None = None
    savings: tuple[Saving, ...] = ()  # What changes of the program would save.
    # What one backward pass repeats, of the rank that repeats most; those come first whose results
    # save most time per byte that is kept.
    regions: tuple[Region, ...] = ()
    flop: float | None = None  # FLOP that sizes of inputs show, recomputation included.
    recomputed_flop: float | None = None  # Those of them that recomputation repeats.
    # Type of most of the FLOP, such as ``bf16``, or ``tf32`` for fp32 on tensor cores.
    precision: str = ""
    # Time that products in slower types would save in this one, recomputation excluded.
    slower_types_ns: int = 0
    # Bound of what fp8 could save: time of 16-bit matrix products, less what it would be at a rate
    # higher by the ratio of the peaks; null on a GPU without fp8.
    fp8_bound_ns: int | None = None
    roofs: tuple[Roof, ...] = ()  # Limits of computation that operators are compared with.
    memory_bytes_per_s: float | None = None  # Limit of memory; null if it is unknown.
    is_measured: bool = False  # Whether ``distprof bench --compute`` measured these limits.
    # Share of the time of matrix products, attention and convolutions whose FLOP are known.
    counted_ratio: float | None = None
    # Share of this time in operators whose inputs were recorded: a CUDA graph, for example, shows
    # none.
    recorded_ratio: float | None = None
    compiled: CompiledCode | None = None  # Code of ``torch.compile``; null if the traces show none.

    @property
    def num_samples(self) -> int:
        """Steps of all explained ranks; sums over them become means by it."""
        return max(len(self.ranks) * self.num_steps, 1)

    def per_step(self, total: int) -> int:
        """A sum over all explained ranks and steps as a mean per step and rank."""
        return round(total / self.num_samples)

    def saved_ns_per_step(self, what: str) -> int:
        """Time that a change would save, mean per step and rank."""
        found = self.saving(what)
        return 0 if found is None else self.per_step(found.saved_ns + found.idle_ns)

    def saving(self, what: str) -> Saving | None:
        """What a change would save; None if nothing."""
        return next((one for one in self.savings if one.what == what), None)
