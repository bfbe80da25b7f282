"""COLLECTIVES rows of one rank: kinds, process groups, peers and sizes.

Here is what the arguments of communication events say; the modules make rows of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.costs.operators import element_bytes
from distprof.ingest.communication import collective_kind, is_wait
from distprof.ingest.metadata import parse_ranks
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.terms import CollectiveKind, MeshAxis, Origin
from distprof.units import fold_ranks

# Operators of c10d whose first argument is the output and second the input; the others change one
# tensor in place. torch/csrc/distributed/c10d/Ops.cpp.
_OUT_THEN_IN = re.compile(r"allgather|reduce_scatter|alltoall|gather|scatter")
# Largest plausible tensor and job. Larger numbers are invalid, and would overflow int64 when bytes
# are computed from them (2^40 elements of 2^4 bytes on 2^18 ranks are 2^62 bytes).
_MAX_ELEMENTS = 1 << 40
MAX_RANKS = 1 << 18

# Prefixes of CPU operators that request one collective; their shapes give its size.
OPERATORS = ("c10d::", "symm_mem::")

# Prefixes of a backend's annotations; their shape is that of the input.
ANNOTATIONS = ("nccl:", "xccl:", "ucc:", "gloo:", "mpi:")
_COUNTED_BY_OUTPUT = (CollectiveKind.ALL_GATHER, CollectiveKind.SCATTER)
_COUNTED_BY_INPUT = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL)


class CallFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from each COMM_ARGS row about one collective. All arrays have one value per row."""

    kind: NDArray[np.int8]  # int8, a CollectiveKind.
    in_elements: Int64Array  # Elements of the input on this rank, ABSENT if unknown.
    out_elements: Int64Array  # Elements of the output on this rank.
    element_bytes: Int64Array  # Bytes of an element.
    # Whether the row gives the number of elements, so it is not derived from shapes.
    is_written: NDArray[np.bool_]
    dtype: Coded  # Element type from the types of inputs, for rows without a dtype argument.
    peer: Int64Array  # Global rank of the other end of a point-to-point operation.


def call_facts(comm_args: Table) -> CallFacts:
    """Read every row of a COMM_ARGS table; each distinct text is parsed once."""
    written_in = _sane(comm_args["in_nelems"], _MAX_ELEMENTS)
    written_out = _sane(comm_args["out_nelems"], _MAX_ELEMENTS)
    is_written = (written_in >= 0) | (written_out >= 0)
    shape_in, shape_out = _elements_by_shape(comm_args)
    types = comm_args.coded("input_types")
    dtype = Coded.merged(types.codes, [_dtype(text) for text in types.values])
    size = _element_sizes(comm_args.coded("dtype"))
    return CallFacts(
        kind=_kinds(comm_args),
        in_elements=np.where(is_written, written_in, shape_in),
        out_elements=np.where(is_written, written_out, shape_out),
        element_bytes=np.where(size != ABSENT, size, _element_sizes(dtype)),
        is_written=is_written,
        dtype=dtype,
        peer=_sane(
            np.where(comm_args["dst_rank"] >= 0, comm_args["dst_rank"], comm_args["src_rank"]),
            MAX_RANKS,
        ),
    )


def full_buffer_bytes(
    *,
    kind: NDArray[np.int8],
    in_elements: Int64Array,
    out_elements: Int64Array,
    element_bytes: Int64Array,
    group_size: Int64Array,
) -> tuple[Int64Array, NDArray[np.bool_]]:
    """Bytes of the full, unsharded buffer, as nccl-tests counts them.

    All-reduce: the buffer. All-gather and reduce-scatter: the concatenated size. All-to-all: one
    rank's whole send buffer. Scatter and gather: the root's buffer. Other kinds: the message.

    Arguments have one entry per operation of this rank, ABSENT if unknown. So have the bytes,
    ABSENT also for barriers, and the mask of those computed as shard times group size.

    Source:
        Formula sheet, "Collectives": n follows nccl-tests, doc/PERFORMANCE.md.
    """
    largest = np.maximum(in_elements, out_elements)
    by_output, by_input = (
        (kind == one) | (kind == other) for one, other in (_COUNTED_BY_OUTPUT, _COUNTED_BY_INPUT)
    )
    gather = kind == CollectiveKind.GATHER
    shard = np.select([by_output | gather, by_input], [in_elements, out_elements], ABSENT)
    shard = np.where(kind == CollectiveKind.SCATTER, out_elements, shard)
    shard = np.where(kind == CollectiveKind.ALL_TO_ALL, ABSENT, shard)
    whole = np.select([by_output, by_input], [out_elements, in_elements], largest)
    whole = np.where(gather | (kind == CollectiveKind.SCATTER), ABSENT, whole)
    whole = np.where((kind == CollectiveKind.ALL_TO_ALL) & (whole < 0), out_elements, whole)
    scaled = (whole < 0) & (shard >= 0) & (group_size > 0)
    elements = np.where(scaled, shard * np.maximum(group_size, 1), whole)
    known = (elements >= 0) & (element_bytes > 0) & (kind != CollectiveKind.BARRIER)
    known &= kind != CollectiveKind.UNKNOWN
    total: Int64Array = np.where(known, elements * element_bytes, ABSENT)
    return total, scaled & known


