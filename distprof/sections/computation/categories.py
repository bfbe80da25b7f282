"""Categories of computation, from ``categories.toml``."""

from __future__ import annotations

import re
from functools import cache, lru_cache

import msgspec

from distprof.bounds import table_beside
from distprof.schema import ABSENT
from distprof.sections.computation import PRODUCTS

_MOST_KNOWN = 1 << 16


class Category(msgspec.Struct, frozen=True, kw_only=True):
    """One category; :mod:`categories.toml <distprof.sections.computation>` explains the fields."""

    title: str
    strong: tuple[re.Pattern[str], ...] = ()
    weak: tuple[re.Pattern[str], ...] = ()
    kernels: tuple[re.Pattern[str], ...] = ()
    fused: tuple[str, ...] = ()


@cache
def categories() -> dict[str, Category]:
    """All categories by name, in order of their numbers."""
    table = table_beside(__package__, "categories.toml")
    return msgspec.convert(table, dict[str, Category], dec_hook=lambda _, text: re.compile(text))


def number_of(name: str) -> int:
    """The number of a category."""
    return tuple(categories()).index(name)


@lru_cache(_MOST_KNOWN)
def strong(operator: str) -> int:
    """The category that an operator decides for itself and for all that it calls, else ABSENT."""
    if operator.startswith("autograd::engine::"):  # it also adds up gradients of other operators
        return ABSENT
    if _INDUCTOR.match(operator):  # named like its kernel
        return ABSENT
    return _first(operator, "strong")


@lru_cache(_MOST_KNOWN)
def weak(operator: str) -> int:
    """The category of an operator that others are made of, else ABSENT."""
    return _first(operator, "weak")


@lru_cache(_MOST_KNOWN)
def of_kernel(kernel: str) -> int:
    """The category of a kernel by its name alone; ``other`` if it says nothing."""
    if made := _INDUCTOR.match(kernel):
        return _of_inductor(kernel, made["kind"])
    return _first(kernel, "kernels")


_INDUCTOR = re.compile(r"triton_(?P<kind>poi|red|per|split_red|mix|for|tem)_fused_")


def _of_inductor(kernel: str, kind: str) -> int:
    """A kernel that Inductor made and named after the operators that it fuses.

    Only templates multiply: others with a product in their name add its bias, for example.
    """
    if _ONLY_COPIES.fullmatch(kernel):
        return number_of("copy")
    rest = _REST_OF_INDUCTOR.get(kind, "elementwise")
    fused = (
        name
        for name, one in categories().items()
        if (name in PRODUCTS) == (rest == "gemm") and any(word in kernel for word in one.fused)
    )
    return number_of(next(fused, rest))


_REST_OF_INDUCTOR = {"tem": "gemm", **dict.fromkeys(("red", "per", "split_red"), "reduction")}

_ONLY_COPIES = re.compile(
    r"triton_poi_fused(?:_(?:_to_copy|_unsafe_view|copy|clone|cat|stack|view|t|transpose|permute|expand"
    r"|slice|select|unsqueeze|squeeze|constant_pad_nd|split|reshape|repeat))+_\d+"
)


def _first(name: str, field: str) -> int:
    """The first category with a matching expression in this field; ABSENT without one."""
    for number, one in enumerate(categories().values()):
        if any(pattern.search(name) for pattern in getattr(one, field)):
            return number
    return ABSENT
