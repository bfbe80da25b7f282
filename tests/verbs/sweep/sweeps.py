"""Sweeps written out by hand: runs of a job on several numbers of ranks."""

from __future__ import annotations

from typing import Any

from distprof.artefacts.summary_file import Fingerprint, StepParts, SummaryFile

MS = 1_000_000
JITTER = (1 / 1.002, 1.0, 1.002)
"""Three repeats, of a calm machine."""


def parts(**parts_ms: float) -> StepParts:
    """A traced step of these parts, in ms; what is not named takes no time."""
    values = {f"{name}_ns": round(ms * MS) for name, ms in parts_ms.items()}
    named = {name: values.pop(name, 0) for name in StepParts.__struct_fields__ if name != "span_ns"}
    assert not values, values
    return StepParts(span_ns=sum(named.values()), **named)


def runs(
    ranks: int,
    step_ms: float,
    traced: StepParts | None = None,
    *,
    tokens: float | None = None,
    repeats: tuple[float, ...] = JITTER,
    mesh: dict[str, int] | None = None,
    **fields: Any,
) -> list[SummaryFile]:
    """Repeats of one size, nine steps each; a thousand tokens per rank by default."""
    return [
        SummaryFile(
            distprof_version="1",
            created_ns=number,
            label=f"{ranks} ranks, repeat {number}",
            fingerprint=Fingerprint(world_size=ranks, mesh={"dp": ranks} if mesh is None else mesh),
            step_ns=tuple(
                round(step_ms * MS * factor * (1 + wiggle / 1_000)) for wiggle in range(-4, 5)
            ),
            tokens_per_step=1_000.0 * ranks if tokens is None else tokens,
            parts=traced,
            **{"overlap_ratio": 0.5, **fields},
        )
        for number, factor in enumerate(repeats)
    ]
