"""Codes and names of former rules. They keep their meaning and are never reused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

RETIRED: Mapping[str, tuple[str, str]] = MappingProxyType({})
"""Code to the name and the reason for retirement, one sentence."""