def peer_in_group(concrete_inputs: Coded) -> Int64Array:
    """The peer of ``c10d::send`` and ``recv_`` as a rank in its group, ABSENT if unknown."""
    peers = []
    for text in concrete_inputs.values:
        peer = next(iter(_json_list(text)[2:3]), None)
        is_rank = isinstance(peer, str) and re.fullmatch("[0-9]{1,6}", peer)
        peers.append(int(peer) if isinstance(peer, str) and is_rank else ABSENT)
    return _by_value(concrete_inputs, peers)


def splits_of_operators(names: Coded, concrete_inputs: Coded) -> tuple[Coded, Coded]:
    """Output and input splits of ``c10d::alltoall_base_``, as ``1,2,3``; empty if unknown.

    The arguments are output, input, group, output splits, input splits. torch writes lists of more
    than 30 numbers as empty ones.
    """
    inputs = [_json_list(text) for text in concrete_inputs.values]
    is_call = names.equals("c10d::alltoall_base_")
    codes = np.where(is_call, concrete_inputs.codes + 1, 0).astype(np.int32)
    out_splits, in_splits = (
        Coded.merged(codes, ("", *(_numbers(one[at]) if len(one) > 4 else "" for one in inputs)))
        for at in (3, 4)
    )
    return out_splits, in_splits


def _numbers(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"\[[0-9]{1,15}(, ?[0-9]{1,15})*\]", value):
        return ""
    return value[1:-1].replace(" ", "")


def _kinds(comm_args: Table) -> NDArray[np.int8]:
    """Kind from the collective name, else from the name of the operator or annotation."""
    written, names = comm_args.coded("collective"), comm_args.coded("name")
    named = [0 if is_wait(text) else collective_kind(text) for text in written.values]
    by_argument = _by_value(written, named)
    is_call = [name.startswith(OPERATORS + ANNOTATIONS) for name in names.values]
    called = [collective_kind(n) if c else 0 for n, c in zip(names.values, is_call, strict=True)]
    by_name = _by_value(names, called)
    return np.where(by_argument > 0, by_argument, by_name).astype(np.int8)


def _elements_by_shape(comm_args: Table) -> tuple[Int64Array, Int64Array]:
    """Elements of input and output from the shapes of operators and annotations."""
    names = comm_args.coded("name")
    first, second, everything = _elements_of_arguments(
        comm_args.coded("input_dims"), comm_args.coded("input_types")
    )
    operator = names.where([name.startswith(OPERATORS) for name in names.values])
    annotation = names.where([name.startswith(ANNOTATIONS) for name in names.values])
    c10d = names.where([name.startswith("c10d::") for name in names.values])
    out_first = c10d & names.where([bool(_OUT_THEN_IN.search(name)) for name in names.values])
    in_elements = np.select([out_first, operator, annotation], [second, first, everything], ABSENT)
    out_elements = np.where(c10d, first, ABSENT)
    return in_elements.astype(np.int64), out_elements.astype(np.int64)


