"""A model of 70 billion parameters that all ranks shard."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("tp=2,sharding=fsdp", model="llama2-70b", batch=32)
