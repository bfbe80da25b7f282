"""FLOP and memory traffic of one operator, from the sizes of its inputs in a trace.

FLOP are those that ``torch.utils.flop_counter`` counts: two per multiplication and addition, the
whole of causal attention, nothing for operators that memory limits. Bytes are read and written
once (formula sheet, "Computation and communication"); an operator that reads its inputs again
moves more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import permutations, zip_longest
from math import prod
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

Found = TypeVar("Found", int, tuple[int, int])

Size: TypeAlias = tuple[int, ...]

_MOST_KNOWN = 1 << 14

# Spellings of PyTorch's ScalarType, of C++ and of its annotations, lower case, without c10::.
_ELEMENT_BYTES = {
    name: size
    for size, names in {
        1: "byte char bool int8 uint8 signedchar unsignedchar qint8 quint8 "
        "float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz float8_e8m0fnu",
        2: "half bfloat16 float16 short int16 uint16 shortint unsignedshort",
        4: "float float32 int int32 uint32 qint32 unsignedint complexhalf",
        8: "double float64 long longint int64 uint64 unsignedlong complexfloat complex<float>",
        16: "complexdouble complex<double>",
    }.items()
    for name in names.split()
}


def element_bytes(dtype: str) -> int | None:
    """Bytes of one element of a type in the spelling of PyTorch or C++, None if unknown."""
    return _ELEMENT_BYTES.get(dtype.lower().replace("c10::", "").replace(" ", ""))


class Inputs(NamedTuple):
    """The inputs of one call, an entry each; without entries if they are unknown."""

    sizes: tuple[Size | None, ...] = ()  # Of tensors; None for anything else.
    types: tuple[str, ...] = ()  # As the trace names them; empty if unknown.
    values: tuple[str, ...] = ()  # Of scalars and lists; empty if not recorded.
    output: Size | None = None  # Size of the output, or what :func:`with_experts` adds.

    def bytes(self, which: int) -> int | None:
        """Size of a tensor in bytes; None if it is none or its type is unknown."""
        size, width = self.sizes[which], element_bytes(self.types[which])
        return None if size is None or width is None else prod(size) * width

    @property
    def first_type(self) -> str:
        """Element type of the first tensor; empty without one."""
        found = zip(self.sizes, self.types, strict=True)
        return next((kind for size, kind in found if size is not None), "")

    @property
    def width(self) -> int:
        """Bytes per element of the first tensor; 0 if unknown."""
        return element_bytes(self.first_type) or 0

    @property
    def elements(self) -> list[int]:
        """Number of elements of each tensor."""
        return [prod(size) for size in self.sizes if size]


class Work(NamedTuple):
    """What one call computes and moves; None means unknown."""

    flop: int | None = None
    bytes: int | None = None  # Read and written.
    written: int | None = None  # Those of them that are written.


@lru_cache(_MOST_KNOWN)
def parse_inputs(text: str) -> Inputs:
    """The inputs from three lists as JSON: sizes, types and values.

    A fourth one is what other rows show (:func:`with_output`, :func:`with_experts`). There are no
    entries if the profiler recorded no sizes, or if they are damaged.
    """
    try:
        sizes, types, values, *more = msgspec.json.decode(text, type=list[list[Any]])
    except (msgspec.DecodeError, ValueError):
        return Inputs()
    rows = list(zip_longest(sizes, types[: len(sizes)], values[: len(sizes)], fillvalue=""))
    return Inputs(
        tuple(_size(size, kind if types else None) for size, kind, _ in rows),
        tuple(kind if isinstance(kind, str) else "" for _, kind, _ in rows),
        tuple(value if isinstance(value, str) else "" for _, _, value in rows),
        tuple(more[0]) if more else None,
    )


def _size(size: Any, kind: Any) -> Size | None:
    """The size of a tensor; a tensor without dimensions has one element.

    Without types, as PyTorch 1.8 wrote them, such a tensor looks like a number.
    """
    if kind in ("", "Scalar", "ScalarList", "TensorList") or (kind is None and not size):
        return None
    found = whole_numbers(size)
    return None if found is None else tuple(found)


def whole_numbers(found: Any) -> list[int] | None:
    """A list of sizes or strides; None for anything else, or for damaged ones."""
    if isinstance(found, list) and all(type(one) is int and 0 <= one < _LARGEST for one in found):
        return found
    return None


_LARGEST = 1 << 40

_MOST = 1 << 56
"""FLOP or bytes beyond which a size must be damaged: a GPU would compute for a minute."""


@lru_cache(_MOST_KNOWN)
def work_of(operator: str, inputs: str) -> Work:
    """FLOP and bytes of one call of ``aten::mm``, for example; ``inputs`` are as in table HOST."""
    known = parse_inputs(inputs)
    if operator == ROUTED_EXPERTS:
        return Work(_applied(_of_experts, known))
    name = operator.rpartition("::")[2]
    if name.startswith("triton_"):
        flop = _applied(_template, known) if name.startswith("triton_tem_") else None
        return Work(flop, _applied(_read, known))
    of_flop, of_traffic = _FORMULAS.get(name, _UNKNOWN)
    flop, moved = _applied(of_flop, known), _applied(of_traffic, known)
    return Work(flop) if moved is None else Work(flop, sum(moved), moved[1])


def _applied(formula: Callable[[Inputs], Found] | None, known: Inputs) -> Found | None:
    """The result of a formula; None without one, or for inputs that do not fit it."""
    try:
        found = None if formula is None else formula(known)
    except (LookupError, TypeError, ValueError):
        return None
    largest = found if isinstance(found, int) else max(found or (0, 0))
    return found if largest <= _MOST else None


def is_counted(operator: str) -> bool:
    """Whether FLOP of this operator are known, so that operators inside it do not count."""
    return _FORMULAS.get(operator.rpartition("::")[2], _UNKNOWN)[0] is not None


# Sizes that a trace without values leaves open ----------------------------------------------------

CONVOLUTION = "aten::convolution"

GRADIENT_OF_WEIGHT = "aten::cudnn_convolution_backward_weight"
"""Called until PyTorch 1.10, with the size of the weights as a list that is not recorded."""

BACKWARD_CONVOLUTIONS = {
    "aten::convolution_backward": (0, 1),
    "aten::cudnn_convolution_backward": (1, 0),
    "aten::convolution_backward_overrideable": (0, 1),
}
"""Which inputs are the gradient of the output and the input; the third one is the weight."""

Outputs: TypeAlias = Mapping[tuple[Size, Size], Size]
"""Sizes of outputs by sizes of input and weight."""


def outputs_of_convolutions(backward: Iterable[tuple[str, str]]) -> Outputs:
    """What backward convolutions, as name and inputs, show of the outputs of forward ones.

    Sizes with several outputs, as with and without a stride, are left out.
    """
    found: dict[tuple[Size, Size], set[Size]] = {}
    for name, text in backward:
        gradient, given = BACKWARD_CONVOLUTIONS[name]
        sizes = parse_inputs(text).sizes
        if len(sizes) <= 2:
            continue
        output, size, weight = sizes[gradient], sizes[given], sizes[2]
        if output and size and weight:
            found.setdefault((size, weight), set()).add(output)
    return {pair: outputs.pop() for pair, outputs in found.items() if len(outputs) == 1}


def with_output(text: str, outputs: Outputs) -> str:
    """The inputs of a convolution with the size of its output, if it is known and needed."""
    inputs = parse_inputs(text)
    if len(inputs.sizes) < 2 or any(inputs.values):
        return text
    size, weight = inputs.sizes[:2]
    output = outputs.get((size, weight)) if size and weight else None
    return text if output is None else _with(text, output)


def _with(text: str, more: Size) -> str:
    return msgspec.json.encode([*msgspec.json.decode(text), more]).decode()


ROUTED_EXPERTS = "vllm::moe_forward"
"""Called with tokens and the scores of experts for them, but not with their weights."""

PRODUCT_OF_EXPERTS = re.compile(r"^bmm_\w+?_t(\d+)x(\d+)x\d+\w*_transOut_\w*dynBatch")
"""A kernel of TensorRT-LLM for all experts, with its tile of columns and of tokens."""


@lru_cache(_MOST_KNOWN)
def with_experts(text: str, launches: tuple[tuple[str, int], ...]) -> str:
    """The inputs of routed experts with rows, columns of the first and depth of the second product.

    Each token is a row per expert that it goes to. A grid has a block per tile of columns and of
    rows, of these at most ``experts + (rows - experts) // tile`` (``getMaxNumCtasInBatchDim`` in
    TensorRT-LLM's ``runner.h``). Nothing is added unless all of that fits in whole numbers.
    ``launches`` has names and blocks of the two products, in order.
    """
    found = [PRODUCT_OF_EXPERTS.match(name) for name, _ in launches]
    try:
        (tokens, width), (_, experts) = (size or () for size in parse_inputs(text).sizes[:2])
        ((height, tile),) = {tuple(map(int, one.groups())) for one in found if one}
        (first, blocks), (_, last_blocks) = launches
        tiles, rest = divmod(last_blocks * height, width)
        columns, more = divmod(blocks * height, tiles)
        rows = -(-(experts + (tiles - experts) * tile) // tokens) * tokens
    except (ValueError, ZeroDivisionError):
        return text
    is_known = tiles == experts + (rows - experts) // tile and rows >= experts and tokens >= tile
    if rest or more or not is_known:
        return text
    return _with(text, (rows, columns, columns // 2 if "Glu_" in first else columns))


# FLOP --------------------------------------------------------------------------------------------

_Flop: TypeAlias = Callable[[Inputs], int]


def _product(first: Size, second: Size) -> int:
    """Matrix product, with a leading batch dimension or without one."""
    *batch, rows, inner = first
    if tuple(second[:-1]) != (*batch, inner):
        raise ValueError
    return 2 * prod(batch) * rows * inner * second[-1]


def _products(at: int) -> _Flop:
    return lambda call: _product(_tensor(call, at), _tensor(call, at + 1))


def _tensor(call: Inputs, at: int) -> Size:
    size = call.sizes[at]
    if size is None:
        raise ValueError
    return size


def _numbers(value: str, count: int) -> list[int]:
    """A list of integers; a single one counts for every dimension."""
    found = [int(part) for part in value.strip("[]() ").split(",")]
    return found * count if len(found) == 1 else found


def _output_of(call: Inputs) -> Size:
    """Spatial size of a convolution's output."""
    size, weight = _tensor(call, 0), _tensor(call, 1)
    steps = (_numbers(call.values[n], len(size) - 2) for n in (3, 4, 5))
    return tuple(
        (extent + 2 * pad - gap * (filter_size - 1) - 1) // step + 1
        for extent, filter_size, step, pad, gap in zip(size[2:], weight[2:], *steps, strict=True)
    )


