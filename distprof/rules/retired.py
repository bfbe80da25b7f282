"""Codes and names that once were rules. They keep their meaning for ever and are never reused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["RETIRED"]

RETIRED: Mapping[str, tuple[str, str]] = MappingProxyType({})
"""Code to name and the reason for retirement, one sentence."""
