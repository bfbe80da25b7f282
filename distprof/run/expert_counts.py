"""Tokens per expert that somebody counted, without a trace or a routing log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["ExpertCounts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCounts:
    """Assignments per expert of each layer, once for each part of the data.

    Args:
        tokens: Part of the data (a domain, a step) to int64, shape ``(layers, experts)``.
        layers: Name of each layer.
        top_k: Experts per token, None where the file does not say.
        model: As the file names it, else empty.
        notes: What was assumed, one sentence each.
    """

    tokens: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    top_k: int | None = None
    model: str = ""
    notes: tuple[str, ...] = ()
