"""Whether two runs may be compared at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from distprof.artefacts.summary_file import Fingerprint

__all__ = ["unlike"]

_PLAIN = {
    "world_size": "ranks",
    "num_nodes": "nodes",
    "device": "device",
    "backend": "backend",
    "workload": "workload",
    "strategy": "strategy",
}
_MAPS = {"mesh": "mesh", "config": "configuration", "environment": "environment"}
_VERSIONS = ("driver", "cuda", "nccl", "torch")
"""Of the versions, those that change speed on purpose; a change of one may be what is tested."""


def unlike(first: Fingerprint, second: Fingerprint) -> tuple[str, ...]:
    """What two runs must have in common and have not, one sentence each; empty if comparable.

    What one of them does not know is not held against it; a key that only one has is. No variables
    in the environment of a run whose versions are known means that none was set.
    """
    return tuple(_differences(first, second))


def _differences(first: Fingerprint, second: Fingerprint) -> Iterator[str]:
    for field, word in _PLAIN.items():
        a, b = getattr(first, field), getattr(second, field)
        if a not in (None, "") and b not in (None, "") and a != b:
            yield _sentence(word, a, b)
    for field, word in _MAPS.items():
        a, b = getattr(first, field), getattr(second, field)
        has_environment = field == "environment" and first.versions and second.versions
        if has_environment or (a and b):
            yield from _keys(word, a, b)
    for name in _VERSIONS:
        a, b = first.versions.get(name), second.versions.get(name)
        if a and b and a != b:
            yield _sentence(f"version of {name}", a, b)


def _keys(word: str, first: Mapping[str, object], second: Mapping[str, object]) -> Iterator[str]:
    for key in sorted(first.keys() | second.keys()):
        if first.get(key) != second.get(key):
            yield _sentence(f"{word} {key}", first.get(key, "unset"), second.get(key, "unset"))


def _sentence(word: str, first: object, second: object) -> str:
    return f"The {word} was {first} and is {second}."
