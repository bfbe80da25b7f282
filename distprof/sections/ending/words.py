"""Words of verdicts on how a job ended, and what processes do by their stacks: ``words.toml``."""

from __future__ import annotations

import re
from functools import cache

import msgspec

from distprof.bounds import table_beside


class Activity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a process does, by a call of its stack."""

    pattern: str  # Regular expression of the call, ``function (file:line)``.
    place: str = ""  # What a sentence calls it; empty to name the call alone.
    step: str = ""  # What to do about a process that does not return from it.


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of the file, which explains each."""

    about: dict[str, str]
    unsaid: tuple[str, ...]
    kinds: dict[str, tuple[str, ...]]
    signals: dict[str, str]
    windows: dict[str, str]
    meanings: dict[str, str]
    several: dict[str, str]
    codes: dict[str, str]
    who: dict[str, str]
    absent: dict[str, str]
    waited: dict[str, str]
    completions: dict[str, str]
    stopped: dict[str, str]
    store: dict[str, str]
    stages: dict[str, str]
    said: dict[str, str]
    steps: dict[str, tuple[str, ...]]
    operations: dict[str, str]
    terms: dict[str, dict[str, str]]
    results: dict[str, str]
    patterns: dict[str, str]  # Regular expressions.
    activity: dict[str, Activity]

    def says(self, name: str, **values: object) -> str:
        """One of the sentences, with its values."""
        return self.said[name].format_map(values)

    def search(self, name: str, text: str) -> re.Match[str] | None:
        """Where one of the patterns matches in a text, if it does."""
        return re.search(self.patterns[name], text)


@cache
def words() -> Words:
    """What the file says."""
    table = table_beside(__package__, "words.toml")
    elsewhere = table_beside("distprof.ingest.training_logs", "runs.toml")["parts"]["ELSEWHERE"]
    patterns = {**table["patterns"], "elsewhere": elsewhere}
    return msgspec.convert({**table, "patterns": patterns}, Words)
