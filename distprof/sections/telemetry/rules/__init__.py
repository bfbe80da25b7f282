"""Rules on telemetry."""

from distprof.bounds import table_beside

PAGES: dict[str, str] = table_beside(__package__, "pages.toml")
"""Rest of each rule's page, by its code."""
