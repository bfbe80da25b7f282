"""Seven shards for 64 ranks."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("sharding=hsdp,shards=7")
