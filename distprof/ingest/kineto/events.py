"""Fields of an event that are read, words of its category, and times as exact int64 nanoseconds.

Spellings of categories come from Kineto's ``ActivityType.cpp`` and, for the capitalised ones, from
traces that PyTorch 1.8 wrote. A category that is not listed keeps the trace's own word and counts
as host work, even if its arguments name a stream: compiled Triton operators carry ``stream: 0`` on
the host.

Kineto writes microseconds with three decimals. A double is exact enough for them below 2**43 us.
Times relative to ``baseTimeNanoseconds`` never reach that. Absolute times with decimals do, and are
converted from their text.

Fields are in the order in which Kineto writes them, because the decoder guesses the next field
first. Arguments of collectives are sparse and read in a second pass (:mod:`.comm`): each field here
costs time on every event.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from distprof.schema import ABSENT, Int64Array
from distprof.terms import ActivityKind
from distprof.units import NS_PER_S, NS_PER_US

DEVICE_KINDS: dict[str, ActivityKind] = {
    "kernel": ActivityKind.COMPUTATION,
    "gpu_memcpy": ActivityKind.COPY,
    "gpu_memset": ActivityKind.COPY,
    "gpu_user_annotation": ActivityKind.ANNOTATION,
}
"""Categories of device rows after :func:`normalise`, and the kind of such rows."""

HOST_WORDS: dict[str, str] = {
    "cuda_runtime": "runtime",
    "hip_runtime": "runtime",
    "xpu_runtime": "runtime",
    "mtia_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "cuda_driver": "driver",
    "xpu_driver": "driver",
    "privateuse1_driver": "driver",
    "user_annotation": "annotation",
    "cuda_sync": "sync",
    # PyTorch 1.8 to 1.12
    "Operator": "cpu_op",
    "Runtime": "runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "concurrent_kernel": "kernel",
}
"""Category in the trace to distprof's word for it."""

# Rows of this category are counted and dropped, because they are most of a trace with stacks;
# those of calls of modules are kept.
PYTHON_FRAME = "python_function"
MODULE_PREFIX = "nn.Module: "
STEP_PREFIX = "ProfilerStep#"

COMM_PREFIXES = (
    *("c10d::", "_c10d_functional::", "c10d_functional::", "symm_mem::"),
    *("gloo:", "nccl:", "xccl:", "ucc:", "mpi:", "record_param_comms"),
)
"""Name prefixes of host rows that enter COMM_ARGS even without arguments."""

KEPT_PREFIXES = (
    *(*COMM_PREFIXES, STEP_PREFIX, "Optimizer."),
    "torch.distributed.ddp.reducer::search_unused_parameters",
)
"""Name prefixes of operators that analyses need, so they stay in memory with a host sink.

So do those of a data loader.
"""

WITHOUT_INPUTS = frozenset(
    f"aten::{name}"
    for name in (
        *("view", "as_strided", "transpose", "t", "permute", "unsqueeze", "squeeze", "expand"),
        *("slice", "select", "narrow", "detach", "alias", "unbind", "split", "chunk", "reshape"),
        *("empty", "empty_like", "empty_strided", "new_empty_strided", "set_", "record_stream"),
        *("to", "_to_copy", "contiguous", "clone", "flatten", "pad", "movedim"),
        *("batch_norm", "_batch_norm_impl_index"),
        *("linear", "matmul", "layer_norm", "conv2d", "conv1d", "scaled_dot_product_attention"),
        *("_unsafe_view", "_reshape_alias", "resolve_conj", "resolve_neg", "lift_fresh", "resize_"),
        *("result_type", "item", "unflatten", "expand_as", "view_as", "split_with_sizes", "stride"),
        *("dropout", "softmax", "log_softmax", "zeros", "zeros_like", "ones", "ones_like", "full"),
    )
) | {
    *("detach", "torch::autograd::AccumulateGrad", "ViewBackward0", "ToCopyBackward0"),
    *("TBackward0", "TransposeBackward0", "AddmmBackward0", "MmBackward0", "BmmBackward0"),
    *("UnsafeViewBackward0", "ReshapeAliasBackward0", "ExpandBackward0", "SliceBackward0"),
    *("PermuteBackward0", "CloneBackward0", "NativeLayerNormBackward0", "AddBackward0"),
    *("MulBackward0", "GeluBackward0", "EmbeddingBackward0", "SplitBackward0", "CatBackward0"),
    *("SigmoidBackward0", "ReluBackward0", "ReluBackward1", "CudnnBatchNormBackward"),
    "CudnnConvolutionBackward",
}
"""Operators whose inputs are not read: they launch no kernel, or only through others."""

