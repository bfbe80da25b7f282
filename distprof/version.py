"""The version, in a separate module so that every layer can import it."""

from __future__ import annotations

__version__ = "0.1.0.dev0"