def _elements_of_arguments(dims: Coded, types: Coded) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Elements of the first argument, the second, and all; each distinct text is parsed once."""
    if not len(dims):
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty
    pair = dims.codes.astype(np.int64) * len(types.values) + types.codes
    distinct, inverse = np.unique(pair, return_inverse=True)
    places = [divmod(code, len(types.values)) for code in distinct.tolist()]
    counts = [_argument_elements(dims.values[dim], types.values[kind]) for dim, kind in places]
    first, second, everything = np.array(counts, dtype=np.int64)[inverse].T
    return first, second, everything


def _argument_elements(dims: str, types: str) -> tuple[int, int, int]:
    """Elements of the first argument, of the second, and of all together."""
    shapes, kinds = _json_list(dims), _json_list(types)
    kinds += [""] * (len(shapes) - len(kinds))
    arguments = [_elements(shape, kind) for shape, kind in zip(shapes, kinds, strict=False)]
    known = [count for count in arguments if count != ABSENT]
    first, second = ([*arguments, ABSENT, ABSENT])[:2]
    return first, second, sum(known) if known and sum(known) < _MAX_ELEMENTS else ABSENT


def _elements(shape: object, kind: object) -> int:
    """Elements of an argument with this shape, or of a list of tensors with these shapes.

    Empty dimensions can mean a zero-dimensional tensor or an argument that is not a tensor, so the
    type decides. Dimensions in a list always belong to tensors.
    """
    if not isinstance(shape, list):
        return ABSENT
    if not shape:  # types of tensors are like ``float``; plain numbers have ``Double``
        is_tensor = isinstance(kind, str) and kind[:1].islower()
        return 1 if is_tensor and element_bytes(str(kind)) is not None else ABSENT
    if not any(isinstance(item, list) for item in shape):
        return _product(shape)
    parts = [_product(item) if isinstance(item, list) else ABSENT for item in shape]
    return sum(parts) if ABSENT not in parts and sum(parts) < _MAX_ELEMENTS else ABSENT


def _product(shape: list[object]) -> int:
    sizes = [size for size in shape if isinstance(size, int)]
    product = math.prod(sizes) if len(sizes) == len(shape) else ABSENT
    return product if 0 <= product < _MAX_ELEMENTS else ABSENT


def _dtype(text: str) -> str:
    """The element type in ``Input type``, empty if it has only ``TensorList`` or nothing."""
    known = [t for t in _json_list(text) if isinstance(t, str) and element_bytes(t) is not None]
    return known[0] if known else ""


def _element_sizes(dtype: Coded) -> Int64Array:
    return _by_value(dtype, [element_bytes(value) or ABSENT for value in dtype.values])


def _sane(values: Int64Array, limit: int) -> Int64Array:
    """The values, ABSENT if negative or implausibly large."""
    return np.where((values >= 0) & (values < limit), values, ABSENT)


def _by_value(column: Coded, results: Sequence[int]) -> Int64Array:
    """Expand one result per distinct value to the rows."""
    if not column.values:
        return np.full(len(column), ABSENT, dtype=np.int64)
    return np.array(results, dtype=np.int64)[column.codes]


def _json_list(text: str) -> list[object]:
    if not text.startswith("["):
        return []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


_MESSAGES = (CollectiveKind.SEND, CollectiveKind.RECV)


class GroupColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The group columns of a COLLECTIVES table."""

    group: Coded
    description: Coded
    ranks: Coded
    size: NDArray[np.int32]
    origin: NDArray[np.int8]


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    description: str = ""
    ranks: tuple[int, ...] = ()
    size: int = ABSENT
    origin: Origin = Origin.ABSENT


