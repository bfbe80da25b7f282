"""Copies from pageable memory take as long, beside computation."""

from distprof.sections.settings.result import SettingsResult
from tests.rules.samples import MS, RANKS, Results, feed, healthy, settings


def results() -> Results:
    hidden = tuple(feed(rank, pageable_ns=4 * MS, exposed_pageable_ns=MS // 2) for rank in RANKS)
    return {**healthy(), SettingsResult: settings(feed=hidden)}