_UNTRANSLATED = (PYTHON_FRAME, "cpu_op", "cpu_instant_event", "overhead", "Trace")
# Usual categories of events with a duration, as in the trace; files with others take longer.
USUAL_CATEGORIES = (*HOST_WORDS, *DEVICE_KINDS, *_UNTRANSLATED)


def normalise(category: str) -> str:
    """Translate a category of the trace to distprof's word; an unlisted one stays as it is."""
    return HOST_WORDS.get(category, category)


# Times --------------------------------------------------------------------------------------------

EXACT_BELOW_US = 2.0**43  # from here on, neighbouring doubles are 2 ns apart

# Times above this (the year 2096) are nonsense. A base of the same size can still be added.
LARGEST_NS = 4 * 10**18

# A longer event is a broken record: no profiler records for a week.
LONGEST_NS = 7 * 24 * 3600 * NS_PER_S
INVALID_NS = np.iinfo(np.int64).min  # stands for an unreadable time
_MOST_DIGITS = 20  # before the point: no 64-bit time in ns has more
_DECIMALS = 3


def micros_to_ns(micros: NDArray[np.float64]) -> Int64Array:
    """Microseconds as doubles to int64 ns; :data:`INVALID_NS` if not finite or absurd.

    ``rint(us * 1000)`` would be off by 1 ns for a quarter of the events of a real trace.
    """
    usable = np.abs(micros) < LARGEST_NS / NS_PER_US  # False for NaN
    if not usable.all():
        micros = np.where(usable, micros, 0.0)
    whole = np.floor(micros)
    ns: Int64Array = whole.astype(np.int64) * NS_PER_US
    ns += np.rint((micros - whole) * NS_PER_US).astype(np.int64)
    if not usable.all():
        ns[~usable] = INVALID_NS
    return ns


def needs_text(micros: NDArray[np.float64]) -> bool:
    """Whether some times are too large for decimals to survive in a double."""
    return bool((np.abs(micros) >= EXACT_BELOW_US).any())