def _convolution(call: Inputs) -> int:
    size, weight = _tensor(call, 0), _tensor(call, 1)
    if call.output is not None:
        grown = any(out > given for out, given in zip(call.output[2:], size[2:], strict=True))
        if call.output[1] != weight[0] or grown:  # transposed
            raise ValueError
        spatial = call.output[2:]
    elif _flag(call.values[6]):  # transposed: each input element meets the filter
        spatial = size[2:]
    else:
        spatial = _output_of(call)
    return 2 * size[0] * prod(spatial) * prod(weight)


def _convolution_backward(call: Inputs) -> int:
    gradient, size, weight = (_tensor(call, at) for at in range(3))
    transposed = _flag(call.values[7])
    of_input, of_weight = (_flag(part) for part in call.values[10].strip("[] ").split(",")[:2])
    flop = 0
    if of_input:
        spatial = size[2:] if transposed else gradient[2:]
        flop += 2 * gradient[0] * prod(spatial) * prod(weight)
    if of_weight:
        one, other = (gradient, size) if transposed else (size, gradient)
        flop += 2 * one[1] * prod(weight[2:]) * prod(other)
    return flop


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def _gradient(call: Inputs) -> int:
    """One of the two gradients of a convolution that is not transposed."""
    gradient, weight = _tensor(call, 1), _tensor(call, 2)
    return 2 * gradient[0] * prod(gradient[2:]) * prod(weight)


