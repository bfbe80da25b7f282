"""From kernels to the operators that launched them, their pass and their category, on one rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.costs.operators import (
    BACKWARD_CONVOLUTIONS,
    CONVOLUTION,
    GRADIENT_OF_WEIGHT,
    PRODUCT_OF_EXPERTS,
    ROUTED_EXPERTS,
    is_counted,
    outputs_of_convolutions,
    with_experts,
    with_output,
)
from distprof.intervals import Intervals, covered
from distprof.run.tables import MODULE_CATEGORY, RankTables, intervals_of, join_launches, parts_by
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.sections.computation import Pass
from distprof.sections.computation.categories import number_of, of_kernel, strong, weak
from distprof.terms import ActivityKind

BACKWARD = re.compile(r"^autograd::engine::evaluate_function")

OF_AUTOGRAD = re.compile(r"Backward\d*$|CppNode|AccumulateGrad|^ProfilerStep#|GraphRoot")

_OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)#")

_COMPILED = re.compile(r"^(?:Torch-Compiled Region|CompiledFunction(?:Backward)?$)")
"""Rows around all kernels of a compiled function; the names of these say more."""

_GRAPH_LAUNCH = re.compile(r"^(?:cuda|cu|hip)GraphLaunch")
"""Calls that launch all kernels of a graph at once."""


class Operators(msgspec.Struct, frozen=True, kw_only=True):
    """Operators, annotations and calls of modules on a rank's CPU threads as a tree.

    They are in order of thread and start.
    """

    row: NDArray[np.int32]  # Row in HOST.
    thread: NDArray[np.int32]  # Code of the thread.
    start_ns: Int64Array
    end_ns: Int64Array
    parent: NDArray[np.int32]  # The innermost one around it; ABSENT without one.
    levels: Sequence[Int64Array]  # Operators of each depth, outermost first.

    @staticmethod
    def of(host: Table) -> Operators:
        """The tree. An operator that ends after the one around it is still inside."""
        rows = np.flatnonzero(host.coded("category").isin(_NESTED))
        start, end = (times[rows] for times in intervals_of(host))
        thread = host.coded("thread").codes[rows]
        order = np.lexsort((-end, start, thread)).astype(np.int32)
        thread, start, end = thread[order], start[order], end[order]
        depth, parent = _nested(thread, start, end)
        return Operators(
            row=rows[order].astype(np.int32),
            thread=thread,
            start_ns=start,
            end_ns=end,
            parent=parent,
            levels=list(parts_by(depth, np.arange(len(depth))).values()),
        )

    def around(self, thread: Int64Array, start: Int64Array) -> Int64Array:
        """The innermost operator of a thread that runs at each moment; ABSENT without one."""
        place = np.full(len(start), ABSENT, np.int64)
        if not len(self.row):
            return place
        base = int(self.start_ns.min())
        span = int(max(self.end_ns.max(), start.max(initial=base)) - base) + 2
        key = self.thread * np.int64(span) + (self.start_ns - base)
        at = np.searchsorted(key, thread * span + (np.maximum(start, base - 1) - base), "right") - 1
        known = (at >= 0) & (thread >= 0)
        known[known] = self.thread[at[known]] == thread[known]
        place[known] = at[known]
        while (late := (place >= 0) & (self.end_ns[place] <= start)).any():
            place[late] = self.parent[place[late]]
        return place

    def above(self, values: NDArray[np.int32], rows: Int64Array) -> NDArray[np.int32]:
        """The values of the operators around some of them; ABSENT without one."""
        parent = self.parent[rows]
        return np.where(parent >= 0, values[parent], np.int32(ABSENT))

    def inherited(self, own: NDArray[np.int32]) -> NDArray[np.int32]:
        """Each operator's value, or that of the nearest one around it that has one."""
        values = own.copy()
        for rows in self.levels:
            empty = rows[values[rows] == ABSENT]
            values[empty] = self.above(values, empty)
        return values

    def innermost(self, chosen: NDArray[np.bool_]) -> NDArray[np.int32]:
        """The innermost chosen operator around each one, itself included; ABSENT without one."""
        own = np.where(chosen, np.arange(len(chosen)), ABSENT)
        return self.inherited(own.astype(np.int32))

    def outermost(self, chosen: NDArray[np.bool_]) -> NDArray[np.int32]:
        """The outermost chosen operator around each one, itself included; ABSENT without one."""
        values = np.where(chosen, np.arange(len(chosen)), ABSENT).astype(np.int32)
        for rows in self.levels:
            outer = self.above(values, rows)
            values[rows] = np.where(outer == ABSENT, values[rows], outer)
        return values

    def passes(self, host: Table) -> NDArray[np.int32]:
        """The Pass of each operator.

        The backward pass runs without gradients, so an operator inside it that autograd numbers is
        recomputation.
        """
        names = host.coded("name")
        numbered = (host["sequence"] >= 0) & ~names.finds(OF_AUTOGRAD)
        own = np.full(len(self.row), ABSENT, np.int32)
        own[names.finds(BACKWARD)[self.row]] = Pass.BACKWARD
        own[names.finds(_OPTIMIZER)[self.row]] = Pass.OPTIMIZER
        starts = numbered[self.row] & (own == ABSENT)
        for rows in self.levels:
            outer = self.above(own, rows)
            inside = np.isin(outer, (Pass.BACKWARD, Pass.RECOMPUTATION))
            begun = np.where(inside, Pass.RECOMPUTATION, Pass.FORWARD)
            begun = np.where(outer == Pass.OPTIMIZER, Pass.OPTIMIZER, begun)
            value = np.where(starts[rows], begun, outer)
            own[rows] = np.where(own[rows] == ABSENT, value, own[rows])
        return np.where(own == ABSENT, Pass.OTHER, own).astype(np.int32)


