"""512 tokens a rank, over a slow network."""

from tests.rules.configuration.layouts import Results, layout


def results() -> Results:
    return layout("sharding=zero-1", batch=64, sequence=512, link="ethernet-100")