def _grouped(call: Inputs) -> int:
    """Matrices one below the other, or side by side, each times one of its own."""
    first, second = _tensor(call, 0), _tensor(call, 1)
    if first[-1] != second[-2]:
        raise ValueError
    if len(first) == len(second) == _BATCHED:
        return _product(first, second)
    return 2 * first[-2] * first[-1] * second[-1]


_BATCHED = 3


def _of_experts(call: Inputs) -> int:
    rows, columns, inner = call.output or ()
    return 2 * rows * _tensor(call, 0)[1] * (columns + inner)


def _template(call: Inputs) -> int:
    """A product that Inductor made a kernel for: two of its tensors fit, and a third one."""
    sizes = [size for size in call.sizes if size and len(size) in (2, _BATCHED)]
    for first, second in permutations(sizes, 2):
        *batch, inner = first
        if second[-2] == inner and first[:-2] == second[:-2] and (*batch, second[-1]) in sizes:
            return _product(first, second)
    raise ValueError


def _attention(
    at: int = 0, tokens: int = 2, *, ends: int | None = None, products: tuple[int, int] = (1, 1)
) -> _Flop:
    """Products of all pairs of query and key, which with the value begin at the place ``at``.

    ``tokens`` is the dimension of the key that counts tokens, ``ends`` the place of a tensor that
    says where sequences end, if they are one after another. ``products`` counts products over the
    width of the query, and over that of the value.
    """

    def flop(call: Inputs) -> int:
        if ends is not None and len(call.sizes) > ends and call.sizes[ends]:
            raise ValueError
        query, key, value = (_tensor(call, at + n) for n in range(3))
        if len(query) != _OF_ATTENTION or len(key) != _OF_ATTENTION:
            raise ValueError
        return 2 * prod(query[:3]) * key[tokens] * _widths(products, query, value)

    return flop


