"""Rules on telemetry."""

from collections.abc import Mapping

from distprof.bounds import table_beside

PAGES: Mapping[str, str] = table_beside(__package__, "pages.toml")
"""Rest of each rule's page, by its code."""
