"""Kinds of alerts with their levels, and which are raised: conditions that began or ended."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from distprof.errors import UsageError
from distprof.verbs.watch.result import Alert, sentence_on
from distprof.verbs.watch.slowness import ON, WINDOW
from distprof.version import __version__

Unit = Literal["ratio", "times", "bytes", "none"]

_BYTES = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

LASTING = f"{ON} of {WINDOW} steps"

_EXAMPLE: Mapping[Unit, str] = {"ratio": "10%", "times": "20x", "bytes": "64GB", "none": ""}


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of alert."""

    name: str  # For example ``slow-rank``.
    unit: Unit  # Unit of its level.
    # Default level; None if the kind is watched for only with an explicit level.
    level: float | None
    about: str  # When it is raised, one sentence.


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="slow-rank", unit="ratio", level=0.10,
            about=f"A rank's own time exceeds that of its peers by this share, for {LASTING}.",
        ),
        Kind(
            name="slow-job", unit="ratio", level=0.20,
            about=f"Steps take longer than earlier in the job by this share, for {LASTING}.",
        ),
        Kind(
            name="rank-lost", unit="none", level=0.0,
            about="A rank failed, was killed, or fell silent while others continue.",
        ),
        Kind(
            name="stalled", unit="times", level=20.0,
            about="No rank completes a step for this many usual steps, and at least 30 s.",
        ),
        Kind(
            name="input", unit="ratio", level=0.20,
            about=f"Ranks wait for input for this share of the step, for {LASTING}.",
        ),
        Kind(
            name="throttling", unit="ratio", level=0.50,
            about="Heat or hardware throttles a GPU in this share of its last 300 samples.",
        ),
        Kind(
            name="memory", unit="bytes", level=None,
            about="A rank uses more memory than this: GPU memory, or CPU memory on CPU ranks.",
        ),
    )
}  # fmt: skip


def default_levels() -> dict[str, float]:
    """The default level of each kind that has one."""
    return {kind.name: kind.level for kind in KINDS.values() if kind.level is not None}


def parse_alerts(texts: Iterable[str]) -> dict[str, float]:
    """Kinds and levels, from texts such as ``slow-rank=10%,rank-lost``."""
    pieces = (piece.strip() for text in texts for piece in text.split(","))
    return dict(_parsed(piece) for piece in pieces if piece)


def _parsed(piece: str) -> tuple[str, float]:
    name, has_level, text = piece.partition("=")
    kind = KINDS.get(name)
    if kind is None:
        raise UsageError(f"--alert: unknown alert {name[:60]!r}: choose from {', '.join(KINDS)}")
    if has_level:
        return name, _level(kind, text)
    if kind.level is None:
        raise UsageError(f"--alert {name}: add a level, for example {name}={_EXAMPLE[kind.unit]}")
    return name, kind.level


def _level(kind: Kind, text: str) -> float:
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*(%|x|[kMGT]?B)?", text.strip())
    value, unit = (float(match[1]), match[2] or "") if match else (0.0, "")
    readings: Mapping[Unit, float | None] = {
        "ratio": value / 100 if unit == "%" else value if not unit else None,
        "times": value if unit in ("x", "") else None,
        "bytes": value * _BYTES[unit] if unit in _BYTES else None,
        "none": None,
    }
    level = readings[kind.unit]
    if level is None or level <= 0 or (kind.unit == "ratio" and level > 10):
        expected = f"a level such as {_EXAMPLE[kind.unit]}" if kind.unit != "none" else "no level"
        raise UsageError(f"--alert {kind.name}: {text[:40]!r} cannot be read: expected {expected}")
    return level


JOB = -1
"""Stands for a rank in conditions that concern the whole job."""


class Condition(msgspec.Struct, frozen=True):
    """Current state of one kind of alert."""

    on: frozenset[int]  # Ranks, or ``JOB``, for which the condition holds.
    words: str  # The message without its subject.
    of_rank: Mapping[int, str] = {}  # Message of each rank, if messages differ between ranks.

    def words_on(self, on: Collection[int]) -> str:
        """The message for a subset of ``on``: that of the first rank, if messages differ."""
        return self.of_rank.get(min(on), self.words)


class Alarms:
    """Keeps the raised alerts, so each is delivered once when it begins and once when it ends."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._raised: dict[str, frozenset[int]] = {}
        self._began: dict[str, Alert] = {}

    def observe(
        self, conditions: Mapping[str, Condition], *, step: int | None, now_ns: int
    ) -> list[Alert]:
        """Compare current conditions with the previous ones: an alert for each kind and change."""
        alerts: list[Alert] = []
        for kind, now in conditions.items():
            before = self._raised.get(kind, frozenset())
            began, ended = now.on - before, before - now.on
            if began:
                words = now.words_on(began)
                alerts.append(self._alert(kind, began, words, step, now_ns))
            if ended:
                over = _ranks(ended)
                alerts.append(self._began[kind].cleared(over, step=step, time_ns=now_ns))
            self._raised[kind] = now.on
            if now.on:
                words = now.words_on(now.on)
                self._began[kind] = self._alert(kind, now.on, words, step, now_ns)
        return alerts

    def raised(self) -> tuple[Alert, ...]:
        """Alerts that are raised now, one of each kind."""
        return tuple(self._began[kind] for kind, on in self._raised.items() if on)

    def _alert(
        self, kind: str, on: Collection[int], words: str, step: int | None, now_ns: int
    ) -> Alert:
        ranks = _ranks(on)
        return Alert(
            distprof_version=__version__,
            state="raised",
            kind=kind,
            message=sentence_on(ranks, words),
            ranks=ranks,
            step=step,
            time_ns=now_ns,
            source=self._source,
        )


def _ranks(on: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(rank for rank in on if rank != JOB))