_OF_ATTENTION = 4

_BACKWARD = (3, 2)
"""The scores again, and gradients of scores, value, query and key."""


def _widths(products: tuple[int, int], query: Size, value: Size) -> int:
    return products[0] * query[-1] + products[1] * value[-1]


def _packed(at: int, *, ends: int, longest: int, products: tuple[int, int] = (1, 1)) -> _Flop:
    """Attention over sequences one after another, if all are as long as the longest one.

    Query, key and value are tokens × heads × width each. ``longest`` is the place of the longest
    sequence of queries and of keys; the others are as in :func:`_attention`.
    """

    def flop(call: Inputs) -> int:
        queries, keys, values = (_tensor(call, at + n) for n in range(3))
        count = _tensor(call, ends)[0] - 1
        spans = [int(call.values[longest + n]) for n in range(2)]
        if [queries[0], keys[0]] != [count * span for span in spans]:
            raise ValueError
        return 2 * queries[0] * queries[1] * spans[1] * _widths(products, queries, values)

    return flop


# Bytes -------------------------------------------------------------------------------------------

_Traffic: TypeAlias = tuple[int, int]
"""Bytes read, and bytes written."""

_Moved: TypeAlias = Callable[[Inputs], _Traffic]


def _read(call: Inputs, first: int = 0) -> int:
    """Bytes of all tensors among the inputs, from the first one on that is read."""
    found = [at for at, size in enumerate(call.sizes) if size is not None and at >= first]
    if not found:
        raise ValueError
    return sum(_bytes(call, at) for at in found)


def _bytes(call: Inputs, at: int) -> int:
    return _whole(_tensor(call, at), call.types[at])


def _whole(size: Size, kind: str) -> int:
    if (width := element_bytes(kind)) is None:
        raise ValueError
    return prod(size) * width


def _elementwise(call: Inputs) -> _Traffic:
    """The output is as large as all inputs together span."""
    sizes = [size for size in call.sizes if size is not None]
    spans = zip_longest(*(size[::-1] for size in sizes), fillvalue=1)
    return _read(call), _whole(tuple(max(extents) for extents in spans), call.first_type)


def _like(*places: int) -> _Moved:
    """The outputs are as large as some of the inputs."""
    return lambda call: (_read(call), sum(_bytes(call, at) for at in places))


def _gemm(at: int) -> _Moved:
    def moved(call: Inputs) -> _Traffic:
        first, second = _tensor(call, at), _tensor(call, at + 1)
        _product(first, second)  # or they do not fit
        return _read(call), _whole((*first[:-1], second[-1]), call.types[at])

    return moved


def _attended(call: Inputs) -> _Traffic:
    query, value = _tensor(call, 0), _tensor(call, 2)
    return _read(call), _whole((*query[:-1], value[-1]), call.types[0])


def _picked(call: Inputs, index: int, row: Size) -> _Traffic:
    """Rows of the first input, or elements if a row has no size; of it only these are read."""
    found = _whole((*_tensor(call, index), *row), call.types[0])
    return found + _bytes(call, index), found


def _indexed(moved: int, *index: int) -> _Moved:
    """Rows of ``moved`` are read, added to others, which are read as well, and written."""
    read = (moved, moved, *index)
    return lambda call: (sum(_bytes(call, at) for at in read), _bytes(call, moved))


def _convolved(call: Inputs) -> _Traffic:
    size, weight = _tensor(call, 0), _tensor(call, 1)
    if _flag(call.values[6]):
        raise ValueError
    return _read(call), _whole((size[0], weight[0], *_output_of(call)), call.types[0])


