"""The named pipeline schedules, and the order of actions of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import msgspec

from distprof.costs import plain_orders as plain
from distprof.costs import zero_bubble_orders as zero_bubble
from distprof.costs.actions import Orders, orders_from


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline schedule."""

    name: str  # Name in :data:`SCHEDULES`.
    # Function of ranks, micro-batches and stages per rank that returns the order.
    make: Callable[[int, int, int], Orders]
    fewest: int = 1  # Minimum number of stages per rank.
    most: int | None = 1  # Maximum number of stages per rank; None for no limit.
    # Whether the second round of stages runs from the last rank to the first.
    goes_back: bool = False
    splits_backward: bool = False  # Whether weight gradients are separate actions.
    # Whether it needs at least one micro-batch per stage of the whole pipeline.
    fills: bool = False
    grouped: bool = False  # Whether micro-batches pass the stages of a rank in groups.

    def rank_of(self, stage: int, num_ranks: int) -> int:
        """The rank that runs a stage."""
        lap, place = divmod(stage, num_ranks)
        return num_ranks - 1 - place if self.goes_back and lap % 2 else place


def orders(
    schedule: str,
    num_ranks: int,
    num_micro_batches: int,
    virtual_stages: int | None = None,
    *,
    group_size: int | None = None,
) -> Orders:
    """The actions of each rank of a pipeline, in order.

    ``virtual_stages`` is V, stages per rank; None for the schedule's minimum. ``group_size``, of
    interleaved schedules, is the number of micro-batches that pass one stage of a rank before its
    next stage (Megatron's ``microbatch_group_size_per_vp_stage``); None for P, or slightly more
    where torch enlarges the groups to make them equal.

    Raises:
        ValueError: If the schedule is unknown, or cannot run with these numbers.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"no schedule {schedule}: choose from {', '.join(SCHEDULES)}")
    found = SCHEDULES[schedule]
    per_rank = found.fewest if virtual_stages is None else virtual_stages
    _check(found, num_ranks, num_micro_batches, per_rank)
    if group_size is None:
        return found.make(num_ranks, num_micro_batches, per_rank)
    if not found.grouped:
        raise ValueError(f"schedule {schedule} has no groups of micro-batches")
    rest = num_micro_batches % group_size if group_size >= num_ranks else 1
    if 0 < rest < num_ranks:
        raise ValueError(
            f"{num_micro_batches} micro-batches in groups of {group_size}: every group, including"
            f" the last, needs at least one per rank, {num_ranks}"
        )
    return _grouped(schedule, num_ranks, num_micro_batches, per_rank, group_size)


def _check(schedule: Schedule, num_ranks: int, num_micro_batches: int, per_rank: int) -> None:
    if min(num_ranks, num_micro_batches) < 1:
        raise ValueError(
            f"{num_ranks} ranks and {num_micro_batches} micro-batches: both must be at least 1"
        )
    if per_rank < schedule.fewest or (schedule.most is not None and per_rank > schedule.most):
        limits = (
            f"{schedule.fewest} or more" if schedule.most is None else f"exactly {schedule.fewest}"
        )
        raise ValueError(f"schedule {schedule.name} takes {limits} stages per rank, not {per_rank}")
    if schedule.fills and num_micro_batches < num_ranks * per_rank:
        raise ValueError(
            f"schedule {schedule.name} needs at least one micro-batch per stage,"
            f" {num_ranks * per_rank}, not {num_micro_batches}"
        )


def _grouped(
    name: str, num_ranks: int, num_micro_batches: int, virtual_stages: int, group_size: int
) -> Orders:
    make = (
        plain.interleaved_1f1b
        if name == "interleaved-1f1b"
        else zero_bubble.interleaved_zero_bubble
    )
    return orders_from(
        make(num_ranks, num_micro_batches, virtual_stages, group_size), schedule=name
    )


def _equal_groups(
    num_ranks: int, num_micro_batches: int, virtual_stages: int, *, name: str
) -> Orders:
    group_size = plain.default_group_size(num_ranks, num_micro_batches)
    return _grouped(name, num_ranks, num_micro_batches, virtual_stages, group_size)


def _one_stage(name: str, make: Callable[[int, int], plain.RankOrders], **more: bool) -> Schedule:
    """A schedule with one stage per rank."""

    def orders_of(num_ranks: int, num_micro_batches: int, _: int) -> Orders:
        return orders_from(make(num_ranks, num_micro_batches), schedule=name)

    return Schedule(name=name, make=orders_of, **more)


def _many_stages(name: str, make: Callable[[int, int, int], Orders], **more: bool) -> Schedule:
    """A schedule with two or more stages per rank, round by round."""
    return Schedule(name=name, make=make, fewest=2, most=None, **more)


def _there_and_back(name: str, make: Callable[[int, int, int], Orders], **more: bool) -> Schedule:
    """A schedule with two stages per rank, the second round in reverse rank order."""
    return Schedule(
        name=name, make=make, fewest=2, most=2, goes_back=True, splits_backward=True, **more
    )


def _looped_bfs(num_ranks: int, num_micro_batches: int, virtual_stages: int) -> Orders:
    made = plain.looped_bfs(num_ranks, num_micro_batches, virtual_stages)
    return orders_from(made, schedule="looped-bfs")


def _zb_v(num_ranks: int, num_micro_batches: int, _: int) -> Orders:
    return orders_from(zero_bubble.zb_v(num_ranks, num_micro_batches), schedule="zbv")


def _dualpipe_v(num_ranks: int, num_micro_batches: int, _: int) -> Orders:
    made, overlaps = zero_bubble.dualpipe_v(num_ranks, num_micro_batches)
    return orders_from(made, schedule="dualpipev", overlaps=overlaps)


_ALL = (
    _one_stage("gpipe", plain.gpipe),
    _one_stage("1f1b", plain.one_f_one_b),
    _many_stages("looped-bfs", _looped_bfs),
    _many_stages("interleaved-1f1b", partial(_equal_groups, name="interleaved-1f1b"), grouped=True),
    _one_stage("zb-h1", zero_bubble.zb_h1, splits_backward=True),
    _one_stage("zb-h2", zero_bubble.zb_h2, splits_backward=True),
    _many_stages(
        "interleaved-zb",
        partial(_equal_groups, name="interleaved-zb"),
        splits_backward=True,
        grouped=True,
    ),
    _there_and_back("zbv", _zb_v),
    _there_and_back("dualpipev", _dualpipe_v, fills=True),
)

SCHEDULES: Mapping[str, Schedule] = MappingProxyType({each.name: each for each in _ALL})
"""Schedules by name: those of ``distprof run pp --schedule``, and some that torch lacks."""
