"""Which operators of two runs correspond, and what each contributes to the change of computation.

Operators are matched in rounds, the strictest first; what a round pairs, later ones do not see.
Kernels play no part where operators are known, so a kernel may have another name on another GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence

import msgspec

from distprof.artefacts.record import made_from
from distprof.artefacts.summary_file import StepParts
from distprof.costs.operators import KNOWN
from distprof.sections.computation import REST, ComputationResult
from distprof.units import few_names
from distprof.verbs.compare import Match, OperatorChange

_REPLACEABLE = ("attention", "convolution", "gemm", "normalisation", "softmax", "optimizer")
"""Categories in which an operator with another name does the same work, such as mm for addmm."""

_FUSED = re.compile(r"triton_[a-z]+_fused_(.+?)(?:_\d+)?$")
"""Kernels of Inductor, named after the operators that they compute."""

_LAST_NUMBER = re.compile(r"_\d+$")

_SYNONYMS = {
    **dict.fromkeys(("_to_copy", "clone", "convert_element_type"), "copy"),
    **dict.fromkeys(("full", "full_like", "zeros", "zeros_like", "ones_like"), "fill"),
}
"""What Inductor calls an operator that the trace of an eager program names otherwise."""

_FEW = 4


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """An operator with its inputs, per step and rank."""

    name: str
    ns: int
    part: str = ""
    category: str = ""
    inputs: str = ""
    kernel: str = ""
    num_calls: float = 0


_Pair = tuple[list[_Row], list[_Row]]


def compare_operators(
    first: tuple[ComputationResult, StepParts | None],
    second: tuple[ComputationResult, StepParts | None],
) -> tuple[OperatorChange, ...]:
    """Operators by change, and the rest, whose changes add up to that of the computation.

    Empty unless both runs were explained. ``StepParts`` hold the computation of all ranks, which
    the rest completes: it has the operators that a report does not list and the ranks whose
    operators were not read.
    """
    if not first[0].operators or not second[0].operators:
        return ()
    sides = _rows(*first), _rows(*second)
    left, rest = _listed(sides)
    changes = [_change(match, pair) for match, pairs in _rounds(left) for pair in pairs]
    changes += [_change("vanished", ([row], [])) for row in left[0]]
    changes += [_change("appeared", ([], [row])) for row in left[1]]
    changes.sort(key=lambda one: (-abs(one.change_ns), one.name, one.first_inputs))
    return (*changes, _change("rest", rest)) if any(map(_sum, rest)) else tuple(changes)


def _rows(result: ComputationResult, parts: StepParts | None) -> list[_Row]:
    """Operators per step, rounded so that they add up; the last one is the rest."""
    samples = result.num_samples
    rows, done = [], 0
    for row in result.operators:
        if row.name == REST:
            continue
        before, done = done, done + row.total_ns
        rows.append(
            made_from(
                row,
                _Row,
                name=_LAST_NUMBER.sub("", row.name) if _FUSED.match(row.name) else row.name,
                num_calls=row.num_calls / samples,
                ns=done // samples - before // samples,
            )
        )
    whole = result.total_ns // samples if parts is None else parts.computation_ns
    return [*rows, _Row(name=REST, ns=whole - done // samples)]


def _listed(sides: tuple[list[_Row], list[_Row]]) -> tuple[_Pair, _Pair]:
    """The operators that can be compared, and the rest of both sides.

    A list that ends may leave out what the other one names: such an operator is part of the rest
    unless it takes longer than any that was left out.
    """
    least = [min((row.ns for row in rows[:-1]), default=0) if rows[-1].ns else 0 for rows in sides]
    known = [{(row.name, row.part) for row in rows[:-1]} for rows in sides]
    left: _Pair = ([], [])
    rest: _Pair = ([], [])
    for number, rows in enumerate(sides):
        other = 1 - number
        for row in rows[:-1]:
            may_be_left_out = row.ns <= least[other] and (row.name, row.part) not in known[other]
            (rest if may_be_left_out else left)[number].append(row)
        rest[number].append(rows[-1])
    return left, rest


def _rounds(left: _Pair) -> Iterator[tuple[Match, Iterable[_Pair]]]:
    """Pairs of each round, which leave ``left``."""
    yield "same", _paired(left, lambda row: (row.name, row.inputs, row.category, row.part))
    yield "same", _paired(left, lambda row: (row.name, row.inputs))
    yield "same", _paired(left, lambda row: row.kernel, _has_kernel)
    yield "fused", _fused(left)
    yield "reshaped", _paired(left, lambda row: (row.name, row.category, row.part))
    yield "reshaped", _paired(left, lambda row: row.name)
    yield "replaced", _paired(left, lambda row: (row.category, row.part), _is_replaced)
    yield "replaced", _paired(left, lambda row: row.category, _is_replaced)


def _has_kernel(pair: _Pair) -> bool:
    """Whether one of the runs only shows kernels."""
    return any(all(row.name == row.kernel for row in rows) for rows in pair)


def _is_replaced(pair: _Pair) -> bool:
    return pair[0][0].category in _REPLACEABLE


def _paired(
    left: _Pair, key: Callable[[_Row], Hashable], suits: Callable[[_Pair], bool] = lambda _: True
) -> list[_Pair]:
    """Take the rows out of ``left`` whose key both sides have."""
    groups: dict[Hashable, _Pair] = {}
    for number, rows in enumerate(left):
        for row in rows:
            groups.setdefault(key(row), ([], []))[number].append(row)
    found = [pair for pair in groups.values() if all(pair) and suits(pair)]
    return _taken(left, found)


def _taken(left: _Pair, found: list[_Pair]) -> list[_Pair]:
    for number, rows in enumerate(left):
        gone = {id(row) for pair in found for row in pair[number]}
        rows[:] = [row for row in rows if id(row) not in gone]
    return found


def _fused(left: _Pair) -> list[_Pair]:
    """Fused kernels and the operators of the other run that their names list."""
    links: list[tuple[_Row, _Row]] = []
    known = {*_SYNONYMS, *KNOWN, *(_bare(row.name) for rows in left for row in rows)}
    for number, rows in enumerate(left):
        for row in rows:
            listed = _listed_in(row.name, known)
            for other in left[1 - number] if listed else ():
                parts = {row.part, other.part}
                if _bare(other.name) in listed and (len(parts) == 1 or "other" in parts):
                    links.append((other, row) if number else (row, other))
    return _taken(left, _components(links))


def _components(links: Sequence[tuple[_Row, _Row]]) -> list[_Pair]:
    """Rows that links join directly or through others."""
    found: dict[int, _Pair] = {}
    for link in links:
        pairs = [found.get(id(row), ([], [])) for row in link]
        merged = pairs[0]
        if pairs[1] is not merged:
            for number in (0, 1):
                merged[number].extend(pairs[1][number])
        for number, row in enumerate(link):
            if id(row) not in found:
                merged[number].append(row)
        for row in (*merged[0], *merged[1]):
            found[id(row)] = merged
    return list({id(pair): pair for pair in found.values()}.values())


def _bare(name: str) -> str:
    """``aten::add_`` as ``add``, as Inductor lists it."""
    return name.rpartition("::")[2].rstrip("_")


def _listed_in(name: str, known: Container[str]) -> frozenset[str]:
    """The operators that the name of a fused kernel lists."""
    found = _FUSED.match(name)
    words = found[1][:_LONGEST_LIST].split("_") if found else []
    listed, low = [], 0
    while low < len(words):
        for high in range(min(low + _MOST_WORDS, len(words)), low, -1):
            run = "_".join(words[low:high])
            if run in known and words[high : high + 1] != ["backward"]:
                listed.append(_SYNONYMS.get(run, run))
                low = high - 1
                break
        low += 1
    return frozenset(listed)


_LONGEST_LIST, _MOST_WORDS = 400, 8


def _change(match: Match, pair: _Pair) -> OperatorChange:
    first, second = (sorted(rows, key=lambda row: -row.ns) for rows in pair)
    ns = _sum(first), _sum(second)
    names = _names(first), _names(second)
    some = (first or second)[0]
    return OperatorChange(
        match=match,
        name=names[0] or names[1],
        second_name=names[1] if first and names[1] != names[0] else "",
        part=some.part,
        category=some.category,
        first_inputs=_joined((row.inputs for row in first), most=1),
        second_inputs=_joined((row.inputs for row in second), most=1),
        first_kernel=first[0].kernel if first else "",
        second_kernel=second[0].kernel if second else "",
        first_calls=sum(row.num_calls for row in first),
        second_calls=sum(row.num_calls for row in second),
        first_ns=ns[0],
        second_ns=ns[1],
        change_ns=ns[1] - ns[0],
    )


def _sum(rows: Iterable[_Row]) -> int:
    return sum(row.ns for row in rows)


def _names(rows: Sequence[_Row]) -> str:
    """Names without repetition; of rows that stand for the rest, its name."""
    if any(row.name == REST for row in rows):
        return REST
    return _joined(row.name for row in rows)


def _joined(texts: Iterable[str], most: int = _FEW) -> str:
    return few_names([*dict.fromkeys(filter(None, texts))], most, " + ")