_ONE_BY_ONE = (
    *("add", "sub", "mul", "div", "rsub", "pow", "where", "masked_fill", "maximum", "minimum"),
    *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "bitwise_and", "bitwise_or"),
    *("relu", "gelu", "silu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "neg", "abs"),
    *("clamp", "clamp_min", "clamp_max", "cos", "sin", "reciprocal", "erf", "leaky_relu", "elu"),
    *("gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward", "threshold_backward"),
    *("lerp", "addcmul", "addcdiv", "hardtanh", "hardswish", "softplus", "mish", "tril", "triu"),
)

_ROW_BY_ROW = (
    *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
    *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "rms_norm"),
    *("native_batch_norm", "cudnn_batch_norm", "cudnn_batch_norm_backward", "_fused_rms_norm"),
    *("native_batch_norm_backward", "batch_norm_backward", "_batch_norm_with_update"),
    *("native_dropout", "native_dropout_backward", "cumsum", "flip", "roll"),
)

_ONLY_READ = ("sum", "mean", "max", "min", "amax", "amin", "norm", "linalg_vector_norm", "var")

_ATTENTION = [f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")]

_FORMULAS: Mapping[str, tuple[_Flop | None, _Moved | None]] = {
    # Reads and writes: formula sheet, "Computation and communication".
    **dict.fromkeys(_ONE_BY_ONE, (None, _elementwise)),
    **dict.fromkeys([f"{name}_" for name in _ONE_BY_ONE], (None, _like(0))),
    **dict.fromkeys(_ROW_BY_ROW, (None, _like(0))),
    **dict.fromkeys(_ONLY_READ, (None, _like())),
    **dict.fromkeys(("fill_", "zero_"), (None, lambda call: (0, _read(call)))),
    "copy_": (None, lambda call: (_read(call, 1), _bytes(call, 0))),
    "embedding": (None, lambda call: _picked(call, 1, _tensor(call, 0)[1:])),
    "gather": (None, lambda call: _picked(call, 2, ())),
    "embedding_dense_backward": (None, _indexed(0, 1)),
    "_index_put_impl_": (None, _indexed(2)),
    **dict.fromkeys(
        ("index_add_", "index_add", "scatter_add_", "scatter_add"), (None, _indexed(3, 2))
    ),
    # FLOP: torch.utils.flop_counter, mm_flop to _scaled_mm_flop.
    **dict.fromkeys(("mm", "bmm", "_scaled_mm", "_int_mm"), (_products(0), _gemm(0))),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), (_products(1), _gemm(1))),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm"), (_grouped, None)),
    # FLOP: torch.utils.flop_counter, conv_flop and conv_backward_flop.
    "convolution": (_convolution, _convolved),
    "convolution_backward": (_convolution_backward, _like(1, 2)),
    "cudnn_convolution_backward_input": (_gradient, None),
    "cudnn_convolution_backward_weight": (_gradient, None),  # inputs of the operator around it
    # FLOP: torch.utils.flop_counter, sdpa_flop and sdpa_backward_flop.
    **dict.fromkeys(_ATTENTION, (_attention(), _attended)),
    **dict.fromkeys(
        [f"{name}_backward" for name in _ATTENTION],
        (_attention(1, products=_BACKWARD), _like(1, 2, 3)),
    ),
    "_flash_attention_forward": (_attention(tokens=1, ends=3), None),
    "_efficient_attention_forward": (_attention(tokens=1, ends=4), None),
    **dict.fromkeys(
        ("_flash_attention_backward", "_efficient_attention_backward"),
        (_attention(1, tokens=1, ends=6, products=_BACKWARD), None),
    ),
    # The same of package flash-attn, as batch × tokens × heads × width or packed.
    "_flash_attn_forward": (_attention(tokens=1), None),
    "_flash_attn_backward": (_attention(1, tokens=1, products=_BACKWARD), None),
    "_flash_attn_varlen_forward": (_packed(0, ends=3, longest=5), None),
    "_flash_attn_varlen_backward": (_packed(1, ends=9, longest=11, products=_BACKWARD), None),
}
"""FLOP and traffic of operators without their namespace, and where that is from."""

_UNKNOWN = None, None

KNOWN = frozenset(_FORMULAS)
"""Operators whose FLOP or bytes are known, without their namespace."""