_MESSAGE_AXES = (MeshAxis.PP, MeshAxis.CP)


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that one rank belongs to."""

    groups: tuple[ProcessGroup, ...]  # Groups in the metadata; may be empty.
    world_size: int | None  # Number of ranks of the job, None if unknown.

    def only_ranks(self) -> tuple[int, ...]:
        """The set of ranks that this rank communicates with; empty if it is unclear."""
        sets = {group.ranks for group in self.groups if group.ranks and len(group.ranks) > 1}
        unknown = any(not group.ranks for group in self.groups)
        if len(sets) == 1 and not unknown:
            return next(iter(sets))
        if sets or unknown or self.world_size is None:
            return ()
        return tuple(range(self.world_size))

    def message_group(self) -> ProcessGroup | None:
        """The rank's only group, or its only one along an axis on which ranks exchange messages."""
        ranks = self.only_ranks()
        along = [group for group in self.groups if group.axis in _MESSAGE_AXES and group.ranks]
        if ranks:
            same = [group for group in self.groups if group.ranks == ranks]
            unnamed = ProcessGroup(
                name="", description="", ranks=ranks, size=len(ranks), backend="", axis=None
            )
            return same[0] if same else unnamed
        return along[0] if len({group.ranks for group in along}) == 1 else None

    def with_group(self, table: Table, rows: NDArray[np.bool_], group: ProcessGroup) -> Table:
        """The COLLECTIVES table with this group in the given rows."""
        size, origin = table["group_size"].copy(), table["group_origin"].copy()
        size[rows], origin[rows] = len(group.ranks), Origin.DERIVED
        coded = {}
        for name, text in (
            ("group", group.name),
            ("group_desc", group.description),
            ("group_ranks", fold_ranks(group.ranks)),
        ):
            column = table.coded(name)
            codes = np.where(rows, len(column.values), column.codes).astype(np.int32)
            coded[name] = Coded.merged(codes, (*column.values, text))
        return table.with_columns(group_size=size, group_origin=origin, **coded)

    def columns(self, comm_args: Table, layers: Sequence[Int64Array], count: int) -> GroupColumns:
        """Group columns of ``count`` operations."""
        named, of_row = self._named_groups(comm_args)
        codes = np.zeros(count, dtype=np.int32)  # 0: no evidence names a group
        for layer in reversed(layers):
            found = np.where(layer != ABSENT, of_row[layer] if len(of_row) else 0, 0)
            codes = np.where(found > 0, found, codes).astype(np.int32)
        groups = (self._assumed(), *named)
        return GroupColumns(
            group=Coded.merged(codes, [group.name for group in groups]),
            description=Coded.merged(codes, [group.description for group in groups]),
            ranks=Coded.merged(codes, [fold_ranks(group.ranks) for group in groups]),
            size=np.array([group.size for group in groups], dtype=np.int32)[codes],
            origin=np.array([group.origin for group in groups], dtype=np.int8)[codes],
        )

    def _named_groups(self, comm_args: Table) -> tuple[tuple[_Group, ...], NDArray[np.int32]]:
        """Distinct groups that COMM_ARGS rows name, and 1 + its group for each row, 0 without."""
        texts = [comm_args.coded(name) for name in ("group", "group_desc", "group_ranks")]
        sizes = comm_args["group_size"]
        keys = np.stack([*(text.codes.astype(np.int64) for text in texts), sizes], axis=1)
        distinct, which = np.unique(keys, axis=0, return_inverse=True)
        groups: list[_Group] = []
        numbers = np.zeros(len(distinct), dtype=np.int32)
        for index, (*codes, size) in enumerate(distinct.tolist()):
            name, description, ranks = (t.values[c] for t, c in zip(texts, codes, strict=True))
            group = self._resolve(name, description, parse_ranks(ranks), size)
            if group is not None:
                groups.append(group)
                numbers[index] = len(groups)
        return tuple(groups), numbers[which.reshape(-1)] if len(distinct) else numbers

    def _resolve(
        self, name: str, description: str, ranks: tuple[int, ...], size: int
    ) -> _Group | None:
        """The group in an event's arguments, completed from the metadata."""
        if not name and not ranks:
            return None
        listed = [group for group in self.groups if group.name == name]
        if ranks:
            listed = [group for group in listed if group.ranks in ((), ranks)]
        if len(listed) == 1:
            ranks = ranks or listed[0].ranks
            description = description or listed[0].description
        if not ranks and size == self.world_size:
            ranks = tuple(range(size))
        return _Group(
            name=name,
            description=description,
            ranks=ranks,
            size=len(ranks) or (size if 0 < size < MAX_RANKS else ABSENT),
            origin=Origin.MEASURED,
        )

    def _assumed(self) -> _Group:
        """The group assumed for operations that name none."""
        ranks = self.only_ranks()
        if not ranks:
            return _Group()
        same = [group for group in self.groups if group.ranks == ranks]
        return _Group(
            name=same[0].name if len(same) == 1 else "",
            description=same[0].description if len(same) == 1 else "",
            ranks=ranks,
            size=len(ranks),
            origin=Origin.DERIVED,
        )

    def notes(self, table: Table) -> Iterator[str]:
        """Assumptions about groups, one sentence each."""
        origin = table["group_origin"]
        assumed, unknown = (int((origin == one).sum()) for one in (Origin.DERIVED, Origin.ABSENT))
        if assumed:
            ranks, group = self.only_ranks(), self.message_group()
            whose = "the only group of this rank" if self.groups else "all ranks of the job"
            if not ranks and group is not None:  # sends and receives
                ranks, whose = group.ranks, f"{group.description or group.name}, along which "
                whose += "ranks exchange messages"
            if np.isin(table["kind"][origin == Origin.DERIVED], _MESSAGES).all():
                # gloo's never do, so counts per rank are not worth a line each
                who = "Sends and receives"
            else:
                who = f"{assumed} of {len(table)} collectives"
                whose += f", ranks {fold_ranks(ranks)}"
            yield f"{who} do not name a process group: distprof assumes {whose}."
        if unknown:
            yield f"The process group of {unknown} of {len(table)} collectives is unknown."
