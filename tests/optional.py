"""Libraries that few tests need: looked for at once, imported by the first test that uses one."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

__all__ = ["Later", "optional"]


class Later:
    """Stands for a module, and imports it when one of its public names is asked for.

    Args:
        name: As in an import.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # pytest asks every object of a test file for these
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def optional(name: str, *, reason: str = "") -> Any:
    """The module, which is imported on first use.

    Each process of pytest-xdist imports every test file and runs some of them, so a file that
    imports for seconds costs them in each process.

    Args:
        name: As in an import.
        reason: Why its tests are skipped where it is missing.
    """
    if find_spec(name.partition(".")[0]) is None:
        pytest.skip(reason or f"{name} is not installed", allow_module_level=True)
    return Later(name)
