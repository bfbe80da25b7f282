"""Decides which alerts to raise and clear: conditions that began or ended since the last look."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from distprof.verbs.watch.result import Alert, sentence_on
from distprof.version import __version__

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
