"""The version, on its own so that every layer can say it."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
