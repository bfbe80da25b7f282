"""Two ranks share 8,192 tokens."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("cp=2,tp=2,sharding=fsdp", model="llama2-70b", batch=16, sequence=8_192)
