"""The one classifier: which names are communication, of which kind, run by which library.

All code that needs this classification uses this module: a second classifier would make numbers
disagree. The evidence, in order: collective arguments on the event (see ``collective_records``),
then the name, matched against patterns that are kept as data in ``communication.toml`` and that
users extend through distprof.toml.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.bounds import table_beside
from distprof.config import CommunicationConfig, NamePattern, parse_communication
from distprof.schema import Coded
from distprof.terms import CollectiveKind

_WORDS = {
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
    "allreduce": CollectiveKind.ALL_REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "broadcast": CollectiveKind.BROADCAST,
    "barrier": CollectiveKind.BARRIER,
    "sendrecv": CollectiveKind.SEND_RECV,
    "pushsend": CollectiveKind.SEND,
    "pushrecv": CollectiveKind.RECV,
    "pointtopoint": CollectiveKind.SEND_RECV,
    "recv": CollectiveKind.RECV,
    "receive": CollectiveKind.RECV,
    "send": CollectiveKind.SEND,
    "gather": CollectiveKind.GATHER,
    "scatter": CollectiveKind.SCATTER,
    "reduce": CollectiveKind.REDUCE,
}
"""Upstream words for the kinds, letters only, in search order: longer ones before their parts."""

_NOT_LETTERS = re.compile(r"[^a-z]+")
_END_OF_NAME = re.compile(r"[(<]")
_WAITS = frozenset(("wait", "init", "end", "start", "shutdown"))


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Meaning of a name: whether it is communication, its kind and the library that runs it."""

    is_communication: bool
    kind: CollectiveKind = CollectiveKind.UNKNOWN
    library: str = ""


_COMPUTATION = Verdict(is_communication=False)
_MOST_KNOWN = 1 << 16


@lru_cache(maxsize=1 << 16)
def collective_kind(text: str) -> CollectiveKind:
    """The kind behind an upstream spelling, as ``_allgather_base``; UNKNOWN if it names none."""
    name = _END_OF_NAME.split(text.replace("(anonymous namespace)", ""), maxsplit=1)[0]
    letters = _NOT_LETTERS.sub("", name.lower())
    return next((kind for word, kind in _WORDS.items() if word in letters), CollectiveKind.UNKNOWN)


def is_wait(collective: str) -> bool:
    """Whether an upstream "collective name" means waiting, setup or teardown, not a collective."""
    return collective.strip("_ ").lower() in _WAITS


class Classifier:
    """Classifies names as communication or not, by the user's patterns first; keeps verdicts."""

    def __init__(self, config: CommunicationConfig | None = None) -> None:
        self._config = config or CommunicationConfig()
        shipped = shipped_patterns()
        exclude = (*self._config.exclude, *shipped.exclude)
        self._exclude = tuple(re.compile(pattern) for pattern in exclude)
        self._own = _compiled(self._config.patterns)
        self._shipped = _compiled(shipped.patterns)
        self._known: dict[str, Verdict] = {}

    def verdict(self, name: str) -> Verdict:
        """The classification of ``name``."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:  # names come from the trace: bound the memory
                self._known.clear()
            known = self._known[name] = self._judge(name)
        return known

    def communication_rows(self, names: Coded) -> NDArray[np.bool_]:
        """Mask of the rows whose name is communication; each distinct name is judged once."""
        return names.where([self.verdict(name).is_communication for name in names.values])

    def kinds(self, names: Coded) -> NDArray[np.int8]:
        """CollectiveKind of each row's name, int8; UNKNOWN if the name gives none."""
        if not names.values:
            return np.zeros(len(names), dtype=np.int8)
        table = np.array([self.verdict(name).kind for name in names.values], dtype=np.int8)
        return table[names.codes]

    def _judge(self, name: str) -> Verdict:
        own = _first_match(self._own, name)
        if own is not None:
            return own
        if any(pattern.search(name) for pattern in self._exclude):
            return _COMPUTATION
        return _first_match(self._shipped, name) or _COMPUTATION


@lru_cache(maxsize=4)
def classifier_for(config: CommunicationConfig) -> Classifier:
    """The classifier of this process for these user patterns."""
    return Classifier(config)


_Compiled = tuple[tuple[re.Pattern[str], NamePattern], ...]


def _compiled(patterns: Sequence[NamePattern]) -> _Compiled:
    return tuple((re.compile(pattern.match), pattern) for pattern in patterns)


def _first_match(patterns: _Compiled, name: str) -> Verdict | None:
    for compiled, pattern in patterns:
        if compiled.search(name):
            kind = pattern.operation if pattern.operation is not None else collective_kind(name)
            return Verdict(is_communication=True, kind=kind, library=pattern.library)
    return None


@cache
def shipped_patterns() -> CommunicationConfig:
    """The patterns of ``communication.toml``."""
    name = "communication.toml"
    return parse_communication(table_beside(__package__, name), name)