_NESTED = ("cpu_op", "annotation", MODULE_CATEGORY)


_ROWS_AT_ONCE = 1 << 14  # as Python objects, which take ten times the memory

MOST_NESTED = 256
"""Depth of operators inside each other: time grows with it, and a trace is untrusted."""


def _nested(
    thread: NDArray[np.int32], start: Int64Array, end: Int64Array
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Depth and parent of intervals in order of thread and start, longest first."""
    depth = np.zeros(len(start), np.int32)
    parent = np.full(len(start), ABSENT, np.int32)
    opened: list[tuple[int, int]] = []
    last = None
    blocks = (slice(low, low + _ROWS_AT_ONCE) for low in range(0, len(start), _ROWS_AT_ONCE))
    rows = chain.from_iterable(
        zip(thread[block].tolist(), start[block].tolist(), end[block].tolist(), strict=True)
        for block in blocks
    )
    for at, (one, begin, finish) in enumerate(rows):
        if one != last:
            opened, last = [], one
        while opened and opened[-1][1] <= begin:
            opened.pop()
        if opened:
            depth[at], parent[at] = len(opened), opened[-1][0]
        if len(opened) < MOST_NESTED:
            opened.append((at, finish))
    return depth, parent


class KernelCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Computation kernels of one rank in order of start, with the operators that launched them."""

    start_ns: Int64Array  # Start of its own time: of kernels that overlap, the first one counts.
    own_ns: Int64Array  # Its own time.
    counted_ns: Int64Array  # Own time inside the analysed windows.
    stream: Int64Array
    blocks: NDArray[np.int32]  # Thread blocks; ABSENT if unknown.
    kernels: Coded  # Their names.
    launched_ns: Int64Array  # Start of the call that launched it; ABSENT if unknown.
    inside: Int64Array  # The innermost of the operators around this call; ABSENT without one.
    operators: Operators
    in_graph: NDArray[np.bool_]  # Whether a CUDA graph launched it, so no operator is known.
    row: Int64Array  # Row of the operator in HOST; ABSENT without one.
    inputs: Coded  # Column ``inputs`` of HOST, completed where other rows say more.
    category: NDArray[np.int32]  # Number of its category.
    part: NDArray[np.int32]  # A Pass.
    host: Table  # HOST.


def kernels_of(
    tables: RankTables, windows: Intervals, load_host: Callable[[], Table] | None
) -> KernelCalls | None:
    """The kernels of one rank; None without any."""
    activity = tables.activity
    rows = np.flatnonzero(activity["kind"] == ActivityKind.COMPUTATION)
    if not len(rows):
        return None
    rows = rows[np.lexsort((-activity["end_ns"][rows], activity["start_ns"][rows]))]
    start, end = activity["start_ns"][rows], activity["end_ns"][rows]
    before = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], end[:-1])))
    start = np.minimum(np.maximum(start, before), end)
    host = load_host() if load_host is not None and tables.has_host else tables.host
    operators, launches = Operators.of(host), join_launches(activity["correlation"][rows], host)
    inside = operators.around(launches.thread.astype(np.int64), launches.start)
    row, category, part = _launched_by(operators, inside, host)
    in_graph = launches.known.copy()
    in_graph[in_graph] = host.coded("name").finds(_GRAPH_LAUNCH)[launches.row[in_graph]]
    row[in_graph] = category[in_graph] = ABSENT
    kernels = activity.coded("name").take(rows)
    by_name = _verdicts(kernels.values, of_kernel)[kernels.codes]
    found = KernelCalls(
        start_ns=start,
        own_ns=end - start,
        counted_ns=covered(Intervals(start, end), windows),
        stream=activity["stream"][rows],
        blocks=activity["blocks"][rows],
        kernels=kernels,
        launched_ns=launches.start,
        inside=inside,
        operators=operators,
        in_graph=in_graph,
        row=row,
        inputs=completed_inputs(operators, row, host),
        category=np.where(category == ABSENT, by_name, category),
        part=part,
        host=host,
    )
    return with_grids(found)


