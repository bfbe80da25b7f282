"""Rank 2 idles 4 ms longer than its peers in each step, and no collective shows it."""

from distprof.sections.stragglers.result import MessagesResult
from tests.rules.samples import MS, Results, healthy, messages


def results() -> Results:
    return {**healthy(), MessagesResult: messages({2: 4 * MS})}