def texts_to_ns(texts: Sequence[Any]) -> Int64Array:
    """JSON number texts (bytes-like, in microseconds) to int64 ns, exactly."""
    lengths = np.array([len(memoryview(text)) for text in texts], np.int64)
    ns = np.empty(len(texts), np.int64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        group = [texts[row] for row in rows.tolist()]
        ns[rows] = _equally_long_to_ns(group, length)
    return ns


def text_to_ns(text: str) -> int:
    """One number in microseconds as text to ns, rounded half to even below a nanosecond."""
    try:
        number = Decimal(text)
        if number.adjusted() > _MOST_DIGITS:  # its digits alone would take hours
            return int(INVALID_NS)
        ns = int((number * NS_PER_US).to_integral_value(ROUND_HALF_EVEN))
    except (ArithmeticError, ValueError):
        return int(INVALID_NS)
    return ns if abs(ns) < LARGEST_NS else int(INVALID_NS)


def _equally_long_to_ns(group: Sequence[Any], length: int) -> Int64Array:
    digits = np.frombuffer(b"".join(group), np.uint8).reshape(len(group), length)
    point = length - _DECIMALS - 1
    if 0 < point < 16 and (digits[:, point] == ord(".")).all():
        figures = np.delete(digits, point, axis=1) - np.uint8(ord("0"))
        if (figures < 10).all():
            powers = 10 ** np.arange(length - 2, -1, -1, dtype=np.int64)
            return figures.astype(np.int64) @ powers
    return np.array([text_to_ns(str(memoryview(text), "ascii")) for text in group], np.int64)


# Decoders -----------------------------------------------------------------------------------------

NO_DURATION = -1.0
NO_COLLECTIVE = Raw(b"")  # stands for an event that names no collective
NO_TEXT = Raw(b"")  # stands for an argument that an event lacks
SOME_COLLECTIVE = Raw(b'""')  # stands for an event whose collective was already read


class Arguments(Struct, gc=False, frozen=True):
    """The arguments that tables need from every event."""

    stream: int | str = ABSENT
    correlation: int = ABSENT
    device: int = ABSENT
    bytes: int | str = ABSENT
    grid: tuple[int, ...] | None = None
    collective: Raw = msgspec.field(name="Collective name", default=NO_COLLECTIVE)
    sequence: int = msgspec.field(name="Sequence number", default=ABSENT)
    values: Raw = msgspec.field(name="Concrete Inputs", default=NO_TEXT)
    types: Raw = msgspec.field(name="Input type", default=NO_TEXT)
    sizes: Raw = msgspec.field(name="Input Dims", default=NO_TEXT)
    old_sizes: Raw = msgspec.field(name="Input dims", default=NO_TEXT)

    @property
    def names_collective(self) -> bool:
        """Whether the event carries the arguments of a collective."""
        return self.collective is not NO_COLLECTIVE and bytes(self.collective) != b"null"


NO_ARGUMENTS = Arguments()


def inputs_of(arguments: Arguments) -> bytes:
    """A JSON list of the sizes, types and values of an operator's inputs; empty without sizes."""
    sizes = arguments.old_sizes if arguments.sizes is NO_TEXT else arguments.sizes
    if sizes is NO_TEXT:
        return b""
    return b"[%b,%b,%b]" % (sizes, arguments.types or b"[]", arguments.values or b"[]")


class Complete(Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a duration; times in microseconds as written."""

    name: str
    ts: float
    cat: str = ""
    pid: int | str = ""
    tid: int | str = ""
    dur: float = NO_DURATION
    args: Arguments = NO_ARGUMENTS


class UsualComplete(Complete, gc=False, tag_field="ph", tag="X"):
    """A complete event in a file of usual categories, which are looked up: faster than making them.

    Any other category raises ``ValidationError``.
    """

    cat: Literal[USUAL_CATEGORIES] = ""  # type: ignore[valid-type]


class ExactComplete(Complete, gc=False, tag_field="ph", tag="X"):
    """A complete event with its time as text, for files whose times do not fit a double."""

    ts: Raw  # type: ignore[assignment]


class MetadataArguments(Struct, gc=False, frozen=True):
    """Arguments of a metadata event: a process or thread name."""

    name: Any = None


class Metadata(Struct, gc=False, tag_field="ph", tag="M"):
    """A metadata event."""

    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    args: MetadataArguments = MetadataArguments()


_COLLECTED = threading.local()
"""Its ``events`` are the metadata events of the array that this thread decodes."""


class _CollectedMetadata(Metadata, gc=False, tag_field="ph", tag="M"):
    """A metadata event that registers itself: searching all events for the few costs more."""

    def __post_init__(self) -> None:
        _COLLECTED.events.append(self)


# Flow, counter, instant, async and begin/end events: validated, but not kept.
SKIPPED_PHASES = "stfiICBEbenNODPRcvVapSTF(),"
_SKIPPED = tuple(
    msgspec.defstruct(f"Skipped{code}", [], tag_field="ph", tag=phase, gc=False)
    for code, phase in enumerate(dict.fromkeys(SKIPPED_PHASES))
)


def _union(*kinds: type[Struct]) -> Any:
    union: Any = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return list[union]


_DECODERS = {
    kind: msgspec.json.Decoder(_union(kind, _CollectedMetadata, *_SKIPPED)).decode
    for kind in (UsualComplete, Complete, ExactComplete)
}


def decode_array(text: memoryview, complete: type[Complete]) -> tuple[list[Struct], list[Metadata]]:
    """All events of a JSON array, and the metadata events among them."""
    _COLLECTED.events = []
    decoded: list[Struct] = _DECODERS[complete](text)
    metadata: list[Metadata] = _COLLECTED.events
    _COLLECTED.events = []
    return decoded, metadata


# Cut an array into the texts of its elements; raises only if it is not a JSON array.
DECODE_RAW = msgspec.json.Decoder(list[Raw]).decode


NO_TIME = Raw(b"null")


class Loose(Struct):
    """An event that is only known to be a JSON object."""

    ph: Any = None
    name: Any = None
    cat: Any = None
    pid: Any = None
    tid: Any = None
    ts: Raw = NO_TIME
    dur: Any = None
    args: Any = None


# Decode the text of one event, whatever its types.
DECODE_LOOSE = msgspec.json.Decoder(Loose).decode


class _Object(Struct):
    """Any JSON object."""


DECODE_OBJECT = msgspec.json.Decoder(_Object).decode  # check that a text is one JSON object
DECODE_ANY = msgspec.json.Decoder().decode  # decode any JSON text to builtin types