def with_grids(calls: KernelCalls) -> KernelCalls:
    """The kernels with what the grids of products show of the inputs of routed experts.

    Kernels of other categories keep theirs, so that the FLOP of a call count once.
    """
    routed = calls.host.coded("name").equals(ROUTED_EXPERTS)
    rows = np.flatnonzero(calls.row >= 0)
    rows = rows[routed[calls.row[rows]]]
    is_product = calls.kernels.finds(PRODUCT_OF_EXPERTS)
    inputs, given = calls.inputs.codes.copy(), calls.inputs.values
    texts = {text: code for code, text in enumerate(given)}
    for own in parts_by(calls.row[rows], rows).values():
        products = own[is_product[own]]
        names, blocks = calls.kernels.take(products).decode(), calls.blocks[products].tolist()
        text = with_experts(given[inputs[own[0]]], tuple(zip(names, blocks, strict=True)))
        alike = own[np.isin(calls.category[own], calls.category[products])]
        inputs[alike] = texts.setdefault(text, len(texts))
    return replace(calls, inputs=Coded(inputs, tuple(texts)))


def _launched_by(
    operators: Operators, inside: Int64Array, host: Table
) -> tuple[Int64Array, NDArray[np.int32], NDArray[np.int32]]:
    """Row of the operator that launched each kernel, its category, and its Pass.

    The operator is the outermost one that FLOP are known of, or else the innermost one around the
    launch.
    """
    names, categories_of = host.coded("name"), host.coded("category")
    code = names.codes[operators.row]
    is_call = categories_of.equals(MODULE_CATEGORY)[operators.row]

    def of_operators(judge: Callable[[str], int]) -> NDArray[np.int32]:
        verdicts = np.where(is_call, ABSENT, _verdicts(names.values, judge)[code])
        return operators.inherited(verdicts.astype(np.int32))

    strongly, weakly = of_operators(strong), of_operators(weak)
    part = operators.passes(host)
    weakly = np.where(part == Pass.OPTIMIZER, number_of("optimizer"), weakly)
    category = np.where(strongly == ABSENT, weakly, strongly)
    outer = operators.outermost(_verdicts(names.values, is_counted)[code] > 0)
    inner = operators.innermost(~is_call)
    known = inside >= 0
    at, size = inside[known], len(inside)
    chosen = np.where(outer[at] >= 0, outer[at], inner[at])
    is_operator = categories_of.equals("cpu_op")[operators.row[chosen]] & (chosen >= 0)
    is_operator &= ~names.finds(_COMPILED)[operators.row[chosen]]
    row, found = np.full(size, ABSENT, np.int64), np.full(size, ABSENT, np.int32)
    passes = np.full(size, Pass.OTHER, np.int32)
    row[known] = np.where(is_operator, operators.row[chosen], ABSENT)
    found[known], passes[known] = category[at], part[at]
    return row, found, passes


def completed_inputs(operators: Operators, row: Int64Array, host: Table) -> Coded:
    """The inputs of each kernel's operator; without meaning where there is none.

    Before PyTorch 2.1 traces hold no values, so the size of a convolution's output is that of the
    gradient which its backward pass got, if all convolutions of this size got the same. The
    gradient of weights has the inputs of the operator around it, which include the weights.
    """
    names, column = host.coded("name"), host.coded("inputs")
    known = np.flatnonzero(row >= 0)
    codes = np.zeros(len(row), np.int32)
    codes[known] = column.codes[row[known]]
    texts = dict(zip(column.values, range(len(column.values)), strict=True))
    above = np.full(len(host), ABSENT, np.int64)
    nested = operators.parent >= 0
    above[operators.row[nested]] = operators.row[operators.parent[nested]]
    borrows = names.equals(GRADIENT_OF_WEIGHT)[row[known]] & (above[row[known]] >= 0)
    codes[known[borrows]] = column.codes[above[row[known[borrows]]]]
    is_backward = names.isin(BACKWARD_CONVOLUTIONS)
    pairs = set(
        zip(names.codes[is_backward].tolist(), column.codes[is_backward].tolist(), strict=True)
    )
    outputs = outputs_of_convolutions((names.values[n], column.values[c]) for n, c in pairs)
    if outputs:
        forward = known[names.equals(CONVOLUTION)[row[known]]]
        for code in set(codes[forward].tolist()):
            text = with_output(column.values[code], outputs)
            codes[forward[codes[forward] == code]] = texts.setdefault(text, len(texts))
    return Coded(codes, tuple(texts))


def _verdicts(names: Sequence[str], judge: Callable[[str], int]) -> NDArray[np.int32]:
    return np.array([judge(name) for name in names], np.int32)
