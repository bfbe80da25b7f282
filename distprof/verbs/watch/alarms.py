"""Which alerts are raised: what began and what ended since the last look, folded by kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from distprof.verbs.watch.result import Alert, sentence_on
from distprof.version import __version__

__all__ = ["JOB", "Alarms", "Condition"]

JOB = -1
"""In place of a rank, where an alert is about the whole job."""


class Condition(msgspec.Struct, frozen=True):
    """What holds now, of one kind.

    Args:
        on: Ranks, or ``JOB``, for which it holds.
        words: The sentence after the subject.
        of_rank: The same of single ranks, where they differ.
    """

    on: frozenset[int]
    words: str
    of_rank: Mapping[int, str] = {}

    def words_on(self, on: Collection[int]) -> str:
        """The sentence on these, some of those for which it holds: that of the first."""
        return self.of_rank.get(min(on), self.words)


class Alarms:
    """Remembers what is raised, so that each thing is told once when it begins and once at its end.

    Args:
        source: The run directory.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._raised: dict[str, frozenset[int]] = {}
        self._began: dict[str, Alert] = {}

    def observe(
        self, conditions: Mapping[str, Condition], *, step: int | None, now_ns: int
    ) -> list[Alert]:
        """Compare what holds now with what held before.

        Args:
            conditions: Of each kind that is watched for.
            step: Last step known.
            now_ns: ns since the epoch.

        Returns:
            One alert for each kind and change.
        """
        events: list[Alert] = []
        for kind, now in conditions.items():
            before = self._raised.get(kind, frozenset())
            began, ended = now.on - before, before - now.on
            if began:
                words = now.words_on(began)
                events.append(self._alert(kind, began, words, step, now_ns))
            if ended:
                over = _ranks(ended)
                events.append(self._began[kind].cleared(over, step=step, time_ns=now_ns))
            self._raised[kind] = now.on
            if now.on:
                words = now.words_on(now.on)
                self._began[kind] = self._alert(kind, now.on, words, step, now_ns)
        return events

    def raised(self) -> tuple[Alert, ...]:
        """What is raised now, one alert of each kind."""
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
