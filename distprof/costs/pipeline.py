"""Pipeline bubbles in closed form: fractions, overheads, idle times and micro-batches in flight.

Source of every formula here: formula sheet, "Pipeline bubble". All assume equal stages and messages
that take no time; :mod:`distprof.costs.order_replay` covers other cases. Arguments may be scalars
or arrays that broadcast against each other; results are floats or float64 arrays.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

ZeroBubbleSchedule = Literal["1f1b", "zb-h1", "zb-h2"]

_WEIGHT_PARTS = {"1f1b": -1, "zb-h1": 1, "zb-h2": 2}
"""Weight-gradient slots per hop that fill the bubble; in 1F1B, one adds to the bubble."""


def bubble_fraction(
    num_stages: ArrayLike, num_micro_batches: ArrayLike, virtual_stages: ArrayLike = 1
) -> Any:
    """Idle over total time, 0 to 1: (P - 1) / (V · M + P - 1).

    Holds for GPipe and 1F1B (``virtual_stages`` 1), and with at least as many micro-batches as
    ranks for interleaved 1F1B and looped breadth-first pipelines.

    Args:
        num_stages: P, ranks of the pipeline.
        num_micro_batches: M, per step.
        virtual_stages: V, stages that each rank holds.

    Raises:
        ValueError: If a number is below 1.
    """
    idle, useful = _hops(num_stages, num_micro_batches, virtual_stages)
    return _plain(idle / (useful + idle))


def bubble_overhead(
    num_stages: ArrayLike, num_micro_batches: ArrayLike, virtual_stages: ArrayLike = 1
) -> Any:
    """Idle over useful time: (P - 1) / (V · M), which is larger than the bubble fraction.

    Args:
        num_stages: P, ranks of the pipeline.
        num_micro_batches: M, per step.
        virtual_stages: V, stages that each rank holds.

    Raises:
        ValueError: If a number is below 1.
    """
    idle, useful = _hops(num_stages, num_micro_batches, virtual_stages)
    return _plain(idle / useful)


def zero_bubble_idle(
    schedule: ZeroBubbleSchedule,
    num_stages: ArrayLike,
    forward: ArrayLike,
    backward_input: ArrayLike,
    backward_weight: ArrayLike,
) -> Any:
    """Idle time per rank between its first and last action, in the unit of the durations.

    1F1B (P - 1)(F + B + W), ZB-H1 (P - 1)(F + B - W), ZB-H2 (P - 1)(F + B - 2W), never below 0.
    The last two hold if W is at most as long as F and B, and there are enough micro-batches to fill
    the pipeline.

    Args:
        schedule: ``1f1b``, ``zb-h1`` or ``zb-h2``.
        num_stages: P, ranks of the pipeline.
        forward: F, forward of one micro-batch on one stage.
        backward_input: B, the part of the backward that computes gradients of inputs.
        backward_weight: W, the part that computes gradients of weights.

    Raises:
        ValueError: If the schedule has no formula, or P is below 1.

    Source:
        Formula sheet, "Pipeline bubble"; Qi et al. 2024, section 2.
    """
    if schedule not in _WEIGHT_PARTS:
        raise ValueError(f"no formula for the idle time of {schedule}")
    hops = _at_least_one(num_stages, "stages") - 1
    weight = _WEIGHT_PARTS[schedule] * np.asarray(backward_weight, np.float64)
    idle = np.asarray(forward, np.float64) + np.asarray(backward_input, np.float64) - weight
    return _plain(hops * np.maximum(idle, 0.0))


def dualpipe_idle(
    num_stages: ArrayLike,
    overlapped: ArrayLike,
    backward: ArrayLike,
    backward_weight: ArrayLike,
) -> Any:
    """Idle time per rank of DualPipe: (P / 2 - 1)(F&B + B - 3W).

    Args:
        num_stages: P, ranks of the pipeline, even.
        overlapped: F&B, an overlapped forward and backward of two micro-batches.
        backward: B, here the full backward.
        backward_weight: W, its weight-gradient part.

    Raises:
        ValueError: If P is below 1.

    Source:
        Formula sheet, "Pipeline bubble"; DeepSeek-V3 report, table 2.
    """
    hops = _at_least_one(num_stages, "stages") / 2 - 1
    weight = np.asarray(backward_weight, np.float64)
    idle = np.asarray(overlapped, np.float64) + np.asarray(backward, np.float64) - 3 * weight
    return _plain(np.maximum(hops, 0.0) * np.maximum(idle, 0.0))


def in_flight(
    schedule: Literal["gpipe", "1f1b"],
    num_stages: ArrayLike,
    num_micro_batches: ArrayLike,
    stage: ArrayLike,
) -> Any:
    """The most micro-batches whose activations a stage holds at once.

    GPipe M, 1F1B min(M, P - stage).

    Args:
        schedule: ``gpipe`` or ``1f1b``; others: see ``in_flight_of``.
        num_stages: P, ranks of the pipeline.
        num_micro_batches: M, per step.
        stage: Stage, from 0.

    Raises:
        ValueError: If the schedule has no formula, or a stage is not in the pipeline.
    """
    stages = _at_least_one(num_stages, "stages")
    batches = _at_least_one(num_micro_batches, "micro-batches")
    place = np.asarray(stage, np.float64)
    if np.any(place < 0) or np.any(place >= stages):
        raise ValueError(f"stage {stage!r} is not one of the pipeline's {num_stages!r}")
    if schedule == "gpipe":
        return _plain(batches + 0 * place)
    if schedule == "1f1b":
        return _plain(np.minimum(batches, stages - place))
    raise ValueError(f"no formula for the micro-batches in flight of {schedule}")


def min_micro_batches(
    num_stages: ArrayLike, fraction: ArrayLike, virtual_stages: ArrayLike = 1
) -> Any:
    """The fewest micro-batches whose bubble fraction is at most ``fraction``.

    Args:
        num_stages: P, ranks of the pipeline.
        fraction: Accepted bubble fraction, above 0 and below 1.
        virtual_stages: V, stages that each rank holds.

    Returns:
        Integer, or int64 array; at least 1.

    Raises:
        ValueError: If a number is below 1, or the fraction is not between 0 and 1.
    """
    limit = np.asarray(fraction, np.float64)
    if np.any(limit <= 0) or np.any(limit >= 1):
        raise ValueError(f"a bubble fraction must be between 0 and 1, not {fraction!r}")
    idle = _at_least_one(num_stages, "stages") - 1
    per_batch = _at_least_one(virtual_stages, "virtual stages") * limit
    # slightly below the next integer counts as that integer: 0.1 is not exact in binary
    fewest = np.ceil(idle * (1 - limit) / per_batch - 1e-9)
    result = np.maximum(fewest, 1).astype(np.int64)
    return int(result) if result.ndim == 0 else result


def _hops(
    num_stages: ArrayLike, num_micro_batches: ArrayLike, virtual_stages: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Idle and useful time of a rank, in slots of one stage and micro-batch."""
    useful = _at_least_one(virtual_stages, "virtual stages") * _at_least_one(
        num_micro_batches, "micro-batches"
    )
    return _at_least_one(num_stages, "stages") - 1, useful


def _at_least_one(number: ArrayLike, what: str) -> NDArray[np.float64]:
    values = np.asarray(number, np.float64)
    if np.any(~(values >= 1)):
        raise ValueError(f"a pipeline has at least one of {what}, not {number!r}")
    return values


def _plain(values: NDArray[np.float64]) -> Any:
    """A float for a single number, else the array."""
    return float(values) if np.ndim(values) == 0 else values
